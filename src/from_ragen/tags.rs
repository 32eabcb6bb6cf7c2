//! RAGEN's presets of environments (`custom_envs`) as tags here.
//!
//! Settings pass under the names that the environment's type has for them, so a new type needs no change here.

use super::translation::{Translation, as_toml};
use crate::hydra::yaml::{Node, Value};
use ragen_envs::{EnvError, Tag};
use serde_json::Map;
use toml::Table;

/// Carries over every preset that something here plays. One that nothing plays is a problem if it is used, else left out.
pub fn carry(translation: &mut Translation) {
    let used = used(translation);
    let mut left_out = Vec::new();
    for (name, node) in translation.values.tags() {
        let is_used = used.contains(&name);
        let is_map = matches!(node.value, Value::Map(_));
        match translation.values.follow(&node) {
            Err(text) if is_used => translation.problem(&format!("custom_envs.{name}"), text),
            Err(_) => left_out.push(name),
            Ok(_) if !is_map => {}
            Ok(node) => match Preset::new(&name, &node) {
                Ok(preset) if is_used || preset.can_be_played() => preset.carry(translation),
                Ok(_) => left_out.push(name),
                Err((key, text)) if is_used => translation.problem(&format!("custom_envs.{name}.{key}"), text),
                Err(_) => left_out.push(name),
            },
        }
    }
    if !left_out.is_empty() {
        let text = format!("custom_envs without use that nothing here plays are left out: {}", left_out.join(", "));
        translation.notices.push(text);
    }
}

/// The tags that are trained or validated on.
fn used(translation: &Translation) -> Vec<String> {
    let lists = ["train", "val"].map(|set| translation.values.get(&format!("es_manager.{set}.env_configs.tags")));
    let nodes = lists.into_iter().flatten().flat_map(|node| match node.value {
        Value::List(list) => list,
        _ => Vec::new(),
    });
    let text = |node: Node| match node.value {
        Value::Text(name) => Some(name),
        _ => None,
    };
    nodes.filter_map(text).collect()
}

/// One entry of `custom_envs`.
struct Preset<'a> {
    name: &'a str,
    node: &'a Node,
    env_type: String,
    single_action: bool,
    config: Table,
}

impl<'a> Preset<'a> {
    /// **Errors** The field at fault, and what is wrong with it.
    fn new(name: &'a str, node: &'a Node) -> Result<Self, (String, String)> {
        let shipped = ragen_envs::tag(name).ok();
        let env_type = match (node.get("env_type").map(|node| &node.value), &shipped) {
            (Some(Value::Text(env_type)), _) => env_type.clone(),
            (None, Some(shipped)) => shipped.env_type.clone(),
            (None, None) => {
                return Err(("env_type".into(), "is missing, and no preset of this name is shipped".into()));
            }
            (Some(value), _) => return Err(("env_type".into(), format!("expected the name of a type, found {value}"))),
        };
        let mut config = Table::new();
        match node.get("env_config").map(|node| &node.value) {
            None | Some(Value::Null) => {}
            Some(Value::Map(map)) => {
                for (key, node) in map.iter().filter(|(_, node)| node.value != Value::Null) {
                    let value = as_toml(&node.value).map_err(|text| (format!("env_config.{key}"), text))?;
                    config.insert(key.clone(), value);
                }
            }
            Some(value) => return Err(("env_config".into(), format!("expected settings, found {value}"))),
        }
        // A whole entry replaces the shipped preset of its name; one that only patches it is laid over it.
        if let Some(shipped) = shipped.filter(|_| node.get("env_type").is_some()) {
            restore_defaults(&mut config, &shipped, &env_type);
        }
        let mut of_type = ragen_envs::tags().into_iter().filter(|tag| tag.env_type == env_type);
        let single_action = of_type.any(|tag| tag.single_action);
        Ok(Preset { name, node, env_type, single_action, config })
    }

    fn can_be_played(&self) -> bool {
        let config = serde_json::to_value(&self.config).unwrap_or_default();
        matches!(ragen_envs::make(&self.env_type, &config), Ok(_) | Err(EnvError::Unavailable { .. }))
    }

    fn carry(self, translation: &mut Translation) {
        let name = self.name;
        let at = |field: &str| format!("custom_envs.{name}.{field}");
        if let Err(error) = ragen_envs::spec(&self.env_type) {
            return translation.problem(&at("env_type"), error.to_string());
        }
        if self.node.get("env_type").is_some() {
            translation.set(&format!("envs.{name}.type"), self.env_type, &[&at("env_type")]);
            translation.set(&format!("envs.{name}.single_action"), self.single_action, &[&at("env_type")]);
        }
        let fields =
            [("max_actions_per_traj", "max_actions"), ("env_instruction", "instruction"), ("max_tokens", "max_tokens")];
        for (field, ours) in fields {
            let Some(node) = self.node.get(field).filter(|node| node.value != Value::Null) else { continue };
            match as_toml(&node.value) {
                Ok(value) => translation.set(&format!("envs.{name}.{ours}"), value, &[&at(field)]),
                Err(text) => translation.problem(&at(field), text),
            }
        }
        if !self.config.is_empty() {
            translation.set(&format!("envs.{name}.config"), self.config, &[&at("env_config")]);
        }
    }
}

/// Settings that the shipped preset of the same name chooses and this one does not are set to the type's defaults: tables merge
/// when a configuration is read, so they would come back otherwise.
fn restore_defaults(config: &mut Table, shipped: &Tag, env_type: &str) {
    let chosen = shipped.config.as_object().map_or(Vec::new(), |map: &Map<_, _>| map.keys().cloned().collect());
    let settings = ragen_envs::spec(env_type).map_or(&[][..], |spec| spec.settings);
    for key in chosen.into_iter().filter(|key| !config.contains_key(key)).collect::<Vec<String>>() {
        let default = settings.iter().find(|setting| setting.name == key).map(|setting| setting.default);
        let default = default.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        if let Some(Ok(value)) = default.map(toml::Value::try_from) {
            config.insert(key, value);
        }
    }
}

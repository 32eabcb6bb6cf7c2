//! What there is: the environment types with their settings, and the shipped tags.
//!
//! It knows the list of tasks and nothing of how one is played. A *type* is code with settings; a *tag* is a type with
//! chosen settings and the budget of an episode, under the name that configurations and metrics use.

use crate::settings::nearest;
use crate::{
    Env, EnvError, Recap, Setting, alfworld, bandit, bridge, countdown, frozen_lake, game_2048, lean, metamathqa,
    rubikscube, search, sokoban, sudoku, webshop, wrappers,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an environment type is.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name in configurations.
    pub env_type: &'static str,
    /// What it asks of an agent, in a line.
    pub purpose: &'static str,
    /// Whether starts are drawn from so many that validation starts can be kept out of training; where they are not
    /// (the bandit has a few dozen), [`Env::state_hash`] must not be used to reject any.
    pub many_starts: bool,
    /// Whether a step may wait for something outside (a program, a server), so that episodes are played side by side.
    pub waits: bool,
    /// How earlier turns are told where a prompt sums them up.
    pub recap: Recap,
    /// Its settings.
    pub settings: &'static [Setting],
    /// The tags of it that are shipped.
    pub tags: fn() -> Vec<Tag>,
    /// Why it cannot be used on this machine; `None` if it can.
    pub unavailable: fn() -> Option<String>,
    pub(crate) build: fn(&Value) -> Result<Box<dyn Env>, EnvError>,
}

/// The types, in alphabetical order.
static SPECS: &[Spec] = &[
    alfworld::SPEC,
    bandit::SPEC,
    countdown::SPEC,
    frozen_lake::SPEC,
    game_2048::SPEC,
    bridge::HTTP,
    lean::SPEC,
    metamathqa::SPEC,
    bridge::PROCESS,
    rubikscube::SPEC,
    search::SPEC,
    sokoban::SPEC,
    sudoku::SPEC,
    webshop::SPEC,
];

/// Every environment type, in alphabetical order.
pub fn specs() -> &'static [Spec] {
    SPECS
}

/// The environment type of that name.
///
/// **Errors** [`EnvError::Unknown`] with the nearest known name.
pub fn spec(env_type: &str) -> Result<&'static Spec, EnvError> {
    let names = || SPECS.iter().map(|spec| spec.env_type);
    SPECS.iter().find(|spec| spec.env_type == env_type).ok_or_else(|| unknown("type", env_type, names().collect()))
}

/// Builds an environment from its type and settings (a map; null is all defaults), within the layers that `wrappers` lists.
///
/// **Errors** [`EnvError::Unknown`] for the type, [`EnvError::Unavailable`] if it cannot be used here, and
/// [`EnvError::Config`] that lists every setting that is unknown, of a wrong kind or impossible.
pub fn make(env_type: &str, config: &Value) -> Result<Box<dyn Env>, EnvError> {
    let spec = spec(env_type)?;
    match (spec.unavailable)() {
        Some(reason) => Err(EnvError::Unavailable { env_type: env_type.to_owned(), reason }),
        None => match wrappers::split(config) {
            (_, None) => (spec.build)(config),
            (own, Some(wrappers)) => wrappers::wrap(env_type, (spec.build)(&own)?, &wrappers),
        },
    }
}

fn unknown(what: &'static str, name: &str, known: Vec<&str>) -> EnvError {
    let nearest = nearest(name, known.iter().copied());
    EnvError::Unknown { what, name: name.to_owned(), nearest, known: known.join(", ") }
}

/// An environment type with chosen settings, under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tag {
    /// The name that configurations and metrics use.
    pub name: String,
    /// The environment type.
    pub env_type: String,
    /// The most actions in an episode.
    pub max_actions: usize,
    /// The response length that the prompt announces, in tokens; it limits nothing.
    pub max_tokens: usize,
    /// Replaces [`Env::instruction`] in the prompt.
    pub instruction: Option<String>,
    /// The whole answer is one action: it is not split at the action separator.
    pub single_action: bool,
    /// The settings that differ from the type's defaults.
    pub config: Value,
}

impl Tag {
    /// A tag with the type's own instruction, whose answers are split into actions.
    pub(crate) fn new(name: &str, env_type: &str, max_actions: usize, max_tokens: usize, config: Value) -> Self {
        let name = name.to_owned();
        Tag {
            name,
            env_type: env_type.to_owned(),
            max_actions,
            max_tokens,
            instruction: None,
            single_action: false,
            config,
        }
    }

    /// Builds the environment.
    ///
    /// **Errors** as [`make`].
    pub fn make(&self) -> Result<Box<dyn Env>, EnvError> {
        make(&self.env_type, &self.config)
    }
}

/// The shipped tags, type by type.
pub fn tags() -> Vec<Tag> {
    SPECS.iter().flat_map(|spec| (spec.tags)()).collect()
}

/// The shipped tag of that name.
///
/// **Errors** [`EnvError::Unknown`] with the nearest known name.
pub fn tag(name: &str) -> Result<Tag, EnvError> {
    let tags = tags();
    let known = tags.iter().map(|tag| tag.name.as_str()).collect();
    tags.iter().find(|tag| tag.name == name).cloned().ok_or_else(|| unknown("tag", name, known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(env_type: &str, config: Value) -> Vec<(String, String)> {
        match make(env_type, &config).err() {
            Some(EnvError::Config { problems, .. }) => problems.into_iter().map(|p| (p.key, p.message)).collect(),
            other => panic!("{env_type} {config} gave {other:?}"),
        }
    }

    #[test]
    fn every_table_is_complete_and_every_tag_builds() {
        // What stands on a program of the user's has no defaults that work.
        for spec in specs().iter().filter(|spec| !["http", "process"].contains(&spec.env_type)) {
            let defaults = spec.settings.iter().map(|setting| {
                let value: Value = serde_json::from_str(setting.default).unwrap();
                (setting.name.to_owned(), value)
            });
            assert_eq!((spec.unavailable)(), None, "{}", spec.env_type);
            make(spec.env_type, &Value::Object(defaults.collect())).unwrap();
            make(spec.env_type, &Value::Null).unwrap();
        }
        for tag in tags() {
            tag.make().unwrap();
            assert_eq!(super::tag(&tag.name), Ok(tag));
        }
    }

    #[test]
    fn unknown_names_are_answered_with_the_nearest() {
        let message = |error: Option<EnvError>| error.unwrap().to_string();
        let said = message(make("sokobann", &Value::Null).err());
        let start = "unknown environment type `sokobann` (did you mean `sokoban`?); there are alfworld, ";
        assert!(said.starts_with(start) && said.contains("frozen_lake, "), "{said}");
        assert!(message(tag("simplesokoban").err()).contains("did you mean `SimpleSokoban`?"));
        assert!(!message(tag("qqq").err()).contains("did you mean"));
    }

    #[test]
    fn every_wrong_setting_is_listed_with_its_key() {
        let found =
            problems("sokoban", json!({"num_boxs": 2, "max_steps": "many", "dim_room": [6], "generator": "maze"}));
        let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["num_boxs", "dim_room", "generator", "max_steps"]);
        assert!(found[0].1.contains("did you mean `num_boxes`?"), "{}", found[0].1);
        assert_eq!(found[2].1, "is \"maze\" but must be one of rooms, open");
        let text = make("sokoban", &json!({"num_boxs": 2, "max_steps": "many"})).err().unwrap().to_string();
        assert!(text.starts_with("environment `sokoban`: num_boxs: unknown setting"), "{text}");
        assert!(text.contains("; max_steps: is \"many\" but must be a whole number from 1 to 1000000"), "{text}");
    }

    #[test]
    fn impossible_settings_are_errors_at_construction() {
        for (env_type, config, key) in [
            ("sokoban", json!({"num_boxes": 15}), "num_boxes"),
            ("sokoban", json!({"num_boxes": 2, "generator": "open", "dim_room": [4, 4]}), "num_boxes"),
            ("sokoban", json!({"num_boxes": -1}), "num_boxes"),
            ("sokoban", json!({"dim_room": [6, 17]}), "dim_room"),
            ("sokoban", json!({"dim_x": 2.5, "dim_y": 6}), "dim_x"),
            ("sokoban", json!({"solution_moves": [6, 2]}), "solution_moves"),
            ("sokoban", json!({"observation_format": "ascii"}), "observation_format"),
            ("sokoban", json!({"render_mode": "rgb_array"}), "render_mode"),
            ("sokoban", json!({"grid_lookup": {"7": "x"}}), "grid_lookup"),
            ("sokoban", json!({"grid_lookup": {"0": "_"}}), "grid_lookup"),
            ("sokoban", json!({"grid_lookup": {"0": "█"}, "observation_format": "compact"}), "grid_lookup"),
            ("sokoban", json!({"grid_vocab": {"?": "what"}}), "grid_vocab"),
            ("sokoban", json!({"action_lookup": {"1": "down"}}), "action_lookup"),
            ("sokoban", json!({"action_lookup": {"5": "jump"}}), "action_lookup"),
            ("frozen_lake", json!({"success_rate": 1.2}), "success_rate"),
            ("frozen_lake", json!({"success_rate": "0.8"}), "success_rate"),
            ("frozen_lake", json!({"p": 0}), "p"),
            ("frozen_lake", json!({"size": 1}), "size"),
            ("frozen_lake", json!({"is_slippery": 1}), "is_slippery"),
            ("frozen_lake", json!({"action_map": {"1": 0, "2": 0, "3": 2, "4": 3}}), "action_map"),
            ("bandit", json!({"split": "val"}), "split"),
            ("bandit", json!({"hi_arm_hiscore": null}), "hi_arm_hiscore"),
            ("bandit", json!([1]), "config"),
        ] {
            let found = problems(env_type, config.clone());
            assert!(found.iter().any(|(found, _)| found == key), "{env_type} {config} gave {found:?}");
        }
    }
}

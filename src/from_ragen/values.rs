//! The values of RAGEN's keys: as given, else RAGEN's defaults, with references followed.

use super::keys::ROWS;
use crate::hydra;
use crate::hydra::yaml::{self, Node, Origin, Value};
use std::collections::BTreeMap;

/// RAGEN's keys with their values.
pub struct Values<'a> {
    root: &'a Node,
    defaults: BTreeMap<&'static str, Node>,
}

impl<'a> Values<'a> {
    /// Those of a whole configuration.
    pub fn new(root: &'a Node) -> Self {
        let default = |text: &str| yaml::parse("RAGEN's default", &format!("v: {text}")).ok()?.get("v").cloned();
        let defaults = ROWS.iter().filter(|row| !row.default.is_empty());
        Values { root, defaults: defaults.filter_map(|row| Some((row.path, default(row.default)?))).collect() }
    }

    /// Whether the configuration sets a key.
    pub fn is_given(&self, path: &str) -> bool {
        self.root.get(path).is_some()
    }

    /// Where a key is set; `None` for RAGEN's default.
    pub fn origin(&self, path: &str) -> Option<Origin> {
        self.root.get(path).map(|node| node.origin.clone())
    }

    /// A key's value.
    ///
    /// **Errors** A reference that cannot be followed, or a key that has neither value nor default.
    pub fn get(&self, path: &str) -> Result<Node, String> {
        let node = self.find(path).ok_or("has no value")?;
        self.follow(&node)
    }

    /// A value with its references followed.
    ///
    /// **Errors** As [`Values::get`].
    pub fn follow(&self, node: &Node) -> Result<Node, String> {
        hydra::resolve(node, &|path| self.find(path))
    }

    /// The map of presets by tag.
    pub fn tags(&self) -> Vec<(String, Node)> {
        match self.root.get("custom_envs").map(|node| &node.value) {
            Some(Value::Map(map)) => map.clone(),
            _ => Vec::new(),
        }
    }

    fn find(&self, path: &str) -> Option<Node> {
        self.root.get(path).or_else(|| self.defaults.get(path)).cloned()
    }
}

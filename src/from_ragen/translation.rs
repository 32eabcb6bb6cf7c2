//! A translation on its way: what was set, what was wrong, what is to be told.

use super::keys::{Group, Kind, Row, Rule};
use super::values::Values;
use super::{Carried, place};
use crate::hydra::yaml::{self, Node, Value};
use crate::settings::Problem;
use ragen_models::lora;
use std::collections::BTreeMap;
use toml::Table;

/// A translation on its way.
pub struct Translation<'a> {
    /// RAGEN's values.
    pub values: Values<'a>,
    /// The configuration here as far as it was made.
    pub table: Table,
    /// Every key that was set.
    pub carried: Vec<Carried>,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// What somebody should know.
    pub notices: Vec<String>,
    /// Keys without meaning here.
    pub ignored: BTreeMap<Group, Vec<String>>,
}

impl<'a> Translation<'a> {
    /// The beginning.
    pub fn new(values: Values<'a>, problems: Vec<Problem>, notices: Vec<String>) -> Self {
        Translation { values, table: Table::new(), carried: Vec::new(), problems, notices, ignored: BTreeMap::new() }
    }

    /// Notes that one of RAGEN's keys is wrong.
    pub fn problem(&mut self, path: &str, text: impl Into<String>) {
        let key = place(path, self.values.origin(path).as_ref());
        self.problems.push(Problem { key, text: text.into() });
    }

    /// Sets a key here.
    pub fn set(&mut self, ours: &str, value: impl Into<toml::Value>, from: &[&str]) {
        let value = value.into();
        let from = from.iter().map(|path| (path.to_string(), self.values.origin(path))).collect();
        self.carried.push(Carried { ours: ours.into(), value: value.to_string(), from });
        let mut table = &mut self.table;
        let (sections, name) = ours.rsplit_once('.').map_or((None, ours), |(a, b)| (Some(a), b));
        for section in sections.into_iter().flat_map(|sections| sections.split('.')) {
            let inner = table.entry(section).or_insert_with(|| toml::Value::Table(Table::new()));
            let toml::Value::Table(inner) = inner else { return };
            table = inner;
        }
        table.insert(name.into(), value);
    }

    /// Carries over a row that stands for itself.
    pub fn carry(&mut self, row: &Row) {
        match self.values.get(row.path).and_then(|node| convert(row.rule, &node)) {
            Ok(Some(value)) => self.set(row.ours[0], value, &[row.path]),
            Ok(None) => {}
            Err(text) => self.problem(row.path, text),
        }
    }

    /// Checks a row of which only some values can be had here.
    pub fn only(&mut self, row: &Row, allowed: &[&str]) {
        let is_allowed = |value: &Value| {
            let same = |text: &&str| yaml::parse("", &format!("v: {text}")).is_ok_and(|root| equal(&root, value));
            allowed.iter().any(same)
        };
        match self.values.get(row.path) {
            Ok(node) if is_allowed(&node.value) => {}
            Ok(node) => {
                let text = format!("can only be {} here, not {}: {}", allowed.join(" or "), node.value, row.note);
                self.problem(row.path, text);
            }
            Err(text) => self.problem(row.path, text),
        }
    }

    /// A value, or `None` and a problem.
    pub fn get(&mut self, path: &str) -> Option<Node> {
        self.values.get(path).map_err(|text| self.problem(path, text)).ok()
    }

    /// A value that is read by `read`, or `None` and a problem.
    fn read<T>(&mut self, path: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let node = self.get(path)?;
        let found = read(&node.value);
        if found.is_none() {
            self.problem(path, format!("expected {expected}, found {}", node.value));
        }
        found
    }

    /// True or false.
    pub fn flag(&mut self, path: &str) -> Option<bool> {
        self.read(path, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A finite number.
    pub fn number(&mut self, path: &str) -> Option<f64> {
        self.read(path, "a number", |value| as_number(value).filter(|x| x.is_finite()))
    }

    /// A whole number.
    pub fn whole(&mut self, path: &str) -> Option<i64> {
        self.read(path, "a whole number", |value| match value {
            Value::Whole(n) => Some(*n),
            _ => None,
        })
    }

    /// A text.
    pub fn text(&mut self, path: &str) -> Option<String> {
        self.read(path, "a text", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// The value of another kind, null being `otherwise`.
    pub fn number_or(&mut self, path: &str, otherwise: f64) -> Option<f64> {
        self.read(
            path,
            "a number or null",
            |value| if *value == Value::Null { Some(otherwise) } else { as_number(value) },
        )
    }
}

/// A number's value.
pub fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Whole(n) => Some(*n as f64),
        Value::Number(x) => Some(*x),
        _ => None,
    }
}

/// Whether two values are the same, 1 and 1.0 too; the first may be a map that holds it as `v`.
pub fn equal(a: &Node, b: &Value) -> bool {
    let a = a.get("v").map_or(&a.value, |node| &node.value);
    match (a, b) {
        (Value::List(a), Value::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, &b.value)),
        (a, b) => match (as_number(a), as_number(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
    }
}

/// A value as TOML has it.
///
/// **Errors** null has no form there.
pub fn as_toml(value: &Value) -> Result<toml::Value, String> {
    Ok(match value {
        Value::Null => return Err("is null, but a value is needed".into()),
        Value::Flag(flag) => (*flag).into(),
        Value::Whole(n) => (*n).into(),
        Value::Number(x) => (*x).into(),
        Value::Text(text) => text.as_str().into(),
        Value::List(list) => {
            toml::Value::Array(list.iter().map(|node| as_toml(&node.value)).collect::<Result<_, _>>()?)
        }
        Value::Map(map) => {
            let entry = |(name, node): &(String, Node)| Ok((name.clone(), as_toml(&node.value)?));
            toml::Value::Table(map.iter().map(entry).collect::<Result<_, String>>()?)
        }
    })
}

/// The value here of a value of RAGEN's; `None` leaves the default.
fn convert(rule: Rule, node: &Node) -> Result<Option<toml::Value>, String> {
    let value = &node.value;
    let expected = |what: &str| Err(format!("expected {what}, found {value}"));
    let words = |value: &str| value.to_lowercase().replace('-', "_");
    let made: toml::Value = match (rule, value) {
        (Rule::Positive, value) => match as_number(value) {
            Some(x) if x < 0.0 => 0.into(),
            Some(_) => as_toml(value)?,
            None => return expected("a whole number"),
        },
        (Rule::Kind(Kind::List), Value::Null) => toml::Value::Array(Vec::new()),
        (Rule::Kind(Kind::Count), Value::Null) => 0.into(),
        (Rule::Kind(Kind::Name), Value::Text(name)) => name.replace(['/', '\\'], "-").into(),
        (Rule::Kind(Kind::Name), Value::Whole(n)) => n.to_string().into(),
        (Rule::Kind(Kind::Dtype), Value::Text(name)) => match name.as_str() {
            "bfloat16" | "bf16" => "bf16".into(),
            "float32" | "float" | "fp32" => "f32".into(),
            _ => return expected("bfloat16 or float32"),
        },
        (Rule::Kind(Kind::Layers), Value::Text(name)) if name == "all-linear" => {
            toml::Value::Array(lora::Module::ALL.iter().map(|module| module.name().into()).collect())
        }
        (Rule::Kind(Kind::Layers), Value::Text(name)) => toml::Value::Array(vec![name.as_str().into()]),
        (Rule::Kind(Kind::Loss), Value::Text(name)) => match words(name).as_str() {
            "vanilla" | "ppo" => "ppo".into(),
            "gspo" => "gspo".into(),
            _ => return expected("vanilla or gspo (others: update.loss.policy)"),
        },
        (Rule::Kind(Kind::Schedule), Value::Null) => return Ok(None),
        (_, value) => as_toml(value)?,
    };
    Ok(Some(made))
}

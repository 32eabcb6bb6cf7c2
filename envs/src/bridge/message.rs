//! The answers of the protocol, checked field by field before anything of them is used.

use crate::{Legend, Step};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The version of the protocol that is spoken here.
pub(super) const VERSION: u64 = 1;

/// A text in quotes, cut where it is long, for messages to people.
pub(super) fn shortened(text: &str) -> String {
    let start: String = text.chars().take(60).collect();
    let more =
        if start.len() < text.len() { format!(" and {} more bytes", text.len() - start.len()) } else { String::new() };
    format!("{start:?}{more}")
}

/// The fields of an answer.
pub(super) struct Fields {
    map: Map<String, Value>,
    asked: String,
}

impl Fields {
    /// Takes an answer to the message `id` apart.
    pub fn of(answer: Value, id: u64) -> Result<Self, String> {
        let Value::Object(map) = answer else {
            return Err(format!("it answered {}, which is no JSON object", shortened(&answer.to_string())));
        };
        match map.get("id").map(Value::as_u64) {
            Some(Some(found)) if found == id => {}
            _ => {
                let found = map.get("id").unwrap_or(&Value::Null);
                return Err(format!("its answer has id {found} where the message had {id}"));
            }
        }
        match map.get("error") {
            Some(error) => {
                let text = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
                Err(format!("it answered with an error: {}", text.chars().take(2000).collect::<String>()))
            }
            None => Ok(Fields { map, asked: String::new() }),
        }
    }

    /// Remembers what was asked, for what may be wrong with a field.
    pub fn asked(self, asked: String) -> Self {
        Fields { asked, ..self }
    }

    fn wrong(&self, name: &str, must_be: &str) -> String {
        match self.map.get(name) {
            None => format!("{}: its answer lacks `{name}`, {must_be}", self.asked),
            Some(found) => {
                format!(
                    "{}: it answered `{name}` = {}, which must be {must_be}",
                    self.asked,
                    shortened(&found.to_string())
                )
            }
        }
    }

    /// A field that must be there.
    fn must<'a, T>(&'a self, name: &str, must_be: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T, String> {
        self.map.get(name).and_then(read).ok_or_else(|| self.wrong(name, must_be))
    }

    /// A field that may be left out or null.
    fn may<'a, T>(
        &'a self,
        name: &str,
        must_be: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.must(name, must_be, read).map(Some),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        self.may(name, "true or false", Value::as_bool)
    }

    /// Takes a field out, whatever it holds.
    pub fn take(&mut self, name: &str) -> Result<Value, String> {
        self.map.remove(name).ok_or_else(|| self.wrong(name, "any value"))
    }

    fn actions(&self) -> Result<Option<Vec<String>>, String> {
        self.may("actions", "null or a list of different texts, at least one", |value| {
            let names: Vec<String> =
                value.as_array()?.iter().map(|v| v.as_str().map(str::to_owned)).collect::<Option<_>>()?;
            let mut folded: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
            folded.sort_unstable();
            folded.dedup();
            (!names.is_empty() && folded.len() == names.len()).then_some(names)
        })
    }

    /// What a step did, which led from `before` to `after`.
    pub fn step(&self, before: &Shown, after: &Shown) -> Result<Step, String> {
        let number = |value: &Value| value.as_f64().filter(|x| x.is_finite());
        let info = self.may("info", "a map of finite numbers", |value| {
            let one = |(name, value): (&String, &Value)| Some((Cow::Owned(name.clone()), number(value)?));
            value.as_object()?.iter().map(one).collect::<Option<Vec<_>>>()
        })?;
        let must = |name: &str| self.must(name, "true or false", Value::as_bool);
        let (terminated, truncated, valid) =
            (must("terminated")?, must("truncated")?, self.flag("valid")?.unwrap_or(true));
        let changed = before.observation != after.observation;
        Ok(Step {
            reward: self.must("reward", "a finite number", number)?,
            terminated,
            // A task that ended was not cut off.
            truncated: truncated && !terminated,
            success: self.flag("success")?.unwrap_or(false),
            valid,
            effective: self.flag("effective")?.unwrap_or(valid && changed),
            info: info.unwrap_or_default(),
        })
    }
}

/// What a program says of the environment it plays.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hello {
    pub name: String,
    pub instruction: String,
    pub actions: Option<Vec<String>>,
    pub legend: Legend,
    pub keeps_state: bool,
    pub draws: bool,
    pub many_starts: bool,
}

impl Hello {
    pub fn read(said: &Fields) -> Result<Self, String> {
        let version = said.must("protocol", "the version of the protocol", Value::as_u64)?;
        if version != VERSION {
            return Err(said.wrong("protocol", &format!("{VERSION}, the version spoken here")));
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let symbols = said.may("symbols", "a list of pairs of texts", |value| {
            let pair = |value: &Value| match value.as_array()?.as_slice() {
                [symbol, meaning] => Some((text(symbol)?, text(meaning)?)),
                _ => None,
            };
            value.as_array()?.iter().map(pair).collect::<Option<Vec<_>>>()
        })?;
        Ok(Hello {
            name: said.may("name", "a text", text)?.unwrap_or_else(|| "an environment".to_owned()),
            instruction: said.must("instruction", "a text", text)?,
            actions: said.actions()?,
            legend: Legend {
                symbols: symbols.unwrap_or_default(),
                coordinates: said.may("coordinates", "a text", text)?,
            },
            keeps_state: said.flag("keeps_state")?.unwrap_or(false),
            draws: said.flag("draws")?.unwrap_or(false),
            many_starts: said.flag("many_starts")?.unwrap_or(false),
        })
    }
}

/// What an environment shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    pub observation: String,
    pub actions: Option<Vec<String>>,
    pub hash: Option<u64>,
}

impl Shown {
    /// Reads it; where the answer names no actions, they are those of `before`.
    pub fn read(said: &Fields, before: &Option<Vec<String>>) -> Result<Self, String> {
        Ok(Shown {
            observation: said.must("observation", "a text", |value| value.as_str().map(str::to_owned))?,
            actions: said.actions()?.or_else(|| before.clone()),
            hash: said.may("hash", "a whole number", Value::as_u64)?,
        })
    }
}

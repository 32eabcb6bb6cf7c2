//! Settings of an environment: one table a type states name, default and meaning, and a reader checks a map against it.
//!
//! It knows nothing of any task. The defaults are read from the table itself, so that what `ragen envs` prints is what
//! holds; every problem of a map is gathered before one error is returned.

use crate::EnvError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// One setting of an environment type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its key.
    pub name: &'static str,
    /// Its default, as JSON.
    pub default: &'static str,
    /// What it does, with its allowed values.
    pub meaning: &'static str,
}

/// One thing that is wrong with a map of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, dotted below the environment's own settings.
    pub key: String,
    /// What is wrong with it and what would be right.
    pub message: String,
}

/// `key: message` for each, joined by semicolons.
pub(crate) fn list(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("{}: {}", p.key, p.message)).collect::<Vec<_>>().join("; ")
}

/// `(did you mean ...?)`, or nothing.
pub(crate) fn suggest(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or(String::new(), |name| format!(" (did you mean `{name}`?)"))
}

/// The known name most similar to `name`, if it is similar at all.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let folded = name.to_lowercase();
    let similarity = |other: &str| strsim::jaro_winkler(&folded, &other.to_lowercase());
    let best = known.into_iter().map(|other| (similarity(other), other)).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity > 0.7).map(|(_, name)| name.to_owned())
}

/// Reads settings by name and gathers what is wrong; every read falls back to the default of the table.
pub(crate) struct Reader<'a> {
    env_type: &'static str,
    table: &'static [Setting],
    given: Option<&'a Map<String, Value>>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    /// Starts on a map of settings (or null, which is no settings) and notes the keys that the table lacks.
    pub(crate) fn new(env_type: &'static str, table: &'static [Setting], given: &'a Value) -> Self {
        let mut reader = Reader { env_type, table, given: given.as_object(), problems: Vec::new() };
        if !given.is_object() && !given.is_null() {
            reader.problem("config", format!("must be a map of settings, not {given}"));
        }
        let names = || table.iter().map(|setting| setting.name);
        for key in reader.given.into_iter().flat_map(Map::keys) {
            if names().all(|name| name != key) {
                let known = names().collect::<Vec<_>>().join(", ");
                let hint = suggest(&nearest(key, names()));
                reader.problem(key, format!("unknown setting{hint}; there are {known}"));
            }
        }
        reader
    }

    /// Notes that `key` is wrong.
    pub(crate) fn problem(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(Problem { key: key.to_owned(), message: message.into() });
    }

    /// The value of a setting: as given, else its default.
    pub(crate) fn value(&self, name: &str) -> Value {
        self.given.and_then(|map| map.get(name)).cloned().unwrap_or_else(|| self.default(name))
    }

    fn default(&self, name: &str) -> Value {
        let setting = self.table.iter().find(|setting| setting.name == name);
        setting.and_then(|setting| serde_json::from_str(setting.default).ok()).unwrap_or(Value::Null)
    }

    /// Converts the value of a setting, or notes what it must be and converts its default.
    ///
    /// **Panics** if the table's own default does not convert: a mistake in this crate, that any construction shows.
    pub(crate) fn read<T>(&mut self, name: &str, must_be: &str, convert: impl Fn(&Value) -> Option<T>) -> T {
        let value = self.value(name);
        if let Some(converted) = convert(&value) {
            return converted;
        }
        self.problem(name, format!("is {value} but must be {must_be}"));
        convert(&self.default(name)).unwrap_or_else(|| panic!("the table's default of {name} must be {must_be}"))
    }

    /// A whole number within a range.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> usize {
        let must_be = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(name, &must_be, |value| whole(value).filter(|n| range.contains(n))) as usize
    }

    /// A finite number within a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> f64 {
        let must_be = match (range.start().is_finite(), range.end().is_finite()) {
            (false, false) => "a finite number".to_owned(),
            _ => format!("a number from {} to {}", range.start(), range.end()),
        };
        self.read(name, &must_be, |value| value.as_f64().filter(|n| n.is_finite() && range.contains(n)))
    }

    /// True or false.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.read(name, "true or false", Value::as_bool)
    }

    /// One of a few words; returns the index of the word.
    pub(crate) fn choice(&mut self, name: &str, words: &[&str]) -> usize {
        let must_be = format!("one of {}", words.join(", "));
        self.read(name, &must_be, |value| words.iter().position(|word| value.as_str() == Some(*word)))
    }

    /// Two whole numbers within a range, as a list; `None` for null.
    pub(crate) fn pair(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<[usize; 2]> {
        let must_be = format!("a list of two whole numbers from {} to {}", range.start(), range.end());
        self.read(name, &must_be, |value| {
            let one = |value: &Value| whole(value).filter(|n| range.contains(n)).map(|n| n as usize);
            match value.as_array().map(Vec::as_slice) {
                Some([a, b]) => Some(Some([one(a)?, one(b)?])),
                Some(_) => None,
                None => value.is_null().then_some(None),
            }
        })
    }

    /// A whole number within a range; `None` for null.
    pub(crate) fn optional(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<usize> {
        let must_be = format!("null or a whole number from {} to {}", range.start(), range.end());
        self.read(name, &must_be, |value| {
            let number = whole(value).filter(|n| range.contains(n)).map(|n| n as usize);
            (value.is_null() || number.is_some()).then_some(number)
        })
    }

    /// Names by id, from `first` on: a map of ids to names, where ids that are left out keep the name of `usual`.
    pub(crate) fn names(&mut self, name: &str, first: usize, usual: &[&str]) -> Vec<String> {
        let mut names: Vec<String> = usual.iter().map(|name| (*name).to_owned()).collect();
        let must_be =
            format!("a map from the ids {first} to {} to names, without spaces around them", first + usual.len() - 1);
        let given: Vec<(usize, String)> = self.read(name, &must_be, |value| {
            let visible = |name: &str| !name.is_empty() && name.trim() == name && !name.contains(char::is_control);
            let index = |id: &str| id.parse::<usize>().ok()?.checked_sub(first).filter(|index| *index < usual.len());
            let pair =
                |(id, name): (&String, &Value)| Some((index(id)?, name.as_str().filter(|n| visible(n))?.to_owned()));
            value.as_object()?.iter().map(pair).collect()
        });
        given.into_iter().for_each(|(index, name)| names[index] = name);
        if let Some(i) =
            (1..names.len()).find(|i| names[..*i].iter().any(|other| other.eq_ignore_ascii_case(&names[*i])))
        {
            let text = format!("`{}` names two actions; each needs its own name", names[i]);
            self.problem(name, text);
        }
        names
    }

    /// `render_mode`: text is the only one; images are known, and refused with the reason.
    pub(crate) fn text_render_mode(&mut self) {
        self.read("render_mode", "text (images are not drawn)", |value| (value == "text").then_some(()));
    }

    /// The settings are read: `value` if none was wrong.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, EnvError> {
        if self.problems.is_empty() {
            return Ok(value);
        }
        Err(EnvError::Config { env_type: self.env_type.to_owned(), problems: self.problems })
    }
}

/// A non-negative whole number; `3.0` counts, since some formats write every number so.
fn whole(value: &Value) -> Option<u64> {
    let exact = |x: f64| (x >= 0.0 && x < (1u64 << 53) as f64 && x.fract() == 0.0).then_some(x as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(exact))
}

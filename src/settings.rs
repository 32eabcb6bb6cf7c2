//! From a configuration's name and a few `KEY=VALUE` to a checked [`Config`]: default, file, overrides, in this order.
//!
//! A configuration is merged as a TOML table, key by key (tables merge, lists replace), and every mistake in it is found
//! before anything is said: unknown keys, wrong types, values out of range and combinations that cannot work come as one
//! error with a line a key. What the keys mean is not known here: [`keys`] describes them, the sections' own types hold
//! their defaults.
//!
//! A file may hold a section `[lm]` with sections inside, such as `[lm.rollout]`. It is laid over the rest of the file, and
//! under the overrides, if `model.path` is a language model: one that brings a chat template. So one shipped configuration
//! serves the small model and any other. What was resolved has no such section: its values are explicit.

use crate::config::Config;
use keys::Expect;
use ragen_models::chat_template;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

mod combinations;
pub mod keys;
pub mod reference;

pub use combinations::notices;

/// The shipped configurations by name; the first is the default.
pub const SHIPPED: &[(&str, &str)] = &[
    ("sokoban", include_str!("../configs/sokoban.toml")),
    ("frozen_lake", include_str!("../configs/frozen_lake.toml")),
    ("frozen_lake_slippery", include_str!("../configs/frozen_lake_slippery.toml")),
    ("bandit", include_str!("../configs/bandit.toml")),
    ("alfworld", include_str!("../configs/alfworld.toml")),
    ("countdown", include_str!("../configs/countdown.toml")),
    ("game_2048", include_str!("../configs/game_2048.toml")),
    ("lean", include_str!("../configs/lean.toml")),
    ("metamathqa", include_str!("../configs/metamathqa.toml")),
    ("rubikscube", include_str!("../configs/rubikscube.toml")),
    ("search", include_str!("../configs/search.toml")),
    ("sudoku", include_str!("../configs/sudoku.toml")),
    ("webshop", include_str!("../configs/webshop.toml")),
];

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Dotted path of the key at fault.
    pub key: String,
    /// What is wrong with it, and what would be right.
    pub text: String,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// CONFIG is neither a shipped name nor a file.
    #[error("there is no configuration {0}: it is neither a file, nor a tag (`ragen envs` lists them), nor one of {shipped}{1}", shipped = names())]
    NoConfig(String, String),
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(String, std::io::Error),
    /// The file is not TOML.
    #[error("{0} is not TOML: {1}")]
    Syntax(String, String),
    /// An override is not `KEY=VALUE`.
    #[error("{0} is not KEY=VALUE with a dotted key, such as filter.value=0.9")]
    Override(String),
    /// All that is wrong, a line a key.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

fn names() -> String {
    SHIPPED.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn list(problems: &[Problem]) -> String {
    let head = match problems.len() {
        1 => "the configuration has a problem, nothing was started:".to_string(),
        n => format!("the configuration has {n} problems, nothing was started:"),
    };
    problems.iter().fold(head, |text, p| format!("{text}\n  {}: {}", p.key, p.text))
}

/// Resolves a configuration: the defaults, over them CONFIG (a shipped name, a shipped tag or a file; without one, the first
/// shipped), over that each `KEY=VALUE` in order. A tag stands for the shipped configuration of its type, played on it.
///
/// **Errors** [`SettingsError`]; everything that is wrong with the keys is in one.
pub fn load(config: Option<&str>, overrides: &[String]) -> Result<Config, SettingsError> {
    let source = config.unwrap_or(SHIPPED[0].0);
    let text = match SHIPPED.iter().find(|(name, _)| *name == source) {
        Some((_, text)) => text.to_string(),
        None if Path::new(source).is_dir() => {
            // A run directory stands for the configuration that it resolved.
            let path = Path::new(source).join("config.toml");
            fs::read_to_string(&path).map_err(|e| SettingsError::Read(path.display().to_string(), e))?
        }
        None if !Path::new(source).exists()
            && let Some((text, mut changes)) = of_tag(source) =>
        {
            changes.extend_from_slice(overrides);
            return parse(source, text, &changes);
        }
        None => fs::read_to_string(source).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => SettingsError::NoConfig(source.into(), hint(source)),
            _ => SettingsError::Read(source.into(), e),
        })?,
    };
    parse(source, &text, overrides)
}

/// What a tag stands for: the configuration that makes it or, of a tag that is always there, that of its environment type;
/// and what makes it play that tag.
fn of_tag(name: &str) -> Option<(&'static str, Vec<String>)> {
    let env_type = ragen_envs::tag(name).map(|tag| tag.env_type);
    let makes =
        |text: &str| toml::from_str::<Table>(text).is_ok_and(|file| tags_of(&file).iter().any(|tag| tag == name));
    let (_, text) =
        SHIPPED.iter().find(|(shipped, text)| env_type.as_ref().map_or_else(|_| makes(text), |t| t == shipped))?;
    let sets = ["env.train", "env.val"];
    let tags = sets.iter().flat_map(|set| [format!("{set}.tags=[\"{name}\"]"), format!("{set}.n_groups=[]")]);
    Some((text, tags.chain([format!("run.name={name}")]).collect()))
}

/// The tags that a file makes or patches.
fn tags_of(file: &Table) -> Vec<String> {
    file.get("envs").and_then(Value::as_table).map_or(Vec::new(), |envs| envs.keys().cloned().collect())
}

/// As [`load`], from the text of a file called `source`.
///
/// **Errors** as [`load`].
pub fn parse(source: &str, text: &str, overrides: &[String]) -> Result<Config, SettingsError> {
    let given: Table =
        toml::from_str(text).map_err(|e| SettingsError::Syntax(source.into(), e.to_string().trim_end().into()))?;
    resolve(source, given, overrides, Vec::new())
}

/// As [`parse`], from a table; the problems that were found in making it come first in the error.
///
/// **Errors** as [`load`].
pub fn resolve(
    source: &str,
    mut given: Table,
    overrides: &[String],
    mut problems: Vec<Problem>,
) -> Result<Config, SettingsError> {
    let overrides: Vec<(Vec<String>, Value)> =
        overrides.iter().map(|text| read_override(text)).collect::<Result<_, _>>()?;
    lay_over_language_model(&mut given, &overrides, &mut problems);
    for (key, value) in overrides {
        if let Err(problem) = set(&mut given, &key, value) {
            problems.push(problem);
        }
    }
    let base = default_table();
    check("", &mut given, &base, &mut problems);
    if !problems.is_empty() {
        return Err(SettingsError::Invalid(problems));
    }
    let named = tags_of(&given);
    let mut merged = base;
    merge(&mut merged, given);
    // Checked above key by key, so what is left is what the table of keys does not know (a test holds it complete).
    let mut config: Config = merged.try_into().map_err(|e: toml::de::Error| {
        SettingsError::Invalid(vec![Problem { key: source.into(), text: e.message().into() }])
    })?;
    let problems = combinations::check(&config);
    // Of the shipped tags, those that the run plays or the file speaks of are a part of it; the rest would only fill its
    // `config.toml`, and tie a resume to tags that have nothing to do with it.
    let [train, val] = [&config.env.train.tags, &config.env.val.tags];
    config.envs.retain(|name, _| train.contains(name) || val.contains(name) || named.contains(name));
    if problems.is_empty() { Ok(config) } else { Err(SettingsError::Invalid(problems)) }
}

/// Takes the section `[lm]` out of a file and, if the model to come is a language model, lays it over the rest.
fn lay_over_language_model(given: &mut Table, overrides: &[(Vec<String>, Value)], problems: &mut Vec<Problem>) {
    let section = match given.remove("lm") {
        None => return,
        Some(Value::Table(section)) => section,
        Some(other) => {
            return problems.push(Problem { key: "lm".into(), text: format!("is a section and cannot be {other}") });
        }
    };
    // Its mistakes are found whether or not it is used.
    let mut wrong = Vec::new();
    check("", &mut section.clone(), &default_table(), &mut wrong);
    problems.extend(wrong.into_iter().map(|problem| Problem { key: join("lm", &problem.key), ..problem }));
    let asked = overrides.iter().rev().find(|(key, _)| key.join(".") == "model.path").map(|(_, value)| value);
    let path = asked.or_else(|| given.get("model").and_then(|model| model.get("path"))).and_then(Value::as_str);
    if path.is_some_and(|path| is_language_model(Path::new(path))) {
        merge(given, section);
    }
}

/// Whether a path means a model that brings a chat template: a folder, a GGUF file, or a run of such a model.
pub fn is_language_model(path: &Path) -> bool {
    let checkpoints = fs::read_dir(path.join("checkpoints")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut places = [path.to_path_buf(), path.join("model")].into_iter().chain(checkpoints);
    places.any(|place| chat_template::is_brought_by(&place))
}

/// The complete configuration as TOML; [`parse`] of it gives the same configuration.
pub fn to_toml(config: &Config) -> String {
    let mut table = table_of(config);
    shorten(&mut table);
    toml::to_string(&table).unwrap_or_else(|e| unreachable!("a TOML table is written: {e}"))
}

/// The keys by which two configurations differ, with both values: `optim.lr: 0.001 here, 0.002 there`.
///
/// Keys for which `ignored` holds are left out.
pub fn differences(here: &Config, there: &Config, ignored: impl Fn(&str) -> bool) -> Vec<String> {
    fn walk(path: &str, here: Option<&Value>, there: Option<&Value>, out: &mut Vec<(String, String)>) {
        if let (Some(Value::Table(a)), Some(Value::Table(b))) = (here, there) {
            let mut names: Vec<&String> = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))).collect();
            names.sort();
            names.iter().for_each(|name| walk(&join(path, name), a.get(*name), b.get(*name), out));
        } else if here != there {
            let show = |value: Option<&Value>| value.map_or("nothing".to_string(), Value::to_string);
            out.push((path.to_string(), format!("{path}: {} here, {} there", show(here), show(there))));
        }
    }
    let mut found = Vec::new();
    let [mut here, mut there] = [here, there].map(table_of);
    shorten(&mut here);
    shorten(&mut there);
    walk("", Some(&Value::Table(here)), Some(&Value::Table(there)), &mut found);
    found.into_iter().filter(|(path, _)| !ignored(path)).map(|(_, text)| text).collect()
}

/// The default configuration as a table: every key there is, but for those below `envs.TAG.config`.
pub fn default_table() -> Table {
    table_of(&Config::default())
}

fn table_of(config: &Config) -> Table {
    match Value::try_from(config) {
        Ok(Value::Table(table)) => table,
        other => unreachable!("a configuration is a TOML table: {other:?}"),
    }
}

/// Writes 32-bit settings as they were written: 0.7, not 0.699999988079071.
fn shorten(table: &mut Table) {
    for (_, value) in table.iter_mut() {
        match value {
            Value::Table(inner) => shorten(inner),
            Value::Float(x) if f64::from(*x as f32) == *x => *x = (*x as f32).to_string().parse().unwrap_or(*x),
            _ => {}
        }
    }
}

fn hint(source: &str) -> String {
    let similarity = |name: &str| strsim::jaro_winkler(name, source);
    let tags: Vec<String> = ragen_envs::tags().into_iter().map(|tag| tag.name).collect();
    let names = SHIPPED.iter().map(|(name, _)| *name).chain(tags.iter().map(String::as_str));
    let best = names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match best {
        _ if source.contains('=') => "; KEY=VALUE comes after CONFIG".to_string(),
        Some(name) if similarity(name) > 0.8 => format!("; did you mean {name}?"),
        _ => String::new(),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// Splits `a.b=value`. A value that is not TOML is a text, and so is any value of a key that expects a text.
fn read_override(text: &str) -> Result<(Vec<String>, Value), SettingsError> {
    let malformed = || SettingsError::Override(text.into());
    let (path, value) = text.split_once('=').ok_or_else(malformed)?;
    let (path, value) = (path.trim(), value.trim());
    let parts: Vec<String> = path.split('.').map(str::to_string).collect();
    if parts.iter().any(|part| part.is_empty() || part.contains(char::is_whitespace)) {
        return Err(malformed());
    }
    let is_text = matches!(keys::find(path).map(|key| key.expect), Some(Expect::Text | Expect::Word(_)));
    let parsed = toml::from_str::<Table>(&format!("v = {value}")).ok().filter(|table| table.len() == 1);
    let value = match parsed.and_then(|mut table| table.remove("v")) {
        Some(parsed @ (Value::String(_) | Value::Table(_) | Value::Array(_))) => parsed,
        Some(parsed) if !is_text => parsed,
        _ => Value::String(value.into()),
    };
    Ok((parts, value))
}

/// Puts a value at a path, making the tables on the way.
fn set(table: &mut Table, path: &[String], value: Value) -> Result<(), Problem> {
    let [name] = path else {
        let inner = table.entry(&path[0]).or_insert_with(|| Value::Table(Table::new()));
        return match inner {
            Value::Table(inner) => {
                set(inner, &path[1..], value).map_err(|p| Problem { key: join(&path[0], &p.key), ..p })
            }
            _ => Err(Problem { key: path[0].clone(), text: "is a value, it has no keys below it".into() }),
        };
    };
    match (table.get_mut(name), value) {
        // A table merges, also when it comes from the command line.
        (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
        (_, value) => drop(table.insert(name.clone(), value)),
    }
    Ok(())
}

/// Lays one table over another: tables merge, anything else replaces.
fn merge(under: &mut Table, over: Table) {
    for (name, value) in over {
        match (under.get_mut(&name), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            (_, value) => drop(under.insert(name, value)),
        }
    }
}

/// Notes every unknown key and wrong value of a given table; whole numbers become numbers where a number is expected.
fn check(path: &str, given: &mut Table, base: &Table, problems: &mut Vec<Problem>) {
    for (name, value) in given.iter_mut() {
        let path = join(path, name);
        let mut problem = |text: String| problems.push(Problem { key: path.clone(), text });
        match (keys::find(&path), value) {
            (Some(key), value) => {
                if let Err(text) = conform(key.expect, value)
                    && !accepted(&path, value, base)
                {
                    problem(text);
                }
            }
            (None, Value::Table(inner)) if keys::is_section(&path) => check(&path, inner, base, problems),
            (None, value) if keys::is_section(&path) => {
                problem(format!("is a section and cannot be {value}; its keys are set as {path}.KEY=VALUE"));
            }
            (None, Value::Table(inner)) if !inner.is_empty() => check(&path, inner, base, problems),
            (None, _) => problem(match keys::nearest(&path) {
                Some(near) => {
                    let expect = keys::find(&near).map_or(String::new(), |key| format!(" ({})", key.expect));
                    format!("unknown key; did you mean {near}{expect}?")
                }
                None => "unknown key; docs/configuration.md lists them all".to_string(),
            }),
        }
    }
}

/// Whether the section's own type takes a word that the table of keys does not list: a spelling of RAGEN's.
fn accepted(path: &str, value: &Value, base: &Table) -> bool {
    if !matches!(keys::find(path).map(|key| key.expect), Some(Expect::Word(_))) || !value.is_str() {
        return false;
    }
    let mut table = base.clone();
    let parts: Vec<String> = path.split('.').map(str::to_string).collect();
    set(&mut table, &parts, value.clone()).is_ok() && table.try_into::<Config>().is_ok()
}

/// Checks a value against what is expected.
fn conform(expect: Expect, value: &mut Value) -> Result<(), String> {
    let whole = |value: &Value, from: u64, to: u64| {
        value.as_integer().and_then(|n| u64::try_from(n).ok()).is_some_and(|n| from <= n && n <= to)
    };
    let number = |value: &mut Value, from: f64, to: f64| {
        if let Value::Integer(n) = value {
            *value = Value::Float(*n as f64);
        }
        value.as_float().is_some_and(|x| x.is_finite() && from <= x && x <= to)
    };
    let found = value.to_string();
    let ok = match expect {
        Expect::Flag => value.is_bool(),
        Expect::Whole(from, to) => whole(value, from, to),
        Expect::Number(from, to) => number(value, from, to),
        Expect::Text => value.is_str(),
        Expect::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        Expect::WholeOr(from, word) => value.as_str() == Some(word) || whole(value, from, u64::MAX),
        Expect::Numbers(n, from, to) => {
            value.as_array_mut().is_some_and(|list| list.len() == n && list.iter_mut().all(|x| number(x, from, to)))
        }
        Expect::Wholes(from) => value.as_array().is_some_and(|list| list.iter().all(|x| whole(x, from, u64::MAX))),
        Expect::Texts => value.as_array().is_some_and(|list| list.iter().all(Value::is_str)),
        Expect::Settings => value.is_table(),
    };
    if ok { Ok(()) } else { Err(format!("expected {expect}, found {found}")) }
}

#[cfg(test)]
mod tests;

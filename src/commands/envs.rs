//! `ragen envs [TAG]`: what there is, whether it is available here and why not, its settings.

use super::{Common, Failure, print, table};
use clap::{Args, Subcommand};
use ragen::config::{Config, Tag};
use ragen::settings::{self, SHIPPED};
use ragen_envs::{Spec, specs};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

mod check;

/// Which environment.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// A tag or an environment type; without one, all are listed
    pub tag: Option<String>,
    /// What else is done with one.
    #[command(subcommand)]
    pub action: Option<Action>,
}

/// What is done with an environment.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Hold an environment, also one of your own, to the contract: a line for each check
    Check(check::Options),
}

/// The command.
pub fn run(common: &Common, options: &Options) -> Result<(), Failure> {
    if let Some(Action::Check(options)) = &options.action {
        return check::run(common, options);
    }
    let text = match &options.tag {
        None => list()?,
        Some(name) => describe(&find(name)?)?,
    };
    if !common.json {
        return print(&text);
    }
    let object = match &options.tag {
        None => json!({"types": specs().iter().map(type_json).collect::<Vec<_>>(), "tags": tags()?}),
        Some(name) => {
            let (name, tag) = find(name)?;
            json!({"name": name, "tag": tag, "type": type_json(ragen_envs::spec(&tag.r#type)?)})
        }
    };
    print(&format!("{object}\n"))
}

/// Every tag: those that are always there, and those of the shipped configurations.
pub fn tags() -> Result<BTreeMap<String, Tag>, Failure> {
    let mut tags = Config::default().envs;
    for (name, _) in SHIPPED {
        tags.extend(settings::load(Some(name), &[])?.envs);
    }
    Ok(tags)
}

/// The tag of that name, or a type with its defaults under its own name.
pub fn find(name: &str) -> Result<(String, Tag), Failure> {
    let tags = tags()?;
    if let Some(tag) = tags.get(name) {
        return Ok((name.to_string(), tag.clone()));
    }
    if let Ok(spec) = ragen_envs::spec(name) {
        let tag = Tag { r#type: spec.env_type.into(), max_actions: usize::MAX, ..Tag::default() };
        return Ok((name.to_string(), tag));
    }
    let names = tags.keys().map(String::as_str).chain(specs().iter().map(|spec| spec.env_type));
    let similarity = |other: &str| strsim::jaro_winkler(&other.to_lowercase(), &name.to_lowercase());
    let near = names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
    Err(Failure::Usage(format!("there is no environment {name}{near} `ragen envs` lists all")))
}

fn list() -> Result<String, Failure> {
    let mut rows = vec![["type", "", ""].map(str::to_string).to_vec()];
    let mut text = String::from("Types (code with settings):\n");
    rows.clear();
    for spec in specs() {
        let here = (spec.unavailable)().map_or("available".to_string(), |why| format!("not available: {why}"));
        rows.push(vec![format!("  {}", spec.env_type), here]);
    }
    for (row, spec) in table(&rows).lines().zip(specs()) {
        let _ = writeln!(text, "{row}  {}", spec.purpose);
    }
    text.push_str("\nTags (a type with chosen settings, as env.train.tags names them):\n");
    let tags = tags()?;
    let width = tags.keys().map(String::len).max().unwrap_or(0);
    for (name, tag) in &tags {
        let settings: Vec<String> = tag.config.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut settings = settings.join(" ");
        if settings.chars().count() > 90 {
            settings = settings.chars().take(89).chain(['…']).collect();
        }
        let _ = writeln!(text, "  {name:width$}  {:11}  {:>3} actions  {settings}", tag.r#type, tag.max_actions);
    }
    text.push_str("\n`ragen envs TAG` shows the settings of one, `ragen play TAG` plays it.\n");
    Ok(text)
}

fn describe((name, tag): &(String, Tag)) -> Result<String, Failure> {
    let spec = ragen_envs::spec(&tag.r#type)?;
    let mut text = format!("{name}: type {}\n{}\n", spec.env_type, spec.purpose);
    match (spec.unavailable)() {
        None => {
            text.push_str("Available here.\n");
            if let Some(backend) = ragen_envs::make(spec.env_type, &Value::Object(tag.config.clone()))?.backend() {
                let _ = writeln!(text, "It stands on: {backend}");
            }
        }
        Some(why) => drop(writeln!(text, "Not available here: {why}")),
    }
    if tag.max_actions != usize::MAX {
        let _ = writeln!(text, "At most {} actions in an episode.", tag.max_actions);
    }
    if !tag.instruction.is_empty() {
        let _ = writeln!(text, "Instruction: {}", tag.instruction);
    }
    text.push_str("\nSettings (* differs from the type's default):\n");
    let width = spec.settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    for setting in spec.settings {
        let set = tag.config.get(setting.name);
        let (mark, value) = set.map_or((' ', setting.default.to_string()), |value| ('*', value.to_string()));
        let _ = writeln!(text, "{mark} {:width$}  {value}\n  {:width$}    {}", setting.name, "", setting.meaning);
    }
    Ok(text)
}

fn type_json(spec: &Spec) -> Value {
    let unavailable = (spec.unavailable)();
    let settings: Vec<Value> = spec
        .settings
        .iter()
        .map(|setting| {
            let default: Value = serde_json::from_str(setting.default).unwrap_or(Value::Null);
            json!({"name": setting.name, "default": default, "meaning": setting.meaning})
        })
        .collect();
    json!({"type": spec.env_type, "purpose": spec.purpose, "available": unavailable.is_none(),
        "unavailable_because": unavailable, "settings": settings})
}

//! RAGEN's own configuration, translated: its YAML with Hydra's defaults and changes becomes a [`Config`] like any other.
//!
//! Every key is carried over, told to have no meaning here, or a problem; all problems come in one error. What the keys come to
//! stands in [`keys`], how values come together in [`crate::hydra`]. Changes may be RAGEN's keys or those here; the first section
//! tells them apart, and within `algorithm`, which both have, the key. Those here win.

use crate::config::Config;
use crate::hydra::grammar::{self, Override};
use crate::hydra::yaml::{Node, Origin};
use crate::hydra::{self, Composed, HydraError};
use crate::settings::{self, Problem, SettingsError};
use keys::{Group, ROWS, Rule};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use translation::Translation;
use values::Values;

mod combine;
pub mod keys;
pub mod page;
mod tags;
mod translation;
mod values;

/// Files of a `defaults` list that are veRL's; what they set is in the table of keys.
const BUILT_IN: [&str; 1] = ["ppo_trainer"];

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum FromRagenError {
    /// The files do not come together.
    #[error("{0}")]
    Files(#[from] HydraError),
    /// A key or its value is wrong.
    #[error("{0}")]
    Settings(#[from] SettingsError),
}

/// A key here that was set from RAGEN's.
#[derive(Clone, Debug, PartialEq)]
pub struct Carried {
    /// The key here.
    pub ours: String,
    /// Its value as TOML.
    pub value: String,
    /// RAGEN's keys that it was made of, with where each was written; `None` is RAGEN's default.
    pub from: Vec<(String, Option<Origin>)>,
}

/// A configuration of RAGEN's, translated.
#[derive(Debug)]
pub struct Translated {
    /// What it comes to.
    pub config: Config,
    /// The files that were read, in order.
    pub files: Vec<String>,
    /// Every key that was set.
    pub carried: Vec<Carried>,
    /// Keys that were given and have no meaning here.
    pub ignored: BTreeMap<Group, Vec<String>>,
    /// What somebody should know, a line each.
    pub notices: Vec<String>,
}

/// Reads the files (with commas between them) and the changes.
///
/// **Errors** [`FromRagenError`]; everything that is wrong with keys is in one.
pub fn load(files: &str, changes: &[String]) -> Result<Translated, FromRagenError> {
    let paths: Vec<PathBuf> =
        files.split(',').map(str::trim).filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    let mut notices = Vec::new();
    let mut composed = hydra::compose(&paths, &BUILT_IN, &mut |root| rename(root, &mut notices))?;
    notices.append(&mut composed.notices);
    let mut problems = Vec::new();
    let own = change(&mut composed, changes, &mut notices, &mut problems);
    let is_own = |key: &str| own.iter().any(|text| text.split('=').next().is_some_and(|path| path.trim() == key));

    let values = Values::new(&composed.root);
    let mut translation = Translation::new(values, problems, notices);
    look_through(&mut translation, &composed.root);
    carry_rows(&mut translation);
    combine::all(&mut translation, &is_own);
    tags::carry(&mut translation);
    let Translation { table, carried, problems, notices, ignored, .. } = translation;
    let config = settings::resolve(files, table, &own, problems).map_err(|error| match error {
        SettingsError::Invalid(problems) => SettingsError::Invalid(
            problems.into_iter().map(|problem| name_source(problem, &carried, &is_own)).collect(),
        ),
        error => error,
    })?;
    Ok(Translated { config, files: composed.files, carried, ignored, notices })
}

/// Keys under a spelling that RAGEN's documents use, and where they belong.
fn canonical(path: &str) -> String {
    let path = match path.strip_prefix("actor_rollout_ref.rollout_filter_") {
        Some(rest) => format!("actor_rollout_ref.rollout.rollout_filter_{rest}"),
        None => path.to_string(),
    };
    path.replace("actor_rollout_ref.rollout.rollout_filter_ratio", "actor_rollout_ref.rollout.rollout_filter_value")
}

fn renamed(from: &str, to: &str) -> String {
    format!("{from} is taken as {to}")
}

/// Moves what a file has under another spelling to where it belongs.
fn rename(root: &mut Node, notices: &mut Vec<String>) {
    let moved: Vec<String> =
        root.leaves().into_iter().map(|(path, _)| path).filter(|path| canonical(path) != *path).collect();
    for path in moved {
        if let Some(node) = root.remove(&path) {
            notices.push(renamed(&format!("{path} ({})", node.origin), &canonical(&path)));
            // Its place was a map, so there is nothing in the way.
            let _ = hydra::apply(root, &canonical(&path), Some(node));
        }
    }
}

/// Puts RAGEN's changes into effect; gives back those of keys here.
fn change(
    composed: &mut Composed,
    changes: &[String],
    notices: &mut Vec<String>,
    problems: &mut Vec<Problem>,
) -> Vec<String> {
    let mut own = Vec::new();
    for text in changes {
        let path = text.trim_start_matches(['+', '~']).split('=').next().unwrap_or_default().trim();
        let is_here = settings::keys::find(path).is_some() || settings::keys::is_section(path);
        if !keys::is_of_ragen(path) && is_here && !text.starts_with(['+', '~']) {
            own.push(text.clone());
            continue;
        }
        let read = grammar::parse(text).and_then(|read| {
            let to = canonical(&read.path);
            if to != read.path {
                notices.push(renamed(&read.path, &to));
            }
            hydra::apply(&mut composed.root, &to, read.value.clone()).map(|()| Override { path: to, ..read })
        });
        match read {
            Err(wrong) => problems.push(Problem { key: text.clone(), text: wrong }),
            Ok(read) if read.value.is_none() && keys::find(&read.path).is_none() && !keys::is_section(&read.path) => {
                problems.push(Problem { key: text.clone(), text: unknown(&read.path) });
            }
            Ok(_) => {}
        }
    }
    own
}

/// Notes every key that is not known, and those without meaning here.
fn look_through(translation: &mut Translation, root: &Node) {
    for (path, node) in root.leaves() {
        match keys::find(&path).map(|row| row.rule) {
            Some(Rule::Ignored(group)) => translation.ignored.entry(group).or_default().push(path),
            Some(_) => {}
            None if keys::is_section(&path) => {
                translation.problem(&path, format!("is a section and cannot be {}", node.value));
            }
            None => translation.problem(&path, unknown(&path)),
        }
    }
}

fn unknown(path: &str) -> String {
    let near = keys::nearest(path).map(|near| format!("{near} of RAGEN's"));
    let here = settings::keys::nearest(path).filter(|_| !keys::is_of_ragen(path)).map(|near| format!("{near} here"));
    match (near, here) {
        (Some(near), Some(here)) => format!("unknown key; did you mean {near}, or {here}?"),
        (Some(near), None) | (None, Some(near)) => format!("unknown key; did you mean {near}?"),
        (None, None) => "unknown key; docs/from-ragen.md lists them all".into(),
    }
}

/// Carries over the rows that stand for themselves.
fn carry_rows(translation: &mut Translation) {
    for row in ROWS {
        if row.default.is_empty() && !translation.values.is_given(row.path) {
            continue;
        }
        match row.rule {
            Rule::Same | Rule::Positive | Rule::Kind(_) => translation.carry(row),
            Rule::Only(allowed) => translation.only(row, allowed),
            Rule::Like(_) | Rule::Together | Rule::By(_) | Rule::Ignored(_) => {}
        }
    }
}

/// A problem with a key here as one with RAGEN's key that it came from.
fn name_source(problem: Problem, carried: &[Carried], is_own: &dyn Fn(&str) -> bool) -> Problem {
    let covers = |ours: &str| problem.key == ours || problem.key.starts_with(&format!("{ours}."));
    let source = carried.iter().rev().find(|carried| covers(&carried.ours) && !is_own(&carried.ours));
    match source {
        None => problem,
        Some(carried) => {
            let key = carried.from.iter().map(|(path, origin)| place(path, origin.as_ref())).collect::<Vec<_>>();
            Problem { key: key.join(", "), text: format!("{}: {}", problem.key, problem.text) }
        }
    }
}

/// A key and where it was written.
fn place(path: &str, origin: Option<&Origin>) -> String {
    match origin {
        Some(origin) if origin.line > 0 => format!("{path} ({origin})"),
        _ => path.to_string(),
    }
}

impl Translated {
    /// What a command says before it starts: where the configuration came from, what has no meaning here, what else to know.
    pub fn lines(&self) -> Vec<String> {
        let files: Vec<&str> = self.files.iter().map(|name| short(name)).collect();
        let ignored: usize = self.ignored.values().map(Vec::len).sum();
        let mut lines = vec![format!(
            "RAGEN's {}: {} keys here are set from it, {ignored} keys of it have no meaning here; `ragen inspect` lists each",
            files.join(", "),
            self.carried.len()
        )];
        if ignored > 0 {
            let groups = Group::ALL.into_iter().filter_map(|group| Some((group, self.ignored.get(&group)?)));
            let groups = groups.map(|(group, paths)| format!("{group}: {}", paths.join(", ")));
            lines.push(format!("without meaning here: {}", groups.collect::<Vec<_>>().join("; ")));
        }
        lines.extend(self.notices.iter().cloned());
        lines
    }

    /// Every key that was set, a line each: RAGEN's key with where it was written, the key here, and what differs on purpose.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for carried in &self.carried {
            let from = carried.from.iter().map(|(path, origin)| match origin {
                None => format!("{path} (RAGEN's default)"),
                Some(origin) if origin.line == 0 => format!("{path} (changed)"),
                Some(origin) => format!("{path} ({}:{})", short(&origin.source), origin.line),
            });
            let from = from.collect::<Vec<_>>().join(", ");
            text.push_str(&format!("{} = {}  from {from}\n", carried.ours, carried.value));
            let notes = carried.from.iter().filter_map(|(path, _)| keys::find(path)).map(|row| row.note);
            notes.filter(|note| !note.is_empty()).for_each(|note| text.push_str(&format!("    {note}\n")));
        }
        text
    }
}

/// The name of a file without its folder.
fn short(name: &str) -> &str {
    Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or(name)
}

//! Statements to prove: what a record holds, how a raw text is split, and where records come from.

use super::library::library;
use crate::dataset::records;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// A statement to prove.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Theorem {
    /// Its name.
    pub name: String,
    /// `import` lines of its own; empty: the default ones.
    pub imports: String,
    /// What stands between the imports and the statement.
    pub preamble: String,
    /// The statement up to `:= by`, in Lean.
    pub formal_statement: String,
    /// The statement in words; may be empty.
    pub natural_language_statement: String,
}

/// Words that start a declaration.
const STARTS: [&str; 5] = ["theorem", "lemma", "def", "example", "instance"];
/// Words that may stand before them.
const MODIFIERS: [&str; 6] = ["private", "protected", "noncomputable", "local", "scoped", "nonrec"];

/// Whether a declaration starts in this line: after attributes and modifiers, by a whole word (`quirk`: RAGEN looks at the
/// first letters alone).
fn starts(line: &str, quirk: bool) -> bool {
    if quirk {
        return STARTS.iter().any(|word| line.trim().starts_with(word));
    }
    let mut rest = line.trim();
    while let Some(after) = rest.strip_prefix("@[").and_then(|inner| inner.split_once(']')).map(|(_, after)| after) {
        rest = after.trim_start();
    }
    rest.split_whitespace().find(|word| !MODIFIERS.contains(word)).is_some_and(|word| STARTS.contains(&word))
}

/// Splits a raw text into imports, preamble and statement.
pub(crate) fn split(text: &str, quirk: bool) -> [String; 3] {
    let mut parts: [Vec<&str>; 3] = Default::default();
    for line in text.lines() {
        let place = match () {
            () if !parts[2].is_empty() || starts(line, quirk) => 2,
            () if line.trim_start().starts_with("import") => 0,
            () => 1,
        };
        parts[place].push(line);
    }
    parts.map(|lines| lines.join("\n").trim().to_owned())
}

/// The records of a file, each split; those without a statement are left out.
///
/// **Errors** in words that name the file.
fn read(path: &str, part: &str) -> Result<Vec<Theorem>, String> {
    let mut theorems = Vec::new();
    for record in records(Path::new(path))? {
        let text = |key: &str| record[key].as_str().unwrap_or_default();
        let [imports, preamble, formal_statement] = split(text("formal_statement"), false);
        let elsewhere = record["split"].as_str().is_some_and(|own| own != part);
        if formal_statement.is_empty() || elsewhere {
            continue;
        }
        let name = [text("name"), text("id")].into_iter().find(|name| !name.is_empty()).unwrap_or("unnamed").to_owned();
        let formal_statement = opened(&formal_statement);
        let natural_language_statement = text("natural_language_statement").to_owned();
        theorems.push(Theorem { name, imports, preamble, formal_statement, natural_language_statement });
    }
    match theorems.is_empty() {
        true => Err(format!("{path} has no record with a `formal_statement` in the split `{part}`")),
        false => Ok(theorems),
    }
}

/// The statement without a `sorry` in place of the proof.
fn opened(statement: &str) -> String {
    let body = statement.trim_end();
    let body = body.strip_suffix("sorry").map_or(body, str::trim_end);
    if body.ends_with(":=") { format!("{body} by") } else { body.to_owned() }
}

/// The statements: those of a file, or the embedded ones. Each file is read once.
///
/// **Errors** in words that name the file.
pub(super) fn theorems(path: Option<&str>, part: &str) -> Result<Arc<Vec<Theorem>>, String> {
    type Known = BTreeMap<Option<(String, String)>, Arc<Vec<Theorem>>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = path.map(|path| (path.to_owned(), part.to_owned()));
    if let Some(theorems) = known.get(&key) {
        return Ok(theorems.clone());
    }
    let read = match path {
        Some(path) => read(path, part)?,
        None => library().iter().map(|proved| proved.theorem.clone()).collect(),
    };
    let shared = Arc::new(read);
    known.insert(key, shared.clone());
    Ok(shared)
}

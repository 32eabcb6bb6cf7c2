//! The text of docs/configuration.md: every key with type, default, unit, meaning and RAGEN's key.

use super::keys::{ANY, KEYS};
use super::{SHIPPED, default_table};
use std::fmt::Write;
use toml::{Table, Value};

/// The title and one sentence of each section.
const SECTIONS: [(&str, &str); 16] = [
    ("run", "Name, seed, length."),
    ("model", "Which model, or the shape of a fresh one."),
    ("env", "Which environments to train and validate on."),
    ("envs", "The tags that `env.*.tags` can name. The shipped ones are there from the start; a file adds or patches."),
    ("rollout", "How episodes are played."),
    ("reward", "From rewards to the score that is trained on."),
    ("filter", "Which groups are trained on."),
    ("algorithm", "The advantage estimator, and what may follow it."),
    ("update", "How a step's rows become optimiser steps, and the objective's terms."),
    ("optim", "AdamW and its schedule, counted in training steps."),
    ("collapse", "The collapse detector."),
    (
        "gradient_analysis",
        "Which groups a step's gradient comes from, and how much of it could be noise of the rewards.",
    ),
    (
        "guards",
        "Signs that a run has gone wrong, and what is done: `off`, `warn` (once a streak), `stop` (the run is saved), or `rollback` to the last checkpoint from before the streak.",
    ),
    ("val", "Validation during training."),
    ("checkpoint", "When to save."),
    ("warmstart", "Supervised start on a scripted player's noisy demonstrations."),
];

/// The default of a key, as TOML; a tag's is that of a tag that sets nothing.
fn default_of(table: &Table, path: &str) -> String {
    if path.starts_with("envs.") {
        let tag = crate::config::Tag::default();
        let tag = Value::try_from(tag).unwrap_or(Value::Boolean(false));
        return path.rsplit('.').next().and_then(|name| tag.get(name)).map_or(String::new(), Value::to_string);
    }
    let mut parts = path.split('.');
    let first = parts.next().and_then(|name| table.get(name));
    parts.fold(first, |value, name| value?.get(name)).map_or(String::new(), Value::to_string)
}

/// The whole document.
pub fn render() -> String {
    let table = default_table();
    let mut text = String::from(
        "# Configuration\n\n\
         This file is made from the table of keys in src/settings/keys.rs and the defaults in src/config.rs; after a change there run\n\
         `RAGEN_WRITE_DOCS=1 cargo test --test configuration`.\n\n\
         A configuration is resolved from the defaults below, over them CONFIG (the name of a shipped configuration, a tag, or a TOML\n\
         file), over that each `KEY=VALUE` of the command line: a dotted path with a TOML value, or a bare word, which is a text\n\
         (`filter.value=0.9`, `env.train.group_size=8`, `run.name=mine`). A tag, such as `CoordFrozenLake`, stands for the shipped\n\
         configuration of its type with `env.train.tags` and `env.val.tags` set to it. Tables merge, lists replace. Every mistake is listed in one\n\
         error and nothing starts. What a run resolved stands in its `config.toml`; giving that file, or the run's directory, as CONFIG\n\
         gives the same run.\n\n\
         A file may also hold a section `[lm]` with sections inside, such as `[lm.rollout]`. It is laid over the rest of the file, and\n\
         under the changes of the command line, if `model.path` is a language model, that is one that brings a chat template\n\
         (`chat_template.jinja`, `chat_template` in `tokenizer_config.json`, a `.gguf` file). The shipped configurations have one, so that\n\
         `ragen train sokoban model.path=DIR` works as it is: full prompts, longer responses, smaller steps and fewer episodes than for the\n\
         small model. What a run resolved has no such section: its `config.toml` holds the values.\n\n\
         The defaults are those of RAGEN where it has the key; the shipped configurations in configs/ choose the small ones:\n",
    );
    for (i, (name, source)) in SHIPPED.iter().enumerate() {
        let first = source.lines().next().unwrap_or_default().trim_start_matches("# ");
        let first = first.strip_prefix("The default: ").unwrap_or(first);
        let default = if i == 0 { " (used when no CONFIG is given)" } else { "" };
        let _ = writeln!(text, "- `{name}`{default}: {first}");
    }
    for (section, sentence) in SECTIONS {
        let _ = writeln!(text, "\n## {section}\n\n{sentence}\n");
        text.push_str("| key | type | default | unit | meaning | RAGEN |\n| --- | --- | --- | --- | --- | --- |\n");
        for key in KEYS.iter().filter(|key| key.path.split('.').next() == Some(section)) {
            let ragen = if key.ragen.is_empty() { "–".to_string() } else { format!("`{}`", key.ragen) };
            let default = match default_of(&table, key.path) {
                empty if empty.is_empty() => "–".to_string(),
                default => format!("`{}`", escape(&default)),
            };
            let (path, expect, unit) = (key.path, key.expect.to_string(), key.unit);
            let _ = writeln!(text, "| `{path}` | {expect} | {default} | {unit} | {} | {ragen} |", escape(key.meaning));
        }
        if section == "envs" {
            let _ = writeln!(
                text,
                "\n`{ANY}` is the name of a tag, such as `CoordSokoban`; `ragen envs` lists those that are shipped."
            );
        }
    }
    text
}

/// A vertical bar would end the table's cell.
fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}

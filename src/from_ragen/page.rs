//! The tables of docs/from-ragen.md.

use super::keys::{Group, ROWS, Row, Rule};
use std::fmt::Write;

/// The table of keys that are carried over, by section.
pub fn keys() -> String {
    let mut text =
        String::from("| RAGEN's key | default there | here | what is to be known |\n| --- | --- | --- | --- |\n");
    for row in ROWS.iter().filter(|row| !matches!(row.rule, Rule::Ignored(_))) {
        let default = if row.default.is_empty() { "–".into() } else { format!("`{}`", escape(row.default)) };
        let ours = match row.ours {
            [] => "–".to_string(),
            ours => ours.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "),
        };
        let _ = writeln!(text, "| `{}` | {default} | {ours} | {} |", row.path, escape(&note(row)));
    }
    text
}

/// What is said about a key.
fn note(row: &Row) -> String {
    let rule = match row.rule {
        Rule::Only(values) => {
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            return format!("Only {}: {}.", values.join(" or "), row.note);
        }
        Rule::By(other) => format!("Read by `{other}`."),
        Rule::Like(other) => format!("With `gae`: must be that of `{other}`."),
        _ => String::new(),
    };
    [rule.as_str(), row.note].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The keys without meaning here, a list item a group.
pub fn ignored() -> String {
    let mut text = String::new();
    for group in Group::ALL {
        let rows = ROWS.iter().filter(|row| row.rule == Rule::Ignored(group));
        let name = |row: &Row| match row.ours {
            [] => format!("`{}`", row.path),
            ours => format!("`{}` (here `{}`)", row.path, ours.join("`, `")),
        };
        let _ = writeln!(text, "- {group}: {}", rows.map(name).collect::<Vec<_>>().join(", "));
    }
    text
}

/// A vertical bar would end the table's cell.
fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}

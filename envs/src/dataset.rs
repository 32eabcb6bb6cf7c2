//! Data sets of a user: the records of a file, whatever it is written in.
//!
//! It knows formats and nothing of tasks; each task says which fields it reads of a record.

use serde_json::Value;
use std::path::Path;

/// The records of a file, in its order: a JSON array, or JSON lines (one record a line; empty lines are skipped).
///
/// **Errors** in words, with the file and the line: it cannot be read, or is none of these.
#[cfg_attr(not(test), expect(dead_code, reason = "the tasks that read files are on their way"))]
pub(crate) fn records(path: &Path) -> Result<Vec<Value>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(&text).map_err(|error| format!("{shown} is not a JSON array of records: {error}"));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|error| format!("{shown} line {}: not a JSON record: {error}", i + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arrays_and_lines_are_read_and_faults_name_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            records(&path)
        };
        let want = Ok(vec![json!({"a": 1}), json!({"a": 2})]);
        assert_eq!(file("array.json", "[{\"a\": 1},\n {\"a\": 2}]"), want);
        assert_eq!(file("lines.jsonl", "{\"a\": 1}\n\n{\"a\": 2}\n"), want);
        assert!(
            file("bad.jsonl", "{\"a\": 1}\n{\"a\": }\n").unwrap_err().contains("bad.jsonl line 2: not a JSON record")
        );
        assert!(records(&dir.path().join("none")).unwrap_err().starts_with("cannot read "));
    }
}

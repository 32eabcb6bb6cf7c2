//! The embedded statements with their proofs.
//!
//! They are ordinary Lean 4 with Mathlib: `library.lean`, one theorem a paragraph, a tactic a step.

use super::Theorem;
use std::sync::LazyLock;

/// A statement and the steps that prove it.
#[derive(Clone, Debug)]
pub(super) struct Proved {
    pub(super) theorem: Theorem,
    pub(super) steps: Vec<String>,
}

/// Every embedded statement, in order.
pub(super) fn library() -> &'static [Proved] {
    static LIBRARY: LazyLock<Vec<Proved>> =
        LazyLock::new(|| include_str!("library.lean").split("\n\n").filter_map(read).collect());
    &LIBRARY
}

fn read(paragraph: &str) -> Option<Proved> {
    let mut lines = paragraph.lines();
    let informal = lines.next()?.trim_start_matches("/-- ").trim_end_matches(" -/");
    let statement = lines.next()?;
    let name = statement.split_whitespace().nth(1)?;
    let mut steps: Vec<String> = Vec::new();
    for line in lines {
        // A step starts two columns in, at what is no bar of a case.
        let starts = line.starts_with("  ") && !line.starts_with("   ") && !line.starts_with("  |");
        match steps.last_mut() {
            Some(step) if !starts => {
                step.push('\n');
                step.push_str(line);
            }
            _ => steps.push(line.trim_start().to_owned()),
        }
    }
    let theorem = Theorem {
        name: name.to_owned(),
        formal_statement: statement.to_owned(),
        natural_language_statement: informal.to_owned(),
        ..Theorem::default()
    };
    Some(Proved { theorem, steps })
}

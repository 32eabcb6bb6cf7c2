//! The embedded checker: a script in, messages out, in the shape of a Lean server's answer.
//!
//! It stands in for Lean where there is none, for the fragment that `docs/environments/lean.md` lists. It is sound: a
//! script without errors and `sorry` has a proof that the kernel has checked against the statement as it stands.

use super::expr::{Expr, Sort};
use super::goal::{Entry, Goal, Prover};
use super::kernel::{Kernel, Proof, Scope};
use super::syntax::{Fault, Parser, Place, Word, words};
use super::tactics::unsolved;
use serde_json::{Value, json};

/// The longest script that is read, in bytes.
const LONGEST: usize = 1 << 16;
/// Nested terms and proofs are walked by recursion.
const STACK: usize = 256 << 20;

/// Checks a script; the answer is `{"messages": [...], "sorries": [...]}`.
pub(super) fn check(script: &str) -> Value {
    if script.len() > LONGEST {
        return answer(
            &[(Fault { at: Place { line: 1, column: 0 }, text: "the script is too long".into() }, "error")],
            &[],
        );
    }
    // The kernel's recursion is bounded, but not by what a test's thread has.
    std::thread::scope(|scope| {
        let run = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || examine(script));
        run.ok().and_then(|run| run.join().ok()).unwrap_or_else(|| json!({"message": "the embedded checker failed"}))
    })
}

fn answer(faults: &[(Fault, &str)], sorries: &[(Place, Goal)]) -> Value {
    let place = |at: &Place| json!({"line": at.line, "column": at.column});
    let messages: Vec<Value> = faults
        .iter()
        .map(|(fault, severity)| json!({"severity": severity, "pos": place(&fault.at), "data": fault.text}))
        .collect();
    let sorries: Vec<Value> =
        sorries.iter().map(|(at, goal)| json!({"pos": place(at), "goal": goal.to_string()})).collect();
    json!({"messages": messages, "sorries": sorries})
}

fn examine(script: &str) -> Value {
    match words(script).and_then(|words| theorem(&words)) {
        Ok((warnings, sorries)) => answer(&warnings, &sorries),
        Err(fault) => answer(&[(fault, "error")], &[]),
    }
}

/// Skips `import …`, `open …` and `set_option maxHeartbeats n` lines before the statement.
fn header(words: &[Word]) -> Result<usize, Fault> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match word.text.as_str() {
            "import" | "open" => {
                let line = word.at.line;
                let plain = |text: &str| text.starts_with(|c: char| c.is_ascii_alphabetic());
                let mut next = at + 1;
                while words.get(next).is_some_and(|word| word.at.line == line) {
                    if !plain(&words[next].text) {
                        return unsupported(&words[next]);
                    }
                    next += 1;
                }
                at = next;
            }
            "set_option" => {
                let sets = words.get(at + 1).is_some_and(|word| word.text == "maxHeartbeats")
                    && words.get(at + 2).is_some_and(|word| word.text.parse::<u64>().is_ok());
                if !sets {
                    return unsupported(word);
                }
                at += 3;
            }
            _ => return Ok(at),
        }
    }
    Ok(at)
}

fn unsupported<T>(word: &Word) -> Result<T, Fault> {
    Err(Fault { at: word.at, text: format!("`{}`: unsupported by the embedded checker", word.text) })
}

/// The variables and hypotheses of a statement, as a goal with its claim.
fn statement(parser: &mut Parser, prover: &mut Prover) -> Result<Goal, Fault> {
    prover.holes.push(None);
    let mut goal = Goal { hole: 0, entries: Vec::new(), target: Expr::Truth(true) };
    loop {
        let close = match parser.peek() {
            "(" => ")",
            "{" => "}",
            _ => break,
        };
        let at = parser.place();
        let fault = |text| Fault { at, text };
        parser.must(if close == ")" { "(" } else { "{" })?;
        let mut names = Vec::new();
        while !parser.take(":") {
            names.push(parser.name()?);
        }
        if let Some(dotted) = names.iter().find(|name| name.contains('.')) {
            return Err(fault(format!("`{dotted}` is no new name")));
        }
        let pre = parser.term()?;
        parser.must(close)?;
        for name in names {
            if let super::syntax::Pre::Sort(sort) = pre {
                let var = prover.variable(&name, sort);
                goal.entries.push((name, Entry::Var(var)));
            } else {
                let prop = goal.names().elaborate(&pre, Some(Sort::Prop)).map_err(fault)?;
                let id = prover.fresh();
                goal.entries.push((name, Entry::Hyp(id, prop)));
            }
        }
    }
    parser.must(":")?;
    let at = parser.place();
    let pre = parser.term()?;
    goal.target = goal.names().elaborate(&pre, Some(Sort::Prop)).map_err(|text| Fault { at, text })?;
    Ok(goal)
}

type Outcome = (Vec<(Fault, &'static str)>, Vec<(Place, Goal)>);

/// Reads and proves the one theorem of a script.
fn theorem(words: &[Word]) -> Result<Outcome, Fault> {
    let words = &words[header(words)?..];
    let mut parser = Parser::new(words);
    if !(parser.take("theorem") || parser.take("lemma")) {
        return match words.first() {
            Some(word) => unsupported(word),
            None => parser.fault("there is no theorem"),
        };
    }
    parser.name()?;
    let mut prover = Prover::default();
    let goal = statement(&mut parser, &mut prover)?;
    parser.must(":=")?;
    let by = parser.place();
    parser.must("by")?;
    let tactics = parser.block()?;
    if !parser.is_done() {
        return parser.fault("unexpected text after the proof (mind the columns): unsupported by the embedded checker");
    }
    prover.goals = vec![goal.clone()];
    prover.run(&tactics)?;
    let warning = Fault { at: by, text: "declaration uses 'sorry'".to_owned() };
    let mut messages = Vec::new();
    if !prover.sorries.is_empty() {
        messages.push((warning, "warning"));
    }
    if !prover.goals.is_empty() {
        messages.push((Fault { at: by, text: unsolved(&prover.goals) }, "error"));
    } else if prover.sorries.is_empty() {
        // Only here a theorem is accepted, and by the kernel alone.
        let mut scope = Scope::default();
        for (_, entry) in &goal.entries {
            match entry {
                Entry::Var(var) => scope.vars.push(var.clone()),
                Entry::Hyp(id, prop) => scope.hyps.push((*id, prop.clone())),
            }
        }
        let accepted = Kernel::new(&prover.holes).accept(&goal.target, &scope, &Proof::Hole(goal.hole));
        accepted.map_err(|text| Fault { at: by, text })?;
    }
    Ok((messages, prover.sorries))
}

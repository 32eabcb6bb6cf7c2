//! Lean: a theorem, proved tactic by tactic.
//!
//! It knows records, scripts and what checks them, and nothing of other tasks. Its page is `docs/environments/lean.md`.
//!
//! The parts: `theorem` has the statements, `server` what checks a script; `checker` is the embedded one, with
//! `syntax`, `steps` and `elaborate` (text to meaning), `goal`, `tactics`, `splitting` and
//! `rewriting` (proofs, not trusted), and `kernel`,
//! `linear` and `lemmas` (trusted).

mod checker;
mod elaborate;
mod expr;
mod goal;
mod kernel;
mod lemmas;
mod library;
mod linear;
pub(crate) mod reply;
mod rewriting;
pub(crate) mod server;
mod splitting;
mod steps;
mod syntax;
mod tactics;
#[cfg(test)]
mod tests;
pub(crate) mod theorem;

use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use library::library;
use reply::{Verdict, judge};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use server::{Checker, Server, setting_or_variable};
use std::sync::Arc;
use theorem::{Theorem, theorems};

const TYPE: &str = "lean";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "backend", default: "\"auto\"", meaning: "auto, server, local or embedded" },
    Setting {
        name: "dataset_name_or_path",
        default: "null",
        meaning: "file of records (JSON, JSON lines) with formal_statement; null: the embedded statements",
    },
    Setting {
        name: "dataset_split",
        default: "\"train\"",
        meaning: "which records of the file, if they have a `split`",
    },
    Setting { name: "theorem_idx", default: "null", meaning: "always this statement, from 0; null: drawn by the seed" },
    Setting {
        name: "server_url",
        default: "null",
        meaning: "a Lean server (Kimina); null: the variable LEAN_SERVER_API_URL",
    },
    Setting { name: "api_key", default: "null", meaning: "its key; null: the variable LEAN_SERVER_API_KEY" },
    Setting { name: "lean_command", default: "\"lean\"", meaning: "how Lean is called here, such as `lake env lean`" },
    Setting { name: "request_timeout", default: "30", meaning: "seconds for a script, 1 to 3600" },
    Setting { name: "http_timeout", default: "60", meaning: "seconds for a request, 1 to 3600" },
    Setting { name: "max_retries", default: "3", meaning: "further requests after one that failed, 0 to 10" },
    Setting { name: "max_steps", default: "100", meaning: "tactics after which an episode is truncated, 1 to 1000000" },
    Setting { name: "step_penalty", default: "-0.1", meaning: "paid for each tactic" },
    Setting { name: "valid_step_reward", default: "1.0", meaning: "paid for a tactic that is accepted" },
    Setting { name: "invalid_step_reward", default: "-1.0", meaning: "paid for one that is not" },
    Setting { name: "success_reward", default: "10.0", meaning: "paid for the proof" },
    Setting { name: "timeout_penalty", default: "-1.0", meaning: "paid if the check takes too long" },
    Setting { name: "max_steps_penalty", default: "-2.0", meaning: "paid if max_steps is reached without a proof" },
    Setting {
        name: "default_imports",
        default: "\"import Mathlib\\nimport Aesop\\nset_option maxHeartbeats 0\\nopen BigOperators Real Nat Topology Rat\"",
        meaning: "head of a script whose record has no imports",
    },
    Setting {
        name: "message_truncate_limit",
        default: "0",
        meaning: "longest message shown, in characters; 0: no limit",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "prove a theorem in Lean, tactic by tactic",
    many_starts: false,
    waits: true,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || vec![Tag::new("Lean", TYPE, 30, 512, Value::Null)],
    unavailable: || None,
    build: |config| Ok(Box::new(Lean::new(config)?)),
};

/// The rewards.
#[derive(Clone, Copy, Debug)]
struct Pay {
    step: f64,
    valid: f64,
    invalid: f64,
    success: f64,
    timeout: f64,
    max_steps: f64,
}

/// The environment; see the module.
pub struct Lean {
    theorems: Arc<Vec<Theorem>>,
    embedded: bool,
    theorem_idx: Option<usize>,
    checker: Checker,
    max_steps: usize,
    pay: Pay,
    imports: String,
    limit: usize,
    episode: Option<Episode>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Episode {
    theorem: Theorem,
    steps: usize,
    tactics: Vec<String>,
    /// The last tactics tried, and whether each was accepted.
    log: Vec<(String, bool)>,
    last: Option<Verdict>,
    proved: bool,
}

/// Tactics in the log, and lines of the script that are shown.
const LOG: usize = 5;
const LINES: usize = 40;
/// Words that could make a false claim pass: none of them is ever sent.
const FORBIDDEN: &[&str] = &[
    "sorryAx",
    "native_decide",
    "axiom",
    "unsafe",
    "implemented_by",
    "extern",
    "macro",
    "macro_rules",
    "elab",
    "syntax",
    "notation",
    "run_cmd",
    "opaque",
    "csimp",
    "ofReduceBool",
    "debug",
];

impl Lean {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`]; a file of statements that cannot be read is one.
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        let any = f64::NEG_INFINITY..=f64::INFINITY;
        let text = |reader: &mut Reader, name: &str| {
            reader.read(name, "a text or null", |value| {
                (value.is_null() || value.is_string()).then(|| value.as_str().map(str::to_owned))
            })
        };
        let path = text(&mut reader, "dataset_name_or_path");
        let part = text(&mut reader, "dataset_split").unwrap_or_default();
        let theorems = theorems(path.as_deref(), &part).unwrap_or_else(|fault| {
            reader.problem("dataset_name_or_path", fault);
            Arc::default()
        });
        let url = setting_or_variable(text(&mut reader, "server_url"), &["LEAN_SERVER_API_URL"]);
        let keys = ["LEAN_SERVER_API_KEY", "LEANSERVER_API_KEY"];
        let server = Server {
            url: String::new(),
            key: setting_or_variable(text(&mut reader, "api_key"), &keys),
            request_timeout: reader.number("request_timeout", 1.0..=3600.0),
            http_timeout: reader.number("http_timeout", 1.0..=3600.0),
            max_retries: reader.integer("max_retries", 0..=10),
        };
        let command = reader.read("lean_command", "a command", |value| {
            let words: Vec<String> = value.as_str()?.split_whitespace().map(str::to_owned).collect();
            (!words.is_empty()).then_some(words)
        });
        let backend = reader.choice("backend", &["auto", "server", "local", "embedded"]);
        let lean = Lean {
            theorems,
            embedded: path.is_none(),
            theorem_idx: reader.optional("theorem_idx", 0..=u64::from(u32::MAX)),
            max_steps: reader.integer("max_steps", 1..=1_000_000),
            pay: Pay {
                step: reader.number("step_penalty", any.clone()),
                valid: reader.number("valid_step_reward", any.clone()),
                invalid: reader.number("invalid_step_reward", any.clone()),
                success: reader.number("success_reward", any.clone()),
                timeout: reader.number("timeout_penalty", any.clone()),
                max_steps: reader.number("max_steps_penalty", any),
            },
            imports: text(&mut reader, "default_imports").unwrap_or_default(),
            limit: reader.integer("message_truncate_limit", 0..=1 << 30),
            checker: Checker::Embedded,
            episode: None,
        };
        let mut lean = reader.finish(lean)?;
        // What is chosen may be asked first, so only settings that are right get here.
        lean.checker = Checker::choose(backend, url, server, command);
        Ok(lean)
    }

    /// The statement of an episode: the embedded ones have parts of their own for validation and test.
    fn draw(&self, seed: u64, mode: Mode) -> Theorem {
        if let Some(at) = self.theorem_idx {
            return self.theorems[at % self.theorems.len()].clone();
        }
        let part = |at: &usize| match at % 10 {
            8 => Mode::Val,
            9 => Mode::Test,
            _ => Mode::Train,
        };
        let among: Vec<usize> = (0..self.theorems.len()).filter(|at| !self.embedded || part(at) == mode).collect();
        self.theorems[among[Stream::derive(TYPE, seed, "theorem").below(among.len())]].clone()
    }

    /// The whole script with a further tactic.
    pub(crate) fn script(&self, candidate: &str) -> String {
        let Some(episode) = &self.episode else { return String::new() };
        let theorem = &episode.theorem;
        let imports = if theorem.imports.is_empty() { &self.imports } else { &theorem.imports };
        let mut script = format!("{imports}\n\n");
        if !theorem.preamble.is_empty() {
            script += &format!("{}\n\n", theorem.preamble);
        }
        script += &format!("{}\n", theorem.formal_statement);
        let tactics = episode.tactics.iter().map(String::as_str).chain([candidate]);
        // The first line is put in its column, the rest stands where it was written.
        tactics.filter(|tactic| !tactic.trim().is_empty()).for_each(|tactic| script += &format!("  {tactic}\n"));
        script
    }

    /// Writes what a check said into the episode.
    pub(crate) fn settle(&mut self, tactic: &str, verdict: Verdict) -> Step {
        let (pay, max_steps) = (self.pay, self.max_steps);
        let Some(episode) = &mut self.episode else { return Step::default() };
        episode.steps += 1;
        episode.log.push((tactic.lines().next().unwrap_or_default().chars().take(80).collect(), verdict.accepted));
        let from = episode.log.len().saturating_sub(LOG);
        episode.log.drain(..from);
        if verdict.accepted {
            episode.tactics.push(tactic.to_owned());
        }
        episode.proved = verdict.success;
        let exhausted = episode.steps >= max_steps && !verdict.success;
        let terms = [
            (true, pay.step),
            (verdict.accepted, pay.valid),
            (!verdict.accepted, pay.invalid),
            (verdict.success, pay.success),
            (verdict.timeout, pay.timeout),
            (exhausted, pay.max_steps),
        ];
        let step = Step {
            reward: terms.into_iter().filter(|(holds, _)| *holds).map(|(_, pay)| pay).sum(),
            terminated: verdict.success,
            truncated: exhausted,
            success: verdict.success,
            valid: verdict.accepted,
            effective: verdict.accepted,
            info: vec![("accepted".into(), f64::from(u8::from(verdict.accepted)))],
        };
        episode.last = Some(verdict);
        step
    }

    fn is_over(&self, episode: &Episode) -> bool {
        episode.proved || episode.steps >= self.max_steps
    }

    /// What of a tactic is not even sent; none if it may be.
    fn refusal(tactic: &str) -> Option<String> {
        if tactic.is_empty() {
            return Some("the tactic is empty".to_owned());
        }
        let mut words = tactic.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let word = words.find(|word| FORBIDDEN.contains(word));
        word.map(|word| format!("`{word}` is not allowed in a proof"))
            .or_else(|| tactic.contains('#').then(|| "commands are not allowed in a proof".to_owned()))
    }

    /// What was said of the last tactic.
    #[cfg(test)]
    pub(crate) fn last(&self) -> Option<&Verdict> {
        self.episode.as_ref().and_then(|episode| episode.last.as_ref())
    }
}

/// Lines of at most 88 characters, two columns in.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > 86 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

impl Env for Lean {
    fn reset(&mut self, seed: u64, _member: u64, mode: Mode) -> Result<(), EnvError> {
        let theorem = self.draw(seed, mode);
        self.episode =
            Some(Episode { theorem, steps: 0, tactics: Vec::new(), log: Vec::new(), last: None, proved: false });
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(episode) = &self.episode else { return String::new() };
        let mut text = format!("Step {} of {}, {} accepted.\n", episode.steps, self.max_steps, episode.tactics.len());
        if !episode.theorem.natural_language_statement.is_empty() {
            text += &format!("To prove:\n{}", wrapped(&episode.theorem.natural_language_statement));
        }
        let script = self.script("");
        let lines: Vec<&str> = script.trim_end().lines().collect();
        let from = lines.len().saturating_sub(LINES);
        text += "Script:\n";
        if from > 0 {
            text += &format!("  ({from} lines before)\n");
        }
        for (i, line) in lines.iter().enumerate().skip(from) {
            text += &format!("{:3} | {line}\n", i + 1);
        }
        if !episode.log.is_empty() {
            text += "Tried:\n";
            episode
                .log
                .iter()
                .for_each(|(tactic, ok)| text += &format!("  {} {tactic}\n", if *ok { "✓" } else { "✗" }));
        }
        if let Some(last) = &episode.last {
            text += if last.accepted { "Accepted.\n" } else { "Rejected.\n" };
            text += &last.shown(self.limit).join("\n");
        }
        text.trim_end().to_owned()
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let episode = self.episode.as_ref().ok_or(EnvError::NotReset { env_type: TYPE })?;
        if self.is_over(episode) {
            let proved = episode.proved;
            return Ok(Step { terminated: proved, truncated: !proved, success: proved, ..Step::default() });
        }
        let verdict = match Self::refusal(action) {
            Some(why) => Verdict::rejected(&why),
            None => judge(self.checker.check(&self.script(action))),
        };
        Ok(self.settle(action, verdict))
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        let fragment = match self.checker {
            Checker::Embedded => {
                " Known are intro, exact, apply, constructor, left, right, use, rcases, obtain, induction', have, rw, \
                 rfl, ring, norm_num, decide, simp, omega, linarith, nlinarith, tauto and a few more."
            }
            _ => "",
        };
        format!(
            "You prove a theorem in Lean 4, one tactic an action. A tactic is added to the proof if Lean accepts it; you \
             see the script, what you tried, and Lean's messages with the goals that are left.{fragment} The proof is \
             done when no goal is left; `sorry` is not accepted."
        )
    }

    fn backend(&self) -> Option<String> {
        let data = if self.embedded { "embedded statements" } else { "statements of a file" };
        Some(format!("{}; {} {data}", self.checker.name(), self.theorems.len()))
    }

    fn state(&self) -> Value {
        self.episode.as_ref().map_or(Value::Null, |episode| json!(episode))
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |error: serde_json::Error| EnvError::State { env_type: TYPE, reason: error.to_string() };
        self.episode = Some(Episode::deserialize(state).map_err(wrong)?);
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(episode) = &self.episode else { return 0 };
        hash_bytes(format!("{TYPE} {} {:?}", episode.theorem.formal_statement, episode.tactics).bytes())
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let episode = self.episode.as_ref().filter(|episode| !self.is_over(episode))?;
        let statement = &episode.theorem.formal_statement;
        let proved = library().iter().find(|proved| proved.theorem.formal_statement == *statement)?;
        let done: Vec<&String> = episode.tactics.iter().filter(|tactic| tactic.trim() != "skip").collect();
        let follows = done.len() <= proved.steps.len() && done.iter().zip(&proved.steps).all(|(a, b)| *a == b);
        let mut rest = proved.steps.get(done.len()..).filter(|rest| follows && !rest.is_empty())?.iter();
        let mut actions = Vec::new();
        for _ in 0..options.turn_len(draws) {
            // A move that gets nowhere, and harms nothing.
            let noise = draws.chance(options.noise);
            let Some(step) = (if noise { Some("skip".to_owned()) } else { rest.next().cloned() }) else { break };
            actions.push(step);
        }
        let thought = format!("step {} of {}", done.len() + 1, proved.steps.len());
        Some(Turn { thought, actions })
    }
}

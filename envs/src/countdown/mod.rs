//! Countdown: make a target of given numbers by arithmetic, in one answer.
//!
//! It knows numbers and expressions, and nothing of other tasks. The page docs/environments/countdown.md has the rest.
//!
//! **Source** the task of TinyZero (Pan et al. 2025) as RAGEN scores it.

mod expression;
mod problems;

pub use expression::{evaluate, has_signed_sum, solve};
pub use problems::Problem;

use crate::dataset::Parts;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use problems::{Family, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const TYPE: &str = "countdown";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "train_path",
        default: "\"data/countdown/train.parquet\"",
        meaning: "file of problems with the columns `nums` and `target`: JSON, JSON lines or Parquet",
    },
    Setting { name: "max_instances", default: "20000", meaning: "rows read of the file at most, 1 to 100000000" },
    Setting {
        name: "family",
        default: "\"signed_sum\"",
        meaning: "signed_sum (signs alone reach the target; other rows of a file are left out) or arithmetic (also by products and quotients)",
    },
    Setting { name: "score", default: "1.0", meaning: "what a solution pays" },
    Setting { name: "format_score", default: "0.1", meaning: "what the right numbers with another value pay" },
    Setting {
        name: "backend",
        default: "\"auto\"",
        meaning: "embedded (generated problems), files (`train_path`), or auto: files if the file is there",
    },
    Setting {
        name: "parity",
        default: "false",
        meaning: "RAGEN's rule: validation and test draw from the training problems",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "make a target of given numbers by arithmetic, in one answer",
    many_starts: true,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || vec![Tag { single_action: true, ..Tag::new("Countdown", TYPE, 1, 100, json!({})) }],
    unavailable: || None,
    build: |config| Ok(Box::new(Countdown::new(config)?)),
};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Episode {
    problem: Problem,
    /// What the answer was paid; none while there is none.
    paid: Option<f64>,
    success: bool,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Countdown {
    family: Family,
    score: f64,
    format_score: f64,
    is_parity: bool,
    file: Option<(PathBuf, Arc<Parts<Problem>>)>,
    episode: Option<Episode>,
}

impl Countdown {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`], also if the file cannot be used.
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        let path = reader.read("train_path", "a path", |value| value.as_str().map(PathBuf::from));
        let most = reader.integer("max_instances", 1..=100_000_000);
        let family = [Family::SignedSum, Family::Arithmetic][reader.choice("family", &["signed_sum", "arithmetic"])];
        let is_file = match reader.choice("backend", &["auto", "embedded", "files"]) {
            0 => path.is_file(),
            backend => backend == 2,
        };
        let file = is_file.then(|| problems::load(&path, most, family)).transpose().unwrap_or_else(|error| {
            reader.problem("train_path", error);
            None
        });
        let points = f64::NEG_INFINITY..=f64::INFINITY;
        let countdown = Countdown {
            family,
            score: reader.number("score", points.clone()),
            format_score: reader.number("format_score", points),
            is_parity: reader.flag("parity"),
            file: file.map(|problems| (path, problems)),
            episode: None,
        };
        reader.finish(countdown)
    }

    /// Starts an episode with a problem of the caller's.
    pub fn pose(&mut self, problem: Problem) {
        self.episode = Some(Episode { problem, paid: None, success: false });
    }
}

impl Env for Countdown {
    fn reset(&mut self, seed: u64, _member: u64, mode: Mode) -> Result<(), EnvError> {
        let mode = if self.is_parity { Mode::Train } else { mode };
        let filed = self.file.as_ref().and_then(|(_, problems)| problems.item(seed, mode, self.is_parity));
        let problem = filed.cloned().unwrap_or_else(|| problems::generate(self.family, seed, mode));
        self.pose(problem);
        Ok(())
    }

    fn observation(&self) -> String {
        match &self.episode {
            None => String::new(),
            Some(Episode { paid: Some(points), .. }) => format!("Your answer get {points} points."),
            Some(Episode { problem: Problem { nums, target }, .. }) => format!("Target: {target}, nums: {nums:?}"),
        }
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset { env_type: TYPE })?;
        if episode.paid.is_some() {
            return Ok(Step { terminated: true, success: episode.success, ..Step::default() });
        }
        let verdict = episode.problem.judge(action);
        let reward = match verdict {
            Verdict::Solved => self.score,
            Verdict::RightNumbers => self.format_score,
            Verdict::Wrong => 0.0,
        };
        let success = verdict == Verdict::Solved;
        (episode.paid, episode.success) = (Some(reward), success);
        Ok(Step { reward, terminated: true, success, valid: true, effective: reward > 0.0, ..Step::default() })
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        "You play Countdown. Make the target of the numbers given, each used exactly once, with + - * / and parentheses. Answer \
         with the expression alone, without an equals sign."
            .to_owned()
    }

    fn backend(&self) -> Option<String> {
        Some(match &self.file {
            Some((path, problems)) => format!("{} problems of {}", problems.all().len(), path.display()),
            None => "embedded problems, generated".to_owned(),
        })
    }

    fn state(&self) -> Value {
        self.episode.as_ref().map_or(Value::Null, |episode| json!(episode))
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        self.episode = Option::<Episode>::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        self.episode.as_ref().map_or(0, |episode| episode.problem.hash())
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let Problem { nums, target } = &self.episode.as_ref().filter(|episode| episode.paid.is_none())?.problem;
        let planned = solve(nums, *target)?;
        let answer = match draws.chance(options.noise) {
            true => expression::write_sum(nums, draws.below(1 << nums.len()) as u32),
            false => planned,
        };
        let value = evaluate(&answer).unwrap_or(f64::NAN);
        Some(Turn { thought: format!("{answer} = {value}"), actions: vec![answer] })
    }
}

#[cfg(test)]
mod tests;

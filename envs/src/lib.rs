//! Tasks for language-model agents: text in, text out.
//!
//! This crate knows tasks; it has never heard of a token. An [`Env`] is one task that is played in episodes; [`make`]
//! builds one from its type's name and settings, [`tags`] lists the ready-made settings, [`specs`] says what there is,
//! and [`conformance`] holds the contract as callable checks. Read [`Env`] first, then any module of a task.
//!
//! The loop that every user writes:
//!
//! ```
//! use ragen_envs::{Mode, make};
//! let mut env = make("bandit", &serde_json::Value::Null)?;
//! env.reset(7, 0, Mode::Train)?;
//! let arm = env.actions().map(|names| names[0].clone()).unwrap_or_default();
//! let step = env.step(&arm)?;
//! assert!(step.terminated && !env.observation().is_empty());
//! # Ok::<(), ragen_envs::EnvError>(())
//! ```

pub mod alfworld;
pub mod bandit;
mod bridge;
pub mod conformance;
pub mod countdown;
mod dataset;
pub mod frozen_lake;
pub mod game_2048;
pub mod grid;
mod http;
pub mod lean;
pub mod metamathqa;
mod recap;
mod registry;
pub mod rng;
pub mod rubikscube;
pub mod search;
mod settings;
pub mod sokoban;
pub mod sudoku;
pub mod webshop;
pub mod wrappers;

#[cfg(test)]
mod golden;

pub use recap::{Brief, Recap};
pub use registry::{Spec, Tag, make, spec, specs, tag, tags};
pub use rng::Stream;
pub use settings::{Problem, Setting};

use serde_json::Value;
use std::borrow::Cow;

/// Which part of a task's data an episode is drawn from; tasks without data ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What the policy is trained on.
    Train,
    /// What it is validated on while training.
    Val,
    /// What it is tested on in the end.
    Test,
}

/// What one action did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What the environment pays for it.
    pub reward: f64,
    /// The task has ended, well or badly.
    pub terminated: bool,
    /// A limit of the environment's own was reached before the task ended.
    pub truncated: bool,
    /// The goal of the episode is reached in the present state.
    pub success: bool,
    /// The action was understood and allowed.
    pub valid: bool,
    /// The action changed something.
    pub effective: bool,
    /// Further numbers for metrics, each under a name.
    pub info: Vec<(Cow<'static, str>, f64)>,
}

impl Step {
    /// Whether the episode is over.
    pub fn ended(&self) -> bool {
        self.terminated || self.truncated
    }
}

/// What a reader must know to understand an observation, as the environment's effective settings have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Legend {
    /// Each symbol of a drawn grid with its meaning; empty where no grid is drawn.
    pub symbols: Vec<(String, String)>,
    /// How coordinates are to be read; none where none are given.
    pub coordinates: Option<String>,
}

/// One line a part: the pairs `symbol: meaning`, then the sentence on coordinates.
impl std::fmt::Display for Legend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs: Vec<String> = self.symbols.iter().map(|(symbol, meaning)| format!("{symbol}: {meaning}")).collect();
        let symbols = (!pairs.is_empty()).then(|| format!("The meaning of each symbol is {}.", pairs.join(", ")));
        let lines: Vec<String> = symbols.into_iter().chain(self.coordinates.clone()).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// How the scripted player is to play.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demonstration {
    /// Probability with which each planned move is replaced by one drawn uniformly from all.
    pub noise: f64,
    /// Probability of a turn of as many moves as allowed; otherwise their number is uniform in 1..=max.
    pub full: f64,
    /// The most moves in a turn; 0 is taken as 1.
    pub max_actions_per_turn: usize,
}

impl Demonstration {
    /// The player at its best: every turn full, no move replaced. It is the oracle of the tests.
    pub fn perfect(max_actions_per_turn: usize) -> Self {
        Demonstration { noise: 0.0, full: 1.0, max_actions_per_turn }
    }

    /// Draws how many moves a turn has.
    pub fn turn_len(&self, draws: &mut Stream) -> usize {
        let most = self.max_actions_per_turn.max(1);
        if draws.chance(self.full) { most } else { 1 + draws.below(most) }
    }
}

/// A scripted player's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its reasoning, one line, that depends on the state.
    pub thought: String,
    /// The actions, by name; at least one.
    pub actions: Vec<String>,
}

/// A task, played in episodes.
///
/// The contract, checked by [`conformance`]:
/// - everything depends on the settings, the seed, the member, the mode and the actions alone;
/// - [`Env::reset`] may be called at any time; what differs between members of a group is at most in-episode noise;
/// - a bad action is an ordinary step with `valid = false`, and an action after the end is tolerated;
/// - an `Err` means that the environment is broken or was not reset, never that the agent blundered.
pub trait Env: Send {
    /// Starts an episode: `seed` decides the start, `member` tells the members of a group apart.
    ///
    /// **Errors** [`EnvError::Generation`] if no start could be built within the attempt limit.
    fn reset(&mut self, seed: u64, member: u64, mode: Mode) -> Result<(), EnvError>;

    /// The present state as text; changes nothing. Empty before the first reset.
    fn observation(&self) -> String;

    /// Plays one action. Names of discrete actions are matched in any ASCII case.
    ///
    /// **Errors** [`EnvError::NotReset`] before the first reset.
    fn step(&mut self, action: &str) -> Result<Step, EnvError>;

    /// The names of the actions of this episode in the order of their ids; `None` where an action is free text.
    fn actions(&self) -> Option<Vec<String>>;

    /// The task in a few sentences, as the effective settings have it.
    fn instruction(&self) -> String;

    /// What is needed to read an observation.
    fn legend(&self) -> Legend {
        Legend::default()
    }

    /// What it stands on here, in one line, where the settings leave a choice: an embedded stand-in, files, a program, a
    /// server. `None` where there is nothing to choose.
    fn backend(&self) -> Option<String> {
        None
    }

    /// Whether starts are drawn from many, where its type leaves that to what it stands on (see [`Spec::many_starts`]).
    fn many_starts(&self) -> Option<bool> {
        None
    }

    /// Everything that the future of the episode depends on; `Null` before the first reset.
    fn state(&self) -> Value;

    /// Restores what [`Env::state`] returned, in an environment of the same settings.
    ///
    /// **Errors** [`EnvError::State`] if the value is no such state; nothing is changed then.
    fn load_state(&mut self, state: &Value) -> Result<(), EnvError>;

    /// A hash of what is visible of the task's state (no step counts, no random streams), equal on every machine.
    /// Taken after reset it keeps validation starts out of training. 0 before the first reset.
    fn state_hash(&self) -> u64;

    /// The scripted player's next turn from the present state; changes nothing. `None` if the episode is over, if the
    /// player knows no way to the goal any more, or if the task has no scripted player.
    fn demonstrate(&self, _options: &Demonstration, _draws: &mut Stream) -> Option<Turn> {
        None
    }
}

/// What can go wrong with an environment.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EnvError {
    /// There is no environment type or tag of that name.
    #[error("unknown environment {what} `{name}`{}; there are {known}", settings::suggest(nearest))]
    Unknown {
        /// "type" or "tag".
        what: &'static str,
        /// The name given.
        name: String,
        /// The most similar known name, if any is similar.
        nearest: Option<String>,
        /// The known names, joined by commas.
        known: String,
    },
    /// The environment type exists, but cannot be used here.
    #[error("environment `{env_type}` cannot be used here: {reason}")]
    Unavailable {
        /// The environment type.
        env_type: String,
        /// What is missing.
        reason: String,
    },
    /// Settings are wrong; every one that is wrong is listed.
    #[error("environment `{env_type}`: {}", settings::list(problems))]
    Config {
        /// The environment type.
        env_type: String,
        /// What is wrong, key by key.
        problems: Vec<Problem>,
    },
    /// An episode was used before one was started.
    #[error("environment `{env_type}` was stepped before it was reset")]
    NotReset {
        /// The environment type.
        env_type: &'static str,
    },
    /// No start satisfies the settings within the attempt limit.
    #[error("environment `{env_type}` found no start for seed {seed} in {attempts} attempts; loosen {loosen}")]
    Generation {
        /// The environment type.
        env_type: &'static str,
        /// The seed given.
        seed: u64,
        /// How many were tried.
        attempts: usize,
        /// The settings that decide how hard it is.
        loosen: &'static str,
    },
    /// What the environment stands on (a program, a server, a file of data) failed; the episode cannot go on.
    #[error("environment `{env_type}` failed: {reason}")]
    Failed {
        /// The environment type.
        env_type: String,
        /// What happened, and what to look at.
        reason: String,
    },
    /// A saved state cannot be restored.
    #[error("environment `{env_type}` cannot restore this state: {reason}")]
    State {
        /// The environment type.
        env_type: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

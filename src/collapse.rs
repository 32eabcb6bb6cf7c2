//! The collapse detector: does the reasoning still depend on the input?
//!
//! Inputs are called `x` and reasonings `z`, as in RAGEN-2. From the matrix S of log p(z_i | x_j) follow the mutual
//! information I(X;Z), the conditional entropy H(Z|X) and how often z_i tells its own x apart. A policy that answers
//! every input with the same template keeps its entropy and its reward for a while, but loses I(X;Z).
//!
//! Pure functions: which pairs to score ([`sample`]), the statistics of the scores ([`measure()`]) and the name of what they
//! show ([`regime`]). The scoring is the agent's.

use serde::{Deserialize, Serialize};

pub mod measure;
pub mod regime;
pub mod sample;

pub use measure::{CrossScores, RunningSpread, measure};
pub use regime::{Regime, RegimeConfig, RegimeState};
pub use sample::{Coverage, Pair, SampleCount, Selection};

/// Prefix of the metrics on first turns.
pub const FIRST_TURN: &str = "collapse_first_turn_sample/";
/// Prefix of the metrics on turns drawn from whole trajectories.
pub const TRAJECTORY: &str = "collapse_trajectory_sample/";

/// `[collapse]`: when and on what the collapse detector runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollapseConfig {
    /// On step 1 and on every n-th step; 0 never.
    pub every: u64,
    /// Measure the reasoning of first turns.
    pub first_turn: bool,
    /// Measure the reasoning of turns drawn from whole trajectories.
    pub multi_turn: bool,
    /// Pairs that are scored of each kind: a number, or `"all"`.
    pub num_samples: SampleCount,
    /// Other prompts that a reasoning is scored after; 0: all of them, which is exact.
    pub contrast: usize,
    /// Added to the marginal's standard deviation in `mi_zscore`, in nats.
    pub std_eps: f64,
    /// How much of the running standard deviation in `mi_zscore_ema` is kept a measurement.
    pub ema_decay: f64,
    /// When the reasoning is called collapsed.
    pub regime: RegimeConfig,
}

impl Default for CollapseConfig {
    fn default() -> Self {
        CollapseConfig {
            every: 5,
            first_turn: true,
            multi_turn: false,
            num_samples: SampleCount::AtMost(64),
            contrast: 0,
            std_eps: 1e-3,
            ema_decay: 0.9,
            regime: RegimeConfig::default(),
        }
    }
}

impl CollapseConfig {
    /// Whether the detector runs on training step `step` (the first step is 1).
    pub fn is_due(&self, step: u64) -> bool {
        let is_on = (self.first_turn || self.multi_turn) && self.every > 0;
        is_on && step > 0 && (step == 1 || step.is_multiple_of(self.every))
    }
}

/// What the detector remembers from measurement to measurement; part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollapseState {
    /// Spread of first turns.
    pub first_turn: RunningSpread,
    /// Spread of turns drawn from trajectories.
    pub trajectory: RunningSpread,
    /// Where the run began, where it is, and what was said of it.
    pub regime: RegimeState,
    /// It was said that there is nothing to measure without thinking.
    pub said_no_thinking: bool,
}

//! What a resumed run goes on from, beside weights and optimiser.

use crate::collapse::CollapseState;
use crate::config::Config;
use crate::env_manager::EnvManagerState;
use crate::env_manager::metrics::Metrics;
use serde::{Deserialize, Serialize};

/// The trainer's own part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Steps done.
    pub step: u64,
    /// Where the next training seeds begin.
    pub envs: EnvManagerState,
    /// Steps in a row that had nothing to train on.
    pub empty_steps: u64,
    /// What the collapse detector remembers.
    pub collapse: CollapseState,
}

/// Why a run ended before its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The filter kept nothing for `filter.empty_stop_steps` steps in a row.
    EmptyFilter,
    /// It was asked to.
    Interrupted,
}

impl TrainState {
    /// Counts steps in a row with nothing to train on.
    pub fn count_empty(&mut self, is_empty: bool, metrics: &mut Metrics) {
        self.empty_steps = if is_empty { self.empty_steps + 1 } else { 0 };
        metrics.insert("rollout/empty_after_filter".into(), f64::from(u8::from(is_empty)));
        metrics.insert("rollout/consecutive_empty_after_filter_steps".into(), self.empty_steps as f64);
    }

    /// Whether training goes on.
    pub fn why_stop(&self, config: &Config) -> Option<Stopped> {
        let limit = config.filter.empty_stop_steps;
        (limit > 0 && self.empty_steps >= limit).then_some(Stopped::EmptyFilter)
    }
}

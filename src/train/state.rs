//! What a resumed run goes on from, beside weights and optimiser.

use crate::agent_proxy::Rollout;
use crate::collapse::{CollapseState, Regime};
use crate::config::Config;
use crate::env_manager::EnvManagerState;
use crate::env_manager::metrics::Metrics;
use crate::filter::Filtered;
use crate::guards::{Action, Alarm, Guard, GuardsState, degenerate_share};
use crate::objective::adapt;
use crate::statistics;
use crate::trajectory::{Trajectory, Turn};
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
    /// What the guards remember.
    pub guards: GuardsState,
    /// What the divergence from the reference costs by now.
    #[serde(default)]
    pub kl: KlCoefficients,
    /// The validation with the most success so far, that before the first step apart.
    #[serde(default)]
    pub best: Option<Best>,
}

/// A validation that went better than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step after which it was.
    pub step: u64,
    /// Share of its episodes that ended well.
    pub success: f64,
}

/// The coefficients of the divergence, where they are adapted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlCoefficients {
    /// In the reward; none before the first step.
    pub reward: Option<f64>,
    /// In the loss; none before the first step.
    pub loss: Option<f64>,
}

impl KlCoefficients {
    /// Puts the present coefficients into a step's configuration.
    pub fn enter(&self, config: &mut Config) {
        config.reward.kl.coef = self.reward.unwrap_or(config.reward.kl.coef);
        config.update.loss.kl.coef = self.loss.unwrap_or(config.update.loss.kl.coef);
    }

    /// Adapts what a step of this configuration measured: the divergence in the reward and in the loss, over so many
    /// trajectories.
    pub fn adapt(&mut self, config: &Config, reward: Option<f64>, loss: Option<f64>, trajectories: usize) {
        let kl = &config.reward.kl;
        if let Some(measured) = reward.filter(|_| kl.target > 0.0) {
            self.reward = Some(adapt(kl.coef, (kl.target, kl.horizon), measured, trajectories));
        }
        let kl = &config.update.loss.kl;
        if let Some(measured) = loss.filter(|_| kl.target > 0.0) {
            self.loss = Some(adapt(kl.coef, (kl.target, kl.horizon), measured, trajectories));
        }
    }
}

/// Why a run ended before its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The filter kept nothing for `filter.empty_stop_steps` steps in a row.
    EmptyFilter,
    /// A guard said so, or had nothing left to go back to.
    Guard(Guard),
    /// Gradients were taken apart, which was all that was asked for.
    Analysed,
    /// It was asked to.
    Interrupted,
}

impl TrainState {
    /// Goes back to an earlier state, and on from there as step `step` + 1: what was said stays said, steps are not counted again, and
    /// the best checkpoint is still there.
    pub fn go_back(&mut self, to: TrainState, step: u64) {
        let (rollbacks, best) = (self.guards.rollbacks + 1, self.best);
        let collapse = std::mem::take(&mut self.collapse);
        *self = TrainState { step, best, ..to };
        self.guards.rollbacks = rollbacks;
        self.collapse.regime.warned.extend(collapse.regime.warned);
        self.collapse.said_no_thinking |= collapse.said_no_thinking;
    }

    /// Takes in a validation after the present step; whether it had some success, and more than all before it.
    pub fn is_best(&mut self, success: f64) -> bool {
        let is_best = success > self.best.map_or(0.0, |best| best.success);
        if is_best {
            self.best = Some(Best { step: self.step, success });
        }
        is_best
    }

    /// Counts steps in a row with nothing to train on.
    pub fn count_empty(&mut self, is_empty: bool, config: &Config, metrics: &mut Metrics) {
        self.empty_steps = if is_empty { self.empty_steps + 1 } else { 0 };
        metrics.insert("rollout/empty_after_filter".into(), f64::from(u8::from(is_empty)));
        metrics.insert("rollout/consecutive_empty_after_filter_steps".into(), self.empty_steps as f64);
        if self.why_stop(config).is_some() {
            metrics.insert("early_stopped/empty_filtered_steps".into(), 1.0);
        }
    }

    /// Shows the guards what was played, what the filter saw of it, and what the collapse detector named it.
    pub fn watch_rollout(
        &mut self,
        step: u64,
        rollout: &Rollout,
        filtered: &Filtered,
        config: &Config,
        metrics: &mut Metrics,
    ) -> Vec<Alarm> {
        let ids = |t: &'_ Trajectory, turn: &Turn| t.rows[turn.row].tokens.ids[turn.response.clone()].to_vec();
        let responses: Vec<Vec<u32>> =
            rollout.trajectories.iter().flat_map(|t| t.turns.iter().map(move |turn| ids(t, turn))).collect();
        let degenerate = degenerate_share(responses.iter().map(Vec::as_slice));
        metrics.insert("guards/degenerate_share".into(), degenerate);
        let spreads: Vec<f64> = filtered.groups.iter().map(|group| group.reward_std).collect();
        let spread = (!filtered.rows.is_empty()).then(|| statistics::mean(&spreads));
        let mut alarms = self.guards.after_rollout(step, degenerate, spread, &config.guards);
        // There is one on steps that were measured.
        let regime = metrics.get("collapse/regime").and_then(|number| Regime::numbered(*number));
        alarms.extend(regime.and_then(|regime| self.guards.after_measurement(step, regime, &config.guards)));
        note(&alarms, metrics);
        alarms
    }

    /// Shows the guards what an update did, and adds their metrics.
    pub fn watch_update(&mut self, step: u64, config: &Config, metrics: &mut Metrics) -> Vec<Alarm> {
        let of = |name: &str| metrics.get(name).copied();
        let divergence = match (of("policy/ppo_kl"), of("policy/kl_loss")) {
            // The larger one, and what is no number before all.
            (Some(a), Some(b)) => Some(if a.is_nan() || a > b { a } else { b }),
            (a, b) => a.or(b),
        };
        let alarms = self.guards.after_update(step, of("policy/entropy_loss"), divergence, &config.guards);
        note(&alarms, metrics);
        metrics.extend(self.guards.metrics());
        alarms
    }

    /// Whether training goes on.
    pub fn why_stop(&self, config: &Config) -> Option<Stopped> {
        let limit = config.filter.empty_stop_steps;
        (limit > 0 && self.empty_steps >= limit).then_some(Stopped::EmptyFilter)
    }
}

/// RAGEN's mark of an early stop.
fn note(alarms: &[Alarm], metrics: &mut Metrics) {
    for alarm in alarms.iter().filter(|alarm| alarm.action == Action::Stop) {
        metrics.insert(format!("early_stopped/{}", alarm.guard.name()), 1.0);
    }
}

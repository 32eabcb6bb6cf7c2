//! The objective: from a mini-batch's advantages and returns to the loss and its seeds (decision D5).
//!
//! Pure functions on host slices, one value a trained token, in f64. This module never sees a model: what it hands on is
//! dL/dlogp, dL/dentropy and dL/dvalue for each token. The terms stand below it: `policy`, `divergence`, `value`; `average` says
//! what each token weighs, `correction` what else it may weigh.

use crate::policy::{TokenSeeds, TokenValues};
use serde::{Deserialize, Serialize};
use std::ops::Range;

mod average;
pub mod correction;
mod divergence;
mod metrics;
mod policy;
mod value;

pub use average::LossAverage;
pub use divergence::{KlConfig, KlKind, adapt};
pub use metrics::LossMetrics;
pub use policy::{PolicyLoss, PolicyTerm, Ratio, cispo_term, gspo_term, ppo_term};
pub use value::{ValueTerm, value_term};

/// Added to counts before dividing by them, as in the reference.
const EPS: f64 = 1e-8;

/// `[update.loss]`: the objective's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossConfig {
    /// What the policy's loss is: `ppo`, `gspo` or `cispo`.
    pub policy: PolicyLoss,
    /// The ratio counts no further down than 1 − this.
    pub clip_low: f64,
    /// The ratio counts no further up than 1 + this.
    pub clip_high: f64,
    /// For a negative advantage A the loss is at most −A times this (dual clip of `ppo`); larger than 1.
    pub clip_dual: f64,
    /// How token losses become one number: `token_mean`, `seq_mean_token_mean`, `seq_mean_token_sum` or
    /// `seq_mean_token_sum_norm`.
    pub average: LossAverage,
    /// Weight of the entropy bonus, in loss a nat.
    pub entropy_coef: f64,
    /// Weight of the value loss (`gae`).
    pub value_coef: f64,
    /// The value counts no further from the old one than this.
    pub value_clip: f64,
    /// The penalty on leaving the reference.
    pub kl: KlConfig,
}

impl Default for LossConfig {
    fn default() -> Self {
        LossConfig {
            policy: PolicyLoss::Ppo,
            clip_low: 0.2,
            clip_high: 0.28,
            clip_dual: 3.0,
            average: LossAverage::TokenMean,
            entropy_coef: 0.001,
            value_coef: 1.0,
            value_clip: 0.5,
            kl: KlConfig::default(),
        }
    }
}

/// Why a mini-batch cannot be trained on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ObjectiveError {
    /// An input does not have one value a trained token.
    #[error("{what} has {found} values for {n_tokens} trained tokens")]
    Length {
        /// Which input.
        what: &'static str,
        /// Its length.
        found: usize,
        /// Trained tokens of the mini-batch.
        n_tokens: usize,
    },
}

/// Holds a value within bounds; unlike `f64::clamp` it takes any bounds, and a value that is no number stays so.
fn hold(value: f64, low: f64, high: f64) -> f64 {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

/// What a mini-batch is trained towards: one value a trained token, rows in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Targets<'a> {
    /// Trained tokens of each row.
    pub lengths: &'a [usize],
    /// The episode of each row; rows of one lie next to each other and are one row to the loss's average. Empty: each row
    /// is an episode.
    pub episodes: &'a [usize],
    /// Log-probabilities that the tokens were sampled with.
    pub old_logp: &'a [f32],
    /// Advantages.
    pub advantage: &'a [f64],
    /// What the policy's loss of each token counts (see [`correction`]); empty: 1.
    pub weight: &'a [f64],
    /// Returns; empty trains no value head.
    pub ret: &'a [f64],
    /// The value head's estimates before the update; empty if `ret` is.
    pub old_value: &'a [f32],
    /// The reference's log-probabilities; may be empty if `kl.coef` is 0, and are then not measured against.
    pub reference_logp: &'a [f32],
}

/// The objective of one mini-batch, which micro-batches are evaluated under.
///
/// **Math** L = Σ_t w_t (policy_t − entropy_coef H_t + kl.coef KL_t) + value_coef mean_t value_t, with the weights of
/// [`LossAverage::row_weights`] over the whole mini-batch. The value loss is always a mean over tokens.
#[derive(Clone, Debug)]
pub struct Objective<'a> {
    config: &'a LossConfig,
    targets: Targets<'a>,
    /// First token of each row, and the number of tokens at the end.
    starts: Vec<usize>,
    row_weights: Vec<f64>,
    token_weight: f64,
}

impl<'a> Objective<'a> {
    /// The objective for one mini-batch; `horizon_tokens` as in [`LossAverage::row_weights`].
    ///
    /// **Errors** if a target does not have one value a trained token.
    pub fn new(config: &'a LossConfig, targets: Targets<'a>, horizon_tokens: usize) -> Result<Self, ObjectiveError> {
        let mut starts = vec![0];
        let mut n_tokens = 0;
        for length in targets.lengths {
            n_tokens += length;
            starts.push(n_tokens);
        }
        let (has_value, has_reference) = (!targets.ret.is_empty(), !targets.reference_logp.is_empty());
        for (what, found, is_needed) in [
            ("old_logp", targets.old_logp.len(), true),
            ("advantage", targets.advantage.len(), true),
            ("weight", targets.weight.len(), !targets.weight.is_empty()),
            ("ret", targets.ret.len(), has_value),
            ("old_value", targets.old_value.len(), has_value),
            ("reference_logp", targets.reference_logp.len(), has_reference || config.kl.coef != 0.0),
        ] {
            if is_needed && found != n_tokens {
                return Err(ObjectiveError::Length { what, found, n_tokens });
            }
        }
        let row_weights = match targets.episodes {
            [] => config.average.row_weights(targets.lengths, horizon_tokens),
            episodes => average::episode_weights(config.average, targets.lengths, episodes, horizon_tokens)?,
        };
        Ok(Objective { config, targets, starts, row_weights, token_weight: 1.0 / (n_tokens as f64 + EPS) })
    }

    /// The seeds of a micro-batch, the rows `rows` of the mini-batch, under the policy's present values; adds the
    /// micro-batch's share to `metrics`, which are complete after the last one.
    ///
    /// Everything is summed token by token in order, so that metrics and seeds are the same in every bit however a
    /// mini-batch is split.
    ///
    /// **Panics** if `now` does not have one value a trained token of these rows.
    pub fn evaluate(&self, rows: Range<usize>, now: &TokenValues, metrics: &mut LossMetrics) -> TokenSeeds {
        let (config, targets) = (self.config, &self.targets);
        let first = self.starts[rows.start];
        let n_tokens = self.starts[rows.end] - first;
        let (has_value, has_reference) = (!targets.ret.is_empty(), !targets.reference_logp.is_empty());
        assert!(
            now.logp.len() == n_tokens && now.entropy.len() == n_tokens,
            "one log-prob and entropy a trained token"
        );
        assert!(!has_value || now.value.len() == n_tokens, "one value a trained token");
        let mut seeds = TokenSeeds { logp: Vec::with_capacity(n_tokens), ..TokenSeeds::default() };
        let mean = self.token_weight;
        for row in rows {
            let weight = self.row_weights[row];
            let tokens = self.starts[row]..self.starts[row + 1];
            let ratio_of = |t: usize| Ratio::of(f64::from(now.logp[t - first]), f64::from(targets.old_logp[t]));
            let sequence = match config.policy {
                PolicyLoss::Gspo => sequence_ratio(tokens.clone().map(ratio_of)),
                _ => Ratio::from_log(0.0),
            };
            for t in tokens {
                let (ratio, logp) = (ratio_of(t), f64::from(now.logp[t - first]));
                let term = self.policy_term(ratio, sequence, logp, t);
                let mut dlogp = term.dlogp;
                metrics.policy_loss += weight * term.loss;
                metrics.loss += weight * term.loss;
                metrics.ppo_kl -= mean * ratio.log;
                metrics.clip_fraction += mean * f64::from(u8::from(term.is_clipped));
                metrics.clip_fraction_lower += mean * f64::from(u8::from(term.is_clipped_lower));
                metrics.max_ratio_error = metrics.max_ratio_error.max((ratio.value - 1.0).abs());
                let entropy = f64::from(now.entropy[t - first]);
                metrics.entropy += weight * entropy;
                if config.entropy_coef != 0.0 {
                    metrics.loss -= weight * config.entropy_coef * entropy;
                    seeds.entropy.push((-weight * config.entropy_coef) as f32);
                }
                if has_reference {
                    let reference_logp = f64::from(targets.reference_logp[t]);
                    let (kl, slope) = config.kl.kind.estimate_at(ratio.value, logp, reference_logp);
                    metrics.kl += weight * kl;
                    if config.kl.coef != 0.0 {
                        metrics.loss += weight * config.kl.coef * kl;
                        dlogp += config.kl.coef * slope;
                    }
                }
                seeds.logp.push((weight * dlogp) as f32);
                if has_value {
                    seeds.value.push(self.add_value(f64::from(now.value[t - first]), t, metrics) as f32);
                }
            }
        }
        seeds
    }

    /// The policy's loss of a token, corrected for who sampled it.
    fn policy_term(&self, ratio: Ratio, sequence: Ratio, logp: f64, t: usize) -> PolicyTerm {
        let advantage = self.targets.advantage[t];
        let term = match self.config.policy {
            PolicyLoss::Ppo => ppo_term(self.config, ratio, advantage),
            PolicyLoss::Gspo => gspo_term(self.config, sequence, advantage),
            PolicyLoss::Cispo => cispo_term(self.config, ratio, logp, advantage),
        };
        let correction = self.targets.weight.get(t).copied().unwrap_or(1.0);
        PolicyTerm { loss: correction * term.loss, dlogp: correction * term.dlogp, ..term }
    }

    /// Adds the value loss of a token to `metrics`; returns its seed.
    fn add_value(&self, value: f64, t: usize, metrics: &mut LossMetrics) -> f64 {
        let (targets, mean, coef) = (&self.targets, self.token_weight, self.config.value_coef);
        let term = value_term(value, f64::from(targets.old_value[t]), targets.ret[t], self.config.value_clip);
        metrics.value_loss += mean * term.loss;
        metrics.value_clip_fraction += mean * f64::from(u8::from(term.is_clipped));
        metrics.value_mean += mean * value;
        metrics.loss += mean * coef * term.loss;
        mean * coef * term.dvalue
    }
}

/// The ratio of a row as a whole: the exponential of its tokens' mean log-ratio.
fn sequence_ratio(tokens: impl Iterator<Item = Ratio>) -> Ratio {
    let (sum, n) = tokens.fold((0.0, 0u64), |(sum, n), ratio| (sum + ratio.log, n + 1));
    Ratio::from_log(sum / n.max(1) as f64)
}

#[cfg(test)]
mod tests;

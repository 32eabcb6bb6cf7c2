//! The objective: from a mini-batch's advantages and returns to the loss and its seeds (decision D5).
//!
//! Pure functions on host slices, one value a trained token, in f64. This module never sees a model: what it hands on is
//! dL/dlogp, dL/dentropy and dL/dvalue for each token.

use crate::policy::{TokenSeeds, TokenValues};
use ragen_models::math::exp;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Log-ratios are held within ± this before they are exponentiated.
const MAX_LOG_RATIO: f64 = 20.0;
/// K3 is held within ± this.
const MAX_K3: f64 = 10.0;
/// Added to counts before dividing by them, as in the reference.
const EPS: f64 = 1e-8;

/// How token losses become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossAverage {
    /// The mean over all tokens (DAPO).
    #[default]
    #[serde(alias = "token-mean")]
    TokenMean,
    /// The mean over rows of each row's token mean (GRPO).
    #[serde(alias = "seq-mean-token-mean")]
    SeqMeanTokenMean,
    /// The mean over rows of each row's token sum.
    #[serde(alias = "seq-mean-token-sum")]
    SeqMeanTokenSum,
    /// The sum over all tokens divided by a length (Dr. GRPO).
    #[serde(alias = "seq-mean-token-sum-norm")]
    SeqMeanTokenSumNorm,
}

/// An estimator of the divergence from the reference, on log-probabilities a of the policy and b of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlKind {
    /// a − b. Unbiased, but as a loss its mean gradient on the policy's own samples is zero.
    #[serde(alias = "kl")]
    K1,
    /// (a − b)² / 2.
    #[serde(alias = "mse")]
    K2,
    /// exp(b − a) − (b − a) − 1.
    #[default]
    #[serde(alias = "low_var_kl", alias = "low-var-kl")]
    K3,
    /// |a − b|.
    Abs,
}

/// `[update.loss.kl]`: the penalty on leaving the reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KlConfig {
    /// Weight of the penalty; 0 needs no reference.
    pub coef: f64,
    /// `k1` (`kl`), `k2` (`mse`), `k3` (`low_var_kl`) or `abs`. The published default is `k1`, which as a loss does not
    /// pull towards the reference; ours is `k3`.
    pub kind: KlKind,
}

/// `[update.loss]`: the objective's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossConfig {
    /// The ratio counts no further down than 1 − this.
    pub clip_low: f64,
    /// The ratio counts no further up than 1 + this.
    pub clip_high: f64,
    /// For a negative advantage A the loss is at most −A times this (dual clip); larger than 1.
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

impl LossAverage {
    /// The weight of each row's tokens in the loss of a mini-batch, so that the loss is Σ weight × token loss.
    ///
    /// `lengths` holds the trained tokens of every row of the mini-batch, `horizon_tokens` what
    /// `seq_mean_token_sum_norm` divides by. The weights belong to the mini-batch, so neither loss nor gradient depends
    /// on how it is split. Rows without trained tokens do not count as rows.
    pub fn row_weights(self, lengths: &[usize], horizon_tokens: usize) -> Vec<f64> {
        let n_tokens = lengths.iter().sum::<usize>() as f64;
        let n_rows = lengths.iter().filter(|&&n| n > 0).count() as f64;
        let weight = |&n: &usize| match self {
            LossAverage::TokenMean => 1.0 / (n_tokens + EPS),
            LossAverage::SeqMeanTokenMean => 1.0 / ((n as f64 + EPS) * (n_rows + EPS)),
            LossAverage::SeqMeanTokenSum => 1.0 / (n_rows + EPS),
            LossAverage::SeqMeanTokenSumNorm => 1.0 / horizon_tokens.max(1) as f64,
        };
        lengths.iter().map(weight).collect()
    }
}

impl KlKind {
    /// The estimate for one token in nats, and its derivative with respect to `logp`.
    ///
    /// **Source** J. Schulman, *Approximating KL divergence*, 2020.
    pub fn estimate(self, logp: f64, reference_logp: f64) -> (f64, f64) {
        let difference = logp - reference_logp;
        match self {
            KlKind::K1 => (difference, 1.0),
            KlKind::K2 => (0.5 * difference * difference, difference),
            KlKind::K3 => {
                let x = hold(-difference, -MAX_LOG_RATIO, MAX_LOG_RATIO);
                let k3 = exp(x) - x - 1.0;
                let is_free = x == -difference && k3.abs() <= MAX_K3;
                (hold(k3, -MAX_K3, MAX_K3), if is_free { 1.0 - exp(x) } else { 0.0 })
            }
            KlKind::Abs if difference == 0.0 => (0.0, 0.0),
            KlKind::Abs => (difference.abs(), difference.signum()),
        }
    }
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

/// The policy loss of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyTerm {
    /// The loss.
    pub loss: f64,
    /// Its derivative with respect to the new log-probability.
    pub dlogp: f64,
    /// New probability over old.
    pub ratio: f64,
    /// ln of the ratio, held within ±20.
    pub log_ratio: f64,
    /// The clipped loss is the larger one.
    pub is_clipped: bool,
    /// The dual clip binds.
    pub is_clipped_lower: bool,
}

/// The clipped policy loss of one token.
///
/// **Math** with ρ = exp(logp − old_logp): max(−A ρ, −A clip(ρ, 1 − low, 1 + high)), and for A < 0 at most −A × dual. At
/// ρ = 1 the derivative is exactly −A.
///
/// **Source** Schulman et al., arXiv:1707.06347, equation 7; Ye et al., arXiv:1912.09729 (dual clip); Yu et al.,
/// arXiv:2503.14476 (two clip ranges).
pub fn policy_term(config: &LossConfig, logp: f64, old_logp: f64, advantage: f64) -> PolicyTerm {
    let difference = logp - old_logp;
    let log_ratio = hold(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO);
    let ratio = exp(log_ratio);
    let clipped_ratio = hold(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high);
    let (free, clipped) = (-advantage * ratio, -advantage * clipped_ratio);
    let is_clipped = clipped > free;
    let larger = if is_clipped { clipped } else { free };
    let ceiling = -advantage * config.clip_dual;
    let is_clipped_lower = advantage < 0.0 && larger > ceiling;
    // Where a bound holds the value, the loss does not move with the log-probability.
    let is_held = is_clipped || is_clipped_lower || difference.abs() > MAX_LOG_RATIO;
    PolicyTerm {
        loss: if is_clipped_lower { ceiling } else { larger },
        dlogp: if is_held { 0.0 } else { free },
        ratio,
        log_ratio,
        is_clipped,
        is_clipped_lower,
    }
}

/// The value loss of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueTerm {
    /// The loss.
    pub loss: f64,
    /// Its derivative with respect to the new value.
    pub dvalue: f64,
    /// The clipped loss is the larger one.
    pub is_clipped: bool,
}

/// The clipped value loss of one token: max((V − R)², (clip(V, V_old ± clip) − R)²) / 2.
pub fn value_term(value: f64, old_value: f64, ret: f64, clip: f64) -> ValueTerm {
    let held = hold(value, old_value - clip, old_value + clip);
    let (free_error, held_error) = (value - ret, held - ret);
    let is_clipped = held_error * held_error > free_error * free_error;
    let error = if is_clipped { held_error } else { free_error };
    ValueTerm { loss: 0.5 * error * error, dvalue: if is_clipped { 0.0 } else { error }, is_clipped }
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
    /// Returns; empty trains no value head.
    pub ret: &'a [f64],
    /// The value head's estimates before the update; empty if `ret` is.
    pub old_value: &'a [f32],
    /// The reference's log-probabilities; may be empty if `kl.coef` is 0, and are then not measured against.
    pub reference_logp: &'a [f32],
}

/// The loss of one mini-batch and its parts, each averaged as the configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossMetrics {
    /// The whole loss.
    pub loss: f64,
    /// The clipped policy loss.
    pub policy_loss: f64,
    /// Mean over tokens of old less new log-probability.
    pub ppo_kl: f64,
    /// Share of tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// Share of tokens at which the dual clip binds.
    pub clip_fraction_lower: f64,
    /// Largest distance of a ratio from 1; 0 in the first update on the policy's own samples.
    pub max_ratio_error: f64,
    /// Entropy in nats, averaged like the loss.
    pub entropy: f64,
    /// Divergence from the reference in nats, averaged like the loss; 0 without a reference.
    pub kl: f64,
    /// The clipped value loss, a mean over tokens.
    pub value_loss: f64,
    /// Share of tokens whose value was clipped.
    pub value_clip_fraction: f64,
    /// Mean predicted value.
    pub value_mean: f64,
}

impl LossMetrics {
    /// The metrics under their names; those of a value head or a reference only where there is one.
    pub fn named(&self, has_value: bool, has_reference: bool) -> Vec<(&'static str, f64)> {
        let mut named = vec![
            ("policy/loss", self.loss),
            ("policy/pg_loss", self.policy_loss),
            ("policy/ppo_kl", self.ppo_kl),
            ("policy/pg_clipfrac", self.clip_fraction),
            ("policy/pg_clipfrac_lower", self.clip_fraction_lower),
            ("policy/max_ratio_error", self.max_ratio_error),
            ("policy/entropy_loss", self.entropy),
        ];
        if has_reference {
            named.push(("policy/kl_loss", self.kl));
        }
        if has_value {
            named.push(("value/vf_loss", self.value_loss));
            named.push(("value/vf_clipfrac", self.value_clip_fraction));
            named.push(("value/vpred_mean", self.value_mean));
        }
        named
    }

    /// The mean of several mini-batches' metrics (of `max_ratio_error` the maximum); all 0 for none.
    pub fn mean(metrics: &[LossMetrics]) -> LossMetrics {
        let over =
            |field: fn(&LossMetrics) -> f64| metrics.iter().map(field).sum::<f64>() / metrics.len().max(1) as f64;
        LossMetrics {
            loss: over(|m| m.loss),
            policy_loss: over(|m| m.policy_loss),
            ppo_kl: over(|m| m.ppo_kl),
            clip_fraction: over(|m| m.clip_fraction),
            clip_fraction_lower: over(|m| m.clip_fraction_lower),
            max_ratio_error: metrics.iter().map(|m| m.max_ratio_error).fold(0.0, f64::max),
            entropy: over(|m| m.entropy),
            kl: over(|m| m.kl),
            value_loss: over(|m| m.value_loss),
            value_clip_fraction: over(|m| m.value_clip_fraction),
            value_mean: over(|m| m.value_mean),
        }
    }
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
            episodes => episode_weights(config.average, targets.lengths, episodes, horizon_tokens)?,
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
            for t in self.starts[row]..self.starts[row + 1] {
                let logp = f64::from(now.logp[t - first]);
                let term = policy_term(config, logp, f64::from(targets.old_logp[t]), targets.advantage[t]);
                let mut dlogp = term.dlogp;
                metrics.policy_loss += weight * term.loss;
                metrics.loss += weight * term.loss;
                metrics.ppo_kl -= mean * term.log_ratio;
                metrics.clip_fraction += mean * f64::from(u8::from(term.is_clipped));
                metrics.clip_fraction_lower += mean * f64::from(u8::from(term.is_clipped_lower));
                metrics.max_ratio_error = metrics.max_ratio_error.max((term.ratio - 1.0).abs());
                let entropy = f64::from(now.entropy[t - first]);
                metrics.entropy += weight * entropy;
                if config.entropy_coef != 0.0 {
                    metrics.loss -= weight * config.entropy_coef * entropy;
                    seeds.entropy.push((-weight * config.entropy_coef) as f32);
                }
                if has_reference {
                    let (kl, slope) = config.kl.kind.estimate(logp, f64::from(targets.reference_logp[t]));
                    metrics.kl += weight * kl;
                    if config.kl.coef != 0.0 {
                        metrics.loss += weight * config.kl.coef * kl;
                        dlogp += config.kl.coef * slope;
                    }
                }
                seeds.logp.push((weight * dlogp) as f32);
                if has_value {
                    let value = f64::from(now.value[t - first]);
                    let term = value_term(value, f64::from(targets.old_value[t]), targets.ret[t], config.value_clip);
                    metrics.value_loss += mean * term.loss;
                    metrics.value_clip_fraction += mean * f64::from(u8::from(term.is_clipped));
                    metrics.value_mean += mean * value;
                    metrics.loss += mean * config.value_coef * term.loss;
                    seeds.value.push((mean * config.value_coef * term.dvalue) as f32);
                }
            }
        }
        seeds
    }
}

/// The weight of each row's tokens where the rows of an episode count as one.
fn episode_weights(
    average: LossAverage,
    lengths: &[usize],
    episodes: &[usize],
    horizon_tokens: usize,
) -> Result<Vec<f64>, ObjectiveError> {
    if episodes.len() != lengths.len() {
        let (found, n_tokens) = (episodes.len(), lengths.len());
        return Err(ObjectiveError::Length { what: "episodes, one a row,", found, n_tokens });
    }
    let mut sums: Vec<usize> = Vec::new();
    let mut which = Vec::with_capacity(lengths.len());
    for (row, length) in lengths.iter().enumerate() {
        if row == 0 || episodes[row] != episodes[row - 1] {
            sums.push(0);
        }
        which.push(sums.len() - 1);
        sums[which[row]] += length;
    }
    let weights = average.row_weights(&sums, horizon_tokens);
    Ok(which.into_iter().map(|episode| weights[episode]).collect())
}

/// Takes the divergence from the reference out of token rewards (KL in the reward); returns the mean over rows of each
/// row's mean divergence in nats.
///
/// **Math** r_t −= coef KL(old_logp_t, reference_logp_t).
///
/// **Panics** if an input does not have one value a trained token.
pub fn penalise_rewards(
    rewards: &mut [f64],
    lengths: &[usize],
    old_logp: &[f32],
    reference_logp: &[f32],
    kl: &KlConfig,
) -> f64 {
    let mut sum_of_means = 0.0;
    let mut start = 0;
    for &length in lengths {
        let mut sum = 0.0;
        for t in start..start + length {
            let (divergence, _) = kl.kind.estimate(f64::from(old_logp[t]), f64::from(reference_logp[t]));
            rewards[t] -= kl.coef * divergence;
            sum += divergence;
        }
        sum_of_means += sum / (length as f64 + EPS);
        start += length;
    }
    sum_of_means / lengths.len().max(1) as f64
}

#[cfg(test)]
mod tests;

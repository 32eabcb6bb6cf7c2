//! The objective: from a mini-batch's advantages and returns to the loss and its seeds (decision D5).
//!
//! Pure functions on host slices, one value a trained token, in f64. This module never sees a model: what it hands on is
//! dL/dlogp, dL/dentropy and dL/dvalue for each token.

use serde::{Deserialize, Serialize};

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

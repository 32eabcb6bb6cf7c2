//! Importance weights for tokens that another policy sampled than the one their old log-probabilities are of.
//!
//! An engine that samples with other arithmetic than training's draws from a policy that is not quite the trained one. The
//! tokens are scored again (`update.rescore`), and the policy's loss of each is weighted by how much more probable it was under
//! the trained policy, within bounds.

use super::policy::Ratio;
use serde::{Deserialize, Serialize};

/// What happens to a weight beyond the cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Correction {
    /// Nothing is weighted.
    #[default]
    None,
    /// A weight above the cap is the cap (truncated importance sampling).
    Tis,
    /// A weight above the cap, or below one over the cap, is 0 (masked importance sampling).
    Mis,
}

/// What has one weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionLevel {
    /// Each token.
    #[default]
    Token,
    /// All tokens of a trajectory: the product of theirs.
    Sequence,
}

/// `[update.correction]`: weights for a sampling policy that is not the trained one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CorrectionConfig {
    /// `none`, `tis` or `mis`. Needs `update.rescore`.
    pub kind: Correction,
    /// `token` or `sequence`.
    pub level: CorrectionLevel,
    /// The largest weight; above 1.
    pub cap: f64,
}

impl Default for CorrectionConfig {
    fn default() -> Self {
        CorrectionConfig { kind: Correction::None, level: CorrectionLevel::Token, cap: 2.0 }
    }
}

/// Weights, and how far the two policies are from each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// One a token.
    pub weight: Vec<f64>,
    /// Mean over tokens of the ratio before the bounds.
    pub mean_ratio: f64,
    /// The largest such ratio.
    pub max_ratio: f64,
    /// Share of tokens whose weight is not their ratio.
    pub limited: f64,
    /// Mean over tokens of sampling less trained log-probability: the divergence of the sampling policy, in nats.
    pub kl: f64,
}

/// The weight of each token: its ratio of trained to sampling probability, within the bounds.
///
/// `lengths` holds the trained tokens of each trajectory. **Source** Espeholt et al., arXiv:1802.01561 (truncated weights); Yao
/// et al., *Your efficient RL framework secretly brings you off-policy RL training*, 2025.
///
/// **Panics** if an input does not have one value a token.
pub fn weights(config: &CorrectionConfig, lengths: &[usize], sampled_logp: &[f32], old_logp: &[f32]) -> Weights {
    let mut all = Weights { max_ratio: 0.0, ..Weights::default() };
    let mut start = 0;
    let n_tokens = lengths.iter().sum::<usize>();
    for &length in lengths {
        let tokens = start..start + length;
        start = tokens.end;
        let logs: Vec<f64> = tokens.map(|t| f64::from(old_logp[t]) - f64::from(sampled_logp[t])).collect();
        all.kl -= logs.iter().sum::<f64>();
        let whole: f64 = logs.iter().sum();
        for log in logs {
            let ratio = Ratio::from_log(if config.level == CorrectionLevel::Token { log } else { whole }).value;
            let weight = match config.kind {
                Correction::None => 1.0,
                Correction::Tis => ratio.min(config.cap),
                Correction::Mis if ratio > config.cap || ratio < 1.0 / config.cap => 0.0,
                Correction::Mis => ratio,
            };
            all.mean_ratio += ratio;
            all.max_ratio = all.max_ratio.max(ratio);
            all.limited += f64::from(u8::from(weight != ratio));
            all.weight.push(weight);
        }
    }
    let n = n_tokens.max(1) as f64;
    (all.mean_ratio, all.limited, all.kl) = (all.mean_ratio / n, all.limited / n, all.kl / n);
    all
}

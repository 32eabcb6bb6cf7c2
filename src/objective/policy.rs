//! The policy's loss of one token: clipped ratios (PPO, DAPO), a sequence's ratio (GSPO), clipped weights (CISPO).

use super::divergence::MAX_LOG_RATIO;
use super::{LossConfig, hold};
use ragen_models::math::exp;
use serde::{Deserialize, Serialize};

/// What the policy's loss is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// The clipped ratio of each token, with a dual clip.
    #[default]
    Ppo,
    /// The clipped ratio of the row as a whole.
    Gspo,
    /// The log-probability under a clipped weight that is not differentiated.
    Cispo,
}

/// The policy loss of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyTerm {
    /// The loss.
    pub loss: f64,
    /// Its derivative with respect to the new log-probability.
    pub dlogp: f64,
    /// A bound of the ratio binds.
    pub is_clipped: bool,
    /// The dual clip binds.
    pub is_clipped_lower: bool,
}

/// New probability over old, as the losses take it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Its logarithm, held within ±20.
    pub log: f64,
    /// The ratio.
    pub value: f64,
    /// The logarithm is at its bound, where the ratio does not move.
    pub is_held: bool,
}

impl Ratio {
    /// Of two log-probabilities.
    pub fn of(logp: f64, old_logp: f64) -> Ratio {
        Ratio::from_log(logp - old_logp)
    }

    /// Of a difference of log-probabilities.
    pub fn from_log(difference: f64) -> Ratio {
        let log = hold(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO);
        Ratio { log, value: exp(log), is_held: difference.abs() > MAX_LOG_RATIO }
    }
}

/// The clipped policy loss of one token.
///
/// **Math** with the ratio ρ: max(−A ρ, −A clip(ρ, 1 − low, 1 + high)), and for A < 0 at most −A × dual. At ρ = 1 the
/// derivative is exactly −A.
///
/// **Source** Schulman et al., arXiv:1707.06347, equation 7; Ye et al., arXiv:1912.09729 (dual clip); Yu et al.,
/// arXiv:2503.14476 (two clip ranges).
pub fn ppo_term(config: &LossConfig, ratio: Ratio, advantage: f64) -> PolicyTerm {
    let term = clipped(config, ratio, advantage);
    let ceiling = -advantage * config.clip_dual;
    // Where a bound holds the value, the loss does not move with the log-probability.
    match advantage < 0.0 && term.loss > ceiling {
        true => PolicyTerm { loss: ceiling, dlogp: 0.0, is_clipped_lower: true, ..term },
        false => term,
    }
}

/// The policy loss of one token under its sequence's ratio.
///
/// **Math** with s = exp(mean over the row's tokens of ln ρ): max(−A s, −A clip(s, 1 − low, 1 + high)). Summed over a row of n
/// tokens with one advantage its derivative with respect to each log-probability is −A s; a token with an advantage of its own
/// takes that in place of A.
///
/// **Source** Zheng et al., arXiv:2507.18071, equations 5, 7 and, for token advantages, 13. Its clip ranges are about 3e-4.
pub fn gspo_term(config: &LossConfig, sequence: Ratio, advantage: f64) -> PolicyTerm {
    clipped(config, sequence, advantage)
}

/// The larger one of the free and the clipped loss.
fn clipped(config: &LossConfig, ratio: Ratio, advantage: f64) -> PolicyTerm {
    let clipped_ratio = hold(ratio.value, 1.0 - config.clip_low, 1.0 + config.clip_high);
    let (free, clipped) = (-advantage * ratio.value, -advantage * clipped_ratio);
    let is_clipped = clipped > free;
    PolicyTerm {
        loss: if is_clipped { clipped } else { free },
        dlogp: if is_clipped || ratio.is_held { 0.0 } else { free },
        is_clipped,
        is_clipped_lower: false,
    }
}

/// The policy loss of one token under a clipped weight: no token loses its gradient to the clip.
///
/// **Math** −A clip(ρ, 1 − low, 1 + high) logp, with the clipped ratio held fixed.
///
/// **Source** MiniMax-M1, arXiv:2506.13585, equations 4 and 5.
pub fn cispo_term(config: &LossConfig, ratio: Ratio, logp: f64, advantage: f64) -> PolicyTerm {
    let weight = hold(ratio.value, 1.0 - config.clip_low, 1.0 + config.clip_high);
    let slope = -advantage * weight;
    PolicyTerm { loss: slope * logp, dlogp: slope, is_clipped: weight != ratio.value, is_clipped_lower: false }
}

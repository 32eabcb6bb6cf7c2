//! The divergence from the reference as a part of the reward.

use crate::objective::KlKind;
use serde::{Deserialize, Serialize};

/// Added to counts before dividing by them, as in the reference.
const EPS: f64 = 1e-8;

/// `[reward.kl]`: the divergence from the reference, taken out of the reward token by token.
///
/// A reward is not differentiated: what pulls towards the reference is the estimator, which learns to avoid what costs. On the
/// policy's own samples K1 makes that the exact gradient of the divergence; the others are pulled elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardKl {
    /// Reward that a nat costs; 0 needs no reference.
    pub coef: f64,
    /// `k1` (`kl`), `k2` (`mse`), `k3` (`low_var_kl`) or `abs`.
    pub kind: KlKind,
    /// The divergence a token that `coef` is adapted towards; 0 leaves it as it is.
    pub target: f64,
    /// How slowly: in trajectories.
    pub horizon: f64,
}

impl Default for RewardKl {
    fn default() -> Self {
        RewardKl { coef: 0.0, kind: KlKind::K1, target: 0.0, horizon: 10_000.0 }
    }
}

/// What the divergence costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Penalties {
    /// What each token earns for it; negative where it diverges.
    pub extra: Vec<f64>,
    /// The mean over rows of each row's mean divergence, in nats.
    pub mean: f64,
}

/// What each trained token earns for its divergence from the reference.
///
/// **Math** −coef × KL(old_logp_t, reference_logp_t).
///
/// **Panics** if an input does not have one value a trained token.
pub fn penalties(kl: &RewardKl, lengths: &[usize], old_logp: &[f32], reference_logp: &[f32]) -> Penalties {
    let mut penalties = Penalties::default();
    let mut start = 0;
    for &length in lengths {
        let mut sum = 0.0;
        for t in start..start + length {
            let (divergence, _) = kl.kind.estimate(f64::from(old_logp[t]), f64::from(reference_logp[t]));
            penalties.extra.push(-kl.coef * divergence);
            sum += divergence;
        }
        penalties.mean += sum / (length as f64 + EPS);
        start += length;
    }
    penalties.mean /= lengths.len().max(1) as f64;
    penalties
}

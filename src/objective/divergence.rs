//! The divergence from the reference: its estimators, what each pulls towards as a loss, and the control of its weight.

use super::hold;
use ragen_models::math::exp;
use serde::{Deserialize, Serialize};

/// Log-ratios are held within ± this before they are exponentiated.
pub(super) const MAX_LOG_RATIO: f64 = 20.0;
/// K3 is held within ± this.
pub(super) const MAX_K3: f64 = 10.0;
/// A measured divergence changes a coefficient by at most this share of `trajectories / horizon`.
const MAX_CHANGE: f64 = 0.2;

/// An estimator of the divergence KL(policy ‖ reference), on log-probabilities a of the policy and b of the reference.
///
/// As numbers on the policy's own samples K1, K3 and `Unbiased` are right on average, K2 and `Abs` are not. As losses they are
/// differentiated token by token, and the mean of that is another matter; it is given for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlKind {
    /// a − b. As a loss its mean gradient is 0: noise that pulls nowhere. In the reward it is the right one.
    #[serde(alias = "kl")]
    K1,
    /// (a − b)² / 2. As a loss its mean gradient is exactly that of the divergence, on the policy's own samples.
    #[serde(alias = "mse")]
    K2,
    /// exp(b − a) − (b − a) − 1. As a loss its mean gradient is that of the other divergence, KL(reference ‖ policy): biased, but
    /// it pulls to the same place.
    #[default]
    #[serde(alias = "low_var_kl", alias = "low-var-kl")]
    K3,
    /// |a − b|. As a loss it pulls each token by its sign alone.
    Abs,
    /// The ratio to the sampling policy times K3. As a loss its mean gradient is exactly that of the divergence, also in later
    /// mini-batches, when the policy has left the one that sampled.
    Unbiased,
}

/// `[update.loss.kl]`: the penalty on leaving the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KlConfig {
    /// Weight of the penalty; 0 needs no reference.
    pub coef: f64,
    /// `k1` (`kl`), `k2` (`mse`), `k3` (`low_var_kl`), `abs` or `unbiased`. The published default is `k1`, which as a loss does
    /// not pull towards the reference; ours is `k3`.
    pub kind: KlKind,
    /// The divergence, averaged like the loss, that `coef` is adapted towards; 0 leaves it as it is.
    pub target: f64,
    /// How slowly: in trajectories.
    pub horizon: f64,
}

impl Default for KlConfig {
    fn default() -> Self {
        KlConfig { coef: 0.0, kind: KlKind::default(), target: 0.0, horizon: 10_000.0 }
    }
}

impl KlKind {
    /// The estimate for one token in nats, and its derivative with respect to `logp`; of `Unbiased` at ratio 1.
    ///
    /// **Source** J. Schulman, *Approximating KL divergence*, 2020.
    pub fn estimate(self, logp: f64, reference_logp: f64) -> (f64, f64) {
        self.estimate_at(1.0, logp, reference_logp)
    }

    /// [`KlKind::estimate`] where the policy's probability is `ratio` times the one that the token was sampled with, which only
    /// `Unbiased` looks at.
    ///
    /// **Math** ρ K3 has the derivative ρ K3 + ρ (1 − exp(b − a)) = ρ (a − b), whose mean over the sampling policy is that of
    /// (a − b) over the present one.
    pub fn estimate_at(self, ratio: f64, logp: f64, reference_logp: f64) -> (f64, f64) {
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
            KlKind::Unbiased => {
                // Not held at a small value: where K3 is largest the pull is needed most.
                let x = hold(-difference, -MAX_LOG_RATIO, MAX_LOG_RATIO);
                (ratio * (exp(x) - x - 1.0), -ratio * x)
            }
        }
    }
}

/// The coefficient after a step that measured a divergence over so many trajectories.
///
/// **Math** β (1 + clip(kl / target − 1, ±0.2) n / horizon); without a target it stays. A measurement that is no number counts
/// as none.
///
/// **Source** Ziegler et al., arXiv:1909.08593, section 2.2.
pub fn adapt(coef: f64, (target, horizon): (f64, f64), measured: f64, trajectories: usize) -> f64 {
    if target <= 0.0 || !measured.is_finite() {
        return coef;
    }
    let error = hold(measured / target - 1.0, -MAX_CHANGE, MAX_CHANGE);
    coef * (1.0 + error * trajectories as f64 / horizon)
}

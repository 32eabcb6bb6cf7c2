//! Advantages: how much better each trained token did than expected.
//!
//! Pure functions on host slices, one value a trained token. Tokens that the policy did not sample are absent, which is
//! how the estimators treat masked ones: an advantage passes over them without decay.

use serde::{Deserialize, Serialize};

/// How advantages are estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Generalised advantage estimation over a value head (PPO).
    #[default]
    Gae,
    /// A trajectory's score relative to its group's.
    Grpo,
}

/// `[algorithm]`: the advantage estimator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlgorithmConfig {
    /// `gae` (PPO; needs a value head) or `grpo`.
    pub estimator: Estimator,
    /// Discount from one trained token to the next (`gae`).
    pub gamma: f64,
    /// Weight of longer returns: 0 looks one token ahead, 1 sums up to the end (`gae`).
    pub lambda: f64,
    /// Divide by the group's standard deviation (`grpo`); false is Dr. GRPO.
    pub norm_by_std: bool,
    /// Added to the standard deviation before dividing (`grpo`).
    pub epsilon: f64,
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        AlgorithmConfig { estimator: Estimator::Gae, gamma: 1.0, lambda: 1.0, norm_by_std: true, epsilon: 1e-6 }
    }
}

//! Which groups of a rollout are trained on.
//!
//! Pure functions on host slices: a score for every group, then a selection by rank. This module does not know what a
//! reward means, nor what happens to an empty selection (the trainer skips the update and says so).
//!
//! **Source** RAGEN (arXiv:2504.20073), uncertainty-based filtering, and RAGEN-2, reward-variance filtering.

use serde::{Deserialize, Serialize};

/// How many of the ranked groups are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The first groups that together hold the share `value` of the score (see [`TopPMode`]).
    #[default]
    #[serde(alias = "top-p")]
    TopP,
    /// The share `value` of all groups, at least one.
    #[serde(alias = "top-k")]
    TopK,
    /// `value` groups, at least one.
    #[serde(alias = "top-k-abs")]
    TopKAbs,
    /// Groups whose score reaches the share `value` of the best one.
    #[serde(alias = "min-p")]
    MinP,
}

/// Which end of the ranking is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Groups with the largest scores.
    #[default]
    Largest,
    /// Groups with the smallest scores.
    Smallest,
}

/// What a group is scored by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Standard deviation (n − 1) of its trajectories' rewards. The name is the field's; it is no variance.
    #[default]
    #[serde(alias = "reward_std", alias = "reward-variance", alias = "reward-std")]
    RewardVariance,
    /// Mean reward.
    Reward,
    /// Sum of the rewards.
    #[serde(alias = "reward-sum")]
    RewardSum,
    /// Mean number of trained tokens.
    Length,
    /// Mean token entropy.
    Entropy,
    /// Standard deviation (n − 1) of the trajectories' mean token entropies.
    #[serde(alias = "entropy_std", alias = "entropy-variance", alias = "entropy-std")]
    EntropyVariance,
}

/// What `top_p` takes the share of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopPMode {
    /// The sum of the scores.
    #[default]
    Linear,
    /// The softmax of the scores.
    Softmax,
}

/// `[filter]`: which groups of a rollout are trained on. The default passes everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilterConfig {
    /// How many of the ranked groups are kept: `top_p`, `top_k`, `top_k_abs` or `min_p`.
    pub strategy: Strategy,
    /// The share or number that the strategy takes. `top_p` with 1 or more keeps every group.
    pub value: f64,
    /// Which end of the ranking is kept: `largest` or `smallest`.
    pub kind: Kind,
    /// What a group is scored by: `reward_variance`, `reward`, `reward_sum`, `length`, `entropy`, `entropy_variance`.
    pub metric: Metric,
    /// Groups whose score is 0 take part in the ranking.
    pub include_zero: bool,
    /// What `top_p` takes the share of: `linear` or `softmax`.
    pub top_p_prob_mode: TopPMode,
    /// Slack below the share of `top_p` with `linear`, in units of the score; a batch with less score in all is empty.
    pub selection_eps: f64,
    /// Training stops after so many empty selections in a row; 0 never.
    pub empty_stop_steps: u64,
}

impl Default for FilterConfig {
    fn default() -> Self {
        FilterConfig {
            strategy: Strategy::TopP,
            value: 1.0,
            kind: Kind::Largest,
            metric: Metric::RewardVariance,
            include_zero: true,
            top_p_prob_mode: TopPMode::Linear,
            selection_eps: 0.01,
            empty_stop_steps: 5,
        }
    }
}

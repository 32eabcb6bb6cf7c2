//! From what an episode earned to the score that it is trained on.
//!
//! Pure functions on host slices. This module does not know where rewards come from, nor what a score becomes (see
//! [`crate::estimator`]).

use serde::{Deserialize, Serialize};

/// Which trajectories are normalised together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// Those of one group (one environment seed).
    #[default]
    State,
    /// Those of one environment tag.
    Inductive,
    /// All of the step.
    Batch,
}

/// How the scores of a set are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Not at all.
    #[default]
    Identity,
    /// Less their mean.
    Mean,
    /// Less their mean, over their standard deviation; 0 where there is no spread.
    #[serde(alias = "mean-std")]
    MeanStd,
    /// `mean_std`, then held within −1 and 3.
    #[serde(alias = "asym-clip")]
    AsymClip,
}

/// `[reward]`: normalisation of the trajectories' scores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardConfig {
    /// Which trajectories are normalised together: `state`, `inductive` or `batch`.
    pub grouping: Grouping,
    /// How: `identity`, `mean`, `mean_std` or `asym_clip`. The filter always reads scores that are not normalised.
    pub method: Method,
}

//! From what an episode earned to the score that it is trained on.
//!
//! Pure functions on host slices. This module does not know where rewards come from, nor what a score becomes (see
//! [`crate::estimator`]).

use crate::statistics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A smaller standard deviation counts as none; also added before dividing by one.
const MIN_STD: f64 = 1e-6;

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

/// The scores that advantages are estimated from: normalised within each set of trajectories.
///
/// `scores` holds each trajectory's rewards and penalties in all, `groups` and `tags` where it was played. When every
/// trajectory is a set of its own nothing is normalised; a single trajectory among larger sets becomes 0.
///
/// **Panics** if the lengths differ.
pub fn normalise(config: &RewardConfig, scores: &[f64], groups: &[usize], tags: &[&str]) -> Vec<f64> {
    assert!(scores.len() == groups.len() && scores.len() == tags.len(), "one group and one tag a score");
    let mut sets: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
    for i in 0..scores.len() {
        let set = match config.grouping {
            Grouping::State => (groups[i], ""),
            Grouping::Inductive => (0, tags[i]),
            Grouping::Batch => (0, ""),
        };
        sets.entry(set).or_default().push(i);
    }
    let mut normalised = scores.to_vec();
    if config.method == Method::Identity || sets.len() == scores.len() {
        return normalised;
    }
    for members in sets.values() {
        let set: Vec<f64> = members.iter().map(|&i| scores[i]).collect();
        let (mean, std) = (statistics::mean(&set), statistics::sample_std(&set));
        for &i in members {
            let centred = scores[i] - mean;
            let standardised = if std > MIN_STD { centred / (std + MIN_STD) } else { 0.0 };
            normalised[i] = match config.method {
                Method::Identity => scores[i],
                Method::Mean => centred,
                Method::MeanStd => standardised,
                Method::AsymClip => standardised.clamp(-1.0, 3.0),
            };
        }
    }
    normalised
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_and_broken_scores_do_no_harm() {
        let config = RewardConfig { grouping: Grouping::State, method: Method::AsymClip };
        let normal = normalise(&config, &[1.0, 2.0, 7.0], &[0, 0, 1], &["A"; 3]);
        assert!((normal[1] - 0.5f64.sqrt()).abs() < 1e-5 && normal[2] == 0.0, "{normal:?}");
        assert!(normalise(&config, &[], &[], &[]).is_empty());
        // A set with a score that is no number has no spread that could be divided by.
        assert_eq!(normalise(&config, &[f64::NAN, 2.0, 7.0, 7.0], &[0, 0, 1, 1], &["A"; 4]), [0.0; 4]);
    }

    #[test]
    fn settings_are_read_by_name() {
        let config: RewardConfig = serde_json::from_str(r#"{"method": "asym-clip", "grouping": "batch"}"#).unwrap();
        assert_eq!(config, RewardConfig { grouping: Grouping::Batch, method: Method::AsymClip });
        assert!(serde_json::from_str::<RewardConfig>(r#"{"methode": "mean"}"#).is_err());
    }
}

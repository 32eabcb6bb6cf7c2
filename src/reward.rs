//! From what an episode earned to the score that it is trained on.
//!
//! Pure functions on host slices. This module does not know where rewards come from, nor what a score becomes: the
//! estimators, a floor above, make advantages of it. `divergence` takes KL out of the reward, `reference` has the masks and
//! the placement of scores that the published code uses, for whoever compares.

use crate::policy::Finish;
use crate::statistics;
use crate::trajectory::{Trajectory, Turn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod divergence;
pub mod reference;

pub use divergence::{Penalties, RewardKl, penalties};

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

/// Where a trajectory's score is earned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// All of it at the trajectory's end.
    #[default]
    Trajectory,
    /// Each turn's part at the end of that turn.
    Turn,
}

/// `[reward]`: from rewards to the score that is trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardConfig {
    /// Which trajectories are normalised together: `state`, `inductive` or `batch`.
    pub grouping: Grouping,
    /// How: `identity`, `mean`, `mean_std` or `asym_clip`. The filter always reads scores that are not normalised.
    pub method: Method,
    /// Where the score is earned: at the end of the `trajectory`, or each `turn`'s part at its own end.
    pub placement: Placement,
    /// A response pays for what it has above `rollout.response_tokens` less this; 0 is off.
    pub overlong_buffer_tokens: usize,
    /// What a response as long as it may be pays.
    pub overlong_penalty: f64,
    /// What a token of reasoning pays.
    pub think_cost: f64,
    /// The divergence from the reference, taken out of the reward.
    pub kl: RewardKl,
}

impl Default for RewardConfig {
    fn default() -> Self {
        RewardConfig {
            grouping: Grouping::State,
            method: Method::Identity,
            placement: Placement::Trajectory,
            overlong_buffer_tokens: 0,
            overlong_penalty: 1.0,
            think_cost: 0.0,
            kl: RewardKl::default(),
        }
    }
}

/// What a response of `n_tokens` pays for its length, where at most `limit` are sampled; 0 or negative.
///
/// **Math** −penalty × min(1, (n − (limit − buffer)) / buffer) above limit − buffer, else 0.
///
/// **Source** Yu et al., arXiv:2503.14476 (DAPO), equation 13.
pub fn overlong(config: &RewardConfig, n_tokens: usize, limit: usize) -> f64 {
    let buffer = config.overlong_buffer_tokens;
    let over = n_tokens.saturating_sub(limit.saturating_sub(buffer));
    if buffer == 0 || over == 0 { 0.0 } else { -config.overlong_penalty * (over as f64 / buffer as f64).min(1.0) }
}

/// What a turn pays for its reasoning; 0 or negative. A response without a closed reasoning has none to pay for.
///
/// **Math** −`think_cost` × tokens between the thinking tags.
pub fn thinking(config: &RewardConfig, turn: &Turn) -> f64 {
    turn.reasoning.as_ref().map_or(0.0, |z| -config.think_cost * z.len() as f64)
}

/// What each turn of a trajectory is trained on before normalisation: reward, format penalty, and what its length costs.
pub fn turn_scores(config: &RewardConfig, trajectory: &Trajectory, response_tokens: usize) -> Vec<f64> {
    let score = |turn: &Turn| {
        let length = overlong(config, turn.response.len(), response_tokens) + thinking(config, turn);
        turn.played.reward + turn.played.penalty + length
    };
    trajectory.turns.iter().map(score).collect()
}

/// Whether a response of the trajectory was cut where no more could be sampled.
pub fn is_cut(trajectory: &Trajectory) -> bool {
    trajectory.turns.iter().any(|turn| turn.finish != Finish::Stop)
}

/// A trajectory's score after normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalised {
    /// The score.
    pub score: f64,
    /// What a unit of reward became; the rest of the score is the same wherever in the trajectory it is earned.
    pub scale: f64,
}

impl Normalised {
    /// The rewards of the trajectory's turns after normalisation: scaled as the score is, and what the score has beside at the
    /// end. They sum to the score.
    pub fn turns(&self, rewards: &[f64]) -> Vec<f64> {
        let mut turns: Vec<f64> = rewards.iter().map(|reward| self.scale * reward).collect();
        let rest = self.score - turns.iter().sum::<f64>();
        turns.iter_mut().next_back().into_iter().for_each(|last| *last += rest);
        turns
    }
}

/// The scores that advantages are estimated from: normalised within each set of trajectories.
///
/// `scores` holds each trajectory's rewards and penalties in all, `groups` and `tags` where it was played. When every
/// trajectory is a set of its own nothing is normalised; a single trajectory among larger sets becomes 0.
///
/// **Panics** if the lengths differ.
pub fn normalise(config: &RewardConfig, scores: &[f64], groups: &[usize], tags: &[&str]) -> Vec<Normalised> {
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
    let mut normalised: Vec<Normalised> = scores.iter().map(|&score| Normalised { score, scale: 1.0 }).collect();
    if config.method == Method::Identity || sets.len() == scores.len() {
        return normalised;
    }
    for members in sets.values() {
        let set: Vec<f64> = members.iter().map(|&i| scores[i]).collect();
        let (mean, std) = (statistics::mean(&set), statistics::sample_std(&set));
        for &i in members {
            let centred = scores[i] - mean;
            let (standardised, scale) =
                if std > MIN_STD { (centred / (std + MIN_STD), 1.0 / (std + MIN_STD)) } else { (0.0, 0.0) };
            let (score, scale) = match config.method {
                Method::Identity => (scores[i], 1.0),
                Method::Mean => (centred, 1.0),
                Method::MeanStd => (standardised, scale),
                Method::AsymClip => (standardised.clamp(-1.0, 3.0), scale),
            };
            normalised[i] = Normalised { score, scale };
        }
    }
    normalised
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(normalised: Vec<Normalised>) -> Vec<f64> {
        normalised.into_iter().map(|n| n.score).collect()
    }

    #[test]
    fn lone_and_broken_scores_do_no_harm() {
        let config = RewardConfig { method: Method::AsymClip, ..RewardConfig::default() };
        let normal = scores(normalise(&config, &[1.0, 2.0, 7.0], &[0, 0, 1], &["A"; 3]));
        assert!((normal[1] - 0.5f64.sqrt()).abs() < 1e-5 && normal[2] == 0.0, "{normal:?}");
        assert!(normalise(&config, &[], &[], &[]).is_empty());
        // A set with a score that is no number has no spread that could be divided by.
        assert_eq!(scores(normalise(&config, &[f64::NAN, 2.0, 7.0, 7.0], &[0, 0, 1, 1], &["A"; 4])), [0.0; 4]);
    }

    #[test]
    fn turns_keep_their_proportion_and_sum_to_the_score() {
        let rewards = [[0.5, 0.0, 10.0], [-0.1, -0.1, 0.0]];
        let totals = rewards.map(|turns| turns.iter().sum::<f64>());
        for method in [Method::Identity, Method::Mean, Method::MeanStd, Method::AsymClip] {
            let config = RewardConfig { method, ..RewardConfig::default() };
            let normalised = normalise(&config, &totals, &[0, 0], &["A"; 2]);
            for (n, rewards) in normalised.iter().zip(&rewards) {
                let turns = n.turns(rewards);
                assert!((turns.iter().sum::<f64>() - n.score).abs() < 1e-12, "{method:?}");
                assert_eq!(turns[..2], [n.scale * rewards[0], n.scale * rewards[1]], "{method:?}");
            }
            assert_eq!(normalised[0].scale == 1.0, matches!(method, Method::Identity | Method::Mean));
        }
        assert!(Normalised { score: 1.0, scale: 1.0 }.turns(&[]).is_empty());
    }

    #[test]
    fn length_costs_from_the_buffer_to_the_limit() {
        let config = RewardConfig { overlong_buffer_tokens: 4, overlong_penalty: 2.0, ..RewardConfig::default() };
        let cost = [0, 6, 7, 8, 10, 12].map(|n| overlong(&config, n, 10));
        assert_eq!(cost, [0.0, 0.0, -0.5, -1.0, -2.0, -2.0]);
        assert_eq!(overlong(&RewardConfig::default(), 10, 10), 0.0);
    }

    #[test]
    fn every_token_of_a_closed_reasoning_costs() {
        let config = RewardConfig { think_cost: 0.25, ..RewardConfig::default() };
        let turn = |reasoning: Option<std::ops::Range<usize>>| Turn {
            observation: String::new(),
            state_hash: 0,
            row: 0,
            shown_from: 0,
            prompt: 0..4,
            response: 4..12,
            reasoning,
            text: String::new(),
            finish: Finish::Stop,
            format_ok: true,
            played: crate::trajectory::Played { reward: 1.0, penalty: -0.5, ..Default::default() },
        };
        let trajectory = Trajectory { turns: vec![turn(Some(5..8)), turn(None)], ..Trajectory::default() };
        assert_eq!(turn_scores(&config, &trajectory, 100), [1.0 - 0.5 - 0.75, 1.0 - 0.5]);
        assert_eq!(turn_scores(&RewardConfig::default(), &trajectory, 100), [0.5, 0.5]);
    }

    #[test]
    fn settings_are_read_by_name() {
        let config: RewardConfig = serde_json::from_str(r#"{"method": "asym-clip", "grouping": "batch"}"#).unwrap();
        let wanted = RewardConfig { grouping: Grouping::Batch, method: Method::AsymClip, ..RewardConfig::default() };
        assert_eq!(config, wanted);
        assert!(serde_json::from_str::<RewardConfig>(r#"{"methode": "mean"}"#).is_err());
    }
}

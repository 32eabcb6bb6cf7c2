//! Evaluation: success and reward of a policy on fixed levels that it was never trained on.

use crate::agent_proxy::{Play, Rollout, RolloutError, play};
use crate::env_manager::EnvManager;
use crate::env_manager::metrics::Metrics;
use crate::policy::Policy;
use crate::trajectory::Trajectory;
use ragen_models::random::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a policy did on one tag.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TagScore {
    /// Whole episodes.
    pub episodes: usize,
    /// Share of them that ended well.
    pub success: f64,
    /// Mean sum of rewards, penalties apart.
    pub reward: f64,
    /// Share of turns of the required form that named no unknown action.
    pub format_valid: f64,
    /// Share of groups of which at least one member ended well: pass@k for k the group size, where no member was dropped.
    pub pass_at_k: f64,
    /// pass@k by k: 1, 2, 4, … and the size of the largest group. See [`pass_at`].
    #[serde(default)]
    pub pass_at: BTreeMap<usize, f64>,
}

/// An evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// By tag.
    pub tags: BTreeMap<String, TagScore>,
    /// The rollouts' metrics, each the mean over rounds.
    pub metrics: Metrics,
    /// What was played, a rollout a round.
    pub rollouts: Vec<Rollout>,
}

impl Evaluation {
    /// Share of all episodes that ended well.
    pub fn success(&self) -> f64 {
        self.metrics.get("success").copied().unwrap_or(0.0)
    }
}

/// Plays the validation levels `rounds` times, each round on seeds of its own.
///
/// The random numbers depend on `seed` and the round only, so that two evaluations of one policy are equal and those of
/// two policies compare.
pub fn evaluate(
    policy: &mut dyn Policy,
    envs: &mut EnvManager,
    how: Play<'_>,
    rounds: u64,
    seed: u64,
) -> Result<Evaluation, RolloutError> {
    let mut evaluation = Evaluation::default();
    for round in 0..rounds.max(1) {
        let broken = envs.reset_round(round)?;
        let key = Key::new(seed).named("validation").with(round);
        evaluation.rollouts.push(play(policy, envs, broken, how, key)?);
    }
    let n_rounds = evaluation.rollouts.len() as f64;
    for (name, value) in evaluation.rollouts.iter().flat_map(|rollout| &rollout.metrics) {
        *evaluation.metrics.entry(name.clone()).or_default() += value / n_rounds;
    }
    let mut by_tag: BTreeMap<&str, Vec<(u64, &Trajectory)>> = BTreeMap::new();
    for (round, rollout) in (0u64..).zip(&evaluation.rollouts) {
        for trajectory in &rollout.trajectories {
            by_tag.entry(&trajectory.tag).or_default().push((round, trajectory));
        }
    }
    let scores = by_tag.into_iter().map(|(tag, played)| (tag.to_string(), score(&played)));
    evaluation.tags = scores.collect();
    Ok(evaluation)
}

/// How the trajectories of one tag went; each comes with its round.
fn score(played: &[(u64, &Trajectory)]) -> TagScore {
    let n = played.len().max(1) as f64;
    // Members and successes of each group.
    let mut groups: BTreeMap<(u64, usize), (usize, usize)> = BTreeMap::new();
    for (round, t) in played {
        let (members, successes) = groups.entry((*round, t.group)).or_default();
        *members += 1;
        *successes += usize::from(t.outcome.success);
    }
    let groups: Vec<(usize, usize)> = groups.into_values().collect();
    let largest = groups.iter().map(|(members, _)| *members).max().unwrap_or(0);
    let powers = std::iter::successors(Some(1), |k| Some(2 * k)).take_while(|k| *k < largest);
    let turns = played.iter().flat_map(|(_, t)| &t.turns);
    let valid = turns.clone().filter(|turn| turn.is_valid()).count();
    TagScore {
        episodes: played.len(),
        success: played.iter().filter(|(_, t)| t.outcome.success).count() as f64 / n,
        reward: played.iter().map(|(_, t)| t.reward()).sum::<f64>() / n,
        format_valid: valid as f64 / turns.count().max(1) as f64,
        pass_at_k: groups.iter().filter(|(_, c)| *c > 0).count() as f64 / groups.len().max(1) as f64,
        pass_at: powers.chain([largest]).map(|k| (k, pass_at(&groups, k))).collect(),
    }
}

/// pass@k: how probable it is that at least one of `k` members of a group ends well; the mean over groups, each given by how many
/// members it has and how many of them ended well. Groups of fewer than `k` members tell nothing and are left out.
///
/// **Math** of n members with c successes 1 − C(n − c, k) / C(n, k), which is unbiased, = 1 − Π_{i = n−c+1}^{n} (1 − k/i).
///
/// **Source** Chen et al., arXiv:2107.03374, equation 1.
pub fn pass_at(groups: &[(usize, usize)], k: usize) -> f64 {
    let of = |&(n, c): &(usize, usize)| match n - c < k {
        true => 1.0,
        false => 1.0 - (n - c + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>(),
    };
    let told: Vec<f64> = groups.iter().filter(|(n, _)| *n >= k).map(of).collect();
    told.iter().sum::<f64>() / told.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// n over k as a whole number.
    fn choose(n: usize, k: usize) -> u64 {
        if k > n { 0 } else { (1..=k as u64).fold(1, |product, i| product * (n as u64 - k as u64 + i) / i) }
    }

    #[test]
    fn pass_at_k_is_the_share_of_draws_with_a_success() {
        for n in 1..=12 {
            for c in 0..=n {
                for k in 1..=n {
                    let want = 1.0 - choose(n - c, k) as f64 / choose(n, k) as f64;
                    assert!((pass_at(&[(n, c)], k) - want).abs() < 1e-12, "{n} {c} {k}");
                }
            }
        }
        // By hand: of 4 with 1 success two draws find it in 3 of 6 pairs.
        assert!((pass_at(&[(4, 1), (4, 4), (4, 0)], 2) - 0.5).abs() < 1e-12);
        assert_eq!(pass_at(&[(1, 0), (2, 1)], 2), 1.0, "a group of one cannot tell pass@2");
        assert_eq!(pass_at(&[], 1), 0.0);
    }

    #[test]
    fn groups_of_a_round_are_groups_of_their_own() {
        let played = |group: usize, success: bool| {
            let mut t = Trajectory { group, ..Trajectory::default() };
            t.outcome.success = success;
            t
        };
        let trajectories = [played(0, true), played(0, false), played(0, false), played(0, false)];
        let score = score(&[0, 0, 1, 1].into_iter().zip(&trajectories).collect::<Vec<_>>());
        assert_eq!(score.pass_at, BTreeMap::from([(1, 0.25), (2, 0.5)]));
        assert_eq!((score.pass_at_k, score.success), (0.5, 0.25));
    }
}

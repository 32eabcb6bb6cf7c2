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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TagScore {
    /// Whole episodes.
    pub episodes: usize,
    /// Share of them that ended well.
    pub success: f64,
    /// Mean sum of rewards, penalties apart.
    pub reward: f64,
    /// Share of turns of the required form that named no unknown action.
    pub format_valid: f64,
    /// Share of groups of which at least one member ended well; k is the group size.
    pub pass_at_k: f64,
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
    let mut groups: BTreeMap<(u64, usize), bool> = BTreeMap::new();
    for (round, t) in played {
        *groups.entry((*round, t.group)).or_default() |= t.outcome.success;
    }
    let turns = played.iter().flat_map(|(_, t)| &t.turns);
    let valid = turns.clone().filter(|turn| turn.is_valid()).count();
    TagScore {
        episodes: played.len(),
        success: played.iter().filter(|(_, t)| t.outcome.success).count() as f64 / n,
        reward: played.iter().map(|(_, t)| t.reward()).sum::<f64>() / n,
        format_valid: valid as f64 / turns.count().max(1) as f64,
        pass_at_k: groups.values().filter(|passed| **passed).count() as f64 / groups.len().max(1) as f64,
    }
}

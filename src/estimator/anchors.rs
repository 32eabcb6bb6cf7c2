//! Group-in-group comparison: of trajectories in a group, and of turns that started from the same state.

use super::groups::{compare, spread, sums_by_turn, turn_returns};
use super::{Advantages, Baseline, Comparison, Inputs};
use std::collections::BTreeMap;

/// Each trajectory's score against its group's, and beside it each turn's return against those of all turns in the group that
/// started from the same state, its anchor.
///
/// **Math** A = A_E + ω A_S. A_E is [`compare`] of scores. A_S compares G_k = r_k + γ_turn G_{k+1} in the same way over the
/// turns of one anchor; a turn that stands alone counts 0 there.
///
/// **Source** Feng et al., arXiv:2505.10978, equations 3, 7 and 8.
pub fn gigpo(inputs: &Inputs<'_>, comparison: Comparison, step_weight: f64, turn_gamma: f64) -> Advantages {
    let trajectories = inputs.trajectories;
    let mut advantages = compare(inputs, comparison);
    let extra = sums_by_turn(trajectories, inputs.extra);
    let returns: Vec<Vec<f64>> =
        trajectories.iter().zip(&extra).map(|(t, extra)| turn_returns(t, extra, turn_gamma)).collect();
    let mut anchors: BTreeMap<(usize, u64), Vec<(usize, usize)>> = BTreeMap::new();
    for (i, trajectory) in trajectories.iter().enumerate() {
        for (k, turn) in trajectory.turns.iter().enumerate() {
            anchors.entry((trajectory.group, turn.state)).or_default().push((i, k));
        }
    }
    let mut of_turn: Vec<Vec<f64>> = returns.iter().map(|returns| vec![0.0; returns.len()]).collect();
    for turns in anchors.values().filter(|turns| turns.len() > 1) {
        let baseline = Baseline::of(&turns.iter().map(|&(i, k)| returns[i][k]).collect::<Vec<_>>());
        for &(i, k) in turns {
            of_turn[i][k] = step_weight * baseline.advantage(returns[i][k], comparison);
        }
    }
    let steps = spread(trajectories, &of_turn);
    advantages.advantage.iter_mut().zip(steps).for_each(|(advantage, step)| *advantage += step);
    advantages.n_anchors = anchors.len();
    advantages.n_lone_anchors = anchors.values().filter(|turns| turns.len() == 1).count();
    advantages
}

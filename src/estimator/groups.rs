//! Advantages by comparison with the other members of a group: GRPO, Dr. GRPO, RLOO, and the baseline of REINFORCE++.

use super::{Advantages, Inputs, Scored};
use crate::statistics;
use std::collections::BTreeMap;

/// How a score is set against those of its group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Comparison {
    /// Less the mean, over the standard deviation and ε (GRPO).
    Standardised {
        /// Added to the standard deviation.
        epsilon: f64,
    },
    /// Less the mean (Dr. GRPO, REINFORCE++ with a baseline).
    Centred,
    /// Less the mean of the others (RLOO).
    LeaveOneOut,
}

/// Mean and spread of the scores of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Baseline {
    /// Scores.
    pub n: usize,
    /// Their mean; 0 for a single one.
    pub mean: f64,
    /// Their unbiased standard deviation; 1 for a single one.
    pub std: f64,
}

impl Baseline {
    /// Of these scores. A single one has mean 0 and standard deviation 1, so its advantage is its raw score; equal ones have
    /// exactly no spread.
    pub fn of(scores: &[f64]) -> Baseline {
        match scores.len() {
            1 => Baseline { n: 1, mean: 0.0, std: 1.0 },
            n => Baseline { n, mean: statistics::mean(scores), std: statistics::sample_std(scores) },
        }
    }

    /// The advantage of a score.
    ///
    /// **Math** `Standardised`: (s − mean) / (std + ε); `Centred`: s − mean; `LeaveOneOut`: n/(n−1) (s − mean), which is s less
    /// the mean of the others.
    ///
    /// **Source** Shao et al., arXiv:2402.03300, section 4.1.2 (GRPO); Liu et al., arXiv:2503.20783 (Dr. GRPO); Ahmadian et
    /// al., arXiv:2402.14740 (RLOO).
    pub fn advantage(&self, score: f64, comparison: Comparison) -> f64 {
        let centred = score - self.mean;
        match comparison {
            Comparison::Standardised { epsilon } => centred / (self.std + epsilon),
            Comparison::LeaveOneOut if self.n > 1 => centred * self.n as f64 / (self.n - 1) as f64,
            Comparison::Centred | Comparison::LeaveOneOut => centred,
        }
    }
}

/// The members of each group, as indices.
pub(super) fn members(trajectories: &[Scored]) -> BTreeMap<usize, Vec<usize>> {
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, trajectory) in trajectories.iter().enumerate() {
        members.entry(trajectory.group).or_default().push(i);
    }
    members
}

/// Sums of a token slice by turns: one sum a turn of each trajectory; zeros for an empty slice.
pub(super) fn sums_by_turn(trajectories: &[Scored], tokens: &[f64]) -> Vec<Vec<f64>> {
    let mut start = 0;
    let mut sum = |n_tokens: usize| {
        let end = start + n_tokens;
        let sum = if tokens.is_empty() { 0.0 } else { tokens[start..end].iter().sum() };
        start = end;
        sum
    };
    trajectories.iter().map(|t| t.turns.iter().map(|turn| sum(turn.n_tokens)).collect()).collect()
}

/// Each trajectory's score against those of its group, the same for all of its tokens.
pub fn compare(inputs: &Inputs<'_>, comparison: Comparison) -> Advantages {
    let trajectories = inputs.trajectories;
    let extra = sums_by_turn(trajectories, inputs.extra);
    let score = |i: usize| trajectories[i].score + extra[i].iter().sum::<f64>();
    let (mut of_trajectory, mut group_std) = (vec![0.0; trajectories.len()], vec![0.0; trajectories.len()]);
    let members = members(trajectories);
    for members in members.values() {
        let scores: Vec<f64> = members.iter().map(|&i| score(i)).collect();
        let baseline = Baseline::of(&scores);
        for (&i, &score) in members.iter().zip(&scores) {
            of_trajectory[i] = baseline.advantage(score, comparison);
            group_std[i] = baseline.std;
        }
    }
    let tokens = trajectories.iter().zip(of_trajectory).flat_map(|(t, a)| std::iter::repeat_n(a, t.n_tokens()));
    Advantages {
        advantage: tokens.collect(),
        group_std,
        n_singletons: members.values().filter(|members| members.len() == 1).count(),
        ..Advantages::default()
    }
}

/// The returns from each turn on.
///
/// **Math** G_k = r_k + γ_turn G_{k+1}, with what the turn's tokens earned beside in r_k.
pub(super) fn turn_returns(trajectory: &Scored, extra: &[f64], turn_gamma: f64) -> Vec<f64> {
    let rewards: Vec<f64> = trajectory.turns.iter().zip(extra).map(|(turn, extra)| turn.reward + extra).collect();
    super::discounted(&rewards, turn_gamma)
}

/// Each turn's return against the returns of its group from that turn on, the same for all tokens of the turn.
///
/// A trajectory that has ended by then earns nothing more: it takes part with 0. So every turn is compared with all members of
/// the group, and the first one as [`compare`] does if γ_turn is 1. `group_std` is that of the first turn.
pub fn compare_turns(inputs: &Inputs<'_>, comparison: Comparison, turn_gamma: f64) -> Advantages {
    let trajectories = inputs.trajectories;
    let extra = sums_by_turn(trajectories, inputs.extra);
    let returns: Vec<Vec<f64>> =
        trajectories.iter().zip(&extra).map(|(t, extra)| turn_returns(t, extra, turn_gamma)).collect();
    let mut of_turn: Vec<Vec<f64>> = returns.iter().map(|returns| vec![0.0; returns.len()]).collect();
    let mut group_std = vec![0.0; trajectories.len()];
    let members = members(trajectories);
    for members in members.values() {
        let n_turns = members.iter().map(|&i| returns[i].len()).max().unwrap_or(0);
        for k in 0..n_turns.max(1) {
            // Without a turn there is only the score, which was had from the start.
            let from = |i: usize| match returns[i].get(k) {
                Some(&ret) => ret,
                None if k == 0 => trajectories[i].score,
                None => 0.0,
            };
            let baseline = Baseline::of(&members.iter().map(|&i| from(i)).collect::<Vec<_>>());
            for &i in members {
                if k == 0 {
                    group_std[i] = baseline.std;
                }
                if let Some(advantage) = of_turn[i].get_mut(k) {
                    *advantage = baseline.advantage(from(i), comparison);
                }
            }
        }
    }
    Advantages {
        advantage: spread(trajectories, &of_turn),
        group_std,
        n_singletons: members.values().filter(|members| members.len() == 1).count(),
        ..Advantages::default()
    }
}

/// One value a turn as one value a token.
pub(super) fn spread(trajectories: &[Scored], of_turn: &[Vec<f64>]) -> Vec<f64> {
    let turns = trajectories.iter().zip(of_turn).flat_map(|(t, values)| t.turns.iter().zip(values));
    turns.flat_map(|(turn, value)| std::iter::repeat_n(*value, turn.n_tokens)).collect()
}

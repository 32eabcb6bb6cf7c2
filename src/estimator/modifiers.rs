//! What may follow an estimator: advantages are reweighted as a whole, by group or by trajectory.

use super::{Advantages, AlgorithmConfig, Scored};
use crate::statistics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Keeps a division by a spread or a length of 0 finite, as in the reference.
const EPS: f64 = 1e-6;

/// How advantages shrink with the share of groups that the filter kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterLossScaling {
    /// Not at all.
    #[default]
    None,
    /// By the share.
    Linear,
    /// By its root.
    Sqrt,
}

/// The weights of groups under soft reweighting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftWeights {
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Their mean over groups.
    pub mean: f64,
}

/// Modifies estimated advantages as configured, in this order: soft reweighting, filter loss scaling, length weight, zero.
///
/// **Math** soft: × std_g / (max std + 1e-6), nothing without group statistics (all 0 where every group is flat); scaling:
/// × kept or √kept, `kept_ratio` being kept groups over all groups; length: ÷ ((n_i + 1e-6) / mean n) over trajectories.
///
/// Returns the soft weights, if there are any.
pub fn modify(
    config: &AlgorithmConfig,
    trajectories: &[Scored],
    kept_ratio: f64,
    advantages: &mut Advantages,
) -> Option<SoftWeights> {
    let mut weights = vec![1.0; trajectories.len()];
    let soft = config.soft_reweight && !advantages.group_std.is_empty();
    let soft = soft.then(|| soft_reweight(trajectories, &advantages.group_std, &mut weights));
    let scale = match config.filter_loss_scaling {
        FilterLossScaling::None => 1.0,
        FilterLossScaling::Linear => kept_ratio,
        FilterLossScaling::Sqrt => kept_ratio.sqrt(),
    };
    let lengths: Vec<f64> = trajectories.iter().map(|t| t.n_tokens() as f64).collect();
    let mean_length = statistics::mean(&lengths);
    let mut start = 0;
    for ((trajectory, weight), length) in trajectories.iter().zip(weights).zip(lengths) {
        let length_weight = if config.length_weight { (length + EPS) / mean_length } else { 1.0 };
        let tokens = start..start + trajectory.n_tokens();
        start = tokens.end;
        for advantage in &mut advantages.advantage[tokens] {
            *advantage = if config.zero_task_advantage { 0.0 } else { *advantage * weight * scale / length_weight };
        }
    }
    soft
}

/// Fills in each trajectory's weight.
fn soft_reweight(trajectories: &[Scored], group_std: &[f64], weights: &mut [f64]) -> SoftWeights {
    let of_group: BTreeMap<usize, f64> = trajectories.iter().map(|t| t.group).zip(group_std.iter().copied()).collect();
    let largest = statistics::max(group_std);
    let weight = |std: f64| std / (largest + EPS);
    weights.iter_mut().zip(group_std).for_each(|(to, std)| *to = weight(*std));
    let of_group: Vec<f64> = of_group.into_values().map(weight).collect();
    SoftWeights {
        min: of_group.iter().copied().fold(f64::INFINITY, f64::min),
        max: statistics::max(&of_group),
        mean: statistics::mean(&of_group),
    }
}

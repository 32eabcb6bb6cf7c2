//! Which groups of a rollout are trained on.
//!
//! Pure functions on host slices: a score for every group, then a selection by rank. This module does not know what a
//! reward means, nor what happens to an empty selection (the trainer skips the update and says so).
//!
//! **Source** RAGEN (arXiv:2504.20073), uncertainty-based filtering, and RAGEN-2, reward-variance filtering.

use crate::statistics;
use ragen_models::math::exp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Scores up to this far from 0 count as 0; also the slack of `min_p`, there for scores about 1.
const ZERO: f64 = 1e-10;

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

/// What the filter needs to know about one row of the rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The group that the row belongs to.
    pub group: usize,
    /// The trajectory that the row belongs to; several rows of one trajectory are gathered.
    pub trajectory: usize,
    /// The trajectory's rewards and penalties in all, not normalised. A trajectory's first row counts.
    pub reward: f64,
    /// Trained tokens of the row.
    pub n_tokens: usize,
    /// Mean entropy of the row's trained tokens, in nats; read by the entropy metrics only.
    pub entropy: f64,
}

/// One group of the rollout, as the filter saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Its id.
    pub group: usize,
    /// What it was ranked by.
    pub score: f64,
    /// Standard deviation (n − 1) of its trajectories' rewards.
    pub reward_std: f64,
    /// Whether it is trained on.
    pub kept: bool,
}

/// The filter's decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Filtered {
    /// Indices of the rows that stay, ascending.
    pub rows: Vec<usize>,
    /// Every group, by ascending id.
    pub groups: Vec<Group>,
    /// `rollout/…` metrics.
    pub metrics: Vec<(String, f64)>,
}

impl Filtered {
    /// How many groups stay.
    pub fn n_kept(&self) -> usize {
        self.groups.iter().filter(|group| group.kept).count()
    }
}

/// One trajectory, gathered from its rows.
struct Trajectory {
    reward: f64,
    n_tokens: usize,
    entropy_sum: f64,
    n_rows: usize,
}

/// A group's spread of the quantity that the metric looks at.
struct Spread {
    std: f64,
    max: f64,
    mean: f64,
    sum: f64,
}

/// Scores the groups of a rollout and selects those to train on.
///
/// Rows of one trajectory may stand anywhere; groups may differ in size (a broken episode is missing). Ties go to the
/// lower group id. **Deviations** the reference needs groups of equal size, one row each.
pub fn filter(config: &FilterConfig, rows: &[Measurement]) -> Filtered {
    let mut trajectories: BTreeMap<(usize, usize), Trajectory> = BTreeMap::new();
    for row in rows {
        let trajectory = trajectories.entry((row.group, row.trajectory)).or_insert(Trajectory {
            reward: row.reward,
            n_tokens: 0,
            entropy_sum: 0.0,
            n_rows: 0,
        });
        trajectory.n_tokens += row.n_tokens;
        trajectory.entropy_sum += row.entropy;
        trajectory.n_rows += 1;
    }
    let mut members: BTreeMap<usize, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for ((group, _), trajectory) in &trajectories {
        let (rewards, quantities) = members.entry(*group).or_default();
        rewards.push(trajectory.reward);
        quantities.push(match config.metric {
            Metric::RewardVariance | Metric::Reward | Metric::RewardSum => trajectory.reward,
            Metric::Length => trajectory.n_tokens as f64,
            Metric::Entropy | Metric::EntropyVariance => trajectory.entropy_sum / trajectory.n_rows as f64,
        });
    }
    let spreads: Vec<Spread> = members
        .values()
        .map(|(_, values)| Spread {
            std: statistics::sample_std(values),
            max: statistics::max(values),
            mean: statistics::mean(values),
            sum: values.iter().sum(),
        })
        .collect();
    let scores: Vec<f64> = spreads
        .iter()
        .map(|spread| match config.metric {
            Metric::RewardVariance | Metric::EntropyVariance => spread.std,
            Metric::Reward | Metric::Length | Metric::Entropy => spread.mean,
            Metric::RewardSum => spread.sum,
        })
        .collect();
    let mut groups: Vec<Group> = members
        .iter()
        .zip(&scores)
        .map(|((&group, (rewards, _)), &score)| Group {
            group,
            score,
            reward_std: statistics::sample_std(rewards),
            kept: false,
        })
        .collect();
    for rank in select(config, &scores) {
        groups[rank].kept = true;
    }
    let metrics = describe(config.metric, &groups, &spreads);
    let is_kept = |id: usize| groups.binary_search_by_key(&id, |group| group.group).is_ok_and(|i| groups[i].kept);
    Filtered { rows: (0..rows.len()).filter(|&row| is_kept(rows[row].group)).collect(), groups, metrics }
}

/// The indices of the scores that are selected, in order of rank; ties go to the lower index.
///
/// With `top_p`, a value of 1 or more and `include_zero` everything passes; otherwise a score that is not finite is never
/// selected, as it cannot be ranked.
pub fn select(config: &FilterConfig, scores: &[f64]) -> Vec<usize> {
    let passes_all = config.strategy == Strategy::TopP && config.value >= 1.0;
    if passes_all && config.include_zero {
        return (0..scores.len()).collect();
    }
    let takes_part = |score: f64| score.is_finite() && (config.include_zero || score.abs() > ZERO);
    let mut ranked: Vec<usize> = (0..scores.len()).filter(|&i| takes_part(scores[i])).collect();
    // Both sorts are stable, so equal scores stay in order of their index.
    match config.kind {
        Kind::Largest => ranked.sort_by(|&a, &b| scores[b].total_cmp(&scores[a])),
        Kind::Smallest => ranked.sort_by(|&a, &b| scores[a].total_cmp(&scores[b])),
    }
    let sorted: Vec<f64> = ranked.iter().map(|&i| scores[i]).collect();
    let n_kept = match config.strategy {
        Strategy::TopP if passes_all => sorted.len(),
        Strategy::TopP => match config.top_p_prob_mode {
            TopPMode::Linear => linear_prefix(&sorted, config.value, config.selection_eps),
            TopPMode::Softmax => softmax_prefix(&sorted, config.value, config.kind),
        },
        Strategy::TopK => ((config.value * scores.len() as f64).floor() as usize).max(1),
        Strategy::TopKAbs => (config.value.trunc() as usize).max(1),
        Strategy::MinP => {
            let best = sorted.first().copied().unwrap_or_default();
            // Grows with the scores, so that the best one is always within reach of itself.
            let slack = ZERO * best.abs().max(1.0);
            sorted
                .iter()
                .take_while(|&&score| match config.kind {
                    Kind::Largest => score >= best * config.value - slack,
                    Kind::Smallest => score <= best / (config.value + ZERO) + slack,
                })
                .count()
        }
    };
    ranked.truncate(n_kept);
    ranked
}

/// How many leading scores reach the share `value` of the sum, less `eps`; 0 if they cannot, or if there is nothing to
/// reach.
fn linear_prefix(sorted: &[f64], value: f64, eps: f64) -> usize {
    let threshold = value * sorted.iter().sum::<f64>() - eps;
    let mut reached = 0.0;
    let mut n_kept = 0;
    while reached < threshold && n_kept < sorted.len() && sorted[n_kept] > 0.0 {
        reached += sorted[n_kept];
        n_kept += 1;
    }
    if reached >= threshold { n_kept } else { 0 }
}

/// How many leading scores hold the share `value` of the softmax, at least one.
fn softmax_prefix(sorted: &[f64], value: f64, kind: Kind) -> usize {
    let sign = if kind == Kind::Largest { 1.0 } else { -1.0 };
    let logits: Vec<f64> = sorted.iter().map(|score| sign * score).collect();
    let mut cumulative = 0.0;
    for (i, logp) in statistics::log_softmax(&logits).into_iter().enumerate() {
        cumulative += exp(logp);
        if cumulative >= value {
            return i + 1;
        }
    }
    sorted.len()
}

/// The mean over all groups, and over those kept, of each group's spread, under the names of the published logs.
fn describe(metric: Metric, groups: &[Group], spreads: &[Spread]) -> Vec<(String, f64)> {
    let quantity = match metric {
        Metric::RewardVariance | Metric::Reward | Metric::RewardSum => "reward",
        Metric::Length => "length",
        Metric::Entropy | Metric::EntropyVariance => "entropy",
    };
    let mut metrics = Vec::new();
    for (prefix, only_kept) in [("in_group", false), ("chosen_in_group", true)] {
        let over = |field: fn(&Spread) -> f64| {
            let values: Vec<f64> =
                groups.iter().zip(spreads).filter(|(g, _)| g.kept || !only_kept).map(|(_, s)| field(s)).collect();
            statistics::mean(&values)
        };
        for (name, value) in [("std", over(|s| s.std)), ("max", over(|s| s.max)), ("mean", over(|s| s.mean))] {
            metrics.push((format!("rollout/{prefix}_{name}"), value));
            metrics.push((format!("rollout/{prefix}_{quantity}_{name}"), value));
        }
        if quantity == "reward" {
            metrics.push((format!("rollout/{prefix}_reward_sum"), over(|s| s.sum)));
        }
    }
    let n_kept = groups.iter().filter(|group| group.kept).count() as f64;
    metrics.push(("rollout/filter_kept_count".into(), n_kept));
    metrics.push(("rollout/filter_kept_ratio".into(), n_kept / groups.len().max(1) as f64));
    let n_zero = groups.iter().filter(|group| group.score.abs() <= ZERO).count();
    metrics.push(("rollout/filter_zero_count".into(), n_zero as f64));
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_models::random::Key;

    fn configs() -> Vec<FilterConfig> {
        let mut configs = Vec::new();
        for strategy in [Strategy::TopP, Strategy::TopK, Strategy::TopKAbs, Strategy::MinP] {
            for kind in [Kind::Largest, Kind::Smallest] {
                for (value, include_zero) in [(0.0, true), (0.5, false), (0.9, true), (1.0, false), (3.0, false)] {
                    for top_p_prob_mode in [TopPMode::Linear, TopPMode::Softmax] {
                        let selection_eps = 0.0;
                        let base = FilterConfig { strategy, value, kind, include_zero, ..FilterConfig::default() };
                        configs.push(FilterConfig { top_p_prob_mode, selection_eps, ..base });
                    }
                }
            }
        }
        configs
    }

    fn scores(key: Key, n: usize) -> Vec<f64> {
        (0..n as u64).map(|i| if key.below(i, 3) == 0 { 0.0 } else { key.uniform(100 + i) }).collect()
    }

    /// A selection is a subset without repeats; scaling all rewards changes nothing unless the softmax is asked for.
    #[test]
    fn selects_a_subset_whatever_the_scale() {
        for config in configs() {
            for i in 0..40 {
                let scores = scores(Key::new(3).with(i), i as usize % 9);
                let mut selected = select(&config, &scores);
                let scaled: Vec<f64> = scores.iter().map(|score| 8.0 * score).collect();
                if config.top_p_prob_mode == TopPMode::Linear {
                    assert_eq!(select(&config, &scaled), selected, "{config:?} {scores:?}");
                }
                selected.sort();
                assert!(selected.windows(2).all(|pair| pair[0] < pair[1]));
                assert!(selected.iter().all(|&g| g < scores.len() && (config.include_zero || scores[g] != 0.0)));
            }
        }
    }

    #[test]
    fn ties_go_to_the_lower_group() {
        let config = FilterConfig { strategy: Strategy::TopKAbs, value: 2.0, ..FilterConfig::default() };
        assert_eq!(select(&config, &[1.0, 2.0, 2.0, 2.0]), [1, 2]);
        let config = FilterConfig { strategy: Strategy::TopP, value: 0.5, selection_eps: 0.0, ..config };
        assert_eq!(select(&config, &[1.0, 1.0, 1.0, 1.0]), [0, 1]);
    }

    #[test]
    fn what_cannot_be_ranked_is_not_selected() {
        for config in configs() {
            let selected = select(&config, &[f64::NAN, 1.0, f64::INFINITY]);
            assert!(selected.iter().all(|&group| group == 1), "{config:?} selected {selected:?}");
            assert!(select(&config, &[]).is_empty());
        }
    }

    /// Sixteen rewards of −0.1 have no spread, exactly; a group of one has none either; nothing left is not a panic.
    #[test]
    fn flat_groups_are_zero_groups() {
        let row = |trajectory, group, reward| Measurement { group, trajectory, reward, n_tokens: 3, entropy: 0.0 };
        let mut rows: Vec<Measurement> = (0..16).map(|t| row(t, 4, -0.1)).collect();
        rows.push(row(16, 9, 5.0));
        let config = FilterConfig { include_zero: false, ..FilterConfig::default() };
        let filtered = filter(&config, &rows);
        assert_eq!((filtered.rows.len(), filtered.n_kept()), (0, 0));
        assert_eq!(filtered.metrics.iter().find(|m| m.0 == "rollout/filter_zero_count").map(|m| m.1), Some(2.0));
        assert!(filtered.metrics.iter().all(|metric| metric.1.is_finite()));
        assert_eq!(filter(&FilterConfig::default(), &rows).rows.len(), 17);
        assert!(filter(&config, &[]).rows.is_empty());
    }

    #[test]
    fn settings_are_read_by_name_and_pass_everything_by_default() {
        let config: FilterConfig =
            serde_json::from_str(r#"{"strategy": "top-k-abs", "metric": "reward_std", "kind": "smallest"}"#).unwrap();
        assert_eq!((config.strategy, config.metric), (Strategy::TopKAbs, Metric::RewardVariance));
        assert!(serde_json::from_str::<FilterConfig>(r#"{"strategy": "top_q"}"#).is_err());
        assert_eq!(select(&FilterConfig::default(), &[0.0, f64::NAN]), [0, 1]);
    }
}

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

/// The slack of `min_p`, in units of the best score.
const SLACK: f64 = 1e-10;

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
    /// Share of trajectories that ended well.
    Success,
    /// Standard deviation (n − 1) of success: 0 where all or none ended well.
    #[serde(alias = "success_std", alias = "success-variance", alias = "success-std")]
    SuccessVariance,
}

impl Metric {
    /// Whether a group is scored by the spread of its members, which one member does not have.
    pub fn is_spread(self) -> bool {
        matches!(self, Metric::RewardVariance | Metric::EntropyVariance | Metric::SuccessVariance)
    }

    /// Whether it looks at the policy's entropy, which must be computed for it.
    pub fn reads_entropy(self) -> bool {
        matches!(self, Metric::Entropy | Metric::EntropyVariance)
    }
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
    /// What a group is scored by: `reward_variance`, `reward`, `reward_sum`, `length`, `entropy`, `entropy_variance`,
    /// `success`, `success_variance`.
    pub metric: Metric,
    /// Groups whose score is exactly 0 take part in the ranking; a spread is 0 where all members are equal.
    pub include_zero: bool,
    /// Score what was measured as its place between the least and the most of the rollout, so that no choice of the reward's
    /// unit or zero changes what is kept.
    pub scale_free: bool,
    /// What `top_p` takes the share of: `linear` or `softmax`.
    pub top_p_prob_mode: TopPMode,
    /// Slack below the share of `top_p` with `linear`, in units of the score; a batch with less score in all is empty.
    pub selection_eps: f64,
    /// Training stops after so many empty selections in a row; 0 never.
    pub empty_stop_steps: u64,
    /// Rollouts a step at most: while fewer than `full_groups` groups are kept, more are played.
    pub max_rounds: u64,
    /// Groups that make a step full; further ones are left out. 0: as many as a rollout has.
    pub full_groups: usize,
}

impl FilterConfig {
    /// The same with the number of groups that make a step full, where rollouts of so many groups are played until it is.
    pub fn resolved(&self, groups: usize) -> Self {
        let full_groups = if self.max_rounds > 1 && self.full_groups == 0 { groups } else { self.full_groups };
        FilterConfig { full_groups, ..self.clone() }
    }

    /// Whether every group is kept, whatever it holds.
    pub fn passes_all(&self) -> bool {
        self.strategy == Strategy::TopP && self.value >= 1.0 && self.include_zero
    }
}

impl Default for FilterConfig {
    fn default() -> Self {
        FilterConfig {
            strategy: Strategy::TopP,
            value: 1.0,
            kind: Kind::Largest,
            metric: Metric::RewardVariance,
            include_zero: true,
            scale_free: false,
            top_p_prob_mode: TopPMode::Linear,
            selection_eps: 0.01,
            empty_stop_steps: 5,
            max_rounds: 1,
            full_groups: 0,
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
    /// Whether the trajectory ended well.
    pub success: bool,
    /// Trained tokens of the row.
    pub n_tokens: usize,
    /// Mean entropy of the row's trained tokens, in nats; read by the entropy metrics only.
    pub entropy: f64,
}

/// One group of the rollout, as the filter saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its id.
    pub group: usize,
    /// The rewards of its trajectories, in order.
    pub rewards: Vec<f64>,
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
    /// The same groups with every one of `n_rows` rows kept: what there would be without a filter.
    pub fn without(&self, n_rows: usize) -> Filtered {
        let groups = self.groups.iter().map(|group| Group { kept: true, ..group.clone() }).collect();
        Filtered { rows: (0..n_rows).collect(), groups, metrics: Vec::new() }
    }

    /// How many groups stay.
    pub fn n_kept(&self) -> usize {
        self.groups.iter().filter(|group| group.kept).count()
    }
}

/// One trajectory, gathered from its rows.
struct Trajectory {
    reward: f64,
    success: bool,
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
/// lower group id. Of more than `full_groups` groups the first by id are kept. **Deviations** the reference needs groups of equal size, one row each.
pub fn filter(config: &FilterConfig, rows: &[Measurement]) -> Filtered {
    let mut members: BTreeMap<usize, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for ((group, _), trajectory) in gather(rows) {
        let (rewards, quantities) = members.entry(group).or_default();
        rewards.push(trajectory.reward);
        quantities.push(match config.metric {
            Metric::RewardVariance | Metric::Reward | Metric::RewardSum => trajectory.reward,
            Metric::Length => trajectory.n_tokens as f64,
            Metric::Entropy | Metric::EntropyVariance => trajectory.entropy_sum / trajectory.n_rows as f64,
            Metric::Success | Metric::SuccessVariance => f64::from(u8::from(trajectory.success)),
        });
    }
    let spreads: Vec<Spread> = members.values().map(|(_, quantities)| Spread::of(quantities)).collect();
    let scored =
        if config.scale_free { scale_free(members.values().map(|(_, quantities)| quantities)) } else { vec![] };
    let scores: Vec<f64> = (0..spreads.len())
        .map(|i| scored.get(i).unwrap_or(&spreads[i]))
        .map(|spread| match config.metric {
            Metric::RewardVariance | Metric::EntropyVariance | Metric::SuccessVariance => spread.std,
            Metric::Reward | Metric::Length | Metric::Entropy | Metric::Success => spread.mean,
            Metric::RewardSum => spread.sum,
        })
        .collect();
    let mut groups: Vec<Group> = members
        .into_iter()
        .zip(&scores)
        .map(|((group, (rewards, _)), &score)| Group {
            group,
            score,
            reward_std: statistics::sample_std(&rewards),
            rewards,
            kept: false,
        })
        .collect();
    for rank in select(config, &scores) {
        groups[rank].kept = true;
    }
    let full = if config.full_groups > 0 { config.full_groups } else { groups.len() };
    let surplus = groups.iter_mut().filter(|group| group.kept).skip(full).map(|group| group.kept = false).count();
    let mut metrics = describe(config.metric, &groups, &spreads);
    if config.full_groups > 0 {
        metrics.push(("rollout/filter_surplus_count".into(), surplus as f64));
    }
    let is_kept = |id: usize| groups.binary_search_by_key(&id, |group| group.group).is_ok_and(|i| groups[i].kept);
    Filtered { rows: (0..rows.len()).filter(|&row| is_kept(rows[row].group)).collect(), groups, metrics }
}

/// The trajectories by group and index.
fn gather(rows: &[Measurement]) -> BTreeMap<(usize, usize), Trajectory> {
    let mut trajectories: BTreeMap<(usize, usize), Trajectory> = BTreeMap::new();
    for row in rows {
        let trajectory = trajectories.entry((row.group, row.trajectory)).or_insert(Trajectory {
            reward: row.reward,
            success: row.success,
            n_tokens: 0,
            entropy_sum: 0.0,
            n_rows: 0,
        });
        trajectory.n_tokens += row.n_tokens;
        trajectory.entropy_sum += row.entropy;
        trajectory.n_rows += 1;
    }
    trajectories
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        Spread {
            std: statistics::sample_std(values),
            max: statistics::max(values),
            mean: statistics::mean(values),
            sum: values.iter().sum(),
        }
    }
}

/// The groups' spreads with every value replaced by its place from 0, the least of all groups, to 1, the most. Values that
/// are not finite stay what they are.
fn scale_free<'a>(groups: impl Iterator<Item = &'a Vec<f64>> + Clone) -> Vec<Spread> {
    let finite = groups.clone().flatten().copied().filter(|value| value.is_finite());
    let (least, most) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    let place = |value: &f64| match most > least {
        true => (value - least) / (most - least),
        false => value - least,
    };
    groups.map(|values| Spread::of(&values.iter().map(place).collect::<Vec<_>>())).collect()
}

/// The indices of the scores that are selected, in order of rank; ties go to the lower index.
///
/// With `top_p`, a value of 1 or more and `include_zero` everything passes; otherwise a score that is not finite is never
/// selected, as it cannot be ranked.
pub fn select(config: &FilterConfig, scores: &[f64]) -> Vec<usize> {
    if config.passes_all() {
        return (0..scores.len()).collect();
    }
    let takes_part = |score: f64| score.is_finite() && (config.include_zero || score != 0.0);
    let mut ranked: Vec<usize> = (0..scores.len()).filter(|&i| takes_part(scores[i])).collect();
    // Both sorts are stable, so equal scores stay in order of their index.
    match config.kind {
        Kind::Largest => ranked.sort_by(|&a, &b| scores[b].total_cmp(&scores[a])),
        Kind::Smallest => ranked.sort_by(|&a, &b| scores[a].total_cmp(&scores[b])),
    }
    let sorted: Vec<f64> = ranked.iter().map(|&i| scores[i]).collect();
    let n_kept = match config.strategy {
        Strategy::TopP if config.value >= 1.0 => sorted.len(),
        Strategy::TopP => match config.top_p_prob_mode {
            TopPMode::Linear => linear_prefix(&sorted, config.value, config.selection_eps),
            TopPMode::Softmax => softmax_prefix(&sorted, config.value, config.kind),
        },
        Strategy::TopK => ((config.value * scores.len() as f64).floor() as usize).max(1),
        Strategy::TopKAbs => (config.value.trunc() as usize).max(1),
        Strategy::MinP => {
            let best = sorted.first().copied().unwrap_or_default();
            // In its unit, so that the best one is within reach of itself whatever the scale.
            let slack = SLACK * best.abs();
            sorted
                .iter()
                .take_while(|&&score| match config.kind {
                    Kind::Largest => score >= best * config.value - slack,
                    Kind::Smallest => score <= best / (config.value + SLACK) + slack,
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
        Metric::Success | Metric::SuccessVariance => "success",
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
    let n_zero = groups.iter().filter(|group| group.score == 0.0).count();
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
        let row = |trajectory, group, reward| Measurement {
            group,
            trajectory,
            reward,
            success: reward > 0.0,
            n_tokens: 3,
            entropy: 0.0,
        };
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

    /// Eight groups of four trajectories in two rows each; no two groups have equal scores.
    fn rollout(seed: u64, unit: f64, zero: f64, name: impl Fn(usize) -> usize) -> Vec<Measurement> {
        let key = Key::new(seed);
        let row = |i: usize| {
            let (group, trajectory) = (i / 8, i / 2);
            // Whole numbers, so that units and zeros that are powers of two change no rounding.
            let reward = key.with(trajectory as u64).below(0, 1000) as f64;
            let is_flat = key.with(group as u64).below(1, 4) == 0;
            let reward = if is_flat { key.with(group as u64).below(2, 1000) as f64 } else { reward };
            Measurement {
                group: name(group),
                trajectory,
                reward: unit * reward + zero,
                success: reward > 600.0,
                n_tokens: 1 + key.with(i as u64).below(3, 30),
                entropy: key.with(i as u64).uniform(4),
            }
        };
        (0..64).map(row).collect()
    }

    const METRICS: [Metric; 8] = [
        Metric::RewardVariance,
        Metric::Reward,
        Metric::RewardSum,
        Metric::Length,
        Metric::Entropy,
        Metric::EntropyVariance,
        Metric::Success,
        Metric::SuccessVariance,
    ];

    fn kept(filtered: &Filtered) -> Vec<usize> {
        filtered.groups.iter().filter(|group| group.kept).map(|group| group.group).collect()
    }

    /// No unit or zero of the reward changes what is kept, with any strategy, kind, metric and slack.
    #[test]
    fn scale_free_is_invariant_under_unit_and_zero_of_the_reward() {
        let mut n_kept = std::collections::BTreeSet::new();
        for base in configs() {
            for metric in METRICS {
                for seed in 0..3 {
                    let config = FilterConfig { metric, scale_free: true, selection_eps: 0.05, ..base.clone() };
                    let plain = kept(&filter(&config, &rollout(seed, 1.0, 0.0, |g| g)));
                    for (unit, zero) in [(1024.0, 0.0), (1.0 / 4096.0, 0.0), (1.0, -4096.0), (0.5, 128.0)] {
                        let other = filter(&config, &rollout(seed, unit, zero, |g| g));
                        assert_eq!(kept(&other), plain, "{config:?} with unit {unit} and zero {zero}");
                    }
                    n_kept.insert(plain.len());
                }
            }
        }
        assert!(n_kept.len() >= 7 && n_kept.contains(&0) && n_kept.contains(&8), "{n_kept:?}");
        // Without it a unit matters to the slack, and a zero to what is not a spread.
        let config = FilterConfig { value: 0.6, ..FilterConfig::default() };
        let tiny = filter(&config, &rollout(0, 1e-9, 0.0, |g| g));
        assert_eq!((tiny.n_kept(), filter(&config, &rollout(0, 1.0, 0.0, |g| g)).n_kept() > 0), (0, true));
        let config = FilterConfig { metric: Metric::Reward, selection_eps: 0.0, ..config };
        assert_ne!(
            kept(&filter(&config, &rollout(0, 1.0, 0.0, |g| g))),
            kept(&filter(&config, &rollout(0, 1.0, 4096.0, |g| g)))
        );
    }

    /// A spread has no zero, so the filter's default metric knows none either.
    #[test]
    fn spreads_are_invariant_under_the_zero_of_the_reward_and_without_slack_under_its_unit() {
        for base in configs().into_iter().filter(|config| config.top_p_prob_mode == TopPMode::Linear) {
            for (unit, zero) in [(1.0, 4096.0), (1.0 / 1024.0, 0.0), (1.0 / (1u64 << 50) as f64, 0.0), (64.0, -64.0)] {
                let plain = filter(&base, &rollout(5, 1.0, 0.0, |g| g));
                let other = filter(&base, &rollout(5, unit, zero, |g| g));
                assert_eq!(kept(&other), kept(&plain), "{base:?} with unit {unit} and zero {zero}");
            }
        }
    }

    #[test]
    fn the_order_of_groups_does_not_matter() {
        let names = [3, 7, 0, 6, 1, 5, 2, 4];
        for base in configs() {
            for metric in METRICS {
                let config = FilterConfig { metric, ..base.clone() };
                let plain = filter(&config, &rollout(2, 1.0, 0.0, |g| g));
                let mut rows = rollout(2, 1.0, 0.0, |g| names[g]);
                rows.reverse();
                let other = filter(&config, &rows);
                let tied = |f: &Filtered| {
                    f.groups.iter().any(|g| f.groups.iter().any(|h| g.group < h.group && g.score == h.score))
                };
                if !tied(&plain) || metric == Metric::RewardVariance && !config.include_zero {
                    let mut moved: Vec<usize> = kept(&plain).into_iter().map(|g| names[g]).collect();
                    moved.sort();
                    assert_eq!(kept(&other), moved, "{config:?}");
                }
                assert_eq!(plain.n_kept(), other.n_kept(), "{config:?}");
            }
        }
    }

    /// Any number of groups to keep, from none to more than there are; also of one group and of none.
    #[test]
    fn every_number_of_groups_can_be_kept() {
        let rows = rollout(1, 1.0, 0.0, |g| g);
        for n in 0..=10usize {
            let config = FilterConfig { strategy: Strategy::TopKAbs, value: n as f64, ..FilterConfig::default() };
            let filtered = filter(&config, &rows);
            assert_eq!(filtered.n_kept(), n.clamp(1, 8));
            assert_eq!(filtered.rows.len(), 8 * n.clamp(1, 8));
            let config = FilterConfig { full_groups: n, ..FilterConfig::default() };
            let filtered = filter(&config, &rows);
            assert_eq!(kept(&filtered), (0..if n == 0 { 8 } else { n.min(8) }).collect::<Vec<_>>());
            let surplus = filtered.metrics.iter().find(|m| m.0 == "rollout/filter_surplus_count").map(|m| m.1);
            assert_eq!(surplus, (n > 0).then(|| 8usize.saturating_sub(n) as f64));
            assert_eq!(filter(&config, &rows[..8]).n_kept(), 1);
            assert_eq!(filter(&config, &[]).n_kept(), 0);
        }
    }

    /// All right and all wrong are equally useless; success counts, not what it pays.
    #[test]
    fn groups_can_be_ranked_by_success() {
        let row = |trajectory: usize, group, success| Measurement {
            group,
            trajectory,
            reward: trajectory as f64,
            success,
            n_tokens: 1,
            entropy: 0.0,
        };
        let outcomes = [[true, true], [true, false], [false, false]];
        let rows: Vec<Measurement> = (0..6).map(|i| row(i, i / 2, outcomes[i / 2][i % 2])).collect();
        let of = |settings: &str| kept(&filter(&serde_json::from_str(settings).unwrap(), &rows));
        assert_eq!(of(r#"{"metric": "success_variance", "include_zero": false}"#), [1]);
        assert_eq!(of(r#"{"metric": "success", "strategy": "top_k_abs", "value": 2}"#), [0, 1]);
        assert_eq!(of(r#"{"metric": "success", "strategy": "top_k_abs", "value": 1, "kind": "smallest"}"#), [2]);
        assert_eq!(of(r#"{"metric": "reward_variance", "include_zero": false}"#), [0, 1, 2]);
        let filtered = filter(&serde_json::from_str(r#"{"metric": "success"}"#).unwrap(), &rows);
        let mean = filtered.metrics.iter().find(|m| m.0 == "rollout/in_group_success_mean").map(|m| m.1);
        assert_eq!(mean, Some(0.5));
        assert_eq!(filtered.groups[1].rewards, [2.0, 3.0]);
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

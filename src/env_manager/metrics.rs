//! Metrics of episodes and of rollouts under the published names and rules, so that curves compare.
//!
//! **Deviations** a value that is no number counts as 0.

use crate::trajectory::{Outcome, Played};
use std::collections::BTreeMap;

/// Metrics by key; ordered, so that equal runs write equal files.
pub type Metrics = BTreeMap<String, f64>;

/// The metrics of one episode under `TAG/`.
///
/// `success` is 1 only if the task ended well. Each number in the turns' `info` is summed and divided by the number of
/// turns; tags with `webshop` in their name sum all but three under `traj_sum/`. `raw_reward` sums to `episodic_return`,
/// the last `score` is `final_score`, the largest `max_tile` is itself.
pub fn episode_metrics(tag: &str, outcome: Outcome, turns: &[&Played]) -> Metrics {
    let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut metrics = Metrics::new();
    let mut put = |key: &str, value: f64| metrics.insert(format!("{tag}/{key}"), value);
    put("success", f64::from(u8::from(outcome.success)));
    put("num_actions", turns.iter().map(|turn| turn.executed.len()).sum::<usize>() as f64);
    for (key, value) in turns.iter().flat_map(|turn| &turn.info) {
        *sums.entry(key).or_default() += finite(*value);
    }
    put("episodic_return", sums.get("raw_reward").copied().unwrap_or(0.0));
    let last = |key: &str| turns.iter().rev().find_map(|turn| turn.info.get(key)).copied();
    if let Some(score) = last("score") {
        put("final_score", finite(score));
    }
    let sums_up = tag.to_lowercase().contains("webshop");
    for (key, sum) in sums {
        match key {
            "success" => {}
            "max_tile" => {
                let tiles = turns.iter().filter_map(|turn| turn.info.get(key)).copied();
                put(key, tiles.fold(0.0, f64::max));
            }
            _ if sums_up && !["action_is_effective", "action_is_valid", "end_of_page"].contains(&key) => {
                put(&format!("traj_sum/{key}"), sum);
            }
            _ => {
                put(key, sum / turns.len().max(1) as f64);
            }
        }
    }
    metrics
}

/// Writes `TAG/pass@k` into each episode's metrics: 1 if any episode of its group succeeded. `episodes` holds tag and
/// group of each, `group_size` is k.
pub fn add_pass_at_k(episodes: &[(&str, usize)], group_size: usize, metrics: &mut [Metrics]) {
    let mut passed: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for (&(tag, group), metrics) in episodes.iter().zip(metrics.iter()) {
        let success = metrics.get(&format!("{tag}/success")).copied().unwrap_or(0.0);
        let best = passed.entry((tag, group)).or_default();
        *best = best.max(success);
    }
    for (&(tag, group), metrics) in episodes.iter().zip(metrics.iter_mut()) {
        metrics.insert(format!("{tag}/pass@{group_size}"), passed[&(tag, group)]);
    }
}

/// The metrics of a rollout: of every key the sum over episodes divided by the number of episodes configured for its tag.
///
/// Adds `TAG/non-zero/KEY`, the mean over values that are not 0; `charts/avg_episode_return`, the mean over tags;
/// `rollout/max_tile`, the largest.
pub fn aggregate(episodes: &[Metrics], n_episodes: &BTreeMap<String, usize>) -> Metrics {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (key, value) in episodes.iter().flatten() {
        values.entry(key).or_default().push(*value);
    }
    let mut metrics = Metrics::new();
    let mut returns = Vec::new();
    for (key, values) in values {
        let (tag, rest) = key.split_once('/').unwrap_or(("", key));
        let n = n_episodes.get(tag).copied().unwrap_or(values.len()).max(1);
        let mean = values.iter().sum::<f64>() / n as f64;
        metrics.insert(key.into(), mean);
        let non_zero: Vec<f64> = values.iter().copied().filter(|x| *x != 0.0).collect();
        if !non_zero.is_empty() {
            metrics.insert(format!("{tag}/non-zero/{rest}"), non_zero.iter().sum::<f64>() / non_zero.len() as f64);
        }
        if rest == "episodic_return" {
            returns.push(mean);
        }
        if rest == "max_tile" {
            let largest = values.into_iter().fold(0.0, f64::max);
            let seen = metrics.entry("rollout/max_tile".into()).or_default();
            *seen = seen.max(largest);
        }
    }
    if !returns.is_empty() {
        metrics.insert("charts/avg_episode_return".into(), returns.iter().sum::<f64>() / returns.len() as f64);
    }
    metrics
}

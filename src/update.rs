//! From a step's rows to optimiser steps: mini-batches, micro-batches, and what they did.
//!
//! A mini-batch is one optimiser step; a micro-batch is one forward and backward, and only bounds memory: the loss is
//! weighted over the whole mini-batch, so it changes neither loss nor gradient. This module does not know where
//! advantages come from.

use crate::config::Update as UpdateConfig;
use crate::env_manager::metrics::Metrics;
use crate::objective::{LossMetrics, Objective, ObjectiveError, Targets};
use crate::policy::{Policy, PolicyError, Row, TokenValues};
use ragen_models::random::Key;
use std::collections::BTreeSet;
use std::ops::Range;

pub mod adjust;

/// Why an update cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The policy refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The batch does not fit together.
    #[error(transparent)]
    Objective(#[from] ObjectiveError),
}

/// What optimiser steps move, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The learning rate.
    pub lr: f64,
    /// The value model alone is trained.
    pub values_alone: bool,
}

/// A step's rows and, for each trained token of them in order, what to train it towards.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    /// The rows; each has at least one trained token.
    pub rows: Vec<Row<'a>>,
    /// The episode of each row; rows of one lie next to each other and go into one mini-batch. Empty: each row is one.
    pub episodes: Vec<usize>,
    /// The episodes trained on, by their places in the batch (see [`Batch::episode_rows`] and [`adjust`]).
    pub picked: Vec<usize>,
    /// Log-probabilities that the tokens were sampled with.
    pub old_logp: Vec<f32>,
    /// Advantages.
    pub advantage: Vec<f64>,
    /// What the policy's loss of each token counts; empty: 1.
    pub weight: Vec<f64>,
    /// Returns; empty trains no value head.
    pub ret: Vec<f64>,
    /// The value head's estimates before the update; empty if `ret` is.
    pub old_value: Vec<f32>,
    /// The reference's log-probabilities; empty without one.
    pub reference_logp: Vec<f32>,
    /// What `seq_mean_token_sum_norm` divides by, in tokens.
    pub horizon_tokens: usize,
}

impl<'a> Batch<'a> {
    /// The rows of each episode, in order.
    pub fn episode_rows(&self) -> Vec<Range<usize>> {
        let mut rows: Vec<Range<usize>> = Vec::new();
        for row in 0..self.rows.len() {
            match rows.last_mut() {
                Some(last) if !self.episodes.is_empty() && self.episodes[row] == self.episodes[row - 1] => {
                    last.end += 1;
                }
                _ => rows.push(row..row + 1),
            }
        }
        rows
    }

    /// Trained tokens, counted once however often an episode is picked.
    pub fn trained_tokens(&self) -> usize {
        let rows = self.episode_rows();
        let picked: BTreeSet<usize> = self.picked.iter().copied().collect();
        picked.into_iter().flat_map(|place| rows[place].clone()).map(|row| self.rows[row].targets.len()).sum()
    }

    /// The batch of these episodes, by their places in `rows` (see [`Batch::episode_rows`]); one that is named twice is two.
    pub fn gather(&self, picked: &[usize], rows: &[Range<usize>]) -> Batch<'a> {
        let mut first_token = vec![0];
        for row in &self.rows {
            first_token.push(first_token[first_token.len() - 1] + row.targets.len());
        }
        let picked_again = (0..picked.len()).collect();
        let mut part = Batch { picked: picked_again, horizon_tokens: self.horizon_tokens, ..Batch::default() };
        for (episode, &place) in picked.iter().enumerate() {
            let rows = rows[place].clone();
            let tokens = first_token[rows.start]..first_token[rows.end];
            part.episodes.resize(part.episodes.len() + rows.len(), episode);
            part.rows.extend_from_slice(&self.rows[rows]);
            extend(&mut part.old_logp, &self.old_logp, &tokens);
            extend(&mut part.advantage, &self.advantage, &tokens);
            extend(&mut part.weight, &self.weight, &tokens);
            extend(&mut part.ret, &self.ret, &tokens);
            extend(&mut part.old_value, &self.old_value, &tokens);
            extend(&mut part.reference_logp, &self.reference_logp, &tokens);
        }
        part
    }
}

/// Appends the tokens' values, if there are values.
fn extend<T: Copy>(to: &mut Vec<T>, values: &[T], tokens: &Range<usize>) {
    if !values.is_empty() {
        to.extend_from_slice(&values[tokens.clone()]);
    }
}

/// Updates the policy on a batch: `epochs` passes, one optimiser step a mini-batch, all at the same pace.
///
/// With `shuffle` each pass draws from `key` which episodes share a mini-batch; within one they keep their order, in which the
/// members of a group lie next to each other. An optimiser step whose gradient is not finite changes nothing and is counted in
/// `update/skipped`. `update/first_ratio_max_error` is the largest distance of a ratio from 1 in the very first forward: 0 if the
/// batch is the policy's own.
pub fn update(
    policy: &mut dyn Policy,
    batch: &Batch<'_>,
    config: &UpdateConfig,
    temperature: f32,
    pace: Pace,
    key: Key,
) -> Result<Metrics, UpdateError> {
    let lr = pace.lr;
    let episode_rows = batch.episode_rows();
    let (mut parts, mut norms, mut skipped) = (Vec::new(), Vec::new(), 0u32);
    for epoch in 0..config.epochs {
        let mut order = batch.picked.clone();
        if config.shuffle {
            let permutation = key.named("shuffle").with(epoch as u64).permutation(order.len());
            order = permutation.into_iter().map(|i| order[i]).collect();
        }
        for episodes in split_evenly(order.len(), config.mini_batch, config.mini_batches) {
            let mut picked = order[episodes].to_vec();
            picked.sort_unstable();
            let mini = batch.gather(&picked, &episode_rows);
            let lengths: Vec<usize> = mini.rows.iter().map(|row| row.targets.len()).collect();
            let targets = Targets {
                lengths: &lengths,
                episodes: &mini.episodes,
                old_logp: &mini.old_logp,
                advantage: &mini.advantage,
                weight: &mini.weight,
                ret: &mini.ret,
                old_value: &mini.old_value,
                reference_logp: &mini.reference_logp,
            };
            let objective = Objective::new(&config.loss, targets, batch.horizon_tokens)?;
            let loss = accumulate(policy, &mini.rows, &objective, config, temperature)?;
            let step = if pace.values_alone { policy.update_values(lr)? } else { policy.update(lr)? };
            skipped += u32::from(step.skipped);
            norms.push(step.grad_norm);
            parts.push(loss);
        }
    }
    let mean = LossMetrics::mean(&parts);
    let named = mean.named(!batch.ret.is_empty(), !batch.reference_logp.is_empty());
    let mut metrics: Metrics = named.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    let finite: Vec<f64> = norms.iter().copied().filter(|norm| norm.is_finite()).collect();
    metrics.insert(
        "update/grad_norm".into(),
        finite.iter().fold(0.0, |sum, norm| sum + norm) / finite.len().max(1) as f64,
    );
    metrics.insert("update/first_ratio_max_error".into(), parts.first().map_or(0.0, |loss| loss.max_ratio_error));
    metrics.insert("update/optimiser_steps".into(), norms.len() as f64);
    metrics.insert("update/skipped".into(), f64::from(skipped));
    metrics.insert("update/lr".into(), lr);
    Ok(metrics)
}

/// Gathers the gradients of one mini-batch, micro-batch by micro-batch.
pub fn accumulate(
    policy: &mut dyn Policy,
    rows: &[Row<'_>],
    objective: &Objective<'_>,
    config: &UpdateConfig,
    temperature: f32,
) -> Result<LossMetrics, PolicyError> {
    let mut loss = LossMetrics::default();
    for micro in micro_batches(policy, rows, config) {
        let mut seeds = |now: &TokenValues| objective.evaluate(micro.clone(), now, &mut loss);
        policy.accumulate(&rows[micro.clone()], temperature, &mut seeds)?;
    }
    Ok(loss)
}

/// `0..n` in consecutive ranges whose lengths differ by at most one: `count` of them, or, if that is 0, as few as hold at
/// most `largest`.
pub fn split_evenly(n: usize, largest: usize, count: usize) -> Vec<Range<usize>> {
    let count = if count > 0 { count.min(n) } else { n.div_ceil(largest.max(1)) };
    (0..count).map(|i| n * i / count..n * (i + 1) / count).collect()
}

/// The micro-batches of some rows, as `[update]` bounds them.
pub fn micro_batches(policy: &dyn Policy, rows: &[Row<'_>], config: &UpdateConfig) -> Vec<Range<usize>> {
    let mut ranges = split_by_size(rows, config.micro_batch, config.micro_batch_tokens);
    if config.packed_tokens > 0 {
        ranges =
            ranges.into_iter().flat_map(|range| split_by_packed(policy, rows, range, config.packed_tokens)).collect();
    }
    ranges
}

/// A range of rows in consecutive ranges that pack at most `most` tokens; a row that is longer goes alone.
fn split_by_packed(policy: &dyn Policy, rows: &[Row<'_>], of: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = of.start;
    for end in of.clone() {
        if end > start && policy.packed_tokens(&rows[start..=end]) > most {
            ranges.push(start..end);
            start = end;
        }
    }
    ranges.push(start..of.end);
    ranges
}

/// Consecutive ranges of rows with at most `max_rows` rows (0: any number) and `max_tokens` tokens (0: any number); a row
/// that is longer goes alone.
pub fn split_by_size(rows: &[Row<'_>], max_rows: usize, max_tokens: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, row) in rows.iter().enumerate() {
        let is_full =
            (max_rows > 0 && i - start == max_rows) || (max_tokens > 0 && tokens + row.ids.len() > max_tokens);
        if is_full && i > start {
            ranges.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += row.ids.len();
    }
    if start < rows.len() {
        ranges.push(start..rows.len());
    }
    ranges
}

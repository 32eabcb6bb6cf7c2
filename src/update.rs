//! From a step's rows to optimiser steps: mini-batches, micro-batches, and what they did.
//!
//! A mini-batch is one optimiser step; a micro-batch is one forward and backward, and only bounds memory: the loss is
//! weighted over the whole mini-batch, so it changes neither loss nor gradient. This module does not know where
//! advantages come from.

use crate::config::Update as UpdateConfig;
use crate::env_manager::metrics::Metrics;
use crate::objective::{LossMetrics, Objective, ObjectiveError, Targets};
use crate::policy::{Policy, PolicyError, Row, TokenValues};
use std::ops::Range;

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

/// A step's rows and, for each trained token of them in order, what to train it towards.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    /// The rows; each has at least one trained token.
    pub rows: Vec<Row<'a>>,
    /// The episode of each row; rows of one lie next to each other and go into one mini-batch. Empty: each row is one.
    pub episodes: Vec<usize>,
    /// Log-probabilities that the tokens were sampled with.
    pub old_logp: Vec<f32>,
    /// Advantages.
    pub advantage: Vec<f64>,
    /// Returns; empty trains no value head.
    pub ret: Vec<f64>,
    /// The value head's estimates before the update; empty if `ret` is.
    pub old_value: Vec<f32>,
    /// The reference's log-probabilities; empty without one.
    pub reference_logp: Vec<f32>,
    /// What `seq_mean_token_sum_norm` divides by, in tokens.
    pub horizon_tokens: usize,
}

/// Updates the policy on a batch: `epochs` passes, one optimiser step a mini-batch, all at learning rate `lr`.
///
/// An optimiser step whose gradient is not finite changes nothing and is counted in `update/skipped`.
/// `update/first_ratio_max_error` is the largest distance of a ratio from 1 in the very first forward: 0 if the batch is
/// the policy's own.
pub fn update(
    policy: &mut dyn Policy,
    batch: &Batch<'_>,
    config: &UpdateConfig,
    temperature: f32,
    lr: f64,
) -> Result<Metrics, UpdateError> {
    let lengths: Vec<usize> = batch.rows.iter().map(|row| row.targets.len()).collect();
    let mut first_token = vec![0];
    first_token.extend(lengths.iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    }));
    // The first row of each episode, and the number of rows at the end.
    let begins = |row: &usize| match &batch.episodes[..] {
        [] => true,
        episodes => *row == 0 || *row == batch.rows.len() || episodes[*row] != episodes[*row - 1],
    };
    let first_row: Vec<usize> = (0..=batch.rows.len()).filter(begins).collect();
    let (mut parts, mut norms, mut skipped) = (Vec::new(), Vec::new(), 0u32);
    for _ in 0..config.epochs {
        for episodes in split_evenly(first_row.len() - 1, config.mini_batch, config.mini_batches) {
            let rows = first_row[episodes.start]..first_row[episodes.end];
            let tokens = first_token[rows.start]..first_token[rows.end];
            let targets = Targets {
                lengths: &lengths[rows.clone()],
                episodes: if batch.episodes.is_empty() { &[] } else { &batch.episodes[rows.clone()] },
                old_logp: &batch.old_logp[tokens.clone()],
                advantage: &batch.advantage[tokens.clone()],
                ret: part(&batch.ret, &tokens),
                old_value: part(&batch.old_value, &tokens),
                reference_logp: part(&batch.reference_logp, &tokens),
            };
            let objective = Objective::new(&config.loss, targets, batch.horizon_tokens)?;
            let loss = accumulate(policy, &batch.rows[rows], &objective, config, temperature)?;
            let step = policy.update(lr)?;
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

fn part<'a, T>(values: &'a [T], tokens: &Range<usize>) -> &'a [T] {
    if values.is_empty() { values } else { &values[tokens.clone()] }
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

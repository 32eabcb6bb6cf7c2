//! The collapse detector on a rollout: which reasonings are scored after which prompts.

use super::batch::score;
use crate::agent_proxy::Rollout;
use crate::collapse::{CrossScores, FIRST_TURN, Pair, RunningSpread, measure, select_pairs};
use crate::config::Config;
use crate::context_manager::ContextManager;
use crate::env_manager::metrics::Metrics;
use crate::policy::{Policy, PolicyError, Row, Weights};
use ragen_models::random::Key;

/// The detector's metrics over the first turns of a rollout; none without thinking.
///
/// A reasoning is scored after every distinct prompt by teacher forcing, over the whole vocabulary, at the rollout's
/// temperature. Reasonings that would not fit behind the longest prompt are left out and counted.
pub fn collapse(
    policy: &mut dyn Policy,
    context: &ContextManager,
    rollout: &Rollout,
    config: &Config,
    spread: &mut RunningSpread,
    key: Key,
) -> Result<Metrics, PolicyError> {
    if !config.rollout.think {
        return Ok(Metrics::new());
    }
    let first_turns = rollout.trajectories.iter().filter_map(|t| t.turns.first().map(|turn| (t, turn)));
    let mut pairs: Vec<Pair<'_>> = first_turns
        .map(|(t, turn)| match &turn.reasoning {
            Some(z) => Pair { x: &t.rows[turn.row].tokens.ids[..z.start], z: &t.rows[turn.row].tokens.ids[z.clone()] },
            None => Pair { x: &t.rows[turn.row].tokens.ids[..turn.prompt.end], z: &[] },
        })
        .collect();
    let longest = pairs.iter().filter(|pair| !pair.z.is_empty()).map(|pair| pair.x.len()).max().unwrap_or(0);
    let fits = |pair: &Pair<'_>| longest + pair.z.len() <= context.context_tokens;
    let too_long = pairs.iter().filter(|pair| !fits(pair)).count();
    pairs.iter_mut().filter(|pair| !fits(pair)).for_each(|pair| pair.z = &[]);

    let selection = select_pairs(&pairs, config.collapse.num_samples, key);
    let mut metrics: Metrics = selection.coverage().into_iter().collect();
    metrics.insert("collapse/first_turn_too_long".into(), too_long as f64);
    let (n_rows, n_columns) = (selection.rows.len(), selection.columns.len());
    if n_columns < 2 {
        return Ok(metrics);
    }
    // Column by column, so that rows that share a prompt lie next to each other.
    let mut sequences = Vec::with_capacity(n_rows * n_columns);
    for &column in &selection.columns {
        for &row in &selection.rows {
            let (x, z) = (pairs[column].x, pairs[row].z);
            let targets: Vec<u32> = (x.len()..x.len() + z.len()).map(|i| i as u32).collect();
            sequences.push(([x, z].concat(), targets));
        }
    }
    let rows: Vec<Row<'_>> = sequences.iter().map(|(ids, targets)| Row { ids, targets, kept: &[] }).collect();
    let logp = score(policy, Weights::Policy, &rows, config)?.logp;
    let lengths: Vec<usize> = selection.rows.iter().map(|&row| pairs[row].z.len()).collect();
    let mut sums = vec![0.0; n_rows * n_columns];
    let mut first = 0;
    for column in 0..n_columns {
        for (row, &length) in lengths.iter().enumerate() {
            let tokens = &logp[first..first + length];
            sums[row * n_columns + column] = tokens.iter().map(|x| f64::from(*x)).sum();
            first += length;
        }
    }
    let input: Vec<usize> = (0..n_columns).collect();
    let scores = CrossScores { sums: &sums, lengths: &lengths, own: &selection.own, input: &input };
    metrics.extend(measure(FIRST_TURN, &scores, &config.collapse, spread));
    Ok(metrics)
}

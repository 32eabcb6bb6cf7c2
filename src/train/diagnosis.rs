//! The collapse detector on a rollout: scores reasonings after prompts, and names what it finds.

use crate::agent_proxy::Rollout;
use crate::collapse::regime::Levels;
use crate::collapse::{
    CollapseConfig, CollapseState, Coverage, CrossScores, FIRST_TURN, Pair, Selection, TRAJECTORY, measure,
};
use crate::config::Config;
use crate::context_manager::ContextManager;
use crate::env_manager::metrics::Metrics;
use crate::policy::{Policy, PolicyError, Row, Weights};
use crate::trajectory::Trajectory;
use ragen_models::random::Key;
use std::collections::BTreeSet;

/// The detector's metrics on a rollout of step `step`, and what is to be said of it; none without thinking.
///
/// A reasoning is scored after prompts by teacher forcing, over the whole vocabulary, at the rollout's temperature. Prompts behind which
/// the longest reasoning would not fit are left out and counted.
pub fn collapse(
    policy: &mut dyn Policy,
    context: &ContextManager,
    rollout: &Rollout,
    config: &Config,
    state: &mut CollapseState,
    (step, key): (u64, Key),
) -> Result<(Metrics, Vec<String>), PolicyError> {
    let mut notices = Vec::new();
    if !config.rollout.think {
        if !std::mem::replace(&mut state.said_no_thinking, true) {
            notices.push("rollout.think is off, so there is no reasoning for the collapse detector to look at".into());
        }
        return Ok((Metrics::from([("collapse/valid_thinking_rate".into(), 0.0)]), notices));
    }
    let mut episodes: Vec<Vec<Pair<'_>>> = rollout.trajectories.iter().map(pairs).collect();
    let mut metrics: Metrics = Coverage::of(&episodes).metrics(&config.collapse).into_iter().collect();
    metrics.insert("collapse/too_long".into(), leave_out(&mut episodes, context.context_tokens) as f64);

    let CollapseConfig { first_turn, multi_turn, num_samples, .. } = config.collapse;
    let mut levels = None;
    if first_turn {
        let firsts: Vec<Pair<'_>> = episodes.iter().filter_map(|turns| turns.first().copied()).collect();
        let selection = Selection::first_turns(&firsts, num_samples, key);
        metrics.insert("collapse/first_turn_num_prompts".into(), selection.n_inputs() as f64);
        let scores = Scores::new(policy, &firsts, &selection, config, key)?;
        let measured = measure(FIRST_TURN, &scores.view(), &config.collapse, &mut state.first_turn);
        levels = Levels::read(&measured, FIRST_TURN);
        metrics.extend(measured);
    }
    if multi_turn {
        let key = key.named("trajectories");
        let selection = Selection::trajectories(&episodes, num_samples, key);
        metrics.insert("collapse/trajectory_num_prompts".into(), selection.n_inputs() as f64);
        let scores = Scores::new(policy, &episodes.concat(), &selection, config, key)?;
        let measured = measure(TRAJECTORY, &scores.view(), &config.collapse, &mut state.trajectory);
        levels = levels.or_else(|| Levels::read(&measured, TRAJECTORY));
        metrics.extend(measured);
    }
    if let Some(levels) = levels {
        let (regime, warning) = state.regime.observe(levels, step, &config.collapse.regime);
        metrics.insert("collapse/regime".into(), regime.number());
        notices.extend(warning);
    }
    Ok((metrics, notices))
}

/// The turns of a trajectory: what the policy saw before each reasoning, as it saw it, and the reasoning.
fn pairs(trajectory: &Trajectory) -> Vec<Pair<'_>> {
    let of_turn = |turn: &crate::trajectory::Turn| {
        let ids = &trajectory.rows[turn.row].tokens.ids;
        match &turn.reasoning {
            Some(z) => Pair { x: &ids[..z.start], z: &ids[z.clone()] },
            None => Pair { x: &ids[..turn.prompt.end], z: &[] },
        }
    };
    trajectory.turns.iter().map(of_turn).collect()
}

/// Takes the reasoning of those turns behind whose prompt the longest reasoning has no room; returns how many.
fn leave_out(episodes: &mut [Vec<Pair<'_>>], context_tokens: usize) -> usize {
    let longest = episodes.iter().flatten().map(|pair| pair.z.len()).max().unwrap_or(0);
    let mut n = 0;
    for pair in episodes.iter_mut().flatten().filter(|pair| pair.is_valid() && pair.x.len() + longest > context_tokens)
    {
        pair.z = &[];
        n += 1;
    }
    n
}

/// Scores of a selection, `[rows, columns]`, where each row may have columns of its own.
struct Scores {
    sums: Vec<f64>,
    lengths: Vec<usize>,
    own: Vec<usize>,
    input: Vec<usize>,
}

impl Scores {
    /// Scores every row after its columns. Equal prompts and equal reasonings are computed once.
    fn new(
        policy: &mut dyn Policy,
        pairs: &[Pair<'_>],
        selection: &Selection,
        config: &Config,
        key: Key,
    ) -> Result<Self, PolicyError> {
        let Selection { rows, columns, own, input } = selection;
        let lengths = rows.iter().map(|&row| pairs[row].z.len()).collect();
        if selection.n_inputs() < 2 {
            return Ok(Scores { sums: Vec::new(), lengths: Vec::new(), own: Vec::new(), input: Vec::new() });
        }
        let wanted = selection.contrasts(config.collapse.contrast, key.named("contrast"));
        let is_exact = wanted.iter().all(|of_row| of_row.len() == columns.len());
        // By prompt, so that the reasonings that are scored after one lie next to each other.
        let cells: BTreeSet<(usize, usize)> = rows
            .iter()
            .zip(&wanted)
            .flat_map(|(&row, of_row)| of_row.iter().map(move |&column| (columns[input[column]], row)))
            .collect();
        let cells: Vec<(usize, usize)> = cells.into_iter().collect();
        let found = score_cells(policy, pairs, &cells, config)?;
        let sum = |column: usize, row: usize| {
            let at = cells.binary_search(&(columns[input[column]], row));
            at.map_or(f64::NAN, |at| found[at])
        };
        let sums = rows.iter().zip(&wanted).flat_map(|(&row, of_row)| of_row.iter().map(move |&column| (column, row)));
        Ok(Scores {
            sums: sums.map(|(column, row)| sum(column, row)).collect(),
            lengths,
            own: match is_exact {
                true => own.clone(),
                // Of a row's own columns, the one with its own input.
                false => {
                    let place = |(of_row, &own): (&Vec<usize>, &usize)| of_row.partition_point(|&c| c < input[own]);
                    wanted.iter().zip(own).map(place).collect()
                }
            },
            input: if is_exact { input.clone() } else { (0..wanted[0].len()).collect() },
        })
    }

    fn view(&self) -> CrossScores<'_> {
        CrossScores { sums: &self.sums, lengths: &self.lengths, own: &self.own, input: &self.input }
    }
}

/// ln p(z | x) of every cell (a pair with this `x`, a pair with this `z`), in nats; cells with the same `x` next to each other.
///
/// A forward holds as many cells as there is room for in a training forward, a prompt counted once. So a prompt is computed once, and
/// once more where the next forward begins among its cells.
fn score_cells(
    policy: &mut dyn Policy,
    pairs: &[Pair<'_>],
    cells: &[(usize, usize)],
    config: &Config,
) -> Result<Vec<f64>, PolicyError> {
    let most = match config.update.packed_tokens {
        0 => config.update.micro_batch_tokens,
        most => most,
    };
    let mut sums = Vec::with_capacity(cells.len());
    let mut rest = cells;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(fitting(pairs, rest, most));
        rest = later;
        let sequences: Vec<(Vec<u32>, Vec<u32>)> = now
            .iter()
            .map(|&(column, row)| {
                let (x, z) = (pairs[column].x, pairs[row].z);
                ([x, z].concat(), (x.len()..x.len() + z.len()).map(|i| i as u32).collect())
            })
            .collect();
        let rows: Vec<Row<'_>> = sequences.iter().map(|(ids, targets)| Row { ids, targets, kept: &[] }).collect();
        let logp = policy.score(Weights::Policy, &rows, config.rollout.sampling.temperature)?.logp;
        let mut first = 0;
        for row in &rows {
            let tokens = &logp[first..first + row.targets.len()];
            first += tokens.len();
            sums.push(tokens.iter().map(|x| f64::from(*x)).sum());
        }
    }
    Ok(sums)
}

/// How many of the first cells hold at most `most` tokens, each prompt counted once; at least one.
fn fitting(pairs: &[Pair<'_>], cells: &[(usize, usize)], most: usize) -> usize {
    let mut tokens = 0;
    for (i, &(column, row)) in cells.iter().enumerate() {
        let is_new = i == 0 || cells[i - 1].0 != column;
        tokens += pairs[row].z.len() + if is_new { pairs[column].x.len() } else { 0 };
        if tokens > most && i > 0 {
            return i;
        }
    }
    cells.len()
}

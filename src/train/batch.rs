//! From a rollout to what the filter reads and the update trains on.

use crate::config::Config;
use crate::env_manager::metrics::Metrics;
use crate::estimator::{Estimator, EstimatorError, Row as Scored, estimate, terminal_rewards};
use crate::filter::Measurement;
use crate::policy::{Policy, PolicyError, Row, TokenValues, Weights};
use crate::reward::normalise;
use crate::trajectory::Trajectory;
use crate::update::{Batch, micro_batches};

/// A batch, and what it is made of.
#[derive(Debug, Default)]
pub struct Prepared<'a> {
    /// What is trained on; no rows if there is nothing to train on.
    pub batch: Batch<'a>,
    /// `batch/…` metrics.
    pub metrics: Metrics,
    /// For each trajectory kept its index in the rollout and the mean advantage of its tokens.
    pub advantages: Vec<(usize, f64)>,
}

/// Mean token entropy of each trajectory in nats, the mean over its rows, if the filter ranks by it; zeros otherwise.
pub fn entropies(
    policy: &mut dyn Policy,
    trajectories: &[Trajectory],
    config: &Config,
) -> Result<Vec<f64>, PolicyError> {
    if !config.filter.metric.reads_entropy() {
        return Ok(vec![0.0; trajectories.len()]);
    }
    let rows: Vec<Row<'_>> = trajectories.iter().flat_map(Trajectory::views).collect();
    let entropy = score(policy, Weights::Policy, &rows, config)?.entropy;
    let mut first = 0;
    let mean_of = |row: &Row<'_>| {
        let tokens = &entropy[first..first + row.targets.len()];
        first += row.targets.len();
        tokens.iter().map(|h| f64::from(*h)).sum::<f64>() / tokens.len().max(1) as f64
    };
    let means: Vec<f64> = rows.iter().map(mean_of).collect();
    let mut first = 0;
    let of_trajectory = |t: &Trajectory| {
        let rows = &means[first..first + t.rows.len()];
        first += rows.len();
        rows.iter().sum::<f64>() / rows.len().max(1) as f64
    };
    Ok(trajectories.iter().map(of_trajectory).collect())
}

/// What the filter reads: scores that are not normalised.
pub fn measurements(trajectories: &[Trajectory], entropy: &[f64]) -> Vec<Measurement> {
    let of = |(i, t): (usize, &Trajectory)| Measurement {
        group: t.group,
        trajectory: i,
        reward: t.score(),
        success: t.outcome.success,
        n_tokens: t.n_sampled(),
        entropy: entropy[i],
    };
    trajectories.iter().enumerate().map(of).collect()
}

/// Old log-probabilities, reference, values and advantages of the trajectories that were kept.
///
/// Scores are normalised over the whole rollout, before the filter. Every row of a trajectory has its score, and a group's
/// statistics count a trajectory once. One in which nothing was sampled counts there and is no row.
pub fn prepare<'a>(
    policy: &mut dyn Policy,
    trajectories: &'a [Trajectory],
    kept: &[usize],
    config: &Config,
) -> Result<Prepared<'a>, PolicyError> {
    let scores: Vec<f64> = trajectories.iter().map(Trajectory::score).collect();
    let groups: Vec<usize> = trajectories.iter().map(|t| t.group).collect();
    let tags: Vec<&str> = trajectories.iter().map(|t| t.tag.as_str()).collect();
    let scores = normalise(&config.reward, &scores, &groups, &tags);
    let of_row = |i: usize, n_tokens| Scored { group: groups[i], trajectory: i, n_tokens, score: scores[i] };
    let kept_rows = || kept.iter().flat_map(|&i| trajectories[i].rows.iter().map(move |row| (i, row)));
    let scored: Vec<Scored> = kept_rows().map(|(i, row)| of_row(i, row.targets.len())).collect();
    let trained = || kept_rows().filter(|(_, row)| !row.targets.is_empty());
    let rows: Vec<Row<'_>> = trained().map(|(_, row)| row.view()).collect();
    let mut prepared = Prepared::default();
    let mut put = |key: &str, value: f64| prepared.metrics.insert(key.into(), value);
    put("batch/rows", rows.len() as f64);
    put("batch/empty_rows", (scored.len() - rows.len()) as f64);
    put("batch/tokens", rows.iter().map(|row| row.ids.len()).sum::<usize>() as f64);
    put("batch/trained_tokens", rows.iter().map(|row| row.targets.len()).sum::<usize>() as f64);

    let has_value = config.algorithm.estimator == Estimator::Gae;
    if has_value && !policy.has_value() {
        return Err(PolicyError::Missing("value head, which algorithm.estimator = \"gae\" needs"));
    }
    let mut old_logp: Vec<f32> = kept_rows().flat_map(|(_, row)| &row.logps).copied().collect();
    let mut values = Vec::new();
    if has_value || config.update.rescore {
        let now = score(policy, Weights::Policy, &rows, config)?;
        if config.update.rescore {
            old_logp = now.logp;
        }
        if has_value {
            values = now.value;
        }
    }
    let advantages = match estimate(&config.algorithm, &scored, &terminal_rewards(&scored), &values) {
        Ok(advantages) => advantages,
        // Fewer than two tokens cannot be whitened: there is nothing to train on, and the step is counted as empty.
        Err(EstimatorError::TooFewTokens { .. }) => return Ok(prepared),
        Err(error) => return Err(PolicyError::Invalid(error.to_string())),
    };
    put("batch/singletons", advantages.n_singletons as f64);
    summarise("batch/score", &kept.iter().map(|&i| scores[i]).collect::<Vec<_>>(), &mut prepared.metrics);
    summarise("batch/advantage", &advantages.advantage, &mut prepared.metrics);
    if has_value {
        summarise("batch/return", &advantages.ret, &mut prepared.metrics);
        let values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
        let errors: Vec<f64> = advantages.ret.iter().zip(&values).map(|(ret, value)| ret - value).collect();
        let explained = 1.0 - variance(&errors) / (variance(&advantages.ret) + 1e-5);
        prepared.metrics.insert("value/explained_var".into(), explained);
    }
    let mut reference_logp = Vec::new();
    if config.update.loss.kl.coef != 0.0 {
        reference_logp = score(policy, Weights::Reference, &rows, config)?.logp;
    }
    let mut first = 0;
    for &i in kept {
        let tokens = &advantages.advantage[first..first + trajectories[i].n_sampled()];
        first += tokens.len();
        prepared.advantages.push((i, tokens.iter().sum::<f64>() / tokens.len().max(1) as f64));
    }
    prepared.batch = Batch {
        episodes: trained().map(|(i, _)| i).collect(),
        rows,
        old_logp,
        advantage: advantages.advantage,
        ret: advantages.ret,
        old_value: values,
        reference_logp,
        horizon_tokens: config.rollout.model_tokens,
    };
    Ok(prepared)
}

/// Scores rows in micro-batches, at the temperature they were sampled with.
pub fn score(
    policy: &mut dyn Policy,
    weights: Weights,
    rows: &[Row<'_>],
    config: &Config,
) -> Result<TokenValues, PolicyError> {
    let mut all = TokenValues::default();
    for micro in micro_batches(policy, rows, &config.update) {
        let part = policy.score(weights, &rows[micro], config.rollout.sampling.temperature)?;
        all.logp.extend(part.logp);
        all.entropy.extend(part.entropy);
        all.value.extend(part.value);
    }
    Ok(all)
}

fn summarise(name: &str, values: &[f64], metrics: &mut Metrics) {
    if values.is_empty() {
        return;
    }
    metrics.insert(format!("{name}_mean"), values.iter().sum::<f64>() / values.len() as f64);
    metrics.insert(format!("{name}_max"), values.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    metrics.insert(format!("{name}_min"), values.iter().copied().fold(f64::INFINITY, f64::min));
}

fn variance(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n
}

//! From a rollout to what the filter reads and the update trains on.

use crate::config::{BatchAdjust, Config};
use crate::env_manager::metrics::Metrics;
use crate::estimator::{Advantages, Estimator, EstimatorError, Inputs, Scored, SoftWeights, Turn, estimate, modify};
use crate::filter::{Filtered, Measurement};
use crate::objective::correction::{self, Correction};
use crate::policy::{Policy, PolicyError, Row, TokenValues, Weights};
use crate::reward::{is_cut, normalise, overlong, penalties, thinking, turn_scores};
use crate::trajectory::Trajectory;
use crate::update::adjust::{adjust, divisor};
use crate::update::{Batch, micro_batches};
use ragen_models::random::Key;

/// A batch, and what it is made of.
#[derive(Debug, Default)]
pub struct Prepared<'a> {
    /// What is trained on; nothing is picked if there is nothing to train on.
    pub batch: Batch<'a>,
    /// The mean divergence from the reference, where it is a part of the reward.
    pub kl: Option<f64>,
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
/// Scores are normalised over the whole rollout, before the filter. A group's statistics count a trajectory once, however many
/// rows it has. One in which nothing was sampled counts there and is no row; one that is left out because a response was cut
/// counts there and is a row, but is not picked to train on.
pub fn prepare<'a>(
    policy: &mut dyn Policy,
    trajectories: &'a [Trajectory],
    filtered: &Filtered,
    config: &Config,
    key: Key,
) -> Result<Prepared<'a>, PolicyError> {
    let kept = &filtered.rows;
    let mut prepared = Prepared::default();
    let scored = scored(trajectories, kept, config, &mut prepared.metrics);
    let mut batch = rows_of(trajectories, kept, config);
    let n_rows = kept.iter().map(|&i| trajectories[i].rows.len()).sum::<usize>();
    let mut put = |key: &str, value: f64| prepared.metrics.insert(key.into(), value);
    put("batch/rows", batch.rows.len() as f64);
    put("batch/empty_rows", (n_rows - batch.rows.len()) as f64);
    put("batch/tokens", batch.rows.iter().map(|row| row.ids.len()).sum::<usize>() as f64);

    let lengths: Vec<usize> = scored.iter().map(Scored::n_tokens).collect();
    let values = score_again(policy, &mut batch, &lengths, config, &mut prepared.metrics)?;
    let mut extra = Vec::new();
    if config.reward.kl.coef != 0.0 {
        let lengths: Vec<usize> = lengths.iter().copied().filter(|n| *n > 0).collect();
        let costs = penalties(&config.reward.kl, &lengths, &batch.old_logp, &batch.reference_logp);
        prepared.metrics.insert("batch/reward_kl".into(), costs.mean);
        prepared.metrics.insert("batch/reward_kl_coef".into(), config.reward.kl.coef);
        (extra, prepared.kl) = (costs.extra, Some(costs.mean));
    }
    let inputs = Inputs { trajectories: &scored, placement: config.reward.placement, extra: &extra, values: &values };
    let mut advantages = match estimate(&config.algorithm, &inputs) {
        Ok(advantages) => advantages,
        // Fewer than two tokens cannot be whitened: there is nothing to train on, and the step is counted as empty.
        Err(EstimatorError::TooFewTokens { .. }) => return Ok(prepared),
        Err(error) => return Err(PolicyError::Invalid(error.to_string())),
    };
    let kept_ratio = filtered.n_kept() as f64 / filtered.groups.len().max(1) as f64;
    let soft = modify(&config.algorithm, &scored, kept_ratio, &mut advantages);
    describe(&advantages, soft, &values, config, &mut prepared.metrics);
    summarise("batch/score", &scored.iter().map(|t| t.score).collect::<Vec<_>>(), &mut prepared.metrics);
    let mut first = 0;
    for (&i, length) in kept.iter().zip(lengths) {
        let tokens = &advantages.advantage[first..first + length];
        first += length;
        prepared.advantages.push((i, tokens.iter().sum::<f64>() / tokens.len().max(1) as f64));
    }
    (batch.advantage, batch.ret, batch.old_value) = (advantages.advantage, advantages.ret, values);
    pick(&mut batch, trajectories, config, key, &mut prepared.metrics);
    prepared.metrics.insert("batch/trained_tokens".into(), batch.trained_tokens() as f64);
    prepared.batch = batch;
    Ok(prepared)
}

/// The trajectories that were kept, as the estimators see them.
fn scored(trajectories: &[Trajectory], kept: &[usize], config: &Config, metrics: &mut Metrics) -> Vec<Scored> {
    let (reward, limit) = (&config.reward, config.rollout.response_tokens);
    let too_long = |t: &Trajectory| t.turns.iter().map(|u| overlong(reward, u.response.len(), limit)).sum::<f64>();
    let thought = |t: &Trajectory| t.turns.iter().map(|u| thinking(reward, u)).sum::<f64>();
    let scores: Vec<f64> = trajectories.iter().map(|t| t.score() + too_long(t) + thought(t)).collect();
    let groups: Vec<usize> = trajectories.iter().map(|t| t.group).collect();
    let tags: Vec<&str> = trajectories.iter().map(|t| t.tag.as_str()).collect();
    let normalised = normalise(reward, &scores, &groups, &tags);
    let mut put = |name: &str, costs: &dyn Fn(&Trajectory) -> f64| {
        let sum = kept.iter().map(|&i| costs(&trajectories[i])).sum::<f64>();
        metrics.insert(name.into(), sum / kept.len().max(1) as f64);
    };
    if reward.overlong_buffer_tokens > 0 {
        put("batch/overlong_penalty", &too_long);
    }
    if reward.think_cost > 0.0 {
        put("batch/think_cost", &thought);
    }
    let of = |&i: &usize| {
        let t = &trajectories[i];
        let rewards = normalised[i].turns(&turn_scores(reward, t, limit));
        let turn = |(turn, reward): (&crate::trajectory::Turn, f64)| Turn {
            n_tokens: turn.response.len(),
            reward,
            state: turn.state_hash,
        };
        let turns = t.turns.iter().zip(rewards).map(turn).collect();
        let truncated = t.outcome.truncated && !t.outcome.terminated;
        Scored { group: t.group, score: normalised[i].score, turns, truncated }
    };
    kept.iter().map(of).collect()
}

/// The rows of the trajectories that were kept, each with what it was sampled with.
fn rows_of<'a>(trajectories: &'a [Trajectory], kept: &[usize], config: &Config) -> Batch<'a> {
    let rows = kept.iter().flat_map(|&i| trajectories[i].rows.iter().map(move |row| (i, row)));
    let mut batch = Batch { horizon_tokens: config.rollout.model_tokens, ..Batch::default() };
    for (i, row) in rows.filter(|(_, row)| !row.targets.is_empty()) {
        batch.rows.push(row.view());
        batch.episodes.push(i);
        batch.old_logp.extend_from_slice(&row.logps);
    }
    batch
}

/// Fills in what the policy and the reference say of the rows, and what each token counts; returns values.
fn score_again(
    policy: &mut dyn Policy,
    batch: &mut Batch<'_>,
    lengths: &[usize],
    config: &Config,
    metrics: &mut Metrics,
) -> Result<Vec<f32>, PolicyError> {
    let reads_values = config.algorithm.estimator.reads_values();
    if reads_values && !policy.has_value() {
        return Err(PolicyError::Missing("value head, which algorithm.estimator = \"gae\" and \"bilevel_gae\" need"));
    }
    let mut values = Vec::new();
    if reads_values || config.update.rescore {
        let now = score(policy, Weights::Policy, &batch.rows, config)?;
        if config.update.rescore {
            let sampled = std::mem::replace(&mut batch.old_logp, now.logp);
            let weights = correction::weights(&config.update.correction, lengths, &sampled, &batch.old_logp);
            metrics.insert("batch/sampling_kl".into(), weights.kl);
            metrics.insert("batch/sampling_ratio_mean".into(), weights.mean_ratio);
            metrics.insert("batch/sampling_ratio_max".into(), weights.max_ratio);
            if config.update.correction.kind != Correction::None {
                metrics.insert("batch/sampling_ratio_limited".into(), weights.limited);
                batch.weight = weights.weight;
            }
        }
        if reads_values {
            values = now.value;
        }
    }
    if config.needs_reference() {
        batch.reference_logp = score(policy, Weights::Reference, &batch.rows, config)?.logp;
        let sum: f64 = batch.reference_logp.iter().map(|logp| f64::from(*logp)).sum();
        metrics.insert("rollout/ref_log_prob".into(), sum / batch.reference_logp.len().max(1) as f64);
    }
    Ok(values)
}

/// `batch/…` metrics of advantages, and `value/explained_var`.
fn describe(
    advantages: &Advantages,
    soft: Option<SoftWeights>,
    values: &[f32],
    config: &Config,
    metrics: &mut Metrics,
) {
    let mut put = |key: &str, value: f64| metrics.insert(key.into(), value);
    put("batch/singletons", advantages.n_singletons as f64);
    if config.algorithm.estimator == Estimator::Gigpo {
        put("batch/anchors", advantages.n_anchors as f64);
        put("batch/lone_anchors", advantages.n_lone_anchors as f64);
    }
    if let Some(soft) = soft {
        put("batch/soft_weight_min", soft.min);
        put("batch/soft_weight_max", soft.max);
        put("batch/soft_weight_mean", soft.mean);
    }
    if config.algorithm.estimator.reads_values() {
        let values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
        let errors: Vec<f64> = advantages.ret.iter().zip(&values).map(|(ret, value)| ret - value).collect();
        put("value/explained_var", 1.0 - variance(&errors) / (variance(&advantages.ret) + 1e-5));
        summarise("batch/return", &advantages.ret, metrics);
    }
    summarise("batch/advantage", &advantages.advantage, metrics);
}

/// Chooses which trajectories of the batch are trained on.
fn pick(batch: &mut Batch<'_>, trajectories: &[Trajectory], config: &Config, key: Key, metrics: &mut Metrics) {
    let episodes = batch.episode_rows();
    let mut put = |key: &str, n: usize| metrics.insert(key.into(), n as f64);
    let is_skipped =
        |place: usize| config.update.skip_cut && is_cut(&trajectories[batch.episodes[episodes[place].start]]);
    let left: Vec<usize> = (0..episodes.len()).filter(|&place| !is_skipped(place)).collect();
    if config.update.skip_cut {
        put("batch/cut", episodes.len() - left.len());
    }
    let divisor = divisor(config.env.train.groups, config.update.mini_batch, 1);
    let adjusted = adjust(config.update.batch_adjust, left.len(), divisor, key.named("adjust"));
    if config.update.batch_adjust != BatchAdjust::None {
        put("batch/copied", adjusted.added);
        put("batch/removed", adjusted.removed);
    }
    batch.picked = adjusted.picked.into_iter().map(|place| left[place]).collect();
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

//! Gradient analysis of a step's batch: what each bucket of groups would do to the weights, term by term. Nothing is updated.

use super::batch;
use crate::config::Config;
use crate::env_manager::metrics::Metrics;
use crate::filter::Filtered;
use crate::gradient_analysis::{Bucket, buckets, cosine, deal, norm};
use crate::objective::{LossConfig, LossMetrics, Objective, Targets};
use crate::policy::Policy;
use crate::trajectory::Trajectory;
use crate::update::{Batch, UpdateError, accumulate};
use ragen_models::random::Key;
use std::collections::BTreeMap;

/// What is taken apart.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// A batch whose episodes are indices into the trajectories.
    pub batch: &'a Batch<'a>,
    /// All that was played.
    pub trajectories: &'a [Trajectory],
    /// What the filter made of it.
    pub filtered: &'a Filtered,
}

/// [`analyse`] of what the filter kept, and, if that is asked for, of all that was played.
pub fn analyse_both(
    policy: &mut dyn Policy,
    of: Subject<'_>,
    config: &Config,
    key: Key,
) -> Result<Metrics, UpdateError> {
    let mut found = analyse(policy, of, "grad_norm", config, key)?;
    if config.gradient_analysis.prefilter {
        let all = of.filtered.without(of.trajectories.len());
        let batch = batch::prepare(policy, of.trajectories, &all, config, key)?.batch;
        let of = Subject { batch: &batch, ..of };
        found.extend(analyse(policy, of, "grad_norm_prefilter", config, key)?);
    }
    Ok(found)
}

/// The same metrics with those that say what was taken apart, RAGEN's names.
pub fn described(mut found: Metrics, of: Subject<'_>, config: &Config, is_of_training: bool) -> Metrics {
    let places = of.batch.episode_rows();
    let adjusted: usize = of.batch.picked.iter().map(|&place| places[place].len()).sum();
    let mut put = |key: &str, value: f64| found.insert(format!("grad_analysis/{key}"), value);
    put("uses_training_batch", f64::from(u8::from(is_of_training)));
    put("source_env_groups", config.env.train.groups as f64);
    put("source_group_size", config.env.train.group_size as f64);
    put("source_batch_size", of.batch.rows.len() as f64);
    put("adjusted_batch_size", adjusted as f64);
    for (key, value) in of.filtered.metrics.iter().filter(|_| !is_of_training) {
        put(key.trim_start_matches("rollout/"), *value);
    }
    found
}

/// The metrics `{prefix}/{bucket}/…` of a batch.
///
/// Of every bucket the gradient of its mean loss is taken, as if it were a mini-batch, so how it is cut into micro-batches changes
/// rounding only. Gradients must be zero before, and are zero afterwards; weights, optimiser and random numbers are not touched.
fn analyse(
    policy: &mut dyn Policy,
    of: Subject<'_>,
    prefix: &str,
    config: &Config,
    key: Key,
) -> Result<Metrics, UpdateError> {
    let Subject { batch, trajectories, filtered } = of;
    let mut metrics = Metrics::new();
    let is_empty = batch.picked.is_empty();
    metrics.insert(format!("{prefix}/empty_after_filter"), f64::from(u8::from(is_empty)));
    if is_empty {
        return Ok(metrics);
    }
    // The group of each picked episode, which is counted as often as it is picked.
    let places = batch.episode_rows();
    let of_place = |place: usize| trajectories[batch.episodes[places[place].start]].group;
    let spreads: BTreeMap<usize, f64> = filtered.groups.iter().map(|group| (group.group, group.reward_std)).collect();
    let present: BTreeMap<usize, f64> = batch
        .picked
        .iter()
        .map(|&place| of_place(place))
        .map(|group| (group, spreads.get(&group).copied().unwrap_or(0.0)))
        .collect();
    let present: Vec<(usize, f64)> = present.into_iter().collect();
    let n_rows: usize = batch.picked.iter().map(|&place| places[place].len()).sum();
    for bucket in buckets(&present, config.gradient_analysis.mode, config.gradient_analysis.buckets) {
        let holds = |place: &usize| bucket.groups.binary_search(&of_place(*place)).is_ok();
        let picked: Vec<usize> = batch.picked.iter().copied().filter(holds).collect();
        let group_of: BTreeMap<usize, usize> = picked.iter().map(|&place| of_place(place)).enumerate().collect();
        // The value loss is no part of the analysis.
        let part = Batch { ret: Vec::new(), old_value: Vec::new(), ..batch.gather(&picked, &places) };
        let share = part.rows.len() as f64 / n_rows as f64;
        let key = key.named(&bucket.name);
        let found = Analysis { policy, part, group_of: &group_of, config, key }.run(&bucket, share)?;
        for (name, value) in found {
            if bucket.name == "all" && prefix == "grad_norm" {
                // RAGEN's names of the whole batch's.
                match name.as_str() {
                    "task" | "entropy" | "kl" => drop(metrics.insert(format!("actor/grad_norm/{name}"), value)),
                    loss if loss.starts_with("loss/") => drop(metrics.insert(format!("actor/{loss}"), value)),
                    _ => {}
                }
            }
            metrics.insert(format!("{prefix}/{}/{name}", bucket.name), value);
        }
    }
    Ok(metrics)
}

/// The analysis of one bucket.
struct Analysis<'a, 'b> {
    policy: &'a mut dyn Policy,
    part: Batch<'b>,
    group_of: &'a BTreeMap<usize, usize>,
    config: &'a Config,
    key: Key,
}

impl Analysis<'_, '_> {
    fn run(mut self, bucket: &Bucket, share: f64) -> Result<Vec<(String, f64)>, UpdateError> {
        let loss = &self.config.update.loss;
        let only = |entropy_coef: f64, kl_coef: f64| {
            let mut term = LossConfig { entropy_coef, ..loss.clone() };
            term.kl.coef = kl_coef;
            term
        };
        let (entropy_coef, kl_coef) = (loss.entropy_coef, loss.kl.coef);
        let n_tokens = self.part.advantage.len() as f64;
        let n_rows = self.part.rows.len() as f64;
        let mut found = vec![("sample_count".to_string(), n_rows), ("sample_pct".into(), share)];
        let [mean, least, largest] = bucket.reward_std;
        for (name, value) in [("mean", mean), ("min", least), ("max", largest)] {
            found.push((format!("reward_std_{name}"), value));
        }
        found.push(("group_rv_count".into(), bucket.groups.len() as f64));

        let (losses, task) = self.gradient(&only(0.0, 0.0))?;
        let noise = self.noise(&only(0.0, 0.0), norm(&task))?;
        found.extend(noise.map(|share| ("noise_share".into(), share)));
        self.part.advantage.fill(0.0);
        let mut terms = vec![("task", task)];
        if entropy_coef != 0.0 {
            terms.push(("entropy", self.gradient(&only(entropy_coef, 0.0))?.1));
        }
        if kl_coef != 0.0 {
            terms.push(("kl", self.gradient(&only(0.0, kl_coef))?.1));
        }
        for (i, (name, gradient)) in terms.iter().enumerate() {
            let norm = norm(gradient);
            found.push((name.to_string(), norm));
            found.push((format!("per_sample/{name}"), norm / n_rows));
            found.push((format!("per_token/{name}"), norm / n_tokens.max(1.0)));
            for (other, against) in &terms[i + 1..] {
                found.extend(cosine(gradient, against).map(|cosine| (format!("cosine/{name}_{other}"), cosine)));
            }
        }
        found.push(("loss/policy".into(), losses.policy_loss));
        found.push(("loss/entropy".into(), losses.entropy));
        if kl_coef != 0.0 {
            found.push(("loss/kl".into(), losses.kl));
        }
        let total = losses.policy_loss - entropy_coef * losses.entropy + kl_coef * losses.kl;
        found.push(("loss/total".into(), total));
        Ok(found)
    }

    /// Loss and gradient of the part under one configuration of the terms.
    fn gradient(&mut self, loss: &LossConfig) -> Result<(LossMetrics, Vec<f32>), UpdateError> {
        let Analysis { policy, part, config, .. } = self;
        let lengths: Vec<usize> = part.rows.iter().map(|row| row.targets.len()).collect();
        let targets = Targets {
            lengths: &lengths,
            episodes: &part.episodes,
            old_logp: &part.old_logp,
            advantage: &part.advantage,
            weight: &part.weight,
            ret: &part.ret,
            old_value: &part.old_value,
            reference_logp: &part.reference_logp,
        };
        let objective = Objective::new(loss, targets, part.horizon_tokens)?;
        let temperature = config.rollout.sampling.temperature;
        let found = accumulate(*policy, &part.rows, &objective, &config.update, temperature)?;
        Ok((found, policy.take_gradients()?))
    }

    /// The mean squared norm of the task's gradient when rewards are dealt at random within groups, as a share of what it is; `None`
    /// where it is zero.
    fn noise(&mut self, loss: &LossConfig, norm_of_task: f64) -> Result<Option<f64>, UpdateError> {
        let n = self.config.gradient_analysis.noise_draws;
        if n == 0 || norm_of_task == 0.0 {
            return Ok(None);
        }
        let episodes: Vec<usize> = (self.part.rows.iter().zip(&self.part.episodes))
            .flat_map(|(row, &episode)| std::iter::repeat_n(episode, row.targets.len()))
            .collect();
        let advantage = self.part.advantage.clone();
        let mut sum = 0.0;
        for draw in 0..n as u64 {
            self.part.advantage = deal(&advantage, &episodes, self.group_of, self.key.with(draw));
            let norm = norm(&self.gradient(loss)?.1);
            sum += norm * norm;
        }
        Ok(Some(sum / n as f64 / (norm_of_task * norm_of_task)))
    }
}

//! Advantages: how much better each trained token did than expected.
//!
//! Pure functions on host slices, one value a trained token. Tokens that the policy did not sample are absent, which is
//! how the estimators treat masked ones: an advantage passes over them without decay.

use crate::statistics;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How advantages are estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Generalised advantage estimation over a value head (PPO).
    #[default]
    Gae,
    /// A trajectory's score relative to its group's.
    Grpo,
}

/// `[algorithm]`: the advantage estimator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlgorithmConfig {
    /// `gae` (PPO; needs a value head) or `grpo`.
    pub estimator: Estimator,
    /// Discount from one trained token to the next (`gae`).
    pub gamma: f64,
    /// Weight of longer returns: 0 looks one token ahead, 1 sums up to the end (`gae`).
    pub lambda: f64,
    /// Divide by the group's standard deviation (`grpo`); false is Dr. GRPO.
    pub norm_by_std: bool,
    /// Added to the standard deviation before dividing (`grpo`).
    pub epsilon: f64,
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        AlgorithmConfig { estimator: Estimator::Gae, gamma: 1.0, lambda: 1.0, norm_by_std: true, epsilon: 1e-6 }
    }
}

/// Why there are no advantages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EstimatorError {
    /// Advantages are whitened over all trained tokens, which needs a spread.
    #[error("advantages cannot be whitened over {n_tokens} trained token(s): at least 2 are needed")]
    TooFewTokens {
        /// Trained tokens of the batch.
        n_tokens: usize,
    },
    /// An input does not have one value a trained token.
    #[error("{what} has {found} values for {n_tokens} trained tokens")]
    Length {
        /// Which input.
        what: &'static str,
        /// Its length.
        found: usize,
        /// Trained tokens of the batch.
        n_tokens: usize,
    },
}

/// One row of the training batch, as the estimators see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Trajectories of one group are compared with each other.
    pub group: usize,
    /// The trajectory that the row belongs to. Rows of one trajectory count once in the group's statistics.
    pub trajectory: usize,
    /// Trained tokens.
    pub n_tokens: usize,
    /// What the row is trained on in all (after normalisation).
    pub score: f64,
}

/// Advantages of a batch, one value a trained token, rows in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages {
    /// How much better the token did than expected.
    pub advantage: Vec<f64>,
    /// What the value head should predict; empty unless the estimator has one.
    pub ret: Vec<f64>,
    /// The standard deviation of each row's group, 1 for a group of one; empty unless the estimator compares groups.
    pub group_std: Vec<f64>,
    /// Groups of one trajectory, whose advantage is their raw score.
    pub n_singletons: usize,
}

/// Advantages by the configured estimator.
///
/// `rewards` (one value a trained token, see [`terminal_rewards`]) and `values` (the value head's) are read by `gae`,
/// the rows' scores by `grpo`.
///
/// **Errors** if `gae` is asked for and an input has the wrong length or the batch has fewer than two trained tokens.
pub fn estimate(
    config: &AlgorithmConfig,
    rows: &[Row],
    rewards: &[f64],
    values: &[f32],
) -> Result<Advantages, EstimatorError> {
    if config.estimator == Estimator::Grpo {
        return Ok(grpo(rows, config.norm_by_std, config.epsilon));
    }
    let n_tokens = rows.iter().map(|row| row.n_tokens).sum();
    for (what, found) in [("rewards", rewards.len()), ("values", values.len())] {
        if found != n_tokens {
            return Err(EstimatorError::Length { what, found, n_tokens });
        }
    }
    let mut advantages = Advantages::default();
    let mut start = 0;
    for row in rows {
        let tokens = start..start + row.n_tokens;
        start = tokens.end;
        let (advantage, ret) = gae(&rewards[tokens.clone()], &values[tokens], config.gamma, config.lambda);
        advantages.advantage.extend(advantage);
        advantages.ret.extend(ret);
    }
    whiten(&mut advantages.advantage)?;
    Ok(advantages)
}

/// Token rewards that hold each row's score on its last trained token and 0 elsewhere. The score of a row without
/// trained tokens is lost.
pub fn terminal_rewards(rows: &[Row]) -> Vec<f64> {
    let mut rewards = Vec::new();
    for row in rows {
        rewards.resize(rewards.len() + row.n_tokens, 0.0);
        if let (true, Some(last)) = (row.n_tokens > 0, rewards.last_mut()) {
            *last = row.score;
        }
    }
    rewards
}

/// Advantages and returns of one row's trained tokens by generalised advantage estimation, not whitened.
///
/// **Math** from the last token backwards: δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γ λ A_{t+1}, R_t = A_t + V_t, with
/// V and A zero after the last. **Source** Schulman et al., arXiv:1506.02438, equation 16.
///
/// **Panics** if the lengths differ.
pub fn gae<V: Copy + Into<f64>>(rewards: &[f64], values: &[V], gamma: f64, lambda: f64) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(rewards.len(), values.len(), "one value a reward");
    let mut advantage = vec![0.0; rewards.len()];
    let mut ret = vec![0.0; rewards.len()];
    let (mut next_value, mut next_advantage) = (0.0, 0.0);
    for t in (0..rewards.len()).rev() {
        let value: f64 = values[t].into();
        next_advantage = rewards[t] + gamma * next_value - value + gamma * lambda * next_advantage;
        next_value = value;
        advantage[t] = next_advantage;
        ret[t] = next_advantage + value;
    }
    (advantage, ret)
}

/// Group-relative advantages: each row's score less its group's mean, over the group's standard deviation if
/// `norm_by_std` (else Dr. GRPO), the same for all tokens of the row.
///
/// **Math** A_i = (s_i − mean) / (std + ε) with the unbiased std over the trajectories of the group. A group of one has
/// mean 0 and std 1, so its advantage is its raw score. In a group of equal scores all advantages are exactly 0.
///
/// **Source** Shao et al., arXiv:2402.03300, section 4.1.2; Liu et al., arXiv:2503.20783 (Dr. GRPO).
pub fn grpo(rows: &[Row], norm_by_std: bool, epsilon: f64) -> Advantages {
    let mut seen = BTreeSet::new();
    let mut scores: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for row in rows {
        if seen.insert((row.group, row.trajectory)) {
            scores.entry(row.group).or_default().push(row.score);
        }
    }
    let statistics: BTreeMap<usize, (f64, f64)> = scores
        .iter()
        .map(|(&group, scores)| match scores.len() {
            1 => (group, (0.0, 1.0)),
            _ => (group, (statistics::mean(scores), statistics::sample_std(scores))),
        })
        .collect();
    let mut advantages = Advantages {
        n_singletons: scores.values().filter(|scores| scores.len() == 1).count(),
        ..Advantages::default()
    };
    for row in rows {
        let (mean, std) = statistics[&row.group];
        let scale = if norm_by_std { std + epsilon } else { 1.0 };
        let n_tokens = advantages.advantage.len() + row.n_tokens;
        advantages.advantage.resize(n_tokens, (row.score - mean) / scale);
        advantages.group_std.push(std);
    }
    advantages
}

/// Shifts and scales values to mean 0 and variance 1; returns their former mean and variance.
///
/// **Math** (x − mean) / sqrt(var + 1e-8), var with Bessel's correction.
///
/// **Errors** if there are fewer than two values.
pub fn whiten(values: &mut [f64]) -> Result<(f64, f64), EstimatorError> {
    const EPS: f64 = 1e-8;
    if values.len() < 2 {
        return Err(EstimatorError::TooFewTokens { n_tokens: values.len() });
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / (n + EPS);
    let var = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (n + EPS) * n / (n - 1.0);
    let scale = 1.0 / (var + EPS).sqrt();
    for value in values {
        *value = (*value - mean) * scale;
    }
    Ok((mean, var))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_models::random::Key;

    fn row(group: usize, trajectory: usize, n_tokens: usize, score: f64) -> Row {
        Row { group, trajectory, n_tokens, score }
    }

    #[test]
    fn group_advantages_have_mean_zero() {
        let key = Key::new(5);
        let rows: Vec<Row> = (0..60).map(|i| row(i % 7, i, 1 + i % 3, 10.0 * key.normal(i as u64))).collect();
        for norm_by_std in [true, false] {
            let advantages = grpo(&rows, norm_by_std, 1e-6);
            for group in 0..7 {
                let mut start = 0;
                let mut sum = 0.0;
                for row in &rows {
                    if row.group == group {
                        sum += advantages.advantage[start];
                    }
                    start += row.n_tokens;
                }
                assert!(sum.abs() < 1e-12, "group {group} sums to {sum:e}");
            }
        }
    }

    #[test]
    fn equal_scores_give_exactly_zero_and_a_group_of_one_its_score() {
        let mut rows: Vec<Row> = (0..5).map(|i| row(0, i, 2, -0.1)).collect();
        rows.push(row(1, 5, 1, -0.7));
        rows.push(row(1, 5, 0, -0.7));
        let advantages = grpo(&rows, true, 1e-6);
        assert_eq!(advantages.advantage[..10], [0.0; 10]);
        assert!((advantages.advantage[10] + 0.7).abs() < 1e-6);
        assert_eq!((advantages.advantage.len(), advantages.n_singletons), (11, 1));
    }

    #[test]
    fn the_configured_estimator_is_used() {
        let rows = [row(0, 0, 2, 1.0), row(0, 1, 0, 0.0), row(0, 2, 1, 0.5)];
        let rewards = terminal_rewards(&rows);
        assert_eq!(rewards, [0.0, 1.0, 0.5]);
        let config = AlgorithmConfig { gamma: 0.5, ..AlgorithmConfig::default() };
        let advantages = estimate(&config, &rows, &rewards, &[0.0; 3]).unwrap();
        assert_eq!(advantages.ret, [0.5, 1.0, 0.5]);
        assert!((advantages.advantage.iter().sum::<f64>()).abs() < 1e-7);
        let error = estimate(&config, &rows, &rewards, &[]).unwrap_err();
        assert_eq!(error, EstimatorError::Length { what: "values", found: 0, n_tokens: 3 });
        let error = estimate(&config, &rows[2..], &rewards[2..], &[0.0]).unwrap_err();
        assert_eq!(error, EstimatorError::TooFewTokens { n_tokens: 1 });
        let config = AlgorithmConfig { estimator: Estimator::Grpo, norm_by_std: false, ..config };
        assert_eq!(estimate(&config, &rows, &[], &[]).unwrap().advantage, [0.5, 0.5, 0.0]);
    }
}

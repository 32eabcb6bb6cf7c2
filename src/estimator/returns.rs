//! Discounted returns without a baseline of their own, and the whitening that stands in for one.

use super::{Advantages, EstimatorError, Inputs, Scored, token_rewards};

/// The discounted return of each token: what it and all later ones earned.
///
/// **Math** G_t = r_t + γ G_{t+1}.
pub fn discounted(rewards: &[f64], gamma: f64) -> Vec<f64> {
    let mut returns = rewards.to_vec();
    for t in (1..returns.len()).rev() {
        returns[t - 1] += gamma * returns[t];
    }
    returns
}

/// [`discounted`] of every trajectory (REINFORCE++ before whitening).
///
/// **Source** Hu et al., arXiv:2501.03262.
pub(super) fn of_tokens(inputs: &Inputs<'_>, gamma: f64) -> Advantages {
    let rewards = token_rewards(inputs);
    let mut advantage = Vec::with_capacity(rewards.len());
    for n_tokens in inputs.trajectories.iter().map(Scored::n_tokens) {
        let start = advantage.len();
        advantage.extend(discounted(&rewards[start..start + n_tokens], gamma));
    }
    Advantages { advantage, ..Advantages::default() }
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

//! Advantages over a value head: generalised advantage estimation, over tokens or over turns and tokens.

use super::{Advantages, AlgorithmConfig, Inputs, token_rewards};
use crate::reward::Placement;

/// Advantages and returns of one trajectory's trained tokens by generalised advantage estimation, not whitened.
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

/// Where a turn ends, for [`bilevel_gae`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnEnd {
    /// Trained tokens of the turn.
    pub n_tokens: usize,
    /// What the turn earned; 0 is a turn's end like any other.
    pub reward: f64,
    /// The value at its end.
    pub value: f64,
}

/// What [`bilevel_gae`] gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bilevel {
    /// Advantage of each token, not whitened.
    pub advantage: Vec<f64>,
    /// Return of each token.
    pub ret: Vec<f64>,
    /// Advantage of each turn.
    pub turn_advantage: Vec<f64>,
    /// Return of each turn, which its last token earns.
    pub turn_ret: Vec<f64>,
}

/// Advantages and returns of one trajectory by estimation over its turns and then over the tokens of each.
///
/// **Math** over turn ends with γ_turn and λ as [`gae`]: H_i and R_i = H_i + V_i. Then [`gae`] with γ and λ over the tokens of
/// each turn alone, whose last token earns R_i. `extra` is what tokens earn beside; it acts within its turn.
///
/// **Source** RAGEN (arXiv:2504.20073), bi-level GAE; VAGEN. **Deviations** the published code takes rewards other than 0 for
/// turn ends, so it merges a turn without reward with the next one and cannot end on one.
///
/// **Panics** if `values` or a non-empty `extra` does not have one value a token.
pub fn bilevel_gae<V: Copy + Into<f64>>(
    turns: &[TurnEnd],
    extra: &[f64],
    values: &[V],
    (gamma, turn_gamma): (f64, f64),
    lambda: f64,
) -> Bilevel {
    let (rewards, ends): (Vec<f64>, Vec<f64>) = turns.iter().map(|turn| (turn.reward, turn.value)).unzip();
    let (turn_advantage, turn_ret) = gae(&rewards, &ends, turn_gamma, lambda);
    let mut all = Bilevel { turn_advantage, turn_ret, ..Bilevel::default() };
    for (turn, ret) in turns.iter().zip(&all.turn_ret) {
        let tokens = all.advantage.len()..all.advantage.len() + turn.n_tokens;
        let mut rewards = match extra {
            [] => vec![0.0; turn.n_tokens],
            extra => extra[tokens.clone()].to_vec(),
        };
        rewards.iter_mut().next_back().into_iter().for_each(|last| *last += ret);
        let (advantage, ret) = gae(&rewards, &values[tokens], gamma, lambda);
        all.advantage.extend(advantage);
        all.ret.extend(ret);
    }
    all
}

/// [`gae`] of every trajectory.
///
/// **Math** with `bootstrap_truncated` V after the last token of a truncated trajectory is that of the last token itself, since what the
/// environment would have said next was never read: δ_T = r_T + γ V_T − V_T.
pub(super) fn by_tokens(inputs: &Inputs<'_>, config: &AlgorithmConfig) -> Advantages {
    let mut rewards = token_rewards(inputs);
    let mut advantages = Advantages::default();
    for trajectory in inputs.trajectories {
        let start = advantages.advantage.len();
        let tokens = start..start + trajectory.n_tokens();
        if let (true, Some(last)) = (config.bootstrap_truncated && trajectory.truncated, tokens.clone().next_back()) {
            rewards[last] += config.gamma * f64::from(inputs.values[last]);
        }
        let (advantage, ret) = gae(&rewards[tokens.clone()], &inputs.values[tokens], config.gamma, config.lambda);
        advantages.advantage.extend(advantage);
        advantages.ret.extend(ret);
    }
    advantages
}

/// [`bilevel_gae`] of every trajectory; with `bootstrap_truncated` the value after the last turn of a truncated one is that of its end,
/// discounted by γ_turn.
pub(super) fn by_turns(inputs: &Inputs<'_>, config: &AlgorithmConfig) -> Advantages {
    let mut advantages = Advantages::default();
    for trajectory in inputs.trajectories {
        let start = advantages.advantage.len();
        let values = &inputs.values[start..start + trajectory.n_tokens()];
        let turns = trajectory.turns_with_tokens();
        let mut end = 0;
        let mut ends: Vec<TurnEnd> = turns
            .iter()
            .map(|turn| {
                end += turn.n_tokens;
                let reward = if inputs.placement == Placement::Turn { turn.reward } else { 0.0 };
                TurnEnd { n_tokens: turn.n_tokens, reward, value: f64::from(values[end - 1]) }
            })
            .collect();
        if let (Placement::Trajectory, Some(last)) = (inputs.placement, ends.last_mut()) {
            last.reward = trajectory.score;
        }
        if let (true, Some(last)) = (config.bootstrap_truncated && trajectory.truncated, ends.last_mut()) {
            last.reward += config.turn_gamma * last.value;
        }
        let extra = if inputs.extra.is_empty() { &[] } else { &inputs.extra[start..start + end] };
        let both = bilevel_gae(&ends, extra, values, (config.gamma, config.turn_gamma), config.lambda);
        advantages.advantage.extend(both.advantage);
        advantages.ret.extend(both.ret);
    }
    advantages
}

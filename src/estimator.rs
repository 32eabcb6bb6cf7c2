//! Advantages: how much better each trained token did than expected.
//!
//! Pure functions on host slices in f64, one value a trained token. Tokens that the policy did not sample are absent, which is
//! how the estimators treat masked ones: an advantage passes over them without decay. A trajectory is a chain of turns here;
//! how it is cut into rows for the model is not known, so it reaches no advantage.
//!
//! An episode that ended in its task earns nothing more: nothing is bootstrapped behind its last token. Nor is it, unless that is asked
//! for, where an episode was cut off at a limit.
//!
//! `values` holds the estimators over a value head, `returns` the one over discounted returns, `groups` those that compare the
//! members of a group, `anchors` the one that also compares turns from equal states, `modifiers` what may follow any of them.

use crate::reward::Placement;
use serde::{Deserialize, Serialize};

mod anchors;
mod groups;
mod modifiers;
mod returns;
mod values;

pub use anchors::gigpo;
pub use groups::{Baseline, Comparison, compare, compare_turns};
pub use modifiers::{FilterLossScaling, SoftWeights, modify};
pub use returns::{discounted, whiten};
pub use values::{Bilevel, TurnEnd, bilevel_gae, gae};

/// How advantages are estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Generalised advantage estimation over a value head (PPO).
    #[default]
    Gae,
    /// The same over turns first, then over the tokens of each turn.
    #[serde(alias = "bi_level_gae")]
    BilevelGae,
    /// A trajectory's score relative to its group's.
    Grpo,
    /// A trajectory's score less the mean of the others in its group.
    Rloo,
    /// Discounted returns, whitened over the batch.
    ReinforcePlusPlus,
    /// A trajectory's score less its group's mean, whitened over the batch.
    ReinforcePlusPlusBaseline,
    /// GRPO, and beside it each turn's return relative to the other turns from the same state.
    Gigpo,
}

impl Estimator {
    /// All of them.
    pub const ALL: [Estimator; 7] = [
        Estimator::Gae,
        Estimator::BilevelGae,
        Estimator::Grpo,
        Estimator::Rloo,
        Estimator::ReinforcePlusPlus,
        Estimator::ReinforcePlusPlusBaseline,
        Estimator::Gigpo,
    ];

    /// Whether it reads a value head.
    pub fn reads_values(self) -> bool {
        matches!(self, Estimator::Gae | Estimator::BilevelGae)
    }

    /// Whether it compares the members of a group.
    pub fn compares_groups(self) -> bool {
        !self.reads_values() && self != Estimator::ReinforcePlusPlus
    }
}

/// `[algorithm]`: the advantage estimator and what may follow it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlgorithmConfig {
    /// `gae` (PPO) and `bilevel_gae` need a value head; `grpo`, `rloo`, `reinforce_plus_plus_baseline` and `gigpo` compare the
    /// members of a group; `reinforce_plus_plus` needs neither.
    pub estimator: Estimator,
    /// Discount from one trained token to the next (`gae`, `bilevel_gae`, `reinforce_plus_plus`).
    pub gamma: f64,
    /// Weight of longer returns: 0 looks one token (or turn) ahead, 1 sums up to the end (`gae`, `bilevel_gae`).
    pub lambda: f64,
    /// What an episode that was cut off at a limit would still have earned is estimated by the value of its last token (`gae`,
    /// `bilevel_gae`); false: it earns nothing more.
    pub bootstrap_truncated: bool,
    /// Discount from one turn to the next (`bilevel_gae`, `gigpo`, and group comparisons with `reward.placement = "turn"`).
    pub turn_gamma: f64,
    /// Divide by the standard deviation (`grpo`, `gigpo`); false is Dr. GRPO.
    pub norm_by_std: bool,
    /// Added to the standard deviation before dividing (`grpo`, `gigpo`).
    pub epsilon: f64,
    /// Weight of the comparison of turns from equal states (`gigpo`).
    pub step_weight: f64,
    /// Scale each group's advantages by its standard deviation over the largest one of the batch.
    pub soft_reweight: bool,
    /// Scale advantages by the share of groups that the filter kept, or by its root.
    pub filter_loss_scaling: FilterLossScaling,
    /// Divide a trajectory's advantages by its trained tokens over their mean in the batch.
    pub length_weight: bool,
    /// Set all advantages to 0, so that only entropy, divergence and values are trained.
    pub zero_task_advantage: bool,
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        AlgorithmConfig {
            estimator: Estimator::Gae,
            gamma: 1.0,
            lambda: 1.0,
            bootstrap_truncated: false,
            turn_gamma: 0.95,
            norm_by_std: true,
            epsilon: 1e-6,
            step_weight: 1.0,
            soft_reweight: false,
            filter_loss_scaling: FilterLossScaling::None,
            length_weight: false,
            zero_task_advantage: false,
        }
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

/// One turn of a trajectory, as the estimators see it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Turn {
    /// Trained tokens.
    pub n_tokens: usize,
    /// What the turn earned, penalties included, after normalisation.
    pub reward: f64,
    /// Hash of the environment's state before the turn.
    pub state: u64,
}

/// One trajectory, as the estimators see it: its tokens are those of its turns, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// Trajectories of one group are compared with each other.
    pub group: usize,
    /// What the trajectory is trained on in all, after normalisation: the sum of its turns' rewards, if it has turns.
    pub score: f64,
    /// Its turns.
    pub turns: Vec<Turn>,
    /// It was cut off at a limit, not ended by its task.
    pub truncated: bool,
}

impl Scored {
    /// A trajectory whose tokens are one turn.
    pub fn whole(group: usize, n_tokens: usize, score: f64) -> Scored {
        Scored { group, score, turns: vec![Turn { n_tokens, reward: score, state: 0 }], truncated: false }
    }

    /// Trained tokens.
    pub fn n_tokens(&self) -> usize {
        self.turns.iter().map(|turn| turn.n_tokens).sum()
    }

    /// The turns that have trained tokens. What a turn without any earned goes to the one before it, or, if there is none, to
    /// the one after it.
    fn turns_with_tokens(&self) -> Vec<Turn> {
        let mut turns: Vec<Turn> = Vec::with_capacity(self.turns.len());
        let mut early = 0.0;
        for turn in &self.turns {
            match (turn.n_tokens, turns.last_mut()) {
                (0, Some(last)) => last.reward += turn.reward,
                (0, None) => early += turn.reward,
                _ => turns.push(Turn { reward: turn.reward + std::mem::take(&mut early), ..*turn }),
            }
        }
        turns
    }
}

/// What advantages are estimated from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// The trajectories.
    pub trajectories: &'a [Scored],
    /// Whether a trajectory earns its score at its end, or each turn its reward at its own.
    pub placement: Placement,
    /// What each trained token earned beside (the divergence's part of the reward); empty: nothing.
    pub extra: &'a [f64],
    /// The value head's estimate for each trained token; empty unless the estimator reads it.
    pub values: &'a [f32],
}

/// Advantages of a batch, one value a trained token, trajectories in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages {
    /// How much better the token did than expected.
    pub advantage: Vec<f64>,
    /// What the value head should predict; empty unless the estimator reads values.
    pub ret: Vec<f64>,
    /// The standard deviation of each trajectory's group, 1 for a group of one; empty unless the estimator compares groups.
    pub group_std: Vec<f64>,
    /// Groups of one trajectory, whose advantage is their raw score.
    pub n_singletons: usize,
    /// States of a group that turns started from (`gigpo`).
    pub n_anchors: usize,
    /// Those that only one turn started from, which counts 0 there (`gigpo`).
    pub n_lone_anchors: usize,
}

/// Advantages by the configured estimator, not modified yet (see [`modify`]).
///
/// **Errors** if an input that the estimator reads has the wrong length, or if it whitens and the batch has fewer than two
/// trained tokens.
pub fn estimate(config: &AlgorithmConfig, inputs: &Inputs<'_>) -> Result<Advantages, EstimatorError> {
    let n_tokens = inputs.trajectories.iter().map(Scored::n_tokens).sum();
    let reads_values = config.estimator.reads_values();
    for (what, found, is_needed) in
        [("extra", inputs.extra.len(), !inputs.extra.is_empty()), ("values", inputs.values.len(), reads_values)]
    {
        if is_needed && found != n_tokens {
            return Err(EstimatorError::Length { what, found, n_tokens });
        }
    }
    let by_turn = inputs.placement == Placement::Turn;
    let relative = |comparison| match by_turn {
        true => compare_turns(inputs, comparison, config.turn_gamma),
        false => compare(inputs, comparison),
    };
    let centred =
        if config.norm_by_std { Comparison::Standardised { epsilon: config.epsilon } } else { Comparison::Centred };
    let mut advantages = match config.estimator {
        Estimator::Gae => values::by_tokens(inputs, config),
        Estimator::BilevelGae => values::by_turns(inputs, config),
        Estimator::Grpo => relative(centred),
        Estimator::Rloo => relative(Comparison::LeaveOneOut),
        Estimator::ReinforcePlusPlus => returns::of_tokens(inputs, config.gamma),
        Estimator::ReinforcePlusPlusBaseline => relative(Comparison::Centred),
        Estimator::Gigpo => gigpo(inputs, centred, config.step_weight, config.turn_gamma),
    };
    let whitens =
        reads_values || matches!(config.estimator, Estimator::ReinforcePlusPlus | Estimator::ReinforcePlusPlusBaseline);
    if whitens {
        whiten(&mut advantages.advantage)?;
    }
    Ok(advantages)
}

/// What each trained token earned: the trajectory's score on its last token, or each turn's reward on the turn's last, and
/// what there is beside. The score of a trajectory without trained tokens is lost.
pub fn token_rewards(inputs: &Inputs<'_>) -> Vec<f64> {
    let mut rewards: Vec<f64> = Vec::new();
    for trajectory in inputs.trajectories {
        let start = rewards.len();
        for turn in trajectory.turns_with_tokens() {
            rewards.resize(rewards.len() + turn.n_tokens, 0.0);
            if let (Placement::Turn, Some(last)) = (inputs.placement, rewards.last_mut()) {
                *last = turn.reward;
            }
        }
        if let (Placement::Trajectory, Some(last)) = (inputs.placement, rewards[start..].last_mut()) {
            *last = trajectory.score;
        }
    }
    rewards.iter_mut().zip(inputs.extra).for_each(|(reward, extra)| *reward += extra);
    rewards
}

#[cfg(test)]
mod tests;

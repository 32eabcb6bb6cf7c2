//! `[rollout]`: how episodes are played.

use super::{ContextMode, History, Overflow, Window};
use crate::policy::Sampling;
use serde::{Deserialize, Serialize};

/// How a prompt is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptStyle {
    /// System message with instruction, legend and actions; turn blocks with state, budget, format and reward.
    Full,
    /// Only the observation between the role tokens.
    Compact,
}

/// `[rollout]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// Turns of an episode at most.
    pub max_turns: usize,
    /// Fewer turns at the beginning of a run.
    pub curriculum: Curriculum,
    /// Episodes played at once; 0: as the memory plan says. Changes no result.
    pub places: usize,
    /// Actions of a turn at most; further ones are dropped without penalty.
    pub max_actions_per_turn: usize,
    /// What separates two actions in an answer.
    pub action_separator: String,
    /// The response reasons between `<think>` tags before it answers.
    pub think: bool,
    /// How a prompt is laid out.
    pub prompt: PromptStyle,
    /// The prompt ends with the opening tag (`<think>`, or `<answer>` without thinking), which is then not trained.
    pub force_open_tag: bool,
    /// A response that reaches `response_tokens` without `</answer>` is closed by the template, untrained.
    pub force_close_tag: bool,
    /// Tokens sampled a turn at most.
    pub response_tokens: usize,
    /// Longest sequence in tokens, prompt and responses together.
    pub model_tokens: usize,
    /// How training rollouts draw tokens.
    pub sampling: Sampling,
    /// Added to an episode's score for each turn that holds an unknown action or none (hence negative).
    pub format_penalty: f64,
    /// Which part of the history the policy sees.
    pub context: ContextMode,
    /// Turns seen in the windowed context modes, the present one included.
    pub context_window: Window,
    /// What happens where they leave no room for a response.
    pub overflow: Overflow,
    /// What a later prompt shows of the earlier turns, for a model that brings a chat template.
    pub history: History,
}

impl Default for Rollout {
    fn default() -> Self {
        Rollout {
            max_turns: 5,
            curriculum: Curriculum::default(),
            places: 0,
            max_actions_per_turn: 2,
            action_separator: "||".into(),
            think: true,
            prompt: PromptStyle::Full,
            force_open_tag: true,
            force_close_tag: false,
            response_tokens: 400,
            model_tokens: 3600,
            sampling: Sampling::default(),
            format_penalty: -0.1,
            context: ContextMode::Full,
            context_window: Window::All,
            overflow: Overflow::Drop,
            history: History::Auto,
        }
    }
}

impl Rollout {
    /// Turns of a training episode at most in this step, counted from 1.
    ///
    /// **Math** m(s) = min(M, c + ⌊(M − c)(s − 1) / S⌋), with M = `max_turns`, c and S the curriculum's turns and steps.
    pub fn max_turns_at(&self, step: u64) -> usize {
        let Curriculum { turns, steps } = self.curriculum;
        if turns == 0 {
            return self.max_turns;
        }
        let more = self.max_turns.saturating_sub(turns) as u128 * u128::from(step.saturating_sub(1));
        let grown = more / u128::from(steps.max(1)) + turns as u128;
        grown.min(self.max_turns as u128) as usize
    }
}

/// `[rollout.curriculum]`: how the horizon of training episodes grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Curriculum {
    /// Turns at most in the first step; 0: `max_turns` throughout.
    pub turns: usize,
    /// Steps after which they are `max_turns`.
    pub steps: u64,
}

impl Default for Curriculum {
    fn default() -> Self {
        Curriculum { turns: 0, steps: 100 }
    }
}

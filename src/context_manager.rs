//! The context manager: what the policy reads before each response, as tokens with provenance.
//!
//! Template pieces are control ids and our own words; everything an environment says goes through plain encoding, so it
//! can never turn into a control token (decision D2). The wording is free; which facts a prompt holds, and in which
//! order, is the published one. This module does not know how responses are parsed or rewarded.

use crate::config::{Config, ContextMode, PromptStyle};
use crate::env_manager::{Episode, TagRules};
use crate::policy::Finish;
use crate::protocol::{ANSWER_CLOSE, ANSWER_OPEN, AnswerFormat, THINK_CLOSE, THINK_OPEN};
use crate::trajectory::{Provenance, Tokens, Turn};
use ragen_models::tokenizer::Tokenizer;
use std::ops::Range;
use std::sync::Arc;

/// Why prompts cannot be laid out as configured.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The tokenizer lacks a control token.
    #[error("the tokenizer has no token `{0}`, which prompts are built from")]
    NoToken(&'static str),
    /// A context mode that cannot be trained yet.
    #[error("rollout.context = \"{0}\" is not supported; use \"full\"")]
    Mode(&'static str),
    /// A window where there is none.
    #[error("rollout.context_window = {0} has no effect with rollout.context = \"full\"; remove it")]
    Window(usize),
    /// There is no room for a response.
    #[error("rollout.response_tokens = {response} leaves no room for a prompt in a context of {context} tokens")]
    NoRoom {
        /// Tokens of a response.
        response: usize,
        /// Tokens of a context.
        context: usize,
    },
}

/// The control ids that prompts are built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Controls {
    bos: u32,
    system: Option<u32>,
    user: u32,
    assistant: u32,
}

/// Lays out prompts.
#[derive(Clone)]
pub struct ContextManager {
    /// From text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens sampled a turn at most.
    pub response_tokens: usize,
    /// Longest sequence in tokens.
    pub context_tokens: usize,
    controls: Controls,
    style: PromptStyle,
    force_open_tag: bool,
    force_close_tag: bool,
    think: bool,
    separator: String,
    max_actions_per_turn: usize,
}

impl ContextManager {
    /// A manager for `[rollout]` with this tokenizer and a policy of so many positions.
    ///
    /// **Errors** [`ContextError`].
    pub fn new(config: &Config, tokenizer: Arc<Tokenizer>, max_positions: usize) -> Result<Self, ContextError> {
        let rollout = &config.rollout;
        match rollout.context {
            ContextMode::Full if rollout.context_window == 0 => {}
            ContextMode::Full => return Err(ContextError::Window(rollout.context_window)),
            ContextMode::LimitedMultiTurn => return Err(ContextError::Mode("limited_multi_turn")),
            ContextMode::SingleTurn => return Err(ContextError::Mode("single_turn")),
        }
        let context_tokens = rollout.model_tokens.min(max_positions);
        if rollout.response_tokens == 0 || rollout.response_tokens >= context_tokens {
            return Err(ContextError::NoRoom { response: rollout.response_tokens, context: context_tokens });
        }
        let id = |name: &'static str| tokenizer.id(name).ok_or(ContextError::NoToken(name));
        let system = match rollout.prompt {
            PromptStyle::Full => Some(id("<system>")?),
            PromptStyle::Compact => None,
        };
        let controls = Controls { bos: id("<bos>")?, system, user: id("<user>")?, assistant: id("<assistant>")? };
        id(ANSWER_CLOSE)?;
        Ok(ContextManager {
            tokenizer,
            response_tokens: rollout.response_tokens,
            context_tokens,
            controls,
            style: rollout.prompt,
            force_open_tag: rollout.force_open_tag,
            force_close_tag: rollout.force_close_tag,
            think: rollout.think,
            separator: rollout.action_separator.clone(),
            max_actions_per_turn: rollout.max_actions_per_turn,
        })
    }

    /// The ids that end a response.
    pub fn stop_ids(&self) -> Vec<u32> {
        self.tokenizer.id(ANSWER_CLOSE).into_iter().collect()
    }

    /// What a response to an episode of this tag must look like.
    pub fn answer_format(&self, rules: &TagRules) -> AnswerFormat {
        AnswerFormat {
            think: self.think,
            separator: self.separator.clone(),
            max_actions_per_turn: self.max_actions_per_turn,
            single_action: rules.single_action,
        }
    }

    /// Whether a prompt that ends at token `len` leaves room for a response.
    pub fn has_room(&self, len: usize) -> bool {
        len + self.response_tokens <= self.context_tokens
    }

    /// The tokens before the next response: the first turn's after nothing, a later one's after the previous response.
    ///
    /// `last` is the turn just finished, none before the first; `turn` counts from 1.
    pub fn prompt(&self, episode: &Episode, turn: usize, last: Option<&Turn>) -> Tokens {
        let mut prompt = Writer { tokens: Tokens::default(), tokenizer: &self.tokenizer };
        let rules = &episode.rules;
        if last.is_none() {
            prompt.control(self.controls.bos);
            if let Some(system) = self.controls.system {
                prompt.control(system);
                self.write_system(&mut prompt, episode);
            }
        }
        if last.is_some_and(|last| self.closes(last.finish)) {
            prompt.tag(ANSWER_CLOSE);
        }
        prompt.control(self.controls.user);
        match self.style {
            PromptStyle::Compact => {
                prompt.environment(&episode.observation());
            }
            PromptStyle::Full => {
                if let Some(last) = last {
                    prompt.words(&format!("Reward of the last turn: {:?}\n\n", last.played.reward + 0.0));
                }
                prompt.words(&format!("Turn {turn}\n"));
                prompt.environment(&episode.observation());
                if last.is_some_and(|last| last.played.invalid) {
                    prompt.words("\nThe last response named no action that can be taken; the state is unchanged.");
                }
                prompt.words(&format!("\nActions left: {}\nRespond in the form ", episode.actions_left));
                if self.think {
                    prompt.tag(THINK_OPEN).words("reasoning").tag(THINK_CLOSE).words(" ");
                }
                let length = if rules.max_tokens > 0 { rules.max_tokens } else { self.response_tokens };
                prompt.tag(ANSWER_OPEN).words("actions").tag(ANSWER_CLOSE);
                prompt.words(&format!(" with at most {length} tokens.\n"));
            }
        }
        prompt.control(self.controls.assistant);
        if self.force_open_tag {
            prompt.tag(self.answer_format(rules).opening_tag());
        }
        prompt.tokens
    }

    /// Instruction, legend, action names, budgets.
    fn write_system(&self, prompt: &mut Writer<'_>, episode: &Episode) {
        let rules = &episode.rules;
        prompt.words("You act step by step in a task.\n").environment(&rules.instruction).words("\n");
        let legend = rules.legend.to_string();
        if !legend.is_empty() {
            prompt.environment(&legend).words("\n");
        }
        if let Some(names) = episode.actions() {
            prompt.words("Actions: ").environment(&names.join(", ")).words("\n");
        }
        let (turn, budget) = (self.max_actions_per_turn, rules.max_actions);
        prompt.words(&match rules.single_action {
            true => format!("One action a turn, {budget} in all.\n"),
            false => format!("At most {turn} actions a turn, separated by {}, and {budget} in all.\n", self.separator),
        });
    }

    /// A scripted player's turn as the policy would write it: the ids after the prompt, the closing tag last.
    pub fn response(&self, turn: &ragen_envs::Turn, format: &AnswerFormat) -> Vec<u32> {
        let mut response = Writer { tokens: Tokens::default(), tokenizer: &self.tokenizer };
        // A word's token has the space before it.
        let spaced = |text: &str| format!(" {text}");
        if self.think {
            response.tag(THINK_OPEN).words(&spaced(&turn.thought)).tag(THINK_CLOSE);
        }
        let answer = turn.actions.join(&format!(" {} ", format.separator));
        response.tag(ANSWER_OPEN).words(&spaced(&answer)).tag(ANSWER_CLOSE);
        match self.force_open_tag {
            true => response.tokens.ids.split_off(self.opening_len(format)),
            false => response.tokens.ids,
        }
    }

    /// Tokens of the opening tag.
    fn opening_len(&self, format: &AnswerFormat) -> usize {
        let mut opening = Writer { tokens: Tokens::default(), tokenizer: &self.tokenizer };
        opening.tag(format.opening_tag());
        opening.tokens.len()
    }

    /// A response as text, with the tags that the template puts around it.
    pub fn response_text(&self, rules: &TagRules, ids: &[u32], finish: Finish) -> String {
        let open = if self.force_open_tag { self.answer_format(rules).opening_tag() } else { "" };
        let close = if self.closes(finish) { ANSWER_CLOSE } else { "" };
        [open, &self.tokenizer.decode(ids), close].concat()
    }

    /// Whether the template closes a response that ended like this.
    fn closes(&self, finish: Finish) -> bool {
        self.force_close_tag && finish == Finish::Length
    }

    /// The reasoning's place among `tokens`, given the response's: between the first opening tag and the closing tag
    /// after it, without blank tokens at either end. `None` without thinking, or if it is not closed or empty.
    pub fn reasoning(&self, tokens: &[u32], response: &Range<usize>) -> Option<Range<usize>> {
        let (open, close) = (self.tokenizer.id(THINK_OPEN)?, self.tokenizer.id(THINK_CLOSE)?);
        let find = |id: u32, from: usize| (from..response.end).find(|&i| tokens[i] == id);
        let start = match self.force_open_tag {
            true if self.think => response.start,
            _ => find(open, response.start)? + 1,
        };
        let end = find(close, start)?;
        let is_blank = |i: &usize| self.tokenizer.decode(&tokens[*i..*i + 1]).trim().is_empty();
        let first = (start..end).find(|i| !is_blank(i))?;
        let last = (first..end).rev().find(|i| !is_blank(i))?;
        self.think.then_some(first..last + 1)
    }
}

/// Builds a prompt piece by piece.
struct Writer<'a> {
    tokens: Tokens,
    tokenizer: &'a Tokenizer,
}

impl Writer<'_> {
    fn control(&mut self, id: u32) {
        self.tokens.push(&[id], Provenance::Template);
    }

    fn words(&mut self, text: &str) -> &mut Self {
        self.tokens.push(&self.tokenizer.encode_plain(text), Provenance::Template);
        self
    }

    fn environment(&mut self, text: &str) -> &mut Self {
        self.tokens.push(&self.tokenizer.encode_plain(text), Provenance::Environment);
        self
    }

    /// A tag as the policy writes it: its own token where there is one.
    fn tag(&mut self, tag: &str) -> &mut Self {
        match self.tokenizer.id(tag) {
            Some(id) => self.control(id),
            None => {
                self.words(tag);
            }
        }
        self
    }
}

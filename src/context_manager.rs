//! The context manager: what the policy reads before each response, as tokens with provenance.
//!
//! There are two layouts. A model with the small tokenizer is prompted by its control ids; a model that brings a chat
//! template by that template, and always in full wording. Everything an environment says goes through plain encoding, so
//! it can never turn into a control token (decision D2). The wording is free; which facts a prompt holds, and in which
//! order, is the published one. This module does not know how responses are parsed or rewarded.

use crate::config::{Config, ContextMode, History, Overflow, PromptStyle, Window};
use crate::env_manager::{Episode, TagRules};
use crate::policy::Finish;
use crate::protocol::{ANSWER_CLOSE, ANSWER_OPEN, AnswerFormat, THINK_CLOSE, THINK_OPEN};
use crate::trajectory::{Provenance, Tokens, Trajectory};
use chat::ChatLayout;
pub use messages::Conversation;
use messages::{Message, Role, Told};
use ragen_models::chat_template::{Chat, ChatTemplateError};
use ragen_models::tokenizer::Tokenizer;
use std::num::NonZeroUsize;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use wording::Piece;

mod chat;
mod messages;
mod wording;

/// Why prompts cannot be laid out as configured.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The tokenizer lacks a control token.
    #[error(
        "the model brings no chat template, and its tokenizer has no token `{0}`, which prompts are built from without one; \
         a language model needs chat_template.jinja or chat_template in tokenizer_config.json"
    )]
    NoToken(&'static str),
    /// The wording of the small model's tasks for another model.
    #[error(
        "rollout.prompt = \"compact\" is for the small model's own words; a model with a chat template needs \"full\""
    )]
    Compact,
    /// Rows as a template shows them, without a template.
    #[error("rollout.history = \"template\" needs a model that brings a chat template")]
    NoTemplate,
    /// The chat template cannot be used.
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// A window where there is none.
    #[error("rollout.context_window = {0} has no effect with rollout.context = \"full\"; remove it")]
    Window(NonZeroUsize),
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

/// How prompts become tokens.
#[derive(Clone)]
enum Layout {
    /// Role ids of the small tokenizer.
    Controls(Controls),
    /// A model's chat template.
    Chat(ChatLayout),
}

/// What the policy reads before a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens: all of them, or those after the last response.
    pub tokens: Tokens,
    /// It begins a row of its own instead of going on behind the last response.
    pub starts_row: bool,
    /// The first turn that the policy then sees, counted from 0.
    pub shown_from: usize,
}

/// The first of `turns` from which on all that is shown fits. None is cut in two, and the last, the present one, stays
/// even if it does not fit.
///
/// **Errors** whatever `fits` does; it is asked in order, last for the turn that is returned.
pub fn first_that_fits<E>(
    turns: RangeInclusive<usize>,
    mut fits: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    let last = *turns.end();
    for first in turns {
        if fits(first)? || first == last {
            return Ok(first);
        }
    }
    Ok(last)
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
    layout: Layout,
    mode: ContextMode,
    window: Window,
    overflow: Overflow,
    style: PromptStyle,
    force_open_tag: bool,
    force_close_tag: bool,
    think: bool,
    separator: String,
    max_actions_per_turn: usize,
}

impl ContextManager {
    /// A manager for `[rollout]` with a model's tokenizer, its chat template if it brings one, and a policy of so many
    /// positions.
    ///
    /// **Errors** [`ContextError`].
    pub fn new(
        config: &Config,
        tokenizer: Arc<Tokenizer>,
        chat: Option<Arc<Chat>>,
        max_positions: usize,
    ) -> Result<Self, ContextError> {
        let rollout = &config.rollout;
        if let (ContextMode::Full, Window::Last(turns)) = (rollout.context, rollout.context_window) {
            return Err(ContextError::Window(turns));
        }
        let context_tokens = rollout.model_tokens.min(max_positions);
        if rollout.response_tokens == 0 || rollout.response_tokens >= context_tokens {
            return Err(ContextError::NoRoom { response: rollout.response_tokens, context: context_tokens });
        }
        let layout = match chat {
            Some(_) if rollout.prompt == PromptStyle::Compact => return Err(ContextError::Compact),
            Some(chat) => {
                let reasoning = if rollout.think { [THINK_OPEN, "r", THINK_CLOSE].concat() } else { String::new() };
                let response = [&reasoning, ANSWER_OPEN, "a", ANSWER_CLOSE].concat();
                Layout::Chat(ChatLayout::new(chat, &tokenizer, rollout.history, &response)?)
            }
            None if rollout.history == History::Template => return Err(ContextError::NoTemplate),
            None => Layout::Controls(controls(&tokenizer, rollout.prompt)?),
        };
        Ok(ContextManager {
            tokenizer,
            response_tokens: rollout.response_tokens,
            context_tokens,
            layout,
            mode: rollout.context,
            window: rollout.context_window,
            overflow: rollout.overflow,
            style: rollout.prompt,
            force_open_tag: rollout.force_open_tag,
            force_close_tag: rollout.force_close_tag,
            think: rollout.think,
            separator: rollout.action_separator.clone(),
            max_actions_per_turn: rollout.max_actions_per_turn,
        })
    }

    /// The ids that end a response: the closing tag where it is a token, and those that end a turn of the model's.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.tokenizer.id(ANSWER_CLOSE).into_iter().collect();
        if let Layout::Chat(layout) = &self.layout {
            ids.extend(&layout.chat.stop_ids);
        }
        ids
    }

    /// A token that says nothing and ends nothing: what a memory plan fills responses with. Shown again as text, as many
    /// times as it was said, it takes as many tokens, if there is such a one.
    pub fn filler(&self) -> u32 {
        let spread = |text: &str| {
            let id = *self.tokenizer.encode_plain(text).first()?;
            let said = self.tokenizer.decode(&[id; 64]);
            Some((self.tokenizer.encode_plain(&said).len(), id))
        };
        let candidates = [" no", " so", " a", "~", "."].iter().filter_map(|text| spread(text));
        candidates.max_by_key(|(tokens, _)| *tokens).map_or(0, |(_, id)| id)
    }

    /// Whether a later turn begins a row of its own even where everything fits.
    pub fn splits_rows(&self) -> bool {
        self.mode != ContextMode::Full || matches!(&self.layout, Layout::Chat(layout) if layout.rewrites)
    }

    /// Whether responses also end by what they say: a language model may spell the closing tag in several tokens.
    pub fn stops_by_text(&self) -> bool {
        matches!(self.layout, Layout::Chat(_))
    }

    /// Whether the newest id of a response completes the closing tag, which may be spread over several tokens.
    pub fn completes_answer(&self, response: &[u32]) -> bool {
        let tag = ANSWER_CLOSE.as_bytes();
        let Some((newest, before)) = response.split_last() else { return false };
        let newest = self.tokenizer.bytes(*newest);
        // Enough of what came before that the tag could end in the newest token's first byte.
        let mut tail: Vec<u8> = Vec::new();
        for id in before.iter().rev() {
            if tail.len() + 1 >= tag.len() {
                break;
            }
            tail.splice(0..0, self.tokenizer.bytes(*id).iter().copied());
        }
        let skip = (tail.len() + 1).saturating_sub(tag.len());
        let text = [&tail[skip..], newest].concat();
        text.windows(tag.len()).any(|window| window == tag)
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

    /// What the policy reads before the next response of an episode; `conversation` is kept from prompt to prompt.
    ///
    /// With all turns in view it goes on behind the last response where it can. Otherwise it begins a row, which shows the
    /// turns of the window, or as many of the last ones as leave room for a response.
    ///
    /// **Errors** [`ContextError::Template`] if the chat template refuses the conversation.
    pub fn prompt(
        &self,
        conversation: &mut Conversation,
        episode: &Episode,
        trajectory: &Trajectory,
    ) -> Result<Prompt, ContextError> {
        conversation.listen(self, episode, trajectory);
        let told = Told { conversation, trajectory, rules: &episode.rules };
        let now = trajectory.turns.len();
        let ends = self.overflow == Overflow::End;
        let mut first = match self.window {
            Window::All => 0,
            Window::Last(turns) => (now + 1).saturating_sub(turns.get()),
        };
        if let (ContextMode::Full, Some(last)) = (self.mode, trajectory.turns.last()) {
            first = last.shown_from;
            if let Some(tokens) = self.continuation(&told, first)? {
                if ends || self.has_room(last.response.end + tokens.len()) {
                    return Ok(Prompt { tokens, starts_row: false, shown_from: first });
                }
                first += 1;
            }
        }
        let mut tokens = Tokens::default();
        let shown_from = first_that_fits(first..=now, |first| {
            tokens = self.row(&told, first)?;
            Ok::<bool, ContextError>(ends || self.has_room(tokens.len()))
        })?;
        Ok(Prompt { tokens, starts_row: true, shown_from })
    }

    /// A prompt that begins a row and shows the turns from `first` on.
    fn row(&self, told: &Told<'_>, first: usize) -> Result<Tokens, ContextError> {
        let messages = self.messages(told, first);
        let mut tokens = match &self.layout {
            Layout::Controls(controls) => self.controls_row(*controls, &messages),
            Layout::Chat(layout) => layout.row(&self.tokenizer, &messages)?,
        };
        self.push_opening(&mut tokens, told.rules);
        Ok(tokens)
    }

    /// What goes on behind the last response, in a row that shows the turns from `first` on; `None` where a row of its own
    /// must begin.
    fn continuation(&self, told: &Told<'_>, first: usize) -> Result<Option<Tokens>, ContextError> {
        let Some(last) = told.trajectory.turns.last() else { return Ok(None) };
        let mut tokens = Tokens::default();
        if self.closes(last.finish) {
            self.push_tag(&mut tokens, ANSWER_CLOSE);
        }
        match &self.layout {
            Layout::Controls(controls) => {
                let message = self.user_message(told, told.now(), first);
                self.push_message(&mut tokens, *controls, &message);
                tokens.push(&[controls.assistant], Provenance::Template);
            }
            Layout::Chat(layout) => {
                let messages = self.messages(told, first);
                let Some(tail) = layout.continuation(&self.tokenizer, &messages, told.last_id())? else {
                    return Ok(None);
                };
                tokens.extend(&tail);
            }
        }
        self.push_opening(&mut tokens, told.rules);
        Ok(Some(tokens))
    }

    /// A row of role ids.
    fn controls_row(&self, controls: Controls, messages: &[Message]) -> Tokens {
        let mut tokens = Tokens::default();
        tokens.push(&[controls.bos], Provenance::Template);
        for message in messages {
            self.push_message(&mut tokens, controls, message);
        }
        tokens.push(&[controls.assistant], Provenance::Template);
        tokens
    }

    fn push_message(&self, tokens: &mut Tokens, controls: Controls, message: &Message) {
        let role = match message.role {
            Role::System => controls.system,
            Role::User => Some(controls.user),
            Role::Assistant => Some(controls.assistant),
        };
        if let Some(role) = role {
            tokens.push(&[role], Provenance::Template);
            self.push_pieces(tokens, &message.pieces);
        }
    }

    /// The opening tag that a prompt ends with.
    fn push_opening(&self, tokens: &mut Tokens, rules: &TagRules) {
        if self.force_open_tag {
            self.push_tag(tokens, self.answer_format(rules).opening_tag());
        }
    }

    fn push_pieces(&self, tokens: &mut Tokens, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Words(text) => tokens.push(&self.tokenizer.encode_plain(text), Provenance::Template),
                Piece::Environment(text) => tokens.push(&self.tokenizer.encode_plain(text), Provenance::Environment),
                Piece::Tag(tag) => self.push_tag(tokens, tag),
                Piece::Said { ids, .. } => tokens.push(ids, Provenance::History),
            }
        }
    }

    /// A tag as the policy writes it: its own token where there is one.
    fn push_tag(&self, tokens: &mut Tokens, tag: &str) {
        match self.tokenizer.id(tag) {
            Some(id) => tokens.push(&[id], Provenance::Template),
            None => tokens.push(&self.tokenizer.encode_plain(tag), Provenance::Template),
        }
    }

    /// A scripted player's turn as the policy would write it: the ids after the prompt, the closing tag last.
    pub fn response(&self, turn: &ragen_envs::Turn, format: &AnswerFormat) -> Vec<u32> {
        // A word's token has the space before it.
        let spaced = |text: &str| Piece::Words(format!(" {text}"));
        let answer = turn.actions.join(&format!(" {} ", format.separator));
        let mut pieces = Vec::new();
        if self.think {
            pieces.extend([Piece::Tag(THINK_OPEN), spaced(&turn.thought), Piece::Tag(THINK_CLOSE)]);
        }
        pieces.extend([Piece::Tag(ANSWER_OPEN), spaced(&answer), Piece::Tag(ANSWER_CLOSE)]);
        let mut response = Tokens::default();
        self.push_pieces(&mut response, &pieces);
        match self.force_open_tag {
            true => response.ids.split_off(self.opening_len(format)),
            false => response.ids,
        }
    }

    /// Tokens of the opening tag.
    fn opening_len(&self, format: &AnswerFormat) -> usize {
        let mut opening = Tokens::default();
        self.push_tag(&mut opening, format.opening_tag());
        opening.len()
    }

    /// A response as text, with the tags that the template puts around it. A language model's special tokens, such as the
    /// end of its turn, are no part of what it says.
    pub fn response_text(&self, rules: &TagRules, ids: &[u32], finish: Finish) -> String {
        let open = if self.force_open_tag { self.answer_format(rules).opening_tag() } else { "" };
        let close = if self.closes(finish) { ANSWER_CLOSE } else { "" };
        let said = match &self.layout {
            Layout::Controls(_) => self.tokenizer.decode(ids),
            Layout::Chat(_) => self.tokenizer.decode_without_special(ids),
        };
        [open, &said, close].concat()
    }

    /// The reasoning's place among `tokens`, given the response's: the tokens wholly between the first opening tag and the
    /// closing tag after it, without blank ones at either end. `None` without thinking, or if it is not closed or empty.
    ///
    /// A tag may be a token of its own or be spelled by several, also by some that hold more than the tag.
    pub fn reasoning(&self, tokens: &[u32], response: &Range<usize>) -> Option<Range<usize>> {
        if !self.think {
            return None;
        }
        // Where each token of the response ends in its bytes.
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(response.len()));
        for id in &tokens[response.clone()] {
            bytes.extend_from_slice(self.tokenizer.bytes(*id));
            ends.push(bytes.len());
        }
        let find = |tag: &str, from: usize| {
            let at = bytes[from..].windows(tag.len()).position(|window| window == tag.as_bytes());
            at.map(|at| from + at)
        };
        let first_byte = match self.force_open_tag {
            true => 0,
            false => find(THINK_OPEN, 0)? + THINK_OPEN.len(),
        };
        let end_byte = find(THINK_CLOSE, first_byte)?;
        let begins = |i: usize| if i == 0 { 0 } else { ends[i - 1] };
        let start = (0..ends.len()).find(|&i| begins(i) >= first_byte)?;
        let end = (start..ends.len()).find(|&i| ends[i] > end_byte)?;
        let is_blank = |i: &usize| bytes[begins(*i)..ends[*i]].trim_ascii().is_empty();
        let first = (start..end).find(|i| !is_blank(i))?;
        let last = (first..end).rev().find(|i| !is_blank(i))?;
        Some(response.start + first..response.start + last + 1)
    }
}

/// The role ids of a tokenizer.
fn controls(tokenizer: &Tokenizer, style: PromptStyle) -> Result<Controls, ContextError> {
    let id = |name: &'static str| tokenizer.id(name).ok_or(ContextError::NoToken(name));
    let system = match style {
        PromptStyle::Full => Some(id("<system>")?),
        PromptStyle::Compact => None,
    };
    let controls = Controls { bos: id("<bos>")?, system, user: id("<user>")?, assistant: id("<assistant>")? };
    id(ANSWER_CLOSE)?;
    Ok(controls)
}

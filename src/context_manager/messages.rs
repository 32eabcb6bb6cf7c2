//! Which messages a prompt is made of: the turns that it shows, as a conversation or summed up in one message.

use super::ContextManager;
use super::wording::Piece;
use crate::config::{ContextMode, PromptStyle};
use crate::env_manager::{Episode, TagRules};
use crate::policy::Finish;
use crate::protocol::ANSWER_CLOSE;
use crate::trajectory::{Provenance, Tokens, Trajectory};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
}

/// What is said at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub role: Role,
    pub pieces: Vec<Piece>,
}

/// What an episode's prompts say, kept from prompt to prompt, so that a turn is shown later as it was shown first.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    system: Vec<Piece>,
    first_state: String,
    /// What was said before each response, without the reward of the turn before.
    blocks: Vec<Vec<Piece>>,
}

impl Conversation {
    /// Takes in the present state of the episode.
    pub(super) fn listen(&mut self, context: &ContextManager, episode: &Episode, trajectory: &Trajectory) {
        if self.blocks.is_empty() {
            self.first_state = episode.observation();
            if context.style == PromptStyle::Full {
                self.system = context.system_message(episode);
            }
        }
        let now = trajectory.turns.len();
        let notice = trajectory.turns.last().is_some_and(|last| last.played.invalid);
        self.blocks.push(match context.style {
            PromptStyle::Compact => context.state(episode),
            PromptStyle::Full => context.block(episode, now + 1, notice),
        });
    }
}

/// An episode up to its present state, as the prompts tell it.
pub(super) struct Told<'a> {
    pub conversation: &'a Conversation,
    pub trajectory: &'a Trajectory,
    pub rules: &'a TagRules,
}

impl Told<'_> {
    /// The present turn, counted from 0.
    pub fn now(&self) -> usize {
        self.trajectory.turns.len()
    }

    /// What the environment showed first.
    pub fn first_state(&self) -> &str {
        &self.conversation.first_state
    }

    /// The last token that was sampled.
    pub fn last_id(&self) -> Option<u32> {
        self.sampled(self.now().checked_sub(1)?).last().copied()
    }

    /// The ids that were sampled in a turn.
    fn sampled(&self, turn: usize) -> &[u32] {
        let turn = &self.trajectory.turns[turn];
        self.trajectory.rows.get(turn.row).and_then(|row| row.tokens.ids.get(turn.response.clone())).unwrap_or(&[])
    }
}

impl ContextManager {
    /// The messages of a row that shows the turns from `first` on.
    pub(super) fn messages(&self, told: &Told<'_>, first: usize) -> Vec<Message> {
        let mut messages = vec![Message { role: Role::System, pieces: told.conversation.system.clone() }];
        match self.mode {
            ContextMode::SingleTurn => {
                let mut pieces = self.summary(told, first);
                pieces.extend_from_slice(&told.conversation.blocks[told.now()]);
                messages.push(Message { role: Role::User, pieces });
            }
            ContextMode::Full | ContextMode::LimitedMultiTurn => {
                for turn in first..told.now() {
                    messages.push(self.user_message(told, turn, first));
                    messages.push(Message { role: Role::Assistant, pieces: vec![self.said(told, turn)] });
                }
                messages.push(self.user_message(told, told.now(), first));
            }
        }
        messages
    }

    /// A turn's own message. The reward of the turn before it comes first, if that turn is shown.
    pub(super) fn user_message(&self, told: &Told<'_>, turn: usize, first: usize) -> Message {
        let mut pieces = Vec::new();
        if turn > first && self.style == PromptStyle::Full {
            pieces.push(self.reward_of_last(&told.trajectory.turns[turn - 1]));
        }
        pieces.extend_from_slice(&told.conversation.blocks[turn]);
        Message { role: Role::User, pieces }
    }

    /// A response shown again: the very ids, and what the template put around them.
    pub(super) fn said(&self, told: &Told<'_>, turn: usize) -> Piece {
        let mut tokens = Tokens::default();
        self.push_opening(&mut tokens, told.rules);
        tokens.push(told.sampled(turn), Provenance::History);
        let said = &told.trajectory.turns[turn];
        if self.closes(said.finish) {
            self.push_tag(&mut tokens, ANSWER_CLOSE);
        }
        Piece::Said { text: said.text.clone(), ids: tokens.ids }
    }

    /// Whether the template closes a response that ended like this.
    pub(super) fn closes(&self, finish: Finish) -> bool {
        self.force_close_tag && finish == Finish::Length
    }
}

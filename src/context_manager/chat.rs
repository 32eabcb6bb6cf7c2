//! The layout of a model that brings a chat template: a conversation, continued by what the template writes in between.
//!
//! A prompt after the first is appended to what was sampled, id by id, wherever the template shows history as it was
//! shown before. Where it does not (some drop earlier reasoning), a new row begins with the template's own rendering, or
//! the template is overruled, as `rollout.history` says. Nothing is altered silently.

use super::wording::text_of;
use super::{ContextError, ContextManager, Prompt};
use crate::config::History;
use crate::env_manager::Episode;
use crate::trajectory::{Provenance, Tokens, Trajectory};
use ragen_models::chat_template::{Assistant, Chat, Encoded, Message};
use serde_json::Map;
use std::sync::Arc;

/// What was said in an episode so far.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    messages: Vec<Message>,
}

/// A chat template, and what it can do.
#[derive(Clone)]
pub(super) struct ChatLayout {
    pub chat: Arc<Chat>,
    history: History,
    /// Whether it takes a system message; otherwise its text comes before that of the first user message.
    has_system: bool,
}

impl ChatLayout {
    /// Tries the template on a conversation as it will be had.
    pub fn new(chat: Arc<Chat>, history: History) -> Result<Self, ContextError> {
        let talk = [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v")].map(|(r, c)| Message::new(r, c));
        let render = |messages: &[Message]| chat.template.render(messages, true, &Map::new());
        let has_system = render(&talk).is_ok();
        if !has_system {
            render(&talk[1..])?;
        }
        Ok(ChatLayout { chat, history, has_system })
    }
}

impl ContextManager {
    /// The next prompt of a conversation.
    pub(super) fn chat_prompt(
        &self,
        layout: &ChatLayout,
        conversation: &mut Conversation,
        episode: &Episode,
        trajectory: &Trajectory,
    ) -> Result<Prompt, ContextError> {
        let last = trajectory.turns.last();
        let mut text = text_of(&self.user_message(episode, trajectory.turns.len() + 1, last));
        match last {
            Some(last) => conversation.messages.push(Message::new("assistant", last.text.clone())),
            None => {
                let system = text_of(&self.system_message(episode));
                match layout.has_system {
                    true => conversation.messages.push(Message::new("system", system)),
                    false => text = format!("{system}\n\n{text}"),
                }
            }
        }
        conversation.messages.push(Message::new("user", text));
        let messages = &conversation.messages;

        let mut prompt = Prompt { starts_row: last.is_none(), tokens: Tokens::default() };
        if let Some(last) = last {
            let continuation = layout.chat.template.continuation(&self.tokenizer, messages, &Map::new())?;
            prompt.starts_row = match layout.history {
                History::Append => false,
                History::Auto => !continuation.is_extension,
                History::Template => true,
            };
            if !prompt.starts_row {
                if self.closes(last.finish) {
                    self.push_tag(&mut prompt.tokens, crate::protocol::ANSWER_CLOSE);
                }
                // The policy may have ended its turn itself.
                let sampled = trajectory.rows.get(last.row).and_then(|row| row.tokens.ids.get(last.response.clone()));
                let is_ended = |first: &u32| sampled.and_then(<[u32]>::last) == Some(first);
                let skip = usize::from(continuation.tail.ids.first().is_some_and(is_ended));
                push_encoded(&mut prompt.tokens, &continuation.tail, skip, messages);
            }
        }
        if prompt.starts_row {
            let template = &layout.chat.template;
            let encoded = template.encode(&self.tokenizer, messages, true, &Map::new(), Assistant::Own)?;
            push_encoded(&mut prompt.tokens, &encoded, 0, messages);
        }
        if self.force_open_tag {
            self.push_tag(&mut prompt.tokens, self.answer_format(&episode.rules).opening_tag());
        }
        Ok(prompt)
    }
}

/// Appends a rendering but for its first `skip` ids.
fn push_encoded(tokens: &mut Tokens, encoded: &Encoded, skip: usize, messages: &[Message]) {
    for (id, message) in encoded.ids.iter().zip(&encoded.message).skip(skip) {
        let provenance = match message.map(|index| messages[index].role.as_str()) {
            None => Provenance::Template,
            Some("assistant") => Provenance::History,
            Some(_) => Provenance::Environment,
        };
        tokens.push(&[*id], provenance);
    }
}

//! The layout of a model that brings a chat template: a conversation, continued by what the template writes in between.
//!
//! A prompt after the first is appended to what was sampled, id by id, wherever the template shows history as it was
//! shown before. Where it does not (some drop earlier reasoning), a new row begins with the template's own rendering, or
//! the template is overruled, as `rollout.history` says. Nothing is altered silently.

use super::ContextError;
use super::messages::{Message, Role};
use super::wording::text_of;
use crate::config::History;
use crate::trajectory::{Provenance, Tokens};
use ragen_models::chat_template::{self, Assistant, Chat, Encoded};
use ragen_models::tokenizer::Tokenizer;
use serde_json::Map;
use std::sync::Arc;

/// A chat template, and what it can do.
#[derive(Clone)]
pub(super) struct ChatLayout {
    pub chat: Arc<Chat>,
    history: History,
    /// Whether it takes a system message; otherwise its text comes before that of the first user message.
    has_system: bool,
    /// Whether a later turn begins a row of its own, as far as can be told from a response of the required form.
    pub rewrites: bool,
}

impl ChatLayout {
    /// Tries the template on a conversation as it will be had, with this response in it.
    pub fn new(chat: Arc<Chat>, tokenizer: &Tokenizer, history: History, response: &str) -> Result<Self, ContextError> {
        let talk = [("system", "s"), ("user", "u"), ("assistant", response), ("user", "v")];
        let talk = talk.map(|(role, text)| chat_template::Message::new(role, text));
        let render = |messages: &[chat_template::Message]| chat.template.render(messages, true, &Map::new());
        let has_system = render(&talk).is_ok();
        if !has_system {
            render(&talk[1..])?;
        }
        let continuation = || chat.template.continuation(tokenizer, &talk[usize::from(!has_system)..], &Map::new());
        let rewrites = match history {
            History::Append => false,
            History::Template => true,
            History::Auto => continuation().is_ok_and(|continuation| !continuation.is_extension),
        };
        Ok(ChatLayout { chat, history, has_system, rewrites })
    }

    /// The messages as the template takes them.
    fn texts(&self, messages: &[Message]) -> Vec<chat_template::Message> {
        let mut texts = Vec::with_capacity(messages.len());
        let mut system = None;
        for message in messages {
            let text = text_of(&message.pieces);
            texts.push(match message.role {
                Role::System if self.has_system => chat_template::Message::new("system", text.trim()),
                Role::System => {
                    system = Some(text);
                    continue;
                }
                Role::User => match system.take() {
                    Some(system) => {
                        chat_template::Message::new("user", format!("{}\n\n{}", system.trim(), text.trim()))
                    }
                    None => chat_template::Message::new("user", text.trim()),
                },
                // As it was said, blanks included.
                Role::Assistant => chat_template::Message::new("assistant", text),
            });
        }
        texts
    }

    /// All messages as the template shows them.
    pub fn row(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Result<Tokens, ContextError> {
        let texts = self.texts(messages);
        let encoded = self.chat.template.encode(tokenizer, &texts, true, &Map::new(), Assistant::Own)?;
        let mut tokens = Tokens::default();
        push_encoded(&mut tokens, &encoded, 0, &texts);
        Ok(tokens)
    }

    /// What the template writes behind the last response, whose last token was `last_id`; `None` where it shows the
    /// conversation otherwise than it was had, or shall, so that a row of its own must begin.
    pub fn continuation(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        last_id: Option<u32>,
    ) -> Result<Option<Tokens>, ContextError> {
        if self.history == History::Template {
            return Ok(None);
        }
        let texts = self.texts(messages);
        let continuation = self.chat.template.continuation(tokenizer, &texts, &Map::new())?;
        if self.history == History::Auto && !continuation.is_extension {
            return Ok(None);
        }
        // The policy may have ended its turn itself.
        let is_ended = continuation.tail.ids.first().is_some_and(|first| last_id == Some(*first));
        let mut tokens = Tokens::default();
        push_encoded(&mut tokens, &continuation.tail, usize::from(is_ended), &texts);
        Ok(Some(tokens))
    }
}

/// Appends a rendering but for its first `skip` ids.
fn push_encoded(tokens: &mut Tokens, encoded: &Encoded, skip: usize, messages: &[chat_template::Message]) {
    for (id, message) in encoded.ids.iter().zip(&encoded.message).skip(skip) {
        let provenance = match message.map(|index| messages[index].role.as_str()) {
            None => Provenance::Template,
            Some("assistant") => Provenance::History,
            Some(_) => Provenance::Environment,
        };
        tokens.push(&[*id], provenance);
    }
}

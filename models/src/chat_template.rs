//! Chat templates: from messages to the text and the token ids that a language model was trained to read.
//!
//! A template is a Jinja program that a model brings with it. What it writes itself may be control tokens; what the
//! messages say is always plain text (decision D2). To keep the two apart, every place in a message where an added token
//! begins is broken by a character of the private use area before the template sees it, and put together again after the
//! rendered text was split at the added tokens that are still whole. For messages without such places this is exactly the
//! tokenisation of the rendered text.
//!
//! Nothing from outside reaches a rendering: `strftime_now` tells a fixed date ([`DATE`]) unless the caller sets a variable
//! of that purpose, and the number of instructions is bounded. Where conversations are kept is not known here.

mod jinja;
mod load;

use crate::tokenizer::Tokenizer;
pub use jinja::DATE;
pub use load::is_brought_by;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

/// Why there is no rendering.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not say what it should.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The template is none, or refuses the messages.
    #[error("the chat template {name}{line}: {problem}", line = line.map_or(String::new(), |n| format!(", line {n}")))]
    Template {
        /// Where it comes from.
        name: String,
        /// The line at fault.
        line: Option<usize>,
        /// What the template engine, or the template itself, says.
        problem: String,
    },
    /// The template leaves out what is said to the model.
    #[error("the chat template {name} does not show a user's message, so the model would never read the task")]
    Deaf {
        /// Where it comes from.
        name: String,
    },
    /// The template does not show an assistant's message once, so a conversation cannot be continued behind it.
    #[error(
        "the chat template {name} does not write an assistant's message as it is; a conversation cannot be continued"
    )]
    NoAssistant {
        /// Where it comes from.
        name: String,
    },
}

/// A message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Whatever else a template may look at, such as `reasoning_content`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Message {
    /// A message of a role and a text.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into(), fields: Map::new() }
    }
}

/// How the texts of a model's own earlier messages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assistant {
    /// As plain text, like any message.
    Plain,
    /// Tags that are added tokens but not special (`<think>`) are tokens again: the model wrote them.
    Own,
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The text.
    pub text: String,
    /// Its ids.
    pub ids: Vec<u32>,
    /// For each id the message whose content it belongs to, wholly or in part; `None` for what the template writes.
    pub message: Vec<Option<usize>>,
}

/// What follows an assistant's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// All that the template writes behind it: the end of its turn, the next messages, the generation prompt.
    pub tail: Encoded,
    /// The whole conversation reads as before, then the message as it is, then the tail. False if the template shows
    /// history otherwise than it was shown before.
    pub is_extension: bool,
}

/// A compiled template.
pub struct ChatTemplate {
    /// Where it comes from, as errors call it.
    name: String,
    source: String,
    engine: minijinja::Environment<'static>,
    /// `bos_token` and the like, by name.
    tokens: BTreeMap<String, String>,
}

/// A model's way of talking: its template and the tokens that end a turn.
pub struct Chat {
    /// The template.
    pub template: ChatTemplate,
    /// The ids that end a response, ascending: those of generation_config.json, config.json and tokenizer_config.json and
    /// the control token that the template writes behind an assistant's message. That one of them also pads does not matter.
    pub stop_ids: Vec<u32>,
}

/// Private characters that stand for something while a template runs.
struct Marks {
    /// Breaks a token.
    gap: char,
    /// Stands for a message.
    sentinel: char,
    /// Added tokens of one character, which cannot be broken, and what stands for each.
    stand_ins: Vec<(char, char)>,
}

impl ChatTemplate {
    /// Compiles a template; `tokens` are the texts of `bos_token`, `eos_token` and so on, `name` is what errors call it.
    ///
    /// **Errors** [`ChatTemplateError::Template`] with the line.
    pub fn new(name: &str, source: &str, tokens: BTreeMap<String, String>) -> Result<Self, ChatTemplateError> {
        let engine = jinja::engine(source).map_err(|e| template_error(name, &e))?;
        Ok(ChatTemplate { name: name.into(), source: source.into(), engine, tokens })
    }

    /// The template's own text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation; `add_generation_prompt` ends it where an assistant's message begins.
    ///
    /// `variables` are seen by the template under their names, `enable_thinking` for example.
    ///
    /// **Errors** [`ChatTemplateError::Template`]: what the template refuses, or more work than any sane template needs.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, ChatTemplateError> {
        let mut context = Map::new();
        context.insert("tools".into(), Value::Null);
        context.insert("documents".into(), Value::Null);
        context.extend(self.tokens.iter().map(|(name, text)| (name.clone(), json!(text))));
        context.extend(variables.clone());
        context.insert("messages".into(), json!(messages));
        context.insert("add_generation_prompt".into(), json!(add_generation_prompt));
        jinja::render(&self.engine, &context).map_err(|e| template_error(&self.name, &e))
    }

    /// The ids of a conversation. Control tokens come from the template only, whatever a message says.
    ///
    /// A template that looks into the messages sees their control tokens broken.
    ///
    /// **Errors** as [`ChatTemplate::render`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
        assistant: Assistant,
    ) -> Result<Encoded, ChatTemplateError> {
        let marks = Marks::new(tokenizer, &self.source, messages);
        let broken: Vec<Message> = messages.iter().map(|m| marks.break_message(tokenizer, m, assistant)).collect();
        let text = self.render(&broken, add_generation_prompt, variables)?;
        let mut places = marks.places(&text, &broken);
        if assistant == Assistant::Own {
            let mut hollow = broken;
            let own = hollow.iter_mut().filter(|m| m.role == "assistant");
            own.for_each(|m| *m = Message::new("assistant", marks.sentinel.to_string()));
            let hollow_text = self.render(&hollow, add_generation_prompt, variables)?;
            let own = (0..messages.len()).filter(|i| messages[*i].role == "assistant");
            for (i, place) in own.zip(gaps(&text, &hollow_text, marks.sentinel)) {
                places[i] = place;
            }
        }
        Ok(marks.encode(tokenizer, &text, &places))
    }

    /// What the template writes behind the last assistant's message of `messages`, generation prompt included.
    ///
    /// **Errors** as [`ChatTemplate::render`], and [`ChatTemplateError::NoAssistant`].
    ///
    /// **Panics** if no message is an assistant's.
    pub fn continuation(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        variables: &Map<String, Value>,
    ) -> Result<Continuation, ChatTemplateError> {
        let last =
            messages.iter().rposition(|m| m.role == "assistant").unwrap_or_else(|| panic!("an assistant's message"));
        let marks = Marks::new(tokenizer, &self.source, messages);
        let with_sentinel = |messages: &[Message]| {
            let mut messages = messages.to_vec();
            messages[last] = Message::new("assistant", marks.sentinel.to_string());
            messages
        };
        let cut = |text: String| {
            let (before, after) = text.split_once(marks.sentinel)?;
            (!after.contains(marks.sentinel)).then(|| (before.to_string(), after.to_string()))
        };
        let missing = || ChatTemplateError::NoAssistant { name: self.name.clone() };

        // What is compared is text that nothing was put into, so that the template sees what the messages really say.
        let (before, after) = cut(self.render(&with_sentinel(messages), true, variables)?).ok_or_else(missing)?;
        let read_before = self.render(&messages[..last], true, variables)?;
        let whole = self.render(messages, true, variables)?;
        let is_extension =
            read_before == before && whole == [&before, messages[last].content.as_str(), &after].concat();

        let broken: Vec<Message> = messages.iter().map(|m| marks.break_message(tokenizer, m, Assistant::Own)).collect();
        let (_, tail) = cut(self.render(&with_sentinel(&broken), true, variables)?).ok_or_else(missing)?;
        let mut tail = marks.encode(tokenizer, &tail, &marks.places(&tail, &broken[last + 1..]));
        tail.message.iter_mut().flatten().for_each(|index| *index += last + 1);
        Ok(Continuation { tail, is_extension })
    }

    /// The control token that the template writes right behind an assistant's message, if it is one.
    fn end_of_turn(&self, tokenizer: &Tokenizer) -> Option<u32> {
        let messages = [Message::new("user", "a"), Message::new("assistant", "\u{e000}")];
        let text = self.render(&messages, false, &Map::new()).ok()?;
        let (_, after) = text.split_once('\u{e000}')?;
        let first = tokenizer.split(after).into_iter().next()?;
        first.token.filter(|id| tokenizer.is_special(*id))
    }
}

fn template_error(name: &str, error: &minijinja::Error) -> ChatTemplateError {
    let problem = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    ChatTemplateError::Template { name: name.into(), line: error.line(), problem }
}

impl Marks {
    /// Characters that occur nowhere in template, messages or added tokens.
    fn new(tokenizer: &Tokenizer, source: &str, messages: &[Message]) -> Self {
        let said = json!(messages).to_string();
        let single: Vec<char> = tokenizer.added_of_one_char();
        let mut free = ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{ffffd}').chain('\u{100000}'..='\u{10fffd}');
        let mut next = || {
            let found = free.find(|c| !said.contains(*c) && !source.contains(*c) && !single.contains(c));
            found.unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        let (gap, sentinel) = (next(), next());
        let stand_ins = single.iter().map(|c| (*c, next())).collect();
        Marks { gap, sentinel, stand_ins }
    }

    /// A message with every added token in its texts broken.
    fn break_message(&self, tokenizer: &Tokenizer, message: &Message, assistant: Assistant) -> Message {
        let only_special = assistant == Assistant::Own && message.role == "assistant";
        let broken = |text: &str| self.break_tokens(tokenizer, text, only_special);
        let mut message = Message { content: broken(&message.content), ..message.clone() };
        message.fields.values_mut().for_each(|value| map_texts(value, &broken));
        message
    }

    fn break_tokens(&self, tokenizer: &Tokenizer, text: &str, only_special: bool) -> String {
        let mut broken = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let stand_in = self.stand_ins.iter().find(|(single, _)| *single == c).map(|(_, stand_in)| *stand_in);
            broken.push(stand_in.unwrap_or(c));
            if tokenizer.added_begins_at(text, at, only_special) {
                broken.push(self.gap);
            }
        }
        broken
    }

    /// The text without marks.
    fn restore(&self, text: &str) -> String {
        let back =
            |c: char| self.stand_ins.iter().find(|(_, stand_in)| *stand_in == c).map_or(c, |(single, _)| *single);
        text.chars().filter(|c| *c != self.gap).map(back).collect()
    }

    /// Ids of a rendered text with marks; `places` are those of the messages in it.
    fn encode(&self, tokenizer: &Tokenizer, marked: &str, places: &[Range<usize>]) -> Encoded {
        let restored = |at: usize| self.restore(&marked[..at]).len();
        let contents: Vec<Range<usize>> = places.iter().map(|p| restored(p.start)..restored(p.end)).collect();
        let of = |span: Range<usize>| contents.iter().position(|c| c.start < span.end && span.start < c.end);
        let mut encoded = Encoded::default();
        for piece in tokenizer.split(marked) {
            let text = self.restore(&marked[piece.range]);
            let start = encoded.text.len();
            encoded.text.push_str(&text);
            if let Some(id) = piece.token {
                encoded.ids.push(id);
                encoded.message.push(None);
                continue;
            }
            let ids = tokenizer.encode_plain(&text);
            let lengths: Vec<usize> = ids.iter().map(|id| tokenizer.bytes(*id).len()).collect();
            // Normalisation may have changed the bytes; then nothing finer than the piece is known.
            let is_exact = lengths.iter().sum::<usize>() == text.len();
            let mut at = start;
            for (id, length) in ids.into_iter().zip(lengths) {
                let span = if is_exact { at..at + length } else { start..start + text.len() };
                at += length;
                encoded.ids.push(id);
                encoded.message.push(of(span));
            }
        }
        encoded
    }

    /// Where each message's content stands in a rendered text; empty where it does not stand as it is.
    fn places(&self, marked: &str, messages: &[Message]) -> Vec<Range<usize>> {
        let mut from = 0;
        let mut places = Vec::with_capacity(messages.len());
        for message in messages {
            let content = message.content.trim();
            let place = match marked[from..].find(content).filter(|_| !content.is_empty()) {
                None => 0..0,
                Some(at) => {
                    let start = from + at;
                    from = start + content.len();
                    start..from
                }
            };
            places.push(place);
        }
        places
    }
}

/// What stands in a text where `hollow`, the same text otherwise, has the sentinel; nothing if the two do not agree.
fn gaps(text: &str, hollow: &str, sentinel: char) -> Vec<Range<usize>> {
    let mut parts = hollow.split(sentinel);
    let first = parts.next().unwrap_or_default();
    let parts: Vec<&str> = parts.collect();
    if !text.starts_with(first) {
        return Vec::new();
    }
    let mut at = first.len();
    let mut gaps = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        let found = match i + 1 == parts.len() {
            true => text[at..].ends_with(part).then(|| text.len() - part.len()),
            false => text[at..].find(part).map(|found| at + found),
        };
        let Some(found) = found else { return Vec::new() };
        gaps.push(at..found);
        at = found + part.len();
    }
    gaps
}

/// Changes every text in a value.
fn map_texts(value: &mut Value, change: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(list) => list.iter_mut().for_each(|value| map_texts(value, change)),
        Value::Object(object) => object.values_mut().for_each(|value| map_texts(value, change)),
        _ => {}
    }
}

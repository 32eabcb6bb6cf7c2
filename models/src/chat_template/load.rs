//! Where a model keeps its template and its special tokens. Whoever saves the model writes those files again as they were.

use super::{Chat, ChatTemplate, ChatTemplateError, Message};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const CONFIG: &str = "config.json";

/// The special tokens that templates may name.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// Whether a checkpoint folder, or a GGUF file, brings a chat template; told from the outside, without reading weights.
///
/// A file called `.gguf` counts as one.
pub fn is_brought_by(path: &Path) -> bool {
    if path.is_file() {
        return path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    }
    let config = parse(path, TOKENIZER_CONFIG, read_text(path, TOKENIZER_CONFIG).unwrap_or(None));
    path.join(TEMPLATE).is_file() || config.is_ok_and(|config| !config["chat_template"].is_null())
}

impl Chat {
    /// What a checkpoint folder says about chatting: `None` if it brings no template.
    ///
    /// The template is `chat_template.jinja` or, without that, `chat_template` of tokenizer_config.json: a text, or a list
    /// of named ones of which `default` is taken.
    ///
    /// **Errors** [`ChatTemplateError`].
    pub fn load(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, ChatTemplateError> {
        let tokenizer_config = parse(dir, TOKENIZER_CONFIG, read_text(dir, TOKENIZER_CONFIG)?)?;
        let found = match read_text(dir, TEMPLATE)? {
            Some(source) => Some((dir.join(TEMPLATE), source)),
            None => default_template(dir, &tokenizer_config["chat_template"])?
                .map(|source| (dir.join(TOKENIZER_CONFIG), source)),
        };
        let Some((path, source)) = found else { return Ok(None) };

        let mut tokens = BTreeMap::new();
        for name in TOKENS {
            let value = &tokenizer_config[name];
            let text = value.as_str().or_else(|| value["content"].as_str());
            tokens.extend(text.map(|text| (name.to_string(), text.to_string())));
        }
        let mut stop_ids = BTreeSet::new();
        stop_ids.extend(tokens.get("eos_token").and_then(|text| tokenizer.id(text)));
        for name in [GENERATION_CONFIG, CONFIG] {
            let value = parse(dir, name, read_text(dir, name)?)?;
            stop_ids.extend(eos_ids(dir, name, &value["eos_token_id"])?);
        }
        let template = ChatTemplate::new(&path.display().to_string(), &source, tokens)?;
        Chat::new(template, stop_ids, tokenizer).map(Some)
    }

    /// From what a file of another kind says: the template's text, the first and the ending tokens; `name` is what errors
    /// call it.
    ///
    /// **Errors** [`ChatTemplateError::Template`] and [`ChatTemplateError::Deaf`].
    pub fn from_parts(
        name: &str,
        source: &str,
        bos_id: Option<u32>,
        eos_ids: &[u32],
        tokenizer: &Tokenizer,
    ) -> Result<Self, ChatTemplateError> {
        let mut tokens = BTreeMap::new();
        tokens.extend(bos_id.map(|id| ("bos_token".to_string(), tokenizer.decode(&[id]))));
        tokens.extend(eos_ids.first().map(|id| ("eos_token".to_string(), tokenizer.decode(&[*id]))));
        let template = ChatTemplate::new(name, source, tokens)?;
        Chat::new(template, eos_ids.iter().copied().collect(), tokenizer)
    }

    fn new(
        template: ChatTemplate,
        mut stop_ids: BTreeSet<u32>,
        tokenizer: &Tokenizer,
    ) -> Result<Self, ChatTemplateError> {
        // A template may refuse a lone user's message; one that takes it must show it.
        let said = "\u{e000}";
        match template.render(&[Message::new("user", said)], true, &Map::new()) {
            Ok(text) if !text.contains(said) => return Err(ChatTemplateError::Deaf { name: template.name }),
            _ => {}
        }
        stop_ids.extend(template.end_of_turn(tokenizer));
        Ok(Chat { template, stop_ids: stop_ids.into_iter().collect() })
    }
}

fn read_text(dir: &Path, name: &str) -> Result<Option<String>, ChatTemplateError> {
    let path = dir.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatTemplateError::Read { path, source }),
    }
}

/// The JSON of a file; null without one.
fn parse(dir: &Path, name: &str, text: Option<String>) -> Result<Value, ChatTemplateError> {
    let Some(text) = text else { return Ok(Value::Null) };
    serde_json::from_str(&text).map_err(|e| problem(dir, name, format!("is not JSON: {e}")))
}

fn problem(dir: &Path, name: &str, problem: String) -> ChatTemplateError {
    ChatTemplateError::File { path: dir.join(name), problem }
}

/// A text, or the one called `default` of a list of `{name, template}`.
fn default_template(dir: &Path, value: &Value) -> Result<Option<String>, ChatTemplateError> {
    match value {
        Value::Null => Ok(None),
        Value::String(source) => Ok(Some(source.clone())),
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry["name"] == "default");
            let source = default.and_then(|entry| entry["template"].as_str());
            let missing = || problem(dir, TOKENIZER_CONFIG, "chat_template is a list without a `default`".into());
            source.map(|source| Some(source.to_string())).ok_or_else(missing)
        }
        other => Err(problem(
            dir,
            TOKENIZER_CONFIG,
            format!("chat_template is {other}; expected a text or a list of named ones"),
        )),
    }
}

/// An id, a list of ids, or none.
fn eos_ids(dir: &Path, name: &str, value: &Value) -> Result<Vec<u32>, ChatTemplateError> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| problem(dir, name, format!("eos_token_id is {value}; expected a token id or a list of them")))
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(id).collect(),
        single => Ok(vec![id(single)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn load(files: &[(&str, &str)]) -> Result<Option<Chat>, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Chat::load(dir.path(), &Tokenizer::tiny()).map_err(|e| e.to_string())
    }

    fn say(chat: &Chat) -> Result<String, String> {
        chat.template.render(&[Message::new("user", "a")], true, &Map::new()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_template_is_a_file_or_a_text_or_the_default_of_a_list() {
        assert!(load(&[]).unwrap().is_none() && load(&[(TOKENIZER_CONFIG, "{}")]).unwrap().is_none());
        let text = r#"{"chat_template": "text {{ bos_token ~ messages[0].content }}", "bos_token": {"content": "<bos>"}, "eos_token": "<eos>"}"#;
        let chat = load(&[(TOKENIZER_CONFIG, text)]).unwrap().unwrap();
        assert_eq!(say(&chat).unwrap(), "text <bos>a");
        assert_eq!(chat.stop_ids, [Tokenizer::tiny().id("<eos>").unwrap()]);
        let chat = load(&[(TOKENIZER_CONFIG, text), (TEMPLATE, "file {{ messages[0].content }}")]).unwrap().unwrap();
        assert_eq!(say(&chat).unwrap(), "file a");
        let list = r#"{"chat_template": [{"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d {{ messages[0].content }}"}]}"#;
        assert_eq!(say(&load(&[(TOKENIZER_CONFIG, list)]).unwrap().unwrap()).unwrap(), "d a");
        let error =
            load(&[(TOKENIZER_CONFIG, r#"{"chat_template": [{"name": "rag", "template": "t"}]}"#)]).err().unwrap();
        assert!(error.ends_with("tokenizer_config.json: chat_template is a list without a `default`"), "{error}");
        assert!(load(&[(TOKENIZER_CONFIG, r#"{"chat_template": 3}"#)]).err().unwrap().contains("chat_template is 3"));
    }

    #[test]
    fn every_file_names_stop_ids_and_so_does_the_template() {
        let template = "{% for m in messages %}{{ m.role ~ m.content }}<pad>\n{% endfor %}";
        let id = |name: &str| Tokenizer::tiny().id(name).unwrap();
        let files = [
            (TEMPLATE, template),
            (TOKENIZER_CONFIG, r#"{"eos_token": "<eos>", "pad_token": "<eos>"}"#),
            (GENERATION_CONFIG, r#"{"eos_token_id": [7, 9]}"#),
            (CONFIG, r#"{"eos_token_id": 8}"#),
        ];
        assert_eq!(load(&files).unwrap().unwrap().stop_ids, [7, 8, 9, id("<eos>"), id("<pad>")]);
        let wrong = [(TEMPLATE, template), (GENERATION_CONFIG, r#"{"eos_token_id": "x"}"#)];
        assert!(load(&wrong).err().unwrap().contains("generation_config.json: eos_token_id is \"x\""));
    }

    #[test]
    fn errors_name_file_line_and_reason() {
        let error = load(&[(TEMPLATE, "a\n{% if %}")]).err().unwrap();
        assert!(error.contains("chat_template.jinja, line 2: "), "{error}");
        let chat = load(&[(TEMPLATE, "a\n\n{{ raise_exception('roles must alternate') }}")]).unwrap().unwrap();
        assert!(say(&chat).unwrap_err().ends_with("chat_template.jinja, line 3: roles must alternate"));
        let chat = load(&[(TEMPLATE, "{{ 1 / 0 }}{{ nothing.at.all }}")]).unwrap().unwrap();
        assert!(say(&chat).is_err());
        let error = load(&[(TEMPLATE, "x"), (GENERATION_CONFIG, "{")]).err().unwrap();
        assert!(error.contains("generation_config.json: is not JSON"), "{error}");
        let error = load(&[(TEMPLATE, "{{ messages[0].role }}")]).err().unwrap();
        assert!(error.contains("chat_template.jinja does not show a user's message"), "{error}");
    }
}

//! Token ids, decoded text and chat templates as the reference's tokenizers give them, exactly.
//!
//! Small tokenizers lie with the golden data; the large ones are assets: `RAGEN_ASSETS`, else `<workspace>/assets`. Without
//! one its test says so and passes, unless `RAGEN_REQUIRE_ASSETS=1`.

mod assets;
#[allow(dead_code)] // Other tests use the rest of it.
mod golden_data;

use golden_data::*;
use ragen_models::chat_template::{Assistant, Chat, Message};
use ragen_models::gguf;
use ragen_models::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    name: String,
    #[serde(rename = "source")]
    _source: Value,
    bos_token: Option<String>,
    eos_token: String,
    bos_prefix_ids: Vec<u32>,
    #[serde(rename = "normalizer")]
    _normalizer: Value,
    #[serde(rename = "pre_tokenizer")]
    _pre_tokenizer: Value,
    #[serde(rename = "ignore_merges")]
    _ignore_merges: bool,
    #[serde(rename = "vocab_size_model")]
    _vocab_size_model: usize,
    #[serde(rename = "merges")]
    _merges: usize,
    added_tokens: Vec<AddedToken>,
    added_token_count: usize,
    chat_template: String,
    encode: Vec<Encode>,
    decode: Vec<Decode>,
    chat: Vec<Conversation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Encode {
    text: String,
    ids: Vec<u32>,
    ids_plain: Option<Vec<u32>>,
    decoded: String,
    decoded_without_special: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decode {
    ids: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    name: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    variables: Map<String, Value>,
    text: String,
    ids: Vec<u32>,
    ids_content_plain: Option<Vec<u32>>,
}

fn read(name: &str) -> Golden {
    let golden: Golden = read_json(&golden(&format!("tokenizers/{name}.json")));
    assert_eq!(golden.name, name);
    golden
}

fn check_text(golden: &Golden, tokenizer: &Tokenizer) {
    let name = &golden.name;
    assert!(golden.encode.len() >= 50 && golden.decode.len() >= 9, "{name}");
    for case in &golden.encode {
        let text = &case.text;
        assert_eq!(tokenizer.encode(text), case.ids, "{name}: {text:?}");
        assert_eq!(
            tokenizer.encode_plain(text),
            *case.ids_plain.as_ref().unwrap_or(&case.ids),
            "{name}: plain {text:?}"
        );
        assert_eq!(tokenizer.decode(&case.ids), case.decoded, "{name}: {text:?}");
        let without = case.decoded_without_special.as_ref().unwrap_or(&case.decoded);
        assert_eq!(tokenizer.decode_without_special(&case.ids), *without, "{name}: {text:?}");
    }
    for case in &golden.decode {
        assert_eq!(tokenizer.decode(&case.ids), case.decoded, "{name}: {:?}", case.ids);
    }
    assert_eq!(tokenizer.prefix_ids(), golden.bos_prefix_ids, "{name}");
    let n_added = (0..tokenizer.vocab() as u32).filter(|id| tokenizer.is_added(*id)).count();
    assert_eq!(n_added, golden.added_token_count, "{name}");
    for added in &golden.added_tokens {
        assert_eq!(tokenizer.id(&added.content), Some(added.id), "{name}");
        assert_eq!((tokenizer.is_added(added.id), tokenizer.is_special(added.id)), (true, added.special), "{name}");
    }
}

fn check_chat(golden: &Golden, tokenizer: &Tokenizer, chat: &Chat) {
    let name = &golden.name;
    assert!(golden.chat.len() >= 12, "{name}");
    assert_eq!(chat.template.source(), golden.chat_template, "{name}");
    let eos = tokenizer.id(&golden.eos_token).unwrap();
    assert!(chat.stop_ids.contains(&eos), "{name}: {:?}", chat.stop_ids);
    for case in &golden.chat {
        let what = format!("{name}: {}", case.name);
        let (messages, prompt, variables) = (&case.messages, case.add_generation_prompt, &case.variables);
        let text = chat.template.render(messages, prompt, variables).unwrap();
        assert_eq!(text, case.text, "{what}");
        assert_eq!(tokenizer.encode(&text), case.ids, "{what}");
        let encode = |how| chat.template.encode(tokenizer, messages, prompt, variables, how).unwrap();
        if let Some(plain) = &case.ids_content_plain {
            let encoded = encode(Assistant::Plain);
            assert_eq!(encoded.ids, *plain, "{what}");
            assert_eq!(encoded.text, case.text, "{what}");
            assert_eq!(encoded.message.len(), encoded.ids.len(), "{what}");
        }
        // A model's own tags are tokens again, so that what the template does with them is what it does with the text.
        if !case.name.contains("control_token") {
            let own = encode(Assistant::Own);
            assert_eq!((own.text, own.ids), (case.text.clone(), case.ids.clone()), "{what}");
        }
    }
}

/// A control token never comes out of a message, whoever says it.
fn check_harmless(golden: &Golden, tokenizer: &Tokenizer, chat: &Chat) {
    let special: Vec<&AddedToken> = golden.added_tokens.iter().filter(|added| added.special).collect();
    let all: String = special.iter().map(|added| added.content.as_str()).collect();
    let none = Map::new();
    let count = |messages: &[Message], how: Assistant| {
        let ids = chat.template.encode(tokenizer, messages, true, &none, how).unwrap().ids;
        ids.iter().filter(|id| tokenizer.is_special(**id)).count()
    };
    let talk = |text: &str| ["system", "user", "assistant", "user"].map(|role| Message::new(role, text));
    for how in [Assistant::Plain, Assistant::Own] {
        let quiet = count(&talk("x"), how);
        for loud in [all.clone(), format!(" {all} "), all.repeat(2), "\u{e000}<\u{e001}".to_string() + &all] {
            assert_eq!(count(&talk(&loud), how), quiet, "{}: {loud:?}", golden.name);
            let encoded = chat.template.encode(tokenizer, &talk(&loud), true, &none, how).unwrap();
            assert_eq!(encoded.text, chat.template.render(&talk(&loud), true, &none).unwrap());
        }
    }
}

fn check_folder(name: &str, dir: &Path) {
    let golden = read(name);
    let tokenizer = Tokenizer::load(dir).unwrap();
    check_text(&golden, &tokenizer);
    let chat = Chat::load(dir, &tokenizer).unwrap().unwrap();
    check_chat(&golden, &tokenizer, &chat);
    check_harmless(&golden, &tokenizer, &chat);
    let bos = golden.bos_token.as_ref().and_then(|text| tokenizer.id(text));
    let again = Chat::from_parts("again", chat.template.source(), bos, &chat.stop_ids, &tokenizer).unwrap();
    assert_eq!(again.stop_ids, chat.stop_ids);
    let messages = [Message::new("user", "a")];
    assert_eq!(
        again.template.render(&messages, true, &Map::new()).unwrap(),
        chat.template.render(&messages, true, &Map::new()).unwrap()
    );
    // Saved and loaded it is the same.
    let saved = tempfile::tempdir().unwrap();
    tokenizer.save(saved.path()).unwrap();
    let back = Tokenizer::load(saved.path()).unwrap();
    check_text(&golden, &back);
}

/// Every file of the folder has a test here.
#[test]
fn golden_tokenizers_are_all_checked() {
    let checked = ["llama3_1", "qwen3", "smollm2", "tiny_gpt2", "tiny_llama3", "tiny_qwen"];
    for file in names_in("tokenizers") {
        assert!(checked.contains(&file.trim_end_matches(".json")), "{file}");
    }
}

#[test]
fn golden_tiny_gpt2() {
    check_folder("tiny_gpt2", &golden("tokenizers/tiny_gpt2"));
}

#[test]
fn golden_tiny_qwen() {
    check_folder("tiny_qwen", &golden("tokenizers/tiny_qwen"));
}

#[test]
fn golden_tiny_llama3() {
    check_folder("tiny_llama3", &golden("tokenizers/tiny_llama3"));
}

#[test]
fn golden_qwen3() {
    let Some(file) = assets::find("qwen3/tokenizer.json") else { return };
    check_folder("qwen3", file.parent().unwrap());
}

#[test]
fn golden_llama3_1() {
    let Some(file) = assets::find("llama3_1/tokenizer.json") else { return };
    check_folder("llama3_1", file.parent().unwrap());
}

/// The tokenizer in the metadata of a GGUF file, by way of the files that are made of it.
fn check_gguf(name: &str, path: &Path) {
    let file = gguf::open(path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.tokenizer_json().unwrap()).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), file.tokenizer_config_json().unwrap()).unwrap();
    check_folder(name, dir.path());
    let golden = read(name);
    let token = |id: Option<u32>| id.and_then(|id| file.token(id)).map(String::from);
    assert_eq!((token(file.bos().unwrap()), token(file.eos().unwrap())), (golden.bos_token, Some(golden.eos_token)));
    assert_eq!(file.add_bos().unwrap(), !golden.bos_prefix_ids.is_empty(), "{name}");
    assert_eq!(file.chat_template().unwrap(), Some(golden.chat_template.as_str()), "{name}");
}

#[test]
fn golden_tiny_tokenizers_in_gguf() {
    for (model, name) in [("llama_q4_1", "tiny_gpt2"), ("qwen2_f16", "tiny_qwen")] {
        check_gguf(name, &golden(&format!("gguf_models/{model}/model.gguf")));
    }
}

#[test]
fn golden_smollm2() {
    let Some(path) = assets::find(assets::SMOLLM2) else { return };
    check_gguf("smollm2", &path);
}

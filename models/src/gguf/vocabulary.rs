//! The tokenizer and the chat template that a GGUF file carries in its metadata.
//!
//! Makes the text of a `tokenizer.json` and of a `tokenizer_config.json` from them, so that everything above knows one
//! kind of tokenizer. How text is split before the merges is only a name in the file; a name that is not known is refused,
//! because a neighbouring pattern gives other ids on some texts only.

use super::container::{Kind, texts, words};
use super::{Gguf, GgufError, GgufFault};
use serde_json::{Map, Value, json};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";
const MODEL: &str = "tokenizer.ggml.model";

/// What a number in `tokenizer.ggml.token_type` means; 2 (unknown) and 3 (control) are special tokens, 6 is not of BPE.
mod token_type {
    pub const NORMAL: u32 = 1;
    pub const USER_DEFINED: u32 = 4;
    pub const UNUSED: u32 = 5;
}

/// How text is split before the merges, and what goes with it.
struct PreTokenizer {
    /// `pre_tokenizer` of `tokenizer.json`.
    split: Value,
    /// Text is brought into this form first.
    normalizer: Value,
    /// A piece that is a token is taken whole.
    ignore_merges: bool,
    /// A text begins with the bos token unless the file says otherwise.
    add_bos: bool,
}

/// The pattern of Llama 3 and, but for the length of a run of digits, of Qwen2.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// What llama.cpp applies, one after another, under the name "default".
const DEFAULT: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

/// The byte-level step, with GPT-2's own pattern or without.
fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// Splits by each pattern in turn, then goes to bytes.
fn split(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let steps: Vec<Value> = patterns.iter().map(split).chain([byte_level(false)]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn pre_tokenizer(name: &str) -> Result<PreTokenizer, GgufFault> {
    let plain = |split| PreTokenizer { split, normalizer: Value::Null, ignore_merges: false, add_bos: false };
    Ok(match name {
        // Every digit alone (also superscripts and the like), then GPT-2's pattern.
        "smollm" => plain(json!({"type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level(true)]})),
        // The format has no word for it, but these models' own tokenizers compose characters first.
        "qwen2" => PreTokenizer { normalizer: json!({"type": "NFC"}), ..plain(split(&[QWEN2])) },
        "llama-bpe" | "llama3" | "llama-v3" => {
            PreTokenizer { ignore_merges: true, add_bos: true, ..plain(split(&[LLAMA3])) }
        }
        "gpt-2" => plain(byte_level(true)),
        "default" => plain(split(&DEFAULT)),
        other => {
            let reason = format!(
                "is {other:?}, which is not supported; smollm, qwen2, llama-bpe, gpt-2 and default are, and a folder with \
                 the model's own tokenizer.json always is"
            );
            return Err(Gguf::wrong(PRE, reason));
        }
    })
}

/// A token of the file.
struct Token<'a> {
    text: &'a str,
    kind: u32,
}

impl Gguf {
    /// The tokenizer as the text of a `tokenizer.json`.
    ///
    /// **Errors** a tokenizer that is no byte-level BPE, an unknown pre-tokenizer, a token that is not UTF-8 or there twice.
    pub fn tokenizer_json(&self) -> Result<String, GgufError> {
        self.tokenizer().map_err(|fault| self.error(fault))
    }

    fn tokenizer(&self) -> Result<String, GgufFault> {
        match self.text(MODEL)?.ok_or_else(|| GgufFault::Missing(MODEL.into()))? {
            "gpt2" => {}
            other => {
                let reason = format!("is {other:?}, which is not supported; gpt2 (byte-level BPE) is");
                return Err(Gguf::wrong(MODEL, reason));
            }
        }
        let pre = pre_tokenizer(self.text(PRE)?.ok_or_else(|| GgufFault::Missing(PRE.into()))?)?;
        let tokens = self.tokens()?;
        let (mut vocab, mut added) = (Map::new(), Vec::new());
        for (id, token) in tokens.iter().enumerate().filter(|(_, token)| token.kind != token_type::UNUSED) {
            // Marked tokens are in the vocabulary too: it is there that the library looks up their ids.
            if vocab.insert(token.text.into(), id.into()).is_some() {
                return Err(Gguf::wrong(TOKENS, format!("has the token {:?} twice", token.text)));
            }
            if token.kind != token_type::NORMAL {
                let special = token.kind != token_type::USER_DEFINED;
                added.push(json!({"id": id, "content": token.text, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": special}));
            }
        }
        let merges = self.merges(&vocab)?;
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": pre.normalizer,
            "pre_tokenizer": pre.split,
            "post_processor": self.post_processor(&tokens, self.begins_with_bos(&pre)?)?,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": pre.ignore_merges, "vocab": vocab, "merges": merges},
        });
        Ok(tokenizer.to_string())
    }

    fn tokens(&self) -> Result<Vec<Token<'_>>, GgufFault> {
        let missing = |key: &str| GgufFault::Missing(key.into());
        let texts_at = self.array(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
        let kinds_at = self.array(TYPES)?.ok_or_else(|| missing(TYPES))?;
        if texts_at.kind != Kind::Text {
            return Err(Gguf::wrong(TOKENS, format!("holds {:?}, not texts", texts_at.kind)));
        }
        if !matches!(kinds_at.kind, Kind::I32 | Kind::U32) || kinds_at.len != texts_at.len {
            let reason = format!(
                "holds {} {:?}, not an I32 for each of the {} tokens",
                kinds_at.len, kinds_at.kind, texts_at.len
            );
            return Err(Gguf::wrong(TYPES, reason));
        }
        let mut tokens = Vec::new();
        for (id, (bytes, kind)) in texts(&self.map, texts_at).zip(words(&self.map, kinds_at)).enumerate() {
            let text = std::str::from_utf8(bytes)
                .map_err(|_| Gguf::wrong(TOKENS, format!("has a token {id} that is not UTF-8")))?;
            if !(token_type::NORMAL..=token_type::UNUSED).contains(&kind) {
                return Err(Gguf::wrong(TYPES, format!("gives token {id} the type {kind}; 1 to 5 are known")));
            }
            tokens.push(Token { text, kind });
        }
        Ok(tokens)
    }

    /// The merges as pairs; each part, and what it makes, must be a token.
    fn merges(&self, vocab: &Map<String, Value>) -> Result<Vec<Value>, GgufFault> {
        let array = self.array(MERGES)?.ok_or_else(|| GgufFault::Missing(MERGES.into()))?;
        if array.kind != Kind::Text {
            return Err(Gguf::wrong(MERGES, format!("holds {:?}, not texts", array.kind)));
        }
        let mut merges = Vec::new();
        for (i, bytes) in texts(&self.map, array).enumerate() {
            let pair = std::str::from_utf8(bytes).ok().and_then(|text| text.split_once(' '));
            let known =
                |(a, b): &(&str, &str)| [*a, *b, &[*a, *b].concat()].iter().all(|part| vocab.contains_key(*part));
            let (a, b) = pair.filter(known).ok_or_else(|| {
                let text = String::from_utf8_lossy(bytes);
                Gguf::wrong(MERGES, format!("has a merge {i} ({text:?}) that is not of two tokens into a third"))
            })?;
            merges.push(json!([a, b]));
        }
        Ok(merges)
    }

    fn begins_with_bos(&self, pre: &PreTokenizer) -> Result<bool, GgufFault> {
        Ok(self.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(pre.add_bos))
    }

    /// Puts the bos token first, as Hugging Face's tokenizers of such models do.
    fn post_processor(&self, tokens: &[Token], add_bos: bool) -> Result<Value, GgufFault> {
        if !add_bos {
            return Ok(Value::Null);
        }
        let key = "tokenizer.ggml.bos_token_id";
        let id = self.whole(key)?.ok_or_else(|| GgufFault::Missing(key.into()))?;
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        let text =
            token.ok_or_else(|| Gguf::wrong(key, format!("is {id}, but there are {} tokens", tokens.len())))?.text;
        let (bos, text_of) = (
            json!({"SpecialToken": {"id": text, "type_id": 0}}),
            |name| json!({"Sequence": {"id": name, "type_id": 0}}),
        );
        Ok(
            json!({"type": "TemplateProcessing", "single": [bos, text_of("A")], "pair": [bos, text_of("A"), text_of("B")],
            "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}}}),
        )
    }

    /// The chat template, if the file has one.
    ///
    /// **Errors** a value that is no text.
    pub fn chat_template(&self) -> Result<Option<&str>, GgufError> {
        self.text("tokenizer.chat_template").map_err(|fault| self.error(fault))
    }

    /// The id of the token that begins a text.
    ///
    /// **Errors** a value that is no token id; so do the next ones.
    pub fn bos(&self) -> Result<Option<u32>, GgufError> {
        self.token_id("bos")
    }

    /// The id of the token that ends a text; in chat models most often the end of a turn.
    pub fn eos(&self) -> Result<Option<u32>, GgufError> {
        self.token_id("eos")
    }

    /// The id of the token that ends a turn, where it is another one than [`Gguf::eos`].
    pub fn eot(&self) -> Result<Option<u32>, GgufError> {
        self.token_id("eot")
    }

    /// The id of the token that fills up.
    pub fn pad(&self) -> Result<Option<u32>, GgufError> {
        self.token_id("padding")
    }

    /// Whether a text begins with the bos token when the tokenizer's own template is asked.
    ///
    /// **Errors** as [`Gguf::tokenizer_json`] about the pre-tokenizer, whose default it is.
    pub fn add_bos(&self) -> Result<bool, GgufError> {
        let pre = || pre_tokenizer(self.text(PRE)?.ok_or_else(|| GgufFault::Missing(PRE.into()))?);
        pre().and_then(|pre| self.begins_with_bos(&pre)).map_err(|fault| self.error(fault))
    }

    /// The text of a token, as the file spells it.
    pub fn token(&self, id: u32) -> Option<&str> {
        let array = self.array(TOKENS).ok()??;
        let bytes = (array.kind == Kind::Text).then(|| texts(&self.map, array).nth(id as usize))??;
        std::str::from_utf8(bytes).ok()
    }

    /// The text of a `tokenizer_config.json`: the special tokens by role, and the chat template.
    ///
    /// **Errors** as the functions above.
    pub fn tokenizer_config_json(&self) -> Result<String, GgufError> {
        let mut config = json!({"add_bos_token": self.add_bos()?, "tokenizer_class": "PreTrainedTokenizerFast"});
        let roles = [
            ("bos_token", self.bos()?),
            ("eos_token", self.eos()?),
            ("pad_token", self.pad()?),
            ("unk_token", self.token_id("unknown")?),
        ];
        for (role, id) in roles {
            config[role] = id.and_then(|id| self.token(id)).into();
        }
        config["chat_template"] = self.chat_template()?.into();
        Ok(format!("{config:#}\n"))
    }

    fn token_id(&self, role: &str) -> Result<Option<u32>, GgufError> {
        let key = format!("tokenizer.ggml.{role}_token_id");
        let id = self.whole(&key).map_err(|fault| self.error(fault))?;
        let Some(id) = id else { return Ok(None) };
        let tokens = self.array(TOKENS).map_err(|fault| self.error(fault))?.map_or(0, |array| array.len);
        if id >= tokens as u64 {
            return Err(self.error(Gguf::wrong(&key, format!("is {id}, but there are {tokens} tokens"))));
        }
        u32::try_from(id).map(Some).map_err(|_| self.error(Gguf::wrong(&key, format!("is {id}, which is no token id"))))
    }
}

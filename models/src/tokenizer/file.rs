//! `tokenizer.json` as it lies on disk, checked before anything is built from it.

use super::TokenizerError;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

/// Which kind of tokenizer a file holds; read first, because another kind has other keys.
#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    model: ModelKind,
    #[serde(default)]
    decoder: Value,
}

#[derive(Default, Deserialize)]
struct ModelKind {
    #[serde(default)]
    r#type: Value,
}

/// The keys that are read; none of the others changes what a text is encoded to.
#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub added_tokens: Vec<AddedEntry>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    model: BpeModel,
}

/// An entry of `added_tokens`.
#[derive(Deserialize)]
pub(super) struct AddedEntry {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
    #[serde(default)]
    pub normalized: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(default)]
    pub single_word: bool,
}

/// `model`: its large parts are read without a tree of values in between.
#[derive(Deserialize)]
struct BpeModel {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// A merge as older and newer files spell it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Spaced(String),
}

impl Merge {
    fn into_pair(self) -> (String, String) {
        match self {
            Merge::Pair(a, b) => (a, b),
            Merge::Spaced(text) => match text.split_once(' ') {
                Some((a, b)) => (a.into(), b.into()),
                None => (text, String::new()),
            },
        }
    }
}

/// What a file is taken apart into.
pub(super) struct Parts {
    pub added: Vec<AddedEntry>,
    /// The model's own tokens and their ids.
    pub vocab: Vec<(String, u32)>,
    /// The tokenizer without any added token.
    pub plain: tokenizers::Tokenizer,
    /// Ids that the file's own template puts before a text.
    pub prefix_ids: Vec<u32>,
}

impl Parts {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// **Errors** [`TokenizerError::Syntax`] and [`TokenizerError::Unsupported`].
    pub fn read(json: &str) -> Result<Self, TokenizerError> {
        let kind: Kind = serde_json::from_str(json).map_err(syntax)?;
        if kind.model.r#type != "BPE" {
            return Err(TokenizerError::Unsupported { key: "model.type", found: kind.model.r#type.to_string() });
        }
        if !is_byte_level(&kind.decoder) {
            return Err(TokenizerError::Unsupported { key: "decoder", found: kind.decoder.to_string() });
        }
        let file: File = serde_json::from_str(json).map_err(syntax)?;
        // Ids index tables, so one that is far beyond the number of tokens would cost memory that the file does not
        // account for. An entry takes more than four bytes of the file, so ids without gaps are always below this.
        let bound = u32::try_from(json.len() / 4).unwrap_or(u32::MAX);
        let ids = file.added_tokens.iter().map(|entry| entry.id).chain(file.model.vocab.values().copied());
        if let Some(id) = ids.max().filter(|id| *id >= bound) {
            return Err(TokenizerError::Syntax(format!("the id {id} is out of all proportion to the file")));
        }
        let prefix_ids = prefix_ids(&file.post_processor, &file)?;
        let vocab: Vec<(String, u32)> = file.model.vocab.iter().map(|(token, id)| (token.clone(), *id)).collect();
        let (model, added) = (file.model, file.added_tokens);
        let mut plain = tokenizers::Tokenizer::new(model.build(&added)?);
        let normalizer: Option<NormalizerWrapper> = serde_json::from_value(file.normalizer).map_err(syntax)?;
        plain.with_normalizer(normalizer).map_err(syntax)?;
        let pre_tokenizer: Option<PreTokenizerWrapper> = serde_json::from_value(file.pre_tokenizer).map_err(syntax)?;
        plain.with_pre_tokenizer(pre_tokenizer);
        Ok(Parts { added, vocab, plain, prefix_ids })
    }
}

impl BpeModel {
    /// The model without the added tokens.
    ///
    /// Many files list their control tokens in the vocabulary too, where a piece of plain text could find them; such a
    /// token is taken out, with every merge that has to do with it.
    fn build(self, added: &[AddedEntry]) -> Result<BPE, TokenizerError> {
        let unsupported = |key: &'static str, found: String| Err(TokenizerError::Unsupported { key, found });
        if self.dropout.is_some_and(|p| p != 0.0) {
            return unsupported("model.dropout", self.dropout.unwrap_or(0.0).to_string());
        }
        for (key, affix) in [
            ("model.continuing_subword_prefix", &self.continuing_subword_prefix),
            ("model.end_of_word_suffix", &self.end_of_word_suffix),
        ] {
            if let Some(affix) = affix.as_ref().filter(|affix| !affix.is_empty()) {
                return unsupported(key, format!("{affix:?}"));
            }
        }
        let removed: HashSet<&str> =
            added.iter().map(|entry| entry.content.as_str()).filter(|text| self.vocab.contains_key(*text)).collect();
        let mut merges = Vec::with_capacity(self.merges.len());
        let mut merged = String::new();
        for merge in self.merges {
            let (a, b) = merge.into_pair();
            merged.clear();
            merged.push_str(&a);
            merged.push_str(&b);
            let parts = [a.as_str(), b.as_str(), merged.as_str()];
            if let Some(missing) = parts.iter().find(|part| !self.vocab.contains_key(**part)) {
                return Err(TokenizerError::Syntax(format!("a merge needs the token {missing:?}, which there is not")));
            }
            if !parts.iter().any(|part| removed.contains(part)) {
                merges.push((a, b));
            }
        }
        // What no token stands for is left out; the token for it is a control token, which plain text never gives.
        let unk_token =
            self.unk_token.filter(|token| self.vocab.contains_key(token) && !removed.contains(token.as_str()));
        let vocab: Vocab = self
            .vocab
            .iter()
            .filter(|(token, _)| !removed.contains(token.as_str()))
            .map(|(t, i)| (t.clone(), *i))
            .collect();
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(token) = unk_token {
            builder = builder.unk_token(token);
        }
        builder.build().map_err(syntax)
    }
}

fn syntax(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Syntax(error.to_string())
}

fn is_byte_level(decoder: &Value) -> bool {
    match decoder["type"].as_str() {
        Some("ByteLevel") => true,
        Some("Sequence") => {
            decoder["decoders"].as_array().is_some_and(|all| !all.is_empty() && all.iter().all(is_byte_level))
        }
        _ => false,
    }
}

/// The control tokens that a post-processor puts before a text.
///
/// **Errors** for one that puts something after it, or that names a token that there is not.
fn prefix_ids(processor: &Value, file: &File) -> Result<Vec<u32>, TokenizerError> {
    match processor["type"].as_str() {
        Some("Sequence") => {
            let all = processor["processors"].as_array().map_or(&[][..], Vec::as_slice);
            let parts: Vec<Vec<u32>> = all.iter().map(|part| prefix_ids(part, file)).collect::<Result<_, _>>()?;
            Ok(parts.concat())
        }
        Some("TemplateProcessing") => {
            let single = processor["single"].as_array().map_or(&[][..], Vec::as_slice);
            let before = single.iter().take_while(|piece| piece["Sequence"].is_null());
            let names = before.map(|piece| piece["SpecialToken"]["id"].as_str().unwrap_or_default());
            let id = |name: &str| {
                let found = file.added_tokens.iter().find(|entry| entry.content == name).map(|entry| entry.id);
                found.ok_or_else(|| syntax(format!("post_processor names {name:?}, which is no added token")))
            };
            names.map(id).collect()
        }
        _ => Ok(Vec::new()),
    }
}

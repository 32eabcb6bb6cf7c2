//! Text to token ids and back, over a `tokenizer.json` of the byte-level BPE kind.
//!
//! There are two ways in, because text from an environment or a user must never turn into a control token (decision D2):
//! [`Tokenizer::encode`] recognises added tokens, [`Tokenizer::encode_plain`] cannot produce one. It knows no chat
//! template; the small model's own vocabulary is in [`Tokenizer::tiny`].

mod added;
mod file;
mod tiny;

use crate::atomic_file;
use added::AddedTokens;
use file::Parts;
use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

const FILE: &str = "tokenizer.json";

/// Why a tokenizer could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file system refused to read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file system refused to write.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The text is no `tokenizer.json`.
    #[error("not a tokenizer.json: {0}")]
    Syntax(String),
    /// A tokenizer of another kind.
    #[error("{key} is {found}, which is not supported; only byte-level BPE is")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
    },
    /// An error inside the file at `path`.
    #[error("{}: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<TokenizerError>,
    },
}

/// A byte-level BPE tokenizer.
pub struct Tokenizer {
    /// The file's text; saving writes it as it was.
    json: String,
    /// Knows no added token: they are split off before.
    plain: tokenizers::Tokenizer,
    added: AddedTokens,
    /// The bytes of all tokens, end to end by id; token i has `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    /// The token of each single byte, where there is one.
    byte_ids: [Option<u32>; 256],
    prefix_ids: Vec<u32>,
}

/// A piece of a text: an added token, or plain text without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token.
    pub token: Option<u32>,
    /// Which bytes of the text it is.
    pub range: Range<usize>,
}

impl Tokenizer {
    /// The small model's own tokenizer: 256 bytes, the words of its tasks, control tokens and tags.
    ///
    /// Ids below 256 are bytes. Words come next, most of them with the space before them; a text that knows them costs
    /// one token a word, a grid one token a cell. There are no merges: what is no word goes byte by byte. Last come
    /// `<bos> <eos> <pad> <system> <user> <assistant>` and the tags `<think> </think> <answer> </answer>`.
    pub fn tiny() -> Self {
        Self::from_json(tiny::json()).unwrap_or_else(|e| unreachable!("the built-in tokenizer: {e}"))
    }

    /// Reads `tokenizer.json` of a checkpoint folder.
    ///
    /// **Errors** [`TokenizerError`]; only byte-level BPE is supported.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join(FILE);
        let json =
            std::fs::read_to_string(&path).map_err(|source| TokenizerError::Read { path: path.clone(), source })?;
        Self::from_json(json).map_err(|source| TokenizerError::In { path, source: Box::new(source) })
    }

    /// Writes `tokenizer.json` into an existing folder, atomically, as it was read.
    ///
    /// **Errors** [`TokenizerError::Write`].
    pub fn save(&self, dir: &Path) -> Result<(), TokenizerError> {
        let path = dir.join(FILE);
        atomic_file::write(&path, |file| file.write_all(self.json.as_bytes()))
            .map_err(|source| TokenizerError::Write { path, source })
    }

    /// Takes the text of a `tokenizer.json`.
    ///
    /// **Errors** [`TokenizerError::Syntax`] and [`TokenizerError::Unsupported`].
    pub fn from_json(json: String) -> Result<Self, TokenizerError> {
        let Parts { added: entries, vocab, plain, prefix_ids } = Parts::read(&json)?;
        let added = AddedTokens::new(&entries, &|text| normalise(&plain, text))?;
        // Text between tokens that are looked for after normalisation is normalised a second time when it is encoded.
        if !added.normalized.is_empty()
            && let Some(normalizer) = plain.get_normalizer()
            && !is_idempotent(normalizer)
        {
            let found = format!("{normalizer:?} beside added tokens that are normalized");
            return Err(TokenizerError::Unsupported { key: "normalizer", found });
        }
        let mut table: Vec<(u32, Vec<u8>)> = vocab.iter().map(|(token, id)| (*id, token_bytes(token))).collect();
        drop(vocab);
        table.sort(); // Two tokens of one id: whichever; but always the same.
        table.extend(added.iter().map(|added| (added.id, added.content.clone().into_bytes())));
        table.sort_by_key(|(id, _)| *id); // Stable: an added token comes after the vocabulary's entry of its id, and wins.
        let mut byte_ids = [None; 256];
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for (i, (id, token)) in table.iter().enumerate() {
            if table.get(i + 1).is_some_and(|(next, _)| next == id) {
                continue;
            }
            starts.resize(*id as usize + 1, bytes.len() as u32); // Ids that are no token have no bytes.
            bytes.extend_from_slice(token);
            if let [byte] = token[..]
                && added.get(*id).is_none()
            {
                byte_ids[usize::from(byte)] = Some(*id);
            }
        }
        starts.push(bytes.len() as u32);
        Ok(Tokenizer { json, plain, added, bytes, starts, byte_ids, prefix_ids })
    }

    /// Ids of a text in which added tokens are recognised; nothing is put before or after it.
    ///
    /// Only for text that this program or a template wrote.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let has_late = !self.added.normalized.is_empty() && self.plain.get_normalizer().is_some();
        for piece in self.split(text) {
            match piece.token {
                Some(id) => ids.push(id),
                None if !has_late => ids.extend(self.encode_plain(&text[piece.range])),
                None => {
                    let text = normalise(&self.plain, &text[piece.range]);
                    for piece in self.added.split_normalized(&text) {
                        match piece.token {
                            Some(id) => ids.push(id),
                            None => ids.extend(self.encode_plain(&text[piece.range])),
                        }
                    }
                }
            }
        }
        ids
    }

    /// A text's pieces in order, without gaps: added tokens that are recognised in it as it is, and what lies between.
    ///
    /// Tokens that a file wants recognised after normalisation are found only where there is none.
    pub fn split(&self, text: &str) -> Vec<Piece> {
        let pieces = self.added.split(text);
        if self.added.normalized.is_empty() || self.plain.get_normalizer().is_some() {
            return pieces;
        }
        let finer = |piece: Piece| match piece.token {
            Some(_) => vec![piece],
            None => {
                let start = piece.range.start;
                let mut inner = self.added.split_normalized(&text[piece.range]);
                inner.iter_mut().for_each(|p| p.range = start + p.range.start..start + p.range.end);
                inner
            }
        };
        pieces.into_iter().flat_map(finer).collect()
    }

    /// Whether an added token begins at byte `at` of a text; only special ones count if `only_special`.
    pub fn added_begins_at(&self, text: &str, at: usize, only_special: bool) -> bool {
        self.added.begins_at(text, at, only_special)
    }

    /// Added tokens of a single character.
    pub fn added_of_one_char(&self) -> Vec<char> {
        let of_one = |content: &str| content.chars().next().filter(|c| c.len_utf8() == content.len());
        self.added.iter().filter_map(|added| of_one(&added.content)).collect()
    }

    /// The ids that the file's own template puts before a text; chat templates write theirs themselves.
    pub fn prefix_ids(&self) -> &[u32] {
        &self.prefix_ids
    }

    /// Ids of a text in which nothing is an added token, whatever it says.
    pub fn encode_plain(&self, text: &str) -> Vec<u32> {
        match self.plain.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // The pattern that splits text may give up on a pathological one; its bytes are still its bytes.
            Err(_) => text.bytes().filter_map(|byte| self.byte_ids[usize::from(byte)]).collect(),
        }
    }

    /// The text of these ids for a reader: without the tokens that the file calls special.
    pub fn decode_without_special(&self, ids: &[u32]) -> String {
        let ids: Vec<u32> = ids.iter().copied().filter(|id| !self.is_special(*id)).collect();
        self.decode(&ids)
    }

    /// The text of these ids, added tokens included.
    ///
    /// Bytes that are no UTF-8, such as those of a character cut in two, become U+FFFD. An id that is no token has no text.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.bytes(id)).copied().collect();
        String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// The bytes of a token; none for an id that is no token.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let i = id as usize;
        match self.starts.get(i..i.saturating_add(2)) {
            Some(&[start, end]) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    /// The id of a token as the file spells it: `</think>`, or in the byte-level alphabet `ĠUp`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.added.id(token).or_else(|| self.plain.token_to_id(token))
    }

    /// Whether this is an added token: a control token or a tag.
    pub fn is_added(&self, id: u32) -> bool {
        self.added.get(id).is_some()
    }

    /// Whether this is an added token that the file calls special: one that is no part of the text for a reader.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.get(id).is_some_and(|added| added.special)
    }

    /// One more than the largest id. A model's vocabulary must be at least this large.
    pub fn vocab(&self) -> usize {
        self.starts.len() - 1
    }
}

/// What a tokenizer's normalizer makes of a text.
fn normalise(plain: &tokenizers::Tokenizer, text: &str) -> String {
    let mut normalised = NormalizedString::from(text);
    match plain.get_normalizer().map(|normalizer| normalizer.normalize(&mut normalised)) {
        None | Some(Ok(())) => normalised.get().to_string(),
        Some(Err(_)) => text.to_string(),
    }
}

/// Whether normalising twice is normalising once.
fn is_idempotent(normalizer: &NormalizerWrapper) -> bool {
    use NormalizerWrapper::{Lowercase, NFC, NFD, NFKC, NFKD};
    matches!(normalizer, NFC(_) | NFD(_) | NFKC(_) | NFKD(_) | Lowercase(_))
}

/// The byte-level alphabet: the character that stands for each byte.
///
/// **Source** Radford et al., *Language models are unsupervised multitask learners*, 2019: printable Latin-1 characters
/// stand for themselves, the other bytes for characters from U+0100 on.
fn byte_chars() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte as u32 } else { next };
        next += u32::from(!printable);
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// The bytes of a vocabulary entry; one that is not in the byte-level alphabet stands for itself.
fn token_bytes(token: &str) -> Vec<u8> {
    static CHARS: std::sync::LazyLock<HashMap<char, u8>> =
        std::sync::LazyLock::new(|| byte_chars().into_iter().zip(0..=255).collect());
    token.chars().map(|c| CHARS.get(&c).copied()).collect::<Option<_>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn saved_and_loaded_it_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::tiny();
        tokenizer.save(dir.path()).unwrap();
        let back = Tokenizer::load(dir.path()).unwrap();
        assert_eq!(back.json, tokenizer.json);
        let text = "<think> push Left</think>日本 Up\n";
        assert_eq!(back.encode(text), tokenizer.encode(text));
        assert_eq!(back.encode_plain(text), tokenizer.encode_plain(text));
        back.save(dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join(FILE)).unwrap(), tokenizer.json);
    }

    #[test]
    fn control_tokens_in_the_vocabulary_and_in_merges_cannot_be_reached_by_plain_text() {
        let mut root: Value = serde_json::from_str(&tiny::json()).unwrap();
        root["pre_tokenizer"]["use_regex"] = false.into(); // The whole text is one piece, and merges apply.
        root["model"]["ignore_merges"] = true.into();
        root["model"]["vocab"]["<b"] = 400.into();
        root["model"]["vocab"]["<b>"] = 401.into();
        root["model"]["merges"] = json!([["<", "b"], ["<b", ">"]]);
        root["added_tokens"] = json!([{"id": 401, "content": "<b>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}]);
        let tokenizer = Tokenizer::from_json(root.to_string()).unwrap();
        assert_eq!(tokenizer.vocab(), 402);
        assert_eq!(tokenizer.encode("<b>"), [401]);
        assert_eq!(tokenizer.encode_plain("<b>"), [400, u32::from(b'>')]);
        assert_eq!((tokenizer.decode(&[401, 400]), tokenizer.bytes(399)), ("<b><b".to_string(), &[][..]));
    }

    #[test]
    fn added_tokens_take_blanks_and_are_found_after_normalisation_where_the_file_says_so() {
        let added = |id: u32, content: &str, normalized: bool, strip: (bool, bool)| json!({"id": id, "content": content, "normalized": normalized, "lstrip": strip.0, "rstrip": strip.1});
        let mut root: Value = serde_json::from_str(&tiny::json()).unwrap();
        root["normalizer"] = json!({"type": "Lowercase"});
        root["added_tokens"] = json!([
            added(400, "<L>", false, (true, false)),
            added(401, "<R>", false, (false, true)),
            added(402, "<N>", true, (false, false)),
            added(403, "<Rx>", false, (false, false))
        ]);
        let tokenizer = Tokenizer::from_json(root.to_string()).unwrap();
        let a = u32::from(b'a');
        assert_eq!(tokenizer.encode("a <L><R> \na<Rx><n>A"), [a, 400, 401, a, 403, 402, a]);
        assert_eq!(tokenizer.encode("<l>"), tokenizer.encode_plain("<l>"));
        root["normalizer"] = json!({"type": "Prepend", "prepend": "a"});
        assert!(Tokenizer::from_json(root.to_string()).err().unwrap().to_string().starts_with("normalizer is "));
        root["normalizer"] = Value::Null;
        let tokenizer = Tokenizer::from_json(root.to_string()).unwrap();
        assert_eq!(tokenizer.split("a<N>").last(), Some(&Piece { token: Some(402), range: 1..4 }));
    }

    #[test]
    fn other_kinds_are_refused_by_name() {
        let message = |change: &dyn Fn(&mut Value)| {
            let mut root: Value = serde_json::from_str(&tiny::json()).unwrap();
            change(&mut root);
            Tokenizer::from_json(root.to_string()).err().unwrap().to_string()
        };
        assert_eq!(
            message(&|root| root["model"]["type"] = "Unigram".into()),
            "model.type is \"Unigram\", which is not supported; only byte-level BPE is"
        );
        assert!(message(&|root| root["decoder"] = Value::Null).starts_with("decoder is null"));
        assert!(message(&|root| root["model"]["vocab"] = json!({"a": -1})).starts_with("not a tokenizer.json: "));
        assert!(message(&|root| root["model"]["merges"] = json!([["zz", "y"]])).starts_with("not a tokenizer.json: "));
        // Neither memory nor a panic for what a file merely claims.
        assert!(
            message(&|root| root["model"]["vocab"]["x"] = 4_000_000_000u32.into()).contains("out of all proportion")
        );
        assert!(message(&|root| root["added_tokens"][0]["id"] = 9_000_000.into()).contains("out of all proportion"));
        let long = "<answer><answer>";
        assert!(message(&|root| root["model"]["merges"] = json!([[long, long]])).contains("which there is not"));
        assert!(message(&|root| root["model"]["dropout"] = 0.5.into()).starts_with("model.dropout is 0.5"));
        assert!(message(&|root| root["model"]["end_of_word_suffix"] = "</w>".into()).contains("end_of_word_suffix"));
        assert!(message(&|root| root["added_tokens"][0]["single_word"] = true.into()).contains("single_word"));
        assert!(matches!(Tokenizer::from_json("{".into()), Err(TokenizerError::Syntax(_))));
        let dir = tempfile::tempdir().unwrap();
        let absent = Tokenizer::load(dir.path()).err().unwrap().to_string();
        assert!(absent.starts_with("cannot read ") && absent.contains("tokenizer.json"), "{absent}");
        std::fs::write(dir.path().join(FILE), "{}").unwrap();
        let other = Tokenizer::load(dir.path()).err().unwrap().to_string();
        assert!(other.contains("tokenizer.json: model.type is null"), "{other}");
    }
}

//! Text to token ids and back, over a `tokenizer.json` of the byte-level BPE kind.
//!
//! There are two ways in, because text from an environment or a user must never turn into a control token (decision D2):
//! [`Tokenizer::encode`] recognises added tokens, [`Tokenizer::encode_plain`] cannot produce one. It knows no chat
//! template; the small model's own vocabulary is in [`Tokenizer::tiny`].

mod tiny;

use crate::atomic_file;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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

/// An added token: one that [`Tokenizer::encode`] recognises whole and [`Tokenizer::encode_plain`] never gives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Added {
    id: u32,
    special: bool,
}

/// A byte-level BPE tokenizer.
pub struct Tokenizer {
    /// The file's text; saving writes it as it was.
    json: String,
    /// Recognises added tokens.
    marked: tokenizers::Tokenizer,
    /// The same without any of them.
    plain: tokenizers::Tokenizer,
    ids: HashMap<String, u32>,
    added: Vec<Added>,
    /// The bytes of all tokens, end to end by id; token i has `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<usize>,
    /// The token of each single byte, where there is one.
    byte_ids: [Option<u32>; 256],
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
        let mut root: Value = serde_json::from_str(&json).map_err(|e| TokenizerError::Syntax(e.to_string()))?;
        if root["model"]["type"] != "BPE" {
            let found = root["model"]["type"].to_string();
            return Err(TokenizerError::Unsupported { key: "model.type", found });
        }
        if !is_byte_level(&root["decoder"]) {
            return Err(TokenizerError::Unsupported { key: "decoder", found: root["decoder"].to_string() });
        }
        let model_vocab: Vec<(String, u32)> = entries(&root["model"]["vocab"])?;
        let mut added = Vec::new();
        let mut contents = Vec::new();
        for token in root["added_tokens"].as_array().map_or(&[][..], Vec::as_slice) {
            let (Some(content), Some(id)) = (token["content"].as_str(), token["id"].as_u64()) else {
                return Err(TokenizerError::Syntax(format!("added token {token} has no content or no id")));
            };
            let special = token["special"].as_bool().unwrap_or(false);
            added.push(Added { id: to_id(id)?, special });
            contents.push(content.to_string());
        }

        // Lengths are the caller's matter: nothing is cut or filled up silently.
        root["truncation"] = Value::Null;
        root["padding"] = Value::Null;
        let marked = build(&root)?;
        remove_tokens(&mut root, &contents);
        let plain = build(&root)?;

        let mut table: Vec<(u32, Vec<u8>)> = model_vocab.iter().map(|(token, id)| (*id, token_bytes(token))).collect();
        table.extend(added.iter().zip(&contents).map(|(added, content)| (added.id, content.clone().into_bytes())));
        table.sort_by_key(|(id, _)| *id); // Stable: an added token comes after the vocabulary's entry of its id, and wins.
        let mut byte_ids = [None; 256];
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for (i, (id, token)) in table.iter().enumerate() {
            if table.get(i + 1).is_some_and(|(next, _)| next == id) {
                continue;
            }
            starts.resize(*id as usize + 1, bytes.len()); // Ids that are no token have no bytes.
            bytes.extend_from_slice(token);
            if let [byte] = token[..]
                && !added.iter().any(|added| added.id == *id)
            {
                byte_ids[usize::from(byte)] = Some(*id);
            }
        }
        starts.push(bytes.len());
        let mut ids: HashMap<String, u32> = model_vocab.into_iter().collect();
        ids.extend(contents.into_iter().zip(added.iter().map(|added| added.id)));
        added.sort_by_key(|added| added.id);
        Ok(Tokenizer { json, marked, plain, ids, added, bytes, starts, byte_ids })
    }

    /// Ids of a text in which added tokens are recognised; nothing is put before or after it.
    ///
    /// Only for text that this program or a template wrote.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.run(&self.marked, text)
    }

    /// Ids of a text in which nothing is an added token, whatever it says.
    pub fn encode_plain(&self, text: &str) -> Vec<u32> {
        self.run(&self.plain, text)
    }

    fn run(&self, tokenizer: &tokenizers::Tokenizer, text: &str) -> Vec<u32> {
        match tokenizer.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // The pattern that splits text may give up on a pathological one; its bytes are still its bytes.
            Err(_) => text.bytes().filter_map(|byte| self.byte_ids[usize::from(byte)]).collect(),
        }
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
        if i + 1 < self.starts.len() { &self.bytes[self.starts[i]..self.starts[i + 1]] } else { &[] }
    }

    /// The id of a token as the file spells it: `</think>`, or in the byte-level alphabet `ĠUp`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Whether this is an added token: a control token or a tag.
    pub fn is_added(&self, id: u32) -> bool {
        self.find_added(id).is_some()
    }

    /// Whether this is an added token that the file calls special: one that is no part of the text for a reader.
    pub fn is_special(&self, id: u32) -> bool {
        self.find_added(id).is_some_and(|added| added.special)
    }

    fn find_added(&self, id: u32) -> Option<&Added> {
        self.added.binary_search_by_key(&id, |added| added.id).ok().map(|i| &self.added[i])
    }

    /// One more than the largest id. A model's vocabulary must be at least this large.
    pub fn vocab(&self) -> usize {
        self.starts.len() - 1
    }
}

fn build(root: &Value) -> Result<tokenizers::Tokenizer, TokenizerError> {
    tokenizers::Tokenizer::from_bytes(root.to_string()).map_err(|e| TokenizerError::Syntax(e.to_string()))
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

fn to_id(id: u64) -> Result<u32, TokenizerError> {
    // The table of bytes is as long as the largest id.
    let id = u32::try_from(id).ok().filter(|id| *id < 1 << 24);
    id.ok_or_else(|| TokenizerError::Syntax("a token id above 16,777,215".into()))
}

fn entries(vocab: &Value) -> Result<Vec<(String, u32)>, TokenizerError> {
    let object = vocab.as_object().ok_or_else(|| TokenizerError::Syntax("model.vocab is no object".into()))?;
    let pairs = object.iter().map(|(token, id)| {
        let id = id.as_u64().ok_or_else(|| TokenizerError::Syntax(format!("the id of {token:?} is {id}")))?;
        Ok((token.clone(), to_id(id)?))
    });
    pairs.collect()
}

/// Takes tokens out of the file: from the added ones, from the vocabulary, and every merge that has to do with one.
///
/// Many files list their control tokens in the vocabulary too, where a piece of plain text could find them.
fn remove_tokens(root: &mut Value, contents: &[String]) {
    root["added_tokens"] = json!([]);
    let Value::Object(model) = &mut root["model"] else { return };
    if let Some(vocab) = model.get_mut("vocab").and_then(Value::as_object_mut) {
        let kept = std::mem::take(vocab).into_iter().filter(|(token, _)| !contents.contains(token));
        *vocab = kept.collect::<Map<_, _>>();
    }
    if let Some(merges) = model.get_mut("merges").and_then(Value::as_array_mut) {
        merges.retain(|merge| {
            let (a, b) = match merge {
                Value::String(pair) => pair.split_once(' ').unwrap_or((pair, "")),
                pair => (pair[0].as_str().unwrap_or(""), pair[1].as_str().unwrap_or("")),
            };
            let merged = || [a, b].concat();
            !contents.iter().any(|content| content == a || content == b || *content == merged())
        });
    }
    // What the post-processor would add refers to tokens that are gone.
    root["post_processor"] = Value::Null;
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
        assert!(matches!(Tokenizer::from_json("{".into()), Err(TokenizerError::Syntax(_))));
        let dir = tempfile::tempdir().unwrap();
        let absent = Tokenizer::load(dir.path()).err().unwrap().to_string();
        assert!(absent.starts_with("cannot read ") && absent.contains("tokenizer.json"), "{absent}");
        std::fs::write(dir.path().join(FILE), "{}").unwrap();
        let other = Tokenizer::load(dir.path()).err().unwrap().to_string();
        assert!(other.contains("tokenizer.json: model.type is null"), "{other}");
    }
}

//! A model as people have it on their disk: a folder in Hugging Face layout or a GGUF file, with its tokenizer and chat template.
//!
//! Opening reads headers and text files, so that shape, prompts and memory are known before weights are loaded. What lies beside the
//! weights is kept as it was read, and written with every model that is made from this one, so that it loads elsewhere.

use crate::atomic_file;
use crate::chat_template::{Chat, ChatTemplateError};
use crate::config::Config;
use crate::gguf::{self, Gguf, GgufError};
use crate::params::Params;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{self, Checkpoint, SaveOptions, WeightsError};
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONFIG: &str = "config.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// What people keep beside the weights; copied byte for byte. `tokenizer.json` is the tokenizer's own.
const COMPANIONS: [&str; 8] = [
    TOKENIZER_CONFIG,
    GENERATION_CONFIG,
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "LICENSE",
];

/// Keys of `config.json` that say which tokens begin, end and pad; the engine reads them elsewhere, other programs read them here.
const TOKEN_IDS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// Why a model cannot be opened, loaded or written.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// The weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template.
    #[error(transparent)]
    Chat(#[from] ChatTemplateError),
    /// The tokenizer has tokens that the model does not know.
    #[error("{}: the tokenizer has {tokenizer} ids, but the model knows {model}: they do not belong together", path.display())]
    Vocabulary {
        /// The folder or file.
        path: PathBuf,
        /// Ids of the tokenizer.
        tokenizer: usize,
        /// Vocabulary of the model.
        model: usize,
    },
    /// A token that ends a response can never be sampled.
    #[error("{}: eos_token_id {id} is no token of the model, which knows {model}", path.display())]
    StopToken {
        /// The folder or file.
        path: PathBuf,
        /// The id.
        id: u32,
        /// Vocabulary of the model.
        model: usize,
    },
    /// The file system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Read or write.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What lies beside the weights of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Companions {
    /// Files by name, as they were read.
    files: Vec<(String, Vec<u8>)>,
    /// Begin, end and pad tokens as `config.json` names them.
    token_ids: Map<String, Value>,
}

/// A model that is opened, not loaded.
pub struct Pretrained {
    /// Its shape.
    pub config: Config,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template and stop tokens, if it brings a template.
    pub chat: Option<Arc<Chat>>,
    /// What lies beside its weights.
    pub companions: Companions,
    weights: Source,
}

enum Source {
    Folder(weights::Opened),
    Gguf(Gguf),
}

/// Whether a path holds a model: a folder with `config.json`, or a file whose name ends in `.gguf`.
pub fn is_model(path: &Path) -> bool {
    path.join(CONFIG).is_file() || (path.is_file() && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")))
}

/// Opens a model folder or a GGUF file.
///
/// **Errors** [`PretrainedError`], naming the file.
pub fn open(path: &Path) -> Result<Pretrained, PretrainedError> {
    let opened = if path.is_dir() { open_folder(path)? } else { open_gguf(path)? };
    let (tokenizer, model) = (opened.tokenizer.vocab(), opened.config.vocab);
    if tokenizer > model {
        return Err(PretrainedError::Vocabulary { path: path.to_path_buf(), tokenizer, model });
    }
    let stop_ids = opened.chat.iter().flat_map(|chat| &chat.stop_ids);
    match stop_ids.copied().find(|id| *id as usize >= model) {
        Some(id) => Err(PretrainedError::StopToken { path: path.to_path_buf(), id, model }),
        None => Ok(opened),
    }
}

fn open_folder(dir: &Path) -> Result<Pretrained, PretrainedError> {
    let path = dir.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(|source| PretrainedError::Io { what: "read", path, source })?;
    let weights = weights::open(dir)?;
    let tokenizer = Tokenizer::load(dir)?;
    let chat = Chat::load(dir, &tokenizer)?;
    let mut files = Vec::new();
    for name in COMPANIONS {
        let path = dir.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => files.push((name.to_string(), bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(PretrainedError::Io { what: "read", path, source }),
        }
    }
    // The shape was read from it, so it is a JSON object.
    let config: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
    let token_ids = TOKEN_IDS.iter().filter_map(|key| Some((key.to_string(), config.get(*key)?.clone()))).collect();
    let companions = Companions { files, token_ids };
    Ok(Pretrained {
        config: weights.config.clone(),
        tokenizer: Arc::new(tokenizer),
        chat: chat.map(Arc::new),
        companions,
        weights: Source::Folder(weights),
    })
}

fn open_gguf(path: &Path) -> Result<Pretrained, PretrainedError> {
    let gguf = gguf::open(path)?;
    let config = gguf.config()?;
    let tokenizer = Tokenizer::from_json(gguf.tokenizer_json()?)
        .map_err(|source| TokenizerError::In { path: path.to_path_buf(), source: Box::new(source) })?;
    let (bos, eos, eot, pad) = (gguf.bos()?, gguf.eos()?, gguf.eot()?, gguf.pad()?);
    let mut ends: Vec<u32> = eos.into_iter().chain(eot).collect();
    ends.dedup();
    let chat = match gguf.chat_template()? {
        Some(source) => Some(Chat::from_parts(&path.display().to_string(), source, bos, &ends, &tokenizer)?),
        None => None,
    };
    let eos_ids = match ends[..] {
        [] => None,
        [one] => Some(json!(one)),
        _ => Some(json!(ends)),
    };
    let mut token_ids = Map::new();
    for (key, value) in TOKEN_IDS.into_iter().zip([bos.map(|id| json!(id)), eos_ids, pad.map(|id| json!(id))]) {
        token_ids.extend(value.map(|value| (key.to_string(), value)));
    }
    let generation = format!("{:#}\n", Value::Object(token_ids.clone()));
    let files = vec![
        (TOKENIZER_CONFIG.to_string(), gguf.tokenizer_config_json()?.into_bytes()),
        (GENERATION_CONFIG.to_string(), generation.into_bytes()),
    ];
    let companions = Companions { files, token_ids };
    Ok(Pretrained {
        config,
        tokenizer: Arc::new(tokenizer),
        chat: chat.map(Arc::new),
        companions,
        weights: Source::Gguf(gguf),
    })
}

impl Pretrained {
    /// Converts the weights to f32.
    ///
    /// **Errors** [`PretrainedError`], naming the file and the tensor.
    pub fn load(&self) -> Result<Checkpoint, PretrainedError> {
        match &self.weights {
            Source::Folder(opened) => Ok(opened.load()),
            Source::Gguf(gguf) => Ok(gguf.load()?),
        }
    }
}

impl Companions {
    /// Writes a model folder: weights, `config.json`, and everything that lay beside the weights it was made from.
    ///
    /// **Errors** [`PretrainedError`].
    pub fn save(
        &self,
        dir: &Path,
        config: &Config,
        params: &Params,
        tokenizer: &Tokenizer,
        options: SaveOptions,
    ) -> Result<(), PretrainedError> {
        weights::save_as(dir, config, params, options)?;
        if !self.token_ids.is_empty() {
            let path = dir.join(CONFIG);
            let text = std::fs::read_to_string(&path).map_err(|source| PretrainedError::Io {
                what: "read",
                path: path.clone(),
                source,
            })?;
            // It was written a moment ago.
            let mut object: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
            object.extend(self.token_ids.clone());
            write(&path, format!("{:#}\n", Value::Object(object)).as_bytes())?;
        }
        self.save_text(dir, tokenizer)
    }

    /// Writes the tokenizer and what lies beside it into an existing folder, byte for byte as it was read.
    ///
    /// **Errors** [`PretrainedError`].
    pub fn save_text(&self, dir: &Path, tokenizer: &Tokenizer) -> Result<(), PretrainedError> {
        tokenizer.save(dir)?;
        self.files.iter().try_for_each(|(name, bytes)| write(&dir.join(name), bytes))
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), PretrainedError> {
    atomic_file::write(path, |file| file.write_all(bytes)).map_err(|source| PretrainedError::Io {
        what: "write",
        path: path.to_path_buf(),
        source,
    })
}

//! Models in one GGUF file: weights dequantised into flat parameters, tokenizer and chat template from the metadata.
//!
//! Knows the format and the spellings of its writers; not what is computed with the weights. The file is mapped, and what
//! has been converted is given back, so that a model is in memory once. Where to read next: [`container`] (bytes),
//! [`blocks`] (number formats), `shape` (keys and names), `vocabulary` (the tokenizer).

pub mod blocks;
pub mod container;
mod shape;
mod vocabulary;

use crate::config::{Config, ConfigError};
use crate::params::{Params, Table};
use crate::weights::Checkpoint;
use container::{Array, Container, TensorInfo, Value};
use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a GGUF file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub fault: GgufFault,
}

/// What is wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufFault {
    /// The file system refused to read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// Another kind of file.
    #[error("not a GGUF file: its first four bytes are not GGUF")]
    Magic,
    /// Another version of the format.
    #[error("GGUF version {0} is not supported; versions 2 and 3, little-endian, are")]
    Version(u32),
    /// The file ends too early, or a number in it says so.
    #[error("cut short or damaged: {0} ends beyond the end of the file; copy the file again")]
    Cut(String),
    /// A name that is not UTF-8.
    #[error("damaged: {0} is not UTF-8")]
    NotText(String),
    /// A piece of a model.
    #[error("one of {0} pieces of a model; merge them first (llama-gguf-split --merge)")]
    Split(u64),
    /// A key that is needed is absent.
    #[error("the metadata key {0} is missing")]
    Missing(String),
    /// A value of the metadata that cannot be used.
    #[error("the metadata key {key} {reason}")]
    Metadata {
        /// The key.
        key: String,
        /// What its value is, and what it should be.
        reason: String,
    },
    /// A tensor in a number format that is not read here.
    #[error(
        "tensor {tensor} holds {kind}; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K can be read"
    )]
    Type {
        /// The tensor.
        tensor: String,
        /// The format.
        kind: String,
    },
    /// A tensor that cannot be used.
    #[error("tensor {tensor} {reason}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model that the metadata describe, but that is not computed here.
    #[error("the metadata describe a model that is not supported (keys as in config.json): {0}")]
    Config(ConfigError),
}

/// An open GGUF file, its tables checked.
pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    container: Container,
}

/// Opens a GGUF file and checks its tables against its size.
///
/// **Errors** [`GgufError`], naming the key or tensor at fault.
pub fn open(path: &Path) -> Result<Gguf, GgufError> {
    let fail = |fault| GgufError { path: path.to_path_buf(), fault };
    let file = File::open(path).map_err(|source| fail(GgufFault::Read(source)))?;
    // SAFETY: nobody writes to the map; the one thing that could go wrong is another process that shortens the file
    // meanwhile, and writers replace files by renaming, which leaves the map whole.
    let map = unsafe { Mmap::map(&file) }.map_err(|source| fail(GgufFault::Read(source)))?;
    let container = container::parse(&map).map_err(fail)?;
    Ok(Gguf { path: path.to_path_buf(), map, container })
}

/// How much of the file is converted before its pages are given back, in bytes.
const CHUNK_BYTES: usize = 1 << 22;

impl Gguf {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names, types and places of all tensors.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// The shape of the model.
    ///
    /// **Errors** [`GgufFault::Config`] for a model that is not computed here, and a key that is missing or of another type.
    pub fn config(&self) -> Result<Config, GgufError> {
        shape::config(self).map_err(|fault| self.error(fault))
    }

    /// Reads all weights, as f32 under their Hugging Face names.
    ///
    /// **Errors** [`GgufError`]: as [`Gguf::config`]; a tensor that is missing, of another shape, or not known.
    pub fn load(&self) -> Result<Checkpoint, GgufError> {
        let config = self.config()?;
        let table = Arc::new(Table::new(&config));
        // Every tensor is found in the file, in its shape, before its f32 copy is allocated.
        let tensors = shape::sources(self, &table).map_err(|fault| self.error(fault))?;
        let mut params = Params::zeros(table.clone());
        for (entry, tensor) in table.entries.iter().zip(tensors) {
            let order = shape::row_order(self, &config, &entry.name);
            self.convert(tensor, &order, &mut params.data[entry.range()]);
        }
        Ok(Checkpoint { config, params })
    }

    /// Writes a tensor to its place; row r of the file becomes row `order(r)`. A vector is a column of rows of one.
    fn convert(&self, tensor: &TensorInfo, order: &dyn Fn(usize) -> usize, to: &mut [f32]) {
        let Some((&cols, rows)) = tensor.shape.split_last().filter(|(_, rows)| !rows.is_empty()) else {
            let mut vector = vec![0.0; to.len()];
            tensor.kind.dequantise(&self.map[tensor.at.clone()], &mut vector);
            vector.iter().enumerate().for_each(|(r, x)| to[order(r)] = *x);
            return;
        };
        let row_bytes = tensor.at.len() / rows.iter().product::<usize>();
        let rows_at_once = (CHUNK_BYTES / row_bytes).max(1);
        for (c, chunk) in self.map[tensor.at.clone()].chunks(rows_at_once * row_bytes).enumerate() {
            for (r, row) in chunk.chunks_exact(row_bytes).enumerate() {
                let place = order(c * rows_at_once + r);
                tensor.kind.dequantise(row, &mut to[place * cols..][..cols]);
            }
            self.give_back(tensor.at.start + c * rows_at_once * row_bytes, chunk.len());
        }
    }

    /// Tells the system that these bytes of the map are not needed now; reading them again would fetch them again.
    fn give_back(&self, offset: usize, len: usize) {
        // SAFETY: the map is read-only and backed by the file, so that a page which is dropped comes back with the same
        // bytes. The range lies in the map. A refusal costs memory, not correctness.
        #[cfg(unix)]
        let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) };
        #[cfg(not(unix))]
        let _ = (offset, len);
    }

    fn error(&self, fault: GgufFault) -> GgufError {
        GgufError { path: self.path.clone(), fault }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.container.metadata.get(key)
    }

    fn wrong(key: &str, reason: impl Into<String>) -> GgufFault {
        GgufFault::Metadata { key: key.into(), reason: reason.into() }
    }

    fn text(&self, key: &str) -> Result<Option<&str>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(at)) => {
                let text = std::str::from_utf8(&self.map[at.clone()]);
                text.map(Some).map_err(|_| Self::wrong(key, "is not UTF-8"))
            }
            Some(other) => Err(Self::wrong(key, format!("is {other:?}, not a text"))),
        }
    }

    fn whole(&self, key: &str) -> Result<Option<u64>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
            Some(other) => Err(Self::wrong(key, format!("is {other:?}, not a whole number"))),
        }
    }

    /// An f32 is taken for the shortest decimal number that it is nearest to: 1e-5 was meant, not 9.999999747378752e-6.
    fn number(&self, key: &str) -> Result<Option<f64>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(x)) => Ok(Some(x.to_string().parse().unwrap_or(f64::from(*x)))),
            Some(Value::F64(x)) => Ok(Some(*x)),
            Some(other) => Err(Self::wrong(key, format!("is {other:?}, not a number"))),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(Self::wrong(key, format!("is {other:?}, neither true nor false"))),
        }
    }

    fn array(&self, key: &str) -> Result<Option<&Array>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(Self::wrong(key, format!("is {other:?}, not an array"))),
        }
    }
}

#[cfg(test)]
mod tests;

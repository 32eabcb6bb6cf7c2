//! Checkpoints in Hugging Face layout: a folder with `config.json` and safetensors, read into flat parameters and back.
//!
//! Knows names, shapes and number formats; not what is computed with them. Our own addition is the value head, whose
//! tensors lie in the main file or in `value_head.safetensors`.

mod read;
mod write;

pub use read::{Opened, load, open};
pub use write::{SaveOptions, Stored, save, save_as};

use crate::config::{Config, ConfigError};
use crate::params::{Params, Table};
use safetensors::tensor::{Dtype, SafeTensorError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(target_endian = "big")]
compile_error!("safetensors hold little-endian numbers, which are copied as they are");

const CONFIG: &str = "config.json";
const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const VALUE_HEAD: &str = "value_head.safetensors";

/// Why a checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
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
    /// The folder holds no weights in a format that is read here.
    #[error("{} has neither {MODEL} nor {INDEX}", .0.display())]
    NoWeights(PathBuf),
    /// `config.json` does not describe a model of ours.
    #[error("{}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
    /// The list of shards is not one.
    #[error("{}: weight_map is not an object from tensor names to file names in this folder", .0.display())]
    Index(PathBuf),
    /// A shard that the list names is not there.
    #[error("{} is not there, though {} lists it; download or copy the missing file", path.display(), index.display())]
    MissingShard {
        /// The shard.
        path: PathBuf,
        /// The list.
        index: PathBuf,
    },
    /// Not a safetensors file.
    #[error("{} is not a whole safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SafeTensorError,
    },
    /// The file ends before its data does.
    #[error("{} is cut short: tensor {tensor} ends beyond the end of the file; copy the file again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The first tensor that is not whole.
        tensor: String,
    },
    /// A tensor that the configuration asks for is absent.
    #[error("{} has no tensor {tensor}, which {CONFIG} asks for", path.display())]
    Missing {
        /// The file, or the folder of shards.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the configuration knows nothing of: computing without it would be wrong.
    #[error("{} has a tensor {tensor} that {CONFIG} does not ask for", path.display())]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that two files hold.
    #[error("{} has tensor {tensor} once more, after {}", path.display(), first.display())]
    Duplicate {
        /// The file that was read later.
        path: PathBuf,
        /// The file that was read first.
        first: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape than the configuration says.
    #[error("{}: tensor {tensor} has shape {found:?}, but {CONFIG} asks for {wanted:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the configuration gives.
        wanted: Vec<usize>,
    },
    /// Numbers in a format that is not read here.
    #[error("{}: tensor {tensor} holds {dtype:?}; F32, BF16 and F16 can be read", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The format.
        dtype: Dtype,
    },
}

/// A model at rest: its shape and its weights.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// What shape it has.
    pub config: Config,
    /// The weights, over the table of `config`.
    pub params: Params,
}

impl Checkpoint {
    /// The same model with a value head; one that was not there starts at zero, so that every value is 0.
    pub fn with_value_head(self) -> Checkpoint {
        if self.config.value_head {
            return self;
        }
        let config = Config { value_head: true, ..self.config };
        let mut params = Params::zeros(Arc::new(Table::new(&config)));
        // The head stands at the end of the table, behind everything that was there.
        params.data[..self.params.data.len()].copy_from_slice(&self.params.data);
        Checkpoint { config, params }
    }

    /// The same model without its value head, if it has one.
    pub fn without_value_head(self) -> Checkpoint {
        let config = Config { value_head: false, ..self.config };
        let table = Arc::new(Table::new(&config));
        let mut data = self.params.data;
        data.truncate(table.len());
        Checkpoint { config, params: Params { table, data } }
    }
}

#[cfg(test)]
mod tests;

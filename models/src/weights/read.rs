//! From a folder to parameters: headers first, numbers when they are asked for.

use super::{CONFIG, Checkpoint, INDEX, MODEL, VALUE_HEAD, WeightsError};
use crate::config::{Config, TiedEmbeddings};
use crate::params::{Params, Table};
use crate::threads::{Pool, Shards};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Elements that are converted at once: what is mapped and not yet let go is this much a thread.
const CHUNK: usize = 1 << 22;

/// A checkpoint whose headers are read and found to fit its shape, and whose numbers still lie in the files.
#[derive(Debug)]
pub struct Opened {
    /// Its shape, also as far as only the weights tell it: value head, tied embeddings.
    pub config: Config,
    table: Arc<Table>,
    files: Vec<MappedFile>,
    /// For every entry of the table the file and the place in it.
    sources: Vec<Source>,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    file: usize,
    /// First byte of the tensor in the file.
    start: usize,
    dtype: Dtype,
}

/// Reads a checkpoint folder: [`open`], then [`Opened::load`].
///
/// **Errors** [`WeightsError`], naming the file and the tensor.
pub fn load(dir: &Path) -> Result<Checkpoint, WeightsError> {
    Ok(open(dir)?.load())
}

/// Opens a checkpoint folder: `config.json` and `model.safetensors` (or shards with their index), f32, bf16 or f16.
///
/// A value head is read where its tensors are there, whatever `config.json` says. Embeddings are tied
/// - when `tie_word_embeddings` is true, except when an output head of other numbers lies beside the embedding (transformers 5
///   reads such a folder so);
/// - when the key is absent and there is no `lm_head.weight`.
///
/// Of tied embeddings either name will do.
///
/// **Errors** [`WeightsError`], naming the file and the tensor.
pub fn open(dir: &Path) -> Result<Opened, WeightsError> {
    let path = dir.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(|source| WeightsError::Read { path: path.clone(), source })?;
    let (mut config, tied) =
        Config::from_hf_json_of_weights(&text).map_err(|source| WeightsError::Config { path, source })?;
    let layout = Layout::of(dir)?;
    let files = layout.open()?;
    let found = Found::among(&files)?;
    config.value_head |= found.places.contains_key("value_head.weight");
    let (embedding, head) = (found.places.get(EMBEDDING), found.places.get(HEAD));
    config.tied_embeddings = match (tied, embedding, head) {
        (TiedEmbeddings::Said(true), Some(&embedding), Some(&head)) => {
            files[embedding].bytes(EMBEDDING) == files[head].bytes(HEAD)
        }
        (TiedEmbeddings::Said(said), ..) => said,
        (TiedEmbeddings::Unsaid, _, head) => head.is_none(),
    };

    let missing = |tensor: String| {
        let path = layout.file_of(dir, &tensor);
        WeightsError::Missing { path, tensor }
    };
    // Before the table is made, which grows with the number of layers: they are no more than the files have.
    let layer = |l: usize| format!("model.layers.{l}.input_layernorm.weight");
    if let Some(l) = (0..config.n_layers).find(|&l| !found.places.contains_key(&layer(l))) {
        return Err(missing(layer(l)));
    }
    let table = Arc::new(Table::new(&config));
    let mut left = found.places.clone();
    let mut sources = Vec::with_capacity(table.entries.len());
    for entry in &table.entries {
        // Of tied embeddings a file may hold the other end.
        let mut name = entry.name.as_str();
        if name == EMBEDDING && config.tied_embeddings && !left.contains_key(name) && left.contains_key(HEAD) {
            name = HEAD;
        }
        let file = left.remove(name).ok_or_else(|| missing(name.into()))?;
        sources.push(files[file].place(file, name, &entry.shape)?);
    }
    if config.tied_embeddings {
        left.remove(HEAD);
    }
    match left.into_iter().next() {
        Some((tensor, file)) => Err(WeightsError::Unexpected { path: files[file].path.clone(), tensor }),
        None => Ok(Opened { config, table, files, sources }),
    }
}

impl Opened {
    /// Converts the weights to f32, on all cores; mapped pages are let go as it proceeds.
    pub fn load(&self) -> Checkpoint {
        let mut params = Params::zeros(self.table.clone());
        let mut pieces = Vec::new();
        for (entry, source) in self.table.entries.iter().zip(&self.sources) {
            for from in (0..entry.len()).step_by(CHUNK) {
                pieces.push((entry.offset + from, CHUNK.min(entry.len() - from), source, from));
            }
        }
        let shards = Shards::new(&mut params.data);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
        Pool::new(threads).run(pieces.len(), &|piece| {
            let (to, len, source, from) = pieces[piece];
            // SAFETY: pieces are disjoint parts of the table.
            let to = unsafe { shards.part(to..to + len) };
            self.files[source.file].convert(source, from, to);
        });
        Checkpoint { config: self.config.clone(), params }
    }
}

/// Which tensor lies in which file.
struct Found {
    places: BTreeMap<String, usize>,
}

impl Found {
    fn among(files: &[MappedFile]) -> Result<Self, WeightsError> {
        let mut places = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            for tensor in file.metadata.offset_keys() {
                if tensor.ends_with("rotary_emb.inv_freq") {
                    continue; // Old exporters store it though it follows from the configuration.
                }
                if let Some(first) = places.insert(tensor.clone(), i) {
                    let (path, first) = (file.path.clone(), files[first].path.clone());
                    return Err(WeightsError::Duplicate { path, first, tensor });
                }
            }
        }
        Ok(Found { places })
    }
}

/// The weight files of a folder: one, or the shards of an index; and the value head's, if there.
struct Layout {
    files: Vec<PathBuf>,
    /// The index, and what it says about each tensor.
    index: Option<(PathBuf, BTreeMap<String, String>)>,
}

impl Layout {
    fn of(dir: &Path) -> Result<Self, WeightsError> {
        let (mut files, mut index) = (Vec::new(), None);
        let list = dir.join(INDEX);
        if dir.join(MODEL).exists() {
            files.push(dir.join(MODEL));
        } else if list.exists() {
            let read = |source| WeightsError::Read { path: list.clone(), source };
            let text = std::fs::read_to_string(&list).map_err(read)?;
            let map: Option<BTreeMap<String, String>> = serde_json::from_str::<Value>(&text).ok().and_then(|json| {
                let shard = |name: &Value| name.as_str().filter(|name| !name.contains(['/', '\\'])).map(String::from);
                let map = json.get("weight_map")?.as_object()?;
                map.iter().map(|(tensor, name)| Some((tensor.clone(), shard(name)?))).collect()
            });
            let map = map.filter(|map| !map.is_empty()).ok_or_else(|| WeightsError::Index(list.clone()))?;
            let mut names: Vec<&String> = map.values().collect();
            names.sort_unstable();
            names.dedup();
            files.extend(names.into_iter().map(|name| dir.join(name)));
            index = Some((list, map));
        } else {
            return Err(WeightsError::NoWeights(dir.to_path_buf()));
        }
        let value_head = dir.join(VALUE_HEAD);
        if value_head.exists() {
            files.push(value_head);
        }
        Ok(Layout { files, index })
    }

    fn open(&self) -> Result<Vec<MappedFile>, WeightsError> {
        let missing = self.files.iter().find(|path| !path.exists());
        if let (Some(path), Some((index, _))) = (missing, &self.index) {
            return Err(WeightsError::MissingShard { path: path.clone(), index: index.clone() });
        }
        self.files.iter().cloned().map(MappedFile::open).collect()
    }

    /// Where a tensor should be.
    fn file_of(&self, dir: &Path, tensor: &str) -> PathBuf {
        match &self.index {
            None => self.files[0].clone(),
            Some((index, map)) => map.get(tensor).map_or_else(|| index.clone(), |name| dir.join(name)),
        }
    }
}

/// A safetensors file in memory, its header checked.
#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// Where the data starts, after the header.
    start: usize,
}

impl MappedFile {
    fn open(path: PathBuf) -> Result<Self, WeightsError> {
        let read = |source| WeightsError::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(read)?;
        // SAFETY: the one thing that could go wrong is another process that shortens the file meanwhile; writers here
        // replace files by renaming, which leaves the map whole.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| WeightsError::Read { path: path.clone(), source })?;
        match SafeTensors::read_metadata(&map) {
            Ok((header_bytes, metadata)) => Ok(MappedFile { path, map, metadata, start: 8 + header_bytes }),
            Err(source) => Err(match first_cut_tensor(&map) {
                Some(tensor) => WeightsError::Truncated { path, tensor },
                None => WeightsError::Format { path, source },
            }),
        }
    }

    /// Format and bytes of a tensor.
    fn bytes(&self, name: &str) -> Option<(Dtype, &[u8])> {
        let TensorInfo { dtype, data_offsets: (from, end), .. } = self.metadata.info(name)?;
        Some((*dtype, &self.map[self.start + from..self.start + end]))
    }

    /// Where the numbers of a tensor lie that has this shape; `file` is this file's number.
    fn place(&self, file: usize, name: &str, wanted: &[usize]) -> Result<Source, WeightsError> {
        let (path, tensor) = (|| self.path.clone(), || name.to_string());
        let info = self.metadata.info(name).ok_or_else(|| WeightsError::Missing { path: path(), tensor: tensor() })?;
        let TensorInfo { dtype, shape, data_offsets: (from, _) } = info;
        if shape != wanted {
            let (found, wanted) = (shape.clone(), wanted.to_vec());
            return Err(WeightsError::Shape { path: path(), tensor: tensor(), found, wanted });
        }
        match dtype {
            Dtype::F32 | Dtype::BF16 | Dtype::F16 => Ok(Source { file, start: self.start + from, dtype: *dtype }),
            dtype => Err(WeightsError::Dtype { path: path(), tensor: tensor(), dtype: *dtype }),
        }
    }

    /// Converts `to.len()` elements of a tensor from element `from` on, whose place in the file the header's check has confirmed.
    fn convert(&self, source: &Source, from: usize, to: &mut [f32]) {
        let size = if source.dtype == Dtype::F32 { 4 } else { 2 };
        let (start, len) = (source.start + from * size, to.len() * size);
        let bytes = &self.map[start..start + len];
        let halves = bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
        match source.dtype {
            Dtype::F32 => bytemuck::cast_slice_mut(to).copy_from_slice(bytes),
            Dtype::BF16 => to.iter_mut().zip(halves).for_each(|(x, b)| *x = half::bf16::from_le_bytes(b).to_f32()),
            _ => to.iter_mut().zip(halves).for_each(|(x, b)| *x = half::f16::from_le_bytes(b).to_f32()),
        }
        // What was converted need not stay in memory a second time. That is advice; nothing follows from its failure.
        #[cfg(unix)]
        // SAFETY: the map is shared, read-only and of a file, so that a page let go is read again from there when it is touched.
        let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
    }
}

/// The first tensor that ends beyond the end of the file, if the header can be read at all.
fn first_cut_tensor(file: &[u8]) -> Option<String> {
    let header_bytes = usize::try_from(u64::from_le_bytes(file.get(..8)?.try_into().ok()?)).ok()?;
    let end = header_bytes.checked_add(8)?;
    let header: Map<String, Value> = serde_json::from_slice(file.get(8..end)?).ok()?;
    let data_bytes = (file.len() - end) as u64;
    let cut = header.iter().filter_map(|(name, info)| Some((info.get("data_offsets")?.get(1)?.as_u64()?, name)));
    cut.filter(|(end, _)| *end > data_bytes).min().map(|(_, name)| name.clone())
}

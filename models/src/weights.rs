//! Checkpoints in Hugging Face layout: a folder with `config.json` and safetensors, read into flat parameters and back.
//!
//! Knows names, shapes and number formats; not what is computed with them. Our own addition is the value head, whose
//! tensors lie in the main file or in `value_head.safetensors`.

use crate::atomic_file;
use crate::config::{Config, ConfigError};
use crate::params::{Params, Table};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorInfo};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
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

/// Reads a checkpoint folder: `config.json` and `model.safetensors` (or shards with their index), f32, bf16 or f16.
///
/// The files are mapped, and converted to f32 while they are copied. A value head is read where its tensors are there,
/// whatever `config.json` says; an output head stored beside tied embeddings is ignored.
///
/// **Errors** [`WeightsError`], naming the file and the tensor.
pub fn load(dir: &Path) -> Result<Checkpoint, WeightsError> {
    let path = dir.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(|source| WeightsError::Read { path: path.clone(), source })?;
    let mut config =
        Config::from_hf_json(&text).map_err(|source| WeightsError::Config { path: path.clone(), source })?;
    let files = files_of(dir)?.into_iter().map(MappedFile::open).collect::<Result<Vec<_>, _>>()?;
    config.value_head |= files.iter().any(|file| file.metadata.info("value_head.weight").is_some());

    let table = Arc::new(Table::new(&config));
    let mut params = Params::zeros(table.clone());
    let mut sources: Vec<Option<&MappedFile>> = vec![None; table.entries.len()];
    for file in &files {
        for name in file.names() {
            let Some(i) = table.entries.iter().position(|entry| entry.name == name) else {
                if name.ends_with("rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight") {
                    continue; // Old exporters store these though they follow from the rest.
                }
                return Err(WeightsError::Unexpected { path: file.path.clone(), tensor: name });
            };
            if let Some(first) = sources[i].replace(file) {
                return Err(WeightsError::Duplicate {
                    path: file.path.clone(),
                    first: first.path.clone(),
                    tensor: name,
                });
            }
            let entry = &table.entries[i];
            file.read(&name, &entry.shape, &mut params.data[entry.range()])?;
        }
    }
    if let Some(i) = sources.iter().position(Option::is_none) {
        let path = if files.len() == 1 { files[0].path.clone() } else { dir.to_path_buf() };
        return Err(WeightsError::Missing { path, tensor: table.entries[i].name.clone() });
    }
    Ok(Checkpoint { config, params })
}

/// The weight files of a folder: one, or the shards by name; and the value head's, if there.
fn files_of(dir: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let mut files = Vec::new();
    let index = dir.join(INDEX);
    if dir.join(MODEL).exists() {
        files.push(dir.join(MODEL));
    } else if index.exists() {
        let text =
            std::fs::read_to_string(&index).map_err(|source| WeightsError::Read { path: index.clone(), source })?;
        let names: Option<Vec<String>> = serde_json::from_str::<Value>(&text).ok().and_then(|json| {
            let shards = json.get("weight_map")?.as_object()?.values();
            shards.map(|name| name.as_str().filter(|name| !name.contains(['/', '\\'])).map(String::from)).collect()
        });
        let mut names = names.filter(|names| !names.is_empty()).ok_or(WeightsError::Index(index))?;
        names.sort_unstable();
        names.dedup();
        files.extend(names.iter().map(|name| dir.join(name)));
    } else {
        return Err(WeightsError::NoWeights(dir.to_path_buf()));
    }
    let value_head = dir.join(VALUE_HEAD);
    if value_head.exists() {
        files.push(value_head);
    }
    Ok(files)
}

/// A safetensors file in memory, its header checked.
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
        // SAFETY: the map is read once, right after it is made; the one thing that could go wrong is another process
        // that shortens the file meanwhile, and writers here replace files by renaming, which leaves the map whole.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| WeightsError::Read { path: path.clone(), source })?;
        match SafeTensors::read_metadata(&map) {
            Ok((header_bytes, metadata)) => Ok(MappedFile { path, map, metadata, start: 8 + header_bytes }),
            Err(source) => Err(match first_cut_tensor(&map) {
                Some(tensor) => WeightsError::Truncated { path, tensor },
                None => WeightsError::Format { path, source },
            }),
        }
    }

    /// Names of the tensors, by ascending place in the file.
    fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Converts a tensor of the file to f32.
    fn read(&self, name: &str, wanted: &[usize], to: &mut [f32]) -> Result<(), WeightsError> {
        let missing = || WeightsError::Missing { path: self.path.clone(), tensor: name.into() };
        let TensorInfo { dtype, shape, data_offsets: (from, end) } = self.metadata.info(name).ok_or_else(missing)?;
        if shape != wanted {
            return Err(WeightsError::Shape {
                path: self.path.clone(),
                tensor: name.into(),
                found: shape.clone(),
                wanted: wanted.to_vec(),
            });
        }
        // The header's check made sure that the range lies in the file and fits shape and format.
        let bytes = &self.map[self.start + from..self.start + end];
        match dtype {
            Dtype::F32 => bytemuck::cast_slice_mut(to).copy_from_slice(bytes),
            Dtype::BF16 => {
                for (x, b) in to.iter_mut().zip(bytes.chunks_exact(2)) {
                    *x = half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            Dtype::F16 => {
                for (x, b) in to.iter_mut().zip(bytes.chunks_exact(2)) {
                    *x = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            dtype => return Err(WeightsError::Dtype { path: self.path.clone(), tensor: name.into(), dtype: *dtype }),
        }
        Ok(())
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

/// Writes a checkpoint folder, each file atomically: `model.safetensors` (f32, in the table's order), then `config.json`.
///
/// Equal parameters give equal bytes. The folder is made if it is not there.
///
/// **Errors** [`WeightsError::Write`].
///
/// **Panics** if `params` is not over the table of `config`.
pub fn save(dir: &Path, config: &Config, params: &Params) -> Result<(), WeightsError> {
    assert_eq!(*params.table, Table::new(config), "parameters of another shape");
    std::fs::create_dir_all(dir).map_err(|source| WeightsError::Write { path: dir.to_path_buf(), source })?;
    let write = |name: &str, parts: &[&[u8]]| {
        let path = dir.join(name);
        atomic_file::write(&path, |file| parts.iter().try_for_each(|part| file.write_all(part)))
            .map_err(|source| WeightsError::Write { path, source })
    };
    let header = header(&params.table);
    let header_bytes = (header.len() as u64).to_le_bytes();
    write(MODEL, &[&header_bytes, header.as_bytes(), bytemuck::cast_slice(&params.data)])?;
    write(CONFIG, &[config.to_hf_json().as_bytes()])
}

/// The header of a safetensors file whose data is the flat buffer as it is.
fn header(table: &Table) -> String {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"})); // Readers in Python ask for it.
    for entry in &table.entries {
        let bytes = entry.range();
        let info = json!({"dtype": "F32", "shape": entry.shape, "data_offsets": [4 * bytes.start, 4 * bytes.end]});
        header.insert(entry.name.clone(), info);
    }
    let mut text = Value::Object(header).to_string();
    // The format wants the data aligned to 8 bytes.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Family, Rope};
    use crate::random::Key;

    fn small(tied_embeddings: bool, value_head: bool) -> Checkpoint {
        let config = Config {
            family: Family::Qwen2,
            vocab: 12,
            d_model: 8,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 4,
            d_ff: 6,
            rope: Rope::plain(500.0),
            sliding_window: None,
            norm_eps: 1e-5,
            tied_embeddings,
            qkv_bias: true,
            qk_norm: false,
            value_head,
            max_positions: 64,
        };
        let mut params = Params::zeros(Arc::new(Table::new(&config)));
        for (i, x) in params.data.iter_mut().enumerate() {
            *x = Key::new(5).normal(i as u64) as f32;
        }
        Checkpoint { config, params }
    }

    fn bytes(dir: &Path) -> Vec<u8> {
        [CONFIG, MODEL].iter().flat_map(|name| std::fs::read(dir.join(name)).unwrap()).collect()
    }

    /// A safetensors file of these tensors, made by the crate rather than by [`save`].
    fn write_tensors(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (*name, safetensors::tensor::TensorView::new(*dtype, shape.to_vec(), data).unwrap())
        });
        std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }

    fn raw(x: &[f32]) -> Vec<u8> {
        x.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// The model's tensors as raw f32, to be changed and written by a test.
    fn tensors(model: &Checkpoint) -> Vec<(&str, Dtype, &[usize], Vec<u8>)> {
        let entries = model.params.table.entries.iter();
        entries.map(|e| (e.name.as_str(), Dtype::F32, e.shape.as_slice(), raw(&model.params.data[e.range()]))).collect()
    }

    #[test]
    fn saved_loaded_and_saved_again_is_byte_equal() {
        for (tied, value) in [(false, false), (true, false), (false, true), (true, true)] {
            let model = small(tied, value);
            let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            save(a.path(), &model.config, &model.params).unwrap();
            let back = load(a.path()).unwrap();
            assert_eq!(back.config, model.config);
            assert_eq!(back.params.data, model.params.data);
            save(&b.path().join("new/folder"), &back.config, &back.params).unwrap();
            assert_eq!(bytes(a.path()), bytes(&b.path().join("new/folder")));
            // What was written is a file that the crate itself reads.
            let file = std::fs::read(a.path().join(MODEL)).unwrap();
            let parsed = SafeTensors::deserialize(&file).unwrap();
            assert_eq!(parsed.tensor("model.norm.weight").unwrap().data(), raw(model.params.get("model.norm.weight")));
            assert_eq!(std::fs::read_dir(a.path()).unwrap().count(), 2, "no temporary file is left");
        }
    }

    #[test]
    fn half_precision_formats_are_widened() {
        let model = small(false, false);
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &model.config, &model.params).unwrap();
        for dtype in [Dtype::BF16, Dtype::F16] {
            let mut rounded = Vec::new();
            let mut half = tensors(&model);
            for (_, format, _, data) in &mut half {
                *format = dtype;
                let numbers = data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                *data = numbers
                    .flat_map(|x| {
                        let (wide, bits) = match dtype {
                            Dtype::BF16 => (half::bf16::from_f32(x).to_f32(), half::bf16::from_f32(x).to_bits()),
                            _ => (half::f16::from_f32(x).to_f32(), half::f16::from_f32(x).to_bits()),
                        };
                        rounded.push(wide);
                        bits.to_le_bytes()
                    })
                    .collect();
            }
            write_tensors(&dir.path().join(MODEL), &half);
            assert_eq!(load(dir.path()).unwrap().params.data, rounded);
        }
    }

    #[test]
    fn a_value_head_comes_from_either_file_or_starts_at_zero() {
        let plain = small(false, false);
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &plain.config, &plain.params).unwrap();
        let grown = load(dir.path()).unwrap().with_value_head();
        assert_eq!(grown.params.data[..plain.params.data.len()], plain.params.data);
        assert!(grown.params.get("value_head.weight").iter().all(|&w| w == 0.0));
        assert_eq!(grown.params.get("value_head.bias"), [0.0]);

        let head: Vec<f32> = (0..8).map(|i| i as f32).collect();
        let tensors = [
            ("value_head.weight", Dtype::F32, &[1, 8][..], raw(&head)),
            ("value_head.bias", Dtype::F32, &[1][..], raw(&[0.5])),
        ];
        write_tensors(&dir.path().join(VALUE_HEAD), &tensors);
        let model = load(dir.path()).unwrap().with_value_head();
        assert!(model.config.value_head);
        assert_eq!(model.params.get("value_head.weight"), head);
        assert_eq!(model.params.get("value_head.bias"), [0.5]);

        save(dir.path(), &model.config, &model.params).unwrap();
        let twice = load(dir.path()).unwrap_err().to_string();
        assert!(twice.contains("value_head.safetensors has tensor value_head.bias once more"), "{twice}");
    }

    #[test]
    fn shards_are_read_through_their_index() {
        let model = small(false, false);
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &model.config, &model.params).unwrap();
        std::fs::remove_file(dir.path().join(MODEL)).unwrap();
        let all = tensors(&model);
        let (first, second) = all.split_at(7);
        write_tensors(&dir.path().join("a.safetensors"), first);
        write_tensors(&dir.path().join("b.safetensors"), second);
        let index = |names: [&str; 2]| {
            let text = json!({"weight_map": {"model.norm.weight": names[0], "lm_head.weight": names[1]}}).to_string();
            std::fs::write(dir.path().join(INDEX), text).unwrap();
        };
        index(["b.safetensors", "a.safetensors"]);
        assert_eq!(load(dir.path()).unwrap().params.data, model.params.data);
        index(["b.safetensors", "b.safetensors"]);
        assert!(matches!(load(dir.path()), Err(WeightsError::Missing { .. })));
        index(["b.safetensors", "../a.safetensors"]);
        assert!(matches!(load(dir.path()), Err(WeightsError::Index(_))));
    }

    #[test]
    fn errors_name_the_file_and_the_tensor() {
        let model = small(true, false);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(MODEL);
        let message = || load(dir.path()).unwrap_err().to_string();
        let at = dir.path().display();
        assert!(message().starts_with(&format!("cannot read {at}/config.json: ")));
        save(dir.path(), &model.config, &model.params).unwrap();
        let whole = std::fs::read(&path).unwrap();

        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let cut =
            format!("{at}/model.safetensors is cut short: tensor model.norm.weight ends beyond the end of the file");
        assert!(message().starts_with(&cut), "{}", message());
        for len in (0..whole.len()).step_by(97) {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(matches!(load(dir.path()), Err(WeightsError::Truncated { .. } | WeightsError::Format { .. })));
        }

        let mut fewer = tensors(&model);
        let name = fewer.remove(3).0;
        write_tensors(&path, &fewer);
        assert_eq!(message(), format!("{at}/model.safetensors has no tensor {name}, which config.json asks for"));
        let mut more = tensors(&model);
        more.push(("lm_head.weight", Dtype::F32, &[1], raw(&[1.0])));
        more.push(("model.rotary_emb.inv_freq", Dtype::F32, &[1], raw(&[1.0])));
        write_tensors(&path, &more);
        assert_eq!(load(dir.path()).unwrap().params.data, model.params.data, "what follows from the rest is ignored");
        more.push(("model.layers.0.self_attn.o_proj.bias", Dtype::F32, &[1], raw(&[1.0])));
        write_tensors(&path, &more);
        let unexpected = "has a tensor model.layers.0.self_attn.o_proj.bias that config.json does not ask for";
        assert!(message().ends_with(unexpected), "{}", message());

        let mut other = tensors(&model);
        other[0].2 = &[8, 12];
        write_tensors(&path, &other);
        let shape = "tensor model.embed_tokens.weight has shape [8, 12], but config.json asks for [12, 8]";
        assert!(message().ends_with(shape), "{}", message());
        other[0] = (other[0].0, Dtype::I32, &[12, 8], other[0].3.clone());
        write_tensors(&path, &other);
        assert!(message().ends_with("tensor model.embed_tokens.weight holds I32; F32, BF16 and F16 can be read"));

        std::fs::remove_file(&path).unwrap();
        assert_eq!(message(), format!("{at} has neither model.safetensors nor model.safetensors.index.json"));
        let blocked = save(&path.join("config.json"), &model.config, &model.params);
        assert!(blocked.is_ok(), "a folder that is not there is made");
        let blocked = save(&path.join("config.json/config.json"), &model.config, &model.params).unwrap_err();
        assert!(blocked.to_string().starts_with("cannot write "), "{blocked}");
    }
}

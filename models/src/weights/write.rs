//! From parameters to a folder: one file, or shards with their index as Hugging Face writes them.

use super::{CONFIG, INDEX, MODEL, VALUE_HEAD, WeightsError};
use crate::atomic_file;
use crate::config::Config;
use crate::params::{Entry, Params, Table};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// In which format numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As they are.
    F32,
    /// Rounded to the nearest bf16, ties to even: half the size.
    Bf16,
}

impl Stored {
    fn bytes(self) -> usize {
        match self {
            Stored::F32 => 4,
            Stored::Bf16 => 2,
        }
    }

    /// Its names in a safetensors header and in `config.json`.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Stored::F32 => ("F32", "float32"),
            Stored::Bf16 => ("BF16", "bfloat16"),
        }
    }
}

/// How weights are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// The format of the numbers.
    pub stored: Stored,
    /// Most bytes of numbers in a file; a larger tensor has one of its own.
    pub shard_bytes: u64,
}

impl Default for SaveOptions {
    /// f32, in files of 2 GiB.
    fn default() -> Self {
        SaveOptions { stored: Stored::F32, shard_bytes: 2 << 30 }
    }
}

/// Writes a checkpoint folder as [`save_as`] does with the options' default.
///
/// **Errors** [`WeightsError::Write`].
///
/// **Panics** if `params` is not over the table of `config`.
pub fn save(dir: &Path, config: &Config, params: &Params) -> Result<(), WeightsError> {
    save_as(dir, config, params, SaveOptions::default())
}

/// Writes a checkpoint folder, each file atomically: `model.safetensors` in the table's order, or shards and their index when that
/// would be too large; then `config.json`. Weight files of another layout that lie in the folder are removed, so that nobody
/// reads a mixture.
///
/// Equal parameters give equal bytes. The folder is made if it is not there.
///
/// **Errors** [`WeightsError::Write`].
///
/// **Panics** if `params` is not over the table of `config`.
pub fn save_as(dir: &Path, config: &Config, params: &Params, options: SaveOptions) -> Result<(), WeightsError> {
    assert_eq!(*params.table, Table::new(config), "parameters of another shape");
    let failed = |name: &str| {
        let path = dir.join(name);
        move |source| WeightsError::Write { path, source }
    };
    std::fs::create_dir_all(dir).map_err(failed(""))?;
    let SaveOptions { stored, shard_bytes } = options;
    let entries = &params.table.entries;
    let shards = shards(entries, stored, shard_bytes);
    let name = |i: usize| match shards.len() {
        1 => MODEL.to_string(),
        n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    if shards.len() > 1 {
        // New shards may have the names of old ones: until all are there, no list leads to them.
        remove(dir, INDEX)?;
    }
    for (i, shard) in shards.iter().enumerate() {
        write_shard(&dir.join(name(i)), &entries[shard.clone()], params, stored).map_err(failed(&name(i)))?;
    }
    let mut kept: BTreeSet<String> = (0..shards.len()).map(name).collect();
    if shards.len() > 1 {
        let text = index(entries, &shards, stored, name);
        atomic_file::write(&dir.join(INDEX), |file| file.write_all(text.as_bytes())).map_err(failed(INDEX))?;
        kept.insert(INDEX.into());
    }
    remove_others(dir, &kept)?;
    let text = config.to_hf_json_of(stored.names().1);
    atomic_file::write(&dir.join(CONFIG), |file| file.write_all(text.as_bytes())).map_err(failed(CONFIG))
}

/// Ranges of entries, filled one after another.
fn shards(entries: &[Entry], stored: Stored, shard_bytes: u64) -> Vec<Range<usize>> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, entry) in entries.iter().enumerate() {
        let more = (entry.len() * stored.bytes()) as u64;
        if i > start && bytes + more > shard_bytes {
            shards.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += more;
    }
    shards.push(start..entries.len());
    shards
}

fn write_shard(path: &Path, entries: &[Entry], params: &Params, stored: Stored) -> io::Result<()> {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(()) };
    let data = &params.data[first.offset..last.range().end];
    let header = header(entries, stored);
    atomic_file::write(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        match stored {
            Stored::F32 => file.write_all(bytemuck::cast_slice(data)),
            Stored::Bf16 => data.chunks(1 << 16).try_for_each(|piece| {
                let rounded: Vec<half::bf16> = piece.iter().map(|&x| half::bf16::from_f32(x)).collect();
                file.write_all(bytemuck::cast_slice(&rounded))
            }),
        }
    })
}

/// The header of a safetensors file whose data are these neighbours in the flat buffer.
fn header(entries: &[Entry], stored: Stored) -> String {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"})); // Readers in Python ask for it.
    let base = entries.first().map_or(0, |entry| entry.offset);
    let at = |element: usize| stored.bytes() * (element - base);
    for entry in entries {
        let offsets = [at(entry.offset), at(entry.range().end)];
        let info = json!({"dtype": stored.names().0, "shape": entry.shape, "data_offsets": offsets});
        header.insert(entry.name.clone(), info);
    }
    let mut text = Value::Object(header).to_string();
    // The format wants the data aligned to 8 bytes.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    text
}

/// The list of shards: keys ascending, as Hugging Face writes it.
fn index(entries: &[Entry], shards: &[Range<usize>], stored: Stored, name: impl Fn(usize) -> String) -> String {
    let elements: usize = entries.iter().map(Entry::len).sum();
    let mut places: Vec<(&str, String)> = Vec::new();
    for (i, shard) in shards.iter().enumerate() {
        places.extend(entries[shard.clone()].iter().map(|entry| (entry.name.as_str(), name(i))));
    }
    places.sort();
    let map: Map<String, Value> = places.into_iter().map(|(tensor, file)| (tensor.to_string(), file.into())).collect();
    let metadata = json!({"total_parameters": elements, "total_size": elements * stored.bytes()});
    format!("{:#}\n", json!({"metadata": metadata, "weight_map": map}))
}

/// Removes all weight files that are not these.
fn remove_others(dir: &Path, kept: &BTreeSet<String>) -> Result<(), WeightsError> {
    let read = |source| WeightsError::Write { path: dir.to_path_buf(), source };
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let Ok(name) = entry.map_err(read)?.file_name().into_string() else { continue };
        let ours = [MODEL, INDEX, VALUE_HEAD].contains(&name.as_str()) || is_shard(&name);
        if ours && !kept.contains(&name) {
            remove(dir, &name)?;
        }
    }
    Ok(())
}

/// Whether a name is `model-NNNNN-of-NNNNN.safetensors`.
fn is_shard(name: &str) -> bool {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let parts = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    parts.and_then(|parts| parts.split_once("-of-")).is_some_and(|(i, n)| number(i) && number(n))
}

/// Removes a file that may be there.
fn remove(dir: &Path, name: &str) -> Result<(), WeightsError> {
    let path = dir.join(name);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(WeightsError::Write { path, source }),
        _ => Ok(()),
    }
}

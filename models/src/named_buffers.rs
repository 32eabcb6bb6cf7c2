//! A file of named f32 buffers with one text beside them, in safetensors format: optimiser moments and counters.
//!
//! It knows neither what the buffers mean nor when they are written; the weights of a model have their own module. Buffers go
//! straight from memory to the file and back, since they are as large as the model itself.

use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

/// The key of the text in the file's metadata.
const NOTE: &str = "note";

/// f32 buffers, each with its name.
pub type NamedBuffers = Vec<(String, Vec<f32>)>;

/// Why a file is not one of these.
#[derive(Debug, thiserror::Error)]
pub enum NamedBuffersError {
    /// The file system refused, or the file ends too early.
    #[error("not a whole file ({0})")]
    Io(#[from] io::Error),
    /// The header is not what is written here.
    #[error("not a file of named buffers ({0})")]
    Format(String),
}

/// Writes `buffers` with `note` beside them; equal content gives equal bytes.
///
/// **Errors** those of the file system.
pub fn write(file: &mut impl Write, note: &str, buffers: &[(&str, &[f32])]) -> io::Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({NOTE: note}));
    let mut at = 0;
    for (name, data) in buffers {
        let end = at + 4 * data.len();
        header.insert((*name).into(), json!({"dtype": "F32", "shape": [data.len()], "data_offsets": [at, end]}));
        at = end;
    }
    let mut text = Value::Object(header).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(text.as_bytes())?;
    buffers.iter().try_for_each(|(_, data)| file.write_all(bytemuck::cast_slice(data)))
}

/// The text and the buffers of a file, in the order they were written.
///
/// Nothing is allocated beyond the file's own length.
///
/// **Errors** [`NamedBuffersError`] when the file is not what [`write()`] makes.
pub fn load(path: &Path) -> Result<(String, NamedBuffers), NamedBuffersError> {
    let bad = |reason: &str| NamedBuffersError::Format(reason.to_string());
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut file = BufReader::new(file);
    let mut size = [0; 8];
    file.read_exact(&mut size)?;
    let size = u64::from_le_bytes(size);
    if size > len - 8 {
        return Err(bad("the header ends beyond the file"));
    }
    let mut text = vec![0; size as usize];
    file.read_exact(&mut text)?;
    let header: Map<String, Value> = serde_json::from_slice(&text).map_err(|e| bad(&e.to_string()))?;
    let note = header.get("__metadata__").and_then(|m| m.get(NOTE)).and_then(Value::as_str);
    let note = note.ok_or_else(|| bad("the metadata has no \"note\""))?.to_string();
    let (mut buffers, mut at) = (NamedBuffers::new(), 0u64);
    for (name, info) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let number = |pointer: &str| info.pointer(pointer).and_then(Value::as_u64);
        let (from, end) = (number("/data_offsets/0"), number("/data_offsets/1"));
        let elements = info.pointer("/shape/0").and_then(Value::as_u64).filter(|n| *n <= len / 4);
        let (Some(elements), Some("F32")) = (elements, info.get("dtype").and_then(Value::as_str)) else {
            return Err(bad(&format!("{name} is not a row of F32")));
        };
        if from != Some(at) || end != Some(at + 4 * elements) || at + 4 * elements > len - 8 - size {
            return Err(bad(&format!("{name} does not lie where it should")));
        }
        at += 4 * elements;
        let mut data = vec![0.0f32; elements as usize];
        file.read_exact(bytemuck::cast_slice_mut(&mut data))?;
        buffers.push((name.clone(), data));
    }
    if at != len - 8 - size {
        return Err(bad("something follows the last buffer, or is missing"));
    }
    Ok((note, buffers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_loaded_in_every_bit_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let encode = || {
            let mut bytes = Vec::new();
            write(&mut bytes, "{\"step\":5}", &[("m", &[1.0, -0.0, f32::NAN]), ("empty", &[]), ("b", &[2.0])]).unwrap();
            bytes
        };
        let bytes = encode();
        assert_eq!(bytes, encode(), "equal content gives equal bytes");
        std::fs::write(&path, &bytes).unwrap();
        let (note, back) = load(&path).unwrap();
        assert_eq!(note, "{\"step\":5}");
        assert_eq!(back[0].1.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x3f80_0000, 0x8000_0000, 0x7fc0_0000]);
        assert_eq!((back[0].0.as_str(), back[1].0.as_str(), &back[2]), ("m", "empty", &("b".to_string(), vec![2.0])));
        for cut in 0..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(load(&path).is_err(), "cut at {cut}");
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        for (from, to) in [("\"shape\":[3]", "\"shape\":[9]"), ("[0,12]", "[4,16]"), ("F32", "F64"), ("note", "nope")] {
            let at = text.find(from).unwrap();
            let mut broken = bytes.clone();
            broken[at..at + from.len()].copy_from_slice(to.as_bytes());
            std::fs::write(&path, &broken).unwrap();
            assert!(load(&path).is_err(), "{from} changed to {to}");
        }
    }
}

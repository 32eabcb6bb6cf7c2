//! A file of named f32 buffers with one text beside them, in safetensors format: optimiser moments and counters.
//!
//! It knows neither what the buffers mean nor when they are written; the weights of a model have their own module.

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::collections::HashMap;

/// The key of the text in the file's metadata.
const NOTE: &str = "note";

/// f32 buffers, each with its name.
pub type NamedBuffers = Vec<(String, Vec<f32>)>;

/// Why bytes are not such a file.
#[derive(Debug, thiserror::Error)]
pub enum NamedBuffersError {
    /// Not safetensors, or cut short.
    #[error("not a whole safetensors file ({0})")]
    Format(#[from] safetensors::SafeTensorError),
    /// A tensor of another type.
    #[error("{name} holds {dtype:?} where F32 is expected")]
    Type {
        /// The tensor.
        name: String,
        /// What it holds.
        dtype: Dtype,
    },
    /// The text is missing.
    #[error("the metadata has no \"note\"")]
    NoNote,
}

/// The bytes of a file of `buffers` with `note` beside them.
///
/// **Errors** two buffers of one name.
pub fn encode(note: &str, buffers: &[(String, Vec<f32>)]) -> Result<Vec<u8>, NamedBuffersError> {
    let mut views = Vec::with_capacity(buffers.len());
    for (name, data) in buffers {
        views.push((name.as_str(), TensorView::new(Dtype::F32, vec![data.len()], bytemuck::cast_slice(data))?));
    }
    // One entry, so the map's order cannot reach the file.
    let metadata = HashMap::from([(NOTE.to_string(), note.to_string())]);
    Ok(serialize(views, Some(metadata))?)
}

/// The text and the buffers, by ascending name.
///
/// **Errors** [`NamedBuffersError`] when the bytes are not what [`encode`] makes.
pub fn decode(bytes: &[u8]) -> Result<(String, NamedBuffers), NamedBuffersError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let note = metadata.metadata().as_ref().and_then(|map| map.get(NOTE)).cloned().ok_or(NamedBuffersError::NoNote)?;
    let mut buffers = Vec::new();
    for (name, view) in SafeTensors::deserialize(bytes)?.tensors() {
        if view.dtype() != Dtype::F32 {
            return Err(NamedBuffersError::Type { name, dtype: view.dtype() });
        }
        // The bytes need not be aligned within the file.
        let data = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        buffers.push((name, data));
    }
    buffers.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((note, buffers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_in_every_bit_and_nothing_else_is() {
        let buffers = vec![("m".to_string(), vec![1.0, -0.0, f32::NAN]), ("n".to_string(), vec![])];
        let bytes = encode("{\"step\":5}", &buffers).unwrap();
        let (note, back) = decode(&bytes).unwrap();
        assert_eq!(note, "{\"step\":5}");
        assert_eq!(back[0].1.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x3f80_0000, 0x8000_0000, 0x7fc0_0000]);
        assert_eq!((back[0].0.as_str(), back[1].0.as_str(), back[1].1.len()), ("m", "n", 0));
        assert_eq!(bytes, encode("{\"step\":5}", &buffers).unwrap(), "equal content gives equal bytes");
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}

//! Token embedding.

use super::{Float, add_scaled};

/// **Math** y_r = E\[ids_r\].
///
/// **Shapes** `table` `[vocab, d_model]`, y `[rows, d_model]`.
pub fn embedding_fwd<T: Float>(table: &[T], ids: &[u32], d_model: usize) -> Vec<T> {
    ids.iter().flat_map(|&id| &table[id as usize * d_model..][..d_model]).copied().collect()
}

/// **Math** dE\[ids_r\] += dy_r; a token that occurs twice gets both.
///
/// **Shapes** `dy` `[rows, d_model]`, `dtable` `[vocab, d_model]`.
pub fn embedding_bwd<T: Float>(ids: &[u32], dy: &[T], d_model: usize, dtable: &mut [T]) {
    for (&id, dy) in ids.iter().zip(dy.chunks_exact(d_model)) {
        add_scaled(&mut dtable[id as usize * d_model..][..d_model], T::ONE, dy);
    }
}

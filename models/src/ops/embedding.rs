//! Embedding: a row of the table for every token.

use crate::device::Cpu;
use crate::threads::Shards;

/// x\[r\] = E\[ids\[r\]\].
///
/// **Shapes** E `[vocab, d]`, x `[rows, d]`.
///
/// **Panics** on an id outside the vocabulary.
pub fn embedding_fwd(x: &mut [f32], ids: &[u32], table: &[f32], d: usize) {
    for (row, &id) in x.chunks_exact_mut(d).zip(ids) {
        row.copy_from_slice(&table[id as usize * d..][..d]);
    }
}

/// dE\[ids\[r\]\] += dx\[r\], rows in their order; threads split the columns.
pub fn embedding_bwd(cpu: &Cpu, dtable: &mut [f32], dx: &[f32], ids: &[u32], d: usize) {
    let shards = Shards::new(dtable);
    cpu.pool.split(d, 32, 16, &|columns| {
        for (row, &id) in dx.chunks_exact(d).zip(ids) {
            let start = id as usize * d;
            // SAFETY: pieces of the split are different columns.
            let sum = unsafe { shards.part(start + columns.start..start + columns.end) };
            for (sum, dx) in sum.iter_mut().zip(&row[columns.clone()]) {
                *sum += dx;
            }
        }
    });
}

//! Embedding: launchers of `embedding.cu`. The CPU's ops are `ragen_models::ops::embedding`.

use super::{Kernel, Work, args, eights};
use crate::buffer::{Buffer, Element, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "embedding.cu", text: include_str!("../../kernels/embedding.cu") };

const THREADS: u32 = 256;

/// The kernels of `embedding.cu`.
pub const KERNELS: &[Kernel] = &[EMBEDDING_FWD, EMBEDDING_BWD, GATHER_BWD];

const EMBEDDING_FWD: Kernel = Kernel {
    work: |s| Work { bytes: (s.rows * (2 * s.d_model * s.element_bytes + 4)) as f64, flops: 0.0 },
    ..Kernel::new("embedding_fwd", &SOURCE, THREADS)
};
const EMBEDDING_BWD: Kernel = Kernel {
    // At worst every row has a token of its own.
    work: |s| Work {
        bytes: (s.rows * (s.d_model * (s.element_bytes + 8) + 12)) as f64,
        flops: (s.rows * s.d_model) as f64,
    },
    ..Kernel::new("embedding_bwd", &SOURCE, THREADS)
};
const GATHER_BWD: Kernel = Kernel {
    // Every row is one that was gathered.
    work: |s| {
        let n = (s.rows * s.d_model) as f64;
        Work { bytes: 3.0 * n * s.element_bytes as f64 + 12.0 * s.rows as f64, flops: n }
    },
    ..Kernel::new("gather_bwd", &SOURCE, THREADS)
};

/// x\[r\] = E\[ids\[r\]\]; E `[vocab, d]`, x `[rows, d]`. Every id is below `vocab`; that is the caller's matter, since ids are device memory.
///
/// **Errors** those of a launch.
pub fn embedding_fwd<E: Element>(
    gpu: &Gpu,
    x: ViewMut<'_, E>,
    ids: View<'_, u32>,
    table: View<'_, E>,
    d: usize,
) -> Result<(), CudaError> {
    let rows = ids.len();
    assert!(x.len() == rows * d && table.len().is_multiple_of(d));
    let args = args![x, ids, table, rows, d];
    // SAFETY: the lengths were checked above, ids by the caller.
    unsafe { gpu.launch(&EMBEDDING_FWD, EMBEDDING_FWD.unit::<E>(), eights(d, rows, THREADS), 0, args) }
}

/// The rows of a batch sorted by their token, for [`embedding_bwd`]. It is as long as the batch, whatever the vocabulary.
pub struct RowsByToken {
    tokens: usize,
    /// The different tokens, ascending.
    ids: Buffer<u32>,
    /// Where each token's rows begin in `order`, and the end.
    starts: Buffer<u32>,
    order: Buffer<u32>,
    /// The largest id.
    last: usize,
}

impl RowsByToken {
    /// Sorts the rows of a batch with these ids.
    ///
    /// **Errors** [`CudaError::Memory`], [`CudaError::Call`].
    pub fn new(gpu: &Gpu, ids: &[u32]) -> Result<Self, CudaError> {
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        // Stable: rows of one token stay in their order.
        order.sort_by_key(|&row| ids[row as usize]);
        let (mut tokens, mut starts) = (Vec::new(), Vec::new());
        for (k, &row) in order.iter().enumerate() {
            let id = ids[row as usize];
            if tokens.last() != Some(&id) {
                tokens.push(id);
                starts.push(k as u32);
            }
        }
        starts.push(order.len() as u32);
        Ok(RowsByToken {
            tokens: tokens.len(),
            last: tokens.last().map_or(0, |&id| id as usize),
            ids: gpu.upload("tokens of a batch", &tokens)?,
            starts: gpu.upload("starts of a batch's tokens", &starts)?,
            order: gpu.upload("rows by token", &order)?,
        })
    }
}

/// dE\[ids\[r\]\] += dx\[r\], the rows of a token in their order; dE is f32 `[vocab, d]`.
///
/// **Panics** on an id beyond the table.
///
/// **Errors** those of a launch.
pub fn embedding_bwd<E: Element>(
    gpu: &Gpu,
    dtable: ViewMut<'_, f32>,
    dx: View<'_, E>,
    rows: &RowsByToken,
    d: usize,
) -> Result<(), CudaError> {
    assert!(dx.len() == rows.order.len() * d && (dx.is_empty() || dtable.len() >= (rows.last + 1) * d));
    let tokens = rows.tokens;
    let args = args![dtable, dx, rows.ids.view(), rows.starts.view(), rows.order.view(), tokens, d];
    // SAFETY: the lengths were checked above; the rows were sorted from ids of which `last` is the largest.
    unsafe { gpu.launch(&EMBEDDING_BWD, EMBEDDING_BWD.unit::<E>(), eights(d, tokens, THREADS), 0, args) }
}

/// dx\[rows\[r\]\] += dy\[r\], in the order of r: the gradient of rows that [`embedding_fwd`] gathered from x `[any, d]` with these indices.
///
/// **Panics** on an index beyond dx.
///
/// **Errors** those of a launch.
pub fn gather_bwd<E: Element>(
    gpu: &Gpu,
    dx: ViewMut<'_, E>,
    dy: View<'_, E>,
    rows: &RowsByToken,
    d: usize,
) -> Result<(), CudaError> {
    assert!(dy.len() == rows.order.len() * d && (dy.is_empty() || dx.len() >= (rows.last + 1) * d));
    let tokens = rows.tokens;
    let args = args![dx, dy, rows.ids.view(), rows.starts.view(), rows.order.view(), tokens, d];
    // SAFETY: the lengths were checked above; the rows were sorted from indices of which `last` is the largest.
    unsafe { gpu.launch(&GATHER_BWD, GATHER_BWD.unit::<E>(), eights(d, tokens, THREADS), 0, args) }
}

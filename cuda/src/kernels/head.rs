//! The head: launchers of `head.cu`. The CPU's ops are in `ragen_models::ops::head`.

use super::sums::{self, pieces};
use super::{Kernel, Shape, Work, args};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source {
    file: "head.cu",
    text: concat!(
        "#line 1 \"row_stats.cuh\"\n",
        include_str!("../../kernels/row_stats.cuh"),
        "#line 1 \"head.cu\"\n",
        include_str!("../../kernels/head.cu")
    ),
};

const THREADS: u32 = 256;

/// Warps of a block, each with a row of its own in `value_fwd`.
const WARPS: usize = 8;

/// Numbers that [`head_fwd`] saves of a row: largest z, Σ exp(z − max), Σ exp(z − max)(z − max), and Σ exp(z − max) over what the
/// token was drawn from.
pub const STATS: usize = 4;

/// Shared memory of `head_fwd`: a float and a double a warp.
const SHARED_BYTES: usize = WARPS * (4 + 8);

/// The kernels of `head.cu`.
pub const KERNELS: &[Kernel] = &[HEAD_FWD, HEAD_BWD, VALUE_FWD, VALUE_BWD];

const HEAD_FWD: Kernel = Kernel {
    shared_bytes: |_| SHARED_BYTES,
    // Read for the maximum, then for the sums: all blocks run side by side, and together their rows are more than the cache holds.
    work: |s| Work { bytes: logits(s) * 8.0 + chunk_rows(s) as f64 * 44.0, flops: logits(s) * 20.0 },
    ..Kernel::new("head_fwd", &SOURCE, THREADS)
};
const HEAD_BWD: Kernel = Kernel {
    work: |s| Work {
        bytes: logits(s) * (4.0 + s.element_bytes as f64) + chunk_rows(s) as f64 * 44.0,
        flops: logits(s) * 21.0,
    },
    ..Kernel::new("head_bwd", &SOURCE, THREADS)
};
const VALUE_FWD: Kernel = Kernel {
    work: |s| Work { bytes: hidden(s) * s.element_bytes as f64 + 4.0 * s.rows as f64, flops: 2.0 * hidden(s) },
    ..Kernel::new("value_fwd", &SOURCE, THREADS)
};
const VALUE_BWD: Kernel = Kernel {
    work: |s| Work {
        bytes: hidden(s) * 3.0 * s.element_bytes as f64 + 4.0 * (pieces(s.rows) * s.d_model + s.rows) as f64,
        flops: 4.0 * hidden(s),
    },
    ..Kernel::new("value_bwd", &SOURCE, THREADS)
};

/// Rows of a chunk at which the head is compared: its logits never exist for a whole batch.
pub(crate) fn chunk_rows(s: &Shape) -> usize {
    s.rows.min(512)
}

fn logits(s: &Shape) -> f64 {
    chunk_rows(s) as f64 * s.vocab as f64
}

fn hidden(s: &Shape) -> f64 {
    s.rows as f64 * s.d_model as f64
}

/// The targets of a chunk of rows, one a row.
///
/// Tokens and kept ids are below the vocabulary, and `starts` ascends within `ids`: that is the caller's matter, since they are
/// device memory.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// The token of each row.
    pub tokens: View<'a, u32>,
    /// What the tokens were drawn from; `None` is the whole vocabulary for all rows.
    pub kept: Option<Kept<'a>>,
}

/// Kept sets of rows.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// All ids, row by row, ascending in a row.
    pub ids: View<'a, u32>,
    /// Where each row's ids begin, and the end, `[rows + 1]`; a row without ids has the whole vocabulary.
    pub starts: View<'a, u32>,
}

impl<'a> Targets<'a> {
    /// Ids and starts for a kernel.
    fn kept(&self) -> (Option<View<'a, u32>>, Option<View<'a, u32>>) {
        let rows = self.tokens.len();
        self.kept.map_or((None, None), |kept| {
            assert_eq!(kept.starts.len(), rows + 1);
            (Some(kept.ids), Some(kept.starts))
        })
    }
}

/// Log-probability of every row's target, entropy over the vocabulary, and the statistics that [`head_bwd`] needs.
///
/// **Math** z = logits / T; log p_j = z_j − max z − ln Σ exp(z − max z), the sum over the kept set.
///
/// **Shapes** logp, entropy `[rows]`, stats `[rows, STATS]`, logits `[rows, vocab]`; temperature > 0.
///
/// **Errors** those of a launch.
pub fn head_fwd<E: Element>(
    gpu: &Gpu,
    logp: ViewMut<'_, f32>,
    entropy: ViewMut<'_, f32>,
    stats: ViewMut<'_, f64>,
    logits: View<'_, f32>,
    targets: Targets<'_>,
    temperature: f32,
    vocab: usize,
) -> Result<(), CudaError> {
    let rows = targets.tokens.len();
    let (ids, starts) = targets.kept();
    assert!(logits.len() == rows * vocab && vocab > 0 && temperature > 0.0);
    assert!(logp.len() == rows && entropy.len() == rows && stats.len() == rows * STATS);
    let args = args![logp, entropy, stats, logits, targets.tokens, ids, starts, temperature, vocab];
    // SAFETY: the lengths were checked above, ids by the caller.
    unsafe { gpu.launch(&HEAD_FWD, HEAD_FWD.unit::<E>(), [rows, 1, 1], SHARED_BYTES, args) }
}

/// dL/dlogp and dL/dentropy of every row; `None` is all zeros.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seeds<'a> {
    /// dL/dlogp, `[rows]`.
    pub logp: Option<View<'a, f32>>,
    /// dL/dentropy, `[rows]`.
    pub entropy: Option<View<'a, f32>>,
}

/// Writes dlogits of the rows from their seeds and from what [`head_fwd`] saved of the same logits and targets.
///
/// **Math** dz_j = s (1\[j = token\] − p^K_j) − e p_j (log p_j + H), dlogits = dz / T.
///
/// **Shapes** dlogits, logits `[rows, vocab]`, stats `[rows, STATS]`.
///
/// **Errors** those of a launch.
pub fn head_bwd<E: Element>(
    gpu: &Gpu,
    dlogits: ViewMut<'_, E>,
    logits: View<'_, f32>,
    stats: View<'_, f64>,
    targets: Targets<'_>,
    seeds: Seeds<'_>,
    temperature: f32,
    vocab: usize,
) -> Result<(), CudaError> {
    let rows = targets.tokens.len();
    let (ids, starts) = targets.kept();
    assert!(logits.len() == rows * vocab && dlogits.len() == rows * vocab && stats.len() == rows * STATS);
    assert!(seeds.logp.is_none_or(|s| s.len() == rows) && seeds.entropy.is_none_or(|s| s.len() == rows));
    let args =
        args![dlogits, logits, stats, targets.tokens, ids, starts, seeds.logp, seeds.entropy, temperature, vocab];
    // SAFETY: the lengths were checked above, ids by the caller.
    unsafe { gpu.launch(&HEAD_BWD, HEAD_BWD.unit::<E>(), [rows, 1, 1], 0, args) }
}

/// value = w · h + b of every row.
///
/// **Shapes** value `[rows]`, h `[rows, d]`, w `[d]`, b `[1]`.
///
/// **Errors** those of a launch.
pub fn value_fwd<E: Element>(
    gpu: &Gpu,
    value: ViewMut<'_, f32>,
    h: View<'_, E>,
    w: View<'_, E>,
    b: View<'_, E>,
) -> Result<(), CudaError> {
    let (rows, d) = (value.len(), w.len());
    assert!(h.len() == rows * d && b.len() == 1);
    let args = args![value, h, w, b, rows, d];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&VALUE_FWD, VALUE_FWD.unit::<E>(), [rows.div_ceil(WARPS), 1, 1], 0, args) }
}

/// dh += dvalue · w, dw += Σ dvalue · h, db += Σ dvalue; workspace at least `[pieces(rows), d + 1]`.
///
/// **Shapes** dh, h `[rows, d]`, dw, w `[d]`, db `[1]`, dvalue `[rows]`.
///
/// **Errors** those of a launch.
pub fn value_bwd<E: Element>(
    gpu: &Gpu,
    dh: ViewMut<'_, E>,
    dw: ViewMut<'_, f32>,
    db: ViewMut<'_, f32>,
    dvalue: View<'_, f32>,
    h: View<'_, E>,
    w: View<'_, E>,
    workspace: ViewMut<'_, f32>,
) -> Result<(), CudaError> {
    let (rows, d) = (dvalue.len(), w.len());
    let count = pieces(rows);
    assert!(dh.len() == rows * d && h.len() == rows * d && dw.len() == d && db.len() == 1);
    assert!(workspace.len() >= count * (d + 1));
    let (mut dw_pieces, db_pieces) = workspace.split_at(count * d);
    let mut db_pieces = db_pieces.slice(0..count);
    let args = args![dh, dw_pieces.reborrow(), db_pieces.reborrow(), dvalue, h, w, rows, d];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&VALUE_BWD, VALUE_BWD.unit::<E>(), [d.div_ceil(THREADS as usize), count, 1], 0, args)? };
    sums::add_pieces::<E>(gpu, dw, dw_pieces.view(), count)?;
    sums::add_pieces::<E>(gpu, db, db_pieces.view(), count)
}

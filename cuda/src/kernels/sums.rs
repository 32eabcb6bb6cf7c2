//! Gradients that are sums over rows: launchers of `sums.cu`. The CPU's ops are `bias_bwd` and `rmsnorm_gain_bwd`.

use super::norm::Layout;
use super::{Kernel, Work, args};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "sums.cu", text: include_str!("../../kernels/sums.cu") };

const THREADS: u32 = 128;

/// Rows that are summed in one piece.
const ROWS: usize = 64;

/// The kernels of `sums.cu`.
pub const KERNELS: &[Kernel] = &[BIAS_PIECES, GAIN_PIECES, ADD_PIECES];

const BIAS_PIECES: Kernel = Kernel {
    work: |s| {
        let [heads, kv_heads, width] = s.heads;
        let n = (s.rows * (heads + 2 * kv_heads) * width) as f64;
        Work { bytes: n * (s.element_bytes as f64 + 4.0 / ROWS as f64), flops: n }
    },
    ..Kernel::new("bias_pieces", &SOURCE, THREADS)
};
const GAIN_PIECES: Kernel = Kernel {
    work: |s| {
        let n = (s.rows * s.d_model) as f64;
        Work { bytes: n * (2.0 * s.element_bytes as f64 + 4.0 / ROWS as f64) + 4.0 * s.rows as f64, flops: 3.0 * n }
    },
    ..Kernel::new("gain_pieces", &SOURCE, THREADS)
};
const ADD_PIECES: Kernel = Kernel {
    work: |s| {
        let n = (pieces(s.rows) * s.d_model) as f64;
        Work { bytes: 4.0 * n + 8.0 * s.d_model as f64, flops: n }
    },
    ..Kernel::new("add_pieces", &SOURCE, THREADS)
};

/// Pieces that sums over `rows` rows are made of: the workspace of both sums is `[pieces(rows), width]`.
pub fn pieces(rows: usize) -> usize {
    rows.div_ceil(ROWS)
}

fn columns(width: usize) -> usize {
    width.div_ceil(THREADS as usize)
}

pub(super) fn add_pieces<E: Element>(
    gpu: &Gpu,
    sum: ViewMut<'_, f32>,
    workspace: View<'_, f32>,
    count: usize,
) -> Result<(), CudaError> {
    let width = sum.len();
    let args = args![sum, workspace, count, width];
    // SAFETY: the callers checked that the workspace holds `count` pieces of the sum's width.
    unsafe { gpu.launch(&ADD_PIECES, ADD_PIECES.unit::<E>(), [columns(width), 1, 1], 0, args) }
}

/// db += the sum of the rows of dy `[rows, width]`; workspace at least `[pieces(rows), width]`.
///
/// **Errors** those of a launch.
pub fn bias_bwd<E: Element>(
    gpu: &Gpu,
    db: ViewMut<'_, f32>,
    dy: View<'_, E>,
    mut workspace: ViewMut<'_, f32>,
) -> Result<(), CudaError> {
    let width = db.len();
    let rows = dy.len() / width;
    let count = pieces(rows);
    assert!(dy.len() == rows * width && workspace.len() >= count * width);
    let args = args![workspace.reborrow(), dy, rows, width];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&BIAS_PIECES, BIAS_PIECES.unit::<E>(), [columns(width), count, 1], 0, args)? };
    add_pieces::<E>(gpu, db, workspace.view(), count)
}

/// dg += Σ dy · x · rstd over rows and heads; workspace at least `[pieces(rows), d]`.
///
/// **Errors** those of a launch.
pub fn rmsnorm_gain_bwd<E: Element>(
    gpu: &Gpu,
    dgain: ViewMut<'_, f32>,
    dy: View<'_, E>,
    dy_stride: usize,
    rstd: View<'_, f32>,
    x: View<'_, E>,
    layout: Layout,
    mut workspace: ViewMut<'_, f32>,
) -> Result<(), CudaError> {
    let Layout { rows, heads, d, stride } = layout;
    let count = pieces(rows);
    assert!(x.len() >= layout.extent(stride) && dy.len() >= layout.extent(dy_stride));
    assert!(dgain.len() == d && rstd.len() == rows * heads && workspace.len() >= count * d);
    let args = args![workspace.reborrow(), dy, dy_stride, rstd, x, rows, heads, d, stride];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&GAIN_PIECES, GAIN_PIECES.unit::<E>(), [columns(d), count, 1], 0, args)? };
    add_pieces::<E>(gpu, dgain, workspace.view(), count)
}

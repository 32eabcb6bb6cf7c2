//! RMSNorm: launchers of `norm.cu`. The CPU's ops are `ragen_models::ops::norm`.

use super::{Kernel, Shape, Work, args};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "norm.cu", text: include_str!("../../kernels/norm.cu") };

const THREADS: u32 = 256;

/// The kernels of `norm.cu`.
pub const KERNELS: &[Kernel] = &[RMSNORM_FWD, RESIDUAL_RMSNORM_FWD, RMSNORM_BWD];

const RMSNORM_FWD: Kernel = Kernel { work: |s| work(s, 2.0, 4.0), ..kernel("rmsnorm_fwd") };
const RESIDUAL_RMSNORM_FWD: Kernel = Kernel { work: |s| work(s, 4.0, 5.0), ..kernel("residual_rmsnorm_fwd") };
const RMSNORM_BWD: Kernel = Kernel { work: |s| work(s, 4.0, 10.0), ..kernel("rmsnorm_bwd") };

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(name, &SOURCE, THREADS)
}

/// The norm of a residual stream that is touched `elements` times.
fn work(s: &Shape, elements: f64, flops: f64) -> Work {
    let n = (s.rows * s.d_model) as f64;
    Work { bytes: n * elements * s.element_bytes as f64 + 4.0 * s.rows as f64, flops: n * flops }
}

/// Where the normed vectors lie in their rows.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Number of rows.
    pub rows: usize,
    /// Vectors in a row.
    pub heads: usize,
    /// Elements in a vector.
    pub d: usize,
    /// Distance between rows in x and dx.
    pub stride: usize,
}

impl Layout {
    /// One vector a row.
    pub fn plain(rows: usize, d: usize) -> Self {
        Layout { rows, heads: 1, d, stride: d }
    }

    /// Elements from the first vector's begin to the last one's end, rows at distance `stride`.
    pub(super) fn extent(&self, stride: usize) -> usize {
        if self.rows == 0 { 0 } else { (self.rows - 1) * stride + self.heads * self.d }
    }

    /// Blocks with a vector a warp.
    fn grid(&self) -> [usize; 3] {
        [(self.rows * self.heads).div_ceil(THREADS as usize / 32), 1, 1]
    }
}

/// y = x · rstd · g and rstd; y is `[rows, heads, d]` at row distance `y_stride`.
///
/// **Errors** those of a launch.
pub fn rmsnorm_fwd<E: Element>(
    gpu: &Gpu,
    y: ViewMut<'_, E>,
    y_stride: usize,
    rstd: ViewMut<'_, f32>,
    x: View<'_, E>,
    gain: View<'_, E>,
    eps: f32,
    layout: Layout,
) -> Result<(), CudaError> {
    let Layout { rows, heads, d, stride } = layout;
    assert!(y.len() >= layout.extent(y_stride) && x.len() >= layout.extent(stride));
    assert!(gain.len() == d && rstd.len() == rows * heads);
    let args = args![y, y_stride, rstd, x, gain, eps, rows, heads, d, stride];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&RMSNORM_FWD, RMSNORM_FWD.unit::<E>(), layout.grid(), 0, args) }
}

/// sum = x + delta, and y = norm(sum) with its rstd, in one pass; all `[rows, d]`.
///
/// **Errors** those of a launch.
pub fn residual_rmsnorm_fwd<E: Element>(
    gpu: &Gpu,
    sum: ViewMut<'_, E>,
    y: ViewMut<'_, E>,
    rstd: ViewMut<'_, f32>,
    x: View<'_, E>,
    delta: View<'_, E>,
    gain: View<'_, E>,
    eps: f32,
) -> Result<(), CudaError> {
    let (rows, d) = (rstd.len(), gain.len());
    assert!([sum.len(), y.len(), x.len(), delta.len()] == [rows * d; 4]);
    let args = args![sum, y, rstd, x, delta, gain, eps, rows, d];
    // SAFETY: the lengths were checked above.
    unsafe {
        gpu.launch(&RESIDUAL_RMSNORM_FWD, RESIDUAL_RMSNORM_FWD.unit::<E>(), Layout::plain(rows, d).grid(), 0, args)
    }
}

/// dx += the gradient of x, or dx = without `accumulate`; dy is `[rows, heads, d]` at row distance `dy_stride`.
///
/// **Errors** those of a launch.
pub fn rmsnorm_bwd<E: Element>(
    gpu: &Gpu,
    dx: ViewMut<'_, E>,
    dy: View<'_, E>,
    dy_stride: usize,
    rstd: View<'_, f32>,
    x: View<'_, E>,
    gain: View<'_, E>,
    layout: Layout,
    accumulate: bool,
) -> Result<(), CudaError> {
    let Layout { rows, heads, d, stride } = layout;
    let extent = layout.extent(stride);
    assert!(dx.len() >= extent && x.len() >= extent && dy.len() >= layout.extent(dy_stride));
    assert!(gain.len() == d && rstd.len() == rows * heads);
    let args = args![dx, dy, dy_stride, rstd, x, gain, rows, heads, d, stride, accumulate];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&RMSNORM_BWD, RMSNORM_BWD.unit::<E>(), layout.grid(), 0, args) }
}

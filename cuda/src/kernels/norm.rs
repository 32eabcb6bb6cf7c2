//! RMSNorm: launchers of `norm.cu`. The CPU's op is `ragen_models::ops::norm`.

use super::{Kernel, Shape, Work, args};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::{Source, Unit};
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "norm.cu", text: include_str!("../../kernels/norm.cu") };

const RMSNORM_FWD: Kernel = Kernel {
    name: "rmsnorm_fwd",
    source: &SOURCE,
    threads: 256,
    frame: None,
    work: |s: &Shape| {
        let n = (s.rows * s.d_model) as f64;
        Work { bytes: 2.0 * n * s.element_bytes as f64 + 4.0 * s.rows as f64, flops: 4.0 * n }
    },
};

/// The kernels of `norm.cu`.
pub const KERNELS: &[Kernel] = &[RMSNORM_FWD];

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
    fn extent(&self, stride: usize) -> usize {
        if self.rows == 0 { 0 } else { (self.rows - 1) * stride + self.heads * self.d }
    }

    /// Blocks of 8 warps with a vector a warp.
    fn blocks(&self) -> [usize; 3] {
        [(self.rows * self.heads).div_ceil(8), 1, 1]
    }
}

fn unit<E: Element>() -> Unit {
    Unit { source: &SOURCE, element: E::KIND, head_dim: 0 }
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
    unsafe { gpu.launch(&RMSNORM_FWD, unit::<E>(), layout.blocks(), 0, args) }
}

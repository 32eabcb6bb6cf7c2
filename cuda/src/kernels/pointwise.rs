//! SwiGLU and bias: launchers of `pointwise.cu`. The CPU's ops are `ragen_models::ops::pointwise`, and `bias_fwd` of `linear`.

use super::{Kernel, Shape, Work, args, eights};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "pointwise.cu", text: include_str!("../../kernels/pointwise.cu") };

const THREADS: u32 = 256;

/// The kernels of `pointwise.cu`.
pub const KERNELS: &[Kernel] = &[SWIGLU_FWD, SWIGLU_BWD, BIAS_FWD];

const SWIGLU_FWD: Kernel = Kernel { work: |s| work(s, 3.0, 6.0), ..Kernel::new("swiglu_fwd", &SOURCE, THREADS) };
const SWIGLU_BWD: Kernel = Kernel { work: |s| work(s, 5.0, 12.0), ..Kernel::new("swiglu_bwd", &SOURCE, THREADS) };
const BIAS_FWD: Kernel = Kernel {
    work: |s| {
        let [heads, kv_heads, width] = s.heads;
        Work { bytes: (s.rows * (heads + 2 * kv_heads) * width * s.element_bytes) as f64, flops: 0.0 }
    },
    ..Kernel::new("bias_fwd", &SOURCE, THREADS)
};

fn work(s: &Shape, elements: f64, flops: f64) -> Work {
    let n = (s.rows * s.d_ff) as f64;
    Work { bytes: n * elements * s.element_bytes as f64, flops: n * flops }
}

/// a = silu(gate) · up; gate_up `[rows, 2 d_ff]`, a `[rows, d_ff]`.
///
/// **Errors** those of a launch.
pub fn swiglu_fwd<E: Element>(
    gpu: &Gpu,
    a: ViewMut<'_, E>,
    gate_up: View<'_, E>,
    d_ff: usize,
) -> Result<(), CudaError> {
    let rows = a.len() / d_ff;
    assert!(a.len() == rows * d_ff && gate_up.len() == 2 * a.len());
    let args = args![a, gate_up, rows, d_ff];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&SWIGLU_FWD, SWIGLU_FWD.unit::<E>(), eights(d_ff, rows, THREADS), 0, args) }
}

/// d(gate, up) = the gradient, from da. The CPU adds to a buffer of zeros; here it is written at once.
///
/// **Errors** those of a launch.
pub fn swiglu_bwd<E: Element>(
    gpu: &Gpu,
    dgate_up: ViewMut<'_, E>,
    da: View<'_, E>,
    gate_up: View<'_, E>,
    d_ff: usize,
) -> Result<(), CudaError> {
    let rows = da.len() / d_ff;
    assert!(da.len() == rows * d_ff && gate_up.len() == 2 * da.len() && dgate_up.len() == gate_up.len());
    let args = args![dgate_up, da, gate_up, rows, d_ff];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&SWIGLU_BWD, SWIGLU_BWD.unit::<E>(), eights(d_ff, rows, THREADS), 0, args) }
}

/// Every row of y becomes the bias.
///
/// **Errors** those of a launch.
pub fn bias_fwd<E: Element>(gpu: &Gpu, y: ViewMut<'_, E>, b: View<'_, E>) -> Result<(), CudaError> {
    let width = b.len();
    let rows = y.len() / width;
    assert!(y.len() == rows * width);
    let args = args![y, b, rows, width];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&BIAS_FWD, BIAS_FWD.unit::<E>(), eights(width, rows, THREADS), 0, args) }
}

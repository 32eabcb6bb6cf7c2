//! Rotary position embedding: launcher of `rope.cu`. The CPU's op is `ragen_models::ops::rope`.

use super::{Kernel, Work, args};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "rope.cu", text: include_str!("../../kernels/rope.cu") };

const THREADS: u32 = 256;

/// The kernels of `rope.cu`.
pub const KERNELS: &[Kernel] = &[ROPE];

const ROPE: Kernel = Kernel {
    work: |s| {
        let [heads, kv_heads, width] = s.heads;
        let n = (s.rows * (heads + kv_heads) * width) as f64;
        Work { bytes: 2.0 * n * s.element_bytes as f64 + 4.0 * s.rows as f64, flops: 4.0 * n }
    },
    ..Kernel::new("rope", &SOURCE, THREADS)
};

/// Turns the query heads of every row of x, which are scaled by `q_scale` too, and the key heads behind them to the row's position;
/// `backward` turns back and scales, which is the gradient.
///
/// **Shapes** x `[rows]` at distance `stride`; table `[positions, 2, half]`, the CPU's cosines and sines. Every position lies in the table;
/// that is the caller's matter, since positions are device memory.
///
/// **Errors** those of a launch.
pub fn rope<E: Element>(
    gpu: &Gpu,
    x: ViewMut<'_, E>,
    stride: usize,
    n_heads: usize,
    n_kv_heads: usize,
    positions: View<'_, u32>,
    table: View<'_, f32>,
    half: usize,
    q_scale: f32,
    backward: bool,
) -> Result<(), CudaError> {
    let rows = positions.len();
    assert!(
        x.len() == rows * stride && stride >= (n_heads + n_kv_heads) * 2 * half && table.len().is_multiple_of(2 * half)
    );
    let blocks = (rows * (n_heads + n_kv_heads) * half.div_ceil(8)).div_ceil(THREADS as usize);
    assert!(blocks * THREADS as usize <= u32::MAX as usize, "too many rows at once: {rows}");
    let args = args![x, positions, table, rows, stride, n_heads, n_kv_heads, half, q_scale, backward];
    // SAFETY: the lengths were checked above, positions by the caller.
    unsafe { gpu.launch(&ROPE, ROPE.unit::<E>(), [blocks, 1, 1], 0, args) }
}

//! The manifest: every kernel with its launcher.
//!
//! A launcher is the only way to start its kernel. It has the name, the argument order and the shapes of the CPU's op, checks every
//! length against them (a wrong length is a programming error and panics, as on the CPU), and starts the kernel on the one stream.
//! What the CPU hands over as f32 activations is `E` here, f32 or bf16; sums, statistics and gradients of parameters are f32.

pub mod adamw;
pub mod attention;
pub mod embedding;
pub mod head;
pub mod norm;
pub mod pointwise;
pub mod rope;
pub mod sampling;
pub mod sums;

pub(crate) use crate::kernel::args;
pub use crate::kernel::{Kernel, Shape, Work};

/// All kernels, file by file.
pub fn all() -> impl Iterator<Item = &'static Kernel> {
    [
        embedding::KERNELS,
        norm::KERNELS,
        rope::KERNELS,
        attention::KERNELS,
        pointwise::KERNELS,
        sums::KERNELS,
        head::KERNELS,
        sampling::KERNELS,
        adamw::KERNELS,
        crate::gemm::KERNELS,
    ]
    .into_iter()
    .flatten()
}

/// Blocks of `threads` threads in which a thread owns eight neighbouring elements of a row: x over a row of `width`, y over the rows, as
/// many as a grid can have in y; the kernels walk on by that many.
fn eights(width: usize, rows: usize, threads: u32) -> [usize; 3] {
    [width.div_ceil(8 * threads as usize), rows.min(65_535), 1]
}

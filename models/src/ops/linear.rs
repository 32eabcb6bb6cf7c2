//! Linear layers: y = x·Wᵀ + b, with the weight packed once per optimiser step in both orientations.
//!
//! **Shapes** x `[rows, in]`, W `[out, in]`, b `[out]`, y `[rows, out]`.

use super::gemm::{Left, Packed, Right, gemm, gemm_strided};
use crate::device::Cpu;
use crate::threads::Shards;

/// A weight packed for the forward product x·Wᵀ and, where it is trained, for the backward product dy·W.
#[derive(Clone, Default)]
pub struct Linear {
    forward: Packed,
    backward: Packed,
}

impl Linear {
    /// Packs the weight `w` `[out, in]`, reusing the space of an earlier packing.
    pub fn pack(&mut self, cpu: &Cpu, w: &[f32], out: usize, input: usize, backward: bool) {
        self.forward.transposed(cpu, w, out, input);
        if backward {
            self.backward.straight(cpu, w, out, input);
        }
    }

    /// Width of the input.
    pub fn input(&self) -> usize {
        self.forward.k
    }

    /// Width of the output.
    pub fn out(&self) -> usize {
        self.forward.n
    }
}

/// y = x·Wᵀ, or y += x·Wᵀ with `accumulate` (for a residual, or a bias that y already holds).
pub fn linear_fwd(cpu: &Cpu, y: &mut [f32], x: &[f32], w: &Linear, accumulate: bool) {
    let rows = x.len() / w.input();
    gemm(cpu, rows, w.out(), w.input(), Left::rows(x, w.input()), Right::Packed(&w.forward), y, accumulate);
}

/// y += x·Wᵀ on the first columns of a wider y, whose rows lie `y_row` apart.
pub fn linear_fwd_columns(cpu: &Cpu, y: &mut [f32], y_row: usize, x: &[f32], w: &Linear) {
    let rows = x.len() / w.input();
    let (x, packed) = (Left::rows(x, w.input()), Right::Packed(&w.forward));
    gemm_strided(cpu, rows, w.out(), w.input(), x, packed, y, y_row, true);
}

/// dx += dy·W, or dx = dy·W without `accumulate`.
pub fn linear_bwd_input(cpu: &Cpu, dx: &mut [f32], dy: &[f32], w: &Linear, accumulate: bool) {
    let rows = dy.len() / w.out();
    gemm(cpu, rows, w.input(), w.out(), Left::rows(dy, w.out()), Right::Packed(&w.backward), dx, accumulate);
}

/// dW += dyᵀ·x, each element one chain over the rows in their order.
pub fn linear_bwd_weight(cpu: &Cpu, dw: &mut [f32], dy: &[f32], x: &[f32], out: usize, input: usize) {
    let rows = dy.len() / out;
    gemm(cpu, out, input, rows, Left::transposed(dy, out), Right::Rows(x), dw, true);
}

/// Every row of y becomes the bias.
pub fn bias_fwd(y: &mut [f32], b: &[f32]) {
    for row in y.chunks_exact_mut(b.len()) {
        row.copy_from_slice(b);
    }
}

/// db += the sum of the rows of dy, in their order.
pub fn bias_bwd(cpu: &Cpu, db: &mut [f32], dy: &[f32]) {
    let width = db.len();
    let shards = Shards::new(db);
    cpu.pool.split(width, 64, 16, &|columns| {
        // SAFETY: pieces of the split do not overlap.
        let db = unsafe { shards.part(columns.clone()) };
        for row in dy.chunks_exact(width) {
            for (sum, d) in db.iter_mut().zip(&row[columns.clone()]) {
                *sum += d;
            }
        }
    });
}

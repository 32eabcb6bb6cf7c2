//! Linear layers: y = x·Wᵀ + b, with the weight packed for that product once per optimiser step.
//!
//! The two products of the backward pack what they multiply as they go: a second packed copy of the weights would cost as many
//! bytes as the weights, and over the many rows of training it gains nothing. The bits are the same.
//!
//! **Shapes** x `[rows, in]`, W `[out, in]`, b `[out]`, y `[rows, out]`.

pub use super::gemm::Precision;
use super::gemm::{Left, Packed, Right, gemm, gemm_strided};
use crate::device::Cpu;
use crate::threads::Shards;

/// A weight packed for the forward product x·Wᵀ, and the precision of all its products.
#[derive(Clone, Default)]
pub struct Linear {
    packed: Packed,
}

impl Linear {
    /// Packs the weight `w` `[out, in]`, reusing the space of an earlier packing.
    pub fn pack(&mut self, cpu: &Cpu, precision: Precision, w: &[f32], out: usize, input: usize) {
        self.packed.transposed(cpu, precision, w, out, input);
    }

    /// Width of the input.
    pub fn input(&self) -> usize {
        self.packed.k
    }

    /// Width of the output.
    pub fn out(&self) -> usize {
        self.packed.n
    }

    /// What the inputs of its products are rounded to.
    pub fn precision(&self) -> Precision {
        self.packed.precision
    }
}

/// y = x·Wᵀ, or y += x·Wᵀ with `accumulate` (for a residual, or a bias that y already holds).
pub fn linear_fwd(cpu: &Cpu, y: &mut [f32], x: &[f32], layer: &Linear, accumulate: bool) {
    let (out, input) = (layer.out(), layer.input());
    gemm(cpu, x.len() / input, out, input, Left::rows(x, input), Right::Packed(&layer.packed), y, accumulate);
}

/// y += x·Wᵀ on the first columns of a wider y, whose rows lie `y_row` apart.
pub fn linear_fwd_columns(cpu: &Cpu, y: &mut [f32], y_row: usize, x: &[f32], layer: &Linear) {
    let (out, input) = (layer.out(), layer.input());
    let (rows, right) = (x.len() / input, Right::Packed(&layer.packed));
    gemm_strided(cpu, rows, out, input, Left::rows(x, input), right, y, y_row, true);
}

/// dx += dy·W, or dx = dy·W without `accumulate`; `w` is the weight that `layer` was packed from.
pub fn linear_bwd_input(cpu: &Cpu, dx: &mut [f32], dy: &[f32], layer: &Linear, w: &[f32], accumulate: bool) {
    let (out, input) = (layer.out(), layer.input());
    let right = Right::Rows(w, layer.precision());
    gemm(cpu, dy.len() / out, input, out, Left::rows(dy, out), right, dx, accumulate);
}

/// Outputs of one chain in [`linear_bwd_input_wide`].
const WIDE_BLOCK: usize = 512;

/// dx = dy·W for a layer with so many outputs (a vocabulary) that one chain of f32 over all of them would be visibly off.
///
/// dy of a softmax sums to zero, and the rows of W have much in common: the result is what is left after large parts have
/// cancelled, and a single chain over 49,152 outputs had it wrong by 1e-4 of its size. So 512 outputs at a time are a chain,
/// and those sums are added in f64, in their order.
pub fn linear_bwd_input_wide(cpu: &Cpu, dx: &mut [f32], dy: &[f32], layer: &Linear, w: &[f32]) {
    let (out, input) = (layer.out(), layer.input());
    let rows = dy.len() / out;
    assert!(dy.len() == rows * out && dx.len() == rows * input && w.len() == out * input);
    let (mut sums, mut part) = (vec![0.0f64; dx.len()], vec![0.0; dx.len()]);
    for (b, block) in w.chunks(WIDE_BLOCK * input).enumerate() {
        let left = Left { data: &dy[(b * WIDE_BLOCK).min(dy.len())..], row: out, step: 1 };
        gemm(cpu, rows, input, block.len() / input, left, Right::Rows(block, layer.precision()), &mut part, false);
        let shards = Shards::new(&mut sums);
        cpu.pool.split(part.len(), 1 << 14, 16, &|range| {
            // SAFETY: pieces of the split do not overlap.
            let sums = unsafe { shards.part(range.clone()) };
            for (sum, x) in sums.iter_mut().zip(&part[range]) {
                *sum += f64::from(*x);
            }
        });
    }
    for (x, sum) in dx.iter_mut().zip(sums) {
        *x = sum as f32;
    }
}

/// dW += dyᵀ·x, each element one chain over the rows in their order.
pub fn linear_bwd_weight(cpu: &Cpu, dw: &mut [f32], dy: &[f32], x: &[f32], layer: &Linear) {
    let (out, input) = (layer.out(), layer.input());
    let right = Right::Rows(x, layer.precision());
    gemm(cpu, out, input, dy.len() / out, Left::transposed(dy, out), right, dw, true);
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

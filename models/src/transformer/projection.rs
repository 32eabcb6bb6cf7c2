//! A linear layer of a block with the adapters on parts of its output.
//!
//! q, k and v are one matrix here, as are gate and up, but each has an adapter of its own: it adds to its own columns.
//! The adapter's product continues the chains of the base product (decision D3), so rows stay independent of each other.

use super::layer::sized;
use crate::device::Cpu;
use crate::lora::Place;
use crate::ops::gemm::{Left, Right, gemm, gemm_strided};
use crate::ops::linear::{Linear, linear_bwd_input, linear_bwd_weight, linear_fwd, linear_fwd_columns};
use std::ops::Range;

/// The weight of a linear layer, packed, and its adapters.
#[derive(Clone, Default)]
pub(super) struct Projection {
    pub base: Linear,
    pub adapters: Vec<Adapter>,
}

/// One adapter.
#[derive(Clone, Default)]
pub(super) struct Adapter {
    /// Where it lies.
    pub place: Place,
    /// A and B, packed.
    pub a_packed: Linear,
    pub b_packed: Linear,
}

/// What of a projection is trained, and where it lies in the buffer of trained numbers.
#[derive(Clone)]
pub(super) enum Trained<'a> {
    /// The base weight, at this place.
    Base(Range<usize>),
    /// The adapters, whose numbers are these, scaled by α / r.
    Adapters { numbers: &'a [f32], scale: f32 },
}

impl Projection {
    /// y = x·Wᵀ (y += with `accumulate`), and with a scale also y += scale·(x·Aᵀ)·Bᵀ on each adapter's columns.
    pub fn forward(
        &self,
        cpu: &Cpu,
        y: &mut [f32],
        x: &[f32],
        accumulate: bool,
        scale: Option<f32>,
        low: &mut Vec<f32>,
    ) {
        linear_fwd(cpu, y, x, &self.base, accumulate);
        let Some(scale) = scale else { return };
        for adapter in &self.adapters {
            adapter.down(cpu, x, scale, low);
            let from = adapter.place.columns.start;
            linear_fwd_columns(cpu, &mut y[from..], self.base.out(), low, &adapter.b_packed);
        }
    }

    /// dx = dy·W (`w` is the base weight) and the adapters' share of it; adds the gradients of what is trained to `grads`.
    pub fn backward(
        &self,
        cpu: &Cpu,
        dx: &mut [f32],
        dy: &[f32],
        x: &[f32],
        w: &[f32],
        grads: &mut [f32],
        trained: &Trained<'_>,
        low: &mut [Vec<f32>; 2],
    ) {
        let (out, input) = (self.base.out(), self.base.input());
        let rows = dy.len() / out;
        let precision = self.base.precision();
        linear_bwd_input(cpu, dx, dy, &self.base, w, false);
        match trained {
            Trained::Base(place) => linear_bwd_weight(cpu, &mut grads[place.clone()], dy, x, &self.base),
            Trained::Adapters { numbers, scale } => {
                let [low, dlow] = low;
                for adapter in &self.adapters {
                    let (Place { columns, a, b }, rank) = (&adapter.place, adapter.rank());
                    let (from, width) = (columns.start, columns.len());
                    adapter.down(cpu, x, *scale, low);
                    let dy_t = Left { data: &dy[from..], row: 1, step: out };
                    gemm(cpu, width, rank, rows, dy_t, Right::Rows(low, precision), &mut grads[b.clone()], true);
                    let dlow = sized(dlow, rows * rank);
                    let dy = Left { data: &dy[from..], row: out, step: 1 };
                    gemm(cpu, rows, rank, width, dy, Right::Rows(&numbers[b.clone()], precision), dlow, false);
                    dlow.iter_mut().for_each(|x| *x *= scale);
                    let da = &mut grads[a.clone()];
                    gemm(cpu, rank, input, rows, Left::transposed(dlow, rank), Right::Rows(x, precision), da, true);
                    let a = Right::Rows(&numbers[a.clone()], precision);
                    gemm_strided(cpu, rows, input, rank, Left::rows(dlow, rank), a, dx, input, true);
                }
            }
        }
    }
}

impl Adapter {
    fn rank(&self) -> usize {
        self.a_packed.out()
    }

    /// low = scale·x·Aᵀ, `[rows, rank]`.
    fn down(&self, cpu: &Cpu, x: &[f32], scale: f32, low: &mut Vec<f32>) {
        let rows = x.len() / self.a_packed.input();
        let low = sized(low, rows * self.rank());
        linear_fwd(cpu, low, x, &self.a_packed, false);
        low.iter_mut().for_each(|x| *x *= scale);
    }
}

//! Rotary position embedding on half-split heads: pairs (x\[i\], x\[i + hd/2\]) turn by position · θ^(−2i/hd).
//!
//! **Source** Su et al., *RoFormer*, 2021, eq. 34, in the pairing of Hugging Face's Llama.

use crate::device::Cpu;
use crate::math;
use crate::simd::{LANES, Simd, dispatch};
use crate::threads::Shards;

/// Cosines and sines of every position and frequency.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    /// `[positions, half]`
    cos: Vec<f32>,
    /// `[positions, half]`
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table for heads of width `head_dim` and `positions` positions.
    ///
    /// Frequencies and angles are rounded to f32, as checkpoints were trained with; sine and cosine are then taken in f64.
    pub fn new(theta: f64, head_dim: usize, positions: usize) -> Self {
        let half = head_dim / 2;
        let frequency: Vec<f32> =
            (0..half).map(|i| math::pow(theta, -((2 * i) as f64) / head_dim as f64) as f32).collect();
        let (mut cos, mut sin) = (Vec::with_capacity(positions * half), Vec::with_capacity(positions * half));
        for position in 0..positions {
            for f in &frequency {
                let (s, c) = math::sin_cos(f64::from(position as f32 * f));
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        RopeTable { half, cos, sin }
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }
}

/// Turns `heads` heads of every row of x (rows at distance `stride`, heads from column `column` on) to its position and scales them; `backward` turns
/// back and scales, which is the gradient.
pub fn rope(
    cpu: &Cpu,
    x: &mut [f32],
    stride: usize,
    column: usize,
    heads: usize,
    positions: &[u32],
    table: &RopeTable,
    scale: f32,
    backward: bool,
) {
    let width = 2 * table.half;
    let shards = Shards::new(x);
    cpu.pool.split(positions.len(), 64, 1, &|rows| {
        for r in rows {
            let at = positions[r] as usize * table.half;
            let (cos, sin) = (&table.cos[at..][..table.half], &table.sin[at..][..table.half]);
            // SAFETY: every task has rows of its own.
            let row = unsafe { shards.part(r * stride + column..r * stride + column + heads * width) };
            turn(cpu.isa, row, cos, sin, scale, backward);
        }
    });
}

dispatch!(fn turn(row: &mut [f32], cos: &[f32], sin: &[f32], scale: f32, backward: bool) = turn_kernel);

#[inline(always)]
unsafe fn turn_kernel<S: Simd>(row: &mut [f32], cos: &[f32], sin: &[f32], scale: f32, backward: bool) {
    let half = cos.len();
    // SAFETY: register-only.
    let scale = unsafe { S::splat(scale) };
    assert_eq!(sin.len(), half);
    for head in row.chunks_exact_mut(2 * half) {
        for i in (0..half).step_by(LANES) {
            let n = LANES.min(half - i);
            // SAFETY: lanes i .. i + n of both halves exist.
            unsafe {
                let (low, high) = (head.as_mut_ptr().add(i), head.as_mut_ptr().add(half + i));
                let (a, b) = (S::load_n(low, n), S::load_n(high, n));
                let c = S::load_n(cos.as_ptr().add(i), n);
                let s = S::load_n(sin.as_ptr().add(i), n);
                let minus = S::sub(S::splat(0.0), s);
                let (s_low, s_high) = if backward { (s, minus) } else { (minus, s) };
                S::store_n(low, n, S::mul(S::fma(b, s_low, S::mul(a, c)), scale));
                S::store_n(high, n, S::mul(S::fma(a, s_high, S::mul(b, c)), scale));
            }
        }
    }
}

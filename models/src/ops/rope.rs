//! Rotary position embedding on half-split heads: pairs (x\[i\], x\[i + hd/2\]) turn by position · frequency_i.
//!
//! **Source** Su et al., *RoFormer*, 2021, eq. 34, in the pairing of Hugging Face's Llama; the frequencies of the scaled
//! kinds are those of `modeling_rope_utils` in transformers 5.

use crate::config::{Rope, RopeScaling, Yarn};
use crate::device::Cpu;
use crate::math;
use crate::simd::{LANES, Simd, dispatch};
use crate::threads::Shards;
use std::f64::consts::TAU;
use std::sync::OnceLock;

/// Positions whose cosines and sines are made together, when the first of them is used.
const BLOCK: usize = 256;

/// Cosines and sines of every position and frequency, made when they are first used: a long context costs memory only as
/// far as it is used (head_dim · 4 bytes a position).
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// `[half]`
    frequencies: Vec<f32>,
    /// What cosines and sines are multiplied by.
    attention_factor: f32,
    positions: usize,
    /// `[BLOCK, 2, half]` each: a position's cosines, then its sines.
    blocks: Vec<OnceLock<Box<[f32]>>>,
}

impl RopeTable {
    /// The table for heads of width `head_dim` and `positions` positions, of a model whose own context is `max_positions`.
    ///
    /// Frequencies and angles are rounded to f32, as checkpoints were trained with; sine and cosine are then taken in f64.
    pub fn new(rope: &Rope, head_dim: usize, max_positions: usize, positions: usize) -> Self {
        let (frequencies, attention_factor) = frequencies(rope, head_dim, max_positions, positions);
        let blocks = vec![OnceLock::new(); positions.div_ceil(BLOCK)];
        RopeTable { frequencies, attention_factor, positions, blocks }
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Bytes that the positions used so far take.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().filter_map(OnceLock::get).map(|block| size_of_val::<[f32]>(block)).sum()
    }

    /// Cosines and sines of a position, `[half]` each.
    ///
    /// **Panics** beyond the table.
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        let block = self.blocks[position / BLOCK].get_or_init(|| self.block(position / BLOCK));
        block[position % BLOCK * 2 * half..][..2 * half].split_at(half)
    }

    fn block(&self, block: usize) -> Box<[f32]> {
        let mut rows = Vec::with_capacity(BLOCK * 2 * self.frequencies.len());
        for position in block * BLOCK..(block + 1) * BLOCK {
            let turns = || self.frequencies.iter().map(|f| math::sin_cos(f64::from(position as f32 * f)));
            rows.extend(turns().map(|(_, cos)| cos as f32 * self.attention_factor));
            rows.extend(turns().map(|(sin, _)| sin as f32 * self.attention_factor));
        }
        rows.into_boxed_slice()
    }
}

/// The frequency of each pair of a head, `[head_dim / 2]`, and what cosines and sines are multiplied by.
///
/// `max_positions` is the model's own context and `positions` the longest that is asked for; only [`RopeScaling::Dynamic`] looks at them.
pub fn frequencies(rope: &Rope, head_dim: usize, max_positions: usize, positions: usize) -> (Vec<f32>, f32) {
    let base = |theta: f64| -> Vec<f64> {
        (0..head_dim / 2).map(|i| math::pow(theta, -((2 * i) as f64) / head_dim as f64)).collect()
    };
    let mut frequencies = base(rope.theta);
    let mut attention_factor = 1.0;
    match &rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            for f in &mut frequencies {
                // How often the pair turns within the original context.
                let turns = *original_max_positions as f64 * *f / TAU;
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                *f *= (1.0 - keep) / factor + keep;
            }
        }
        RopeScaling::Yarn(yarn) => {
            let (low, high) = yarn_ramp(yarn, rope.theta, head_dim);
            for (i, f) in frequencies.iter_mut().enumerate() {
                let stretch = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                *f *= stretch / yarn.factor + (1.0 - stretch);
            }
            attention_factor = yarn.attention();
        }
        RopeScaling::Dynamic { factor } => {
            if positions > max_positions {
                let stretch = factor * (positions as f64 / max_positions as f64) - (factor - 1.0);
                let exponent = head_dim as f64 / (head_dim as f64 - 2.0);
                frequencies = base(rope.theta * math::pow(stretch, exponent));
            }
        }
    }
    (frequencies.into_iter().map(|f| f as f32).collect(), attention_factor as f32)
}

/// The pairs between which YaRN goes over from kept to divided frequencies.
///
/// **Math** pair i turns r times within the original context n where i = hd ln(n / 2πr) / (2 ln θ).
fn yarn_ramp(yarn: &Yarn, theta: f64, head_dim: usize) -> (f64, f64) {
    let pair = |turns: f64| {
        let wave = yarn.original_max_positions as f64 / (turns * TAU);
        head_dim as f64 * math::ln(wave) / (2.0 * math::ln(theta))
    };
    let (mut low, mut high) = (pair(yarn.beta_fast), pair(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min((head_dim - 1) as f64));
    if low == high { (low, high + 0.001) } else { (low, high) }
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
    let width = 2 * table.frequencies.len();
    let shards = Shards::new(x);
    cpu.pool.split(positions.len(), 64, 1, &|rows| {
        for r in rows {
            let (cos, sin) = table.row(positions[r] as usize);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_positions_that_are_used_take_memory() {
        let table = RopeTable::new(&Rope::plain(1e4), 128, 131_072, 131_072);
        assert_eq!((table.positions(), table.bytes()), (131_072, 0));
        table.row(0);
        table.row(255);
        assert_eq!(table.bytes(), 256 * 128 * 4);
        let (cos, sin) = table.row(131_071);
        assert_eq!(table.bytes(), 2 * 256 * 128 * 4);
        assert!(
            (f64::from(cos[0]) - 131_071f64.cos()).abs() < 1e-7 && (f64::from(sin[0]) - 131_071f64.sin()).abs() < 1e-7
        );
    }

    #[test]
    fn dynamic_scaling_follows_the_limit_and_is_plain_within_the_models_context() {
        let dynamic = Rope { theta: 1e4, scaling: RopeScaling::Dynamic { factor: 2.0 } };
        let plain = frequencies(&Rope::plain(1e4), 8, 64, 64);
        assert_eq!(frequencies(&dynamic, 8, 64, 64), plain);
        // (2 · 128/64 − 1)^(8/6) = 3^(4/3) = 4.326748710922225 times the base.
        let long = frequencies(&dynamic, 8, 64, 128);
        assert_eq!(long, frequencies(&Rope::plain(43_267.487_109_222_25), 8, 64, 64));
    }
}

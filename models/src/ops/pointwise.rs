//! SwiGLU: a = silu(g) · u with silu(g) = g · σ(g).
//!
//! **Shapes** gate and up lie side by side in `[rows, 2 d_ff]`, a is `[rows, d_ff]`.
//!
//! **Source** Shazeer, *GLU Variants Improve Transformer*, 2020, eq. 6.

use crate::device::Cpu;
use crate::simd::{LANES, Simd, dispatch, sigmoid};
use crate::threads::Shards;

/// a = silu(gate) · up.
pub fn swiglu_fwd(cpu: &Cpu, a: &mut [f32], gate_up: &[f32], d_ff: usize) {
    let rows = a.len() / d_ff;
    let shards = Shards::new(a);
    cpu.pool.split(rows, 32, 1, &|range| {
        for r in range {
            // SAFETY: every task has rows of its own.
            let a = unsafe { shards.part(r * d_ff..(r + 1) * d_ff) };
            let (gate, up) = gate_up[r * 2 * d_ff..][..2 * d_ff].split_at(d_ff);
            swiglu_row(cpu.isa, a, gate, up);
        }
    });
}

dispatch!(fn swiglu_row(a: &mut [f32], gate: &[f32], up: &[f32]) = swiglu_row_kernel);

#[inline(always)]
unsafe fn swiglu_row_kernel<S: Simd>(a: &mut [f32], gate: &[f32], up: &[f32]) {
    let d = a.len();
    assert!(gate.len() == d && up.len() == d);
    for j in (0..d).step_by(LANES) {
        let n = LANES.min(d - j);
        // SAFETY: lanes j .. j + n exist.
        unsafe {
            let g = S::load_n(gate.as_ptr().add(j), n);
            let u = S::load_n(up.as_ptr().add(j), n);
            S::store_n(a.as_mut_ptr().add(j), n, S::mul(S::mul(g, sigmoid::<S>(g)), u));
        }
    }
}

/// d(gate, up) += the gradient, from da.
///
/// **Math** with σ = σ(g): dup = da · g σ; dgate = da · u · σ (1 + g (1 − σ)).
pub fn swiglu_bwd(cpu: &Cpu, dgate_up: &mut [f32], da: &[f32], gate_up: &[f32], d_ff: usize) {
    let rows = da.len() / d_ff;
    let shards = Shards::new(dgate_up);
    cpu.pool.split(rows, 32, 1, &|range| {
        for r in range {
            // SAFETY: every task has rows of its own.
            let d = unsafe { shards.part(r * 2 * d_ff..(r + 1) * 2 * d_ff) };
            let (dgate, dup) = d.split_at_mut(d_ff);
            let (gate, up) = gate_up[r * 2 * d_ff..][..2 * d_ff].split_at(d_ff);
            swiglu_row_bwd(cpu.isa, dgate, dup, &da[r * d_ff..][..d_ff], gate, up);
        }
    });
}

dispatch!(fn swiglu_row_bwd(dgate: &mut [f32], dup: &mut [f32], da: &[f32], gate: &[f32], up: &[f32]) = swiglu_row_bwd_kernel);

#[inline(always)]
unsafe fn swiglu_row_bwd_kernel<S: Simd>(dgate: &mut [f32], dup: &mut [f32], da: &[f32], gate: &[f32], up: &[f32]) {
    let d = da.len();
    assert!(dgate.len() == d && dup.len() == d && gate.len() == d && up.len() == d);
    for j in (0..d).step_by(LANES) {
        let n = LANES.min(d - j);
        // SAFETY: lanes j .. j + n exist.
        unsafe {
            let one = S::splat(1.0);
            let g = S::load_n(gate.as_ptr().add(j), n);
            let u = S::load_n(up.as_ptr().add(j), n);
            let da = S::load_n(da.as_ptr().add(j), n);
            let s = sigmoid::<S>(g);
            let (pg, pu) = (dgate.as_mut_ptr().add(j), dup.as_mut_ptr().add(j));
            S::store_n(pu, n, S::fma(da, S::mul(g, s), S::load_n(pu, n)));
            let slope = S::mul(s, S::fma(g, S::sub(one, s), one));
            S::store_n(pg, n, S::fma(S::mul(da, u), slope, S::load_n(pg, n)));
        }
    }
}

//! RMSNorm: y = x · rstd · g with rstd = 1 / √(mean(x²) + ε).
//!
//! **Shapes** x and y are `heads` vectors of `d` in each of `rows` rows at distance `stride`; `heads` is 1 for the norm of the residual
//! stream and the number of heads for q/k norm. g `[d]`, rstd `[rows, heads]`.
//!
//! **Source** Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019, eq. 4.

use crate::device::Cpu;
use crate::simd::{LANES, Simd, dispatch, tree_sum};
use crate::threads::Shards;

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
}

/// Rows that are worth a task of their own.
const GRAIN: usize = 64;

/// y = x · rstd · g and rstd; y is `[rows, heads, d]` at row distance `y_stride`.
pub fn rmsnorm_fwd(
    cpu: &Cpu,
    y: &mut [f32],
    y_stride: usize,
    rstd: &mut [f32],
    x: &[f32],
    gain: &[f32],
    eps: f32,
    layout: Layout,
) {
    let Layout { rows, heads, d, stride } = layout;
    assert!(gain.len() == d && rstd.len() == rows * heads);
    let (y, rstd) = (Shards::new(y), Shards::new(rstd));
    cpu.pool.split(rows, GRAIN, 1, &|range| {
        for r in range {
            for h in 0..heads {
                let x = &x[r * stride + h * d..][..d];
                // SAFETY: every task has rows of its own.
                let (y, rstd) = unsafe {
                    let start = r * y_stride + h * d;
                    (y.part(start..start + d), rstd.part(r * heads + h..r * heads + h + 1))
                };
                rstd[0] = norm_row(cpu.isa, y, x, gain, eps);
            }
        }
    });
}

dispatch!(fn norm_row(y: &mut [f32], x: &[f32], gain: &[f32], eps: f32) -> f32 = norm_row_kernel);

#[inline(always)]
unsafe fn norm_row_kernel<S: Simd>(y: &mut [f32], x: &[f32], gain: &[f32], eps: f32) -> f32 {
    let d = x.len();
    assert!(y.len() == d && gain.len() == d);
    // SAFETY: every access is to lanes below d.
    unsafe {
        let mut sum = S::splat(0.0);
        for j in (0..d).step_by(LANES) {
            let x = S::load_n(x.as_ptr().add(j), LANES.min(d - j));
            sum = S::fma(x, x, sum);
        }
        let rstd = 1.0 / (tree_sum(S::lanes(sum)) / d as f32 + eps).sqrt();
        for j in (0..d).step_by(LANES) {
            let n = LANES.min(d - j);
            let normed = S::mul(S::load_n(x.as_ptr().add(j), n), S::splat(rstd));
            S::store_n(y.as_mut_ptr().add(j), n, S::mul(normed, S::load_n(gain.as_ptr().add(j), n)));
        }
        rstd
    }
}

/// dx += the gradient of x.
///
/// **Math** with n = x · rstd and e = dy · g: dx = rstd · (e − n · mean(e · n)). dy is `[rows, heads, d]` at row distance `dy_stride`.
pub fn rmsnorm_bwd(
    cpu: &Cpu,
    dx: &mut [f32],
    dy: &[f32],
    dy_stride: usize,
    rstd: &[f32],
    x: &[f32],
    gain: &[f32],
    layout: Layout,
) {
    let Layout { rows, heads, d, stride } = layout;
    let dx = Shards::new(dx);
    cpu.pool.split(rows, GRAIN, 1, &|range| {
        for r in range {
            for h in 0..heads {
                let start = r * stride + h * d;
                // SAFETY: every task has rows of its own.
                let dx = unsafe { dx.part(start..start + d) };
                norm_row_bwd(
                    cpu.isa,
                    dx,
                    &dy[r * dy_stride + h * d..][..d],
                    rstd[r * heads + h],
                    &x[start..][..d],
                    gain,
                );
            }
        }
    });
}

dispatch!(fn norm_row_bwd(dx: &mut [f32], dy: &[f32], rstd: f32, x: &[f32], gain: &[f32]) = norm_row_bwd_kernel);

#[inline(always)]
unsafe fn norm_row_bwd_kernel<S: Simd>(dx: &mut [f32], dy: &[f32], rstd: f32, x: &[f32], gain: &[f32]) {
    let d = x.len();
    assert!(dx.len() == d && dy.len() == d && gain.len() == d);
    // SAFETY: every access is to lanes below d.
    unsafe {
        let scale = S::splat(rstd);
        let mut sum = S::splat(0.0);
        for j in (0..d).step_by(LANES) {
            let n = LANES.min(d - j);
            let e = S::mul(S::load_n(dy.as_ptr().add(j), n), S::load_n(gain.as_ptr().add(j), n));
            sum = S::fma(e, S::mul(S::load_n(x.as_ptr().add(j), n), scale), sum);
        }
        let mean = S::splat(-tree_sum(S::lanes(sum)) / d as f32);
        for j in (0..d).step_by(LANES) {
            let n = LANES.min(d - j);
            let e = S::mul(S::load_n(dy.as_ptr().add(j), n), S::load_n(gain.as_ptr().add(j), n));
            let normed = S::mul(S::load_n(x.as_ptr().add(j), n), scale);
            let p = dx.as_mut_ptr().add(j);
            S::store_n(p, n, S::fma(scale, S::fma(normed, mean, e), S::load_n(p, n)));
        }
    }
}

/// dg += Σ dy · x · rstd, each element one chain over rows and heads in their order; threads split the columns.
pub fn rmsnorm_gain_bwd(
    cpu: &Cpu,
    dgain: &mut [f32],
    dy: &[f32],
    dy_stride: usize,
    rstd: &[f32],
    x: &[f32],
    layout: Layout,
) {
    let Layout { rows, heads, d, stride } = layout;
    let dgain = Shards::new(dgain);
    cpu.pool.split(d, 32, LANES, &|columns| {
        // SAFETY: pieces of the split do not overlap.
        let sums = unsafe { dgain.part(columns.clone()) };
        gain_columns(cpu.isa, sums, columns.start, dy, dy_stride, rstd, x, rows, heads, d, stride);
    });
}

dispatch!(
    fn gain_columns(sums: &mut [f32], first: usize, dy: &[f32], dy_stride: usize, rstd: &[f32], x: &[f32], rows: usize, heads: usize, d: usize, stride: usize)
        = gain_columns_kernel
);

#[inline(always)]
unsafe fn gain_columns_kernel<S: Simd>(
    sums: &mut [f32],
    first: usize,
    dy: &[f32],
    dy_stride: usize,
    rstd: &[f32],
    x: &[f32],
    rows: usize,
    heads: usize,
    d: usize,
    stride: usize,
) {
    for (j, sums) in sums.chunks_mut(LANES).enumerate() {
        let (n, column) = (sums.len(), first + j * LANES);
        // SAFETY: slices are taken with their length checked, and n ≤ 16 lanes of them are touched.
        unsafe {
            let mut sum = S::load_n(sums.as_ptr(), n);
            for r in 0..rows {
                for h in 0..heads {
                    let dy = &dy[r * dy_stride + h * d + column..][..n];
                    let x = &x[r * stride + h * d + column..][..n];
                    let normed = S::mul(S::load_n(x.as_ptr(), n), S::splat(rstd[r * heads + h]));
                    sum = S::fma(S::load_n(dy.as_ptr(), n), normed, sum);
                }
            }
            S::store_n(sums.as_mut_ptr(), n, sum);
        }
    }
}

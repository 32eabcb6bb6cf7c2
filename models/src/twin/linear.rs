//! Linear layer.

use super::{Float, add_scaled, dot};

/// **Math** y = x Wᵀ + b, that is y_j = W_j · x + b_j for each row.
///
/// **Shapes** `x` `[rows, d_in]`, `w` `[d_out, d_in]`, `b` `[d_out]`, y `[rows, d_out]`.
pub fn linear_fwd<T: Float>(x: &[T], w: &[T], b: Option<&[T]>, d_in: usize) -> Vec<T> {
    let mut y = Vec::with_capacity(x.len() / d_in * (w.len() / d_in));
    for x in x.chunks_exact(d_in) {
        for (j, w) in w.chunks_exact(d_in).enumerate() {
            y.push(dot(w, x) + b.map_or(T::ZERO, |b| b[j]));
        }
    }
    y
}

/// **Math** dx += dy W, dW += dyᵀ x, db += Σ_rows dy; for each row: dx += Σ_j dy_j W_j, dW_j += dy_j x, db_j += dy_j.
///
/// **Shapes** as in [`linear_fwd`]; `dy` as y, `dx`, `dw`, `db` as x, W, b.
pub fn linear_bwd<T: Float>(
    x: &[T],
    w: &[T],
    dy: &[T],
    d_in: usize,
    dx: &mut [T],
    dw: &mut [T],
    mut db: Option<&mut [T]>,
) {
    let d_out = w.len() / d_in;
    for ((x, dy), dx) in x.chunks_exact(d_in).zip(dy.chunks_exact(d_out)).zip(dx.chunks_exact_mut(d_in)) {
        for j in 0..d_out {
            let row = j * d_in..(j + 1) * d_in;
            add_scaled(dx, dy[j], &w[row.clone()]);
            add_scaled(&mut dw[row], dy[j], x);
            if let Some(db) = &mut db {
                db[j] += dy[j];
            }
        }
    }
}

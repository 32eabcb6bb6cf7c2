//! RMSNorm (Zhang and Sennrich 2019, *Root mean square layer normalization*, equation 4).
//!
//! With `width` = d_model it is the norm of a block, with `width` = head_dim that of each head's q or k.

use super::{Float, dot, sum};

/// 1 / √(mean(x²) + eps).
fn rstd<T: Float>(x: &[T], eps: f64) -> T {
    let mean_square = dot(x, x) / T::from_f64(x.len() as f64);
    T::ONE / (mean_square + T::from_f64(eps)).sqrt()
}

/// **Math** y_i = w_i x̂_i with x̂ = x · rstd and rstd = 1 / √(mean(x²) + eps).
///
/// **Shapes** `x` `[rows, width]`, `w` `[width]`, y as x.
pub fn rms_norm_fwd<T: Float>(x: &[T], w: &[T], eps: f64) -> Vec<T> {
    let mut y = Vec::with_capacity(x.len());
    for x in x.chunks_exact(w.len()) {
        let rstd = rstd(x, eps);
        y.extend(x.iter().zip(w).map(|(&x, &w)| w * (x * rstd)));
    }
    y
}

/// **Math** With g = w ⊙ dy: dx += rstd (g − x̂ mean(g ⊙ x̂)), since rstd itself depends on every x; dw += Σ_rows dy ⊙ x̂.
///
/// **Shapes** as in [`rms_norm_fwd`].
pub fn rms_norm_bwd<T: Float>(x: &[T], w: &[T], dy: &[T], eps: f64, dx: &mut [T], dw: &mut [T]) {
    let width = w.len();
    for ((x, dy), dx) in x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
        let rstd = rstd(x, eps);
        let mean = sum(width, |i| w[i] * dy[i] * x[i] * rstd) / T::from_f64(width as f64);
        for i in 0..width {
            let x_hat = x[i] * rstd;
            dx[i] += rstd * (w[i] * dy[i] - x_hat * mean);
            dw[i] += dy[i] * x_hat;
        }
    }
}

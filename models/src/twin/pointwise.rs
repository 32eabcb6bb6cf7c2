//! What acts on each element alone: SwiGLU and the residual sum.

use super::{Float, add_scaled};

/// 1 / (1 + e^−x).
fn sigmoid<T: Float>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// **Math** y = silu(gate) ⊙ up with silu(g) = g σ(g).
///
/// **Source** Shazeer 2020, *GLU variants improve transformer*, equation 6.
pub fn swiglu_fwd<T: Float>(gate: &[T], up: &[T]) -> Vec<T> {
    gate.iter().zip(up).map(|(&g, &u)| g * sigmoid(g) * u).collect()
}

/// **Math** dgate += dy ⊙ up ⊙ σ(g) (1 + g (1 − σ(g))), dup += dy ⊙ silu(g).
pub fn swiglu_bwd<T: Float>(gate: &[T], up: &[T], dy: &[T], dgate: &mut [T], dup: &mut [T]) {
    for i in 0..dy.len() {
        let (g, s) = (gate[i], sigmoid(gate[i]));
        dgate[i] += dy[i] * up[i] * s * (T::ONE + g * (T::ONE - s));
        dup[i] += dy[i] * g * s;
    }
}

/// **Math** y = x + branch.
pub fn residual_fwd<T: Float>(x: &[T], branch: &[T]) -> Vec<T> {
    x.iter().zip(branch).map(|(&x, &b)| x + b).collect()
}

/// **Math** dx += dy, dbranch += dy.
pub fn residual_bwd<T: Float>(dy: &[T], dx: &mut [T], dbranch: &mut [T]) {
    add_scaled(dx, T::ONE, dy);
    add_scaled(dbranch, T::ONE, dy);
}

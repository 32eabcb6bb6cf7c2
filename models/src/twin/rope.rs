//! Rotary position embedding (Su et al. 2021, *RoFormer*, equation 34), in the half-split layout of Hugging Face.
//!
//! Element i of a head is paired with element i + head_dim/2, not with its neighbour as in the paper; the two layouts
//! differ by a permutation of the rows of the q and k weights, and checkpoints hold this one.

use super::Float;
use crate::math;

/// Cosine and sine of the angle position × frequency_i, for each pair i of a head.
///
/// **Math** frequency_i = theta^(−2i / head_dim).
///
/// **Deviations** frequency and angle are rounded to f32 whatever `T` is, as Hugging Face does: at position 1,000 the
/// rounding moves the angle by up to 6e-5, and checkpoints were trained with it.
fn rotations<T: Float>(position: u32, head_dim: usize, theta: f64) -> Vec<(T, T)> {
    (0..head_dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            let frequency = 1.0 / math::pow(theta, f64::from(exponent)) as f32;
            let (sin, cos) = math::sin_cos(f64::from(position as f32 * frequency));
            (T::from_f64(cos), T::from_f64(sin))
        })
        .collect()
}

/// **Math** With a = angle_i and h = head_dim / 2: y_i = x_i cos a − x_{i+h} sin a, y_{i+h} = x_{i+h} cos a + x_i sin a.
///
/// **Shapes** `x` [rows, heads · head_dim], `positions` `[rows]`, y as x.
pub fn rope_fwd<T: Float>(x: &[T], positions: &[u32], head_dim: usize, theta: f64) -> Vec<T> {
    let mut y = vec![T::ZERO; x.len()];
    rotate(x, positions, head_dim, theta, T::ONE, &mut y);
    y
}

/// **Math** A rotation's transpose is the rotation back: dx_i += dy_i cos a + dy_{i+h} sin a,
/// dx_{i+h} += dy_{i+h} cos a − dy_i sin a.
///
/// **Shapes** as in [`rope_fwd`].
pub fn rope_bwd<T: Float>(dy: &[T], positions: &[u32], head_dim: usize, theta: f64, dx: &mut [T]) {
    rotate(dy, positions, head_dim, theta, -T::ONE, dx);
}

/// Adds to `y` the rotation of `x` by `direction` (1 or −1) times the angles.
fn rotate<T: Float>(x: &[T], positions: &[u32], head_dim: usize, theta: f64, direction: T, y: &mut [T]) {
    let half = head_dim / 2;
    let width = x.len().checked_div(positions.len()).unwrap_or(0);
    for (r, &position) in positions.iter().enumerate() {
        let rotations = rotations(position, head_dim, theta);
        for first in (r * width..(r + 1) * width).step_by(head_dim) {
            for (i, &(cos, sin)) in rotations.iter().enumerate() {
                let (a, b) = (first + i, first + i + half);
                let sin = direction * sin;
                y[a] += x[a] * cos - x[b] * sin;
                y[b] += x[b] * cos + x[a] * sin;
            }
        }
    }
}

//! Rotary position embedding (Su et al. 2021, *RoFormer*, equation 34), in the half-split layout of Hugging Face.
//!
//! Element i of a head is paired with element i + head_dim/2, not with its neighbour as in the paper; the two layouts
//! differ by a permutation of the rows of the q and k weights, and checkpoints hold this one.

use super::Float;
use crate::config::{Rope, RopeScaling, Yarn};
use crate::math;
use std::f32::consts::TAU;

/// The turn of each pair of a head from one position to the next.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// Radians a position, `[head_dim / 2]`.
    frequencies: Vec<f32>,
    /// What cosines and sines are multiplied by.
    attention_factor: f32,
}

impl Rotation {
    /// **Math** theta^(−2i / head_dim), scaled. A model's own context is `max_positions`, and `positions` the longest asked for.
    ///
    /// **Deviations** everything is rounded to f32 whatever the numbers of the model are, as Hugging Face does: at
    /// position 1,000 the rounding moves the angle by up to 6e-5, and checkpoints were trained with it.
    pub fn new(rope: &Rope, head_dim: usize, max_positions: usize, positions: usize) -> Self {
        let pow = |x: f32, y: f32| math::pow(f64::from(x), f64::from(y)) as f32;
        let plain = |theta: f32| -> Vec<f32> {
            (0..head_dim / 2).map(|i| 1.0 / pow(theta, (2 * i) as f32 / head_dim as f32)).collect()
        };
        let theta = rope.theta as f32;
        let (frequencies, attention_factor) = match &rope.scaling {
            RopeScaling::Default => (plain(theta), 1.0),
            RopeScaling::Linear { factor } => (plain(theta).iter().map(|f| f / *factor as f32).collect(), 1.0),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let (factor, low, high) = (*factor as f32, *low_freq_factor as f32, *high_freq_factor as f32);
                let original = *original_max_positions as f32;
                let scaled = |f: f32| {
                    let wave = TAU / f;
                    if wave < original / high {
                        f
                    } else if wave > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wave - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (plain(theta).into_iter().map(scaled).collect(), 1.0)
            }
            RopeScaling::Yarn(yarn) => (yarn_frequencies(yarn, rope.theta, &plain(theta)), yarn.attention() as f32),
            RopeScaling::Dynamic { factor } => {
                let ratio = positions.max(max_positions) as f64 / max_positions as f64;
                let exponent = head_dim as f64 / (head_dim as f64 - 2.0);
                let theta = rope.theta * math::pow(factor * ratio - (factor - 1.0), exponent);
                (plain(theta as f32), 1.0)
            }
        };
        Rotation { frequencies, attention_factor }
    }

    /// Cosine and sine of each pair's angle at a position.
    fn at<T: Float>(&self, position: u32) -> Vec<(T, T)> {
        let turn = |f: &f32| {
            let (sin, cos) = math::sin_cos(f64::from(position as f32 * f));
            let scale = T::from_f64(f64::from(self.attention_factor));
            (scale * T::from_f64(cos), scale * T::from_f64(sin))
        };
        self.frequencies.iter().map(turn).collect()
    }
}

/// **Math** i(r) = head_dim ln(original / 2πr) / (2 ln theta) is the pair that turns r times within the original context. From
/// i(beta_fast) to i(beta_slow) a ramp goes from the plain frequencies to those divided by the factor.
fn yarn_frequencies(yarn: &Yarn, theta: f64, plain: &[f32]) -> Vec<f32> {
    let head_dim = 2 * plain.len();
    let pair = |r: f64| {
        let turns = yarn.original_max_positions as f64 / (r * 2.0 * std::f64::consts::PI);
        head_dim as f64 * math::ln(turns) / (2.0 * math::ln(theta))
    };
    let whole = |x: f64, rounded: f64| if yarn.truncate { rounded } else { x };
    let (fast, slow) = (pair(yarn.beta_fast), pair(yarn.beta_slow));
    let from = whole(fast, fast.floor()).max(0.0) as f32;
    let mut to = whole(slow, slow.ceil()).min((head_dim - 1) as f64) as f32;
    if from == to {
        to += 0.001;
    }
    let blend = |(i, f): (usize, &f32)| {
        let ramp = ((i as f32 - from) / (to - from)).clamp(0.0, 1.0);
        let keep = 1.0 - ramp;
        f / yarn.factor as f32 * (1.0 - keep) + f * keep
    };
    plain.iter().enumerate().map(blend).collect()
}

/// **Math** With a = angle_i, m the attention factor and h = head_dim / 2: y_i = m (x_i cos a − x_{i+h} sin a),
/// y_{i+h} = m (x_{i+h} cos a + x_i sin a).
///
/// **Shapes** `x` [rows, heads · head_dim], `positions` `[rows]`, y as x.
pub fn rope_fwd<T: Float>(x: &[T], positions: &[u32], rotation: &Rotation) -> Vec<T> {
    let mut y = vec![T::ZERO; x.len()];
    rotate(x, positions, rotation, T::ONE, &mut y);
    y
}

/// **Math** A rotation's transpose is the rotation back: dx_i += m (dy_i cos a + dy_{i+h} sin a),
/// dx_{i+h} += m (dy_{i+h} cos a − dy_i sin a).
///
/// **Shapes** as in [`rope_fwd`].
pub fn rope_bwd<T: Float>(dy: &[T], positions: &[u32], rotation: &Rotation, dx: &mut [T]) {
    rotate(dy, positions, rotation, -T::ONE, dx);
}

/// Adds to `y` the rotation of `x` by `direction` (1 or −1) times the angles.
fn rotate<T: Float>(x: &[T], positions: &[u32], rotation: &Rotation, direction: T, y: &mut [T]) {
    let half = rotation.frequencies.len();
    let width = x.len().checked_div(positions.len()).unwrap_or(0);
    for (r, &position) in positions.iter().enumerate() {
        let rotations = rotation.at(position);
        for first in (r * width..(r + 1) * width).step_by(2 * half) {
            for (i, &(cos, sin)) in rotations.iter().enumerate() {
                let (a, b) = (first + i, first + i + half);
                let sin = direction * sin;
                y[a] += x[a] * cos - x[b] * sin;
                y[b] += x[b] * cos + x[a] * sin;
            }
        }
    }
}

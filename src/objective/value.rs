//! The loss of a value head.

use super::hold;

/// The value loss of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueTerm {
    /// The loss.
    pub loss: f64,
    /// Its derivative with respect to the new value.
    pub dvalue: f64,
    /// The clipped loss is the larger one.
    pub is_clipped: bool,
}

/// The clipped value loss of one token: max((V − R)², (clip(V, V_old ± clip) − R)²) / 2.
pub fn value_term(value: f64, old_value: f64, ret: f64, clip: f64) -> ValueTerm {
    let held = hold(value, old_value - clip, old_value + clip);
    let (free_error, held_error) = (value - ret, held - ret);
    let is_clipped = held_error * held_error > free_error * free_error;
    let error = if is_clipped { held_error } else { free_error };
    ValueTerm { loss: 0.5 * error * error, dvalue: if is_clipped { 0.0 } else { error }, is_clipped }
}

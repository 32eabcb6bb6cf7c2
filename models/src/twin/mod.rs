//! The twin: every op of the model as a plain loop, forward and hand-written backward side by side.
//!
//! It is the page to read first, and the oracle that the fast path (`ops`, `transformer`) is compared with. It is generic
//! over [`Float`]: in f64 its backward is checked by finite differences, and the fast f32 path is then checked against it.
//! It deliberately knows no threads, no vector instructions, no caching and no saving of memory: one formula, one loop.
//!
//! Conventions of all ops:
//! - Tensors are flat slices, row-major; the number of rows follows from the length. `x` is an input, `y` an output.
//! - `d` before a name is the derivative of the loss with respect to it: `dy` comes in, `dx` and `dw` go out.
//! - A backward ADDS into the gradients that it is handed; the caller zeroes them.
//!
//! Read on in [`model`], which puts the ops together.

mod attention;
mod embedding;
mod head;
mod linear;
pub mod model;
mod norm;
mod pointwise;
mod rope;

pub use attention::{attention_bwd, attention_fwd};
pub use embedding::{embedding_bwd, embedding_fwd};
pub use head::{log_softmax, token_bwd, token_fwd};
pub use linear::{linear_bwd, linear_fwd};
pub use norm::{rms_norm_bwd, rms_norm_fwd};
pub use pointwise::{residual_bwd, residual_fwd, swiglu_bwd, swiglu_fwd};
pub use rope::{Rotation, rope_bwd, rope_fwd};

use crate::math;
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// A floating-point number: f32 or f64.
pub trait Float:
    Copy
    + Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The nearest number to `x`.
    fn from_f64(x: f64) -> Self;
    /// The same number in f64.
    fn to_f64(self) -> f64;
    /// e^x.
    fn exp(self) -> Self {
        Self::from_f64(math::exp(self.to_f64()))
    }
    /// The natural logarithm.
    fn ln(self) -> Self {
        Self::from_f64(math::ln(self.to_f64()))
    }
    /// The square root.
    fn sqrt(self) -> Self {
        Self::from_f64(self.to_f64().sqrt())
    }
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn from_f64(x: f64) -> f64 {
        x
    }
    fn to_f64(self) -> f64 {
        self
    }
}

/// Σ_i f(i) for i in `0..n`.
fn sum<T: Float>(n: usize, f: impl Fn(usize) -> T) -> T {
    (0..n).fold(T::ZERO, |total, i| total + f(i))
}

/// a · b.
fn dot<T: Float>(a: &[T], b: &[T]) -> T {
    assert_eq!(a.len(), b.len());
    sum(a.len(), |i| a[i] * b[i])
}

/// y += scale x.
fn add_scaled<T: Float>(y: &mut [T], scale: T, x: &[T]) {
    assert_eq!(y.len(), x.len());
    for (y, &x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}

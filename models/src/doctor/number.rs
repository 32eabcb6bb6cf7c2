//! The number types of activations, and how far off each may be.

use crate::gpu::Precision;
use half::bf16;

/// A number type of activations, and how far what is computed in it may be off from the CPU's in f32.
pub trait Number: Precision + 'static {
    /// Its name.
    const NAME: &'static str;
    /// A kernel's results, as a normalised mean square error.
    const NMSE: f64;
    /// Values of a training step, by the largest number of a tensor.
    const VALUES: f64;
    /// Gradients of a training step, by the same.
    const GRADIENTS: f64;
    /// The same of the way that the weights have gone, as a normalised square error.
    const WAY: f64;
    /// Of a product, by the sum of its terms' magnitudes.
    const PRODUCT: f64;
    /// No GPU that there are kernels for multiplies more slowly, TFLOP/s.
    const LEAST_TFLOPS: f64;
}

/// Sums in another order.
impl Number for f32 {
    const NAME: &'static str = "f32";
    const NMSE: f64 = 1e-10;
    const VALUES: f64 = 3e-6;
    const GRADIENTS: f64 = 1e-5;
    const WAY: f64 = 1e-10;
    const PRODUCT: f64 = 1e-6;
    const LEAST_TFLOPS: f64 = 0.5;
}

/// Everything but sums is rounded to 8 bits.
impl Number for bf16 {
    const NAME: &'static str = "bf16";
    const NMSE: f64 = 1e-5;
    const VALUES: f64 = 2.5e-2;
    const GRADIENTS: f64 = 1e-1;
    const WAY: f64 = 2e-2;
    const PRODUCT: f64 = 4e-3;
    const LEAST_TFLOPS: f64 = 1.0;
}

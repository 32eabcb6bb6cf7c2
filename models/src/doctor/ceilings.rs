//! What a GPU reaches at best, measured: a long copy and a large product by the library. Kernels are held against these two.

use super::Number;
use crate::random::Key;
use half::bf16;
use ragen_cuda::gemm::{Products, Write, linear_fwd};
use ragen_cuda::kernels::Work;
use ragen_cuda::{CudaError, Element, Gpu};

/// Bytes of the copy, and side of the square product, that a GPU is measured with: more than its caches hold.
pub const COPY_BYTES: usize = 1 << 30;
/// See [`COPY_BYTES`].
pub const SQUARE: usize = 8192;

/// Runs of which a time is the mean.
pub(super) const RUNS: usize = 5;

/// What was measured; `None` on the emulator, where time means nothing, and where it did not come to a number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ceilings {
    /// GB/s, [`copy_rate`].
    pub copy: Option<f64>,
    /// TFLOP/s in f32, [`product_rate`].
    pub product_f32: Option<f64>,
    /// TFLOP/s in bf16.
    pub product_bf16: Option<f64>,
}

impl Ceilings {
    /// What holds this work up, `"a copy"` or `"a product"`, and which share of that ceiling is reached in so many milliseconds.
    pub fn share<E: Number>(&self, work: Work, milliseconds: f64) -> Option<(f64, &'static str)> {
        let product = if size_of::<E>() == size_of::<bf16>() { self.product_bf16 } else { self.product_f32 };
        let (copy, product) = (work.bytes / self.copy? / 1e6, work.flops / product? / 1e9);
        let (least, what) = if copy >= product { (copy, "a copy") } else { (product, "a product") };
        Some((least / milliseconds, what))
    }
}

/// GB/s of device memory: bytes read and bytes written by a copy of `bytes` bytes within the device; `None` on the emulator, where time means nothing.
///
/// **Errors** [`CudaError::Memory`] where two buffers of so many bytes do not fit; those of a call.
pub fn copy_rate(gpu: &Gpu, bytes: usize) -> Result<Option<f64>, CudaError> {
    let (from, mut to) = (gpu.zeros::<u32>("a copy's source", bytes / 4)?, gpu.buffer::<u32>("a copy", bytes / 4)?);
    let time = milliseconds(gpu, &mut || gpu.copy(to.view_mut(), from.view()))?;
    Ok(time.map(|ms| 2.0 * bytes as f64 / ms / 1e6))
}

/// TFLOP/s of the library's product of two `n` x `n` matrices of type E into a third, 2n³ operations; `None` on the emulator.
///
/// **Errors** [`CudaError::Memory`] where three such matrices do not fit; those of a launch.
pub fn product_rate<E: Element>(gpu: &Gpu, n: usize) -> Result<Option<f64>, CudaError> {
    let (a, b) = (gpu.upload("A", &numbers::<E>(1, n * n))?, gpu.upload("B", &numbers::<E>(2, n * n))?);
    let mut c = gpu.buffer::<E>("C", n * n)?;
    let mut product = || linear_fwd(gpu, Products::Library, c.view_mut(), a.view(), b.view(), n, Write::Scaled(1.0));
    let time = milliseconds(gpu, &mut product)?;
    Ok(time.map(|ms| 2.0 * (n as f64).powi(3) / ms / 1e9))
}

/// Milliseconds that the device takes for `work`, the mean of five runs after one that is not counted; `None` on the emulator.
///
/// **Errors** those of `work` and of the device.
pub fn milliseconds(gpu: &Gpu, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Option<f64>, CudaError> {
    let mut time = gpu.time_ms(work)?;
    if time.is_some() {
        time = gpu.time_ms(&mut || (0..RUNS).try_for_each(|_| work()))?;
    }
    gpu.synchronize()?;
    Ok(time.map(|ms| f64::from(ms) / RUNS as f64))
}

/// Numbers around zero that repeat every 4093, which is prime, so that rows differ.
pub(super) fn numbers<E: Element>(seed: u64, len: usize) -> Vec<E> {
    let period: Vec<E> = (0..4093).map(|i| E::from_f32(Key::new(seed).uniform(i) as f32 - 0.5)).collect();
    period.into_iter().cycle().take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_ceiling_that_holds_the_work_up() {
        let ceilings = Ceilings { copy: Some(4000.0), product_f32: Some(50.0), product_bf16: Some(800.0) };
        // 1 ms at the copy's rate; 0.5 ms at bf16's, 8 ms at f32's.
        let work = Work { bytes: 4e9, flops: 4e11 };
        assert_eq!(ceilings.share::<bf16>(work, 2.0), Some((0.5, "a copy")));
        assert_eq!(ceilings.share::<f32>(work, 10.0), Some((0.8, "a product")));
        assert_eq!(Ceilings { copy: None, ..ceilings }.share::<f32>(work, 10.0), None);
    }
}

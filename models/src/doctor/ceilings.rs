//! What a GPU reaches at best, measured: a long copy and a large product by the library. Kernels are held against these two.

use crate::random::Key;
use ragen_cuda::gemm::{Products, Write, linear_fwd};
use ragen_cuda::{CudaError, Element, Gpu};

/// Bytes of the copy, and side of the square product, that a GPU is measured with: more than its caches hold.
pub const COPY_BYTES: usize = 1 << 30;
/// See [`COPY_BYTES`].
pub const SQUARE: usize = 8192;

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
    const RUNS: usize = 5;
    work()?;
    let time = gpu.time_ms(&mut || (0..RUNS).try_for_each(|_| work()))?;
    gpu.synchronize()?;
    Ok(time.map(|ms| f64::from(ms) / RUNS as f64))
}

/// Numbers around zero that repeat every 4093, which is prime, so that rows differ.
pub(super) fn numbers<E: Element>(seed: u64, len: usize) -> Vec<E> {
    let period: Vec<E> = (0..4093).map(|i| E::from_f32(Key::new(seed).uniform(i) as f32 - 0.5)).collect();
    period.into_iter().cycle().take(len).collect()
}

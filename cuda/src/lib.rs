//! Device memory, kernels and cuBLAS for one NVIDIA GPU.
//!
//! This crate knows device memory and kernels; it has never heard of a transformer.
//!
//! - [`Gpu`] is the device: it allocates [`Buffer`]s, launches kernels and multiplies matrices.
//! - [`kernels`] is the manifest: a typed, safe launcher for every kernel, and what each moves and computes.
//! - [`gemm`] is the matrix product, by cuBLASLt or by our own kernel.
//! - Under it all lies one thin trait, [`driver::Driver`], with three answers: the CUDA driver, (feature `emulator`, for tests) the CPU
//!   running the same kernel sources, and a machine that only counts ([`Gpu::counting`]).

pub mod buffer;
pub mod driver;
mod error;
pub mod gemm;
mod gpu;
mod kernel;
pub mod kernels;
pub mod trial;

pub use buffer::{Buffer, Element, View, ViewMut};
pub use error::CudaError;
pub use gpu::{Gpu, HeldBytes, Recording, Traffic};

/// Whether a CUDA device can be used on this machine; [`require`] says why not.
pub fn is_available() -> bool {
    require().is_ok()
}

/// Succeeds when there are a GPU, its driver and NVRTC. It holds nothing of the device.
///
/// **Errors** [`CudaError::Unavailable`]: what is missing, where it was looked for, how to get it.
pub fn require() -> Result<(), CudaError> {
    driver::Probe::new(0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_one_clear_error() {
        match Gpu::open(0) {
            Ok(gpu) => {
                println!("skipped: {} is there", gpu.name());
                assert!(is_available());
            }
            Err(error) => {
                let text = error.to_string();
                assert!(matches!(error, CudaError::Unavailable { .. }) && !text.contains('\n'), "{text}");
                assert!(text.contains("driver") || text.contains("NVRTC") || text.contains("cuInit"), "{text}");
                assert!(text.ends_with("run with --device cpu") && !is_available(), "{text}");
                assert_eq!(require().unwrap_err().to_string(), text);
            }
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error() {
        let text = Gpu::open(4_000).err().unwrap().to_string();
        assert!(text.contains("no CUDA device can be used"), "{text}");
    }
}

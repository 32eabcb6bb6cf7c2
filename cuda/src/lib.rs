//! Device memory, kernels and cuBLAS for one NVIDIA GPU.
//!
//! This crate knows device memory and kernels; it has never heard of a transformer.
//!
//! - [`Gpu`] is the device: it allocates [`Buffer`]s, launches kernels and multiplies matrices.
//! - [`kernels`] is the manifest: a typed, safe launcher for every kernel, and what each moves and computes.
//! - [`gemm`] is the matrix product, by cuBLASLt or by our own kernel.
//! - Under it all lies one thin trait, [`driver::Driver`], with two answers: the CUDA driver, and (feature `emulator`, for tests)
//!   the CPU running the same kernel sources.

pub mod buffer;
pub mod driver;
mod error;
pub mod gemm;
mod gpu;
mod kernel;
pub mod kernels;
mod plan;
pub mod trial;

pub use buffer::{Buffer, Element, View, ViewMut};
pub use error::CudaError;
pub use gpu::Gpu;
pub use plan::{Arena, Place, Plan};

/// Whether a CUDA device can be used by this build on this machine; [`require`] says why not.
pub fn is_available() -> bool {
    require().is_ok()
}

/// Succeeds when a CUDA device can be used.
///
/// **Errors** [`CudaError::Unavailable`] with the reason otherwise.
pub fn require() -> Result<(), CudaError> {
    Err(CudaError::Unavailable { reason: "this version of ragen has no CUDA kernels yet".into() })
}

#[cfg(test)]
mod tests {
    #[test]
    fn absence_is_one_clear_error() {
        assert!(!super::is_available());
        let text = super::require().unwrap_err().to_string();
        assert!(text.contains("no CUDA kernels yet") && text.contains("--device cpu"), "{text}");
    }
}

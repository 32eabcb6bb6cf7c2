//! Device memory, kernels and cuBLAS for one NVIDIA GPU.
//!
//! This crate knows device memory and kernels; it has never heard of a transformer.
//! The kernels are not built yet: today it only says, truthfully, that no device can be used.

/// What can go wrong with the device.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A CUDA device was asked for and cannot be used.
    #[error("no CUDA device can be used: {reason}; run with --device cpu")]
    Unavailable {
        /// Why, in words for the person who asked.
        reason: &'static str,
    },
}

/// Whether a CUDA device can be used by this build on this machine.
///
/// Always false until the device layer is built; [`require`] says why.
pub fn is_available() -> bool {
    require().is_ok()
}

/// Succeeds when a CUDA device can be used.
///
/// **Errors** [`CudaError::Unavailable`] with the reason otherwise.
pub fn require() -> Result<(), CudaError> {
    Err(CudaError::Unavailable { reason: "this version of ragen has no CUDA kernels yet" })
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

/// What can go wrong with the device.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A CUDA device was asked for and cannot be used.
    #[error("no CUDA device can be used: {reason}; run with --device cpu")]
    Unavailable {
        /// Why, in words for the person who asked.
        reason: String,
    },
    /// The emulator was asked for and cannot run.
    #[error("the emulator of the GPU cannot run: {reason}")]
    NoEmulator {
        /// Why.
        reason: String,
    },
    /// The device has too little memory left.
    #[error("{what} needs {wanted_bytes} bytes of device memory, {free_bytes} of {total_bytes} are free")]
    Memory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes free on the device.
        free_bytes: usize,
        /// Bytes of the device.
        total_bytes: usize,
    },
    /// A block of a kernel needs more shared memory than blocks have on this device.
    #[error("launch of {kernel} failed: {reason}")]
    SharedMemory {
        /// The kernel.
        kernel: String,
        /// How much it needs, and how much there is.
        reason: String,
    },
    /// A kernel source was refused by its compiler.
    #[error("{unit} does not compile:\n{log}")]
    Compile {
        /// Source file and what it was compiled for.
        unit: String,
        /// The compiler's own words.
        log: String,
    },
    /// A kernel did what it must not do, found by the emulator.
    #[error("{kernel}: {fault}")]
    Fault {
        /// The kernel.
        kernel: String,
        /// Which thread of which block did what, where.
        fault: String,
    },
    /// A call of the driver or of a library failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The call.
        call: String,
        /// The driver's own words.
        reason: String,
    },
}

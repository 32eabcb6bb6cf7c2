//! Where the arithmetic happens.

use crate::simd::Isa;
use crate::threads::Pool;
use ragen_cuda::CudaError;

/// The CPU: an instruction path and a pool of threads. Neither changes a result.
pub struct Cpu {
    /// Instruction path of every op.
    pub isa: Isa,
    /// The threads that ops share.
    pub pool: Pool,
}

impl Cpu {
    /// The fastest path (or the one that `RAGEN_ISA` names) with `threads` threads; 0 takes what the machine offers.
    ///
    /// **Errors** when `RAGEN_ISA` names a path that this machine lacks.
    pub fn new(threads: usize) -> Result<Self, String> {
        Ok(Cpu { isa: Isa::from_env()?, pool: Pool::new(Cpu::threads(threads)) })
    }

    /// How many threads [`Cpu::new`] starts when it is asked for so many.
    pub fn threads(asked: usize) -> usize {
        if asked > 0 { asked } else { std::thread::available_parallelism().map_or(1, |n| n.get()) }
    }

    /// A given path and number of threads.
    pub fn with(isa: Isa, threads: usize) -> Self {
        Cpu { isa, pool: Pool::new(threads) }
    }
}

/// Succeeds when models can run on a CUDA device, which they cannot yet.
///
/// **Errors** [`CudaError::Unavailable`]: what the machine lacks, or, where it lacks nothing, that it is us.
pub fn require_cuda() -> Result<(), CudaError> {
    ragen_cuda::require()?;
    let reason = "this machine has one, and ragen has kernels for it, but training does not use them yet".into();
    Err(CudaError::Unavailable { reason })
}

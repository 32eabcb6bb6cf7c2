//! The border to the machine: memory, modules, launches and matrix products, in bytes and addresses.
//!
//! Everything typed and checked stands above it ([`crate::Gpu`], [`crate::kernels`]); the answers below it are the CUDA driver, the
//! emulator, and a machine that does nothing and counts ([`Ledger`]).

pub mod cache;
mod cublaslt;
#[cfg(feature = "emulator")]
mod emulator;
mod gate;
mod ledger;
pub mod libraries;
mod nvidia;
pub mod nvrtc;
mod source;
mod watched;

#[cfg(feature = "emulator")]
pub use emulator::Emulator;
pub use ledger::{Counts, Held, Ledger, Moved, Product};
pub use nvidia::{Nvidia, Probe, taken as taken_by_nvidia};
pub use source::{Source, Unit};
pub use watched::Onlooker;
pub(crate) use watched::Watched;

use crate::CudaError;

/// A number or an address handed to a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A device address, for a pointer.
    Address(u64),
    /// For `u32`, `int` and `bool`-like flags.
    U32(u32),
    /// For `u64`.
    U64(u64),
    /// For `float`.
    F32(f32),
    /// For `double`.
    F64(f64),
}

/// Arguments that a kernel has at most.
pub const MOST_ARGS: usize = 24;

impl Arg {
    /// The argument in the low bytes of a word, where a little-endian machine looks for every width.
    fn bits(self) -> u64 {
        match self {
            Arg::Address(value) | Arg::U64(value) => value,
            Arg::U32(value) => value.into(),
            Arg::F32(value) => value.to_bits().into(),
            Arg::F64(value) => value.to_bits(),
        }
    }
}

/// How many blocks of how many threads, and how much dynamic shared memory each block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y and z; none may be 0.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Number type of a matrix of a [`Matmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    Bf16,
}

impl Kind {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::Bf16 => 2,
        }
    }
}

/// C = alpha · op(A) · op(B) + beta · Z as cuBLAS means it: all matrices column-major, op(A) `[m, k]`, op(B) `[k, n]`, C and Z `[m, n]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matmul {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Whether A is stored as `[k, m]`.
    pub transpose_a: bool,
    /// Whether B is stored as `[n, k]`.
    pub transpose_b: bool,
    /// Address of A and distance between its columns, in elements.
    pub a: (u64, usize),
    /// Address of B and distance between its columns.
    pub b: (u64, usize),
    /// Address of C and distance between its columns.
    pub c: (u64, usize),
    /// Address of Z, whose type and distance are C's: C's own to add to C.
    pub z: u64,
    /// Type of A and of B.
    pub input: Kind,
    /// Type of C.
    pub output: Kind,
    /// Multiplies the sums.
    pub alpha: f32,
    /// 0 does not read Z, 1 adds to it.
    pub beta: f32,
}

/// A loaded unit: kernels are launched by its number and their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module(pub usize);

/// Recorded work, by a number that its machine never uses again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recorded(pub usize);

/// A machine that runs kernels. Calls take effect in the order they are made; `download` and `synchronize` wait.
///
/// # Safety
/// `allocate` returns addresses of at least that many bytes which stay valid until `free`.
pub unsafe trait Driver: Send + Sync {
    /// What the device is, in words.
    fn name(&self) -> String;

    /// (free, total) bytes of device memory.
    ///
    /// **Errors** [`CudaError::Call`].
    fn memory(&self) -> Result<(usize, usize), CudaError>;

    /// What an allocation of so many bytes takes of the device's memory.
    fn taken(&self, bytes: usize) -> usize {
        bytes
    }

    /// At least `bytes` bytes of device memory (never none), at a multiple of 256; contents undefined. `what` is for the error message.
    ///
    /// **Errors** [`CudaError::Memory`].
    fn allocate(&self, what: &str, bytes: usize) -> Result<u64, CudaError>;

    /// Gives memory of [`Driver::allocate`] back once all work so far is done.
    fn free(&self, address: u64);

    /// Copies to the device.
    ///
    /// **Errors** [`CudaError::Call`].
    fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError>;

    /// Copies from the device, after all work so far; also reports what went wrong in it.
    ///
    /// **Errors** [`CudaError::Call`], [`CudaError::Fault`].
    fn download(&self, to: &mut [u8], from: u64) -> Result<(), CudaError>;

    /// Copies within the device; the ranges do not overlap.
    ///
    /// **Errors** [`CudaError::Call`].
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError>;

    /// Sets all bytes to zero.
    ///
    /// **Errors** [`CudaError::Call`].
    fn zero(&self, to: u64, bytes: usize) -> Result<(), CudaError>;

    /// Compiles (or finds in its cache) and loads a unit.
    ///
    /// **Errors** [`CudaError::Compile`] with the compiler's log.
    fn load(&self, unit: &Unit) -> Result<Module, CudaError>;

    /// Starts a kernel. Arguments must be those that the kernel declares, in number (at most [`MOST_ARGS`]), order and width.
    ///
    /// # Safety
    /// Every address argument points to memory of this device as large as the kernel touches.
    ///
    /// **Errors** [`CudaError::Call`], [`CudaError::Fault`].
    unsafe fn launch(&self, module: Module, kernel: &str, launch: Launch, args: &[Arg]) -> Result<(), CudaError>;

    /// A matrix product by the library, or `Ok(false)` when there is none here and our own kernel must do it.
    ///
    /// # Safety
    /// The matrices are memory of this device of at least the stated shapes.
    ///
    /// **Errors** [`CudaError::Call`].
    unsafe fn matmul(&self, product: &Matmul) -> Result<bool, CudaError>;

    /// Waits for all work so far.
    ///
    /// **Errors** [`CudaError::Call`], [`CudaError::Fault`].
    fn synchronize(&self) -> Result<(), CudaError>;

    /// Runs `work`'s launches and returns the milliseconds that the device took for them; `None` where time means nothing.
    ///
    /// **Errors** those of `work`, [`CudaError::Call`].
    fn time_ms(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Option<f32>, CudaError>;

    /// Puts down the launches, products, copies and zeros that `work` asks for, and does none of them. They keep the addresses and numbers
    /// that they were given; what lies at the addresses is looked at when they are replayed.
    ///
    /// Nothing else may be done inside, nor by another thread meanwhile: allocating, copying from and to the host, waiting and timing are
    /// errors, and what gives memory back makes the recording one. A unit may be loaded, which is done at once, but its kernels are compiled
    /// then, so work is better done once before it is recorded.
    ///
    /// **Errors** those of `work`, [`CudaError::Call`]; nothing is kept then.
    fn record(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Recorded, CudaError>;

    /// Starts recorded work, all of it in its order, after all work so far.
    ///
    /// # Safety
    /// All memory that the recorded work names is allocated still, and borrowed by nobody else: written if the work writes it.
    ///
    /// **Errors** [`CudaError::Call`], [`CudaError::Fault`].
    unsafe fn replay(&self, recorded: Recorded) -> Result<(), CudaError>;

    /// Gives a recording back. A replay that is under way goes on.
    fn forget(&self, recorded: Recorded);
}

//! The emulator: the kernels' own sources, compiled by g++ and run on the CPU with the semantics of blocks, warps and shared memory.
//!
//! It is there to prove kernels, not to be fast. What a GPU forgives or turns into a wrong number is a [`CudaError::Fault`] here that
//! says which thread of which block did what on which line: barriers and warp functions that a part of the threads does not reach,
//! shared memory touched outside its piece, read before it is written, or touched by two threads without a barrier between, global
//! memory touched outside a buffer, read before it is written, or touched by two threads of a launch of which nothing says who comes
//! first, asynchronous copies that a thread leaves behind, shared memory that the launch does not have, arguments that the kernel does
//! not take.
//!
//! It cannot show what depends on real time and real hardware: bank conflicts, coalescing, the rounding inside a tensor core and of
//! the special function unit. Global memory is watched in allocations of up to 16 MiB.
//!
//! The runtime (`cuda/emulator/runtime.cpp`) is one library, every unit another; both are kept beside the running program.

mod compiler;
mod memory;
mod product;
mod recording;
mod runtime;

use super::gate::{Gate, Shelf};
use super::{Arg, Driver, Launch, MOST_ARGS, Matmul, Module, Recorded, Unit};
use crate::CudaError;
use compiler::{Compiler, Kernels};
use memory::Memory;
use recording::{Open, Step};
use runtime::{Entry, Runtime};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Device memory unless [`Emulator::with_memory`] says otherwise.
const MEMORY_BYTES: usize = 2 << 30;
/// Most threads of a block, and most bytes of its shared memory (an H100's).
const MOST_THREADS: u32 = 1024;
const MOST_SHARED_BYTES: u32 = 227 * 1024;

/// A machine that runs kernels on the CPU and looks at everything they do.
pub struct Emulator {
    runtime: &'static Runtime,
    compiler: &'static Compiler,
    kernels: Mutex<Vec<Arc<Kernels>>>,
    memory: Mutex<Memory>,
    library: bool,
    gate: Gate,
    /// Put down so far by the recording that is being made.
    steps: Mutex<Vec<Step>>,
    recordings: Shelf<Arc<[Step]>>,
}

impl Emulator {
    /// A new machine with empty memory.
    ///
    /// **Errors** [`CudaError::NoEmulator`] without g++.
    pub fn new() -> Result<Emulator, CudaError> {
        let compiler = Compiler::get()?;
        let runtime = Runtime::get(compiler)?;
        let memory = Mutex::new(Memory::new(runtime, MEMORY_BYTES));
        Ok(Emulator {
            runtime,
            compiler,
            kernels: Mutex::default(),
            memory,
            library: true,
            gate: Gate::default(),
            steps: Mutex::default(),
            recordings: Shelf::default(),
        })
    }

    /// The same machine with this much device memory.
    pub fn with_memory(self, bytes: usize) -> Emulator {
        Emulator { memory: Mutex::new(Memory::new(self.runtime, bytes)), ..self }
    }

    /// The same machine without a library of matrix products, so that our own kernel must do them.
    pub fn without_library(self) -> Emulator {
        Emulator { library: false, ..self }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps(&self) -> MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a call down instead of doing it while this thread records.
    fn puts_down(&self, call: &str, step: impl FnOnce() -> Step) -> Result<bool, CudaError> {
        let recording = self.gate.puts_down(call)?;
        if recording {
            self.steps().push(step());
        }
        Ok(recording)
    }
}

/// What a kernel did wrong.
fn fault(kernel: &str, fault: String) -> CudaError {
    CudaError::Fault { kernel: kernel.into(), fault }
}

/// Refuses a launch that no GPU would do, or that is not what the kernel was written for.
fn check_launch(entry: &Entry, launch: Launch, args: &[Arg]) -> Result<(), String> {
    let Launch { grid, threads, shared_bytes } = launch;
    if threads != entry.threads {
        return Err(format!("launched with blocks of {threads} threads, written for {}", entry.threads));
    }
    if threads == 0 || !threads.is_multiple_of(32) || threads > MOST_THREADS {
        return Err(format!("blocks of {threads} threads: not a multiple of 32 from 32 to {MOST_THREADS}"));
    }
    if grid.contains(&0) || grid[0] >= 1 << 31 || grid[1] >= 1 << 16 || grid[2] >= 1 << 16 {
        return Err(format!("a grid of {grid:?} blocks: from 1 to 2^31 - 1, 65535 and 65535"));
    }
    if shared_bytes > MOST_SHARED_BYTES {
        return Err(format!("{shared_bytes} bytes of shared memory, a block has {MOST_SHARED_BYTES}"));
    }
    let kinds = entry.kinds();
    if args.len() > MOST_ARGS || args.len() != kinds.len() {
        return Err(format!("launched with {} arguments, it takes {}", args.len(), kinds.len()));
    }
    for (i, (arg, &kind)) in args.iter().zip(kinds).enumerate() {
        if runtime::kind(arg) != kind {
            let takes = runtime::KINDS.get(usize::from(kind)).unwrap_or(&"something else");
            return Err(format!("argument {i} is {arg:?}, the kernel takes {takes}"));
        }
    }
    Ok(())
}

// SAFETY: `allocate` hands out mapped memory that stays until `free` unmaps it.
unsafe impl Driver for Emulator {
    fn name(&self) -> String {
        "emulator on the CPU".into()
    }

    fn memory(&self) -> Result<(usize, usize), CudaError> {
        Ok(self.memory().free_and_total())
    }

    fn taken(&self, bytes: usize) -> usize {
        memory::taken(bytes)
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64, CudaError> {
        self.gate.refuse(|| format!("allocation of {bytes} bytes for {what}"))?;
        self.memory().allocate(what, bytes)
    }

    fn free(&self, address: u64) {
        if !self.gate.takes(address) {
            self.memory().free(address);
        }
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.gate.refuse(|| "upload".into())?;
        let memory = self.memory();
        memory.check("upload", to, from.len())?;
        self.runtime.note_written(to, from.len());
        // SAFETY: the range lies in an allocation, which cannot be freed while the lock is held; host memory is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<(), CudaError> {
        self.gate.refuse(|| "download".into())?;
        let memory = self.memory();
        memory.check("download", from, to.len())?;
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        if self.puts_down("copy", || Step::Copy { to, from, bytes })? {
            return Ok(());
        }
        let memory = self.memory();
        memory.check("copy", to, bytes)?;
        self.runtime.note_written(to, bytes);
        memory.check("copy", from, bytes)?;
        if to < from + bytes as u64 && from < to + bytes as u64 {
            return Err(CudaError::Call { call: "copy".into(), reason: "the ranges overlap".into() });
        }
        // SAFETY: as in `upload`; the ranges do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    fn zero(&self, to: u64, bytes: usize) -> Result<(), CudaError> {
        if self.puts_down("zero", || Step::Zero { to, bytes })? {
            return Ok(());
        }
        let memory = self.memory();
        memory.check("zero", to, bytes)?;
        self.runtime.note_written(to, bytes);
        // SAFETY: as in `upload`.
        unsafe { std::ptr::write_bytes(to as *mut u8, 0, bytes) };
        Ok(())
    }

    fn load(&self, unit: &Unit) -> Result<Module, CudaError> {
        let built = self.compiler.load(unit)?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.push(built);
        Ok(Module(kernels.len() - 1))
    }

    unsafe fn launch(&self, module: Module, kernel: &str, launch: Launch, args: &[Arg]) -> Result<(), CudaError> {
        let kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner)[module.0].clone();
        let Some(entry) = kernels.find(kernel) else {
            let reason = format!("{} has no kernel {kernel}", kernels.file());
            return Err(CudaError::Call { call: "launch".into(), reason });
        };
        check_launch(entry, launch, args).map_err(|text| fault(kernel, text))?;
        let step = || Step::Launch { module, kernel: kernel.into(), launch, args: args.to_vec() };
        if self.puts_down(kernel, step)? {
            return Ok(());
        }
        // SAFETY: the arguments are of the kernel's kinds; that they point to enough memory is the caller's promise, and where it does
        // not hold the guard pages answer.
        let outcome = unsafe { self.runtime.run(entry, kernels.files(), launch, args) };
        let memory = self.memory();
        outcome.map_err(|found| fault(kernel, found.describe(&memory, self.runtime, launch)))?;
        memory.find_stray_write().map_or(Ok(()), |text| Err(fault(kernel, text)))
    }

    unsafe fn matmul(&self, product: &Matmul) -> Result<bool, CudaError> {
        if self.library && !self.puts_down("matmul", || Step::Matmul(*product))? {
            let memory = self.memory();
            for (name, address, bytes) in product::extents(product) {
                memory.check(name, address, bytes)?;
            }
            // SAFETY: the matrices lie in allocations, which cannot be freed while the lock is held.
            unsafe { product::multiply(product) };
            let [.., (_, address, bytes)] = product::extents(product);
            self.runtime.note_written(address, bytes);
        }
        Ok(self.library)
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.gate.refuse(|| "synchronize".into())
    }

    fn time_ms(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Option<f32>, CudaError> {
        self.gate.refuse(|| "timing".into())?;
        work().map(|()| None)
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Recorded, CudaError> {
        let open = Open::begin(self)?;
        work()?;
        Ok(self.recordings.put(open.end()?.into()))
    }

    unsafe fn replay(&self, recorded: Recorded) -> Result<(), CudaError> {
        self.gate.refuse(|| "replay".into())?;
        let steps = self.recordings.get(recorded)?;
        // SAFETY: the caller's promise.
        steps.iter().try_for_each(|step| unsafe { step.run(self) })
    }

    fn forget(&self, recorded: Recorded) {
        self.recordings.take(recorded);
    }
}

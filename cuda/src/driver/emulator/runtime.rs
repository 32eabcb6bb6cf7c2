//! The runtime's functions (`cuda/emulator/runtime.cpp`), and a launch over them.

use super::compiler::Compiler;
use super::memory::Memory;
use crate::CudaError;
use crate::driver::{Arg, Launch, MOST_ARGS};
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Most host threads of a launch: each needs stacks for a whole block.
const MOST_WORKERS: usize = 8;

/// Number of the first launch: 0 is nobody and 1 the host, in what is known of memory.
const FIRST_LAUNCH: u32 = 2;

/// Words for the kinds of arguments, numbered as in `runtime.h`.
pub const KINDS: [&str; 5] = ["a pointer", "a u32 or int", "a u64", "a float", "a double"];

/// The number of an argument's kind.
pub fn kind(arg: &Arg) -> u8 {
    match arg {
        Arg::Address(_) => 0,
        Arg::U32(_) => 1,
        Arg::U64(_) => 2,
        Arg::F32(_) => 3,
        Arg::F64(_) => 4,
    }
}

/// A kernel in a unit's table.
#[repr(C)]
pub struct Entry {
    name: *const c_char,
    pub threads: u32,
    count: u32,
    kinds: *const u8,
    run: *const c_void,
}

// SAFETY: it is constant data of a library that is never closed.
unsafe impl Sync for Entry {}

impl Entry {
    pub fn is_last(&self) -> bool {
        self.name.is_null()
    }

    pub fn name(&self) -> &str {
        // SAFETY: a literal of the library.
        unsafe { CStr::from_ptr(self.name) }.to_str().unwrap_or_default()
    }

    /// The kinds of its parameters.
    pub fn kinds(&self) -> &[u8] {
        // SAFETY: as many are there as the kernel has parameters.
        unsafe { std::slice::from_raw_parts(self.kinds, self.count as usize) }
    }
}

#[repr(C)]
struct Job {
    entry: *const Entry,
    args: *const u64,
    files: *const u8,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    launch: u32,
}

/// What went wrong in a block; `runtime.h` says what the fields mean.
#[repr(C)]
struct RawFault {
    address: u64,
    pc: *const c_void,
    thread: u32,
    at_address: u32,
    taken: u32,
    text: [c_char; 500],
}

/// Stacks, shared memory and its shadow for one host thread.
struct Machine(*mut c_void);

// SAFETY: a machine is used by one thread at a time, whichever.
unsafe impl Send for Machine {}

/// The opened runtime.
pub struct Runtime {
    machine: unsafe extern "C" fn() -> *mut c_void,
    run: unsafe extern "C" fn(*mut c_void, *const Job, u64, *mut RawFault) -> bool,
    map: unsafe extern "C" fn(u64) -> u64,
    unmap: unsafe extern "C" fn(u64, u64),
    written: unsafe extern "C" fn(u64, u64),
    stray: unsafe extern "C" fn(u64, u64) -> i64,
    place: unsafe extern "C" fn(*const c_void, *mut c_char, u64, *mut u64) -> bool,
    /// The number of the next launch.
    launches: AtomicU32,
    /// Machines that nobody uses now.
    idle: Mutex<Vec<Machine>>,
    workers: usize,
}

/// A fault, and the block it was found in.
pub struct Found {
    block: Option<u64>,
    thread: u32,
    text: String,
    address: Option<u64>,
    pc: usize,
}

impl Found {
    fn of_launch(text: String) -> Found {
        Found { block: None, thread: 0, text, address: None, pc: 0 }
    }

    /// In words.
    pub fn describe(&self, memory: &Memory, runtime: &Runtime, launch: Launch) -> String {
        let mut text = self.text.clone();
        if let Some(address) = self.address {
            text = format!("{text} {}", memory.whereabouts(address));
        }
        if let Some(line) = runtime.line(self.pc) {
            text = format!("{text} ({line})");
        }
        let Some(block) = self.block else { return text };
        let [x, y, _] = launch.grid.map(u64::from);
        format!("block ({}, {}, {}), thread {}: {text}", block % x, block / x % y, block / x / y, self.thread)
    }
}

impl Runtime {
    /// The process's runtime.
    ///
    /// **Errors** [`CudaError::Compile`] if it cannot be built.
    pub fn get(compiler: &Compiler) -> Result<&'static Runtime, CudaError> {
        static RUNTIME: OnceLock<Result<Runtime, (String, String)>> = OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| {
            let library = compiler.open_runtime().map_err(|e| match e {
                CudaError::Compile { unit, log } => (unit, log),
                other => (String::new(), other.to_string()),
            })?;
            // SAFETY: the runtime was built from our own text.
            unsafe { Runtime::bind(library) }.map_err(|e| ("the emulator's runtime".into(), e.to_string()))
        });
        runtime.as_ref().map_err(|(unit, log)| CudaError::Compile { unit: unit.clone(), log: log.clone() })
    }

    /// # Safety
    /// The library is `runtime.cpp` of this version.
    unsafe fn bind(library: Library) -> Result<Runtime, libloading::Error> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
        // SAFETY: the functions have these types in `runtime.cpp`; the library is never closed.
        unsafe {
            let runtime = Runtime {
                machine: *library.get(b"emulator_machine\0")?,
                run: *library.get(b"emulator_run\0")?,
                map: *library.get(b"emulator_map\0")?,
                unmap: *library.get(b"emulator_unmap\0")?,
                written: *library.get(b"emulator_written\0")?,
                stray: *library.get(b"emulator_stray\0")?,
                place: *library.get(b"emulator_place\0")?,
                launches: AtomicU32::new(FIRST_LAUNCH),
                idle: Mutex::default(),
                workers,
            };
            let start = library.get::<unsafe extern "C" fn()>(b"emulator_start\0")?;
            start();
            std::mem::forget(library);
            Ok(runtime)
        }
    }

    pub fn map(&self, bytes: usize) -> Option<u64> {
        // SAFETY: it maps new memory.
        Some(unsafe { (self.map)(bytes as u64) }).filter(|&address| address != 0)
    }

    /// # Safety
    /// The memory is of [`Runtime::map`] with the same length, and nobody uses it.
    pub unsafe fn unmap(&self, address: u64, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { (self.unmap)(address, bytes as u64) }
    }

    /// Notes that the host has written memory.
    pub fn note_written(&self, address: u64, bytes: usize) {
        // SAFETY: it looks at what is known of memory, not at the memory.
        unsafe { (self.written)(address, bytes as u64) }
    }

    /// Distance of a written byte beside the memory, or 0.
    ///
    /// # Safety
    /// The memory is of [`Runtime::map`] with the same length.
    pub unsafe fn stray(&self, address: u64, bytes: usize) -> i64 {
        // SAFETY: the caller's promise.
        unsafe { (self.stray)(address, bytes as u64) }
    }

    /// File and line of an instruction, if binutils are there to tell.
    fn line(&self, pc: usize) -> Option<String> {
        let (mut file, mut offset) = ([0 as c_char; 4096], 0);
        // SAFETY: the buffer is as long as is said.
        if pc == 0 || !unsafe { (self.place)(pc as *const c_void, file.as_mut_ptr(), file.len() as u64, &mut offset) } {
            return None;
        }
        // SAFETY: the runtime has ended it with a zero.
        let file = unsafe { CStr::from_ptr(file.as_ptr()) }.to_str().ok()?;
        let output = Command::new("addr2line").args(["-s", "-e", file, &format!("{offset:#x}")]).output().ok()?;
        let line = String::from_utf8(output.stdout).ok()?;
        let line = line.split_whitespace().next()?;
        // A signal can also find the thread in the emulator's own functions.
        let file = line.split(':').next()?;
        (file.ends_with(".cu") || file.ends_with(".cuh")).then(|| line.to_string())
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Machine>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all blocks. The fault is that of the lowest block that has one.
    ///
    /// # Safety
    /// The arguments are of the kernel's kinds and point to enough memory; `files` ends with an empty name.
    pub unsafe fn run(&self, entry: &Entry, files: &[u8], launch: Launch, args: &[Arg]) -> Result<(), Found> {
        let mut words = [0_u64; MOST_ARGS];
        words.iter_mut().zip(args).for_each(|(word, arg)| *word = arg.bits());
        let Launch { grid, threads, shared_bytes } = launch;
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        let job =
            Job { entry, args: words.as_ptr(), files: files.as_ptr(), grid, threads, shared_bytes, launch: number };
        let blocks: u64 = grid.iter().map(|&n| u64::from(n)).product();
        let shared =
            Shared { job, blocks, next: AtomicU64::new(0), faulty: AtomicU64::new(u64::MAX), found: Mutex::default() };
        let workers = (self.workers as u64).min(blocks);
        std::thread::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|| self.work(&shared));
            }
            self.work(&shared);
        });
        let Progress { taken, found } = shared.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = found {
            return Err(found);
        }
        if shared_bytes > taken && taken > 0 {
            return Err(Found::of_launch(format!(
                "launched with {shared_bytes} bytes of shared memory, it took {taken}"
            )));
        }
        Ok(())
    }

    /// Runs blocks until there are none left, or one below has a fault.
    fn work(&self, shared: &Shared) {
        let idle = self.idle().pop();
        // SAFETY: it makes a new machine.
        let machine = idle.unwrap_or_else(|| Machine(unsafe { (self.machine)() }));
        loop {
            let block = shared.next.fetch_add(1, Ordering::Relaxed);
            if block >= shared.blocks || block > shared.faulty.load(Ordering::Relaxed) {
                break;
            }
            let mut fault =
                RawFault { address: 0, pc: std::ptr::null(), thread: 0, at_address: 0, taken: 0, text: [0; 500] };
            let fine = if machine.0.is_null() {
                fault.text[0] = b'?' as c_char;
                false
            } else {
                // SAFETY: the machine is this thread's until it is idle again; the job outlives the call.
                unsafe { (self.run)(machine.0, &shared.job, block, &mut fault) }
            };
            shared.note(block, fine, &fault);
        }
        if !machine.0.is_null() {
            self.idle().push(machine);
        }
    }
}

#[derive(Default)]
struct Progress {
    /// Most bytes of shared memory that a block took.
    taken: u32,
    found: Option<Found>,
}

/// What the host threads of one launch share.
struct Shared {
    job: Job,
    blocks: u64,
    next: AtomicU64,
    /// The lowest block with a fault so far.
    faulty: AtomicU64,
    found: Mutex<Progress>,
}

// SAFETY: the job's pointers are to data that outlives the launch and is only read.
unsafe impl Sync for Shared {}

impl Shared {
    fn note(&self, block: u64, fine: bool, fault: &RawFault) {
        if fine && fault.taken == 0 {
            return;
        }
        let mut progress = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if fine {
            progress.taken = progress.taken.max(fault.taken);
        } else if self.faulty.fetch_min(block, Ordering::Relaxed) > block {
            // SAFETY: the runtime has ended the text with a zero.
            let text = unsafe { CStr::from_ptr(fault.text.as_ptr()) }.to_string_lossy().into_owned();
            let address = (fault.at_address != 0).then_some(fault.address);
            progress.found =
                Some(Found { block: Some(block), thread: fault.thread, text, address, pc: fault.pc as usize });
        }
    }
}

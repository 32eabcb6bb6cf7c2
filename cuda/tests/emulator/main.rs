//! The emulator itself: kernels that do one thing wrong are found out, each with its line, and sound ones are left in peace.

mod faults;
mod memory;
mod recordings;
mod sound;
mod tiles;

use ragen_cuda::driver::{Arg, Driver, Emulator, Kind, Launch, Module, Source, Unit};
use ragen_cuda::{CudaError, Gpu};

/// A machine of the test's own; `None`, after saying why, without g++.
fn emulator() -> Option<Emulator> {
    Gpu::for_tests().and_then(|_| Emulator::new().ok())
}

/// Kernels of a source, and buffers for them.
struct Bench {
    emulator: Emulator,
    module: Module,
}

impl Bench {
    fn new(source: &'static Source, element: Kind) -> Option<Bench> {
        let emulator = emulator()?;
        let module = emulator.load(&Unit { source, element, head_dim: 0 }).unwrap_or_else(|e| panic!("{e}"));
        Some(Bench { emulator, module })
    }

    /// A buffer with these numbers.
    fn upload<T: bytemuck::Pod>(&self, what: &str, data: &[T]) -> Arg {
        let address = self.emulator.allocate(what, size_of_val(data)).unwrap();
        self.emulator.upload(address, bytemuck::cast_slice(data)).unwrap();
        Arg::Address(address)
    }

    /// A buffer that nobody has written.
    fn buffer<T>(&self, what: &str, len: usize) -> Arg {
        Arg::Address(self.emulator.allocate(what, len * size_of::<T>()).unwrap())
    }

    fn download<T: bytemuck::Pod>(&self, from: Arg, len: usize) -> Vec<T> {
        let Arg::Address(address) = from else { panic!("{from:?} is no buffer") };
        let mut data = vec![T::zeroed(); len];
        self.emulator.download(bytemuck::cast_slice_mut(&mut data), address).unwrap();
        data
    }

    fn try_launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        let launch = Launch { grid, threads, shared_bytes: shared };
        // SAFETY: what is wrong in these launches is what the emulator must find before harm is done.
        unsafe { self.emulator.launch(self.module, kernel, launch, args) }
    }

    fn launch(&self, kernel: &str, grid: [u32; 3], threads: u32, shared: u32, args: &[Arg]) {
        self.try_launch(kernel, grid, threads, shared, args).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// `file:line` of the line with a mark.
fn place(source: &Source, mark: &str) -> String {
    let line = source.text.lines().position(|line| line.ends_with(&format!("// mark: {mark}")));
    format!("{}:{}", source.file, 1 + line.unwrap_or_else(|| panic!("no line is marked {mark}")))
}

/// Numbers in [-1, 1), the same every time.
fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

//! The device: buffers, launches, products.

use crate::buffer::{Buffer, Holding, View, ViewMut};
use crate::driver::{
    Arg, Driver, Launch, Ledger, Matmul, Module, Nvidia, Onlooker, Recorded, Unit, Watched, taken_by_nvidia,
};
use crate::error::CudaError;
use crate::kernel::Kernel;
use bytemuck::Pod;
#[cfg(feature = "emulator")]
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// One device, opened. Cloning it is cheap and gives another handle of the same device.
#[derive(Clone)]
pub struct Gpu {
    driver: Arc<dyn Driver>,
    /// Units loaded so far; few, so they are searched in a row.
    units: Arc<Mutex<Vec<(Unit, Module)>>>,
    traffic: Arc<Counters>,
    holding: Arc<Holding>,
}

/// What has crossed between host and device.
#[derive(Default)]
struct Counters {
    to_device: AtomicU64,
    to_host: AtomicU64,
}

/// Bytes that have crossed between host and device since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the host to the device.
    pub to_device_bytes: u64,
    /// From the device to the host.
    pub to_host_bytes: u64,
}

/// Bytes of device memory in buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Now.
    pub now: usize,
    /// At most so far.
    pub most: usize,
}

impl Gpu {
    /// Opens the CUDA device `ordinal`.
    ///
    /// **Errors** [`CudaError::Unavailable`]: what is missing, where it was looked for, how to get it.
    pub fn open(ordinal: usize) -> Result<Gpu, CudaError> {
        Ok(Gpu::over(Arc::new(Nvidia::open(ordinal)?)))
    }

    /// The emulator: the same kernels, compiled by g++ and run on the CPU.
    ///
    /// **Errors** [`CudaError::NoEmulator`] without g++. **Panics** then where `RAGEN_REQUIRE_EMULATOR=1` says that no test may be skipped.
    #[cfg(feature = "emulator")]
    pub fn emulated() -> Result<Gpu, CudaError> {
        let emulator = crate::driver::Emulator::new();
        if let (Err(error), Some("1")) = (&emulator, std::env::var("RAGEN_REQUIRE_EMULATOR").ok().as_deref()) {
            panic!("the emulator is required here: {error}");
        }
        Ok(Gpu::over(Arc::new(emulator?)))
    }

    /// The emulator for tests, one for the process; `None`, after `skipped: why` on the error stream, without g++.
    ///
    /// **Panics** as [`Gpu::emulated`].
    #[cfg(feature = "emulator")]
    pub fn for_tests() -> Option<Gpu> {
        static GPU: std::sync::OnceLock<Option<Gpu>> = std::sync::OnceLock::new();
        let open = || {
            let gpu = Gpu::emulated();
            if let Err(error) = &gpu {
                // Not by `eprintln!`, whose words the harness keeps to itself when a test passes.
                let _ = writeln!(std::io::stderr(), "skipped: {error}");
            }
            gpu.ok()
        };
        GPU.get_or_init(open).clone()
    }

    /// The device behind a driver.
    pub fn over(driver: Arc<dyn Driver>) -> Gpu {
        Gpu { driver, units: Arc::default(), traffic: Arc::default(), holding: Arc::default() }
    }

    /// A machine that does nothing and counts as an NVIDIA GPU without end would, and its books.
    pub fn counting() -> (Gpu, Arc<Ledger>) {
        let ledger = Arc::new(Ledger::new(usize::MAX >> 1, taken_by_nvidia));
        (Gpu::over(ledger.clone()), ledger)
    }

    /// A machine that does nothing and counts memory as this one would hold it, and its books.
    pub fn counting_like(&self) -> (Gpu, Arc<Ledger>) {
        let driver = self.driver.clone();
        let ledger = Arc::new(Ledger::new(usize::MAX >> 1, move |bytes| driver.taken(bytes)));
        (Gpu::over(ledger.clone()), ledger)
    }

    /// The same device with somebody who looks on at its launches, and with counts of its own.
    pub fn watched(&self, onlooker: Arc<dyn Onlooker>) -> Gpu {
        Gpu::over(Arc::new(Watched { driver: self.driver.clone(), onlooker }))
    }

    /// What the device is, in words.
    pub fn name(&self) -> String {
        self.driver.name()
    }

    /// What has crossed between host and device so far.
    pub fn traffic(&self) -> Traffic {
        let Counters { to_device, to_host } = &*self.traffic;
        Traffic { to_device_bytes: to_device.load(Relaxed), to_host_bytes: to_host.load(Relaxed) }
    }

    /// Bytes that buffers of this device hold, as its driver rounds them.
    pub fn held(&self) -> HeldBytes {
        HeldBytes { now: self.holding.now.load(Relaxed), most: self.holding.most.load(Relaxed) }
    }

    /// (free, total) bytes of device memory.
    ///
    /// **Errors** [`CudaError::Call`].
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.driver.memory()
    }

    /// A buffer of `len` zeros; `what` names it when memory is short.
    ///
    /// **Errors** [`CudaError::Memory`], [`CudaError::Call`].
    pub fn zeros<T: Pod>(&self, what: &str, len: usize) -> Result<Buffer<T>, CudaError> {
        let mut buffer = self.buffer(what, len)?;
        self.zero(buffer.view_mut())?;
        Ok(buffer)
    }

    /// A buffer with a copy of host memory.
    ///
    /// **Errors** [`CudaError::Memory`], [`CudaError::Call`].
    pub fn upload<T: Pod>(&self, what: &str, data: &[T]) -> Result<Buffer<T>, CudaError> {
        let mut buffer = self.buffer(what, data.len())?;
        self.write(buffer.view_mut(), data)?;
        Ok(buffer)
    }

    /// A buffer with undefined contents.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn buffer<T: Pod>(&self, what: &str, len: usize) -> Result<Buffer<T>, CudaError> {
        Buffer::new(&self.driver, &self.holding, what, len)
    }

    /// Copies host memory into device memory.
    ///
    /// **Panics** if the lengths differ.
    ///
    /// **Errors** [`CudaError::Call`].
    pub fn write<T: Pod>(&self, to: ViewMut<'_, T>, from: &[T]) -> Result<(), CudaError> {
        assert_eq!(to.len(), from.len());
        self.traffic.to_device.fetch_add(size_of_val(from) as u64, Relaxed);
        if from.is_empty() { Ok(()) } else { self.driver.upload(to.address, bytemuck::cast_slice(from)) }
    }

    /// Copies device memory into host memory, once all work so far is done.
    ///
    /// **Panics** if the lengths differ.
    ///
    /// **Errors** [`CudaError::Call`], [`CudaError::Fault`].
    pub fn read<T: Pod>(&self, to: &mut [T], from: View<'_, T>) -> Result<(), CudaError> {
        assert_eq!(to.len(), from.len());
        self.traffic.to_host.fetch_add(size_of_val(to) as u64, Relaxed);
        if to.is_empty() { Ok(()) } else { self.driver.download(bytemuck::cast_slice_mut(to), from.address) }
    }

    /// A copy of device memory in a new vector, once all work so far is done.
    ///
    /// **Errors** [`CudaError::Call`], [`CudaError::Fault`].
    pub fn to_vec<T: Pod>(&self, from: View<'_, T>) -> Result<Vec<T>, CudaError> {
        let mut to = vec![T::zeroed(); from.len()];
        self.read(&mut to, from)?;
        Ok(to)
    }

    /// Copies within the device.
    ///
    /// **Panics** if the lengths differ.
    ///
    /// **Errors** [`CudaError::Call`].
    pub fn copy<T: Pod>(&self, to: ViewMut<'_, T>, from: View<'_, T>) -> Result<(), CudaError> {
        assert_eq!(to.len(), from.len());
        if to.is_empty() { Ok(()) } else { self.driver.copy(to.address, from.address, to.len() * size_of::<T>()) }
    }

    /// Sets all elements to zero.
    ///
    /// **Errors** [`CudaError::Call`].
    pub fn zero<T: Pod>(&self, to: ViewMut<'_, T>) -> Result<(), CudaError> {
        if to.is_empty() { Ok(()) } else { self.driver.zero(to.address, to.len() * size_of::<T>()) }
    }

    /// Waits for all work so far and reports what went wrong in it.
    ///
    /// **Errors** [`CudaError::Call`], [`CudaError::Fault`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.synchronize()
    }

    /// Milliseconds that the device takes for what `work` starts; `None` on the emulator, where time means nothing.
    ///
    /// **Errors** those of `work`, [`CudaError::Call`].
    pub fn time_ms(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Option<f32>, CudaError> {
        self.driver.time_ms(work)
    }

    /// Puts down the launches, products, copies and zeros that `work` asks for, to be started again and again at the cost of one call.
    /// None of them is done by this. They keep the views and numbers that they were given; what lies in the views is looked at when the
    /// recording is replayed, so what shall change from replay to replay lies in device memory.
    ///
    /// Inside, allocating, [`Gpu::write`], [`Gpu::read`], waiting, timing and replaying are errors, and dropping a buffer makes the recording
    /// one. No other thread may use the device meanwhile. Do the work once before it is recorded, so that its kernels are there: one that is
    /// missing is compiled and loaded inside, which takes its time and does no harm.
    ///
    /// **Errors** those of `work`, [`CudaError::Call`]; the device goes on in any case.
    pub fn record(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Recording, CudaError> {
        Ok(Recording { driver: self.driver.clone(), recorded: self.driver.record(work)? })
    }

    /// Compiles and loads a unit, or finds it loaded.
    ///
    /// **Errors** [`CudaError::Compile`].
    pub fn load(&self, unit: Unit) -> Result<Module, CudaError> {
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, module)) = units.iter().find(|(loaded, _)| *loaded == unit) {
            return Ok(*module);
        }
        let module = self.driver.load(&unit)?;
        units.push((unit, module));
        Ok(module)
    }

    /// Starts `kernel` of the unit that it and `unit`'s numbers name; nothing when the grid is empty.
    ///
    /// # Safety
    /// `args` are what the kernel declares, and every address is as large as the kernel touches: the launchers in [`crate::kernels`]
    /// check their views' lengths before they come here.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        unit: Unit,
        grid: [usize; 3],
        shared_bytes: usize,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let module = self.load(unit)?;
        let grid = grid.map(|blocks| u32::try_from(blocks).expect("a grid of fewer than 2^32 blocks"));
        let launch = Launch { grid, threads: kernel.threads, shared_bytes: shared_bytes as u32 };
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(module, kernel.name, launch, args) }
    }

    /// A matrix product by the library; false when there is none.
    ///
    /// # Safety
    /// As for [`Driver::matmul`].
    pub(crate) unsafe fn matmul(&self, product: &Matmul) -> Result<bool, CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.matmul(product) }
    }
}

/// Work that was put down by [`Gpu::record`]; forgotten when it is dropped.
pub struct Recording {
    driver: Arc<dyn Driver>,
    recorded: Recorded,
}

impl Recording {
    /// Starts the recorded work, after all work so far.
    ///
    /// # Safety
    /// All memory that the work named when it was recorded is alive, at the place where it was, and not borrowed otherwise: a recording
    /// holds addresses and no buffers.
    ///
    /// **Errors** those of the launches: [`CudaError::Call`], [`CudaError::Fault`].
    pub unsafe fn replay(&self) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.replay(self.recorded) }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.driver.forget(self.recorded);
    }
}

//! The CUDA driver: one device, its primary context, one stream.

mod context;
mod graph;
mod memory;

use super::cache::Cache;
use super::cublaslt::{self, CublasLt};
use super::gate::{Gate, Shelf};
use super::nvrtc::{Arch, Nvrtc};
use super::{Arg, Driver, Kind, Launch, MOST_ARGS, Matmul, Module, Recorded, Unit, libraries};
use crate::CudaError;
use context::{Context, STAGING_BYTES, Staging, Stream};
use cudarc::driver::sys;
use graph::{Capture, Graph};
use memory::Memory;
pub use memory::taken;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Dynamic shared memory that every kernel may have; more must be asked for.
const ORDINARY_SHARED_BYTES: u32 = 48 << 10;

/// A GPU that can be used: nothing is held of it yet.
pub struct Probe {
    device: sys::CUdevice,
    name: String,
    arch: Arch,
    /// (12, 8) of a driver for CUDA 12.8.
    driver: (u32, u32),
    /// Shared memory that a block can have at most.
    shared_bytes: u32,
    /// Whether memory can be had in the order of a stream.
    pools: bool,
    nvrtc: Nvrtc,
}

impl Probe {
    /// Looks at the device `ordinal`, and for what is needed to use it.
    ///
    /// **Errors** [`CudaError::Unavailable`] with the reason.
    pub fn new(ordinal: usize) -> Result<Probe, CudaError> {
        libraries::DRIVER.load(1)?;
        let unavailable = |reason: String| CudaError::Unavailable { reason };
        let said = |error: CudaError| unavailable(error.to_string());
        let (mut version, mut count, mut device, mut name) = (0, 0, 0, [0_u8; 128]);
        // SAFETY: the driver is loaded; every pointer is to a local, `name` with its length.
        unsafe {
            check("cuInit", sys::cuInit(0)).map_err(said)?;
            check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version)).map_err(said)?;
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count)).map_err(said)?;
            if ordinal >= count.max(0) as usize {
                return Err(unavailable(format!(
                    "GPU {ordinal} was asked for and the driver knows {count}, counted from 0"
                )));
            }
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32)).map_err(said)?;
            let length = name.len() as i32;
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr().cast(), length, device)).map_err(said)?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the value is a local, the device is the driver's.
            check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })
                .map_err(said)?;
            Ok(value as u32)
        };
        use sys::CUdevice_attribute as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let arch = Arch(10 * major + minor);
        if arch < Arch::OLDEST {
            let oldest = Arch::OLDEST;
            return Err(unavailable(format!("{name} is {arch}, and the kernels need {oldest} (Ampere) or newer")));
        }
        let driver = (version as u32 / 1000, version as u32 % 1000 / 10);
        let nvrtc = Nvrtc::open(driver.0)?;
        let shared_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let pools = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0;
        Ok(Probe { device, name, arch, driver, shared_bytes, pools, nvrtc })
    }
}

/// A loaded unit.
struct Loaded {
    module: sys::CUmodule,
    element: Kind,
    functions: Vec<Function>,
}

struct Function {
    name: String,
    handle: sys::CUfunction,
    /// Dynamic shared memory that it may have.
    shared_bytes: u32,
}

/// An NVIDIA GPU behind the trait.
pub struct Nvidia {
    probe: Probe,
    cache: Cache,
    modules: Mutex<Vec<Loaded>>,
    /// The library of products, or why there is none.
    products: Result<Mutex<CublasLt>, String>,
    gate: Gate,
    graphs: Shelf<Graph>,
    memory: Memory,
    // Given back in this order, the context last.
    staging: Mutex<Staging>,
    stream: Stream,
    context: Context,
}

// SAFETY: the driver's handles may be used by any thread; every call first makes the context the thread's own, and what
// changes lies behind a lock.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

impl Nvidia {
    /// Opens a device.
    ///
    /// **Errors** [`CudaError::Unavailable`], [`CudaError::Call`].
    pub fn open(ordinal: usize) -> Result<Nvidia, CudaError> {
        let probe = Probe::new(ordinal)?;
        let context = Context::retain(probe.device)?;
        context.enter()?;
        let stream = Stream::new()?;
        let staging = Mutex::new(Staging::new()?);
        let mut nvidia = Nvidia {
            memory: Memory::new(probe.device, probe.pools, stream.0)?,
            probe,
            cache: Cache::of_user(),
            modules: Mutex::default(),
            products: Err(String::new()),
            gate: Gate::default(),
            graphs: Shelf::default(),
            staging,
            stream,
            context,
        };
        // Without the library our own kernel multiplies; the device's name says so, and why.
        nvidia.products = nvidia.library().map_err(|error| match error {
            CudaError::Unavailable { reason } => reason,
            other => other.to_string(),
        });
        Ok(nvidia)
    }

    /// The library of products, with its workspace.
    fn library(&self) -> Result<Mutex<CublasLt>, CudaError> {
        libraries::CUBLASLT.load(self.probe.driver.0)?;
        let workspace = self.memory.allocate("the workspace of cuBLASLt", cublaslt::WORKSPACE_BYTES)?;
        CublasLt::new(workspace).map(Mutex::new).inspect_err(|_| self.memory.free(workspace))
    }

    /// The kernel of a module, allowed so much dynamic shared memory.
    fn function(&self, module: Module, kernel: &str, shared_bytes: u32) -> Result<sys::CUfunction, CudaError> {
        let mut modules = lock(&self.modules);
        let loaded = &mut modules[module.0];
        if shared_bytes > self.probe.shared_bytes {
            let Probe { name, shared_bytes: most, .. } = &self.probe;
            let less = if loaded.element == Kind::F32 { "; use model.dtype=bf16, which needs less" } else { "" };
            let reason = format!(
                "a block of it needs {shared_bytes} bytes of shared memory, and on {name} it can have {most}{less}"
            );
            return Err(CudaError::SharedMemory { kernel: kernel.into(), reason });
        }
        let at = match loaded.functions.iter().position(|function| function.name == kernel) {
            Some(at) => at,
            None => {
                let (name, mut handle) = (CString::new(kernel).expect("a name without a zero byte"), null_mut());
                // SAFETY: the module is loaded, the name ends in zero, the handle is a local.
                let result = unsafe { sys::cuModuleGetFunction(&mut handle, loaded.module, name.as_ptr()) };
                check(format_args!("cuModuleGetFunction of {kernel}"), result)?;
                loaded.functions.push(Function {
                    name: kernel.to_string(),
                    handle,
                    shared_bytes: ORDINARY_SHARED_BYTES,
                });
                loaded.functions.len() - 1
            }
        };
        let function = &mut loaded.functions[at];
        if shared_bytes > function.shared_bytes {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a loaded module.
            let result = unsafe { sys::cuFuncSetAttribute(function.handle, attribute, shared_bytes as i32) };
            check(format_args!("cuFuncSetAttribute of {kernel} to {shared_bytes} bytes of shared memory"), result)?;
            function.shared_bytes = shared_bytes;
        }
        Ok(function.handle)
    }

    /// Ends a recording, and gives back the memory that was returned meanwhile.
    fn open_gate(&self) -> Result<(), CudaError> {
        let (returned, outcome) = self.gate.open();
        returned.into_iter().for_each(|address| self.free(address));
        outcome
    }

    /// Waits; the context is the thread's.
    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is ours.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream.0) })
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        let _ = self.wait();
        if let Ok(products) = std::mem::replace(&mut self.products, Err(String::new())) {
            let workspace = lock(&products).workspace();
            drop(products);
            self.memory.free(workspace);
        }
        self.graphs.take_all().into_iter().for_each(Graph::destroy);
        for loaded in lock(&self.modules).drain(..) {
            // SAFETY: all work is done; each is unloaded once.
            unsafe { sys::cuModuleUnload(loaded.module) };
        }
        let _ = self.wait();
        self.memory.close();
    }
}

// SAFETY: the driver gives as many bytes as it is asked for, until they are freed.
unsafe impl Driver for Nvidia {
    fn name(&self) -> String {
        let Probe { name, arch, driver, nvrtc, .. } = &self.probe;
        let products = match &self.products {
            Ok(_) => format!("cuBLASLt {}", CublasLt::version()),
            Err(reason) => format!("no cuBLASLt ({reason})"),
        };
        let (major, minor) = nvrtc.version;
        format!("{name} ({arch}), driver for CUDA {}.{}, NVRTC {major}.{minor}, {products}", driver.0, driver.1)
    }

    fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.context.enter()?;
        self.memory.free_and_total()
    }

    fn taken(&self, bytes: usize) -> usize {
        taken(bytes)
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64, CudaError> {
        self.gate.refuse(|| format!("allocation of {bytes} bytes for {what}"))?;
        self.context.enter()?;
        self.memory.allocate(what, bytes)
    }

    fn free(&self, address: u64) {
        if !self.gate.takes(address) && self.context.enter().is_ok() {
            self.memory.free(address);
        }
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.gate.refuse(|| "upload".into())?;
        self.context.enter()?;
        let copy = |from: *const u8, bytes| {
            // SAFETY: `from` has so many bytes; `to` is the caller's promise.
            check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.stream.0) })
        };
        if from.len() > STAGING_BYTES {
            copy(from.as_ptr(), from.len())?;
            // The caller's memory may be gone after this call.
            return self.wait();
        }
        let mut staging = lock(&self.staging);
        if staging.used + from.len() > STAGING_BYTES {
            self.wait()?;
            staging.used = 0;
        }
        // SAFETY: there is room, and no copy that is under way reads it: the last wait came after all copies from there.
        let place = unsafe {
            let place = staging.memory.add(staging.used);
            place.copy_from_nonoverlapping(from.as_ptr(), from.len());
            place
        };
        staging.used = (staging.used + from.len()).next_multiple_of(64);
        copy(place, from.len())
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<(), CudaError> {
        self.gate.refuse(|| "download".into())?;
        self.context.enter()?;
        // SAFETY: `to` has so many bytes and is not touched before the wait; `from` is the caller's promise.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.stream.0) };
        check("cuMemcpyDtoHAsync", result)?;
        self.wait()
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.gate.puts_down("copy")?;
        self.context.enter()?;
        // SAFETY: both are memory of this device, by the caller's promise.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.0) })
    }

    fn zero(&self, to: u64, bytes: usize) -> Result<(), CudaError> {
        self.gate.puts_down("zero")?;
        self.context.enter()?;
        // SAFETY: as above.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to, 0, bytes, self.stream.0) })
    }

    fn load(&self, unit: &Unit) -> Result<Module, CudaError> {
        let Probe { arch, driver, nvrtc, .. } = &self.probe;
        let cubin = nvrtc.cubin(unit, *arch, &self.cache)?;
        self.context.enter()?;
        let mut module = null_mut();
        // SAFETY: a whole cubin; the driver copies it.
        let result = unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) };
        check(format_args!("cuModuleLoadData of {unit}"), result).map_err(|error| match error {
            CudaError::Call { call, reason } if nvrtc.version > *driver => {
                let newer = "NVRTC is newer than the driver; install one of the driver's version or a newer driver";
                CudaError::Call { call, reason: format!("{reason} ({newer})") }
            }
            other => other,
        })?;
        let mut modules = lock(&self.modules);
        modules.push(Loaded { module, element: unit.element, functions: Vec::new() });
        Ok(Module(modules.len() - 1))
    }

    unsafe fn launch(&self, module: Module, kernel: &str, launch: Launch, args: &[Arg]) -> Result<(), CudaError> {
        self.gate.puts_down(kernel)?;
        self.context.enter()?;
        let function = self.function(module, kernel, launch.shared_bytes)?;
        if args.len() > MOST_ARGS {
            return Err(failed(
                &format!("launch of {kernel}"),
                format!("{} arguments, {MOST_ARGS} at most", args.len()),
            ));
        }
        let (mut values, mut pointers) = ([0_u64; MOST_ARGS], [null_mut::<c_void>(); MOST_ARGS]);
        for ((arg, value), pointer) in args.iter().zip(&mut values).zip(&mut pointers) {
            *value = arg.bits();
            *pointer = (&raw mut *value).cast();
        }
        let ([x, y, z], threads, shared) = (launch.grid, launch.threads, launch.shared_bytes);
        // SAFETY: each argument has a value of its width, read during the call (they are the kernel's by the caller's promise).
        let result = unsafe {
            sys::cuLaunchKernel(
                function,
                x,
                y,
                z,
                threads,
                1,
                1,
                shared,
                self.stream.0,
                pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        check(format_args!("cuLaunchKernel of {kernel}"), result)
    }

    unsafe fn matmul(&self, product: &Matmul) -> Result<bool, CudaError> {
        let Ok(products) = &self.products else { return Ok(false) };
        self.gate.puts_down("matmul")?;
        self.context.enter()?;
        // SAFETY: the caller's promise; the stream is this context's.
        unsafe { lock(products).multiply(product, self.stream.0.cast()) }
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.gate.refuse(|| "synchronize".into())?;
        self.context.enter()?;
        self.wait()
    }

    fn time_ms(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Option<f32>, CudaError> {
        self.gate.refuse(|| "timing".into())?;
        self.context.enter()?;
        let (begin, end) = (Event::new()?, Event::new()?);
        begin.record(self.stream.0)?;
        work()?;
        end.record(self.stream.0)?;
        // SAFETY: the event is ours.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(end.0) })?;
        begin.milliseconds_to(&end).map(Some)
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Recorded, CudaError> {
        self.context.enter()?;
        let capture = Capture::begin(self)?;
        work()?;
        Ok(self.graphs.put(capture.end()?))
    }

    unsafe fn replay(&self, recorded: Recorded) -> Result<(), CudaError> {
        self.gate.refuse(|| "replay".into())?;
        let graph = self.graphs.get(recorded)?;
        self.context.enter()?;
        graph.launch(self.stream.0)
    }

    fn forget(&self, recorded: Recorded) {
        if let (Some(graph), Ok(())) = (self.graphs.take(recorded), self.context.enter()) {
            graph.destroy();
        }
    }
}

/// A point in the stream.
struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Event, CudaError> {
        let mut event = null_mut();
        // SAFETY: the event is a local; flags 0 let it take the time.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, 0) })?;
        Ok(Event(event))
    }

    fn record(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: both are of the current context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream) })
    }

    fn milliseconds_to(&self, end: &Event) -> Result<f32, CudaError> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
        let mut milliseconds = 0.0;
        // The bindings only have the function's second version, which drivers before 12.8 lack; every driver has the first.
        // SAFETY: the type is the driver's documented one, and both events were recorded.
        let result = unsafe {
            let elapsed = sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0");
            let elapsed = elapsed.map_err(|error| failed("cuEventElapsedTime", error.to_string()))?;
            elapsed(&mut milliseconds, self.0, end.0)
        };
        check("cuEventElapsedTime", result)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(call: &str, reason: String) -> CudaError {
    CudaError::Call { call: call.to_string(), reason }
}

/// The driver's own words for what went wrong, with the name that one can search for.
fn check(call: impl std::fmt::Display, result: sys::CUresult) -> Result<(), CudaError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver answers every number that it knows with a text of its own that lasts, and leaves the rest alone.
    let words = unsafe {
        sys::cuGetErrorString(result, &mut text);
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
    };
    Err(failed(&call.to_string(), format!("{words} ({result:?})")))
}

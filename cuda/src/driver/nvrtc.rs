//! NVRTC: kernels compiled while the program runs, for the device that is there. It needs no GPU.
//!
//! The product is machine code (a cubin), not PTX: a driver refuses PTX that is newer than itself, and the code that runs is the code
//! whose registers and spills were checked.

use super::cache::{Cache, content_hash};
use super::{Source, Unit, libraries};
use crate::CudaError;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::Path;

/// What the kernels mean on a GPU.
const PRELUDE: Source = Source { file: "device.cuh", text: include_str!("../../kernels/device.cuh") };

/// What every unit is compiled with, besides its architecture.
///
/// - `--fmad=false`: a fused multiply-add is where a kernel writes one, as on the CPU and under the emulator.
/// - `-default-device`: lambdas and templates run on the device without saying so.
/// - `--ptxas-options=-v`: the log tells registers, frames and spills.
///
/// Division and square root are rounded correctly and small numbers are kept: those are the defaults.
pub const FLAGS: &[&str] = &["--std=c++17", "--fmad=false", "-default-device", "--ptxas-options=-v"];

/// A kind of GPU: 90 is `sm_90`, compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch(pub u32);

impl Arch {
    /// The oldest that has what the kernels use: asynchronous copies and tensor cores for bf16.
    pub const OLDEST: Arch = Arch(80);

    /// What to compile for, for this device: itself, or else the nearest older one of its family, whose code it runs.
    fn among(self, supported: &[u32]) -> Option<Arch> {
        supported.iter().copied().filter(|arch| arch / 10 == self.0 / 10 && *arch <= self.0).max().map(Arch)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

/// A compiled unit.
pub struct Compiled {
    /// Machine code.
    pub cubin: Vec<u8>,
    /// What came before it, as text.
    pub ptx: String,
    /// What the compiler and the assembler said: warnings, and of each kernel its registers, frame and spills.
    pub log: String,
}

/// Declares what is used of NVRTC, as its header does. The bindings would take whichever library the system's loader finds first by a list
/// of names; these are of the library that was chosen.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// NVRTC's functions, of one opened library.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// # Safety
            /// The library is NVRTC, and is never closed.
            unsafe fn of(library: &libloading::Library) -> Result<Functions, libloading::Error> {
                // SAFETY: the types are those of NVRTC's header.
                unsafe { Ok(Functions { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)* }) }
            }
        }
    };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int) -> nvrtcResult;
    nvrtcGetNumSupportedArchs(*mut c_int) -> nvrtcResult;
    nvrtcGetSupportedArchs(*mut c_int) -> nvrtcResult;
    nvrtcGetErrorString(nvrtcResult) -> *const c_char;
    nvrtcCreateProgram(*mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> nvrtcResult;
    nvrtcDestroyProgram(*mut nvrtcProgram) -> nvrtcResult;
    nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult;
    nvrtcGetProgramLogSize(nvrtcProgram, *mut usize) -> nvrtcResult;
    nvrtcGetProgramLog(nvrtcProgram, *mut c_char) -> nvrtcResult;
    nvrtcGetCUBINSize(nvrtcProgram, *mut usize) -> nvrtcResult;
    nvrtcGetCUBIN(nvrtcProgram, *mut c_char) -> nvrtcResult;
    nvrtcGetPTXSize(nvrtcProgram, *mut usize) -> nvrtcResult;
    nvrtcGetPTX(nvrtcProgram, *mut c_char) -> nvrtcResult;
}

/// The compiler.
pub struct Nvrtc {
    functions: Functions,
    /// Its version, (13, 0).
    pub version: (u32, u32),
    /// Architectures that it knows.
    supported: Vec<u32>,
}

impl Nvrtc {
    /// The one of this machine, no newer than the driver's major version where there is a choice.
    ///
    /// **Errors** [`CudaError::Unavailable`].
    pub fn open(newest: u32) -> Result<Nvrtc, CudaError> {
        Nvrtc::of(libraries::NVRTC.load(newest)?)
    }

    /// The one in a folder.
    ///
    /// **Errors** [`CudaError::Unavailable`].
    pub fn open_in(folder: &Path) -> Result<Nvrtc, CudaError> {
        Nvrtc::of(libraries::NVRTC.load_in(folder)?)
    }

    fn of(library: &'static libloading::Library) -> Result<Nvrtc, CudaError> {
        // SAFETY: it is NVRTC.
        let functions = unsafe { Functions::of(library) };
        let functions =
            functions.map_err(|error| CudaError::Unavailable { reason: format!("NVRTC is too old: {error}") })?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: every pointer is to a local that lives through its call, `supported` as long as it says.
        let supported = unsafe {
            functions.check("nvrtcVersion", (functions.nvrtcVersion)(&mut major, &mut minor))?;
            functions.check("nvrtcGetNumSupportedArchs", (functions.nvrtcGetNumSupportedArchs)(&mut count))?;
            let mut supported = vec![0; count.max(0) as usize];
            functions.check("nvrtcGetSupportedArchs", (functions.nvrtcGetSupportedArchs)(supported.as_mut_ptr()))?;
            supported
        };
        let supported = supported.into_iter().map(|arch| arch as u32).collect();
        Ok(Nvrtc { functions, version: (major as u32, minor as u32), supported })
    }

    /// Compiles a unit for a device of `arch`.
    ///
    /// **Errors** [`CudaError::Compile`] with the compiler's log; [`CudaError::Unavailable`] for a device that it does not know.
    pub fn compile(&self, unit: &Unit, arch: Arch) -> Result<Compiled, CudaError> {
        let options = self.options(arch)?;
        self.functions.compile(&unit.to_string(), &unit.text(&PRELUDE), &options)
    }

    /// The machine code of a unit, from the cache if it is there.
    ///
    /// **Errors** as [`Nvrtc::compile`].
    pub fn cubin(&self, unit: &Unit, arch: Arch, cache: &Cache) -> Result<Vec<u8>, CudaError> {
        let key = self.key(unit, arch)?;
        if let Some(cubin) = cache.get(key, "cubin") {
            return Ok(cubin);
        }
        let cubin = self.compile(unit, arch)?.cubin;
        cache.put(key, "cubin", &cubin);
        Ok(cubin)
    }

    /// What stands for a compiled unit in a cache: its text, the options and the compiler's version.
    ///
    /// **Errors** [`CudaError::Unavailable`] for a device that it does not know.
    pub fn key(&self, unit: &Unit, arch: Arch) -> Result<u128, CudaError> {
        let (text, options) = (unit.text(&PRELUDE), self.options(arch)?);
        let version = format!("NVRTC {}.{}", self.version.0, self.version.1);
        let parts =
            [version.as_bytes(), text.as_bytes()].into_iter().chain(options.iter().map(|option| option.as_bytes()));
        Ok(content_hash(parts))
    }

    fn options(&self, arch: Arch) -> Result<Vec<String>, CudaError> {
        let target = arch.among(&self.supported).ok_or_else(|| {
            let (major, minor) = self.version;
            CudaError::Unavailable {
                reason: format!("NVRTC {major}.{minor} does not know {arch}; install a newer one"),
            }
        })?;
        let flags = FLAGS.iter().map(|flag| flag.to_string());
        Ok(std::iter::once(format!("--gpu-architecture={target}")).chain(flags).collect())
    }
}

/// A program of NVRTC's, destroyed at the end.
struct Program<'a>(nvrtcProgram, &'a Functions);

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: it was created and is destroyed once.
        unsafe { (self.1.nvrtcDestroyProgram)(&mut self.0) };
    }
}

impl Functions {
    fn compile(&self, unit: &str, text: &str, options: &[String]) -> Result<Compiled, CudaError> {
        let no_zero = |text: &str| CString::new(text).expect("a kernel source without a zero byte");
        let text = no_zero(text);
        let options: Vec<CString> = options.iter().map(|option| no_zero(option)).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let (mut program, none) = (Program(std::ptr::null_mut(), self), std::ptr::null());
        // SAFETY: the strings outlive the program, which is created first and used by this thread alone; each buffer is as long as NVRTC
        // says.
        unsafe {
            let created = (self.nvrtcCreateProgram)(&mut program.0, text.as_ptr(), c"unit.cu".as_ptr(), 0, none, none);
            self.check("nvrtcCreateProgram", created)?;
            let result = (self.nvrtcCompileProgram)(program.0, pointers.len() as i32, pointers.as_ptr());
            let log = words(&self.output(program.0, self.nvrtcGetProgramLogSize, self.nvrtcGetProgramLog)?);
            if result != nvrtcResult::NVRTC_SUCCESS {
                let log = if log.is_empty() { self.said(result) } else { log };
                return Err(CudaError::Compile { unit: unit.to_string(), log });
            }
            let cubin = self.output(program.0, self.nvrtcGetCUBINSize, self.nvrtcGetCUBIN)?;
            let ptx = words(&self.output(program.0, self.nvrtcGetPTXSize, self.nvrtcGetPTX)?);
            Ok(Compiled { cubin, ptx, log })
        }
    }

    /// What a compiled program has to give: first its size, then itself.
    ///
    /// # Safety
    /// The program exists, and `get` writes at most as much as `size` says.
    unsafe fn output(
        &self,
        program: nvrtcProgram,
        size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, CudaError> {
        let mut bytes = 0;
        // SAFETY: the caller's promise.
        unsafe {
            self.check("asking NVRTC for a size", size(program, &mut bytes))?;
            let mut data = vec![0_u8; bytes];
            self.check("asking NVRTC for its product", get(program, data.as_mut_ptr().cast()))?;
            Ok(data)
        }
    }

    fn said(&self, result: nvrtcResult) -> String {
        // SAFETY: NVRTC answers every number with a text of its own that lasts.
        unsafe { CStr::from_ptr((self.nvrtcGetErrorString)(result)) }.to_string_lossy().into_owned()
    }

    fn check(&self, call: &str, result: nvrtcResult) -> Result<(), CudaError> {
        if result == nvrtcResult::NVRTC_SUCCESS {
            Ok(())
        } else {
            Err(CudaError::Call { call: call.to_string(), reason: self.said(result) })
        }
    }
}

/// Text up to the zero that ends it.
fn words(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Kind;

    #[test]
    fn a_device_runs_code_of_its_family_up_to_itself() {
        let known = [75, 80, 86, 87, 89, 90, 100, 120];
        let choice = |arch| Arch(arch).among(&known).map(|arch| arch.to_string());
        assert_eq!(choice(80).unwrap(), "sm_80");
        assert_eq!(choice(90).unwrap(), "sm_90");
        assert_eq!(choice(103).unwrap(), "sm_100");
        assert_eq!(choice(121).unwrap(), "sm_120");
        assert_eq!(choice(88).unwrap(), "sm_87");
        assert_eq!(choice(110), None, "11.0 does not run code of 10.0");
    }

    /// What this machine has, or a line that says what it lacks.
    fn nvrtc() -> Option<Nvrtc> {
        let nvrtc = Nvrtc::open(13).inspect_err(|error| println!("skipped: {error}")).ok();
        let required = std::env::var_os("RAGEN_REQUIRE_NVRTC").is_some_and(|v| v == "1");
        assert!(nvrtc.is_some() || !required, "NVRTC is required here");
        nvrtc
    }

    #[test]
    fn kernels_become_machine_code_once() {
        let Some(nvrtc) = nvrtc() else { return };
        static RIGHT: Source =
            Source { file: "right.cu", text: "KERNEL(32) right(element* x) { x[threadIdx.x] = to_element(1.0f); }" };
        let unit = Unit { source: &RIGHT, element: Kind::Bf16, head_dim: 0 };
        let compiled = nvrtc.compile(&unit, Arch(90)).unwrap();
        assert!(compiled.cubin.starts_with(b"\x7fELF") && compiled.ptx.contains(".entry right("));
        assert!(compiled.log.contains("registers"), "{}", compiled.log);

        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let entries =
            || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let first = nvrtc.cubin(&unit, Arch(90), &cache).unwrap();
        assert!(first.starts_with(b"\x7fELF"));
        let path = entries().pop().unwrap();
        // The second time it is not compiled: what lies in the cache comes back.
        let name = path.file_stem().unwrap().to_str().unwrap();
        cache.put(u128::from_str_radix(name, 16).unwrap(), "cubin", b"from the cache");
        assert_eq!(nvrtc.cubin(&unit, Arch(90), &cache).unwrap(), b"from the cache");
        // Another architecture, or another element, is another entry.
        nvrtc.cubin(&unit, Arch(80), &cache).unwrap();
        nvrtc.cubin(&Unit { element: Kind::F32, ..unit }, Arch(90), &cache).unwrap();
        assert_eq!(entries().len(), 3);
        // A damaged entry is made again.
        std::fs::write(&path, "damaged").unwrap();
        assert!(nvrtc.cubin(&unit, Arch(90), &cache).unwrap().starts_with(b"\x7fELF"));
        assert!(std::fs::read(&path).unwrap().len() > 1_000);
    }

    #[test]
    fn a_refused_source_shows_the_log_with_file_and_line() {
        let Some(nvrtc) = nvrtc() else { return };
        static WRONG: Source =
            Source { file: "wrong.cu", text: "KERNEL(32) wrong() {\n    nothing_of_this_name();\n}\n" };
        let unit = Unit { source: &WRONG, element: Kind::Bf16, head_dim: 64 };
        let error = nvrtc.compile(&unit, Arch(90)).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, CudaError::Compile { .. }), "{text}");
        for part in ["wrong.cu for bf16 and heads of 64 does not compile", "wrong.cu(2)", "nothing_of_this_name"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let text = nvrtc.compile(&unit, Arch(20)).err().unwrap().to_string();
        assert!(text.contains("does not know sm_20"), "{text}");
    }
}

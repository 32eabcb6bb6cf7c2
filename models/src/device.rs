//! Where the arithmetic happens: the CPU, and which device is taken by its name.

use crate::simd::Isa;
use crate::threads::Pool;
use ragen_cuda::{CudaError, Gpu};
use std::fmt;
use std::sync::Arc;

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

/// A device by the name that people give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A GPU if one can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU by the number that CUDA gives it.
    Cuda(usize),
    /// The GPU's kernels on the CPU, in builds with the feature `emulator`.
    Emulator,
}

/// What [`Device::parse`] knows in this build.
pub const NAMES: &str =
    if cfg!(feature = "emulator") { "auto, cpu, cuda, cuda:N, emulator" } else { "auto, cpu, cuda, cuda:N" };

/// The variable that limits the emulator's memory.
pub const EMULATOR_MIB: &str = "RAGEN_EMULATOR_MIB";

impl Device {
    /// The device of a name; `cuda` is `cuda:0`.
    ///
    /// **Errors** in words that list the names.
    pub fn parse(name: &str) -> Result<Device, String> {
        let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        match (name, name.strip_prefix("cuda:").and_then(number)) {
            ("auto", _) => Ok(Device::Auto),
            ("cpu", _) => Ok(Device::Cpu),
            ("cuda", _) => Ok(Device::Cuda(0)),
            (_, Some(ordinal)) => Ok(Device::Cuda(ordinal)),
            ("emulator", _) if cfg!(feature = "emulator") => Ok(Device::Emulator),
            ("emulator", _) => Err(format!("\"emulator\" is in builds with --features emulator alone; here: {NAMES}")),
            _ => Err(format!("{name:?} is none of {NAMES}")),
        }
    }

    /// Opens it, or what `auto` finds.
    ///
    /// **Errors** [`CudaError`] that says what is missing; `auto` and `cpu` have none.
    pub fn take(self) -> Result<Taken, CudaError> {
        let taken = |device, gpu| Taken { device, gpu: Some(gpu), no_gpu: None };
        match self {
            Device::Auto => Ok(match Gpu::open(0) {
                Ok(gpu) => taken(Device::Cuda(0), gpu),
                Err(error) => Taken { device: Device::Cpu, gpu: None, no_gpu: Some(Arc::new(error)) },
            }),
            Device::Cpu => Ok(Taken { device: Device::Cpu, gpu: None, no_gpu: None }),
            Device::Cuda(ordinal) => Ok(taken(self, Gpu::open(ordinal)?)),
            Device::Emulator => Ok(taken(self, emulator()?)),
        }
    }
}

impl fmt::Display for Device {
    /// Its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Device::Emulator => f.write_str("emulator"),
        }
    }
}

/// A device that was opened.
#[derive(Clone)]
pub struct Taken {
    /// Which; never [`Device::Auto`].
    pub device: Device,
    /// The GPU, unless it is the CPU.
    pub gpu: Option<Gpu>,
    /// Why `auto` took no GPU.
    pub no_gpu: Option<Arc<CudaError>>,
}

impl Taken {
    /// What it is, in words: `cpu (avx512, 2 threads)`, or a GPU's name.
    pub fn words(&self, threads: usize) -> String {
        match &self.gpu {
            Some(gpu) => gpu.name(),
            // A path that is not there is an error of its own where the CPU is opened.
            None => {
                let isa = Isa::from_env().map_or("RAGEN_ISA", Isa::name);
                let threads = Cpu::threads(threads);
                format!("cpu ({isa}, {threads} thread{})", if threads == 1 { "" } else { "s" })
            }
        }
    }

    /// [`Taken::words`], and why there is no GPU where one would have been taken.
    pub fn line(&self, threads: usize) -> String {
        let reason = self.no_gpu.as_deref().map_or(String::new(), |error| format!("; no GPU: {}", short(error)));
        format!("{}{reason}", self.words(threads))
    }
}

/// The first thing that an error says, without where was looked and how to help.
fn short(error: &CudaError) -> String {
    let text = match error {
        CudaError::Unavailable { reason } => reason.clone(),
        other => other.to_string(),
    };
    let first = text.lines().next().unwrap_or_default().split(';').next().unwrap_or_default();
    let end = if first.len() > 100 { first.find(": ").unwrap_or(first.len()) } else { first.len() };
    first[..end].to_string()
}

#[cfg(feature = "emulator")]
fn emulator() -> Result<Gpu, CudaError> {
    let emulator = ragen_cuda::driver::Emulator::new()?;
    let Ok(given) = std::env::var(EMULATOR_MIB) else { return Ok(Gpu::over(Arc::new(emulator))) };
    let bytes = given.trim().parse::<usize>().ok().and_then(|mib| mib.checked_mul(1 << 20));
    let reason = format!("{EMULATOR_MIB}={given} is no number of MiB");
    let bytes = bytes.ok_or(CudaError::NoEmulator { reason })?;
    Ok(Gpu::over(Arc::new(emulator.with_memory(bytes))))
}

#[cfg(not(feature = "emulator"))]
fn emulator() -> Result<Gpu, CudaError> {
    Err(CudaError::NoEmulator { reason: "this build is without the feature emulator".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_one_name_each() {
        for (name, device, again) in [
            ("auto", Device::Auto, "auto"),
            ("cpu", Device::Cpu, "cpu"),
            ("cuda", Device::Cuda(0), "cuda:0"),
            ("cuda:0", Device::Cuda(0), "cuda:0"),
            ("cuda:12", Device::Cuda(12), "cuda:12"),
        ] {
            assert_eq!(Device::parse(name), Ok(device));
            assert_eq!(device.to_string(), again);
            assert_eq!(Device::parse(again), Ok(device));
        }
        for wrong in ["gpu", "", "cuda:", "cuda:-1", "cuda:+1", "cuda:one", "CPU", "cuda:99999999999999999999"] {
            let text = Device::parse(wrong).unwrap_err();
            assert!(text.contains("auto, cpu, cuda, cuda:N") && text.contains(&format!("{wrong:?}")), "{text}");
        }
        match Device::parse("emulator") {
            Ok(device) => assert!(cfg!(feature = "emulator") && device == Device::Emulator),
            Err(text) => {
                assert!(text.contains("--features emulator") && text.contains("auto, cpu, cuda, cuda:N"), "{text}");
            }
        }
    }

    #[test]
    fn auto_takes_what_is_there_and_says_so() {
        let taken = Device::Auto.take().unwrap();
        let line = taken.line(3);
        assert!(!line.contains('\n') && line.starts_with(&taken.words(3)), "{line}");
        match Gpu::open(0) {
            Ok(gpu) => assert_eq!((taken.device, line), (Device::Cuda(0), gpu.name())),
            Err(error) => {
                assert_eq!((taken.device, taken.gpu.is_none()), (Device::Cpu, true));
                assert!(line.starts_with("cpu (") && line.contains(" threads); no GPU: "), "{line}");
                assert!(line.contains(&short(&error)) && line.len() < 200, "{line}");
                let text = Device::Cuda(1).take().err().unwrap().to_string();
                assert!(text.contains("run with --device cpu"), "{text}");
            }
        }
        let cpu = Device::Cpu.take().unwrap();
        assert_eq!((cpu.device, cpu.line(1)), (Device::Cpu, cpu.words(1)));
        assert!(cpu.line(1).ends_with(" 1 thread)") && cpu.line(2).ends_with(" 2 threads)"));
    }

    #[test]
    fn the_reason_is_short() {
        let short = |reason: &str| short(&CudaError::Unavailable { reason: reason.into() });
        assert_eq!(short("cuInit failed: no device (100); try this"), "cuInit failed: no device (100)");
        let long = format!("NVIDIA's driver was not found: none is in {}; install it", "a, ".repeat(40));
        assert_eq!(short(&long), "NVIDIA's driver was not found");
    }
}

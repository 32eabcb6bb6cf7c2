//! What `ragen doctor` looks at in an engine: fast paths against plain ones, the GPU against the CPU, what was sampled against what is
//! scored. Every check gives a number and the bound that it must keep.

pub mod ceilings;
mod cpu;
mod gpu;
mod rehearsal;

pub use cpu::check_cpu;
pub use gpu::{Sizes, check_gpu};

use ragen_cuda::kernels::Work;
use std::fmt;
use std::time::Instant;

/// Something that was looked at.
#[derive(Clone, Debug)]
pub struct Check {
    /// What.
    pub name: String,
    /// What came of it.
    pub outcome: Outcome,
    /// How long it took; of a kernel, how long the device took for one run.
    pub milliseconds: f64,
}

/// What came of a check.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// How far something is off, and how far it may be: a share of the largest number wanted, or how many numbers differ.
    Off {
        /// The error.
        by: f64,
        /// The largest that is right.
        bound: f64,
    },
    /// What the machine has or can do.
    Measured {
        /// The number.
        value: f64,
        /// Its unit.
        unit: &'static str,
        /// Less than this, and something is wrong with the machine.
        least: f64,
    },
    /// A kernel ran; what it moves and computes.
    Ran(Work),
    /// It ran on the emulator, where time means nothing.
    Untimed,
    /// It cannot be looked at here, and why.
    Skipped(String),
    /// It broke, and how.
    Failed(String),
}

impl Check {
    /// Runs a check and takes its time. What is short of device memory is skipped, every other error is a failure.
    fn run<E: Into<Trouble>>(name: impl Into<String>, body: impl FnOnce() -> Result<Outcome, E>) -> Check {
        let start = Instant::now();
        let outcome = body().unwrap_or_else(|error| match error.into() {
            Trouble::Memory(text) => Outcome::Skipped(text),
            Trouble::Other(text) => Outcome::Failed(text),
        });
        Check { name: name.into(), outcome, milliseconds: start.elapsed().as_secs_f64() * 1e3 }
    }

    /// A check that is done.
    fn off(name: impl Into<String>, by: f64, bound: f64, since: Instant) -> Check {
        let milliseconds = since.elapsed().as_secs_f64() * 1e3;
        Check { name: name.into(), outcome: Outcome::Off { by, bound }, milliseconds }
    }

    /// Whether all is well; `None` when it was skipped.
    pub fn ok(&self) -> Option<bool> {
        match &self.outcome {
            // Not a number is neither.
            Outcome::Off { by, bound } => Some(by <= bound),
            Outcome::Measured { value, least, .. } => Some(value >= least),
            Outcome::Ran(_) | Outcome::Untimed => Some(true),
            Outcome::Skipped(_) => None,
            Outcome::Failed(_) => Some(false),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.ok() {
            Some(true) => write!(f, "ok       {name}: ")?,
            Some(false) => write!(f, "FAILED   {name}: ")?,
            None => write!(f, "skipped  {name}: ")?,
        }
        match &self.outcome {
            Outcome::Off { by, bound } => write!(f, "{} (at most {})", Short(*by), Short(*bound)),
            Outcome::Measured { value, unit, least } => {
                write!(f, "{} {unit} (at least {})", Short(*value), Short(*least))
            }
            Outcome::Ran(work) => {
                let per_second = |amount: f64| Short(amount / self.milliseconds * 1e3);
                let (bytes, flops) = (per_second(work.bytes / 1e9), per_second(work.flops / 1e12));
                write!(f, "{:.4} ms, {bytes} GB/s, {flops} TFLOP/s", self.milliseconds)
            }
            Outcome::Untimed => write!(f, "no time on the emulator"),
            Outcome::Skipped(text) | Outcome::Failed(text) => write!(f, "{text}"),
        }
    }
}

/// The larger of two errors; not a number is the largest.
fn larger(a: f64, b: f64) -> f64 {
    if a >= b || a.is_nan() { a } else { b }
}

/// How far numbers are off, as a share of the largest one wanted; infinitely where there are more or fewer.
fn off(got: &[f32], want: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    let scale = want.clone().fold(1e-3, |largest: f64, x| largest.max(x.abs()));
    got.iter().zip(want).map(|(&got, want)| (f64::from(got) - want).abs() / scale).fold(0.0, larger)
}

/// A number in a few characters.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            x if x == x.round() && x.abs() < 1e6 => write!(f, "{x}"),
            x if (0.01..1.0).contains(&x.abs()) => write!(f, "{x:.3}"),
            x if (1.0..1e5).contains(&x.abs()) => write!(f, "{x:.1}"),
            x => write!(f, "{x:.1e}"),
        }
    }
}

/// What an error means to a check.
enum Trouble {
    Memory(String),
    Other(String),
}

impl From<ragen_cuda::CudaError> for Trouble {
    fn from(error: ragen_cuda::CudaError) -> Self {
        match error {
            ragen_cuda::CudaError::Memory { .. } => Trouble::Memory(error.to_string()),
            _ => Trouble::Other(error.to_string()),
        }
    }
}

impl From<crate::engine::EngineError> for Trouble {
    fn from(error: crate::engine::EngineError) -> Self {
        match error {
            crate::engine::EngineError::Device(error) => error.into(),
            crate::engine::EngineError::Sample(_) => Trouble::Other(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_cuda::CudaError;

    fn line(outcome: Outcome) -> (Option<bool>, String) {
        let check = Check { name: "it".into(), outcome, milliseconds: 0.5 };
        (check.ok(), check.to_string())
    }

    #[test]
    fn a_line_has_the_number_and_its_bound() {
        let off = |by, bound| line(Outcome::Off { by, bound });
        assert_eq!(off(0.0, 0.0), (Some(true), "ok       it: 0 (at most 0)".into()));
        assert_eq!(off(3.0, 0.0), (Some(false), "FAILED   it: 3 (at most 0)".into()));
        assert_eq!(off(2.04e-6, 3e-6), (Some(true), "ok       it: 2.0e-6 (at most 3.0e-6)".into()));
        assert_eq!(off(f64::NAN, 1.0).0, Some(false));
        let measured = |value| line(Outcome::Measured { value, unit: "GB/s", least: 1.0 });
        assert_eq!(measured(18.234), (Some(true), "ok       it: 18.2 GB/s (at least 1)".into()));
        assert_eq!(measured(0.25), (Some(false), "FAILED   it: 0.250 GB/s (at least 1)".into()));
        let ran = line(Outcome::Ran(Work { bytes: 2e9, flops: 1.5e11 }));
        assert_eq!(ran, (Some(true), "ok       it: 0.5000 ms, 4000 GB/s, 300 TFLOP/s".into()));
    }

    #[test]
    fn an_error_is_a_share_of_the_largest_number_and_nan_is_the_largest() {
        assert_eq!(off(&[1.0, -3.0], [1.0, -4.0].into_iter()), 0.25);
        assert_eq!(off(&[1.0], [1.0, 2.0].into_iter()), f64::INFINITY);
        assert!(off(&[f32::NAN, 1.0], [0.0, 5.0].into_iter()).is_nan());
        assert!(larger(1.0, f64::NAN).is_nan() && larger(f64::NAN, 1.0).is_nan() && larger(2.0, 1.0) == 2.0);
    }

    #[test]
    fn what_lacks_memory_is_skipped_and_what_breaks_has_failed() {
        let check = |error: CudaError| Check::run("it", || Err(error));
        let (what, wanted_bytes, free_bytes, total_bytes) = ("a trial".into(), 9, 1, 8);
        let short = check(CudaError::Memory { what, wanted_bytes, free_bytes, total_bytes });
        assert!(short.ok().is_none() && short.to_string().starts_with("skipped  it: a trial needs 9 bytes"), "{short}");
        let fault = check(CudaError::Fault { kernel: "rope".into(), fault: "a race".into() });
        assert_eq!((fault.ok(), fault.to_string()), (Some(false), "FAILED   it: rope: a race".into()));
    }
}

//! What `ragen doctor` looks at in an engine: fast paths against plain ones, the GPU against the CPU, what was sampled against what is
//! scored. Every check gives a number and the bound that it must keep.

pub mod ceilings;
mod cpu;
mod gpu;
pub mod kernels;
mod manifest;
mod number;
mod rehearsal;
#[cfg(test)]
mod vandal;

pub use cpu::check_cpu;
pub use gpu::{Sizes, check_gpu};
pub use number::Number;

use ceilings::Ceilings;
use kernels::Finding;
pub use ragen_cuda::kernels::Work;
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
    /// Something ran at a shape, and how fast.
    Ran(Pace),
    /// It ran on the emulator, where time means nothing.
    Untimed,
    /// A kernel, in every number type that it was looked at in.
    Kernel(Vec<InType>),
    /// It cannot be looked at here, and why.
    Skipped(String),
    /// It broke, and how.
    Failed(String),
}

/// What a kernel gives and how fast it is in one number type.
#[derive(Clone, Debug)]
pub struct InType {
    /// The number type.
    pub element: &'static str,
    /// The worst that its op cases found; `None` when no case starts it.
    pub worst: Option<Finding>,
    /// Its time at the shape; `None` for what has none.
    pub pace: Option<Outcome>,
}

impl InType {
    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.worst.iter().map(|worst| &worst.outcome).chain(&self.pace)
    }
}

/// How fast something is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Milliseconds that the device took for one run.
    pub milliseconds: f64,
    /// What a run moves and computes.
    pub work: Work,
    /// The share of a measured ceiling that this is, and which, where that is known.
    pub share: Option<(f64, &'static str)>,
}

impl Pace {
    fn new<E: Number>(work: Work, milliseconds: f64, ceilings: &Ceilings) -> Pace {
        Pace { milliseconds, work, share: ceilings.share::<E>(work, milliseconds) }
    }

    /// GB/s.
    pub fn gb_per_s(&self) -> f64 {
        self.work.bytes / self.milliseconds / 1e6
    }

    /// TFLOP/s.
    pub fn tflops_per_s(&self) -> f64 {
        self.work.flops / self.milliseconds / 1e9
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, flops) = (Short(self.gb_per_s()), Short(self.tflops_per_s()));
        write!(f, "{:.4} ms, {bytes} GB/s, {flops} TFLOP/s", self.milliseconds)?;
        self.share.map_or(Ok(()), |(share, of)| write!(f, ", {:.0} % of {of}", 100.0 * share))
    }
}

impl Outcome {
    /// Whether all is well; `None` when it was skipped.
    pub fn ok(&self) -> Option<bool> {
        match self {
            // Not a number is neither.
            Outcome::Off { by, bound } => Some(by <= bound),
            Outcome::Measured { value, least, .. } => Some(value >= least),
            Outcome::Ran(_) | Outcome::Untimed => Some(true),
            Outcome::Kernel(types) => {
                let outcomes: Vec<Option<bool>> = types.iter().flat_map(InType::outcomes).map(Outcome::ok).collect();
                if outcomes.contains(&Some(false)) {
                    return Some(false);
                }
                // A kernel that nothing is compared with is not well, unless it cannot be started here: every one has its cases.
                let is_compared = types.iter().any(|of| of.worst.is_some());
                let is_skipped = !outcomes.is_empty() && outcomes.iter().all(Option::is_none);
                if is_skipped { None } else { Some(is_compared) }
            }
            Outcome::Skipped(_) => None,
            Outcome::Failed(_) => Some(false),
        }
    }

    /// How bad it is beside others of the same thing: what was skipped least, then by the share of its bound, then what broke.
    pub fn badness(&self) -> f64 {
        match self {
            Outcome::Off { by, bound } if *bound > 0.0 && !by.is_nan() => by / bound,
            Outcome::Off { by, .. } if *by == 0.0 => 0.0,
            Outcome::Off { .. } => f64::MAX,
            Outcome::Failed(_) => f64::INFINITY,
            _ => -1.0,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Off { by, bound } => write!(f, "{} (at most {})", Short(*by), Short(*bound)),
            Outcome::Measured { value, unit, least } => {
                write!(f, "{} {unit} (at least {})", Short(*value), Short(*least))
            }
            Outcome::Ran(pace) => pace.fmt(f),
            Outcome::Untimed => write!(f, "no time on the emulator"),
            Outcome::Kernel(types) => {
                types.iter().enumerate().try_for_each(|(i, of)| write!(f, "{}{}", if i > 0 { "; " } else { "" }, of))
            }
            Outcome::Skipped(text) | Outcome::Failed(text) => write!(f, "{text}"),
        }
    }
}

impl fmt::Display for InType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.element)?;
        match &self.worst {
            None => write!(f, "has no cases of its own")?,
            Some(worst) if worst.outcome.ok() == Some(true) => write!(f, "off by {}", worst.outcome)?,
            Some(worst) => write!(f, "{} of {}: {}", worst.op, worst.case, worst.outcome)?,
        }
        self.pace.as_ref().map_or(Ok(()), |pace| write!(f, ", {pace}"))
    }
}

impl Check {
    /// Runs a check and takes its time. What the device has too little of is skipped, every other error is a failure.
    fn run<E: Into<Trouble>>(name: impl Into<String>, body: impl FnOnce() -> Result<Outcome, E>) -> Check {
        let start = Instant::now();
        let outcome = body().unwrap_or_else(|error| error.into().into());
        Check { name: name.into(), outcome, milliseconds: start.elapsed().as_secs_f64() * 1e3 }
    }

    /// A check that is done.
    fn off(name: impl Into<String>, by: f64, bound: f64, since: Instant) -> Check {
        let milliseconds = since.elapsed().as_secs_f64() * 1e3;
        Check { name: name.into(), outcome: Outcome::Off { by, bound }, milliseconds }
    }

    /// Whether all is well; `None` when it was skipped.
    pub fn ok(&self) -> Option<bool> {
        self.outcome.ok()
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
        self.outcome.fmt(f)
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
    /// The device has too little of something.
    Lacking(String),
    /// It broke.
    Other(String),
}

impl From<Trouble> for Outcome {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Lacking(text) => Outcome::Skipped(text),
            Trouble::Other(text) => Outcome::Failed(text),
        }
    }
}

impl From<ragen_cuda::CudaError> for Trouble {
    fn from(error: ragen_cuda::CudaError) -> Self {
        match error {
            ragen_cuda::CudaError::Memory { .. } | ragen_cuda::CudaError::SharedMemory { .. } => {
                Trouble::Lacking(error.to_string())
            }
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
        let pace = Pace { milliseconds: 0.5, work: Work { bytes: 2e9, flops: 1.5e11 }, share: Some((0.857, "a copy")) };
        let ran = line(Outcome::Ran(pace));
        assert_eq!(ran, (Some(true), "ok       it: 0.5000 ms, 4000 GB/s, 300 TFLOP/s, 86 % of a copy".into()));
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

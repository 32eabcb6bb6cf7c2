//! Every kernel of the manifest in one line: how far it is off from the CPU over its op cases, and how long it takes at a shape, in both
//! number types.

use super::ceilings::{Ceilings, RUNS, milliseconds};
use super::gpu::Sizes;
use super::kernels::{Finding, Judge, OPS};
use super::{Check, InType, Number, Outcome, Pace, Trouble};
use half::bf16;
use ragen_cuda::driver::{Arg, Driver, Onlooker};
use ragen_cuda::kernels::{Kernel, Shape, all};
use ragen_cuda::trial::{Trial, trials};
use ragen_cuda::{CudaError, Gpu};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What belongs to a kernel and a number type, by their names.
type ByKernel<T> = BTreeMap<(&'static str, &'static str), T>;

/// The line of what no kernel of ours had a part in.
const NO_KERNEL: &str = "op cases without a kernel of ours: the library's products, empty batches";

/// Compares all kernels with the CPU, times them, and tells a check for each.
pub(super) fn check_manifest(gpu: &Gpu, sizes: &Sizes, ceilings: &Ceilings, tell: &mut dyn FnMut(Check)) {
    let mut found = match compare(gpu, sizes) {
        Ok(found) => found,
        Err(text) => {
            return tell(Check { name: "kernels".into(), outcome: Outcome::Failed(text), milliseconds: 0.0 });
        }
    };
    let mut paces = ByKernel::new();
    time_kernels::<f32>(gpu, &sizes.shape::<f32>(), ceilings, &mut paces, tell);
    time_kernels::<bf16>(gpu, &sizes.shape::<bf16>(), ceilings, &mut paces, tell);
    for kernel in all().map(|kernel| kernel.name).chain([NO_KERNEL]) {
        let types: Vec<InType> = [f32::NAME, bf16::NAME]
            .into_iter()
            .filter_map(|element| {
                let (worst, pace) = (found.remove(&(kernel, element)), paces.remove(&(kernel, element)));
                (worst.is_some() || pace.is_some()).then_some(InType { element, worst, pace })
            })
            .collect();
        // The time of the type that is trained in.
        let pace = types.iter().rev().find_map(|of| match &of.pace {
            Some(Outcome::Ran(pace)) => Some(pace.milliseconds),
            _ => None,
        });
        tell(Check { name: kernel.into(), outcome: Outcome::Kernel(types), milliseconds: pace.unwrap_or(0.0) });
    }
}

/// The worst finding of each kernel.
fn compare(gpu: &Gpu, sizes: &Sizes) -> Result<ByKernel<Finding>, String> {
    let mut worst = ByKernel::<Finding>::new();
    let mut note = |finding: Finding| {
        let kernels = if finding.kernels.is_empty() { vec![NO_KERNEL] } else { finding.kernels.clone() };
        for kernel in kernels {
            match worst.entry((kernel, finding.element)) {
                std::collections::btree_map::Entry::Vacant(place) => _ = place.insert(finding.clone()),
                std::collections::btree_map::Entry::Occupied(mut place) => {
                    if finding.outcome.badness() > place.get().outcome.badness() {
                        place.insert(finding.clone());
                    }
                }
            }
        }
    };
    let mut judge = Judge::new(gpu, sizes.extent, &mut note)?;
    OPS.iter().for_each(|op| op.run(&mut judge));
    Ok(worst)
}

/// Times the first launch of each kernel, by itself.
#[derive(Default)]
struct Stopwatch(Mutex<BTreeMap<&'static str, Option<f64>>>);

impl Stopwatch {
    fn with<T>(&self, body: impl FnOnce(&mut BTreeMap<&'static str, Option<f64>>) -> T) -> T {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Onlooker for Stopwatch {
    fn look_on(
        &self,
        driver: &dyn Driver,
        kernel: &str,
        _: &[Arg],
        launch: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let Some(kernel) = manifest(kernel).filter(|kernel| self.with(|times| !times.contains_key(kernel.name))) else {
            return launch();
        };
        // The first is not counted. What kernels add to is added to again, which changes numbers and no time.
        let mut time = driver.time_ms(launch)?;
        if time.is_some() {
            time = driver.time_ms(&mut || (0..RUNS).try_for_each(|_| launch()))?;
        }
        self.with(|times| times.insert(kernel.name, time.map(|ms| f64::from(ms) / RUNS as f64)));
        Ok(())
    }
}

fn manifest(kernel: &str) -> Option<&'static Kernel> {
    all().find(|known| known.name == kernel)
}

/// The pace of every kernel at the shape; the library's products are told as checks of their own.
fn time_kernels<E: Number>(
    gpu: &Gpu,
    shape: &Shape,
    ceilings: &Ceilings,
    paces: &mut ByKernel<Outcome>,
    tell: &mut dyn FnMut(Check),
) {
    let stopwatch = Arc::<Stopwatch>::default();
    let watched = gpu.watched(stopwatch.clone());
    let ran = |work, time: Option<f64>| match time {
        Some(milliseconds) => Outcome::Ran(Pace::new::<E>(work, milliseconds, ceilings)),
        None => Outcome::Untimed,
    };
    for trial in trials::<E>() {
        if trial.is_of_library() {
            tell(library_product::<E>(gpu, &trial, shape, &ran));
            continue;
        }
        let error = trial.prepare(&watched, shape).and_then(|mut run| run(&watched)).err();
        let error = error.map(|error| Outcome::from(Trouble::from(error)));
        for &kernel in trial.kernels {
            let time = stopwatch.with(|times| times.get(kernel).copied());
            let outcome = match (time, &error) {
                (Some(time), _) => manifest(kernel).map(|kernel| ran((kernel.work)(shape), time)),
                (None, error) => error.clone(),
            };
            let place = paces.entry((kernel, E::NAME));
            outcome.map(|outcome| place.or_insert(outcome));
        }
    }
}

fn library_product<E: Number>(
    gpu: &Gpu,
    trial: &Trial,
    shape: &Shape,
    ran: &dyn Fn(ragen_cuda::kernels::Work, Option<f64>) -> Outcome,
) -> Check {
    let mut time = None;
    let mut check = Check::run(format!("{} in {}", trial.name, E::NAME), || {
        let mut run = trial.prepare(gpu, shape)?;
        time = milliseconds(gpu, &mut || run(gpu))?;
        Ok::<_, CudaError>(ran(trial.work(shape), time))
    });
    check.milliseconds = time.unwrap_or(check.milliseconds);
    check
}

#[cfg(test)]
mod tests {
    use super::super::vandal::Vandal;
    use super::*;

    /// Refuses to start two kernels: one for want of shared memory in f32, the other because it is broken.
    struct Refusing;

    impl Onlooker for Refusing {
        fn look_on(
            &self,
            _: &dyn Driver,
            kernel: &str,
            _: &[Arg],
            launch: &mut dyn FnMut() -> Result<(), CudaError>,
        ) -> Result<(), CudaError> {
            match kernel {
                "attention_bwd_kv" => {
                    Err(CudaError::SharedMemory { kernel: kernel.into(), reason: "a block needs 9 bytes".into() })
                }
                "swiglu_bwd" => Err(CudaError::Call { call: "a launch".into(), reason: "it broke".into() }),
                _ => launch(),
            }
        }
    }

    fn lines(gpu: &Gpu) -> Vec<Check> {
        let mut checks = Vec::new();
        check_manifest(gpu, &Sizes::tiny(), &Ceilings::default(), &mut |check| checks.push(check));
        checks
    }

    fn line<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn what_cannot_be_started_is_skipped_and_what_breaks_has_failed() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let checks = lines(&gpu.watched(Arc::new(Refusing)));
        let skipped = line(&checks, "attention_bwd_kv");
        assert_eq!(skipped.ok(), None);
        let why = "launch of attention_bwd_kv failed: a block needs 9 bytes";
        assert!(skipped.to_string().starts_with("skipped ") && skipped.to_string().contains(why), "{skipped}");
        let broken = line(&checks, "swiglu_bwd");
        assert!(broken.ok() == Some(false) && broken.to_string().contains("a launch failed: it broke"), "{broken}");
        let failed = checks.iter().filter(|check| check.ok() == Some(false)).count();
        assert_eq!((failed, line(&checks, "swiglu_fwd").ok()), (1, Some(true)));
    }

    #[test]
    fn one_wrong_number_is_found_and_its_kernel_named() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let vandal = Vandal { kernel: "attention_merge", arg: 0, milliseconds: None };
        let checks = lines(&gpu.watched(Arc::new(vandal)));
        let failed: Vec<&str> =
            checks.iter().filter(|check| check.ok() == Some(false)).map(|check| check.name.as_str()).collect();
        // All that have a part in attention over a cache, where every bit is that of the path; and nothing else.
        assert_eq!(failed, ["attention_fwd", "kv_append", "attention_decode", "attention_merge"]);
    }
}

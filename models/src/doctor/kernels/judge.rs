//! Who compares: runs a case, notes what its ops came to and which kernels they started.

use super::super::{Outcome, Trouble, larger};
use crate::device::Cpu;
use crate::random::Key;
use ragen_cuda::driver::{Arg, Driver, Onlooker};
use ragen_cuda::{Buffer, CudaError, Element, Gpu, kernels};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Which cases are run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Those of at most so many numbers.
    elements: usize,
    /// Of an op's cases the first, and every so many after it.
    every: usize,
    /// Those of heads for which the kernels are compiled for these widths.
    widths: &'static [usize],
}

impl Extent {
    /// All of them.
    pub const ALL: Extent = Extent { elements: usize::MAX, every: 1, widths: &kernels::attention::WIDTHS };

    /// What a device compiles the kernels for within the time of a doctor: three widths of heads.
    pub const DEVICE: Extent = Extent { widths: &[16, 64, 128], ..Extent::ALL };

    /// What the emulator, or a device that is watched, gets through in seconds.
    pub const TINY: Extent = Extent { elements: 16_000, every: 3, widths: &[16] };
}

/// What came of one op of a case.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The op, by the name of its launcher.
    pub op: &'static str,
    /// The case, and which of the results.
    pub case: String,
    /// The number type of activations.
    pub element: &'static str,
    /// The kernels of the manifest that the op started, in the order of their first launches.
    pub kernels: Vec<&'static str>,
    /// How far off, and how far it may be.
    pub outcome: Outcome,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} in {}: {}", self.op, self.case, self.element, self.outcome)
    }
}

/// Notes the kernels that are launched.
#[derive(Default)]
struct Started(Mutex<Vec<&'static str>>);

impl Started {
    fn with<T>(&self, body: impl FnOnce(&mut Vec<&'static str>) -> T) -> T {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Onlooker for Started {
    fn look_on(
        &self,
        _: &dyn Driver,
        kernel: &str,
        _: &[Arg],
        launch: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if let Some(kernel) = kernels::all().find(|known| known.name == kernel) {
            self.with(|names| {
                if !names.contains(&kernel.name) {
                    names.push(kernel.name)
                }
            });
        }
        launch()
    }
}

/// Runs cases on a GPU and on the CPU, and hands out what it finds.
pub struct Judge<'a> {
    /// The GPU; every launch on it is noted.
    pub(super) gpu: Gpu,
    pub(super) cpu: Cpu,
    extent: Extent,
    started: Arc<Started>,
    tell: &'a mut dyn FnMut(Finding),
    element: &'static str,
    op: &'static str,
    case: String,
    /// Cases of the op so far, also those that were left out.
    cases: usize,
}

impl<'a> Judge<'a> {
    /// One who tells all findings as they come. **Errors** when `RAGEN_ISA` names a path that this machine lacks.
    pub fn new(gpu: &Gpu, extent: Extent, tell: &'a mut dyn FnMut(Finding)) -> Result<Self, String> {
        let started = Arc::<Started>::default();
        let (gpu, cpu) = (gpu.watched(started.clone()), Cpu::new(1)?);
        Ok(Judge { gpu, cpu, extent, started, tell, element: "", op: "", case: String::new(), cases: 0 })
    }

    /// The cases from here on are an op's, in this number type.
    pub(super) fn begin(&mut self, element: &'static str) {
        self.element = element;
        self.cases = 0;
    }

    /// Whether heads of this width belong to the extent.
    pub(super) fn takes_heads(&self, head_dim: usize) -> bool {
        kernels::attention::head_width(head_dim).is_some_and(|width| self.extent.widths.contains(&width))
    }

    /// Runs a case of about `elements` numbers if it belongs to the extent. An error is a finding; the cases after it are run all the same.
    pub(super) fn case(
        &mut self,
        what: impl Into<String>,
        elements: usize,
        body: impl FnOnce(&mut Self) -> Result<(), CudaError>,
    ) {
        self.cases += 1;
        if elements > self.extent.elements || !(self.cases - 1).is_multiple_of(self.extent.every) {
            return;
        }
        self.case = what.into();
        if let Err(error) = body(self) {
            self.note("", Trouble::from(error).into());
        }
    }

    /// What is launched and found from here on is this op's.
    pub(super) fn op(&mut self, name: &'static str) {
        self.op = name;
        self.started.with(Vec::clear);
    }

    fn note(&mut self, result: &str, outcome: Outcome) {
        let case = if result.is_empty() { self.case.clone() } else { format!("{}, {result}", self.case) };
        let kernels = self.started.with(|names| names.clone());
        (self.tell)(Finding { op: self.op, case, element: self.element, kernels, outcome });
    }

    /// The normalised mean square error of a result; infinite where there are more or fewer numbers.
    pub(super) fn near(&mut self, result: &str, got: &[f32], want: &[f32], bound: f64) {
        let square = |x: f64| x * x;
        let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(g - w))).sum();
        let size: f64 = want.iter().map(|w| square(f64::from(*w))).sum();
        let by = match got.len() == want.len() {
            false => f64::INFINITY,
            true if error == 0.0 => 0.0,
            true => error / size,
        };
        self.off(result, by, bound);
    }

    /// How many numbers are not the same in every bit; what is not a number is not the same as anything.
    pub(super) fn bits(&mut self, result: &str, got: &[f32], want: &[f32]) {
        let bits = |x: &f32| (!x.is_nan()).then(|| x.to_bits());
        let same = |(g, w): &(&f32, &f32)| bits(g).is_some() && bits(g) == bits(w);
        let differing = got.iter().zip(want).filter(|pair| !same(pair)).count();
        self.off(result, if got.len() == want.len() { differing as f64 } else { f64::INFINITY }, 0.0);
    }

    /// How many things are not the same.
    pub(super) fn same<T: PartialEq>(&mut self, result: &str, got: &[T], want: &[T]) {
        let differing = got.iter().zip(want).filter(|(g, w)| g != w).count();
        self.off(result, if got.len() == want.len() { differing as f64 } else { f64::INFINITY }, 0.0);
    }

    /// The largest of some errors, not a number before all others.
    pub(super) fn largest(&mut self, result: &str, errors: impl Iterator<Item = f64>, bound: f64) {
        self.off(result, errors.fold(0.0, larger), bound);
    }

    /// An error and its bound.
    pub(super) fn off(&mut self, result: &str, by: f64, bound: f64) {
        self.note(result, Outcome::Off { by, bound });
    }

    /// Numbers as a buffer of E.
    pub(super) fn upload<E: Element>(&self, data: &[f32]) -> Result<Buffer<E>, CudaError> {
        upload(&self.gpu, data)
    }

    /// A buffer of E as numbers.
    pub(super) fn download<E: Element>(&self, buffer: &Buffer<E>) -> Result<Vec<f32>, CudaError> {
        download(&self.gpu, buffer)
    }
}

/// Normal numbers, rounded to E: the same for both sides.
pub(super) fn random<E: Element>(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| E::from_f32(Key::new(seed).normal(i as u64) as f32).to_f32()).collect()
}

/// Numbers rounded to E.
pub(super) fn rounded<E: Element>(x: Vec<f32>) -> Vec<f32> {
    x.into_iter().map(|x| E::from_f32(x).to_f32()).collect()
}

/// Numbers as a buffer of E.
pub(super) fn upload<E: Element>(gpu: &Gpu, data: &[f32]) -> Result<Buffer<E>, CudaError> {
    let data: Vec<E> = data.iter().map(|&x| E::from_f32(x)).collect();
    gpu.upload("a case", &data)
}

/// A buffer of E as numbers.
pub(super) fn download<E: Element>(gpu: &Gpu, buffer: &Buffer<E>) -> Result<Vec<f32>, CudaError> {
    Ok(gpu.to_vec(buffer.view())?.into_iter().map(E::to_f32).collect())
}

/// A buffer of what no kernel may leave there.
pub(super) fn unwritten<E: Element>(gpu: &Gpu, len: usize) -> Result<Buffer<E>, CudaError> {
    upload(gpu, &vec![f32::NAN; len])
}

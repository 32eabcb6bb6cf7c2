//! What the op cases share: the device, random inputs, and the distance between two results.

use half::bf16;
use ragen_cuda::{Buffer, Element, Gpu};
use ragen_models::device::Cpu;
use ragen_models::random::Key;
use std::sync::OnceLock;

/// The device to test on; `None`, after saying why, where there is no g++ to build the emulator with.
pub fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = || {
        if std::env::var_os("RAGEN_KERNELS_ON").is_some_and(|on| on == "cuda") {
            return Some(Gpu::open(0).expect("RAGEN_KERNELS_ON=cuda asks for a GPU"));
        }
        Gpu::for_tests()
    };
    GPU.get_or_init(open).as_ref()
}

/// The CPU twin's device.
pub fn cpu() -> Cpu {
    Cpu::new(1).expect("RAGEN_ISA is unset or names a path of this machine")
}

/// A number type that the cases run in, with the error that they allow.
pub trait Precision: Element {
    /// Largest normalised mean square error.
    const NMSE: f64;
}

impl Precision for f32 {
    const NMSE: f64 = 1e-10;
}

impl Precision for bf16 {
    const NMSE: f64 = 1e-5;
}

/// Normal numbers, rounded to E: the same for both sides.
pub fn random<E: Element>(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| E::from_f32(Key::new(seed).normal(i as u64) as f32).to_f32()).collect()
}

/// Numbers as a buffer of E.
pub fn upload<E: Element>(gpu: &Gpu, data: &[f32]) -> Buffer<E> {
    let data: Vec<E> = data.iter().map(|&x| E::from_f32(x)).collect();
    gpu.upload("a case", &data).expect("memory for a case")
}

/// A buffer of E as numbers.
pub fn download<E: Element>(gpu: &Gpu, buffer: &Buffer<E>) -> Vec<f32> {
    gpu.to_vec(buffer.view()).expect("the kernels before ran").into_iter().map(E::to_f32).collect()
}

/// Asserts Σ (got − want)² ≤ limit · Σ want².
pub fn assert_near(what: &str, got: &[f32], want: &[f32], limit: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let error: f64 = got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum();
    let size: f64 = want.iter().map(|w| f64::from(*w).powi(2)).sum();
    // Not `error > …`: a NaN must fail.
    assert!(error <= limit * size, "{what}: nmse {:.3e}, more than {limit:.0e}", error / size);
}

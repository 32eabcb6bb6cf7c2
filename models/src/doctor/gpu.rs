//! A GPU: what it moves and computes, whether a row of a product depends on the rows beside it, a training step against the CPU's, what
//! was sampled against what is scored, and the time of every kernel.

use super::ceilings::{COPY_BYTES, SQUARE, copy_rate, milliseconds, numbers, product_rate};
use super::rehearsal::Rehearsal;
use super::{Check, Outcome, larger, off};
use crate::engine::EngineError;
use crate::gpu::{Precision, Products};
use crate::simd::Isa;
use crate::transformer;
use half::bf16;
use ragen_cuda::gemm::{Write, linear_bwd_input, linear_fwd};
use ragen_cuda::kernels::{Shape, Work};
use ragen_cuda::trial::trials;
use ragen_cuda::{CudaError, Element, Gpu};
use std::time::Instant;

const GIB: f64 = (1u64 << 30) as f64;

/// A number type of activations, and how far a step may be off from the CPU's in f32, by the largest number of a tensor.
trait Number: Precision {
    const NAME: &'static str;
    const VALUES: f64;
    const GRADIENTS: f64;
    /// The same of the way that the weights have gone, as a normalised square error.
    const WAY: f64;
    /// Of a product, by the sum of its terms' magnitudes.
    const PRODUCT: f64;
    /// No GPU that there are kernels for multiplies more slowly, TFLOP/s.
    const LEAST_TFLOPS: f64;
}

/// Sums in another order.
impl Number for f32 {
    const NAME: &'static str = "f32";
    const VALUES: f64 = 3e-6;
    const GRADIENTS: f64 = 1e-5;
    const WAY: f64 = 1e-10;
    const PRODUCT: f64 = 1e-6;
    const LEAST_TFLOPS: f64 = 0.5;
}

/// Everything but sums is rounded to 8 bits.
impl Number for bf16 {
    const NAME: &'static str = "bf16";
    const VALUES: f64 = 2.5e-2;
    const GRADIENTS: f64 = 1e-1;
    const WAY: f64 = 2e-2;
    const PRODUCT: f64 = 4e-3;
    const LEAST_TFLOPS: f64 = 1.0;
}

/// How large things are that a GPU is tried on.
pub struct Sizes {
    /// The shape of products and kernels, for an element of so many bytes.
    shape: fn(usize) -> Shape,
    /// Bytes of the copy that is timed.
    copy_bytes: usize,
    /// Side of the square matrices whose product is timed.
    square: usize,
    rehearsal: Rehearsal,
}

impl Sizes {
    /// Those of a model of half a billion parameters.
    pub fn device() -> Sizes {
        Sizes { shape: Shape::half_billion, copy_bytes: COPY_BYTES, square: SQUARE, rehearsal: Rehearsal::small() }
    }

    /// What the emulator, or a device that is watched, gets through in seconds.
    pub fn tiny() -> Sizes {
        Sizes { shape: Shape::tiny, copy_bytes: 1 << 16, square: 48, rehearsal: Rehearsal::tiny() }
    }
}

/// Looks at a GPU and tells every check as it comes.
pub fn check_gpu(gpu: &Gpu, sizes: &Sizes, tell: &mut dyn FnMut(Check)) {
    tell(Check::run("device memory that is free", || {
        let (free, _) = gpu.memory()?;
        Ok::<_, CudaError>(Outcome::Measured { value: free as f64 / GIB, unit: "GiB", least: 1.0 })
    }));
    tell(Check::run("device memory, read and written by a copy", || {
        Ok::<_, CudaError>(rate(copy_rate(gpu, sizes.copy_bytes)?, "GB/s", 50.0))
    }));
    check_rate::<bf16>(gpu, sizes.square, tell);
    check_rate::<f32>(gpu, sizes.square, tell);
    for products in [Products::Library, Products::Invariant] {
        check_products::<f32>(gpu, products, &(sizes.shape)(4), tell);
        check_products::<bf16>(gpu, products, &(sizes.shape)(2), tell);
    }
    for products in [Products::Library, Products::Invariant] {
        check_model::<f32>(gpu, products, &sizes.rehearsal, tell);
        check_model::<bf16>(gpu, products, &sizes.rehearsal, tell);
    }
    time_kernels::<bf16>(gpu, &(sizes.shape)(2), tell);
    time_kernels::<f32>(gpu, &(sizes.shape)(4), tell);
}

fn check_rate<E: Number>(gpu: &Gpu, n: usize, tell: &mut dyn FnMut(Check)) {
    tell(Check::run(format!("product in {} by the library", E::NAME), || {
        Ok::<_, CudaError>(rate(product_rate::<E>(gpu, n)?, "TFLOP/s", E::LEAST_TFLOPS))
    }));
}

/// Who multiplies.
fn by(products: Products) -> &'static str {
    match products {
        Products::Library => "by the library",
        Products::Invariant => "by our kernel",
    }
}

fn rate(value: Option<f64>, unit: &'static str, least: f64) -> Outcome {
    value.map_or(Outcome::Untimed, |value| Outcome::Measured { value, unit, least })
}

/// Rows that are computed alone, beside what they are among all rows: around the sizes of tiles and warps.
const ROWS: [usize; 10] = [1, 2, 7, 16, 17, 64, 65, 128, 200, 1000];

/// Numbers of one result that are fetched to be compared.
const FETCHED: usize = 64 << 20;

/// What became of some products.
#[derive(Default)]
struct Seen {
    /// Rows that were other bits alone than among others.
    dependent: usize,
    /// The largest error against f64, by the sum of the terms' magnitudes.
    off: f64,
}

/// The products of a layer and of the head, forward and back to their input.
fn check_products<E: Number>(gpu: &Gpu, products: Products, shape: &Shape, tell: &mut dyn FnMut(Check)) {
    let start = Instant::now();
    let ([heads, kv_heads, width], d) = (shape.heads, shape.d_model);
    let layer = [((heads + 2 * kv_heads) * width, d), (2 * shape.d_ff, d), (d, shape.d_ff)];
    let mut seen = Seen::default();
    let outcome = (|| {
        for (out, input) in layer {
            forward::<E, E>(gpu, products, shape.rows, out, input, &mut seen)?;
            backward::<E>(gpu, products, shape.rows, out, input, &mut seen)?;
        }
        Ok::<(), CudaError>(())
    })();
    let mut head = Seen::default();
    let outcome = outcome.and_then(|()| forward::<E, f32>(gpu, products, shape.rows, shape.vocab, d, &mut head));
    let name = format!("products in {} {}", E::NAME, by(products));
    if let Err(error) = outcome {
        return tell(Check::run(name, || Err(error)));
    }
    let dependent = (seen.dependent + head.dependent) as f64;
    tell(Check::off(format!("{name}: rows that depend on how many there are"), dependent, 0.0, start));
    tell(Check::off(format!("{name}: off from f64 by"), seen.off, E::PRODUCT, start));
    // Sums of products of bf16 reach f32 unrounded; hardware may cut off a bit of each.
    let bound = 10.0 * f32::PRODUCT;
    tell(Check::off(format!("{name}, logits: off from f64 by"), head.off, bound, start));
}

/// y = x·Wᵀ.
fn forward<E: Number, C: Element>(
    gpu: &Gpu,
    products: Products,
    rows: usize,
    out: usize,
    input: usize,
    seen: &mut Seen,
) -> Result<(), CudaError> {
    let rows = rows.min(FETCHED / out);
    let (x, w) = (numbers::<E>(3, rows * input), numbers::<E>(4, out * input));
    let (on_x, on_w) = (gpu.upload("x", &x)?, gpu.upload("a weight", &w)?);
    let mut y = gpu.buffer::<C>("y", rows * out)?;
    let mut run = |from: usize, n: usize| {
        let x = on_x.slice(from * input..(from + n) * input);
        linear_fwd(gpu, products, y.slice_mut(0..n * out), x, on_w.view(), input, Write::Scaled(1.0))?;
        gpu.to_vec(y.slice(0..n * out))
    };
    let whole = compare(rows, out, &mut run, seen)?;
    let terms = |i: usize, j: usize| x[i * input..][..input].iter().zip(&w[j * input..][..input]);
    seen.off = larger(seen.off, off_from_f64(&whole, out, |i, j| sum(terms(i, j))));
    Ok(())
}

/// dx = dy·W.
fn backward<E: Number>(
    gpu: &Gpu,
    products: Products,
    rows: usize,
    out: usize,
    input: usize,
    seen: &mut Seen,
) -> Result<(), CudaError> {
    let (dy, w) = (numbers::<E>(5, rows * out), numbers::<E>(6, out * input));
    let (on_dy, on_w) = (gpu.upload("dy", &dy)?, gpu.upload("a weight", &w)?);
    let mut dx = gpu.buffer::<E>("dx", rows * input)?;
    let mut run = |from: usize, n: usize| {
        let dy = on_dy.slice(from * out..(from + n) * out);
        linear_bwd_input(gpu, products, dx.slice_mut(0..n * input), dy, on_w.view(), input, false)?;
        gpu.to_vec(dx.slice(0..n * input))
    };
    let whole = compare(rows, input, &mut run, seen)?;
    let terms = |i: usize, j: usize| dy[i * out..][..out].iter().zip(w[j..].iter().step_by(input));
    seen.off = larger(seen.off, off_from_f64(&whole, input, |i, j| sum(terms(i, j))));
    Ok(())
}

/// `run(from, n)` is a product of `n` rows from row `from` on: counts rows that are not, in every bit, what they are among all.
fn compare<C: Element>(
    rows: usize,
    columns: usize,
    run: &mut dyn FnMut(usize, usize) -> Result<Vec<C>, CudaError>,
    seen: &mut Seen,
) -> Result<Vec<C>, CudaError> {
    let whole = run(0, rows)?;
    for n in ROWS.into_iter().filter(|&n| n < rows) {
        let from = (13 * n + 5) % (rows - n);
        let alone = run(from, n)?;
        let among = &whole[from * columns..][..n * columns];
        let differ = |(a, b): &(&[C], &[C])| bytemuck::cast_slice::<C, u8>(a) != bytemuck::cast_slice::<C, u8>(b);
        seen.dependent += alone.chunks(columns).zip(among.chunks(columns)).filter(differ).count();
    }
    Ok(whole)
}

/// A sum of products in f64, and the sum of their magnitudes.
fn sum<'a, E: Element>(terms: impl Iterator<Item = (&'a E, &'a E)>) -> (f64, f64) {
    terms.fold((0.0, 0.0), |(sum, size), (a, b)| {
        let term = f64::from(a.to_f32()) * f64::from(b.to_f32());
        (sum + term, size + term.abs())
    })
}

/// The largest error of some elements.
fn off_from_f64<C: Element>(got: &[C], columns: usize, want: impl Fn(usize, usize) -> (f64, f64)) -> f64 {
    let some = (0..got.len()).step_by((got.len() / 500).max(1) | 1);
    let error = |at: usize| {
        let (want, size) = want(at / columns, at % columns);
        (f64::from(got[at].to_f32()) - want).abs() / size
    };
    some.map(error).fold(0.0, larger)
}

/// A training step on the CPU and on the GPU, there twice, and what was sampled against what is scored.
fn check_model<E: Number + 'static>(gpu: &Gpu, products: Products, rehearsal: &Rehearsal, tell: &mut dyn FnMut(Check)) {
    let suffix = format!("{} {}", E::NAME, by(products));
    if let Err(error) = check_step::<E>(gpu, products, rehearsal, &suffix, tell) {
        tell(Check::run(format!("a training step in {suffix}"), || Err(error)));
    }
    tell(Check::run(format!("sampled and scored log-probabilities in {suffix}: largest difference"), || {
        let by = rehearsal.gap(&mut rehearsal.on_gpu::<E>(gpu, products)?)?;
        Ok::<_, EngineError>(Outcome::Off { by, bound: 0.0 })
    }));
}

fn check_step<E: Number + 'static>(
    gpu: &Gpu,
    products: Products,
    rehearsal: &Rehearsal,
    suffix: &str,
    tell: &mut dyn FnMut(Check),
) -> Result<(), EngineError> {
    let start = Instant::now();
    let want = rehearsal.step(&mut rehearsal.on_cpu(Isa::available()[0], 2, transformer::Precision::F32))?;
    let got = rehearsal.step(&mut rehearsal.on_gpu::<E>(gpu, products)?)?;
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let pairs = [
        (&got.values.logp, &want.values.logp),
        (&got.values.entropy, &want.values.entropy),
        (&got.values.value, &want.values.value),
    ];
    let values = pairs.map(|(got, want)| off(got, wide(want).into_iter())).into_iter().fold(0.0, larger);
    let entries = rehearsal.weights.table.entries.iter().map(|entry| entry.range());
    let gradients = entries.map(|at| off(&got.gradients[at.clone()], wide(&want.gradients[at]).into_iter()));
    let gradients = gradients.fold(0.0, larger);
    let square = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
    let way = square(&got.weights, &want.weights) / square(&want.weights, &rehearsal.weights.data);
    for (what, by, bound) in [
        ("values off from the CPU's by", values, E::VALUES),
        ("gradients off from the CPU's by", gradients, E::GRADIENTS),
        ("weights off from the CPU's by (squared, of their way)", way, E::WAY),
    ] {
        tell(Check::off(format!("a training step in {suffix}: {what}"), by, bound, start));
    }
    let start = Instant::now();
    let again = rehearsal.step(&mut rehearsal.on_gpu::<E>(gpu, products)?)?;
    let differing = got.differing(&again);
    tell(Check::off(format!("a training step twice in {suffix}: numbers that differ"), differing, 0.0, start));
    Ok(())
}

/// Every kernel at the shape, and the library's products.
fn time_kernels<E: Number>(gpu: &Gpu, shape: &Shape, tell: &mut dyn FnMut(Check)) {
    for trial in trials::<E>() {
        let name = format!("{} in {}", trial.name, E::NAME);
        let mut time = None;
        let mut check = Check::run(name, || {
            let mut run = trial.prepare(gpu, shape)?;
            time = milliseconds(gpu, &mut || run(gpu))?;
            let Work { bytes, flops } = trial.work(shape);
            Ok::<_, CudaError>(time.map_or(Outcome::Untimed, |_| Outcome::Ran(Work { bytes, flops })))
        });
        check.milliseconds = time.unwrap_or(check.milliseconds);
        tell(check);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_passes_on_the_emulator() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let mut checks = Vec::new();
        check_gpu(&gpu, &Sizes::tiny(), &mut |check| checks.push(check));
        for check in &checks {
            println!("{check} [{:.0} ms]", check.milliseconds);
        }
        assert!(checks.iter().all(|check| check.ok() == Some(true)));
        let untimed = checks.iter().filter(|check| check.to_string().ends_with("no time on the emulator")).count();
        assert_eq!(untimed, 3 + trials::<f32>().len() + trials::<bf16>().len());
    }

    #[test]
    fn a_row_that_depends_on_how_many_there_are_is_found() {
        let (rows, columns) = (70, 3);
        let mut seen = Seen::default();
        let honest = |from: usize, n: usize| Ok((from * columns..(from + n) * columns).map(|i| i as f32).collect());
        assert_eq!(compare::<f32>(rows, columns, &mut { honest }, &mut seen).unwrap().len(), 210);
        assert_eq!(seen.dependent, 0);
        let mut another_way_to_sum = |from: usize, n: usize| {
            let mut y: Vec<f32> = honest(from, n)?;
            if n == 17 {
                y[4 * columns] = f32::from_bits(y[4 * columns].to_bits() + 1);
            }
            Ok(y)
        };
        compare(rows, columns, &mut another_way_to_sum, &mut seen).unwrap();
        assert_eq!(seen.dependent, 1);
        assert_eq!(off_from_f64(&[1.0f32, 3.0], 2, |i, j| ((i + 2 * j) as f64 + 1.0, 4.0)), 0.0);
        assert_eq!(off_from_f64(&[1.0f32, 4.0], 2, |i, j| ((i + 2 * j) as f64 + 1.0, 4.0)), 0.25);
    }
}

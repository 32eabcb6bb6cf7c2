//! A GPU: what it moves and computes, whether a row of a product depends on the rows beside it, a training step against the CPU's, what
//! was sampled against what is scored, and every kernel.

use super::ceilings::{COPY_BYTES, Ceilings, SQUARE, copy_rate, numbers, product_rate};
use super::kernels::Extent;
use super::manifest::check_manifest;
use super::rehearsal::Rehearsal;
use super::{Check, Number, Outcome, Short, larger, off};
use crate::engine::EngineError;
use crate::gpu::Products;
use crate::simd::Isa;
use crate::transformer;
use half::bf16;
use ragen_cuda::gemm::{Write, linear_bwd_input, linear_fwd};
use ragen_cuda::kernels::Shape;
use ragen_cuda::{CudaError, Element, Gpu};
use std::time::Instant;

const GIB: f64 = (1u64 << 30) as f64;

/// How large things are that a GPU is tried on.
pub struct Sizes {
    /// The shape of products and kernels, for an element of so many bytes.
    shape: fn(usize) -> Shape,
    /// Bytes of the copy that is timed.
    copy_bytes: usize,
    /// Side of the square matrices whose product is timed.
    square: usize,
    /// The op cases of kernels.
    pub(super) extent: Extent,
    rehearsal: Rehearsal,
}

impl Sizes {
    /// Those of a model of half a billion parameters.
    pub fn device() -> Sizes {
        Sizes {
            shape: Shape::half_billion,
            copy_bytes: COPY_BYTES,
            square: SQUARE,
            extent: Extent::DEVICE,
            rehearsal: Rehearsal::small(),
        }
    }

    /// What the emulator, or a device that is watched, gets through in seconds.
    pub fn tiny() -> Sizes {
        Sizes {
            shape: Shape::tiny,
            copy_bytes: 1 << 16,
            square: 48,
            extent: Extent::TINY,
            rehearsal: Rehearsal::tiny(),
        }
    }

    /// The shape of products and kernels in E.
    pub(super) fn shape<E: Number>(&self) -> Shape {
        (self.shape)(size_of::<E>())
    }
}

/// What the choices of `run.products` give: who multiplies, rows that depend on how many there are, and the largest difference between
/// log-probabilities as sampled and as scored.
struct Choice {
    products: Products,
    dependent: f64,
    gap: f64,
}

/// Looks at a GPU, tells every check as it comes, and gives advice on `run.products`.
pub fn check_gpu(gpu: &Gpu, sizes: &Sizes, tell: &mut dyn FnMut(Check)) -> String {
    tell(Check::run("device memory that is free", || {
        let (free, _) = gpu.memory()?;
        Ok::<_, CudaError>(Outcome::Measured { value: free as f64 / GIB, unit: "GiB", least: 1.0 })
    }));
    let copy = "device memory, read and written by a copy";
    let copy = check_rate(copy, "GB/s", 50.0, || copy_rate(gpu, sizes.copy_bytes), tell);
    let (product_bf16, product_f32) =
        (check_product::<bf16>(gpu, sizes.square, tell), check_product::<f32>(gpu, sizes.square, tell));
    let mut choices = [Products::Library, Products::Invariant].map(|products| Choice {
        products,
        dependent: check_products::<f32>(gpu, products, &sizes.shape::<f32>(), tell)
            + check_products::<bf16>(gpu, products, &sizes.shape::<bf16>(), tell),
        gap: 0.0,
    });
    for choice in &mut choices {
        let gaps = [
            check_model::<f32>(gpu, choice.products, &sizes.rehearsal, tell),
            check_model::<bf16>(gpu, choice.products, &sizes.rehearsal, tell),
        ];
        choice.gap = gaps.into_iter().fold(0.0, larger);
    }
    check_manifest(gpu, sizes, &Ceilings { copy, product_f32, product_bf16 }, tell);
    advice(&choices)
}

/// Which `run.products` to take, and why.
fn advice(choices: &[Choice; 2]) -> String {
    let [library, invariant] = choices;
    let is_well = |choice: &Choice| choice.dependent == 0.0 && choice.gap == 0.0;
    let finds = |choice: &Choice| {
        format!(
            "{}, {} rows depend on how many there are, and log-probabilities as sampled and as scored differ by up to {}",
            by(choice.products),
            Short(choice.dependent),
            Short(choice.gap)
        )
    };
    match (is_well(library), is_well(invariant)) {
        (true, true) => {
            "run.products may be \"library\" or \"invariant\": by both, log-probabilities are scored as they were \
                         sampled, in every bit"
                .into()
        }
        (true, false) => format!("set run.products = \"library\": {}", finds(invariant)),
        (false, true) => format!("set run.products = \"invariant\", where the gap is 0: {}", finds(library)),
        (false, false) => format!("no choice of run.products is right here: {}; {}", finds(library), finds(invariant)),
    }
}

/// Measures a rate that may not be less than `least`.
fn check_rate(
    name: &str,
    unit: &'static str,
    least: f64,
    measure: impl FnOnce() -> Result<Option<f64>, CudaError>,
    tell: &mut dyn FnMut(Check),
) -> Option<f64> {
    let mut rate = None;
    tell(Check::run(name, || {
        rate = measure()?;
        Ok::<_, CudaError>(rate.map_or(Outcome::Untimed, |value| Outcome::Measured { value, unit, least }))
    }));
    rate
}

fn check_product<E: Number>(gpu: &Gpu, n: usize, tell: &mut dyn FnMut(Check)) -> Option<f64> {
    let name = format!("product in {} by the library", E::NAME);
    check_rate(&name, "TFLOP/s", E::LEAST_TFLOPS, || product_rate::<E>(gpu, n), tell)
}

/// Who multiplies.
fn by(products: Products) -> &'static str {
    match products {
        Products::Library => "by the library",
        Products::Invariant => "by our kernel",
    }
}

/// Rows that are computed alone, beside what they are among all rows: batches of decoding, powers of two and odd ones, around the sizes of
/// tiles and warps, and more than a library's algorithm is chosen for.
const ROWS: [usize; 19] = [1, 2, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 100, 128, 129, 200, 255, 256, 1000];

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

/// The products of a layer and of the head, forward and back to their input; the rows that depend on how many there are.
fn check_products<E: Number>(gpu: &Gpu, products: Products, shape: &Shape, tell: &mut dyn FnMut(Check)) -> f64 {
    let start = Instant::now();
    let ([heads, kv_heads, width], d) = (shape.heads, shape.d_model);
    let layer = [((heads + 2 * kv_heads) * width, d), (d, heads * width), (2 * shape.d_ff, d), (d, shape.d_ff)];
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
        tell(Check::run(name, || Err(error)));
        return f64::NAN;
    }
    let dependent = (seen.dependent + head.dependent) as f64;
    tell(Check::off(format!("{name}: rows that depend on how many there are"), dependent, 0.0, start));
    tell(Check::off(format!("{name}: off from f64 by"), seen.off, E::PRODUCT, start));
    // Sums of products of bf16 reach f32 unrounded; hardware may cut off a bit of each.
    let bound = 10.0 * f32::PRODUCT;
    tell(Check::off(format!("{name}, logits: off from f64 by"), head.off, bound, start));
    dependent
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

/// A training step on the CPU and on the GPU, there twice, and what was sampled against what is scored: that gap.
fn check_model<E: Number>(gpu: &Gpu, products: Products, rehearsal: &Rehearsal, tell: &mut dyn FnMut(Check)) -> f64 {
    let suffix = format!("{} {}", E::NAME, by(products));
    if let Err(error) = check_step::<E>(gpu, products, rehearsal, &suffix, tell) {
        tell(Check::run(format!("a training step in {suffix}"), || Err(error)));
    }
    let mut gap = f64::NAN;
    tell(Check::run(format!("sampled and scored log-probabilities in {suffix}: largest difference"), || {
        gap = rehearsal.gap(&mut rehearsal.on_gpu::<E>(gpu, products)?)?;
        Ok::<_, EngineError>(Outcome::Off { by: gap, bound: 0.0 })
    }));
    gap
}

fn check_step<E: Number>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::vandal::Vandal;
    use ragen_cuda::kernels;
    use std::sync::Arc;

    fn looked_at(gpu: &Gpu) -> (Vec<Check>, String) {
        let mut checks = Vec::new();
        let advice = check_gpu(gpu, &Sizes::tiny(), &mut |check| checks.push(check));
        for check in &checks {
            println!("{check} [{:.0} ms]", check.milliseconds);
        }
        (checks, advice)
    }

    fn failed(checks: &[Check]) -> Vec<&str> {
        checks.iter().filter(|check| check.ok() == Some(false)).map(|check| check.name.as_str()).collect()
    }

    #[test]
    fn every_check_passes_on_the_emulator() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let (checks, advice) = looked_at(&gpu);
        assert!(checks.iter().all(|check| check.ok() == Some(true)));
        for kernel in kernels::all() {
            let line = checks.iter().find(|check| check.name == kernel.name).unwrap().to_string();
            assert!(line.contains("f32 off by"), "{line}");
            // At the tiny shape no gradient is made in pieces.
            assert_eq!(line.contains("no time on the emulator"), kernel.name != "attention_bwd_add", "{line}");
        }
        assert!(advice.contains("\"library\" or \"invariant\""), "{advice}");
    }

    /// A kernel that multiplies few rows goes astray in one number, and everything takes a second.
    #[test]
    fn a_broken_kernel_dependent_rows_and_a_slow_machine_are_found() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let vandal = Vandal { kernel: "gemm_nt_few", arg: 0, milliseconds: Some(1e3) };
        let (checks, advice) = looked_at(&gpu.watched(Arc::new(vandal)));
        let failed = failed(&checks);
        for rate in ["read and written by a copy", "product in bf16 by the library", "product in f32 by the library"] {
            assert!(failed.iter().any(|name| name.contains(rate)), "{rate}");
        }
        let rows = |by: &str| format!("products in f32 {by}: rows that depend on how many there are");
        assert!(failed.contains(&rows("by our kernel").as_str()) && !failed.contains(&rows("by the library").as_str()));
        let in_manifest: Vec<&&str> = failed.iter().filter(|name| kernels::all().any(|k| k.name == **name)).collect();
        // Rows alone, by the small tiles, are compared with rows among others, by the large ones.
        assert_eq!(in_manifest, [&"gemm_nt", &"gemm_nt_few"]);
        let line = checks.iter().find(|check| check.name == "gemm_nt_few").unwrap().to_string();
        assert!(line.starts_with("FAILED   gemm_nt_few: f32 linear_fwd of "), "{line}");
        let swiglu = checks.iter().find(|check| check.name == "swiglu_fwd").unwrap().to_string();
        assert!(swiglu.contains("ms, ") && swiglu.contains("% of a copy; bf16 off by"), "{swiglu}");
        assert!(advice.starts_with("set run.products = \"library\": by our kernel, "), "{advice}");
    }

    #[test]
    fn advice_is_the_choice_that_leaves_no_gap() {
        let choices = |library: [f64; 2], invariant: [f64; 2]| {
            advice(
                &[(Products::Library, library), (Products::Invariant, invariant)]
                    .map(|(products, [dependent, gap])| Choice { products, dependent, gap }),
            )
        };
        let set = "set run.products = \"invariant\", where the gap is 0: by the library, 3 rows depend on how many there are, \
                   and log-probabilities as sampled and as scored differ by up to 1.0e-6";
        assert_eq!(choices([3.0, 1e-6], [0.0, 0.0]), set);
        assert!(choices([0.0, f64::NAN], [0.0, 0.0]).starts_with("set run.products = \"invariant\""));
        assert!(choices([0.0, 0.0], [0.0, 0.0]).starts_with("run.products may be"));
        assert!(choices([1.0, 0.0], [0.0, 0.1]).starts_with("no choice of run.products"));
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

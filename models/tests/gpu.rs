//! The transformer on the (emulated) GPU against the CPU's, and against itself: with and without recomputation, a prompt shared or not,
//! the same steps twice, with adapters and after a resume.

mod tiny_models;

use half::bf16;
use ragen_cuda::Gpu;
use ragen_cuda::gemm::Products;
use ragen_models::config::Config;
use ragen_models::device::Cpu;
use ragen_models::gpu::{self, GpuTransformer};
use ragen_models::lora::{Lora, Module};
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Gradients, Precision, Transformer};
use tiny_models::*;

const TEMPERATURE: f32 = 0.7;

/// A number type of the device, and how far it may be off from the CPU in f32, by the largest number of a tensor.
trait Number: gpu::Precision {
    const VALUES: f64;
    const GRADIENTS: f64;
    /// The same of the way that weights have gone in three steps, as a normalised square error.
    const STEPS: f64;
}

/// Sums in another order.
impl Number for f32 {
    const VALUES: f64 = 3e-6;
    const GRADIENTS: f64 = 1e-5;
    const STEPS: f64 = 1e-10;
}

/// Everything but sums is rounded to 8 bits, the residual stream too. The CPU's bf16, which rounds the inputs of products only, is off
/// by 1.2e-2 and 5e-2 here.
impl Number for bf16 {
    const VALUES: f64 = 2.5e-2;
    const GRADIENTS: f64 = 1e-1;
    const STEPS: f64 = 2e-2;
}

/// A model, and a batch to train it on.
struct Case {
    config: Config,
    base: Params,
    lora: Option<(Lora, Params)>,
    tree: TokenTree,
    targets: Vec<Target>,
    seeds: PerTarget<f32>,
}

impl Case {
    fn of_kind(kind: usize) -> Case {
        let config = config(kind);
        let tree = branching(config.vocab, [23, 17, 5, 19, 9]);
        let targets = targets(&tree, config.vocab);
        let seeds = seeds(targets.len(), config.value_head);
        Case { base: weights(&config), lora: None, config, tree, targets, seeds }
    }

    /// The weights are frozen, and adapters on these modules are trained; their B is not zero any more.
    fn with_adapters(self, targets: &[Module]) -> Case {
        let lora = Lora { rank: 5, alpha: 6.0, targets: targets.to_vec() };
        let mut adapters = lora.initial(&self.config, 9);
        for (i, x) in adapters.data.iter_mut().enumerate() {
            *x += 0.1 * Key::new(31).normal(i as u64) as f32;
        }
        let base = weights(&Config { value_head: false, ..self.config.clone() });
        Case { base, lora: Some((lora, adapters)), ..self }
    }

    fn on_cpu(&self, cpu: &Cpu) -> Transformer {
        let precision = Precision::F32;
        let (config, base) = (self.config.clone(), self.base.clone());
        match self.lora.clone() {
            None => Transformer::new(cpu, config, base, precision),
            Some((lora, adapters)) => Transformer::with_adapters(cpu, config, base, precision, lora, adapters),
        }
    }

    fn on_gpu<E: Number>(&self, gpu: &Gpu, by: Products) -> GpuTransformer<E> {
        let (gpu, config) = (gpu.clone(), self.config.clone());
        match &self.lora {
            None => GpuTransformer::new(gpu, by, config, &self.base),
            Some((lora, adapters)) => {
                GpuTransformer::with_adapters(gpu, by, config, &self.base, lora.clone(), adapters)
            }
        }
        .unwrap()
    }

    /// Values of the targets and gradients of what is trained.
    fn run_on_cpu(&self) -> (PerTarget<f32>, Params) {
        let cpu = Cpu::new(2).unwrap();
        let model = self.on_cpu(&cpu);
        let (mut acts, mut grads) = (Activations::default(), Gradients::zeros(&model));
        model.forward(&cpu, &self.tree, &mut acts, true);
        let values = model.values(&cpu, &acts, &self.targets, TEMPERATURE);
        model.backward(&cpu, &self.tree, &mut acts, &self.targets, TEMPERATURE, &self.seeds, &mut grads);
        (values, grads.total().clone())
    }

    fn run_on_gpu<E: Number>(&self, gpu: &Gpu, by: Products, recompute: bool) -> (PerTarget<f32>, Params) {
        let mut model = self.on_gpu::<E>(gpu, by);
        let mut acts = gpu::Activations::new(&model, self.tree.rows() + 3, 40, recompute).unwrap();
        model.train(AdamWSettings::default()).unwrap();
        model.forward(&self.tree, &mut acts).unwrap();
        let values = model.values(&mut acts, &self.targets, TEMPERATURE).unwrap();
        model.backward(&mut acts, &self.targets, TEMPERATURE, &self.seeds).unwrap();
        let data = model.gradients().unwrap().unwrap();
        (values, Params { table: model.trained_table().clone(), data })
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn assert_values<E: Number>(what: &str, got: &PerTarget<f32>, want: &PerTarget<f32>) {
    assert_near(&format!("{what}: logp"), &got.logp, &wide(&want.logp), E::VALUES);
    assert_near(&format!("{what}: entropy"), &got.entropy, &wide(&want.entropy), E::VALUES);
    assert_near(&format!("{what}: value"), &got.value, &wide(&want.value), E::VALUES);
}

fn assert_gradients<E: Number>(what: &str, got: &Params, want: &Params) {
    assert_eq!(got.table, want.table, "{what}");
    for entry in &want.table.entries {
        let what = format!("{what}: gradient of {}", entry.name);
        assert_near(&what, &got.data[entry.range()], &wide(&want.data[entry.range()]), E::GRADIENTS);
    }
}

fn check_against_cpu<E: Number>(what: &str, case: &Case, by: Products) {
    let Some(gpu) = Gpu::for_tests() else { return };
    let (values, grads) = case.run_on_gpu::<E>(&gpu, by, false);
    let (want_values, want_grads) = case.run_on_cpu();
    let what = format!("{what} in {:?}", E::KIND);
    assert_values::<E>(&what, &values, &want_values);
    assert_gradients::<E>(&what, &grads, &want_grads);
}

#[test]
fn values_and_gradients_are_the_cpus() {
    for kind in 0..KINDS {
        let case = Case::of_kind(kind);
        check_against_cpu::<f32>(&format!("kind {kind}"), &case, Products::Invariant);
        check_against_cpu::<bf16>(&format!("kind {kind}"), &case, Products::Invariant);
    }
}

#[test]
fn values_and_gradients_of_adapters_are_the_cpus() {
    for (kind, targets) in [(0, &Module::ALL[..]), (1, &Module::ALL), (2, &[Module::K, Module::Down])] {
        let case = Case::of_kind(kind).with_adapters(targets);
        check_against_cpu::<f32>(&format!("adapters on kind {kind}"), &case, Products::Invariant);
        check_against_cpu::<bf16>(&format!("adapters on kind {kind}"), &case, Products::Invariant);
        check_against_cpu::<f32>(&format!("adapters on kind {kind}, by the library"), &case, Products::Library);
    }
}

#[test]
fn recomputation_reaches_no_bit() {
    let Some(gpu) = Gpu::for_tests() else { return };
    for case in [Case::of_kind(0), Case::of_kind(1), Case::of_kind(4).with_adapters(&Module::ALL)] {
        let run = |recompute| {
            let (values, grads) = case.run_on_gpu::<bf16>(&gpu, Products::Invariant, recompute);
            bits(&[values.logp, values.entropy, values.value, grads.data].concat())
        };
        assert!(run(false) == run(true));
    }
}

/// Three endings of one beginning, as rows of their own or below one parent. The ends' values are equal in every bit; what they have in
/// common gets the same gradients, in another order.
fn check_prefix<E: Number>(kind: usize) {
    let Some(gpu) = Gpu::for_tests() else { return };
    let (case, beginning) = (Case::of_kind(kind), ids(50, 21, 83));
    let endings: Vec<Vec<u32>> = (0..3).map(|i| ids(60 + i, 5 + 13 * i as usize, 83)).collect();
    let mut shared = TokenTree::new();
    let root = shared.push(None, &beginning);
    let segments: Vec<usize> = endings.iter().map(|ending| shared.push(Some(root), ending)).collect();
    let rows: Vec<Vec<u32>> = endings.iter().map(|ending| [&beginning[..], ending].concat()).collect();
    let alone = TokenTree::from_rows(&rows);
    let below_parent = segments.iter().map(|&s| shared.segments[s].start);
    let in_row = alone.segments.iter().map(|s| s.start + beginning.len());
    let targets = |starts: Vec<usize>| -> Vec<Target> {
        let row = |(start, ending): (usize, &Vec<u32>)| {
            let target = |t: usize| Target { row: start + t, token: ending[(t + 1) % ending.len()], kept: None };
            (0..ending.len()).map(target).collect::<Vec<_>>()
        };
        starts.into_iter().zip(&endings).flat_map(row).collect()
    };
    let run = |tree: &TokenTree, targets: Vec<Target>| {
        let seeds = seeds(targets.len(), case.config.value_head);
        let (config, base) = (case.config.clone(), case.base.clone());
        let case = Case { tree: tree.clone(), targets, seeds, config, base, lora: None };
        case.run_on_gpu::<E>(&gpu, Products::Invariant, false)
    };
    let (values, grads) = run(&shared, targets(below_parent.collect()));
    let (want_values, want_grads) = run(&alone, targets(in_row.collect()));
    assert!(bits(&values.logp) == bits(&want_values.logp), "kind {kind}: log-probabilities below one parent");
    assert!(bits(&values.value) == bits(&want_values.value), "kind {kind}: values below one parent");
    assert_gradients::<E>(&format!("kind {kind}, prefix shared"), &grads, &want_grads);
}

#[test]
fn a_shared_prompt_is_the_same_prompt() {
    for kind in [1, 3] {
        check_prefix::<f32>(kind);
        check_prefix::<bf16>(kind);
    }
}

const LR: f64 = 1e-2;

/// ε is large enough for gradients that are zero but for rounding not to be made large.
fn settings() -> AdamWSettings {
    AdamWSettings { eps: 1e-4, ..AdamWSettings::default() }
}

/// One step on the case's batch; the gradients' norm.
fn step<E: Number>(case: &Case, model: &mut GpuTransformer<E>, acts: &mut gpu::Activations<E>) -> f64 {
    model.forward(&case.tree, acts).unwrap();
    model.backward(acts, &case.targets, TEMPERATURE, &case.seeds).unwrap();
    let step = model.update(LR).unwrap();
    assert!(!step.skipped && model.gradients().unwrap().unwrap().iter().all(|&g| g == 0.0));
    step.grad_norm
}

/// Norms of the gradients of three steps on the CPU, and what is trained after them.
fn steps_on_cpu(case: &Case) -> (Vec<f64>, Params) {
    let cpu = Cpu::new(2).unwrap();
    let mut model = case.on_cpu(&cpu);
    let mut optimiser = AdamW::new(settings(), model.trained().table.clone());
    let norms = (0..3).map(|_| {
        let (mut acts, mut grads) = (Activations::default(), Gradients::zeros(&model));
        model.forward(&cpu, &case.tree, &mut acts, true);
        model.backward(&cpu, &case.tree, &mut acts, &case.targets, TEMPERATURE, &case.seeds, &mut grads);
        model.update(&cpu, |params| optimiser.step(&cpu, params, grads.total(), LR)).grad_norm
    });
    (norms.collect(), model.trained().clone())
}

fn check_steps<E: Number>(what: &str, case: &Case) {
    let Some(gpu) = Gpu::for_tests() else { return };
    let what = format!("{what} in {:?}", E::KIND);
    let start = case.lora.as_ref().map_or(&case.base, |(_, adapters)| adapters);
    let mut model = case.on_gpu::<E>(&gpu, Products::Invariant);
    let mut acts = gpu::Activations::new(&model, case.tree.rows(), 40, false).unwrap();
    model.train(settings()).unwrap();
    let mut norms = vec![step(case, &mut model, &mut acts), step(case, &mut model, &mut acts)];
    let (trained, optimiser) = (model.trained().unwrap(), model.optimiser_state().unwrap().unwrap());
    norms.push(step(case, &mut model, &mut acts));
    let end = model.trained().unwrap();

    let (want_norms, want) = steps_on_cpu(case);
    for (got, want) in norms.iter().zip(&want_norms) {
        assert!((got - want).abs() <= E::GRADIENTS * want, "{what}: gradients' norm {got}, not {want}");
    }
    let square = |x: &dyn Fn(usize) -> f32| (0..want.data.len()).map(|i| f64::from(x(i)).powi(2)).sum::<f64>();
    let way = square(&|i| want.data[i] - start.data[i]);
    let off = square(&|i| end.data[i] - want.data[i]);
    assert!(off <= E::STEPS * way, "{what}: three steps are off by {:.2e} of their way", off / way);

    // Taken up after two steps by a model that has been elsewhere: the third step is the same in every bit.
    assert_eq!((optimiser.steps, &optimiser.m.table), (2, &start.table));
    let mut resumed = case.on_gpu::<E>(&gpu, Products::Invariant);
    resumed.train(AdamWSettings::default()).unwrap();
    step(case, &mut resumed, &mut acts);
    resumed.set_trained(&trained).unwrap();
    resumed.restore(&optimiser).unwrap();
    assert_eq!(step(case, &mut resumed, &mut acts).to_bits(), norms[2].to_bits(), "{what}: resumed");
    assert!(bits(&resumed.trained().unwrap().data) == bits(&end.data), "{what}: resumed");
    let again = resumed.optimiser_state().unwrap().unwrap();
    assert_eq!(again.steps, 3);
    let moments = model.optimiser_state().unwrap().unwrap();
    assert!(bits(&again.m.data) == bits(&moments.m.data) && bits(&again.v.data) == bits(&moments.v.data));
}

#[test]
fn three_steps_are_the_cpus_and_can_be_taken_up_after_two() {
    let case = Case::of_kind(1);
    check_steps::<f32>("all weights", &case);
    check_steps::<bf16>("all weights", &case);
    let case = Case::of_kind(0).with_adapters(&Module::ALL);
    check_steps::<f32>("adapters", &case);
    check_steps::<bf16>("adapters", &case);
}

#[test]
fn the_same_steps_give_the_same_bits() {
    let Some(gpu) = Gpu::for_tests() else { return };
    for case in [Case::of_kind(0), Case::of_kind(2).with_adapters(&[Module::V, Module::Up])] {
        let run = || {
            let mut model = case.on_gpu::<bf16>(&gpu, Products::Invariant);
            let mut acts = gpu::Activations::new(&model, case.tree.rows(), 40, true).unwrap();
            model.train(settings()).unwrap();
            let norms: Vec<u64> = (0..2).map(|_| step(&case, &mut model, &mut acts).to_bits()).collect();
            (norms, bits(&model.trained().unwrap().data))
        };
        assert!(run() == run());
    }
}

#[test]
fn a_model_with_adapters_is_the_base_without_them_and_merges_into_one() {
    let Some(gpu) = Gpu::for_tests() else { return };
    let case = Case::of_kind(2).with_adapters(&Module::ALL);
    let logp = |model: &GpuTransformer<f32>| {
        let mut acts = gpu::Activations::new(model, case.tree.rows(), 40, false).unwrap();
        model.forward(&case.tree, &mut acts).unwrap();
        model.values(&mut acts, &case.targets, TEMPERATURE).unwrap().logp
    };
    let mut model = case.on_gpu::<f32>(&gpu, Products::Invariant);
    let frozen = |params: &Params| {
        GpuTransformer::frozen(gpu.clone(), Products::Invariant, case.config.clone(), params).unwrap()
    };
    let (with, base) = (logp(&model), logp(&frozen(&case.base)));
    assert!(bits(&model.without_adapters(|model| logp(model))) == bits(&base), "the reference is the base");
    assert!(bits(&logp(&model)) == bits(&with) && with.iter().zip(&base).any(|(a, b)| (a - b).abs() > 0.1));
    assert_near("merged", &logp(&frozen(&model.merged().unwrap())), &wide(&with), 2e-5);
    let (lora, adapters) = case.lora.as_ref().unwrap();
    assert!(model.lora() == Some(lora) && model.trained().unwrap().data == adapters.data);
    // Frozen weights lie there in bf16 alone and come back so; adapters come back as they are.
    let model = case.on_gpu::<bf16>(&gpu, Products::Invariant);
    let rounded: Vec<f32> = case.base.data.iter().map(|&w| bf16::from_f32(w).to_f32()).collect();
    assert!(model.params().unwrap().data == rounded && model.trained().unwrap().data == adapters.data);
}

//! The loop over a model on the GPU, which here is the emulator: as `model_policy.rs`, tiny and with random weights.

mod tiny_model;

use ragen::agent_proxy::{Play, play};
use ragen::config::{Config, ContextMode, Window};
use ragen::context_manager::ContextManager;
use ragen::env_manager::metrics::Metrics;
use ragen::estimator::Estimator;
use ragen::policy::model::Model;
use ragen::policy::{Policy, Request, Row, SequenceId, Stop, TokenSeeds, TokenValues, Weights};
use ragen::settings;
use ragen::train::{TrainState, Trainer};
use ragen::trajectory::Trajectory;
use ragen_models::device::Cpu;
use ragen_models::engine::{GpuEngine, Room};
use ragen_models::gpu::{Emulator, Gpu, GpuTransformer, Precision as OnDevice, Products, Traffic};
use ragen_models::optim::AdamWSettings;
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::simd::Isa;
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::{Config as Shape, Precision, Transformer};
use std::num::NonZeroUsize;
use std::sync::Arc;

type Bf16 = half::bf16;

const ROOM: Room = Room { packed_tokens: 256, head_rows: 64, pages: 200, prefill_tokens: 128, sequences: 6 };

/// Two groups of three on Sokoban, with short responses.
fn small() -> Config {
    let changes = ["env.train.groups=2", "env.train.group_size=3", "rollout.response_tokens=6", "rollout.max_turns=3"];
    let mut config = settings::load(Some("sokoban"), &changes.map(String::from)).unwrap();
    config.filter.value = 1.0;
    config.algorithm.estimator = Estimator::Gae;
    config.update.loss.entropy_coef = 0.02;
    config.collapse.every = 0;
    config.val.before_train = false;
    config
}

fn weights(config: &Config) -> (Shape, Params) {
    let shape = tiny_model::shape(Tokenizer::tiny().vocab(), config.rollout.model_tokens, true);
    let mut params = tiny_model::weights(&shape, 60.0);
    // All rewards of a model that says nothing are equal: advantages come of values that differ.
    let values = params.get_mut("value_head.weight");
    values.iter_mut().enumerate().for_each(|(i, w)| *w = 0.4 * Key::new(5).normal(i as u64) as f32);
    (shape, params)
}

fn on_cpu(config: &Config) -> Model {
    let (shape, params) = weights(config);
    let cpu = Arc::new(Cpu::with(Isa::available()[0], 2));
    Model::new(cpu, shape, params, Precision::F32, AdamWSettings::default())
}

fn on_gpu<E: OnDevice + 'static>(gpu: &Gpu, config: &Config) -> Model {
    let (shape, params) = weights(config);
    let model = GpuTransformer::<E>::new(gpu.clone(), Products::Invariant, shape, &params).unwrap();
    Model::over(Box::new(GpuEngine::new(model, ROOM, AdamWSettings::default()).unwrap()))
}

fn trainer(config: &Config) -> Trainer {
    let context = ContextManager::new(config, Arc::new(Tokenizer::tiny()), None, config.rollout.model_tokens).unwrap();
    Trainer::new(config.clone(), context).unwrap()
}

fn rollout(config: &Config, policy: &mut Model) -> Vec<Trajectory> {
    let mut trainer = trainer(config);
    let broken = trainer.train_envs.reset().unwrap();
    let how = Play::new(&trainer.context, &config.rollout, config.rollout.sampling);
    play(policy, &mut trainer.train_envs, broken, how, Key::new(1)).unwrap().trajectories
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Sampled and scored bits, with and without sharing of prefixes; returns the trajectories.
fn sampled_is_scored<E: OnDevice + 'static>(gpu: &Gpu, config: &Config) -> Vec<Trajectory> {
    let mut policy = on_gpu::<E>(gpu, config);
    let trajectories = rollout(config, &mut policy);
    let rows: Vec<Row<'_>> = trajectories.iter().flat_map(Trajectory::views).collect();
    let sampled: Vec<f32> = trajectories.iter().flat_map(|t| &t.rows).flat_map(|row| &row.logps).copied().collect();
    assert!(trajectories.len() == 6 && sampled.len() > 50, "{} tokens", sampled.len());
    for share_prefix in [true, false] {
        policy.share_prefix = share_prefix;
        let scored = policy.score(Weights::Policy, &rows, config.rollout.sampling.temperature).unwrap().logp;
        assert_eq!(bits(&scored), bits(&sampled), "shared {share_prefix}");
    }
    trajectories
}

#[test]
fn every_token_scored_on_the_gpu_has_the_bits_it_was_sampled_with_there() {
    let Some(gpu) = Gpu::for_tests() else { return };
    let mut config = small();
    let on_device = sampled_is_scored::<f32>(&gpu, &config);
    // In f32 the CPU draws the same tokens.
    for (gpu, cpu) in on_device.iter().zip(rollout(&config, &mut on_cpu(&config))) {
        assert_eq!(gpu.rows[0].tokens.ids, cpu.rows[0].tokens.ids);
        for (a, b) in gpu.rows[0].logps.iter().zip(&cpu.rows[0].logps) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
    // A window of turns: a row each, the system prompt shared where it is long enough.
    let mut windowed = config.clone();
    windowed.rollout.context = ContextMode::LimitedMultiTurn;
    windowed.rollout.context_window = Window::Last(NonZeroUsize::new(2).unwrap());
    let rows = sampled_is_scored::<f32>(&gpu, &windowed);
    assert!(rows.iter().all(|t| t.rows.len() == t.turns.len()) && rows.iter().any(|t| t.turns.len() > 2));
    let sampling = &mut config.rollout.sampling;
    (sampling.temperature, sampling.top_p, sampling.top_k) = (0.7, 0.9, 40);
    let filtered = sampled_is_scored::<Bf16>(&gpu, &config);
    let kept = filtered.iter().flat_map(|t| &t.rows[0].kept).flatten().filter(|kept| kept.len() > 1).count();
    assert!(kept > 10, "{kept} tokens were drawn from more than one");
}

/// Metrics of some steps, and the weights after them.
type Outcome = (Vec<Metrics>, Vec<u32>);

fn train(policy: &mut Model, steps: std::ops::RangeInclusive<u64>, trainer: &mut Trainer) -> Outcome {
    let metrics = steps.map(|step| trainer.step(policy, step).unwrap().metrics).collect();
    (metrics, bits(&policy.params().unwrap().data))
}

fn three_steps<E: OnDevice + 'static>(gpu: &Gpu, config: &Config) -> Outcome {
    let outcome = train(&mut on_gpu::<E>(gpu, config), 1..=3, &mut trainer(config));
    for metrics in &outcome.0 {
        assert_eq!(metrics["update/first_ratio_max_error"], 0.0);
        assert!(metrics["update/grad_norm"] > 0.01, "there is something to learn: {metrics:?}");
        assert!(metrics.values().all(|value| value.is_finite()));
    }
    assert!(outcome == train(&mut on_gpu::<E>(gpu, config), 1..=3, &mut trainer(config)), "twice the same");
    outcome
}

#[test]
fn three_steps_are_those_of_the_cpu_and_repeat_in_every_bit() {
    let Some(gpu) = Gpu::for_tests() else { return };
    let config = small();
    let (_, weights_before) = weights(&config);
    let (metrics, weights) = three_steps::<f32>(&gpu, &config);
    let mut policy = on_cpu(&config);
    let (cpu_metrics, cpu_weights) = train(&mut policy, 1..=3, &mut trainer(&config));
    for (gpu, cpu) in metrics.iter().zip(&cpu_metrics) {
        assert!(gpu.keys().eq(cpu.keys()));
        for (key, value) in cpu {
            assert!(
                (gpu[key] - value).abs() <= 1e-4 * value.abs().max(1.0),
                "{key}: {} and {value} on the CPU",
                gpu[key]
            );
        }
    }
    let off = |a: &u32, b: &u32| (f32::from_bits(*a) - f32::from_bits(*b)).abs();
    let largest = weights.iter().zip(&cpu_weights).map(|(a, b)| off(a, b)).fold(0.0, f32::max);
    let moved = bits(&weights_before.data).iter().zip(&cpu_weights).map(|(a, b)| off(a, b)).fold(0.0, f32::max);
    assert!(largest < 1e-3 * moved && moved > 0.0, "{largest} of {moved}");
    three_steps::<Bf16>(&gpu, &config);
}

#[test]
fn training_goes_on_from_what_was_saved_as_if_never_stopped() {
    let Some(gpu) = Gpu::for_tests() else { return };
    let config = small();
    let whole = train(&mut on_gpu::<Bf16>(&gpu, &config), 1..=2, &mut trainer(&config));

    let (mut first, mut before) = (on_gpu::<Bf16>(&gpu, &config), trainer(&config));
    train(&mut first, 1..=1, &mut before);
    let (params, optimiser) = (first.trained().unwrap().into_owned(), first.optimiser().unwrap().into_owned());
    assert!(optimiser.steps > 0 && params.data != weights(&config).1.data);
    let state = TrainState { envs: before.train_envs.state, ..before.state.clone() };
    drop(first);
    let model = GpuTransformer::<Bf16>::new(gpu.clone(), Products::Invariant, weights(&config).0, &params).unwrap();
    let mut second = Model::over(Box::new(GpuEngine::new(model, ROOM, AdamWSettings::default()).unwrap()));
    second.restore(optimiser, None).unwrap();
    let mut after = trainer(&config);
    after.resume(state);
    let rest = train(&mut second, 2..=2, &mut after);
    assert_eq!(rest.0[0], whole.0[1]);
    assert!(rest.1 == whole.1);
}

/// Bytes that a step moves between host and device for a model of this width and vocabulary.
fn bytes_of_a_step(gpu: &Gpu, config: &Config, d_model: usize, d_ff: usize) -> Traffic {
    let (shape, _) = weights(config);
    let shape = Shape { d_model, d_ff, ..shape };
    let params = Transformer::initial(&shape, 3);
    let model = GpuTransformer::<f32>::new(gpu.clone(), Products::Invariant, shape, &params).unwrap();
    let mut policy = Model::over(Box::new(GpuEngine::new(model, ROOM, AdamWSettings::default()).unwrap()));
    let rows: Vec<Vec<u32>> = (0..4).map(|r| (0..50).map(|i| (i * 7 + r) % 90).collect()).collect();
    let targets: Vec<u32> = (20..50).collect();
    let rows: Vec<Row<'_>> = rows.iter().map(|ids| Row { ids, targets: &targets, kept: &[] }).collect();
    let before = gpu.traffic();
    let ids: Vec<SequenceId> = (0..4).map(|_| policy.open()).collect();
    let requests: Vec<Request<'_>> = ids
        .iter()
        .zip(&rows)
        .map(|(&sequence, row)| Request { sequence, prompt: row.ids, key: Key::new(1), max_new_tokens: 5 })
        .collect();
    policy.generate(&requests, &config.rollout.sampling, &Stop::default()).unwrap();
    let seeds = |values: &TokenValues| TokenSeeds { logp: vec![0.1; values.logp.len()], ..TokenSeeds::default() };
    policy.accumulate(&rows, 1.0, &mut |values| seeds(values)).unwrap();
    policy.update(1e-3).unwrap();
    let after = gpu.traffic();
    Traffic {
        to_device_bytes: after.to_device_bytes - before.to_device_bytes,
        to_host_bytes: after.to_host_bytes - before.to_host_bytes,
    }
}

#[test]
fn what_crosses_to_the_device_and_back_does_not_grow_with_the_model() {
    if Gpu::for_tests().is_none() {
        return;
    }
    // One of its own, to whose traffic no other test adds.
    let gpu = Gpu::emulated().unwrap();
    let config = small();
    let narrow = bytes_of_a_step(&gpu, &config, 24, 40);
    assert_eq!(narrow, bytes_of_a_step(&gpu, &config, 48, 96));
    // 220 tokens with their tables, 120 targets and their seeds; two numbers a target, four a drawn token, and a norm.
    assert!(narrow.to_device_bytes < 40_000 && narrow.to_host_bytes < 2_000, "{narrow:?}");
}

#[test]
fn memory_that_runs_out_in_a_step_is_one_clear_error_and_the_weights_stay() {
    let Some(_) = Gpu::for_tests() else { return };
    let config = small();
    // Room for the model and its cache, and not for the activations of a batch.
    let small_gpu = Gpu::over(Arc::new(Emulator::new().unwrap().with_memory(1 << 20)));
    let (shape, params) = weights(&config);
    let room = Room { packed_tokens: 4096, ..ROOM };
    let model = GpuTransformer::<Bf16>::new(small_gpu.clone(), Products::Invariant, shape, &params).unwrap();
    let mut policy = Model::over(Box::new(GpuEngine::new(model, room, AdamWSettings::default()).unwrap()));
    let error = trainer(&config).step(&mut policy, 1).unwrap_err().to_string();
    assert!(error.contains("of device memory") && error.contains("are free"), "{error}");
    assert_eq!(bits(&policy.params().unwrap().data), bits(&params.data));
    assert_eq!(policy.optimiser().unwrap().steps, 0);
}

/// The analysis of a step's gradients on the device: its norms are the CPU's, and it leaves weights and moments in every bit.
#[test]
fn gradients_are_taken_apart_on_the_gpu_and_nothing_is_left_of_it() {
    let Some(gpu) = Gpu::for_tests() else { return };
    let mut config = small();
    let step = |config: &Config, mut policy: Model| {
        let metrics = trainer(config).step(&mut policy, 1).unwrap().metrics;
        let optimiser = policy.optimiser().unwrap().into_owned();
        (metrics, bits(&policy.params().unwrap().data), bits(&optimiser.m.data), bits(&optimiser.v.data))
    };
    let without = step(&config, on_gpu::<f32>(&gpu, &config));
    config.gradient_analysis.every = 1;
    (config.gradient_analysis.buckets, config.gradient_analysis.noise_draws) = (1, 1);
    let with = step(&config, on_gpu::<f32>(&gpu, &config));
    assert!((&with.1, &with.2, &with.3) == (&without.1, &without.2, &without.3));
    let on_host = step(&config, on_cpu(&config)).0;
    for name in ["task", "entropy", "cosine/task_entropy", "noise_share"] {
        let (device, host) = (with.0[&format!("grad_norm/all/{name}")], on_host[&format!("grad_norm/all/{name}")]);
        assert!(host != 0.0 && (device - host).abs() < 1e-3 * host.abs().max(0.1), "{name}: {device} and {host}");
    }
}

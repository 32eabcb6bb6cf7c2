//! What is planned for a GPU is what it then holds, byte for byte: on the emulator, which gives every byte that it is asked for.

#[allow(dead_code)] // Others use the rest of it.
mod tiny_models;

use ragen_models::config::Config;
use ragen_models::engine::{Engine, GpuEngine, Room, measure};
use ragen_models::gpu::{Bf16, Gpu, GpuTransformer, Learns, Precision as OnDevice, Products};
use ragen_models::lora::{Lora, Module};
use ragen_models::memory::{Memory, Work};
use ragen_models::ops::head::PerTarget;
use ragen_models::optim::AdamWSettings;
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::sampler::{Draw, Sampling};
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Append, Precision};
use tiny_models::{config, ids, weights};

const POSITIONS: usize = 128;
const SAMPLING: [Sampling; 2] = [
    Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
    Sampling { temperature: 0.7, top_k: 0, top_p: 0.9, min_p: 0.0 },
];

fn work(precision: Precision) -> Work {
    Work {
        precision,
        lora: None,
        value_model: false,
        reference: false,
        trains: true,
        gradients_held: 0,
        packed_tokens: 100,
        recompute: false,
        pages: 20,
        sequences: 5,
        threads: 0,
    }
}

/// Weights, and adapters if there are to be any.
fn initial(config: &Config, work: &Work) -> (Params, Option<Params>) {
    let base = Config { value_head: config.value_head && work.lora.is_none(), ..config.clone() };
    (weights(&base), work.lora.as_ref().map(|lora| lora.initial(config, 9)))
}

/// Opens what the work needs as the commands do, and returns what is held then, and at most after a step and a rollout.
fn hold<E: OnDevice + 'static>(gpu: &Gpu, config: &Config, work: &Work) -> (usize, usize) {
    let (room, optimiser) = (Room::of(config, work), AdamWSettings::default());
    let empty = |config: &Config, learns| {
        GpuTransformer::<E>::empty(gpu.clone(), Products::Library, config.clone(), POSITIONS, learns).unwrap()
    };
    let (base, adapters) = initial(config, work);
    let learns = match (&work.lora, work.trains) {
        (Some(lora), _) => Learns::Adapters(lora.clone()),
        (None, true) => Learns::Weights,
        (None, false) => Learns::Nothing,
    };
    let mut model = empty(config, learns);
    model.write(&base, adapters.as_ref()).unwrap();
    let mut policy = match work.trains {
        true => GpuEngine::new(model, room, optimiser).unwrap(),
        false => GpuEngine::playing(model, room).unwrap(),
    }
    .ready(work.recompute)
    .unwrap();
    let mut value = work.value_model.then(|| {
        let config = Config { value_head: true, ..config.clone() };
        let mut model = empty(&config, Learns::Weights);
        model.write(&weights(&config), None).unwrap();
        GpuEngine::new(model, room.unsampled(), optimiser).unwrap().ready(work.recompute).unwrap()
    });
    let mut reference = work.reference.then(|| policy.frozen(base).unwrap());
    let open = gpu.held().now;
    let (free, total) = gpu.memory().unwrap();
    assert_eq!(total - free, open, "the device agrees");

    // Two rows of 33 tokens that share half of them.
    let mut tree = TokenTree::new();
    let parent = tree.push(None, &ids(1, 16, config.vocab));
    for seed in [2, 3] {
        tree.push(Some(parent), &ids(seed, 17, config.vocab));
    }
    let targets = tiny_models::targets(&tree, config.vocab);
    reference.iter_mut().for_each(|reference| drop(reference.score(&tree, &targets, 1.0, false).unwrap()));
    for engine in work.trains.then_some(&mut policy).into_iter().chain(&mut value) {
        engine.score(&tree, &targets, 1.0, true).unwrap();
        let ones = || vec![0.1; targets.len()];
        let value = if engine.config().value_head { ones() } else { Vec::new() };
        engine.backward(&tree, &targets, 1.0, &PerTarget { logp: ones(), entropy: ones(), value }).unwrap();
        assert!(engine.update(1e-3).unwrap().grad_norm > 0.0);
    }
    let sequences: Vec<_> = (0..5).map(|_| policy.open()).collect();
    let prompts: Vec<Vec<u32>> = (0..5).map(|i| ids(i, 30, config.vocab)).collect();
    for step in 0..3 {
        let tokens = |i: usize| if step == 0 { &prompts[i][..] } else { &prompts[i][..1] };
        let appends: Vec<Append<'_>> =
            sequences.iter().enumerate().map(|(i, &id)| Append { id, tokens: tokens(i) }).collect();
        policy.extend(&appends).unwrap();
        let draws: Vec<Draw> = (0..5).map(|row| Draw { row, key: Key::new(row as u64), position: step }).collect();
        policy.draw(&draws, &SAMPLING[step as usize % 2]).unwrap();
    }
    (open, gpu.held().most)
}

fn check<E: OnDevice + 'static>(name: &str, config: &Config, work: &Work) -> Memory {
    let gpu = Gpu::emulated().unwrap();
    let planned = measure(&gpu, Products::Library, config, POSITIONS, work, &SAMPLING);
    assert_eq!(gpu.held().most, 0, "planning takes nothing");
    let (open, most) = hold::<E>(&gpu, config, work);
    assert_eq!(planned.total() - planned.other, open, "{name}: {planned:?}");
    assert!(most >= open && most <= planned.total() + (4 << 10), "{name}: {most} of {}", planned.total());
    // Beside the buffers there are only tables of a batch.
    assert!(most - open < 32 << 10 && planned.other < 64 << 10, "{name}: {}, {}", most - open, planned.other);
    planned
}

#[test]
fn what_is_planned_is_what_is_held() {
    if Gpu::for_tests().is_none() {
        return;
    }
    let lora = Lora { rank: 3, alpha: 6.0, targets: vec![Module::Q, Module::Down] };
    for kind in [0, 1, 2] {
        let config = config(kind);
        let full = work(Precision::F32);
        let plain = check::<f32>("full", &config, &full);
        let n = ragen_models::params::Table::len_of(&config);
        assert_eq!((plain.gradients, plain.weights), (4 * n, 4 * n + 4 * POSITIONS * config.head_dim));
        assert!(plain.optimiser >= 8 * n && plain.optimiser < 8 * n + (4 << 10), "{plain:?}");
        // One page more than was asked for, for what fills batches up.
        assert_eq!(plain.kv_cache, 21 * 32 * 8 * config.kv_width() * config.n_layers);

        let half = check::<Bf16>("bf16", &config, &work(Precision::Bf16));
        assert_eq!(half.weights - plain.weights, 2 * n, "a copy beside the master");
        let again = check::<f32>("recompute", &config, &Work { recompute: true, ..full.clone() });
        assert!(again.activations < plain.activations);
        assert_eq!(Memory { activations: 0, ..again }, Memory { activations: 0, ..plain });

        let adapted = check::<Bf16>("adapters", &config, &Work { lora: Some(lora.clone()), ..work(Precision::Bf16) });
        assert_eq!(adapted.gradients, 4 * lora.table(&config).len());
        check::<f32>("adapters", &config, &Work { lora: Some(lora.clone()), ..full.clone() });
        let more = Work { reference: true, value_model: true, ..full.clone() };
        let two = check::<f32>("a value model and a reference", &Config { value_head: false, ..config.clone() }, &more);
        assert!(two.gradients > 19 * plain.gradients / 10 && two.weights > 29 * plain.weights / 10, "{two:?}");
        check::<Bf16>("a value model and a reference", &config, &Work { precision: Precision::Bf16, ..more });
        let played =
            check::<Bf16>("played", &config, &Work { trains: false, packed_tokens: 0, ..work(Precision::Bf16) });
        assert_eq!((played.gradients, played.optimiser), (0, 0));
        assert!(played.weights < half.weights / 2);
    }
}

#[test]
fn a_model_too_large_for_any_machine_is_measured_in_no_time() {
    // 24 layers like Qwen2.5-0.5B's, and 100 times as many.
    let shape = Config {
        vocab: 151_936,
        d_model: 896,
        n_layers: 24,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        d_ff: 4864,
        tied_embeddings: true,
        value_head: false,
        ..config(0)
    };
    let (gpu, _) = Gpu::counting();
    let work = Work { packed_tokens: 8192, pages: 5000, sequences: 128, ..work(Precision::Bf16) };
    let started = std::time::Instant::now();
    let memory = measure(&gpu, Products::Library, &shape, 4096, &work, &SAMPLING);
    let n: usize = 494_032_768;
    assert_eq!(memory.gradients, (4 * n).next_multiple_of(2 << 20));
    assert!(memory.total() > 16 * n && memory.total() < 60 << 30, "{memory:?}");
    let huge = Config { n_layers: 2400, ..shape };
    assert!(measure(&gpu, Products::Library, &huge, 4096, &work, &SAMPLING).total() > 1 << 40);
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}

//! The loop over the real model, tiny and with random weights: what is trained has the very bits of what was sampled.

mod tiny_model;

use ragen::agent_proxy::{Play, play};
use ragen::config::{Config, PromptStyle};
use ragen::context_manager::ContextManager;
use ragen::env_manager::metrics::Metrics;
use ragen::estimator::Estimator;
use ragen::policy::model::Model;
use ragen::policy::{Policy, Request, Row, Stop, TokenSeeds, Weights};
use ragen::settings;
use ragen::train::Trainer;
use ragen::trajectory::{Provenance, Trajectory};
use ragen_models::device::Cpu;
use ragen_models::optim::AdamWSettings;
use ragen_models::random::Key;
use ragen_models::simd::Isa;
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::Precision;
use std::sync::Arc;

/// The shipped Sokoban configuration, small enough for a test.
fn small() -> Config {
    let changes = ["env.train.groups=3", "env.train.group_size=4", "env.val.groups=4", "rollout.response_tokens=9"];
    let mut config = settings::load(Some("sokoban"), &changes.map(String::from)).unwrap();
    config.filter.value = 1.0;
    // All rewards of a model that says nothing are equal; this term gives it something to learn.
    config.update.loss.entropy_coef = 0.02;
    config.collapse.every = 0;
    config.val.before_train = false;
    config
}

fn model(config: &Config, isa: Isa, threads: usize) -> Model {
    let value_head = config.algorithm.estimator == Estimator::Gae;
    let shape = tiny_model::shape(Tokenizer::tiny().vocab(), config.rollout.model_tokens, value_head);
    let params = tiny_model::weights(&shape, 60.0);
    Model::new(Arc::new(Cpu::with(isa, threads)), shape, params, config.model.dtype, AdamWSettings::default())
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

#[test]
fn every_trained_token_has_the_bits_it_was_sampled_with() {
    for (temperature, top_p, top_k, min_p, dtype) in [
        (1.0, 1.0, 0, 0.0, Precision::F32),
        (0.7, 1.0, 0, 0.0, Precision::F32),
        (1.0, 0.9, 0, 0.0, Precision::F32),
        (0.7, 0.9, 40, 0.0, Precision::F32),
        (1.3, 1.0, 0, 0.05, Precision::F32),
        (1.0, 1.0, 0, 0.0, Precision::Bf16),
        (0.7, 0.9, 40, 0.0, Precision::Bf16),
    ] {
        let mut config = small();
        config.model.dtype = dtype;
        let sampling = &mut config.rollout.sampling;
        (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) = (temperature, top_p, top_k, min_p);
        let mut policy = model(&config, Isa::available()[0], 2);
        let trajectories = rollout(&config, &mut policy);
        assert_eq!(trajectories.len(), 12);
        let rows: Vec<Row<'_>> = trajectories.iter().flat_map(Trajectory::views).collect();
        let sampled: Vec<u32> = trajectories.iter().flat_map(|t| &t.rows[0].logps).map(|l| l.to_bits()).collect();
        assert!(sampled.len() > 100, "{} tokens", sampled.len());
        if top_p < 1.0 || min_p > 0.0 {
            let kept: Vec<usize> = trajectories.iter().flat_map(|t| &t.rows[0].kept).flatten().map(Vec::len).collect();
            assert!(kept.iter().any(|n| *n > 1) && kept.iter().any(|n| *n < 200), "{kept:?}");
        }
        for share_prefix in [true, false] {
            policy.share_prefix = share_prefix;
            let scored = policy.score(Weights::Policy, &rows, temperature).unwrap().logp;
            let scored: Vec<u32> = scored.iter().map(|l| l.to_bits()).collect();
            assert_eq!(scored, sampled, "temperature {temperature}, top-p {top_p}, shared {share_prefix}");
        }
        for t in &trajectories {
            let by_mask = t.rows[0].tokens.provenance.iter().filter(|p| **p == Provenance::Sampled).count();
            assert_eq!((t.rows[0].targets.len(), t.rows[0].logps.len()), (by_mask, by_mask));
        }
    }
}

#[test]
fn the_ratio_of_the_first_update_is_one_for_grpo_and_ppo() {
    for estimator in [Estimator::Grpo, Estimator::Gae] {
        for (temperature, top_p, dtype) in [
            (1.0, 1.0, Precision::F32),
            (0.7, 1.0, Precision::F32),
            (1.0, 0.9, Precision::F32),
            (1.0, 1.0, Precision::Bf16),
            (0.7, 0.9, Precision::Bf16),
        ] {
            let mut config = small();
            config.model.dtype = dtype;
            config.algorithm.estimator = estimator;
            config.rollout.sampling.temperature = temperature;
            config.rollout.sampling.top_p = top_p;
            let mut policy = model(&config, Isa::available()[0], 2);
            let before = policy.params().unwrap().data.clone();
            let report = trainer(&config).step(&mut policy, 1).unwrap();
            assert_eq!(
                report.metrics["update/first_ratio_max_error"], 0.0,
                "{estimator:?} {temperature} {top_p} {dtype:?}"
            );
            assert!(report.metrics.values().all(|v| v.is_finite()));
            assert!(report.metrics["update/grad_norm"] > 0.0);
            assert!(report.trained_tokens > 100 && policy.params().unwrap().data != before);
        }
    }
}

#[test]
fn metrics_and_weights_do_not_depend_on_threads_or_instruction_path() {
    for dtype in [Precision::F32, Precision::Bf16] {
        let mut config = small();
        config.model.dtype = dtype;
        check_metrics_and_weights(&config);
    }
}

fn check_metrics_and_weights(config: &Config) {
    let mut expected: Option<(Vec<Metrics>, Vec<u32>)> = None;
    for isa in Isa::available() {
        for threads in [1, 2] {
            let mut policy = model(config, isa, threads);
            let mut trainer = trainer(config);
            let metrics: Vec<Metrics> = (1..=2).map(|step| trainer.step(&mut policy, step).unwrap().metrics).collect();
            assert!(metrics.iter().all(|metrics| metrics["update/grad_norm"] > 0.0));
            let weights: Vec<u32> = policy.params().unwrap().data.iter().map(|w| w.to_bits()).collect();
            let got = (metrics, weights);
            let expected = expected.get_or_insert_with(|| got.clone());
            assert!(*expected == got, "{isa:?} with {threads} threads, {:?}", config.model.dtype);
        }
    }
}

#[test]
fn sharing_a_prefix_changes_gradients_by_rounding_only() {
    let config = small();
    let mut weights = Vec::new();
    let trajectories = rollout(&config, &mut model(&config, Isa::available()[0], 2));
    let rows: Vec<Row<'_>> = trajectories.iter().flat_map(Trajectory::views).collect();
    for (share_prefix, micro) in [(false, 12), (false, 1), (false, 2), (true, 12), (true, 4), (true, 3)] {
        let mut policy = model(&config, Isa::available()[0], 2);
        policy.share_prefix = share_prefix;
        for rows in rows.chunks(micro) {
            let seeds = |values: &ragen::policy::TokenValues| TokenSeeds {
                // A function of the value alone, so that it does not depend on the split.
                logp: values.logp.iter().map(|l| 0.01 * (1.0 + l.fract())).collect(),
                entropy: vec![0.003; values.entropy.len()],
                value: Vec::new(),
            };
            policy.accumulate(rows, 1.0, &mut |values| seeds(values)).unwrap();
        }
        let gradients = policy.gradients().unwrap().to_vec();
        weights.push(((share_prefix, micro), gradients));
    }
    let whole = weights[0].1.clone();
    let scale = whole.iter().fold(0.0f32, |m, g| m.max(g.abs()));
    for ((share_prefix, micro), gradients) in weights {
        if !share_prefix {
            assert!(gradients == whole, "micro-batches of {micro} keep the order of rows, so every bit");
        }
        for (a, b) in gradients.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-6 * scale, "{a} {b}: shared {share_prefix}, micro-batches of {micro}");
        }
    }
}

#[test]
fn the_formats_of_the_specification_run_end_to_end() {
    for tag in ["SimpleSokoban", "CoordSokoban", "SokobanDifferentGridVocab", "FrozenLake", "CoordFrozenLake", "Bandit"]
    {
        for force_open_tag in [true, false] {
            let mut config = small();
            config.rollout.prompt = PromptStyle::Full;
            config.rollout.force_open_tag = force_open_tag;
            config.rollout.model_tokens = 3600;
            config.rollout.max_turns = 2;
            // What was resolved holds the tags that it plays; these are others.
            config.envs = Config::default().envs;
            config.env.train.tags = vec![tag.into()];
            config.env.val.tags = vec![tag.into()];
            config.env.train.groups = 2;
            let mut policy = model(&config, Isa::available()[0], 2);
            let report = trainer(&config).step(&mut policy, 1).unwrap();
            assert_eq!(report.metrics["update/first_ratio_max_error"], 0.0, "{tag}");
            assert_eq!(report.rollout.trajectories.len(), 8);
            assert!(report.metrics.values().all(|v| v.is_finite()), "{tag}: {:?}", report.metrics);
        }
    }
}

#[test]
fn long_prompts_are_computed_in_pieces_with_the_same_bits() {
    let mut config = small();
    config.rollout.model_tokens = 2600;
    let mut policy = model(&config, Isa::available()[0], 2);
    let vocab = Tokenizer::tiny().vocab();
    let prompt = |seed: u64, n: u64| (0..n).map(|i| Key::new(seed).below(i, vocab) as u32).collect::<Vec<u32>>();
    // Pieces end inside the second prompt, between prompts and inside the last one.
    let prompts = [prompt(1, 700), prompt(2, 1500), prompt(3, 20), prompt(4, 852), prompt(5, 2500)];
    let sampling = config.rollout.sampling;
    let requests: Vec<Request<'_>> = prompts
        .iter()
        .map(|prompt| Request { sequence: policy.open(), prompt, key: Key::new(9), max_new_tokens: 5 })
        .collect();
    let responses = policy.generate(&requests, &sampling, &Stop { ids: &[], says: None }).unwrap();
    let rows: Vec<Vec<u32>> = prompts.iter().zip(&responses).map(|(p, r)| [&p[..], &r.ids].concat()).collect();
    for (row, (prompt, response)) in rows.iter().zip(prompts.iter().zip(&responses)) {
        let targets: Vec<u32> = (prompt.len() as u32..row.len() as u32).collect();
        let row = Row { ids: row, targets: &targets, kept: &[] };
        let scored = policy.score(Weights::Policy, &[row], sampling.temperature).unwrap().logp;
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(&response.logps), bits(&scored), "a prompt of {} tokens", prompt.len());
    }
}

#[test]
fn micro_batches_count_a_shared_prompt_once() {
    let config = small();
    let policy = model(&config, Isa::available()[0], 1);
    let prefix: Vec<u32> = (0..40).collect();
    let rows: Vec<Vec<u32>> = (0..5).map(|i| [prefix.clone(), vec![100 + i; 10]].concat()).collect();
    let rows: Vec<Row<'_>> = rows.iter().map(|ids| Row { ids, targets: &[45], kept: &[] }).collect();
    assert_eq!(policy.packed_tokens(&rows), 40 + 5 * 10);
    let of = |packed_tokens: usize| {
        ragen::update::micro_batches(&policy, &rows, &ragen::config::Update { packed_tokens, ..config.update.clone() })
    };
    assert_eq!(of(0), of(90));
    assert_eq!((of(90).len(), of(90)[0].clone()), (1, 0..5));
    assert_eq!(of(89), [0..4, 4..5]);
    assert_eq!(of(70), [0..3, 3..5]);
    assert_eq!(of(1), [0..1, 1..2, 2..3, 3..4, 4..5], "a longer row goes alone");
}

#[test]
fn prompts_that_begin_alike_share_whole_pages_and_keep_their_bits() {
    let mut config = small();
    config.rollout.model_tokens = 400;
    let vocab = Tokenizer::tiny().vocab();
    let some = |seed: u64, n: u64| (0..n).map(|i| Key::new(seed).below(i, vocab) as u32).collect::<Vec<u32>>();
    let begin = |n: usize, seed: u64, rest: u64| [&some(1, 130)[..n], &some(seed, rest)].concat();
    // Four, three, four and four whole pages; one that is no longer than what is shared; another beginning; too little alike.
    let prompts = [
        begin(130, 2, 20),
        begin(100, 3, 5),
        begin(128, 4, 0),
        begin(130, 5, 60),
        some(6, 70),
        [&some(6, 31)[..], &some(7, 39)].concat(),
    ];
    let sample = |policy: &mut Model, prompts: &[Vec<u32>]| {
        let requests: Vec<Request<'_>> = prompts
            .iter()
            .map(|prompt| Request { sequence: policy.open(), prompt, key: Key::new(9), max_new_tokens: 3 })
            .collect();
        let responses = policy.generate(&requests, &config.rollout.sampling, &Stop::default()).unwrap();
        let bits = |logps: &[f32]| logps.iter().map(|l| l.to_bits()).collect::<Vec<u32>>();
        responses.iter().map(|r| (r.ids.clone(), bits(&r.logps))).collect::<Vec<_>>()
    };
    let mut together = model(&config, Isa::available()[0], 2);
    let all = sample(&mut together, &prompts);
    let mut pages = 0;
    for (prompt, expected) in prompts.iter().zip(all) {
        let mut alone = model(&config, Isa::available()[0], 2);
        assert_eq!(sample(&mut alone, std::slice::from_ref(prompt)), [expected]);
        pages += alone.cache_bytes();
    }
    let page = pages / [5, 4, 5, 6, 3, 3].iter().sum::<usize>();
    assert_eq!(pages - together.cache_bytes(), 3 * 3 * page, "three pages that four prompts begin with");
}

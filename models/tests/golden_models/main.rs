//! PyTorch's numbers for tiny models: the last link of the chain of trust.
//!
//! The checks are functions of an [`Engine`] or a [`TokenHead`], so that the twin and the fast path pass the very same ones.

#[path = "../golden_data/mod.rs"]
mod golden_data;
mod on_gpu;

use golden_data::*;
use ragen_models::device::Cpu;
use ragen_models::lora::Lora;
use ragen_models::ops::head::{RowSeeds, row_bwd, row_stats};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::{Params, Table};
use ragen_models::peft;
use ragen_models::simd::Isa;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Append, Config, Gradients, Precision, Transformer};
use ragen_models::twin;
use ragen_models::twin::model::{Model, PerTarget, Target, convert};
use ragen_models::weights;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The tiny models that need nothing but the transformer.
const MODELS: [&str; 13] = [
    "llama_gqa",
    "llama_tied",
    "llama_gqa7",
    "llama_bf16",
    "llama_f16",
    "llama_value",
    "llama_rope_linear",
    "llama_rope_llama3",
    "llama_rope_yarn",
    "llama_sharded",
    "mistral_window",
    "qwen3",
    "qwen2_tied",
];

/// Something that computes a model. Rows are packed one after another; targets are scored at temperature 1.
trait Engine {
    /// How many times the bounds of f32 it may be off.
    const SLACK: f64 = 1.0;
    /// Takes over the weights; with adapters, `params` are these and the weights are frozen.
    fn load(of: &Loaded, params: &Params) -> Self;
    /// Logits of every packed row, `[rows, vocab]`.
    fn logits(&mut self, rows: &[Vec<u32>]) -> Vec<f64>;
    /// Log-probability, entropy and value of each target.
    fn score(&mut self, rows: &[Vec<u32>], targets: &[Target]) -> PerTarget<f64>;
    /// Gradients of all parameters, over the table.
    fn gradients(&mut self, rows: &[Vec<u32>], targets: &[Target], seeds: &PerTarget<f64>) -> Vec<f64>;
    /// The `n` most probable next tokens after `prompt`, one after another, and their log-probabilities.
    fn greedy(&mut self, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f64>);
}

/// The head alone, on one row of f32 logits.
trait TokenHead {
    /// Log-probability of `target` and entropy.
    fn score(&self, logits: &[f32], target: u32) -> (f64, f64);
    /// dlogits.
    fn backward(&self, logits: &[f32], target: u32, dlogp: f64, dentropy: f64) -> Vec<f64>;
}

/// A model of the golden data, and its adapters if it has any.
struct Loaded {
    config: Config,
    weights: Params,
    lora: Option<(Lora, Params)>,
}

impl Loaded {
    fn read(dir: &Path) -> Loaded {
        let weights::Checkpoint { config, params } = weights::load(dir).unwrap();
        let lora = dir.join(peft::CONFIG).exists().then(|| {
            let lora = peft::describe(dir).unwrap().lora;
            let params = peft::load(dir, &config, &lora).unwrap();
            (lora, params)
        });
        Loaded { config, weights: params, lora }
    }

    /// What is trained.
    fn trained(&self) -> &Params {
        self.lora.as_ref().map_or(&self.weights, |(_, params)| params)
    }
}

/// A parameter's name in the golden data: an adapter's has no `.weight`.
fn golden_name(name: &str) -> &str {
    if name.contains("lora_") { name.trim_end_matches(".weight") } else { name }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    name: String,
    #[serde(rename = "family")]
    _family: String,
    #[serde(rename = "seed")]
    _seed: u64,
    options: Options,
    rows: Vec<Vec<u32>>,
    padded_ids: Vec<Vec<u32>>,
    attention_mask: Vec<Vec<u32>>,
    loss: f64,
    value_loss: Option<f64>,
    value_zero_grad: Option<Vec<String>>,
    greedy: Vec<Greedy>,
    training: Training,
    /// How far the reference was from a second, float64 program, and from itself with padding.
    #[serde(rename = "noise_f32_vs_f64")]
    _noise: Value,
    #[serde(rename = "padded_vs_alone")]
    _padded_vs_alone: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    lora: bool,
    value_head: bool,
    shards: usize,
    #[serde(rename = "stored_dtype")]
    _stored_dtype: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Greedy {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logps: Vec<f64>,
    #[serde(rename = "min_margin")]
    _min_margin: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Training {
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    clip_norm: f64,
    batches: Vec<Vec<Vec<u32>>>,
    batch_of_step: Vec<usize>,
    losses: Vec<f64>,
    grad_norms: Vec<f64>,
    final_checksums: BTreeMap<String, Checksum>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Checksum {
    sum: f64,
    abs_sum: f64,
    sq_sum: f64,
    first: Vec<f64>,
    last: Vec<f64>,
    sum_noise: f64,
    abs_sum_noise: f64,
    sq_sum_noise: f64,
    noise: f64,
}

/// Puts an engine through everything that is known of the model `name`.
fn check_model<E: Engine>(name: &str) {
    let dir = golden(&format!("models/{name}"));
    let golden: Golden = read_json(&dir.join("golden.json"));
    let model = Loaded::read(&dir);
    assert_eq!(golden.name, name);
    assert_eq!(model.config.value_head, golden.options.value_head, "{name}");
    assert_eq!(golden.options.lora, model.lora.is_some(), "{name}");
    let shards = names_in(&format!("models/{name}")).iter().filter(|file| file.starts_with("model-")).count();
    assert_eq!(golden.options.shards, shards.max(1), "{name}");
    // Nobody pads here; the padded form must be of the same rows.
    for ((row, padded), mask) in golden.rows.iter().zip(&golden.padded_ids).zip(&golden.attention_mask) {
        let kept: Vec<u32> = padded.iter().zip(mask).filter(|(_, m)| **m == 1).map(|(&id, _)| id).collect();
        assert_eq!(*row, kept, "{name}: padded_ids");
    }
    check_rows::<E>(&golden, &model, &dir);
    check_greedy::<E>(&golden, &model);
    check_training::<E>(&golden, &model);
}

fn check_greedy<E: Engine>(golden: &Golden, model: &Loaded) {
    let (name, mut engine) = (&golden.name, E::load(model, model.trained()));
    for Greedy { prompt, tokens, logps, .. } in &golden.greedy {
        let (ids, ours) = engine.greedy(prompt, tokens.len());
        assert_eq!(ids, *tokens, "{name}: greedy tokens after {prompt:?}");
        assert_all_close(&format!("{name}: greedy logps after {prompt:?}"), &ours, logps, 5e-5);
    }
}

/// Logits, scores, losses and gradients of the three rows, packed into one batch.
fn check_rows<E: Engine>(golden: &Golden, model: &Loaded, dir: &Path) {
    let (name, rows, config) = (&golden.name, &golden.rows, &model.config);
    let mut engine = E::load(model, model.trained());
    let mut numbers = Tensors::read(&dir.join("golden.safetensors"));
    let logits = engine.logits(rows);
    let mut wanted = PerTarget::default();
    let mut seeds = PerTarget::default();
    let mut targets = Vec::new();
    let mut start = 0;
    for (i, row) in rows.iter().enumerate() {
        let own = &logits[start * config.vocab..][..row.len() * config.vocab];
        assert_all_close(
            &format!("{name}: row{i}.logits"),
            own,
            &numbers.take(&format!("row{i}.logits")),
            5e-5 * E::SLACK,
        );
        for t in 0..row.len() {
            // A value is known at the last token too, where nothing is predicted: any target with seeds of zero will do.
            targets.push(Target { row: start + t, token: row.get(t + 1).copied().unwrap_or(0), kept: None });
        }
        start += row.len();
        let mut take = |what: &str| numbers.take(&format!("row{i}.{what}"));
        let padded = |mut x: Vec<f64>, last: f64| {
            x.push(last);
            x
        };
        wanted.logp.extend(padded(take("logp"), f64::NAN));
        wanted.entropy.extend(padded(take("entropy"), f64::NAN));
        seeds.logp.extend(padded(take("dlogp"), 0.0));
        seeds.entropy.extend(padded(take("dentropy"), 0.0));
        if config.value_head {
            wanted.value.extend(take("value"));
            seeds.value.extend(take("dvalue"));
        }
    }
    numbers.finish();

    let scores = engine.score(rows, &targets);
    for t in (0..targets.len()).filter(|&t| !wanted.logp[t].is_nan()) {
        assert_close(&format!("{name}: logp of packed row {t}"), scores.logp[t], wanted.logp[t], 3e-5 * E::SLACK);
        assert_close(
            &format!("{name}: entropy of packed row {t}"),
            scores.entropy[t],
            wanted.entropy[t],
            3e-5 * E::SLACK,
        );
    }
    assert_all_close(&format!("{name}: value"), &scores.value, &wanted.value, 2e-5 * E::SLACK);
    let sum = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let loss = sum(&seeds.logp, &scores.logp) + sum(&seeds.entropy, &scores.entropy);
    assert_close(&format!("{name}: loss"), loss, golden.loss, 2e-4 * E::SLACK);

    let policy_seeds = PerTarget { value: Vec::new(), ..seeds.clone() };
    let grads = engine.gradients(rows, &targets, &policy_seeds);
    let value_head = ["value_head.weight".to_string(), "value_head.bias".to_string()];
    check_gradients::<E>(
        name,
        &model.trained().table,
        &grads,
        Tensors::read(&dir.join("grads.safetensors")),
        &value_head,
    );
    if let (Some(value_loss), Some(without)) = (golden.value_loss, &golden.value_zero_grad) {
        assert_close(&format!("{name}: value_loss"), sum(&seeds.value, &scores.value), value_loss, 2e-4 * E::SLACK);
        let value_seeds = PerTarget { value: seeds.value, ..PerTarget::default() };
        let grads = engine.gradients(rows, &targets, &value_seeds);
        check_gradients::<E>(
            name,
            &model.trained().table,
            &grads,
            Tensors::read(&dir.join("grads_value.safetensors")),
            without,
        );
    } else {
        assert!(!config.value_head && golden.value_loss.is_none() && golden.value_zero_grad.is_none(), "{name}");
    }
}

/// Every tensor of the table against the file; those in `without` get no gradient at all.
fn check_gradients<E: Engine>(name: &str, table: &Table, grads: &[f64], mut wanted: Tensors, without: &[String]) {
    for entry in &table.entries {
        let got = &grads[entry.range()];
        let what = format!("{name}: gradient of {}", entry.name);
        match wanted.find(golden_name(&entry.name)) {
            Some(wanted) => {
                let largest = wanted.iter().fold(0.0f64, |m, x| m.max(x.abs()));
                assert_all_close(&what, got, &wanted, 3e-5 * E::SLACK * largest);
            }
            None => {
                assert!(without.contains(&entry.name), "{what} is not in the file");
                assert!(got.iter().all(|&g| g == 0.0), "{what} is not zero");
            }
        }
    }
    wanted.finish();
}

/// Ten AdamW steps of mean next-token cross-entropy.
fn check_training<E: Engine>(golden: &Golden, model: &Loaded) {
    let (name, training) = (&golden.name, &golden.training);
    let mut params = model.trained().clone();
    let settings = AdamWSettings {
        beta1: training.beta1,
        beta2: training.beta2,
        eps: training.eps,
        weight_decay: training.weight_decay,
        clip_norm: Some(training.clip_norm),
    };
    let mut adamw = AdamW::new(settings, params.table.clone());
    let cpu = Cpu::new(1).unwrap();
    for (step, &batch) in training.batch_of_step.iter().enumerate() {
        let rows = &training.batches[batch];
        let mut targets = Vec::new();
        let mut start = 0;
        for row in rows {
            targets.extend((1..row.len()).map(|t| Target { row: start + t - 1, token: row[t], kept: None }));
            start += row.len();
        }
        let mut engine = E::load(model, &params);
        let n = targets.len() as f64;
        let loss = -engine.score(rows, &targets).logp.iter().sum::<f64>() / n;
        assert_close(&format!("{name}: loss of step {step}"), loss, training.losses[step], 1e-4);
        let seeds = PerTarget { logp: vec![-1.0 / n; targets.len()], ..PerTarget::default() };
        let mut grads = Params::zeros(params.table.clone());
        for (to, from) in grads.data.iter_mut().zip(engine.gradients(rows, &targets, &seeds)) {
            *to = from as f32;
        }
        let norm = adamw.step(&cpu, &mut params, &grads, training.lr).grad_norm;
        let wanted = training.grad_norms[step];
        assert_close(&format!("{name}: gradient norm of step {step}"), norm, wanted, 1e-4 * wanted);
    }
    assert_eq!((training.losses.len(), training.grad_norms.len()), (10, 10));
    let mut checksums: Vec<&String> = training.final_checksums.keys().collect();
    for entry in &params.table.entries {
        let Some(wanted) = training.final_checksums.get(golden_name(&entry.name)) else {
            assert!(entry.name.starts_with("value_head."), "{name}: no checksum of {}", entry.name);
            continue;
        };
        checksums.retain(|&name| *name != golden_name(&entry.name));
        let x: Vec<f64> = params.get(&entry.name).iter().map(|&x| f64::from(x)).collect();
        let what = |part: &str| format!("{name}: {part} of {} after training", entry.name);
        let allowed = |noise: f64| 1e-6 * x.len() as f64 + 10.0 * noise;
        assert_close(&what("sum"), x.iter().sum(), wanted.sum, allowed(wanted.sum_noise));
        assert_close(&what("abs sum"), x.iter().map(|x| x.abs()).sum(), wanted.abs_sum, allowed(wanted.abs_sum_noise));
        assert_close(&what("square sum"), x.iter().map(|x| x * x).sum(), wanted.sq_sum, allowed(wanted.sq_sum_noise));
        let edge = 1e-5 + 10.0 * wanted.noise;
        assert_all_close(&what("first"), &x[..wanted.first.len()], &wanted.first, edge);
        assert_all_close(&what("last"), &x[x.len() - wanted.last.len()..], &wanted.last, edge);
    }
    assert!(checksums.is_empty(), "{name}: checksums of no parameter: {checksums:?}");
}

/// Puts a head through vocabularies of real size.
fn check_log_softmax(head: &impl TokenHead) {
    for case in cases::cases::<cases::LogSoftmaxCase>("log_softmax.json") {
        let what = |part: &str| format!("log_softmax seed {}: {part}", case.seed);
        let logits = case.logits();
        assert_eq!(case.targets.len(), case.logps.len());
        for (&target, &wanted) in case.targets.iter().zip(&case.logps) {
            let (logp, entropy) = head.score(&logits, target);
            assert_close(&what("logp"), logp, wanted, 2e-6 + 2.5e-7 * wanted.abs());
            assert_close(&what("entropy"), entropy, case.entropy, 1e-5 + 1e-6 * case.entropy);
            let logsumexp = f64::from(logits[target as usize]) - logp;
            assert_close(&what("logsumexp"), logsumexp, case.logsumexp, 2e-6 + 2.5e-7 * case.logsumexp.abs());
        }
        let dlogits = head.backward(&logits, case.seed_target, case.dlogp, case.dentropy);
        assert_eq!(dlogits.len(), case.n);
        let at: Vec<f64> = case.targets.iter().map(|&t| dlogits[t as usize]).collect();
        let largest = case.dlogits_at_targets.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        assert_all_close(&what("dlogits"), &at, &case.dlogits_at_targets, 1e-5 * largest);
        let abs_sum: f64 = dlogits.iter().map(|x| x.abs()).sum();
        assert_close(&what("abs sum of dlogits"), abs_sum, case.dlogits_abs_sum, 1e-5 * case.dlogits_abs_sum);
        assert_close(&what("sum of dlogits"), dlogits.iter().sum(), case.dlogits_sum, 1e-5);
    }
}

/// The twin in f64.
struct Twin {
    config: Config,
    table: Arc<Table>,
    weights: Vec<f64>,
}

impl Twin {
    fn model(&self) -> Model<'_, f64> {
        Model { config: &self.config, table: &self.table, weights: &self.weights }
    }
}

impl Engine for Twin {
    fn load(of: &Loaded, params: &Params) -> Self {
        assert!(of.lora.is_none(), "the twin knows no adapters; models/tests/adapters.rs derives theirs from it");
        let config = &of.config;
        Twin { config: config.clone(), table: params.table.clone(), weights: convert(params) }
    }

    fn logits(&mut self, rows: &[Vec<u32>]) -> Vec<f64> {
        self.model().logits(&self.model().forward(&TokenTree::from_rows(rows)))
    }

    fn score(&mut self, rows: &[Vec<u32>], targets: &[Target]) -> PerTarget<f64> {
        self.model().score(&self.model().forward(&TokenTree::from_rows(rows)), targets, 1.0)
    }

    fn gradients(&mut self, rows: &[Vec<u32>], targets: &[Target], seeds: &PerTarget<f64>) -> Vec<f64> {
        let tree = TokenTree::from_rows(rows);
        let mut grads = vec![0.0; self.table.len()];
        self.model().backward(&tree, &self.model().forward(&tree), targets, 1.0, seeds, &mut grads);
        grads
    }

    fn greedy(&mut self, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f64>) {
        let (mut row, mut logps) = (prompt.to_vec(), Vec::new());
        for _ in 0..n {
            let logits = self.logits(&[row.clone()]);
            let logp = twin::log_softmax(&logits[logits.len() - self.config.vocab..], 1.0);
            let best = (0..logp.len()).fold(0, |best, j| if logp[j] > logp[best] { j } else { best });
            row.push(best as u32);
            logps.push(logp[best]);
        }
        (row.split_off(prompt.len()), logps)
    }
}

/// The fast path, decoding over its cache.
struct Fast {
    cpu: Cpu,
    model: Transformer,
}

impl Fast {
    fn with(of: &Loaded, params: &Params, precision: Precision) -> Self {
        let cpu = Cpu::new(2).expect("RAGEN_ISA is unset or names a path of this machine");
        let (config, params) = (of.config.clone(), params.clone());
        let model = match &of.lora {
            None => Transformer::new(&cpu, config, params, precision),
            Some((lora, _)) => {
                Transformer::with_adapters(&cpu, config, of.weights.clone(), precision, lora.clone(), params)
            }
        };
        Fast { model, cpu }
    }
}

impl Engine for Fast {
    fn load(of: &Loaded, params: &Params) -> Self {
        Fast::with(of, params, Precision::F32)
    }

    fn logits(&mut self, rows: &[Vec<u32>]) -> Vec<f64> {
        let (tree, mut acts) = (TokenTree::from_rows(rows), Activations::default());
        self.model.forward(&self.cpu, &tree, &mut acts, false);
        widen(&self.model.logits(&self.cpu, &acts, &(0..tree.rows()).collect::<Vec<_>>()))
    }

    fn score(&mut self, rows: &[Vec<u32>], targets: &[Target]) -> PerTarget<f64> {
        let (tree, mut acts) = (TokenTree::from_rows(rows), Activations::default());
        self.model.forward(&self.cpu, &tree, &mut acts, false);
        let values = self.model.values(&self.cpu, &acts, targets, 1.0);
        PerTarget { logp: widen(&values.logp), entropy: widen(&values.entropy), value: widen(&values.value) }
    }

    fn gradients(&mut self, rows: &[Vec<u32>], targets: &[Target], seeds: &PerTarget<f64>) -> Vec<f64> {
        let (tree, mut acts) = (TokenTree::from_rows(rows), Activations::default());
        let mut grads = Gradients::zeros(&self.model);
        self.model.forward(&self.cpu, &tree, &mut acts, true);
        let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect();
        let seeds =
            PerTarget { logp: narrow(&seeds.logp), entropy: narrow(&seeds.entropy), value: narrow(&seeds.value) };
        self.model.backward(&self.cpu, &tree, &mut acts, targets, 1.0, &seeds, &mut grads);
        widen(&grads.total().data)
    }

    fn greedy(&mut self, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f64>) {
        let mut cache = self.model.new_cache(&self.cpu);
        let id = cache.open();
        let (mut tokens, mut chosen, mut logps, mut logits) = (prompt.to_vec(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..n {
            self.model.extend(&self.cpu, &mut cache, &[Append { id, tokens: &tokens }], &mut logits);
            let best = (0..logits.len()).fold(0, |best, j| if logits[j] > logits[best] { j } else { best });
            logps.push(f64::from(row_stats(self.cpu.isa, &logits, 1.0).logp(logits[best])));
            chosen.push(best as u32);
            tokens = vec![best as u32];
        }
        (chosen, logps)
    }
}

/// The fast path with products in bf16.
struct FastBf16(Fast);

impl Engine for FastBf16 {
    // A rounding to 8 bits is off by 2^-9 of its number at most, one to 24 bits by 2^-25: 65,536 times less; the bounds of f32 leave
    // more room. These are 0.15 of a logit (the largest are about 10), 0.09 of a log-probability, 9 % of a tensor's largest gradient.
    const SLACK: f64 = 3000.0;

    fn load(of: &Loaded, params: &Params) -> Self {
        FastBf16(Fast::with(of, params, Precision::Bf16))
    }

    fn logits(&mut self, rows: &[Vec<u32>]) -> Vec<f64> {
        self.0.logits(rows)
    }

    fn score(&mut self, rows: &[Vec<u32>], targets: &[Target]) -> PerTarget<f64> {
        self.0.score(rows, targets)
    }

    fn gradients(&mut self, rows: &[Vec<u32>], targets: &[Target], seeds: &PerTarget<f64>) -> Vec<f64> {
        self.0.gradients(rows, targets, seeds)
    }

    fn greedy(&mut self, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f64>) {
        self.0.greedy(prompt, n)
    }
}

/// The fast head on one row, on every instruction path in turn.
struct FastHead(Isa);

impl TokenHead for FastHead {
    fn score(&self, logits: &[f32], target: u32) -> (f64, f64) {
        let stats = row_stats(self.0, logits, 1.0);
        (f64::from(stats.logp(logits[target as usize])), f64::from(stats.entropy()))
    }

    fn backward(&self, logits: &[f32], target: u32, dlogp: f64, dentropy: f64) -> Vec<f64> {
        let mut row = logits.to_vec();
        let stats = row_stats(self.0, logits, 1.0);
        row_bwd(self.0, &mut row, &stats, target, None, RowSeeds { logp: dlogp as f32, entropy: dentropy as f32 });
        widen(&row)
    }
}

#[test]
fn golden_fast_models() {
    for name in MODELS.into_iter().chain(["llama_lora"]) {
        check_model::<Fast>(name);
    }
}

#[test]
fn golden_bf16_models() {
    for name in MODELS.into_iter().chain(["llama_lora"]) {
        let dir = golden(&format!("models/{name}"));
        check_rows::<FastBf16>(&read_json(&dir.join("golden.json")), &Loaded::read(&dir), &dir);
    }
}

#[test]
fn golden_fast_log_softmax() {
    for isa in Isa::available() {
        check_log_softmax(&FastHead(isa));
    }
}

/// The twin's head in f64.
struct TwinHead;

impl TokenHead for TwinHead {
    fn score(&self, logits: &[f32], target: u32) -> (f64, f64) {
        twin::token_fwd(&widen(logits), target, None, 1.0)
    }

    fn backward(&self, logits: &[f32], target: u32, dlogp: f64, dentropy: f64) -> Vec<f64> {
        let mut dlogits = vec![0.0; logits.len()];
        twin::token_bwd(&widen(logits), target, None, 1.0, dlogp, dentropy, &mut dlogits);
        dlogits
    }
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

#[test]
fn golden_twin_models() {
    for name in MODELS {
        check_model::<Twin>(name);
    }
}

#[test]
fn golden_twin_log_softmax() {
    check_log_softmax(&TwinHead);
}

#[test]
fn golden_every_file_is_tested_or_owed() {
    let pending = pending();
    let models = MODELS.map(|name| format!("models/{name}"));
    // The optimiser, the sampler, tokenizers, GGUF files and SmolLM2 have test files of their own.
    let files = ["adamw.json", "log_softmax.json", "sampling.json", "tokenizers", "gguf_models", "smollm2"];
    let all = names_in("").into_iter().filter(|name| name != "models" && !name.ends_with(".md"));
    for name in all.chain(names_in("models").iter().map(|name| format!("models/{name}"))) {
        let tested = models.contains(&name) || name == "models/llama_lora" || files.contains(&name.as_str());
        let owed = pending.contains(&format!("golden/{name}"));
        assert!(tested != owed, "golden/{name}: tested {tested}, in PENDING {owed}; one of the two must hold");
    }
}

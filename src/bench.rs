//! `ragen bench`: how fast the engine is on this machine, as rates and as shares of what the machine can do.
//!
//! Every figure is the median of runs that alternate with what it is compared with, since machines are noisy. With the feature
//! `peers` the crate `gemm` runs beside our own product.

use ragen_models::config::{Family, Rope};
use ragen_models::device::Cpu;
use ragen_models::kv_cache::CacheId;
use ragen_models::ops::gemm::{Left, Packed, Right, gemm};
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::sampler::{Sampling, Scratch};
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Append, Config, Gradients, Precision, Transformer};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

pub mod language;

/// The shape of a small model: 4 layers, width 128, vocabulary 512.
pub fn small() -> Config {
    Config {
        family: Family::Llama,
        vocab: 512,
        d_model: 128,
        n_layers: 4,
        n_heads: 4,
        n_kv_heads: 4,
        head_dim: 32,
        d_ff: 512,
        rope: Rope::plain(10_000.0),
        sliding_window: None,
        norm_eps: 1e-6,
        tied_embeddings: false,
        qkv_bias: false,
        qk_norm: false,
        value_head: false,
        max_positions: 512,
    }
}

/// Seconds of one run of `body`.
fn time(body: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_secs_f64()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Median seconds of each of `bodies`, run in turn `rounds` times after one round that is not counted.
fn alternate(rounds: usize, bodies: &mut [&mut dyn FnMut()]) -> Vec<f64> {
    let mut seconds = vec![Vec::new(); bodies.len()];
    for round in 0..=rounds {
        for (body, seconds) in bodies.iter_mut().zip(&mut seconds) {
            let t = time(*body);
            if round > 0 {
                seconds.push(t);
            }
        }
    }
    seconds.into_iter().map(median).collect()
}

fn matrix(seed: u64, len: usize) -> Vec<f32> {
    let key = Key::new(seed);
    (0..len).map(|i| key.uniform(i as u64) as f32 - 0.5).collect()
}

/// How the operands of a product lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A `[m, k]`, B `[k, n]`.
    Nn,
    /// A `[m, k]`, B given as `[n, k]`: a weight, packed inside the measured time.
    Nt,
    /// The same, packed before.
    NtPacked,
    /// A given as `[k, m]`, B `[k, n]`: a weight's gradient.
    Tn,
}

impl Order {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Order::Nn => "NN",
            Order::Nt => "NT",
            Order::NtPacked => "NT packed",
            Order::Tn => "TN",
        }
    }
}

/// One product, to run as often as wanted.
pub struct Product {
    shape: (usize, usize, usize),
    order: Order,
    precision: Precision,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    packed: Packed,
}

impl Product {
    /// C `[m, n]` = A `[m, k]` · B `[k, n]` of random numbers.
    pub fn new(cpu: &Cpu, m: usize, k: usize, n: usize, order: Order, precision: Precision) -> Self {
        let b = matrix(2, k * n);
        let mut packed = Packed::default();
        packed.transposed(cpu, precision, &b, n, k);
        Product { shape: (m, k, n), order, precision, a: matrix(1, m * k), b, c: vec![0.0; m * n], packed }
    }

    /// Our product.
    pub fn ours(&mut self, cpu: &Cpu) {
        let Product { shape: (m, k, n), order, precision, a, b, c, packed } = self;
        let (m, k, n) = (*m, *k, *n);
        if *order == Order::Nt {
            packed.transposed(cpu, *precision, b, n, k);
        }
        let left = if *order == Order::Tn { Left::transposed(a, m) } else { Left::rows(a, k) };
        let right = if matches!(order, Order::Nt | Order::NtPacked) {
            Right::Packed(packed)
        } else {
            Right::Rows(b, *precision)
        };
        gemm(cpu, m, n, k, left, right, c, false);
    }

    /// The crate `gemm` on the same operands.
    #[cfg(feature = "peers")]
    pub fn peer(&mut self, cpu: &Cpu) {
        let (m, k, n) = self.shape;
        peer_gemm(cpu.pool.threads(), m, k, n, self.order, &self.a, &self.b, &mut self.c);
    }

    fn flops(&self) -> f64 {
        let (m, k, n) = self.shape;
        2.0 * (m * k * n) as f64
    }
}

/// FLOP/s of our product of 256×576×1536, its weight packed before.
pub fn product_rate(cpu: &Cpu, precision: Precision) -> f64 {
    let mut product = Product::new(cpu, 256, 576, 1536, Order::NtPacked, precision);
    product.flops() / alternate(5, &mut [&mut || product.ours(cpu)])[0]
}

/// One product against its peer.
fn measure_gemm(cpu: &Cpu, m: usize, k: usize, n: usize, order: Order, precision: Precision) -> Value {
    let mut product = Product::new(cpu, m, k, n, order, precision);
    let flops = product.flops();
    let rounds = (4e9 / flops).clamp(5.0, 200.0) as usize;
    let mut line = json!({"m": m, "k": k, "n": n, "layout": order.name(), "dtype": precision.name()});
    #[cfg(feature = "peers")]
    {
        let mut other = Product::new(cpu, m, k, n, order, Precision::F32);
        let seconds = alternate(rounds, &mut [&mut || product.ours(cpu), &mut || other.peer(cpu)]);
        line["gflops"] = json!(flops / seconds[0] / 1e9);
        line["peer"] = json!("gemm");
        line["peer_gflops"] = json!(flops / seconds[1] / 1e9);
    }
    #[cfg(not(feature = "peers"))]
    {
        line["gflops"] = json!(flops / alternate(rounds, &mut [&mut || product.ours(cpu)])[0] / 1e9);
    }
    line
}

/// The crate `gemm` on the same operands.
#[cfg(feature = "peers")]
fn peer_gemm(threads: usize, m: usize, k: usize, n: usize, order: Order, a: &[f32], b: &[f32], c: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == k * n && c.len() == m * n);
    let (m_, k_, n_) = (m as isize, k as isize, n as isize);
    let (a_column, a_row) = if order == Order::Tn { (m_, 1) } else { (1, k_) };
    let (b_column, b_row) = if matches!(order, Order::Nt | Order::NtPacked) { (k_, 1) } else { (1, n_) };
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    // SAFETY: the strides describe the slices, whose lengths were just checked.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n_,
            false,
            a.as_ptr(),
            a_column,
            a_row,
            b.as_ptr(),
            b_column,
            b_row,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Gigabytes read a second, summing a buffer far larger than the caches on all threads.
pub fn read_bandwidth(cpu: &Cpu) -> f64 {
    let buffer = vec![1.0f32; 64 << 20];
    let sums: Vec<AtomicU64> = (0..64).map(|_| Default::default()).collect();
    let mut body = || {
        cpu.pool.run(64, &|i| {
            let part = &buffer[i << 20..(i + 1) << 20];
            // So many sums that the additions wait for memory, never for each other.
            let sum = part.chunks_exact(64).fold([0.0f32; 64], |sum, x| std::array::from_fn(|j| sum[j] + x[j]));
            sums[i].store(sum[0].to_bits().into(), Ordering::Relaxed);
        });
    };
    (buffer.len() * 4) as f64 / alternate(3, &mut [&mut body])[0] / 1e9
}

/// Peak resident memory of this process in bytes, where the system tells.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Training steps on random rows: forward, head, backward, AdamW, packing.
pub struct Train {
    model: Transformer,
    batch: Vec<Vec<u32>>,
    optimiser: AdamW,
    gradients: Gradients,
    acts: Activations,
}

impl Train {
    /// A fresh model of this shape and `rows` rows of `len` random tokens.
    pub fn new(cpu: &Cpu, shape: &Config, rows: usize, len: usize) -> Self {
        Train::with(cpu, shape, Transformer::initial(shape, 1), Precision::F32, rows, len)
    }

    /// The same with these weights and this precision.
    pub fn with(cpu: &Cpu, shape: &Config, weights: Params, precision: Precision, rows: usize, len: usize) -> Self {
        let model = Transformer::new(cpu, shape.clone(), weights, precision);
        Train {
            batch: tokens(3, rows, len, shape.vocab),
            optimiser: AdamW::new(AdamWSettings::default(), model.params().table.clone()),
            gradients: Gradients::zeros(&model),
            acts: Activations::default(),
            model,
        }
    }

    /// The model as it is trained.
    pub fn into_model(self) -> Transformer {
        self.model
    }

    /// One optimiser step over all rows, `micro` rows at a time.
    pub fn step(&mut self, cpu: &Cpu, micro: usize) {
        let Train { model, batch, optimiser, gradients, acts } = self;
        for rows in batch.chunks(micro) {
            let tree = TokenTree::from_rows(rows);
            model.forward(cpu, &tree, acts, true);
            let next = tree.segments.iter().flat_map(|s| s.rows().skip(1));
            let targets: Vec<Target> =
                next.map(|row| Target { row: row - 1, token: tree.ids[row], kept: None }).collect();
            let n = model.values(cpu, acts, &targets, 1.0).logp.len();
            let seeds = PerTarget { logp: vec![-1.0 / n as f32; n], ..Default::default() };
            model.backward(cpu, &tree, acts, &targets, 1.0, &seeds, gradients);
        }
        model.update(cpu, |params| {
            optimiser.step(cpu, params, gradients.total(), 1e-4);
        });
        gradients.zero();
    }
}

fn tokens(seed: u64, rows: usize, len: usize, vocab: usize) -> Vec<Vec<u32>> {
    let row = |r: usize| (0..len).map(|t| Key::new(seed).with(r as u64).below(t as u64, vocab) as u32).collect();
    (0..rows).map(row).collect()
}

/// Sampling from random prompts: `groups` prompts with `members` sequences each; prefill included.
pub struct Decode {
    model: Transformer,
    prompts: Vec<Vec<u32>>,
    members: usize,
    new: usize,
    logits: Vec<f32>,
}

impl Decode {
    /// A fresh model of this shape, `groups` prompts of `prompt` tokens, `new` tokens a sequence.
    pub fn new(cpu: &Cpu, shape: &Config, groups: usize, members: usize, prompt: usize, new: usize) -> Self {
        let model = Transformer::new(cpu, shape.clone(), Transformer::initial(shape, 1), Precision::F32);
        Decode::over(model, groups, members, prompt, new)
    }

    /// The same over a model that is there.
    pub fn over(model: Transformer, groups: usize, members: usize, prompt: usize, new: usize) -> Self {
        let prompts = tokens(4, groups, prompt, model.config.vocab);
        Decode { model, prompts, members, new, logits: Vec::new() }
    }

    /// The same model with other sequences: `batch` prompts, one member each.
    pub fn again(&mut self, batch: usize, prompt: usize, new: usize) {
        self.prompts = tokens(4, batch, prompt, self.model.config.vocab);
        (self.members, self.new) = (1, new);
    }

    /// The model.
    pub fn into_model(self) -> Transformer {
        self.model
    }

    /// Samples all sequences to their end.
    pub fn run(&mut self, cpu: &Cpu) {
        let Decode { model, prompts, members, new, logits } = self;
        let vocab = model.config.vocab;
        let mut cache = model.new_cache(cpu);
        let firsts: Vec<CacheId> = prompts.iter().map(|_| cache.open()).collect();
        let appends: Vec<Append<'_>> =
            firsts.iter().zip(&*prompts).map(|(&id, tokens)| Append { id, tokens }).collect();
        model.extend(cpu, &mut cache, &appends, logits);
        let mut ids: Vec<CacheId> = Vec::new();
        for &first in &firsts {
            ids.push(first);
            for _ in 1..*members {
                let id = cache.open();
                cache.share(id, first);
                ids.push(id);
            }
        }
        let mut rows: Vec<usize> = (0..ids.len()).map(|i| i / *members).collect();
        let sampling = Sampling::default();
        for t in 0..*new {
            let drawn: Vec<AtomicU32> = ids.iter().map(|_| AtomicU32::new(0)).collect();
            cpu.pool.split(ids.len(), 8, 1, &|range| {
                let mut scratch = Scratch::default();
                for i in range {
                    let row = &logits[rows[i] * vocab..][..vocab];
                    let u = Key::new(5).with(i as u64).uniform(t as u64);
                    let id = sampling.draw(cpu.isa, row, u, &mut scratch).map_or(0, |d| d.id);
                    drawn[i].store(id, Ordering::Relaxed);
                }
            });
            let tokens: Vec<[u32; 1]> = drawn.into_iter().map(|id| [id.into_inner()]).collect();
            rows = (0..ids.len()).collect();
            if t + 1 < *new {
                let appends: Vec<Append<'_>> =
                    ids.iter().zip(&tokens).map(|(&id, tokens)| Append { id, tokens }).collect();
                model.extend(cpu, &mut cache, &appends, logits);
            }
        }
    }
}

/// Environment steps a second on one core, without and with the text observation.
fn measure_env(tag: &str) -> Vec<Value> {
    let Some(tag) = ragen_envs::tags().into_iter().find(|t| t.name == tag) else { return Vec::new() };
    let mut lines = Vec::new();
    for observe in [false, true] {
        let Ok(mut env) = ragen_envs::make(&tag.env_type, &tag.config) else { continue };
        if env.reset(1, 0, ragen_envs::Mode::Train).is_err() {
            continue;
        }
        let actions = env.actions().unwrap_or_default();
        let steps = if observe { 100_000u64 } else { 2_000_000 };
        let mut length = 0;
        let mut body = || {
            for i in 0..steps {
                let action = &actions[Key::new(6).below(i, actions.len())];
                if env.step(action).is_ok_and(|s| s.terminated || s.truncated) {
                    // Reloading a level is not what is measured, but an ended episode is.
                    length += usize::from(env.reset(1, 0, ragen_envs::Mode::Train).is_err());
                }
                if observe {
                    length += env.observation().len();
                }
            }
        };
        let seconds = alternate(3, &mut [&mut body])[0];
        std::hint::black_box(length);
        lines.push(json!({"tag": tag.name, "observation": observe, "steps_per_s": steps as f64 / seconds}));
    }
    lines
}

/// Runs all measurements of `model`, telling each as it comes, and returns the JSON object of the contract.
pub fn run(cpu: &Cpu, name: &str, config: &Config, tell: &mut dyn FnMut(&str)) -> Value {
    let threads = cpu.pool.threads();
    let mut products = Vec::new();
    let mut ceiling = None;
    for (m, k, n) in [(1024, 576, 1536), (256, 576, 1536), (4096, 128, 512), (32, 576, 1536), (32, 128, 512)] {
        let orders: &[Order] =
            if m == 32 { &[Order::NtPacked] } else { &[Order::Nn, Order::Nt, Order::Tn, Order::NtPacked] };
        let both = |&order| [(order, Precision::F32), (order, Precision::Bf16)];
        for (order, precision) in orders.iter().flat_map(both) {
            let line = measure_gemm(cpu, m, k, n, order, precision);
            let ours = line["gflops"].as_f64().unwrap_or(0.0);
            let versus = match line["peer_gflops"].as_f64() {
                Some(peer) => {
                    ceiling = ceiling.or(Some(peer));
                    format!(", {:.2} of gemm's {peer:.0}", ours / peer)
                }
                None => String::new(),
            };
            tell(&format!(
                "product {m}×{k}×{n} {:<9} {:<4} {ours:7.1} GFLOP/s{versus}",
                order.name(),
                precision.name()
            ));
            products.push(line);
        }
    }
    let bandwidth = read_bandwidth(cpu);
    tell(&format!("memory read {bandwidth:.1} GB/s"));

    let len = 256.min(config.max_positions);
    let mut training = Train::new(cpu, config, 32, len);
    let parameters = training.model.params().data.len();
    let train = (32 * len) as f64 / alternate(5, &mut [&mut || training.step(cpu, 8)])[0];
    let peak = peak_bytes();
    let flops = 6.0 * parameters as f64 * train;
    let share = ceiling.map(|peer| flops / 1e9 / peer);
    let versus = share.map_or(String::new(), |s| format!(", {s:.2} of gemm's rate at 1024×576×1536"));
    tell(&format!("train 32 × {len}: {train:.0} tokens/s, {:.1} GFLOP/s{versus}", flops / 1e9));

    let (model, rows) = (&training.model, &training.batch);
    let mut logits = Vec::new();
    let mut prefill = || {
        let mut cache = model.new_cache(cpu);
        let appends: Vec<Append<'_>> = rows.iter().map(|tokens| Append { id: cache.open(), tokens }).collect();
        model.extend(cpu, &mut cache, &appends, &mut logits);
    };
    let prefill = (32 * len) as f64 / alternate(3, &mut [&mut prefill])[0];
    tell(&format!("prefill {prefill:.0} tokens/s"));

    let mut decode = Vec::new();
    let (prompt, new) = (128.min(len / 2), 128.min(config.max_positions - 128.min(len / 2)));
    for (groups, members) in [(1, 1), (16, 1), (64, 1), (8, 8), (128, 1)] {
        let mut sequences = Decode::new(cpu, config, groups, members, prompt, new);
        let batch = groups * members;
        let rate = (batch * new) as f64 / alternate(3, &mut [&mut || sequences.run(cpu)])[0];
        let share = (parameters * 4) as f64 * rate / batch as f64 / 1e9 / bandwidth;
        tell(&format!("decode {batch} sequences of {groups} prompts: {rate:.0} tokens/s"));
        decode.push(json!({"batch": batch, "prompts": groups, "tokens_per_s": rate, "share_of_bandwidth": share}));
    }
    let mut env = Vec::new();
    for tag in ["SimpleSokoban", "FrozenLake"] {
        for line in measure_env(tag) {
            let observe = if line["observation"] == true { " with its text" } else { "" };
            tell(&format!("{tag}{observe}: {:.0} steps/s on one core", line["steps_per_s"].as_f64().unwrap_or(0.0)));
            env.push(line);
        }
    }
    json!({
        "device": format!("cpu ({})", cpu.isa.name()),
        "model": name,
        "threads": threads,
        "gemm": products,
        "copy_gb_per_s": bandwidth,
        "train": {"tokens_per_s": train, "flops_per_s": flops, "share_of_gemm": share, "peak_bytes": peak},
        "prefill": {"tokens_per_s": prefill},
        "decode": decode,
        "env": env,
    })
}

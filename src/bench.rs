//! `ragen bench`: how fast the engine is on this machine, as rates and as shares of what the machine can do.
//!
//! Every figure is the median of runs that alternate with what it is compared with, since machines are noisy. With the feature
//! `peers` the crate `gemm` runs beside our own product.

use ragen_models::device::Cpu;
use ragen_models::kv_cache::CacheId;
use ragen_models::ops::gemm::{Left, Packed, Right, gemm};
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::random::Key;
use ragen_models::sampler::{Sampling, Scratch};
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Append, Config, Gradients, Transformer};
use serde_json::{Value, json};
use std::time::Instant;

/// The shape of a small model: 4 layers, width 128, vocabulary 512.
pub fn small() -> Config {
    Config {
        vocab: 512,
        d_model: 128,
        n_layers: 4,
        n_heads: 4,
        n_kv_heads: 4,
        head_dim: 32,
        d_ff: 512,
        rope_theta: 10_000.0,
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
    fn name(self) -> &'static str {
        match self {
            Order::Nn => "NN",
            Order::Nt => "NT",
            Order::NtPacked => "NT packed",
            Order::Tn => "TN",
        }
    }
}

/// One product against its peer.
fn measure_gemm(cpu: &Cpu, m: usize, k: usize, n: usize, order: Order) -> Value {
    let (a, b) = (matrix(1, m * k), matrix(2, k * n));
    let mut packed = Packed::default();
    packed.transposed(cpu, &b, n, k);
    let mut c = vec![0.0; m * n];
    let mut ours = || match order {
        Order::Nn => gemm(cpu, m, n, k, Left::rows(&a, k), Right::Rows(&b), &mut c, false),
        Order::NtPacked => gemm(cpu, m, n, k, Left::rows(&a, k), Right::Packed(&packed), &mut c, false),
        Order::Nt => {
            packed.transposed(cpu, &b, n, k);
            gemm(cpu, m, n, k, Left::rows(&a, k), Right::Packed(&packed), &mut c, false);
        }
        Order::Tn => gemm(cpu, m, n, k, Left::transposed(&a, m), Right::Rows(&b), &mut c, false),
    };
    let flops = 2.0 * (m * k * n) as f64;
    let rounds = (4e9 / flops).clamp(5.0, 200.0) as usize;
    let mut line = json!({"m": m, "k": k, "n": n, "layout": order.name(), "dtype": "f32"});
    #[cfg(feature = "peers")]
    {
        let mut peer_c = vec![0.0f32; m * n];
        let mut peer = || peer_gemm(cpu.pool.threads(), m, k, n, order, &a, &b, &mut peer_c);
        let seconds = alternate(rounds, &mut [&mut ours, &mut peer]);
        line["gflops"] = json!(flops / seconds[0] / 1e9);
        line["peer"] = json!("gemm");
        line["peer_gflops"] = json!(flops / seconds[1] / 1e9);
    }
    #[cfg(not(feature = "peers"))]
    {
        line["gflops"] = json!(flops / alternate(rounds, &mut [&mut ours])[0] / 1e9);
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
fn read_bandwidth(cpu: &Cpu) -> f64 {
    let buffer = vec![1.0f32; 64 << 20];
    let sums: Vec<std::sync::atomic::AtomicU64> = (0..64).map(|_| Default::default()).collect();
    let mut body = || {
        cpu.pool.run(64, &|i| {
            let part = &buffer[i << 20..(i + 1) << 20];
            let sum = part.chunks_exact(16).fold([0.0f32; 16], |sum, x| std::array::from_fn(|j| sum[j] + x[j]));
            sums[i].store(sum[0].to_bits().into(), std::sync::atomic::Ordering::Relaxed);
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

/// One whole training step: forward, head, backward, AdamW, packing; `rows` rows of `len` tokens, `micro` rows at a time.
fn measure_train(cpu: &Cpu, model: &mut Transformer, rows: usize, len: usize, micro: usize) -> (f64, Option<u64>) {
    let vocab = model.config.vocab;
    let key = Key::new(3);
    let batch: Vec<Vec<u32>> =
        (0..rows).map(|r| (0..len).map(|t| key.with(r as u64).below(t as u64, vocab) as u32).collect()).collect();
    let mut optimiser = AdamW::new(AdamWSettings::default(), model.params().table.clone());
    let mut gradients = Gradients::zeros(model);
    let mut acts = Activations::default();
    let mut step = || {
        for rows in batch.chunks(micro) {
            let tree = TokenTree::from_rows(rows);
            model.forward(cpu, &tree, &mut acts, true);
            let targets: Vec<Target> = tree
                .segments
                .iter()
                .flat_map(|s| s.rows().skip(1))
                .map(|row| Target { row: row - 1, token: tree.ids[row], kept: None })
                .collect();
            let values = model.values(cpu, &acts, &targets, 1.0);
            let seeds =
                PerTarget { logp: vec![-1.0 / values.logp.len() as f32; values.logp.len()], ..Default::default() };
            model.backward(cpu, &tree, &mut acts, &targets, 1.0, &seeds, &mut gradients);
        }
        model.update(cpu, |params| {
            optimiser.step(cpu, params, gradients.total(), 1e-4);
        });
        gradients.zero();
    };
    let seconds = alternate(5, &mut [&mut step])[0];
    ((rows * len) as f64 / seconds, peak_bytes())
}

/// Sampled tokens a second: `groups` prompts of `prompt` tokens with `members` sequences each, `new` tokens a sequence.
/// Prefill is part of the time.
fn measure_decode(cpu: &Cpu, model: &Transformer, groups: usize, members: usize, prompt: usize, new: usize) -> f64 {
    let vocab = model.config.vocab;
    let prompts: Vec<Vec<u32>> = (0..groups)
        .map(|g| (0..prompt).map(|t| Key::new(4).with(g as u64).below(t as u64, vocab) as u32).collect())
        .collect();
    let sampling = Sampling::default();
    let mut logits = Vec::new();
    let mut body = || {
        let mut cache = model.new_cache(cpu);
        let firsts: Vec<CacheId> = prompts.iter().map(|_| cache.open()).collect();
        let appends: Vec<Append<'_>> = firsts.iter().zip(&prompts).map(|(&id, tokens)| Append { id, tokens }).collect();
        model.extend(cpu, &mut cache, &appends, &mut logits);
        let mut ids: Vec<CacheId> = Vec::new();
        for &first in &firsts {
            for member in 0..members {
                let id = if member == 0 { first } else { cache.open() };
                if member > 0 {
                    cache.share(id, first);
                }
                ids.push(id);
            }
        }
        let mut logit_row: Vec<usize> = (0..ids.len()).map(|i| i / members).collect();
        let mut tokens = vec![[0u32]; ids.len()];
        for t in 0..new {
            let shards: Vec<std::sync::atomic::AtomicU32> = (0..ids.len()).map(|_| Default::default()).collect();
            cpu.pool.split(ids.len(), 8, 1, &|range| {
                let mut scratch = Scratch::default();
                for i in range {
                    let row = &logits[logit_row[i] * vocab..][..vocab];
                    let u = Key::new(5).with(i as u64).uniform(t as u64);
                    let id = sampling.draw(cpu.isa, row, u, &mut scratch).map_or(0, |d| d.id);
                    shards[i].store(id, std::sync::atomic::Ordering::Relaxed);
                }
            });
            for (token, id) in tokens.iter_mut().zip(&shards) {
                *token = [id.load(std::sync::atomic::Ordering::Relaxed)];
            }
            logit_row = (0..ids.len()).collect();
            if t + 1 < new {
                let appends: Vec<Append<'_>> =
                    ids.iter().zip(&tokens).map(|(&id, tokens)| Append { id, tokens }).collect();
                model.extend(cpu, &mut cache, &appends, &mut logits);
            }
        }
    };
    (groups * members * new) as f64 / alternate(3, &mut [&mut body])[0]
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
        for &order in orders {
            let line = measure_gemm(cpu, m, k, n, order);
            let ours = line["gflops"].as_f64().unwrap_or(0.0);
            let versus = match line["peer_gflops"].as_f64() {
                Some(peer) => {
                    ceiling = ceiling.or(Some(peer));
                    format!(", {:.2} of gemm's {peer:.0}", ours / peer)
                }
                None => String::new(),
            };
            tell(&format!("product {m}×{k}×{n} {:<9} {ours:7.1} GFLOP/s{versus}", order.name()));
            products.push(line);
        }
    }
    let bandwidth = read_bandwidth(cpu);
    tell(&format!("memory read {bandwidth:.1} GB/s"));

    let params = Transformer::initial(config, 1);
    let parameters = params.data.len();
    let mut model = Transformer::new(cpu, config.clone(), params);
    let len = 256.min(config.max_positions);
    let (train, peak) = measure_train(cpu, &mut model, 32, len, 8);
    let flops = 6.0 * parameters as f64 * train;
    let share = ceiling.map(|peer| flops / 1e9 / peer);
    let versus = share.map_or(String::new(), |s| format!(", {s:.2} of gemm's rate at 1024×576×1536"));
    tell(&format!("train 32 × {len}: {train:.0} tokens/s, {:.1} GFLOP/s{versus}", flops / 1e9));

    let tree: Vec<Vec<u32>> =
        (0..32).map(|r| (0..len as u32).map(|t| (t * 7 + r) % config.vocab as u32).collect()).collect();
    let mut logits = Vec::new();
    let mut prefill = || {
        let mut cache = model.new_cache(cpu);
        let appends: Vec<Append<'_>> = tree.iter().map(|tokens| Append { id: cache.open(), tokens }).collect();
        model.extend(cpu, &mut cache, &appends, &mut logits);
    };
    let prefill = (32 * len) as f64 / alternate(3, &mut [&mut prefill])[0];
    tell(&format!("prefill {prefill:.0} tokens/s"));

    let mut decode = Vec::new();
    let (prompt, new) = (128.min(len / 2), 128.min(config.max_positions - 128.min(len / 2)));
    for (groups, members) in [(1, 1), (16, 1), (64, 1), (8, 8), (128, 1)] {
        let rate = measure_decode(cpu, &model, groups, members, prompt, new);
        let batch = groups * members;
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

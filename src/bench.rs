//! `ragen bench`: how fast the engine is on this machine, as rates and as shares of what the machine can do.
//!
//! Every figure is the median of runs that alternate with what it is compared with, since machines are noisy. With the feature
//! `peers` the crate `gemm` runs beside our own product.

mod engine;
pub mod estimate;
pub mod gpu;
pub mod language;
mod product;
mod shapes;

pub use engine::{Decode, Train};
pub use product::{Order, Product, product_rate};
pub use shapes::{half_billion, small, smollm2, weights};

use engine::tokens;
use product::measure_gemm;
use ragen_models::device::Cpu;
use ragen_models::random::Key;
use ragen_models::transformer::{Append, Config, Precision};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

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

//! A language model of real size: training, prefill, decoding and one whole GRPO step, in f32 and bf16.
//!
//! Rates stand beside the crate `gemm`'s at 1024×576×1536 (G) and the bandwidth of reading (W), both measured again around every row: on
//! a machine that others use, only figures that were taken together can be compared.

use super::{Decode, Order, Product, Train, alternate, peak_bytes, read_bandwidth, time, tokens};
use crate::policy::model::Model;
use crate::policy::{Policy, Request, Row, Sampling, Stop, TokenSeeds};
use ragen_models::device::Cpu;
use ragen_models::engine::CpuEngine;
use ragen_models::optim::AdamWSettings;
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::transformer::{Config, Precision};
use serde_json::{Value, json};
use std::sync::Arc;

/// Tokens of a prompt and of a response.
const PROMPT: usize = 200;
const NEW: usize = 64;

/// What the machine does beside a row.
struct Yardsticks {
    product: Product,
    bandwidth: f64,
}

impl Yardsticks {
    fn new(cpu: &Cpu) -> Self {
        Yardsticks {
            product: Product::new(cpu, 1024, 576, 1536, Order::Nn, Precision::F32),
            bandwidth: read_bandwidth(cpu),
        }
    }

    /// The rate of the product at 1024×576×1536 now, in FLOP/s: the crate `gemm`'s, or our own without it.
    fn rate(&mut self, cpu: &Cpu) -> f64 {
        let product = &mut self.product;
        let mut body = || {
            #[cfg(feature = "peers")]
            product.peer(cpu);
            #[cfg(not(feature = "peers"))]
            product.ours(cpu);
        };
        let flops = 2.0 * (1024 * 576 * 1536) as f64;
        flops / alternate(9, &mut [&mut body])[0]
    }

    /// Seconds of the fastest of `rounds` runs, and the rate of the product before and after them, averaged.
    fn around(&mut self, cpu: &Cpu, rounds: usize, body: &mut dyn FnMut()) -> (f64, f64) {
        let before = self.rate(cpu);
        let seconds = (0..rounds).map(|_| time(body)).fold(f64::INFINITY, f64::min);
        (seconds, 0.5 * (before + self.rate(cpu)))
    }
}

/// Runs all measurements of a model, telling each as it comes, and returns the JSON object of the contract.
pub fn run(cpu: &Arc<Cpu>, name: &str, shape: &Config, weights: Params, tell: &mut dyn FnMut(&str)) -> Value {
    let mut sticks = Yardsticks::new(cpu);
    let rate = sticks.rate(cpu) / 1e9;
    tell(&format!("G {rate:.0} GFLOP/s (1024×576×1536), W {:.1} GB/s read", sticks.bandwidth));
    let mut lines = Vec::new();
    for precision in [Precision::F32, Precision::Bf16] {
        lines.push(measure(cpu, shape, weights.clone(), precision, &mut sticks, tell));
    }
    json!({
        "device": format!("cpu ({})", cpu.isa.name()),
        "model": name,
        "threads": cpu.pool.threads(),
        "gemm": [{"m": 1024, "k": 576, "n": 1536, "layout": "NN", "dtype": "f32", "peer_gflops": rate}],
        "copy_gb_per_s": sticks.bandwidth,
        "train": lines[0]["train"], "prefill": lines[0]["prefill"], "decode": lines[0]["decode"],
        "precisions": lines,
    })
}

fn measure(
    cpu: &Arc<Cpu>,
    shape: &Config,
    weights: Params,
    precision: Precision,
    sticks: &mut Yardsticks,
    tell: &mut dyn FnMut(&str),
) -> Value {
    let parameters = weights.data.len();
    let name = precision.name();
    let mut training = Train::with(cpu, shape, weights, precision, 8, 512);
    let (seconds, g) = sticks.around(cpu, 2, &mut || training.step(cpu, 2));
    let train = (8 * 512) as f64 / seconds;
    let flops = 6.0 * parameters as f64 * train;
    let peak = peak_bytes();
    let gib = peak.map_or(0.0, |bytes| bytes as f64 / f64::from(1 << 30));
    tell(&format!("{name} train 8 × 512: {train:.0} tokens/s, {:.2} G, peak {gib:.2} GiB", flops / g));
    let model = training.into_model();

    let mut decode = Vec::new();
    let mut sequences = Decode::over(model, 16, 1, PROMPT, 1);
    let (first, g) = sticks.around(cpu, 2, &mut || sequences.run(cpu));
    let prefill = (16 * PROMPT) as f64 / first;
    let share = 2.0 * parameters as f64 * prefill / g;
    tell(&format!("{name} prefill 16 × {PROMPT}: {prefill:.0} tokens/s, {share:.2} G"));
    for batch in [16, 1] {
        // The prompts alone are taken off, so that the rate is that of new tokens.
        let mut sequences_of = |new: usize| {
            sequences.again(batch, PROMPT, new);
            sticks.around(cpu, 2, &mut || sequences.run(cpu))
        };
        let (alone, _) = sequences_of(1);
        let (whole, g) = sequences_of(NEW + 1);
        let rate = (batch * NEW) as f64 / (whole - alone).max(1e-9);
        let bytes = (parameters * precision.bytes()) as f64 * rate / batch as f64 / 1e9;
        let share = bytes / sticks.bandwidth;
        let of_g = 2.0 * parameters as f64 * rate / g;
        tell(&format!(
            "{name} decode batch {batch}: {rate:.0} tokens/s ({:.0} with prefill), {of_g:.2} G, {share:.2} W",
            (batch * NEW) as f64 / whole
        ));
        decode.push(json!({"batch": batch, "tokens_per_s": rate, "share_of_bandwidth": share, "share_of_gemm": of_g}));
    }
    let model = Model::over(Box::new(CpuEngine::new(cpu.clone(), sequences.into_model(), AdamWSettings::default())));
    let (step, rollout) = grpo(model, shape.vocab);
    tell(&format!("{name} GRPO step of 4 × 4, {PROMPT} + {NEW} tokens: {step:.1} s, {rollout:.1} of them rollout"));
    json!({
        "dtype": name,
        "train": {"tokens_per_s": train, "flops_per_s": flops, "share_of_gemm": flops / g, "peak_bytes": peak},
        "prefill": {"tokens_per_s": prefill, "share_of_gemm": share},
        "decode": decode,
        "grpo_step": {"seconds": step, "rollout_seconds": rollout},
    })
}

/// Seconds of a whole step: rollout of 4 prompts with 4 members each, training on all of it, update; and of the rollout in it.
fn grpo(mut policy: Model, vocab: usize) -> (f64, f64) {
    let prompts = tokens(8, 4, PROMPT, vocab);
    let mut rows: Vec<Vec<u32>> = Vec::new();
    let rollout = time(&mut || {
        let requests: Vec<Request<'_>> = (0..16)
            .map(|i| Request {
                sequence: policy.open(),
                prompt: &prompts[i / 4],
                key: Key::new(9).with(i as u64),
                max_new_tokens: NEW,
            })
            .collect();
        // Random prompts are within the vocabulary and the context, so sampling them cannot fail.
        let responses = policy.generate(&requests, &Sampling::default(), &Stop::default()).unwrap_or_default();
        rows = responses.iter().zip(&requests).map(|(r, q)| [q.prompt, &r.ids].concat()).collect();
        requests.iter().for_each(|request| policy.close(request.sequence));
    });
    let update = time(&mut || {
        let targets: Vec<u32> = (PROMPT as u32..(PROMPT + NEW) as u32).collect();
        let rows: Vec<Row<'_>> = rows.iter().map(|ids| Row { ids, targets: &targets, kept: &[] }).collect();
        for rows in rows.chunks(4) {
            let n = (rows.len() * NEW) as f32;
            let seeds = |logp: &[f32]| logp.iter().enumerate().map(|(i, _)| (i % 3) as f32 / n - 1.0 / n).collect();
            let _ = policy
                .accumulate(rows, 1.0, &mut |found| TokenSeeds { logp: seeds(&found.logp), ..TokenSeeds::default() });
        }
        let _ = policy.update(1e-6);
    });
    (rollout + update, rollout)
}

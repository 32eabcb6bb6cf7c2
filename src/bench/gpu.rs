//! `ragen bench` on a GPU: its ceilings first, then training, prefill, decoding, a whole step as RAGEN has it, and every kernel, each
//! beside what the ceilings allow.
//!
//! Whole phases are timed by the host's clock around work that the device has finished, so that what the host does between launches
//! counts; kernels by the device's own. On the emulator everything runs and nothing is timed: what would be a rate is null.

pub mod cost;
mod kernels;
mod step;

use super::engine::tokens;
use super::median;
use cost::Cost;
pub(super) use kernels::kernel_shape;
use ragen_models::doctor::ceilings::{self, copy_rate, product_rate};
use ragen_models::engine::{Engine, EngineError, GpuEngine, Room};
use ragen_models::gpu::{Bf16, Gpu, GpuTransformer, Precision, Products};
use ragen_models::kv_cache::CacheId;
use ragen_models::memory::Work;
use ragen_models::ops::attention::PAGE;
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::AdamWSettings;
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::sampler::{Draw, Sampling};
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{self, Append, Config};
use serde_json::{Value, json};
use std::time::Instant;
pub use step::Episodes;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Bytes of the copy, and side of the square product, that ceilings are measured with.
    pub ceilings: (usize, usize),
    /// Rows of a training step, and their tokens.
    pub train: (usize, usize),
    /// Sequences that are decoded at once.
    pub batches: Vec<usize>,
    /// Tokens of a prompt, and steps of decoding that are timed.
    pub decode: (usize, usize),
    /// The whole step.
    pub step: Episodes,
}

impl Sizes {
    /// Those of a device with this much free memory: steps of 16,384 tokens, or of 8,192 where there is less than 48 GiB.
    pub fn device(free_bytes: usize) -> Sizes {
        Sizes {
            ceilings: (ceilings::COPY_BYTES, ceilings::SQUARE),
            train: (if free_bytes < 48 << 30 { 16 } else { 32 }, 512),
            batches: vec![1, 32, 128],
            decode: (512, 64),
            step: Episodes { groups: 8, members: 16, turns: 5, prompt: 256, response: 100, observation: 64 },
        }
    }

    /// What the emulator gets through in seconds.
    pub fn tiny() -> Sizes {
        Sizes {
            ceilings: (1 << 12, 16),
            train: (2, 20),
            batches: vec![1, 3],
            decode: (18, 2),
            step: Episodes { groups: 2, members: 2, turns: 2, prompt: 17, response: 2, observation: 3 },
        }
    }

    /// The same within a context of `positions` tokens.
    fn within(mut self, positions: usize) -> Sizes {
        self.train.1 = self.train.1.min(positions);
        self.decode.1 = self.decode.1.min(positions / 4).max(1);
        self.decode.0 = self.decode.0.min(positions - self.decode.1 - 1);
        self.step = self.step.within(positions);
        self
    }

    /// What they need, as the plan of a training run would have it.
    pub(super) fn room(&self, config: &Config) -> Room {
        let pages = |tokens: usize| tokens.div_ceil(PAGE) + 1;
        let batch = self.batches.iter().copied().max().unwrap_or(1);
        let decoded = batch * pages(self.decode.0 + self.decode.1 + 1);
        let (members, row) = (self.step.groups * self.step.members, self.step.row_tokens());
        let work = Work {
            precision: transformer::Precision::Bf16,
            lora: None,
            value_model: false,
            reference: false,
            trains: true,
            gradients_held: 0,
            packed_tokens: self.train.0 * self.train.1,
            recompute: false,
            pages: decoded.max(members * pages(row)),
            sequences: batch.max(members),
            threads: 0,
        };
        Room::of(config, &work)
    }
}

/// What a device can do at most, measured; `None` on the emulator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ceilings {
    /// Bytes a second.
    pub bandwidth: Option<f64>,
    /// Operations a second of products in bf16.
    pub bf16: Option<f64>,
    /// The same in f32.
    pub f32: Option<f64>,
}

impl Ceilings {
    fn measure(gpu: &Gpu, (bytes, square): (usize, usize)) -> Result<Ceilings, EngineError> {
        Ok(Ceilings {
            bandwidth: copy_rate(gpu, bytes)?.map(|gigabytes| gigabytes * 1e9),
            bf16: product_rate::<Bf16>(gpu, square)?.map(|teraflops| teraflops * 1e12),
            f32: product_rate::<f32>(gpu, square)?.map(|teraflops| teraflops * 1e12),
        })
    }

    fn rate(&self, bytes: usize) -> Option<f64> {
        if bytes == 2 { self.bf16 } else { self.f32 }
    }

    /// Seconds that a cost takes at least with elements of so many bytes.
    fn least(&self, cost: Cost, element_bytes: usize) -> Option<f64> {
        let (bandwidth, rate) = (self.bandwidth?, self.rate(element_bytes)?);
        Some((cost.bytes / bandwidth).max(cost.flops / rate))
    }
}

/// A device, and whether it has a clock.
struct Bench<'a> {
    gpu: &'a Gpu,
    config: &'a Config,
    sizes: &'a Sizes,
    ceilings: Ceilings,
    timed: bool,
    /// What could not be measured, and why.
    broken: Vec<String>,
    tell: &'a mut dyn FnMut(&str),
}

/// Runs all measurements of a model with these weights, telling each as it comes, and returns the JSON object of the contract.
///
/// **Errors** [`EngineError`] when not even the ceilings can be measured; a later part that breaks is named in `broken`.
pub fn run(
    gpu: &Gpu,
    name: &str,
    config: &Config,
    weights: &Params,
    sizes: &Sizes,
    tell: &mut dyn FnMut(&str),
) -> Result<Value, EngineError> {
    let sizes = &sizes.clone().within(config.max_positions);
    tell(&format!("{}: {name}, {:.3} billion parameters", gpu.name(), weights.data.len() as f64 / 1e9));
    let ceilings = Ceilings::measure(gpu, sizes.ceilings)?;
    let timed = gpu.time_ms(&mut || Ok(()))?.is_some();
    tell(&format!(
        "ceilings: {} GB/s, {} TFLOP/s in bf16, {} in f32",
        short(ceilings.bandwidth.map(|x| x / 1e9)),
        short(ceilings.bf16.map(|x| x / 1e12)),
        short(ceilings.f32.map(|x| x / 1e12))
    ));
    let mut bench = Bench { gpu, config, sizes, ceilings, timed, broken: Vec::new(), tell };
    let bf16 = bench.precision::<Bf16>(weights, true);
    let f32 = bench.precision::<f32>(weights, false);
    let kernels = bench.kernels();
    let (copy_bytes, n) = sizes.ceilings;
    let product = |dtype: &str, rate: Option<f64>| json!({"m": n, "k": n, "n": n, "layout": "NT", "dtype": dtype, "gflops": rate.map(|x| x / 1e9)});
    Ok(json!({
        "device": gpu.name(),
        "model": name,
        "parameters": weights.data.len(),
        "gemm": [product("bf16", ceilings.bf16), product("f32", ceilings.f32)],
        "copy_gb_per_s": ceilings.bandwidth.map(|x| x / 1e9),
        "copy_bytes": copy_bytes,
        "train": bf16["train"], "prefill": bf16["prefill"], "decode": bf16["decode"], "step": bf16["step"],
        "precisions": [bf16, f32],
        "kernels": kernels,
        "peak_bytes": gpu.held().most,
        "env": [],
        "broken": bench.broken,
    }))
}

/// A number in a few characters, or that there is none.
fn short(x: Option<f64>) -> String {
    match x {
        None => "untimed".into(),
        Some(x) if x < 0.01 => format!("{x:.1e}"),
        Some(x) if x < 10.0 => format!("{x:.3}"),
        Some(x) => format!("{x:.0}"),
    }
}

fn percent(x: Option<f64>) -> String {
    x.map_or("untimed".into(), |x| format!("{:.1} %", 100.0 * x))
}

impl Bench<'_> {
    fn say(&mut self, line: String) {
        (self.tell)(&line);
    }

    fn give_up(&mut self, why: String) {
        self.say(why.clone());
        self.broken.push(why);
    }

    /// Median seconds of some runs of `body` after one that is not counted; on the emulator one run and no time.
    fn seconds(
        &self,
        rounds: usize,
        body: &mut dyn FnMut() -> Result<(), EngineError>,
    ) -> Result<Option<f64>, EngineError> {
        let mut seconds = Vec::new();
        for round in 0..=if self.timed { rounds } else { 0 } {
            self.gpu.synchronize()?;
            let start = Instant::now();
            body()?;
            self.gpu.synchronize()?;
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        Ok((!seconds.is_empty()).then(|| median(seconds)))
    }

    /// Everything in one precision; without `whole`, the short of it.
    fn precision<E: Precision + 'static>(&mut self, weights: &Params, whole: bool) -> Value {
        let dtype = if size_of::<E>() == 2 { "bf16" } else { "f32" };
        let mut object = json!({"dtype": dtype});
        if let Err(error) = self.measure::<E>(weights, whole, dtype, &mut object) {
            self.give_up(format!("{dtype}: {error}"));
        }
        object
    }

    fn measure<E: Precision + 'static>(
        &mut self,
        weights: &Params,
        whole: bool,
        dtype: &str,
        object: &mut Value,
    ) -> Result<(), EngineError> {
        let (gpu, sizes) = (self.gpu.clone(), self.sizes);
        let model = GpuTransformer::<E>::new(gpu, Products::Library, self.config.clone(), weights)?;
        let mut engine = GpuEngine::new(model, sizes.room(self.config), AdamWSettings::default())?;
        object["train"] = self.train(&mut engine, size_of::<E>(), dtype)?;
        object["prefill"] = self.prefill(&mut engine, size_of::<E>(), dtype)?;
        let batches = if whole { sizes.batches.clone() } else { sizes.batches[1..2].to_vec() };
        let decoded = batches.into_iter().map(|batch| self.decode(&mut engine, batch, size_of::<E>(), dtype));
        object["decode"] = decoded.collect::<Result<Value, _>>()?;
        if whole {
            object["step"] = self.step(Box::new(engine), dtype)?;
        }
        Ok(())
    }

    /// Training steps on rows of random tokens: forward, head on every token but the first of a row, backward, AdamW.
    fn train(&mut self, engine: &mut dyn Engine, element_bytes: usize, dtype: &str) -> Result<Value, EngineError> {
        let (rows, len) = self.sizes.train;
        let tree = TokenTree::from_rows(&tokens(3, rows, len, self.config.vocab));
        let next = tree.segments.iter().flat_map(|s| s.rows().skip(1));
        let targets: Vec<Target> = next.map(|row| Target { row: row - 1, token: tree.ids[row], kept: None }).collect();
        let n = targets.len();
        let seeds = PerTarget { logp: vec![-1.0 / n as f32; n], ..Default::default() };
        let seconds = self.seconds(3, &mut || {
            engine.score(&tree, &targets, 1.0, true)?;
            engine.backward(&tree, &targets, 1.0, &seeds)?;
            engine.update(1e-5).map(|_| ())
        })?;
        let flops = cost::train(self.config, rows * len, n, rows * cost::pairs(0, len)).flops;
        let rate = seconds.map(|s| flops / s);
        let mfu = rate.zip(self.ceilings.rate(element_bytes)).map(|(rate, ceiling)| rate / ceiling);
        let tokens_per_s = seconds.map(|s| (rows * len) as f64 / s);
        let peak = self.gpu.held().most;
        self.say(format!(
            "{dtype} train {rows} × {len}: {} tokens/s, MFU {}, {:.1} GiB",
            short(tokens_per_s),
            percent(mfu),
            peak as f64 / f64::from(1 << 30)
        ));
        Ok(json!({
            "tokens": rows * len, "targets": n, "seconds": seconds, "tokens_per_s": tokens_per_s, "flops": flops,
            "flops_per_s": rate, "mfu": mfu, "peak_bytes": peak,
        }))
    }

    /// Prompts into the cache, with the logits of each one's end.
    fn prefill(&mut self, engine: &mut dyn Engine, element_bytes: usize, dtype: &str) -> Result<Value, EngineError> {
        let (batch, len) = (self.sizes.batches.iter().copied().max().unwrap_or(1), self.sizes.decode.0);
        let prompts = tokens(4, batch, len, self.config.vocab);
        let seconds = self.seconds(2, &mut || {
            let ids = prefill(engine, &prompts)?;
            ids.into_iter().for_each(|id| engine.close(id));
            Ok(())
        })?;
        let flops = cost::forward(self.config, batch * len, batch, batch * cost::pairs(0, len)).flops;
        let mfu = seconds.zip(self.ceilings.rate(element_bytes)).map(|(s, ceiling)| flops / s / ceiling);
        let tokens_per_s = seconds.map(|s| (batch * len) as f64 / s);
        let line = format!("{dtype} prefill {batch} × {len}: {} tokens/s, MFU {}", short(tokens_per_s), percent(mfu));
        self.say(line);
        Ok(json!({"batch": batch, "tokens": len, "seconds": seconds, "tokens_per_s": tokens_per_s, "mfu": mfu}))
    }

    /// Steps of decoding after prompts of their own: a token is drawn for every sequence and appended to it.
    fn decode(
        &mut self,
        engine: &mut dyn Engine,
        batch: usize,
        element_bytes: usize,
        dtype: &str,
    ) -> Result<Value, EngineError> {
        let (len, new) = self.sizes.decode;
        let prompts = tokens(5, batch, len, self.config.vocab);
        let mut seconds = Vec::new();
        for round in 0..=if self.timed { 2 } else { 0 } {
            let ids = prefill(engine, &prompts)?;
            self.gpu.synchronize()?;
            let start = Instant::now();
            for t in 0..new {
                decode_step(engine, &ids, len + t)?;
            }
            self.gpu.synchronize()?;
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
            ids.into_iter().for_each(|id| engine.close(id));
        }
        let seconds = (!seconds.is_empty()).then(|| median(seconds));
        let cost = cost::decode(self.config, element_bytes, batch, len, new);
        let tokens_per_s = seconds.map(|s| (batch * new) as f64 / s);
        let bandwidth = seconds.zip(self.ceilings.bandwidth).map(|(s, most)| cost.bytes / s / most);
        let roofline = seconds.zip(self.ceilings.least(cost, element_bytes)).map(|(s, least)| least / s);
        self.say(format!(
            "{dtype} decode batch {batch} after {len}: {} tokens/s, MBU {}, {} of the roofline",
            short(tokens_per_s),
            percent(bandwidth),
            percent(roofline)
        ));
        Ok(json!({
            "batch": batch, "prompt": len, "steps": new, "seconds": seconds, "tokens_per_s": tokens_per_s,
            "bytes": cost.bytes, "share_of_bandwidth": bandwidth, "share_of_roofline": roofline,
        }))
    }
}

/// New sequences that hold these prompts.
pub(super) fn prefill(engine: &mut dyn Engine, prompts: &[Vec<u32>]) -> Result<Vec<CacheId>, EngineError> {
    let ids: Vec<CacheId> = prompts.iter().map(|_| engine.open()).collect();
    let appends: Vec<Append<'_>> = ids.iter().zip(prompts).map(|(&id, tokens)| Append { id, tokens }).collect();
    engine.extend(&appends)?;
    Ok(ids)
}

/// A token for each of the first `batch` rows of logits, which end at `position`.
pub(super) fn draw(engine: &mut dyn Engine, batch: usize, position: usize) -> Result<Vec<[u32; 1]>, EngineError> {
    let draw = |row: usize| Draw { row, key: Key::new(6).with(row as u64), position: position as u64 };
    let draws: Vec<Draw> = (0..batch).map(draw).collect();
    let drawn = engine.draw(&draws, &Sampling::default())?;
    Ok(drawn.iter().map(|outcome| [outcome.drawn.id]).collect())
}

fn decode_step(engine: &mut dyn Engine, ids: &[CacheId], position: usize) -> Result<(), EngineError> {
    let tokens = draw(engine, ids.len(), position)?;
    let appends: Vec<Append<'_>> = ids.iter().zip(&tokens).map(|(&id, tokens)| Append { id, tokens }).collect();
    engine.extend(&appends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{half_billion, weights};

    /// Half a billion parameters in small: the same kind of model, with heads and widths that the emulator gets through.
    fn tiny() -> Config {
        let (d_model, n_layers, head_dim) = (32, 2, 16);
        Config {
            vocab: 83,
            d_model,
            n_layers,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim,
            d_ff: 40,
            max_positions: 64,
            ..half_billion()
        }
    }

    #[test]
    fn everything_runs_on_the_emulator_and_nothing_has_a_time() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let (config, mut lines) = (tiny(), Vec::new());
        let result =
            run(&gpu, "tiny", &config, &weights(&config), &Sizes::tiny(), &mut |line| lines.push(line.to_string()));
        let result = result.unwrap();
        assert_eq!(result["broken"], json!([]), "{result:#}");
        for bf16_or_f32 in [&result["precisions"][0], &result["precisions"][1]] {
            let train = &bf16_or_f32["train"];
            assert_eq!((&train["tokens"], &train["targets"]), (&40.into(), &38.into()));
            assert!(train["tokens_per_s"].is_null() && train["mfu"].is_null() && train["flops"].as_f64() > Some(1e6));
            assert!(bf16_or_f32["prefill"]["tokens_per_s"].is_null());
        }
        let batches =
            |of: &Value| of["decode"].as_array().unwrap().iter().map(|d| d["batch"].as_u64()).collect::<Vec<_>>();
        assert_eq!(batches(&result), [Some(1), Some(3)]);
        assert_eq!(batches(&result["precisions"][1]), [Some(3)]);
        // What was sampled has the bits of what is scored, also here; and there was something to sample.
        let step = &result["step"];
        assert_eq!((&step["first_ratio_max_error"], &step["sampled_tokens"]), (&0.0.into(), &16.into()));
        assert!(result["peak_bytes"].as_u64() > Some(100_000));
        let kernels = result["kernels"].as_array().unwrap();
        assert!(kernels.len() > 30 && kernels.iter().all(|kernel| kernel["milliseconds"].is_null()));
        assert!(lines.iter().filter(|line| line.contains("untimed")).count() >= kernels.len() + 6, "{lines:#?}");
    }

    #[test]
    fn sizes_fit_into_the_context_and_the_room() {
        let sizes = Sizes::device(usize::MAX).within(200);
        assert!(sizes.train.1 <= 200 && sizes.decode.0 + sizes.decode.1 < 200 && sizes.step.row_tokens() <= 200);
        let sizes = Sizes::device(usize::MAX).within(4096);
        assert_eq!((sizes.train, sizes.decode, sizes.step.row_tokens()), ((32, 512), (512, 64), 1012));
        let room = sizes.room(&half_billion());
        assert_eq!((room.packed_tokens, room.sequences), (16_384, 128));
        assert!(room.pages * PAGE >= 128 * 1012);
        assert_eq!(Sizes::device(40 << 30).train, (16, 512));
    }

    #[test]
    fn the_least_time_is_that_of_the_larger_share() {
        let ceilings = Ceilings { bandwidth: Some(10.0), bf16: Some(100.0), f32: None };
        assert_eq!(ceilings.least(Cost { flops: 100.0, bytes: 20.0 }, 2), Some(2.0));
        assert_eq!(ceilings.least(Cost { flops: 500.0, bytes: 20.0 }, 2), Some(5.0));
        assert_eq!(ceilings.least(Cost { flops: 500.0, bytes: 20.0 }, 4), None);
    }
}

//! What a run takes of a GPU, found by making its buffers and taking its steps on a machine that only counts.

use super::{Engine, EngineError, GpuEngine};
use crate::config::Config;
use crate::gpu::{Gpu, GpuTransformer, Learns, Precision, Products};
use crate::memory::{Memory, Work};
use crate::ops::attention::PAGE;
use crate::ops::head::{PerTarget, Target};
use crate::ops::linear;
use crate::optim::AdamWSettings;
use crate::random::Key;
use crate::sampler::{Draw, Sampling};
use crate::token_tree::TokenTree;
use crate::transformer::Append;
use ragen_cuda::driver::Held;

/// New tokens that are prefilled at once at most; longer prompts are appended in several passes, with the same bits.
const PREFILL_TOKENS: usize = 4096;

/// Bytes of logits and their gradients that the head has at once.
const HEAD_BYTES: usize = 1 << 30;

/// What there is to be room for on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Packed tokens of one forward and backward.
    pub packed_tokens: usize,
    /// Targets that the head works on at once.
    pub head_rows: usize,
    /// Pages of keys and values.
    pub pages: usize,
    /// New tokens that are prefilled at once.
    pub prefill_tokens: usize,
    /// Sequences that are sampled at once.
    pub sequences: usize,
}

impl Room {
    /// Room for this work on a model of this shape. What could reach a result by rounding, the rows of the head, depends on the vocabulary and
    /// on packed tokens alone.
    pub fn of(config: &Config, work: &Work) -> Room {
        let logits = (HEAD_BYTES / (6 * config.vocab.max(1))).clamp(64, 4096) / 64 * 64;
        Room {
            packed_tokens: work.packed_tokens,
            head_rows: logits.min(work.packed_tokens.next_multiple_of(64)).max(64),
            pages: work.pages,
            prefill_tokens: PREFILL_TOKENS.min(work.pages * PAGE),
            sequences: work.sequences,
        }
    }

    /// The same without what only the policy needs: a value model or a reference is not sampled.
    pub fn unsampled(self) -> Room {
        Room { pages: 0, prefill_tokens: 0, sequences: 0, ..self }
    }
}

/// Bytes of `gpu` that this work takes with a model of this shape, exactly: the buffers of all models, by what for, and in `other` what a
/// batch takes beside them for a moment. Nothing is allocated on `gpu`, nor anything of the model's size anywhere.
///
/// **Panics** when there are no kernels for the shape (`gpu::check`).
pub fn measure(
    gpu: &Gpu,
    products: Products,
    config: &Config,
    positions: usize,
    work: &Work,
    sampling: &[Sampling],
) -> Memory {
    let measured = match work.precision {
        linear::Precision::F32 => measure_in::<f32>(gpu, products, config, positions, work, sampling),
        linear::Precision::Bf16 => measure_in::<half::bf16>(gpu, products, config, positions, work, sampling),
    };
    measured.expect("a machine that only counts is never short of anything, and draws the first token")
}

fn measure_in<E: Precision + 'static>(
    gpu: &Gpu,
    products: Products,
    config: &Config,
    positions: usize,
    work: &Work,
    sampling: &[Sampling],
) -> Result<Memory, EngineError> {
    let (gpu, ledger) = gpu.counting_like();
    let room = Room::of(config, work);
    let optimiser = AdamWSettings::default();
    let model =
        |config: &Config, learns| GpuTransformer::<E>::empty(gpu.clone(), products, config.clone(), positions, learns);
    let learns = work.lora.clone().map_or(Learns::Weights, Learns::Adapters);
    let mut policy = if work.trains {
        GpuEngine::new(model(config, learns)?, room, optimiser)?
    } else {
        GpuEngine::playing(model(config, if work.lora.is_some() { learns } else { Learns::Nothing })?, room)?
    }
    .ready(work.recompute)?;
    let value_config = Config { value_head: true, ..config.clone() };
    let mut value = match work.value_model {
        true => {
            let model = model(&value_config, Learns::Weights)?;
            Some(GpuEngine::new(model, room.unsampled(), optimiser)?.ready(work.recompute)?)
        }
        false => None,
    };
    let _reference = match work.reference {
        true => Some(GpuEngine::playing(model(config, Learns::Nothing)?, room.unsampled())?.ready(false)?),
        false => None,
    };
    let held = ledger.held();
    if work.trains {
        rehearse_update(&mut policy, work.packed_tokens)?;
        value.iter_mut().try_for_each(|value| rehearse_update(value, work.packed_tokens))?;
    }
    rehearse_rollout(&mut policy, work.sequences.min(work.pages), sampling)?;
    Ok(by_part(&held, ledger.most().bytes))
}

/// One row of so many tokens, all of them targets.
fn rehearse_update(engine: &mut impl Engine, tokens: usize) -> Result<(), EngineError> {
    let mut tree = TokenTree::new();
    let ids = vec![0; tokens.clamp(2, engine.positions().max(2))];
    while tree.rows() + ids.len() <= tokens.max(ids.len()) {
        tree.push(None, &ids);
    }
    let targets: Vec<Target> = (0..tree.rows()).map(|row| Target { row, token: 0, kept: None }).collect();
    let has_value = engine.config().value_head;
    engine.score(&tree, &targets, 1.0, true)?;
    let ones = || vec![1.0; targets.len()];
    let value = if has_value { ones() } else { Vec::new() };
    engine.backward(&tree, &targets, 1.0, &PerTarget { logp: ones(), entropy: ones(), value })?;
    engine.update(0.0)?;
    Ok(())
}

/// A first token of so many sequences, a token drawn for each, and another step.
fn rehearse_rollout(engine: &mut impl Engine, sequences: usize, sampling: &[Sampling]) -> Result<(), EngineError> {
    let ids: Vec<_> = (0..sequences).map(|_| engine.open()).collect();
    let appends: Vec<Append<'_>> = ids.iter().map(|&id| Append { id, tokens: &[0] }).collect();
    let draws: Vec<Draw> = (0..sequences).map(|row| Draw { row, key: Key::new(0), position: 1 }).collect();
    for _ in 0..if sequences > 0 { 2 } else { 0 } {
        engine.extend(&appends)?;
        for sampling in sampling {
            engine.draw(&draws, sampling)?;
        }
    }
    ids.into_iter().for_each(|id| engine.close(id));
    Ok(())
}

/// Sorts buffers by the names that they were asked for under; what `most` has beyond them is for a moment.
fn by_part(held: &Held, most: usize) -> Memory {
    let mut memory = Memory { other: most - held.bytes, ..Memory::default() };
    for (name, bytes) in &held.by_name {
        let is_of = |words: &[&str]| words.iter().any(|word| name.contains(word));
        let part = match name.as_str() {
            "the weights" | "the weights that products read" | "RoPE's table" => &mut memory.weights,
            "the gradients" => &mut memory.gradients,
            "the KV cache" => &mut memory.kv_cache,
            _ if is_of(&["moments", "gradients' norm"]) => &mut memory.optimiser,
            _ if is_of(&["logits", "targets", "drawn", "kept"]) => &mut memory.head,
            _ => &mut memory.activations,
        };
        *part += bytes;
    }
    memory
}

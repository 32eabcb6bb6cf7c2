//! A two-layer model that is trained and sampled, on whatever engine it is handed to.

use super::larger;
use crate::config::{Config, Family, Rope};
use crate::device::Cpu;
use crate::engine::{CpuEngine, Engine, EngineError, GpuEngine, Room};
use crate::gpu::{self, GpuTransformer, Products};
use crate::kv_cache::CacheId;
use crate::ops::head::{PerTarget, Target};
use crate::optim::AdamWSettings;
use crate::params::Params;
use crate::random::Key;
use crate::sampler::{Draw, Sampling};
use crate::simd::Isa;
use crate::token_tree::TokenTree;
use crate::transformer::{Append, Precision, Transformer};
use ragen_cuda::{CudaError, Gpu};
use std::sync::Arc;

pub(super) const TEMPERATURE: f32 = 0.7;
const LR: f64 = 1e-2;

/// Sequences that are sampled below one prompt, and how many tokens each.
const MEMBERS: usize = 3;
const NEW_TOKENS: usize = 12;

/// A model with everything that a model can have, and a batch to train it on.
pub(super) struct Rehearsal {
    pub config: Config,
    pub weights: Params,
    pub tree: TokenTree,
    pub targets: Vec<Target>,
    pub seeds: PerTarget<f32>,
}

/// What a training step came to.
pub(super) struct Step {
    pub values: PerTarget<f32>,
    pub gradients: Vec<f32>,
    pub weights: Vec<f32>,
}

impl Step {
    /// How many of all numbers are not the same in every bit.
    pub fn differing(&self, other: &Step) -> f64 {
        let all = |step: &Step| {
            let PerTarget { logp, entropy, value } = &step.values;
            let parts = [logp, entropy, value, &step.gradients, &step.weights];
            parts.into_iter().flatten().map(|x| x.to_bits()).collect::<Vec<u32>>()
        };
        let (a, b) = (all(self), all(other));
        if a.len() == b.len() { a.iter().zip(&b).filter(|(a, b)| a != b).count() as f64 } else { f64::INFINITY }
    }
}

impl Rehearsal {
    /// Wider than the blocks of products, the head's chunks of 512 tokens and a page of 32 positions; heads as wide as those of language models.
    pub fn small() -> Self {
        Rehearsal::new(600, 96, 64, 288, [37, 21, 40, 33])
    }

    /// One that the emulator gets through in no time.
    pub fn tiny() -> Self {
        Rehearsal::new(83, 40, 16, 72, [21, 7, 13, 5])
    }

    fn new(vocab: usize, d_model: usize, head_dim: usize, d_ff: usize, lens: [usize; 4]) -> Self {
        let config = Config {
            family: Family::Qwen3,
            vocab,
            d_model,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim,
            d_ff,
            rope: Rope::plain(500.0),
            sliding_window: None,
            norm_eps: 1e-6,
            tied_embeddings: false,
            qkv_bias: true,
            qk_norm: true,
            value_head: true,
            max_positions: 128,
        };
        let mut weights = Transformer::initial(&config, 1);
        for (i, w) in weights.data.iter_mut().enumerate() {
            // Every parameter random, so that no gradient is zero by accident.
            *w += (0.1 * Key::new(9).normal(i as u64)) as f32;
        }
        let ids = |i: usize| -> Vec<u32> {
            (0..lens[i]).map(|t| Key::new(2).with(i as u64).below(t as u64, vocab) as u32).collect()
        };
        let mut tree = TokenTree::new();
        let root = tree.push(None, &ids(0));
        tree.push(Some(root), &ids(1));
        tree.push(Some(root), &ids(2));
        tree.push(None, &ids(3));
        let token = |row: usize| Key::new(3).below(row as u64, vocab) as u32;
        let targets: Vec<Target> = (0..tree.rows()).map(|row| Target { row, token: token(row), kept: None }).collect();
        let draw = |k: u64| targets.iter().enumerate().map(|(i, _)| Key::new(k).normal(i as u64) as f32).collect();
        let seeds = PerTarget { logp: draw(4), entropy: draw(5), value: draw(6) };
        Rehearsal { config, weights, tree, targets, seeds }
    }

    /// ε is large enough for gradients that are zero but for rounding not to be made large.
    fn optimiser() -> AdamWSettings {
        AdamWSettings { eps: 1e-4, ..AdamWSettings::default() }
    }

    /// The model on the CPU.
    pub fn on_cpu(&self, isa: Isa, threads: usize, precision: Precision) -> CpuEngine {
        let cpu = Arc::new(Cpu::with(isa, threads));
        let model = Transformer::new(&cpu, self.config.clone(), self.weights.clone(), precision);
        CpuEngine::new(cpu, model, Rehearsal::optimiser())
    }

    /// The model on the GPU.
    pub fn on_gpu<E: gpu::Precision>(&self, gpu: &Gpu, products: Products) -> Result<GpuEngine<E>, CudaError> {
        let model = GpuTransformer::new(gpu.clone(), products, self.config.clone(), &self.weights)?;
        let room =
            Room { packed_tokens: self.tree.rows(), head_rows: 64, pages: 16, prefill_tokens: 64, sequences: MEMBERS };
        GpuEngine::new(model, room, Rehearsal::optimiser())
    }

    /// A training step on the batch.
    pub fn step(&self, engine: &mut dyn Engine) -> Result<Step, EngineError> {
        let values = engine.score(&self.tree, &self.targets, TEMPERATURE, true)?;
        engine.backward(&self.tree, &self.targets, TEMPERATURE, &self.seeds)?;
        let gradients = engine.gradients()?.into_owned();
        engine.update(LR)?;
        Ok(Step { values, gradients, weights: engine.trained()?.data.clone() })
    }

    /// Samples a group below one prompt and scores what was sampled, in rows of their own and packed with the prompt shared; the largest
    /// difference between the log-probabilities of a token.
    pub fn gap(&self, engine: &mut dyn Engine) -> Result<f64, EngineError> {
        let prompt = self.prompt();
        let members = sample(engine, prompt)?;
        let alone = TokenTree::from_rows(&members.iter().map(|m| [prompt, &m.tokens].concat()).collect::<Vec<_>>());
        let mut shared = TokenTree::new();
        let root = shared.push(None, prompt);
        members.iter().for_each(|member| _ = shared.push(Some(root), &member.tokens));
        let in_row = |i: usize, t: usize| alone.segments[i].start + prompt.len() + t - 1;
        let below = |i: usize, t: usize| if t == 0 { prompt.len() - 1 } else { shared.segments[i + 1].start + t - 1 };
        let gap = gap_in(engine, &members, &alone, &in_row)?;
        Ok(larger(gap, gap_in(engine, &members, &shared, &below)?))
    }

    fn prompt(&self) -> &[u32] {
        &self.tree.ids[self.tree.segments[0].rows()]
    }
}

/// The same in one tree; `row` gives the row before token `t` of member `i`, from which it was drawn.
fn gap_in(
    engine: &mut dyn Engine,
    members: &[Member],
    tree: &TokenTree,
    row: &dyn Fn(usize, usize) -> usize,
) -> Result<f64, EngineError> {
    let (mut targets, mut sampled) = (Vec::new(), Vec::new());
    for (i, member) in members.iter().enumerate() {
        targets.extend(member.tokens.iter().enumerate().map(|(t, &token)| Target {
            row: row(i, t),
            token,
            kept: None,
        }));
        sampled.extend(&member.logps);
    }
    let scored = engine.score(tree, &targets, TEMPERATURE, false)?.logp;
    let off = |(scored, sampled): (&f32, &f32)| f64::from((scored - sampled).abs());
    Ok(scored.iter().zip(sampled).map(off).fold(0.0, larger))
}

/// A sequence that was sampled.
#[derive(Default)]
struct Member {
    tokens: Vec<u32>,
    /// The log-probabilities that they were drawn with.
    logps: Vec<f32>,
}

/// Samples a group below one prompt.
fn sample(engine: &mut dyn Engine, prompt: &[u32]) -> Result<Vec<Member>, EngineError> {
    let first = engine.open();
    engine.extend(&[Append { id: first, tokens: prompt }])?;
    let mut sequences: Vec<CacheId> = vec![first];
    for _ in 1..MEMBERS {
        let id = engine.open();
        engine.share(id, first);
        sequences.push(id);
    }
    let sampling = Sampling { temperature: TEMPERATURE, ..Sampling::default() };
    let mut members: Vec<Member> = sequences.iter().map(|_| Member::default()).collect();
    for t in 0..NEW_TOKENS {
        // All draw their first token from the prompt's row.
        let row = |i: usize| if t == 0 { 0 } else { i };
        let draw = |i: usize| Draw { row: row(i), key: Key::new(7).with(i as u64), position: t as u64 };
        let outcomes = engine.draw(&(0..MEMBERS).map(draw).collect::<Vec<_>>(), &sampling)?;
        for (member, outcome) in members.iter_mut().zip(outcomes) {
            member.tokens.push(outcome.drawn.id);
            member.logps.push(outcome.drawn.logp);
        }
        if t + 1 < NEW_TOKENS {
            let appends: Vec<Append<'_>> =
                sequences.iter().zip(&members).map(|(&id, m)| Append { id, tokens: &m.tokens[t..] }).collect();
            engine.extend(&appends)?;
        }
    }
    sequences.into_iter().for_each(|id| engine.close(id));
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_is_a_number_that_differs() {
        let rehearsal = Rehearsal::tiny();
        let step = || rehearsal.step(&mut rehearsal.on_cpu(Isa::Plain, 1, Precision::F32)).unwrap();
        let (first, mut second) = (step(), step());
        assert_eq!(first.differing(&second), 0.0);
        second.gradients[5] = f32::from_bits(second.gradients[5].to_bits() ^ 1);
        second.weights[0] += 1.0;
        assert_eq!(first.differing(&second), 2.0);
        second.values.logp.pop();
        assert_eq!(first.differing(&second), f64::INFINITY);
        assert!(first.gradients.iter().all(|&g| g.is_finite()) && first.weights != rehearsal.weights.data);
    }

    #[test]
    fn a_model_that_is_not_the_one_that_sampled_leaves_a_gap() {
        let rehearsal = Rehearsal::tiny();
        let engine = || rehearsal.on_cpu(Isa::Plain, 1, Precision::F32);
        assert_eq!(rehearsal.gap(&mut engine()).unwrap(), 0.0);
        let members = sample(&mut engine(), rehearsal.prompt()).unwrap();
        assert!(members[0].tokens != members[1].tokens && members.iter().all(|m| m.tokens.len() == NEW_TOKENS));
        let mut other = engine();
        rehearsal.step(&mut other).unwrap();
        let alone =
            TokenTree::from_rows(&members.iter().map(|m| [rehearsal.prompt(), &m.tokens].concat()).collect::<Vec<_>>());
        let row = |i: usize, t: usize| alone.segments[i].start + rehearsal.prompt().len() + t - 1;
        assert_eq!(gap_in(&mut engine(), &members, &alone, &row).unwrap(), 0.0);
        assert!(gap_in(&mut other, &members, &alone, &row).unwrap() > 1e-3);
    }
}

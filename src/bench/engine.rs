//! Training steps and sampling of the CPU's transformer on random tokens.

use ragen_models::device::Cpu;
use ragen_models::kv_cache::CacheId;
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::sampler::{Sampling, Scratch};
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Append, Config, Gradients, Precision, Transformer};
use std::sync::atomic::{AtomicU32, Ordering};

/// Training steps on random rows: forward, head, backward, AdamW, packing.
pub struct Train {
    pub(super) model: Transformer,
    pub(super) batch: Vec<Vec<u32>>,
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

pub(super) fn tokens(seed: u64, rows: usize, len: usize, vocab: usize) -> Vec<Vec<u32>> {
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

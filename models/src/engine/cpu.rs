//! The transformer on the CPU.

use super::{Engine, EngineError, pieces};
use crate::device::Cpu;
use crate::kv_cache::{CacheId, KvCache};
use crate::lora::Lora;
use crate::memory::PREFILL_TOKENS;
use crate::ops::head::{PerTarget, Target};
use crate::optim::{AdamW, AdamWSettings, Step};
use crate::params::Params;
use crate::sampler::{Draw, Outcome, SampleError, Sampling, Scratch};
use crate::token_tree::TokenTree;
use crate::transformer::{Activations, Append, Config, Gradients, Transformer};
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// The transformer on the CPU.
pub struct CpuEngine {
    cpu: Arc<Cpu>,
    model: Transformer,
    gradients: Gradients,
    optimiser: AdamW,
    activations: Activations,
    cache: KvCache,
    /// Of the last extend, `[sequences, vocab]`.
    logits: Vec<f32>,
    /// What one piece of a long extend leaves.
    some: Vec<f32>,
}

impl CpuEngine {
    /// A transformer, with or without adapters, and an optimiser that has not seen a gradient yet.
    pub fn new(cpu: Arc<Cpu>, model: Transformer, optimiser: AdamWSettings) -> Self {
        CpuEngine {
            gradients: Gradients::zeros(&model),
            optimiser: AdamW::new(optimiser, model.trained().table.clone()),
            activations: Activations::default(),
            cache: model.new_cache(&cpu),
            logits: Vec::new(),
            some: Vec::new(),
            model,
            cpu,
        }
    }
}

impl Engine for CpuEngine {
    fn config(&self) -> &Config {
        &self.model.config
    }

    fn positions(&self) -> usize {
        self.model.positions()
    }

    fn lora(&self) -> Option<&Lora> {
        self.model.lora()
    }

    fn set_recompute(&mut self, recompute: bool) {
        self.activations.recompute = recompute;
    }

    fn score(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
        keep: bool,
    ) -> Result<PerTarget<f32>, EngineError> {
        let CpuEngine { cpu, model, activations, .. } = self;
        model.forward(cpu, tree, activations, keep);
        Ok(model.values(cpu, activations, targets, temperature))
    }

    fn score_base(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
    ) -> Result<PerTarget<f32>, EngineError> {
        let CpuEngine { cpu, model, activations, .. } = self;
        Ok(model.without_adapters(|model| {
            model.forward(cpu, tree, activations, false);
            model.values(cpu, activations, targets, temperature)
        }))
    }

    fn estimate(&mut self, tree: &TokenTree, targets: &[Target], keep: bool) -> Result<Vec<f32>, EngineError> {
        let CpuEngine { cpu, model, activations, .. } = self;
        model.forward(cpu, tree, activations, keep);
        Ok(model.value_estimates(cpu, activations, targets))
    }

    fn backward(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
    ) -> Result<(), EngineError> {
        let CpuEngine { cpu, model, gradients, activations, .. } = self;
        model.backward(cpu, tree, activations, targets, temperature, seeds, gradients);
        Ok(())
    }

    fn update(&mut self, lr: f64) -> Result<Step, EngineError> {
        let CpuEngine { cpu, model, gradients, optimiser, .. } = self;
        let step = model.update(cpu, |params| optimiser.step(cpu, params, gradients.total(), lr));
        gradients.zero();
        Ok(step)
    }

    fn open(&mut self) -> CacheId {
        self.cache.open()
    }

    fn share(&mut self, id: CacheId, source: CacheId) {
        self.cache.share(id, source);
    }

    fn close(&mut self, id: CacheId) {
        self.cache.close(id);
    }

    fn held(&self, id: CacheId) -> usize {
        self.cache.len(id)
    }

    fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    fn extend(&mut self, appends: &[Append<'_>]) -> Result<(), EngineError> {
        let CpuEngine { cpu, model, cache, logits, some, .. } = self;
        if appends.iter().map(|append| append.tokens.len()).sum::<usize>() <= PREFILL_TOKENS {
            model.extend(cpu, cache, appends, logits);
            return Ok(());
        }
        logits.clear();
        for piece in pieces(appends, PREFILL_TOKENS) {
            model.extend(cpu, cache, &piece.appends, some);
            logits.extend_from_slice(&some[..piece.ended * model.config.vocab]);
        }
        Ok(())
    }

    fn draw(&mut self, draws: &[Draw], sampling: &Sampling) -> Result<Vec<Outcome>, EngineError> {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let (vocab, isa) = (self.model.config.vocab, self.cpu.isa);
        let outcomes: Vec<Mutex<Option<Result<Outcome, SampleError>>>> =
            draws.iter().map(|_| Mutex::new(None)).collect();
        self.cpu.pool.split(draws.len(), 8, 1, &|range| {
            SCRATCH.with_borrow_mut(|scratch| {
                for i in range {
                    let Draw { row, key, position } = draws[i];
                    let row = &self.logits[row * vocab..][..vocab];
                    let outcome = sampling
                        .draw(isa, row, key.uniform(position), scratch)
                        .map(|drawn| Outcome { drawn, kept: scratch.kept().map(<[u32]>::to_vec) });
                    *outcomes[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                }
            });
        });
        let filled = outcomes.into_iter().filter_map(|o| o.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(filled.collect::<Result<_, _>>()?)
    }

    fn params(&self) -> Result<Cow<'_, Params>, EngineError> {
        Ok(Cow::Borrowed(self.model.params()))
    }

    fn trained(&self) -> Result<Cow<'_, Params>, EngineError> {
        Ok(Cow::Borrowed(self.model.trained()))
    }

    fn set_trained(&mut self, params: Params) -> Result<(), EngineError> {
        self.model.update(&self.cpu, |own| *own = params);
        Ok(())
    }

    fn gradients(&mut self) -> Result<Cow<'_, [f32]>, EngineError> {
        Ok(Cow::Borrowed(&self.gradients.total().data))
    }

    fn zero_gradients(&mut self) -> Result<(), EngineError> {
        self.gradients.zero();
        Ok(())
    }

    fn optimiser(&self) -> Result<Cow<'_, AdamW>, EngineError> {
        Ok(Cow::Borrowed(&self.optimiser))
    }

    fn set_optimiser(&mut self, optimiser: AdamW) -> Result<(), EngineError> {
        self.optimiser = optimiser;
        Ok(())
    }

    fn frozen(&self, params: Params) -> Result<Box<dyn Engine>, EngineError> {
        let model = Transformer::new(&self.cpu, self.model.config.clone(), params, self.model.precision());
        let model = model.with_context(self.model.positions());
        Ok(Box::new(CpuEngine::new(self.cpu.clone(), model, self.optimiser.settings)))
    }
}

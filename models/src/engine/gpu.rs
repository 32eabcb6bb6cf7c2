//! The transformer on the GPU: weights, gradients, moments and cache stay there.

use super::{Engine, EngineError, Room, pieces};
use crate::gpu::{Activations, Decoding, DrawError, GpuCache, GpuTransformer, Precision};
use crate::kv_cache::CacheId;
use crate::lora::Lora;
use crate::ops::head::{PerTarget, Target};
use crate::optim::{AdamW, AdamWSettings, Step};
use crate::params::Params;
use crate::sampler::{Draw, Outcome, Sampling};
use crate::token_tree::TokenTree;
use crate::transformer::{Append, Config};
use ragen_cuda::CudaError;
use std::borrow::Cow;

/// The transformer on the GPU.
pub struct GpuEngine<E: Precision> {
    model: GpuTransformer<E>,
    room: Room,
    recompute: bool,
    /// Whether a backward may come.
    trains: bool,
    /// Made by [`GpuEngine::ready`], or when the first batch is scored.
    activations: Option<Activations<E>>,
    cache: GpuCache<E>,
    /// Made by [`GpuEngine::ready`], or when the first token is sampled.
    decoding: Option<Decoding<E>>,
}

impl<E: Precision> GpuEngine<E> {
    /// A model on the device, with or without adapters, that is trained and sampled within this room.
    ///
    /// **Errors** [`CudaError`].
    pub fn new(mut model: GpuTransformer<E>, room: Room, optimiser: AdamWSettings) -> Result<Self, CudaError> {
        model.train(optimiser)?;
        Ok(GpuEngine { trains: true, ..GpuEngine::playing(model, room)? })
    }

    /// A model that is sampled and scored, and never trained.
    ///
    /// **Errors** [`CudaError`].
    pub fn playing(model: GpuTransformer<E>, room: Room) -> Result<Self, CudaError> {
        let cache = GpuCache::new(&model, room.pages)?;
        Ok(GpuEngine { model, room, recompute: false, trains: false, activations: None, cache, decoding: None })
    }

    /// The same engine with all of its room made now, so that what does not fit fails here and not in a step.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn ready(mut self, recompute: bool) -> Result<Self, CudaError> {
        self.recompute = recompute;
        if self.room.packed_tokens > 0 {
            self.with_room(self.room.packed_tokens)?;
        }
        if self.room.sequences > 0 {
            self.decoding_for(self.room.sequences)?;
        }
        Ok(self)
    }

    /// The model, and activations with room for a batch of so many rows.
    fn with_room(&mut self, rows: usize) -> Result<(&mut GpuTransformer<E>, &mut Activations<E>), CudaError> {
        let GpuEngine { model, room, recompute, trains, activations, .. } = self;
        // One row that is longer than the plan's batches is a batch of its own.
        if activations.as_ref().is_none_or(|activations| activations.capacity() < rows) {
            *activations = None;
            let (rows, head_rows) = (room.packed_tokens.max(rows), room.head_rows);
            *activations = Some(match trains {
                true => Activations::new(model, rows, head_rows, *recompute)?,
                false => Activations::scoring(model, rows, head_rows)?,
            });
        }
        Ok((model, activations.as_mut().expect("made above")))
    }

    /// Makes room to sample so many sequences.
    fn decoding_for(&mut self, sequences: usize) -> Result<(), CudaError> {
        let GpuEngine { model, room, decoding, .. } = self;
        let sequences = room.sequences.max(sequences);
        if decoding.as_ref().is_none_or(|decoding| decoding.sequences() < sequences) {
            *decoding = None;
            *decoding = Some(Decoding::new(model, room.prefill_tokens.max(sequences), sequences)?);
        }
        Ok(())
    }
}

impl<E: Precision + 'static> Engine for GpuEngine<E> {
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
        if recompute != self.recompute {
            self.recompute = recompute;
            self.activations = None;
        }
    }

    fn score(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
        _keep: bool,
    ) -> Result<PerTarget<f32>, EngineError> {
        let (model, activations) = self.with_room(tree.rows())?;
        model.forward(tree, activations)?;
        Ok(model.values(activations, targets, temperature)?)
    }

    fn score_base(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
    ) -> Result<PerTarget<f32>, EngineError> {
        let (model, activations) = self.with_room(tree.rows())?;
        Ok(model.without_adapters(|model| {
            model.forward(tree, activations)?;
            model.values(activations, targets, temperature)
        })?)
    }

    fn estimate(&mut self, tree: &TokenTree, targets: &[Target], _keep: bool) -> Result<Vec<f32>, EngineError> {
        let (model, activations) = self.with_room(tree.rows())?;
        model.forward(tree, activations)?;
        Ok(model.value_estimates(activations, targets)?)
    }

    fn backward(
        &mut self,
        _tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
    ) -> Result<(), EngineError> {
        let GpuEngine { model, activations, .. } = self;
        let activations = activations.as_mut().expect("a backward follows a forward");
        Ok(model.backward(activations, targets, temperature, seeds)?)
    }

    fn update(&mut self, lr: f64) -> Result<Step, EngineError> {
        Ok(self.model.update(lr)?)
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
        self.decoding_for(appends.len())?;
        let GpuEngine { model, cache, decoding, .. } = self;
        let decoding = decoding.as_mut().expect("made above");
        let mut ended = 0;
        for piece in pieces(appends, decoding.rows()) {
            model.extend(cache, decoding, &piece.appends, ended)?;
            ended += piece.ended;
        }
        Ok(())
    }

    fn draw(&mut self, draws: &[Draw], sampling: &Sampling) -> Result<Vec<Outcome>, EngineError> {
        let decoding = self.decoding.as_mut().expect("draws follow an extend");
        self.model.draw(decoding, sampling, draws).map_err(|error| match error {
            DrawError::Sample(error) => error.into(),
            DrawError::Cuda(error) => error.into(),
        })
    }

    fn params(&self) -> Result<Cow<'_, Params>, EngineError> {
        Ok(Cow::Owned(self.model.params()?))
    }

    fn trained(&self) -> Result<Cow<'_, Params>, EngineError> {
        Ok(Cow::Owned(self.model.trained()?))
    }

    fn set_trained(&mut self, params: Params) -> Result<(), EngineError> {
        Ok(self.model.set_trained(&params)?)
    }

    fn gradients(&mut self) -> Result<Cow<'_, [f32]>, EngineError> {
        Ok(Cow::Owned(self.model.gradients()?.unwrap_or_default()))
    }

    fn zero_gradients(&mut self) -> Result<(), EngineError> {
        Ok(self.model.zero_gradients()?)
    }

    fn optimiser(&self) -> Result<Cow<'_, AdamW>, EngineError> {
        Ok(Cow::Owned(self.model.optimiser_state()?.expect("an engine that is saved is one that is trained")))
    }

    fn set_optimiser(&mut self, optimiser: AdamW) -> Result<(), EngineError> {
        Ok(self.model.restore(&optimiser)?)
    }

    fn frozen(&self, params: Params) -> Result<Box<dyn Engine>, EngineError> {
        let model = self.model.frozen_like(&params)?;
        Ok(Box::new(GpuEngine::playing(model, Room { pages: 0, sequences: 0, ..self.room })?.ready(false)?))
    }
}

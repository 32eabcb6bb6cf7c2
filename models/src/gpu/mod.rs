//! The transformer on an NVIDIA GPU: forward, backward and optimiser over the kernels of `ragen-cuda`.
//!
//! It is [`crate::transformer`] once more, op by op in the same order and with the same saved values, over device buffers; read that one
//! first. Weights are resident once: in f32 the optimiser's master copy is what the products read, in bf16 they read a rounded copy
//! beside it. What crosses the border to the host is token ids, tables of a batch, seeds and one number a target, nothing that grows
//! with the model's width or its vocabulary. With adapters the base is frozen and lies there in the activations' number type alone.

mod decode;
mod draw;
mod head;
mod layer;
mod learner;
mod projection;
mod recordings;
mod weights;

pub use weights::Precision;

pub use decode::{Decoding, GpuCache};
pub use draw::DrawError;

use crate::config::Config;
use crate::lora::Lora;
use crate::ops::head::{PerTarget, Target};
use crate::ops::rope::RopeTable;
use crate::optim::AdamWSettings;
use crate::params::{Params, Table};
use crate::token_tree::TokenTree;
use crate::transformer::Places;
pub use half::bf16 as Bf16;
use layer::{LayerActivations, Scratch};
use learner::Learner;
use projection::Projections;
#[cfg(feature = "emulator")]
pub use ragen_cuda::driver::Emulator;
pub use ragen_cuda::driver::{Counts, Ledger, Product};
pub use ragen_cuda::gemm::Products;
use ragen_cuda::kernels::attention::{Cached, Heads, Segment, Tree};
use ragen_cuda::kernels::embedding::{RowsByToken, embedding_bwd, embedding_fwd};
pub use ragen_cuda::kernels::{Shape as KernelShape, Work, all as all_kernels};
pub use ragen_cuda::trial::{Trial, trials};
use ragen_cuda::{Buffer, View, ViewMut};
pub use ragen_cuda::{CudaError, Gpu, Traffic};
use std::ops::Range;
use std::sync::Arc;
use weights::Weights;

/// A model on the GPU: its shape, its weights, and what trains them.
pub struct GpuTransformer<E> {
    /// The shape.
    pub config: Config,
    /// Settings of the optimiser; may be changed between steps.
    pub optimiser: AdamWSettings,
    gpu: Gpu,
    products: Products,
    base: Weights<E>,
    lora: Option<Adapters<E>>,
    heads: Heads,
    places: Vec<Places>,
    projections: Vec<Projections>,
    embedding: Range<usize>,
    final_norm: Range<usize>,
    lm_head: Range<usize>,
    /// Weight and bias, among what is trained.
    value_head: Option<(Range<usize>, Range<usize>)>,
    /// Cosines and sines, `[positions, 2, head_dim / 2]`.
    rope: Buffer<f32>,
    positions: usize,
    learner: Option<Learner>,
}

/// The adapters of a model whose base weights are frozen.
struct Adapters<E> {
    settings: Lora,
    weights: Weights<E>,
    /// Off while the base alone is asked for.
    active: bool,
}

/// What attention goes over.
enum Attend<'a, E> {
    /// The batch's own rows, with what the backward needs.
    Tree(&'a Tree),
    /// A layer of the cache, which gets the batch's keys and values first.
    Cache { layer: &'a mut Buffer<E>, batch: &'a Cached<'a>, partials: Option<ViewMut<'a, f32>> },
}

/// A packed token tree on the device.
struct Batch {
    rows: usize,
    ids: Buffer<u32>,
    by_token: RowsByToken,
    positions: Buffer<u32>,
    tree: Tree,
}

/// What a forward pass leaves behind for the backward, and the buffers of one block; for batches of at most so many rows.
pub struct Activations<E> {
    /// Keep only each block's input, and compute the rest of it again when the backward comes to it.
    recompute: bool,
    capacity: usize,
    batch: Option<Batch>,
    layers: Vec<LayerActivations<E>>,
    /// The inputs of the blocks, `[rows, d_model]` each, when they are computed again.
    inputs: Vec<Buffer<E>>,
    /// The residual stream after the last block.
    out: Buffer<E>,
    dx: Buffer<E>,
    scratch: Scratch<E>,
    head: head::Rows<E>,
}

impl<E: Precision> Activations<E> {
    /// Memory for batches of at most `capacity` packed rows; the head works on `head_rows` targets at once.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn new(
        model: &GpuTransformer<E>,
        capacity: usize,
        head_rows: usize,
        recompute: bool,
    ) -> Result<Self, CudaError> {
        let (gpu, config, d) = (&model.gpu, &model.config, model.config.d_model);
        let block = || LayerActivations::new(gpu, config, model.heads, capacity);
        let stream = || gpu.buffer("the residual stream", capacity * d);
        let layers = if recompute { 1 } else { config.n_layers };
        Ok(Activations {
            recompute,
            capacity,
            batch: None,
            layers: (0..layers).map(|_| block()).collect::<Result<_, _>>()?,
            inputs: (0..if recompute { config.n_layers } else { 0 }).map(|_| stream()).collect::<Result<_, _>>()?,
            out: stream()?,
            dx: stream()?,
            scratch: Scratch::new(model, capacity, true)?,
            head: head::Rows::new(gpu, config, head_rows)?,
        })
    }
}

impl<E> Activations<E> {
    /// Packed rows that there is memory for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

impl<E: Precision> GpuTransformer<E> {
    /// A model of this shape with these weights on the device; [`GpuTransformer::train`] makes it one that learns.
    ///
    /// **Panics** when the weights belong to another shape, or heads are wider than there are kernels for.
    ///
    /// **Errors** [`CudaError`].
    pub fn new(gpu: Gpu, products: Products, config: Config, params: &Params) -> Result<Self, CudaError> {
        assert_eq!(*params.table, Table::new(&config), "the weights are those of this shape");
        let base = Weights::new(&gpu, params, false)?;
        Self::assemble(gpu, products, config, base, None)
    }

    /// A model that never learns, a reference say: its weights lie on the device in E alone.
    ///
    /// **Panics** and **Errors** as [`GpuTransformer::new`].
    pub fn frozen(gpu: Gpu, products: Products, config: Config, params: &Params) -> Result<Self, CudaError> {
        assert_eq!(*params.table, Table::new(&config), "the weights are those of this shape");
        let base = Weights::new(&gpu, params, true)?;
        Self::assemble(gpu, products, config, base, None)
    }

    /// A model with frozen weights and adapters that are trained, over [`Lora::table`]; a value head is among the latter.
    ///
    /// **Panics** when weights or adapters belong to another shape, and when the weights have a value head.
    ///
    /// **Errors** [`CudaError`].
    pub fn with_adapters(
        gpu: Gpu,
        products: Products,
        config: Config,
        base: &Params,
        settings: Lora,
        adapters: &Params,
    ) -> Result<Self, CudaError> {
        let without_value = Config { value_head: false, ..config.clone() };
        assert_eq!(*base.table, Table::new(&without_value), "the weights are those of this shape");
        assert_eq!(*adapters.table, settings.table(&config), "the adapters are those of this shape");
        let (base, weights) = (Weights::new(&gpu, base, true)?, Weights::new(&gpu, adapters, false)?);
        Self::assemble(gpu, products, config, base, Some(Adapters { settings, weights, active: true }))
    }

    fn assemble(
        gpu: Gpu,
        products: Products,
        config: Config,
        base: Weights<E>,
        lora: Option<Adapters<E>>,
    ) -> Result<Self, CudaError> {
        let range = |table: &Table, name: &str| table.find(name).map(|e| e.range());
        let (table, positions) = (base.table.clone(), config.max_positions);
        let adapters = lora.as_ref().map(|lora| (&lora.settings, &*lora.weights.table));
        let trained = adapters.map_or(&*table, |(_, table)| table);
        let embedding = range(&table, "model.embed_tokens.weight").unwrap_or_default();
        let places: Vec<Places> = (0..config.n_layers).map(|l| Places::new(&table, &config, l)).collect();
        let projections = places.iter().enumerate().map(|(l, places)| Projections::new(&config, places, l, adapters));
        Ok(GpuTransformer {
            heads: Heads { n_heads: config.n_heads, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim },
            projections: projections.collect(),
            places,
            lm_head: range(&table, "lm_head.weight").unwrap_or_else(|| embedding.clone()),
            embedding,
            final_norm: range(&table, "model.norm.weight").unwrap_or_default(),
            value_head: range(trained, "value_head.weight").zip(range(trained, "value_head.bias")),
            rope: rope_table(&gpu, &config, positions)?,
            learner: None,
            optimiser: AdamWSettings::default(),
            base,
            lora,
            positions,
            products,
            config,
            gpu,
        })
    }

    /// A model like this one with other weights, that never learns.
    ///
    /// **Panics** and **Errors** as [`GpuTransformer::new`].
    pub fn frozen_like(&self, params: &Params) -> Result<Self, CudaError> {
        let frozen = Self::frozen(self.gpu.clone(), self.products, self.config.clone(), params)?;
        frozen.with_context(self.positions)
    }

    /// The same model for a context of `positions` tokens; see `Transformer::with_context`.
    ///
    /// **Errors** [`CudaError`].
    pub fn with_context(mut self, positions: usize) -> Result<Self, CudaError> {
        if positions != self.positions {
            self.rope = rope_table(&self.gpu, &self.config, positions)?;
            self.positions = positions;
        }
        Ok(self)
    }

    /// The longest context, in tokens.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The base weights, copied to the host: frozen ones as they were rounded.
    ///
    /// **Errors** [`CudaError`].
    pub fn params(&self) -> Result<Params, CudaError> {
        self.base.read(&self.gpu)
    }

    /// What is trained, copied to the host: the adapters if there are any (and the value head with them), else the weights.
    ///
    /// **Errors** [`CudaError`].
    pub fn trained(&self) -> Result<Params, CudaError> {
        self.trained_weights().read(&self.gpu)
    }

    /// Names, shapes and offsets of what is trained.
    pub fn trained_table(&self) -> &Arc<Table> {
        &self.trained_weights().table
    }

    /// Replaces what is trained.
    ///
    /// **Panics** when it belongs to another shape.
    ///
    /// **Errors** [`CudaError`].
    pub fn set_trained(&mut self, params: &Params) -> Result<(), CudaError> {
        self.lora.as_mut().map_or(&mut self.base, |lora| &mut lora.weights).write(&self.gpu, params)
    }

    /// Which adapters the model has.
    pub fn lora(&self) -> Option<&Lora> {
        self.lora.as_ref().map(|lora| &lora.settings)
    }

    /// The weights with the adapters merged into them, on the host.
    ///
    /// **Errors** [`CudaError`].
    pub fn merged(&self) -> Result<Params, CudaError> {
        let mut params = self.params()?;
        if let Some(lora) = &self.lora {
            lora.settings.merge(&self.config, &mut params, &lora.weights.read(&self.gpu)?);
        }
        Ok(params)
    }

    /// What `of` makes of the model without its adapters.
    pub fn without_adapters<T>(&mut self, of: impl FnOnce(&Self) -> T) -> T {
        let set = |model: &mut Self, active| model.lora.iter_mut().for_each(|lora| lora.active = active);
        set(self, false);
        let outcome = of(self);
        set(self, true);
        outcome
    }

    /// The base weights at a place, as products read them.
    fn weights(&self, place: &Range<usize>) -> View<'_, E> {
        self.base.view(place)
    }

    fn trained_weights(&self) -> &Weights<E> {
        self.lora.as_ref().map_or(&self.base, |lora| &lora.weights)
    }

    /// Runs all blocks over the token tree and leaves in `acts` what [`GpuTransformer::values`] and [`GpuTransformer::backward`] need.
    ///
    /// **Panics** on an id outside the vocabulary, a path longer than [`GpuTransformer::positions`], more rows than `acts` has room for.
    ///
    /// **Errors** [`CudaError`].
    pub fn forward(&self, tree: &TokenTree, acts: &mut Activations<E>) -> Result<(), CudaError> {
        let (gpu, d, rows) = (&self.gpu, self.config.d_model, tree.rows());
        assert!(tree.longest_path() <= self.positions, "a path is longer than the model's context");
        assert!(rows <= acts.capacity, "{rows} rows in activations for {}", acts.capacity);
        assert!(tree.ids.iter().all(|&id| (id as usize) < self.config.vocab), "a token outside the vocabulary");
        let batch = self.batch(tree)?;
        let table = self.weights(&self.embedding);
        embedding_fwd(gpu, acts.out.slice_mut(0..rows * d), batch.ids.view(), table, d)?;
        for l in 0..self.config.n_layers {
            // The stream comes in as `out` of the block before and goes out as `out` of this one.
            let slot = if acts.recompute { 0 } else { l };
            let block = &mut acts.layers[slot];
            std::mem::swap(&mut block.x, &mut acts.out);
            let (positions, attend) = (batch.positions.view(), Attend::Tree(&batch.tree));
            self.layer_fwd(l, block, Some(&mut acts.out), &mut acts.scratch, positions, attend)?;
            if acts.recompute {
                std::mem::swap(&mut acts.layers[slot].x, &mut acts.inputs[l]);
            }
        }
        acts.batch = Some(batch);
        Ok(())
    }

    fn batch(&self, tree: &TokenTree) -> Result<Batch, CudaError> {
        let segments: Vec<Segment> = tree
            .segments
            .iter()
            .map(|s| Segment { start: s.start, len: s.len, parent: s.parent, position: s.position })
            .collect();
        Ok(Batch {
            rows: tree.rows(),
            ids: self.gpu.upload("token ids", &tree.ids)?,
            by_token: RowsByToken::new(&self.gpu, &tree.ids)?,
            positions: self.gpu.upload("positions", &tree.positions())?,
            tree: Tree::new(&self.gpu, &segments, self.heads)?,
        })
    }

    /// Adds the gradient of the objective whose derivatives with respect to the targets' values are `seeds`. The two sides of a tied embedding
    /// add to the same numbers, the head's first.
    ///
    /// **Panics** without a forward before it, before [`GpuTransformer::train`], and while the adapters of a model that has them are off.
    ///
    /// **Errors** [`CudaError`].
    pub fn backward(
        &mut self,
        acts: &mut Activations<E>,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
    ) -> Result<(), CudaError> {
        assert!(self.lora.as_ref().is_none_or(|lora| lora.active), "adapters that are off are not trained");
        // Taken out for the while, since the model's weights are read beside it.
        let mut learner = self.learner.take().expect("`train` comes before `backward`");
        let batch = acts.batch.take().expect("backward follows a forward");
        let outcome = self.backward_into(&mut learner.grads, acts, &batch, targets, temperature, seeds);
        (self.learner, acts.batch) = (Some(learner), Some(batch));
        outcome
    }

    fn backward_into(
        &self,
        grads: &mut Buffer<f32>,
        acts: &mut Activations<E>,
        batch: &Batch,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
    ) -> Result<(), CudaError> {
        let (d, n) = (self.config.d_model, batch.rows * self.config.d_model);
        self.head_bwd(grads, acts, batch, targets, temperature, seeds)?;
        for l in (0..self.config.n_layers).rev() {
            let Activations { recompute, layers, inputs, dx, scratch, .. } = acts;
            let block = &mut layers[if *recompute { 0 } else { l }];
            if *recompute {
                std::mem::swap(&mut block.x, &mut inputs[l]);
                self.layer_activations(l, block, scratch, batch.positions.view(), Attend::Tree(&batch.tree))?;
            }
            self.layer_bwd(l, block, dx, grads, scratch, batch)?;
            if *recompute {
                std::mem::swap(&mut block.x, &mut inputs[l]);
            }
        }
        if self.lora.is_some() {
            return Ok(());
        }
        let dtable = grads.slice_mut(self.embedding.clone());
        embedding_bwd(&self.gpu, dtable, acts.dx.slice(0..n), &batch.by_token, d)
    }
}

/// Cosines and sines of every position, `[positions, 2, head_dim / 2]`.
fn rope_table(gpu: &Gpu, config: &Config, positions: usize) -> Result<Buffer<f32>, CudaError> {
    let table = RopeTable::new(&config.rope, config.head_dim, config.max_positions, positions);
    let rows = (0..positions).flat_map(|p| [table.row(p).0, table.row(p).1].concat());
    gpu.upload("RoPE's table", &rows.collect::<Vec<f32>>())
}

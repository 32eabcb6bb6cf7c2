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
use ragen_cuda::kernels::attention::{Cached, Heads, Segment, Tree, head_width};
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

/// Tokens of the largest vocabulary that [`ragen_cuda::kernels::sampling::sample`] draws from.
const LARGEST_VOCABULARY: usize = 770_000;

/// What of a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub enum Learns {
    /// All weights.
    Weights,
    /// Nothing: weights lie on the device once, in the activations' number type.
    Nothing,
    /// These adapters, and the value head if there is one; the weights are frozen.
    Adapters(Lora),
}

/// Succeeds when there are kernels for a model of this shape.
///
/// **Errors** in words that name the key of `config.json` at fault.
pub fn check(config: &Config) -> Result<(), String> {
    if head_width(config.head_dim).is_none() {
        return Err(format!("head_dim is {}, and there are kernels for heads of at most 128", config.head_dim));
    }
    if config.vocab > LARGEST_VOCABULARY {
        let most = LARGEST_VOCABULARY;
        return Err(format!("vocab_size is {}, and there are kernels for at most {most} tokens", config.vocab));
    }
    Ok(())
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

/// What of a forward pass stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// All that the backward needs of every block.
    Blocks,
    /// Only each block's input; the rest of it is computed again when the backward comes to it.
    Inputs,
    /// Nothing of a block: no backward follows.
    Nothing,
}

/// What a forward pass leaves behind for the backward, and the buffers of one block; for batches of at most so many rows.
pub struct Activations<E> {
    keep: Keep,
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
    /// Memory for batches of at most `capacity` packed rows; the head works on `head_rows` targets at once. With `recompute` only the inputs of
    /// blocks are kept.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn new(
        model: &GpuTransformer<E>,
        capacity: usize,
        head_rows: usize,
        recompute: bool,
    ) -> Result<Self, CudaError> {
        Activations::keeping(model, capacity, head_rows, if recompute { Keep::Inputs } else { Keep::Blocks })
    }

    /// The same for batches that no backward follows: of one block, whatever the model's depth.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn scoring(model: &GpuTransformer<E>, capacity: usize, head_rows: usize) -> Result<Self, CudaError> {
        Activations::keeping(model, capacity, head_rows, Keep::Nothing)
    }

    fn keeping(model: &GpuTransformer<E>, capacity: usize, head_rows: usize, keep: Keep) -> Result<Self, CudaError> {
        let (gpu, config, d) = (&model.gpu, &model.config, model.config.d_model);
        let (backward, n_layers) = (keep != Keep::Nothing, config.n_layers);
        let block = || LayerActivations::new(gpu, config, model.heads, capacity);
        let stream = |rows: usize| gpu.buffer("the residual stream", rows * d);
        let (blocks, inputs) = match keep {
            Keep::Blocks => (n_layers, 0),
            Keep::Inputs => (1, n_layers),
            Keep::Nothing => (1, 0),
        };
        Ok(Activations {
            keep,
            capacity,
            batch: None,
            layers: (0..blocks).map(|_| block()).collect::<Result<_, _>>()?,
            inputs: (0..inputs).map(|_| stream(capacity)).collect::<Result<_, _>>()?,
            out: stream(capacity)?,
            dx: stream(if backward { capacity } else { 0 })?,
            scratch: Scratch::new(model, capacity, backward)?,
            head: head::Rows::new(gpu, config, head_rows, backward)?,
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
    /// **Panics** when the weights belong to another shape, or there are no kernels for it ([`check`]).
    ///
    /// **Errors** [`CudaError`].
    pub fn new(gpu: Gpu, products: Products, config: Config, params: &Params) -> Result<Self, CudaError> {
        let positions = config.max_positions;
        let mut model = Self::empty(gpu, products, config, positions, Learns::Weights)?;
        model.write(params, None)?;
        Ok(model)
    }

    /// A model that never learns, a reference say: its weights lie on the device in E alone.
    ///
    /// **Panics** and **Errors** as [`GpuTransformer::new`].
    pub fn frozen(gpu: Gpu, products: Products, config: Config, params: &Params) -> Result<Self, CudaError> {
        let positions = config.max_positions;
        let mut model = Self::empty(gpu, products, config, positions, Learns::Nothing)?;
        model.write(params, None)?;
        Ok(model)
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
        let positions = config.max_positions;
        let mut model = Self::empty(gpu, products, config, positions, Learns::Adapters(settings))?;
        model.write(base, Some(adapters))?;
        Ok(model)
    }

    /// Memory for a model of this shape and for a context of `positions` tokens; [`GpuTransformer::write`] gives it weights.
    ///
    /// **Panics** when there are no kernels for the shape ([`check`]).
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn empty(
        gpu: Gpu,
        products: Products,
        config: Config,
        positions: usize,
        learns: Learns,
    ) -> Result<Self, CudaError> {
        check(&config).expect("a shape that there are kernels for");
        let value_head = config.value_head && !matches!(learns, Learns::Adapters(_));
        let table = Arc::new(Table::new(&Config { value_head, ..config.clone() }));
        let base = Weights::new(&gpu, table, !matches!(learns, Learns::Weights))?;
        let lora = match learns {
            Learns::Adapters(settings) => {
                let weights = Weights::new(&gpu, Arc::new(settings.table(&config)), false)?;
                Some(Adapters { settings, weights, active: true })
            }
            Learns::Weights | Learns::Nothing => None,
        };
        Self::assemble(gpu, products, config, positions, base, lora)
    }

    /// Gives it its weights, and its adapters if it has them.
    ///
    /// **Panics** when they belong to another shape, and when there are adapters on one side only.
    ///
    /// **Errors** [`CudaError`].
    pub fn write(&mut self, base: &Params, adapters: Option<&Params>) -> Result<(), CudaError> {
        self.base.write(&self.gpu, base)?;
        match (&mut self.lora, adapters) {
            (Some(lora), Some(adapters)) => lora.weights.write(&self.gpu, adapters)?,
            (None, None) => {}
            _ => panic!("adapters for a model that has them"),
        }
        write_rope(&self.gpu, &mut self.rope, &self.config, self.positions)
    }

    fn assemble(
        gpu: Gpu,
        products: Products,
        config: Config,
        positions: usize,
        base: Weights<E>,
        lora: Option<Adapters<E>>,
    ) -> Result<Self, CudaError> {
        let range = |table: &Table, name: &str| table.find(name).map(|e| e.range());
        let table = base.table.clone();
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
            rope: rope_buffer(&gpu, &config, positions)?,
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
        let (gpu, config) = (self.gpu.clone(), self.config.clone());
        let mut frozen = Self::empty(gpu, self.products, config, self.positions, Learns::Nothing)?;
        frozen.write(params, None)?;
        Ok(frozen)
    }

    /// The same model for a context of `positions` tokens; see `Transformer::with_context`.
    ///
    /// **Errors** [`CudaError`].
    pub fn with_context(mut self, positions: usize) -> Result<Self, CudaError> {
        if positions != self.positions {
            self.rope = rope_buffer(&self.gpu, &self.config, positions)?;
            write_rope(&self.gpu, &mut self.rope, &self.config, positions)?;
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
            let slot = if acts.keep == Keep::Blocks { l } else { 0 };
            let block = &mut acts.layers[slot];
            std::mem::swap(&mut block.x, &mut acts.out);
            let (positions, attend) = (batch.positions.view(), Attend::Tree(&batch.tree));
            self.layer_fwd(l, block, Some(&mut acts.out), &mut acts.scratch, positions, attend)?;
            if acts.keep == Keep::Inputs {
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
    /// **Panics** without a forward before it, in activations for scoring, before [`GpuTransformer::train`], and while the adapters of a model
    /// that has them are off.
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
        assert!(acts.keep != Keep::Nothing, "activations for scoring have no backward");
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
            let Activations { keep, layers, inputs, dx, scratch, .. } = acts;
            let recompute = *keep == Keep::Inputs;
            let block = &mut layers[if recompute { 0 } else { l }];
            if recompute {
                std::mem::swap(&mut block.x, &mut inputs[l]);
                self.layer_activations(l, block, scratch, batch.positions.view(), Attend::Tree(&batch.tree))?;
            }
            self.layer_bwd(l, block, dx, grads, scratch, batch)?;
            if recompute {
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

/// Memory for the cosines and sines of every position, `[positions, 2, head_dim / 2]`.
fn rope_buffer(gpu: &Gpu, config: &Config, positions: usize) -> Result<Buffer<f32>, CudaError> {
    gpu.buffer("RoPE's table", positions * (config.head_dim / 2) * 2)
}

fn write_rope(gpu: &Gpu, rope: &mut Buffer<f32>, config: &Config, positions: usize) -> Result<(), CudaError> {
    let table = RopeTable::new(&config.rope, config.head_dim, config.max_positions, positions);
    let rows = (0..positions).flat_map(|p| [table.row(p).0, table.row(p).1].concat());
    gpu.write(rope.view_mut(), &rows.collect::<Vec<f32>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_kernels_is_said_by_its_key() {
        let json = r#"{"model_type": "llama", "vocab_size": 770000, "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "intermediate_size": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 8}"#;
        let fine = Config::from_hf_json(json).unwrap();
        assert_eq!(check(&fine), Ok(()));
        let why = |config: Config| check(&config).unwrap_err();
        let large = why(Config { vocab: 770_001, ..fine.clone() });
        assert!(large.starts_with("vocab_size is 770001") && large.contains("770000"), "{large}");
        let wide = why(Config { head_dim: 130, ..fine });
        assert!(wide.starts_with("head_dim is 130") && wide.contains("at most 128"), "{wide}");
    }
}

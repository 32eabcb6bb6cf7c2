//! The transformer on an NVIDIA GPU: forward, backward and optimiser over the kernels of `ragen-cuda`.
//!
//! It is [`crate::transformer`] once more, op by op in the same order and with the same saved values, over device buffers; read that one
//! first. Weights are resident once: in f32 the optimiser's master copy is what the products read, in bf16 they read a rounded copy
//! beside it. What crosses the border to the host is token ids, tables of a batch, seeds and one number a target, nothing that grows
//! with the model's width or its vocabulary.

mod decode;
mod head;
mod layer;

pub use decode::{Decoding, Draw, DrawError, GpuCache, Outcome};

use crate::config::Config;
use crate::ops::head::{PerTarget, Target};
use crate::ops::rope::RopeTable;
use crate::optim::{AdamWSettings, Step};
use crate::params::{Params, Table};
use crate::token_tree::TokenTree;
use crate::transformer::Places;
use half::bf16;
use layer::{LayerActivations, Scratch};
use ragen_cuda::gemm::Products;
use ragen_cuda::kernels::adamw::{self, Coefficients, adamw_step, grad_norm};
use ragen_cuda::kernels::attention::{Cached, Heads, Segment, Tree};
use ragen_cuda::kernels::embedding::{RowsByToken, embedding_bwd, embedding_fwd};
use ragen_cuda::{Buffer, CudaError, Element, Gpu, View};
use std::ops::Range;
use std::sync::Arc;

/// A number type of activations on the GPU, and where the products find weights in it.
pub trait Precision: Element {
    /// The weights that products read: the master itself, or the rounded copy.
    fn weights<'a>(master: &'a Buffer<f32>, copy: &'a Option<Buffer<Self>>) -> View<'a, Self>;
}

impl Precision for f32 {
    fn weights<'a>(master: &'a Buffer<f32>, _: &'a Option<Buffer<f32>>) -> View<'a, f32> {
        master.view()
    }
}

impl Precision for bf16 {
    fn weights<'a>(master: &'a Buffer<f32>, copy: &'a Option<Buffer<bf16>>) -> View<'a, bf16> {
        debug_assert_eq!(copy.as_ref().map(Buffer::len), Some(master.len()));
        copy.as_ref().expect("bf16 weights have a rounded copy").view()
    }
}

/// A model on the GPU: its shape, its weights, and what trains them.
pub struct GpuTransformer<E> {
    /// The shape.
    pub config: Config,
    /// Settings of the optimiser; may be changed between steps.
    pub optimiser: AdamWSettings,
    gpu: Gpu,
    products: Products,
    table: Arc<Table>,
    heads: Heads,
    places: Vec<Places>,
    embedding: Range<usize>,
    final_norm: Range<usize>,
    lm_head: Range<usize>,
    value_head: Option<(Range<usize>, Range<usize>)>,
    master: Buffer<f32>,
    copy: Option<Buffer<E>>,
    /// Cosines and sines, `[positions, 2, head_dim / 2]`.
    rope: Buffer<f32>,
    positions: usize,
    trained: Option<Trained>,
}

/// Gradients and moments, and what a step needs besides.
struct Trained {
    grads: Buffer<f32>,
    m: Buffer<f32>,
    v: Buffer<f32>,
    norm: Buffer<f64>,
    pieces: Buffer<f64>,
    steps: u64,
}

/// What attention goes over.
enum Attend<'a, E> {
    /// The batch's own rows, with what the backward needs.
    Tree(&'a Tree),
    /// A layer of the cache, which gets the batch's keys and values first.
    Cache { layer: &'a mut Buffer<E>, batch: &'a Cached, partials: &'a mut Buffer<f32> },
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
            scratch: Scratch::new(gpu, config, model.heads, capacity, true)?,
            head: head::Rows::new(gpu, config, head_rows)?,
        })
    }
}

impl<E: Precision> GpuTransformer<E> {
    /// A model of this shape with these weights on the device.
    ///
    /// **Panics** when the weights belong to another shape, or heads are wider than there are kernels for.
    ///
    /// **Errors** [`CudaError`].
    pub fn new(gpu: Gpu, products: Products, config: Config, params: &Params) -> Result<Self, CudaError> {
        assert_eq!(*params.table, Table::new(&config), "the weights are those of this shape");
        let (table, positions) = (params.table.clone(), config.max_positions);
        let range = |name: &str| table.find(name).map(|e| e.range());
        let embedding = range("model.embed_tokens.weight").unwrap_or_default();
        let rope = RopeTable::new(&config.rope, config.head_dim, positions, positions);
        let turns: Vec<f32> = (0..positions).flat_map(|p| [rope.row(p).0, rope.row(p).1].concat()).collect();
        let mut model = GpuTransformer {
            heads: Heads { n_heads: config.n_heads, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim },
            places: (0..config.n_layers).map(|l| Places::new(&table, &config, l)).collect(),
            lm_head: range("lm_head.weight").unwrap_or_else(|| embedding.clone()),
            embedding,
            final_norm: range("model.norm.weight").unwrap_or_default(),
            value_head: range("value_head.weight").zip(range("value_head.bias")),
            master: gpu.buffer("the weights", table.len())?,
            copy: if size_of::<E>() == 4 { None } else { Some(gpu.buffer("the rounded weights", table.len())?) },
            rope: gpu.upload("RoPE's table", &turns)?,
            trained: None,
            optimiser: AdamWSettings::default(),
            table,
            positions,
            products,
            config,
            gpu,
        };
        model.set_params(params)?;
        Ok(model)
    }

    /// Makes gradients and moments, all zeros, so that the model can be trained.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn train(&mut self, optimiser: AdamWSettings) -> Result<(), CudaError> {
        let (gpu, n) = (&self.gpu, self.table.len());
        self.optimiser = optimiser;
        self.trained = Some(Trained {
            grads: gpu.zeros("the gradients", n)?,
            m: gpu.zeros("the first moments", n)?,
            v: gpu.zeros("the second moments", n)?,
            norm: gpu.zeros("the gradients' norm", 1)?,
            pieces: gpu.zeros("pieces of the gradients' norm", adamw::pieces(n))?,
            steps: 0,
        });
        Ok(())
    }

    /// The longest context, in tokens.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The weights, copied to the host.
    ///
    /// **Errors** [`CudaError`].
    pub fn params(&self) -> Result<Params, CudaError> {
        Ok(Params { table: self.table.clone(), data: self.gpu.to_vec(self.master.view())? })
    }

    /// Replaces the weights.
    ///
    /// **Panics** when they belong to another shape.
    ///
    /// **Errors** [`CudaError`].
    pub fn set_params(&mut self, params: &Params) -> Result<(), CudaError> {
        assert_eq!(*params.table, *self.table, "the weights are those of this shape");
        self.gpu.write(self.master.view_mut(), &params.data)?;
        match &mut self.copy {
            None => Ok(()),
            Some(copy) => {
                let rounded: Vec<E> = params.data.iter().map(|&w| E::from_f32(w)).collect();
                self.gpu.write(copy.view_mut(), &rounded)
            }
        }
    }

    /// The gradients gathered since the last update, copied to the host; `None` before [`GpuTransformer::train`].
    ///
    /// **Errors** [`CudaError`].
    pub fn gradients(&self) -> Result<Option<Vec<f32>>, CudaError> {
        self.trained.as_ref().map(|trained| self.gpu.to_vec(trained.grads.view())).transpose()
    }

    /// The weights at a place, as the products read them.
    fn weights(&self, place: &Range<usize>) -> View<'_, E> {
        E::weights(&self.master, &self.copy).slice(place.clone())
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
            self.layer_fwd(l, block, &mut acts.out, &mut acts.scratch, &batch.positions, Attend::Tree(&batch.tree))?;
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
    /// **Panics** without a forward before it, or before [`GpuTransformer::train`].
    ///
    /// **Errors** [`CudaError`].
    pub fn backward(
        &mut self,
        acts: &mut Activations<E>,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
    ) -> Result<(), CudaError> {
        // Taken out for the while, since the model's weights are read beside it.
        let mut trained = self.trained.take().expect("`train` comes before `backward`");
        let batch = acts.batch.take().expect("backward follows a forward");
        let outcome = self.backward_into(&mut trained.grads, acts, &batch, targets, temperature, seeds);
        (self.trained, acts.batch) = (Some(trained), Some(batch));
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
                self.layer_activations(l, block, scratch, &batch.positions, Attend::Tree(&batch.tree))?;
            }
            self.layer_bwd(l, block, dx, grads, scratch, batch)?;
            if *recompute {
                std::mem::swap(&mut block.x, &mut inputs[l]);
            }
        }
        let dtable = grads.slice_mut(self.embedding.clone());
        embedding_bwd(&self.gpu, dtable, acts.dx.slice(0..n), &batch.by_token, d)
    }

    /// One optimiser step on the gradients gathered, which are then zeroed. A norm that is not finite changes nothing.
    ///
    /// **Panics** before [`GpuTransformer::train`].
    ///
    /// **Errors** [`CudaError`].
    pub fn update(&mut self, lr: f64) -> Result<Step, CudaError> {
        let gpu = &self.gpu;
        let Trained { grads, m, v, norm, pieces, steps } =
            self.trained.as_mut().expect("`train` comes before `update`");
        grad_norm(gpu, norm.view_mut(), grads.view(), pieces.view_mut())?;
        let c = coefficients(&self.optimiser, *steps + 1, lr);
        let copy = self.copy.as_mut().map(Buffer::view_mut);
        let (m, v, master) = (m.view_mut(), v.view_mut(), self.master.view_mut());
        adamw_step(gpu, copy, master, m, v, grads.view(), norm.view(), &c)?;
        gpu.zero(grads.view_mut())?;
        let mut grad_norm = [0.0];
        gpu.read(&mut grad_norm, norm.view())?;
        let skipped = !grad_norm[0].is_finite();
        *steps += u64::from(!skipped);
        Ok(Step { grad_norm: grad_norm[0], skipped })
    }
}

/// The numbers of optimiser step `step`, counted from 1.
fn coefficients(settings: &AdamWSettings, step: u64, lr: f64) -> Coefficients {
    let AdamWSettings { beta1, beta2, eps, weight_decay, clip_norm } = *settings;
    let correction = |beta: f64| 1.0 - crate::math::pow(beta, step as f64);
    Coefficients {
        clip_norm: clip_norm.unwrap_or(-1.0),
        beta1: beta1 as f32,
        beta2: beta2 as f32,
        gain1: (1.0 - beta1) as f32,
        gain2: (1.0 - beta2) as f32,
        root_scale: (1.0 / correction(beta2).sqrt()) as f32,
        eps: eps as f32,
        keep: (1.0 - lr * weight_decay) as f32,
        rate: (lr / correction(beta1)) as f32,
    }
}

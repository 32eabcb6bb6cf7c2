//! The transformer: configuration, forward, backward, decode.
//!
//! [`Transformer::forward`] keeps what the backward needs in [`Activations`]; [`Transformer::values`] and
//! [`Transformer::backward`] are the policy boundary (decision D5); [`Transformer::extend`] is the same forward over a KV
//! cache. All three run the same kernels in the same order, so their log-probabilities are equal in every bit.

mod decode;
mod layer;
mod projection;

pub use crate::config::{Config, ConfigError, Family, Fault, Rope, RopeScaling, SlidingWindow, Yarn};
pub use decode::Append;

use crate::device::Cpu;
use crate::lora::{Lora, Module, Place};
use crate::memory::head_rows;
use crate::ops::attention::{Heads, attention_fwd};
use crate::ops::embedding::{embedding_bwd, embedding_fwd};
use crate::ops::head::{self, PerTarget, RowSeeds, RowStats, Target};
pub use crate::ops::linear::Precision;
use crate::ops::linear::{Linear, linear_bwd_input_wide, linear_bwd_weight, linear_fwd};
use crate::ops::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd, rmsnorm_gain_bwd};
use crate::ops::rope::RopeTable;
use crate::params::{Params, Table};
use crate::random::Key;
use crate::threads::Shards;
use crate::token_tree::TokenTree;
pub(crate) use layer::Places;
use layer::{LayerActivations, PackedLayer, Scratch, sized};
use projection::{Adapter, Projection};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A model: its shape, its weights, and the weights packed for the products; with adapters, these too.
pub struct Transformer {
    /// The shape.
    pub config: Config,
    params: Params,
    lora: Option<Adapters>,
    heads: Heads,
    places: Vec<Places>,
    embedding: Range<usize>,
    final_norm: Range<usize>,
    lm_head: Range<usize>,
    /// Weight and bias, among what is trained.
    value_head: Option<(Range<usize>, Range<usize>)>,
    layers: Vec<PackedLayer>,
    head: Linear,
    precision: Precision,
    rope: RopeTable,
    /// Buffers of decode workers, kept from call to call.
    workspaces: Mutex<Vec<decode::Workspace>>,
}

/// The adapters of a model whose weights are frozen.
struct Adapters {
    settings: Lora,
    params: Params,
    /// Off while the base alone is asked for.
    active: bool,
}

/// What a forward pass leaves behind for the backward.
#[derive(Default)]
pub struct Activations {
    /// Keep only each block's input, and compute the rest of it again when the backward comes to it: about a third more
    /// work for a fraction of the memory, and the same bits.
    pub recompute: bool,
    positions: Vec<u32>,
    layers: Vec<LayerActivations>,
    /// The residual stream after the last block, `[rows, d_model]`.
    out: Vec<f32>,
    /// The one block whose activations are at hand, when they are computed again.
    block: LayerActivations,
    scratch: Scratch,
    /// Whether every layer was kept, so that a backward can follow.
    kept: bool,
}

/// Gradients of what is trained, that add up over micro-batches.
///
/// A tied embedding is used at both ends of the model. Its output side gathers apart and joins at the end, so that the sum does not
/// depend on where micro-batches were cut.
pub struct Gradients {
    params: Params,
    /// Output side of a tied embedding, `[vocab, d_model]`; empty when the head has a matrix of its own.
    tied_head: Vec<f32>,
    embedding: Range<usize>,
}

impl Gradients {
    /// Zeros for the parameters of `model`.
    pub fn zeros(model: &Transformer) -> Self {
        let tied = model.config.tied_embeddings && model.lora.is_none();
        Gradients {
            params: Params::zeros(model.trained().table.clone()),
            tied_head: vec![0.0; if tied { model.embedding.len() } else { 0 }],
            embedding: model.embedding.clone(),
        }
    }

    /// All zeros again.
    pub fn zero(&mut self) {
        self.params.data.fill(0.0);
        self.tied_head.fill(0.0);
    }

    /// The gradient of everything trained, once the last micro-batch is in.
    pub fn total(&mut self) -> &mut Params {
        if !self.tied_head.is_empty() {
            for (sum, x) in self.params.data[self.embedding.clone()].iter_mut().zip(&mut self.tied_head) {
                *sum += std::mem::take(x);
            }
        }
        &mut self.params
    }
}

impl Transformer {
    /// A model of this shape with these weights, packed for products of this precision, for its own context of `max_positions`.
    ///
    /// With bf16 the inputs of every linear product (activations, their gradients, weights) are rounded; everything else is f32: the
    /// weights themselves and so the embedding's rows, sums, the residual stream, norms, attention, the log-softmax, gradients.
    ///
    /// **Panics** when the weights belong to another shape.
    pub fn new(cpu: &Cpu, config: Config, params: Params, precision: Precision) -> Self {
        assert_eq!(*params.table, Table::new(&config), "the weights are those of this shape");
        Self::assemble(cpu, config, params, precision, None)
    }

    /// A model with frozen weights and adapters that are trained, over [`Lora::table`]; a value head is among the latter.
    ///
    /// **Panics** when weights or adapters belong to another shape, and when the weights have a value head.
    pub fn with_adapters(
        cpu: &Cpu,
        config: Config,
        base: Params,
        precision: Precision,
        settings: Lora,
        adapters: Params,
    ) -> Self {
        let without_value = Config { value_head: false, ..config.clone() };
        assert_eq!(*base.table, Table::new(&without_value), "the weights are those of this shape");
        assert_eq!(*adapters.table, settings.table(&config), "the adapters are those of this shape");
        Self::assemble(cpu, config, base, precision, Some(Adapters { settings, params: adapters, active: true }))
    }

    fn assemble(cpu: &Cpu, config: Config, params: Params, precision: Precision, lora: Option<Adapters>) -> Self {
        let table = params.table.clone();
        let range = |table: &Table, name: &str| table.find(name).map(|e| e.range());
        let embedding = range(&table, "model.embed_tokens.weight").unwrap_or_default();
        let heads = Heads { n_heads: config.n_heads, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim };
        let trained = lora.as_ref().map_or(&table, |lora| &lora.params.table);
        let mut model = Transformer {
            heads,
            places: (0..config.n_layers).map(|l| Places::new(&table, &config, l)).collect(),
            lm_head: range(&table, "lm_head.weight").unwrap_or_else(|| embedding.clone()),
            embedding,
            final_norm: range(&table, "model.norm.weight").unwrap_or_default(),
            value_head: range(trained, "value_head.weight").zip(range(trained, "value_head.bias")),
            layers: vec![PackedLayer::default(); config.n_layers],
            head: Linear::default(),
            rope: RopeTable::new(&config.rope, config.head_dim, config.max_positions, config.max_positions),
            precision,
            workspaces: Mutex::default(),
            params,
            lora,
            config,
        };
        model.place_adapters();
        model.pack(cpu);
        model.pack_adapters(cpu);
        model
    }

    /// Says where each adapter lies and which columns it adds to.
    fn place_adapters(&mut self) {
        let Some(lora) = &self.lora else { return };
        for (l, layer) in self.layers.iter_mut().enumerate() {
            let place = |projection: &mut Projection, modules: &[Module]| {
                let places = lora.settings.places(&self.config, &lora.params.table, l, modules);
                projection.adapters = places.into_iter().map(|place| Adapter { place, ..Adapter::default() }).collect();
            };
            place(&mut layer.qkv, Module::QKV);
            place(&mut layer.o, &[Module::O]);
            place(&mut layer.gate_up, Module::GATE_UP);
            place(&mut layer.down, &[Module::Down]);
        }
    }

    /// Fresh weights: embedding and head N(0, 0.02²), other matrices N(0, 1/fan_in), the two output projections of a block half of
    /// that deviation, gains 1, biases and value head 0.
    pub fn initial(config: &Config, seed: u64) -> Params {
        let mut params = Params::zeros(Arc::new(Table::new(config)));
        let key = Key::new(seed).named("initial weights");
        let table = params.table.clone();
        for (i, entry) in table.entries.iter().enumerate() {
            let values = &mut params.data[entry.range()];
            let name = entry.name.as_str();
            if name.ends_with("norm.weight") {
                values.fill(1.0);
            } else if !name.ends_with("bias") && !name.starts_with("value_head") {
                let fan_in = entry.shape[1] as f64;
                let deviation = match name {
                    "model.embed_tokens.weight" | "lm_head.weight" => 0.02,
                    _ if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") => 0.5 / fan_in.sqrt(),
                    _ => 1.0 / fan_in.sqrt(),
                };
                let key = key.with(i as u64);
                for (j, value) in values.iter_mut().enumerate() {
                    *value = (deviation * key.normal(j as u64)) as f32;
                }
            }
        }
        params
    }

    /// The same model for a context of `positions` tokens instead of its own `max_positions`. Going beyond those makes sense with dynamic
    /// RoPE, whose frequencies follow from it; the other kinds keep theirs, whatever it is.
    pub fn with_context(mut self, positions: usize) -> Self {
        let Config { head_dim, max_positions, .. } = self.config;
        self.rope = RopeTable::new(&self.config.rope, head_dim, max_positions, positions);
        self
    }

    /// The longest context, in tokens.
    pub fn positions(&self) -> usize {
        self.rope.positions()
    }

    /// The weights; with adapters, the frozen ones.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// What the inputs of the linear products are rounded to.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What is trained: the adapters if there are any (and the value head with them), else the weights.
    pub fn trained(&self) -> &Params {
        self.lora.as_ref().map_or(&self.params, |lora| &lora.params)
    }

    /// Which adapters the model has.
    pub fn lora(&self) -> Option<&Lora> {
        self.lora.as_ref().map(|lora| &lora.settings)
    }

    /// The weights with the adapters merged into them.
    pub fn merged(&self) -> Params {
        let mut params = self.params.clone();
        if let Some(lora) = &self.lora {
            lora.settings.merge(&self.config, &mut params, &lora.params);
        }
        params
    }

    /// What `of` makes of the model without its adapters.
    pub fn without_adapters<T>(&mut self, of: impl FnOnce(&Transformer) -> T) -> T {
        let set = |model: &mut Transformer, active| model.lora.iter_mut().for_each(|lora| lora.active = active);
        set(self, false);
        let outcome = of(self);
        set(self, true);
        outcome
    }

    /// α / r while adapters are in use.
    fn adapter_scale(&self) -> Option<f32> {
        self.lora.as_ref().filter(|lora| lora.active).map(|lora| lora.settings.scale())
    }

    /// Changes what is trained and packs it again, once per optimiser step; returns what the change returns.
    pub fn update<T>(&mut self, cpu: &Cpu, change: impl FnOnce(&mut Params) -> T) -> T {
        match &mut self.lora {
            Some(lora) => {
                let outcome = change(&mut lora.params);
                self.pack_adapters(cpu);
                outcome
            }
            None => {
                let outcome = change(&mut self.params);
                self.pack(cpu);
                outcome
            }
        }
    }

    fn pack(&mut self, cpu: &Cpu) {
        let (config, w, precision) = (&self.config, &self.params.data, self.precision);
        let (d, ff) = (config.d_model, config.d_ff);
        for (packed, places) in self.layers.iter_mut().zip(&self.places) {
            packed.qkv.base.pack(cpu, precision, &w[places.qkv.clone()], self.heads.row(), d);
            packed.o.base.pack(cpu, precision, &w[places.o.clone()], d, self.heads.q_width());
            packed.gate_up.base.pack(cpu, precision, &w[places.gate_up.clone()], 2 * ff, d);
            packed.down.base.pack(cpu, precision, &w[places.down.clone()], d, ff);
        }
        self.head.pack(cpu, precision, &w[self.lm_head.clone()], config.vocab, d);
    }

    fn pack_adapters(&mut self, cpu: &Cpu) {
        let Some(lora) = &self.lora else { return };
        let (w, rank, precision) = (&lora.params.data, lora.settings.rank, self.precision);
        for layer in &mut self.layers {
            for projection in [&mut layer.qkv, &mut layer.o, &mut layer.gate_up, &mut layer.down] {
                for Adapter { place: Place { columns, a, b }, a_packed, b_packed } in &mut projection.adapters {
                    a_packed.pack(cpu, precision, &w[a.clone()], rank, a.len() / rank);
                    b_packed.pack(cpu, precision, &w[b.clone()], columns.len(), rank);
                }
            }
        }
    }

    /// Runs all blocks over the token tree. With `keep`, what [`Transformer::backward`] needs of every layer stays (all of
    /// it, or the inputs to compute it from, as [`Activations::recompute`] says); without, only the last hidden states do.
    ///
    /// **Panics** on an id outside the vocabulary or a path longer than [`Transformer::positions`].
    pub fn forward(&self, cpu: &Cpu, tree: &TokenTree, acts: &mut Activations, keep: bool) {
        let d = self.config.d_model;
        let rows = tree.rows();
        assert!(tree.longest_path() <= self.rope.positions(), "a path is longer than the model's context");
        acts.positions = tree.positions();
        acts.kept = keep;
        let whole = keep && !acts.recompute;
        acts.layers.resize_with(if keep { self.config.n_layers } else { 0 }, LayerActivations::default);
        embedding_fwd(sized(&mut acts.out, rows * d), &tree.ids, &self.params.data[self.embedding.clone()], d);
        for l in 0..self.config.n_layers {
            // The stream comes in as `out` of the block before and goes out as `out` of this one.
            let Activations { layers, block, out, scratch, positions, .. } = acts;
            let slot = if whole { &mut layers[l] } else { &mut *block };
            std::mem::swap(&mut slot.x, out);
            self.layer_fwd(cpu, l, slot, out, scratch, positions, &|qkv, o| {
                attention_fwd(cpu, o, qkv, tree, self.heads, self.config.window(l));
            });
            if !whole && keep {
                std::mem::swap(&mut block.x, &mut layers[l].x);
            }
        }
    }

    /// Final norm of the hidden states of some targets, `[targets, d_model]`, and its 1/RMS.
    fn final_hidden(&self, cpu: &Cpu, acts: &Activations, targets: &[Target], hidden: &mut HeadRows) {
        let d = self.config.d_model;
        let x = sized(&mut hidden.x, targets.len() * d);
        for (row, target) in x.chunks_exact_mut(d).zip(targets) {
            row.copy_from_slice(&acts.out[target.row * d..][..d]);
        }
        let normed = sized(&mut hidden.normed, targets.len() * d);
        let rstd = sized(&mut hidden.rstd, targets.len());
        let gain = &self.params.data[self.final_norm.clone()];
        rmsnorm_fwd(cpu, normed, d, rstd, x, gain, self.config.norm_eps as f32, Layout::plain(targets.len(), d));
    }

    /// Logits of the packed rows of a forward pass, `[rows, vocab]`: for inspection and tests; training never makes them.
    pub fn logits(&self, cpu: &Cpu, acts: &Activations, rows: &[usize]) -> Vec<f32> {
        let targets: Vec<Target> = rows.iter().map(|&row| Target { row, token: 0, kept: None }).collect();
        let mut hidden = HeadRows::default();
        self.final_hidden(cpu, acts, &targets, &mut hidden);
        let mut logits = vec![0.0; rows.len() * self.config.vocab];
        linear_fwd(cpu, &mut logits, &hidden.normed, &self.head, false);
        logits
    }

    /// Log-probability, entropy and value of every target, at a temperature > 0.
    pub fn values(&self, cpu: &Cpu, acts: &Activations, targets: &[Target], temperature: f32) -> PerTarget<f32> {
        let mut values = PerTarget::zeros(targets.len(), self.value_head.is_some());
        let mut hidden = HeadRows::default();
        let chunk = head_rows(self.config.vocab);
        for (c, targets) in targets.chunks(chunk).enumerate() {
            self.final_hidden(cpu, acts, targets, &mut hidden);
            let logits = sized(&mut hidden.logits, targets.len() * self.config.vocab);
            linear_fwd(cpu, logits, &hidden.normed, &self.head, false);
            let (logp, entropy) = (Shards::new(&mut values.logp), Shards::new(&mut values.entropy));
            cpu.pool.split(targets.len(), 16, 1, &|range| {
                for t in range {
                    let row = &logits[t * self.config.vocab..][..self.config.vocab];
                    let stats = head::row_stats(cpu.isa, row, temperature);
                    let at = c * chunk + t;
                    // SAFETY: every target is in one piece of the split.
                    let (logp, entropy) = unsafe { (logp.part(at..at + 1), entropy.part(at..at + 1)) };
                    logp[0] = targets[t].logp(&stats, row);
                    entropy[0] = stats.entropy();
                }
            });
            self.value_rows(cpu, &hidden.normed, &mut values.value, c * chunk, targets.len());
        }
        values
    }

    /// The value of every target alone, without logits; all zeros without a value head.
    pub fn value_estimates(&self, cpu: &Cpu, acts: &Activations, targets: &[Target]) -> Vec<f32> {
        let mut values = vec![0.0; targets.len()];
        let mut hidden = HeadRows::default();
        let chunk = head_rows(self.config.vocab);
        for (c, targets) in targets.chunks(chunk).enumerate() {
            self.final_hidden(cpu, acts, targets, &mut hidden);
            self.value_rows(cpu, &hidden.normed, &mut values, c * chunk, targets.len());
        }
        values
    }

    /// value = w · h + b of `rows` hidden states.
    fn value_rows(&self, cpu: &Cpu, normed: &[f32], values: &mut [f32], start: usize, rows: usize) {
        if let Some((w, b)) = &self.value_head {
            let trained = &self.trained().data;
            let (w, b) = (&trained[w.clone()], trained[b.start]);
            for (value, h) in values[start..start + rows].iter_mut().zip(normed.chunks_exact(self.config.d_model)) {
                *value = head::dot(cpu.isa, w, h) + b;
            }
        }
    }

    /// Adds the gradient of the objective whose derivatives with respect to the targets' values are `seeds`.
    ///
    /// **Panics** when `acts` were not kept, and while the adapters of a model that has them are off.
    pub fn backward(
        &self,
        cpu: &Cpu,
        tree: &TokenTree,
        acts: &mut Activations,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
        grads: &mut Gradients,
    ) {
        assert!(acts.kept, "backward follows a forward that kept its activations");
        assert!(self.lora.as_ref().is_none_or(|lora| lora.active), "adapters that are off are not trained");
        let d = self.config.d_model;
        let mut dx = vec![0.0; tree.rows() * d];
        self.head_bwd(cpu, acts, targets, temperature, seeds, &mut dx, grads);
        let grads = &mut grads.params.data;
        let Activations { recompute, layers, block, scratch, positions, .. } = acts;
        for l in (0..self.config.n_layers).rev() {
            if *recompute {
                std::mem::swap(&mut block.x, &mut layers[l].x);
                self.layer_activations(cpu, l, block, scratch, positions, &|qkv, o| {
                    attention_fwd(cpu, o, qkv, tree, self.heads, self.config.window(l));
                });
            }
            let kept = if *recompute { &*block } else { &layers[l] };
            self.layer_bwd(cpu, l, kept, &mut dx, grads, scratch, tree, positions);
            if *recompute {
                std::mem::swap(&mut block.x, &mut layers[l].x);
            }
        }
        if self.lora.is_none() {
            embedding_bwd(cpu, &mut grads[self.embedding.clone()], &dx, &tree.ids, d);
        }
    }

    /// The head upside down, chunk by chunk: logits are computed again and become dlogits in place.
    fn head_bwd(
        &self,
        cpu: &Cpu,
        acts: &Activations,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
        dx: &mut [f32],
        grads: &mut Gradients,
    ) {
        let Gradients { params: Params { data: grads, .. }, tied_head, .. } = grads;
        let (d, vocab) = (self.config.d_model, self.config.vocab);
        let chunk = head_rows(self.config.vocab);
        let mut hidden = HeadRows::default();
        let (mut dnormed, mut dhidden) = (Vec::new(), Vec::new());
        for (c, targets) in targets.chunks(chunk).enumerate() {
            let rows = targets.len();
            let at = c * chunk..c * chunk + rows;
            self.final_hidden(cpu, acts, targets, &mut hidden);
            let dnormed = sized(&mut dnormed, rows * d);
            let seed = |of: &[f32], t: usize| of.get(at.start + t).copied().unwrap_or(0.0);
            if seeds.logp.is_empty() && seeds.entropy.is_empty() {
                dnormed.fill(0.0);
            } else {
                let logits = sized(&mut hidden.logits, rows * vocab);
                linear_fwd(cpu, logits, &hidden.normed, &self.head, false);
                let shards = Shards::new(logits);
                cpu.pool.split(rows, 16, 1, &|range| {
                    for t in range {
                        // SAFETY: every target is in one piece of the split.
                        let row = unsafe { shards.part(t * vocab..(t + 1) * vocab) };
                        let stats = head::row_stats(cpu.isa, row, temperature);
                        let seeds = RowSeeds { logp: seed(&seeds.logp, t), entropy: seed(&seeds.entropy, t) };
                        head::row_bwd(cpu.isa, row, &stats, targets[t].token, targets[t].kept.as_deref(), seeds);
                    }
                });
                if self.lora.is_none() {
                    let dhead =
                        if tied_head.is_empty() { &mut grads[self.lm_head.clone()] } else { &mut tied_head[..] };
                    linear_bwd_weight(cpu, dhead, logits, &hidden.normed, &self.head);
                }
                let w = &self.params.data[self.lm_head.clone()];
                linear_bwd_input_wide(cpu, dnormed, logits, &self.head, w);
            }
            if let Some((w, b)) = &self.value_head
                && !seeds.value.is_empty()
            {
                let weight = &self.trained().data[w.clone()];
                for (t, normed) in hidden.normed.chunks_exact(d).enumerate() {
                    let dv = seeds.value[at.start + t];
                    for j in 0..d {
                        dnormed[t * d + j] = dv.mul_add(weight[j], dnormed[t * d + j]);
                        grads[w.start + j] = dv.mul_add(normed[j], grads[w.start + j]);
                    }
                    grads[b.start] += dv;
                }
            }
            let layout = Layout::plain(rows, d);
            if self.lora.is_none() {
                let dgain = &mut grads[self.final_norm.clone()];
                rmsnorm_gain_bwd(cpu, dgain, dnormed, d, &hidden.rstd, &hidden.x, layout);
            }
            dhidden.clear();
            dhidden.resize(rows * d, 0.0);
            let gain = &self.params.data[self.final_norm.clone()];
            rmsnorm_bwd(cpu, &mut dhidden, dnormed, d, &hidden.rstd, &hidden.x, gain, layout);
            // Targets of a group can share the last hidden state of their prompt, so this adds in target order.
            for (dh, target) in dhidden.chunks_exact(d).zip(targets) {
                for (sum, x) in dx[target.row * d..][..d].iter_mut().zip(dh) {
                    *sum += x;
                }
            }
        }
    }
}

/// Buffers of one chunk of the head.
#[derive(Default)]
struct HeadRows {
    x: Vec<f32>,
    normed: Vec<f32>,
    rstd: Vec<f32>,
    logits: Vec<f32>,
}

impl Target {
    /// The token's log-probability under the logits of its row.
    fn logp(&self, stats: &RowStats, logits: &[f32]) -> f32 {
        let logit = logits[self.token as usize];
        match &self.kept {
            None => stats.logp(logit),
            Some(kept) => stats.logp_kept(logit, stats.kept_sum(logits, kept)),
        }
    }
}

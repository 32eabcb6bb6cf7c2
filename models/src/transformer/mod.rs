//! The transformer: configuration, forward, backward, decode.
//!
//! [`Transformer::forward`] keeps what the backward needs in [`Activations`]; [`Transformer::values`] and
//! [`Transformer::backward`] are the policy boundary (decision D5); [`Transformer::extend`] is the same forward over a KV
//! cache. All three run the same kernels in the same order, so their log-probabilities are equal in every bit.

mod decode;
mod layer;

pub use crate::config::{Config, ConfigError, Fault};
pub use decode::Append;

use crate::device::Cpu;
use crate::ops::attention::{Heads, attention_fwd};
use crate::ops::embedding::{embedding_bwd, embedding_fwd};
use crate::ops::head::{self, PerTarget, RowSeeds, RowStats, Target};
use crate::ops::linear::{Linear, linear_bwd_input, linear_bwd_weight, linear_fwd};
use crate::ops::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd, rmsnorm_gain_bwd};
use crate::ops::rope::RopeTable;
use crate::params::{Params, Table};
use crate::random::Key;
use crate::threads::Shards;
use crate::token_tree::TokenTree;
use layer::{LayerActivations, PackedLayer, Places, Scratch, sized};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A model: its shape, its weights, and the weights packed for the products.
pub struct Transformer {
    /// The shape.
    pub config: Config,
    params: Params,
    heads: Heads,
    places: Vec<Places>,
    embedding: Range<usize>,
    final_norm: Range<usize>,
    lm_head: Range<usize>,
    value_head: Option<(Range<usize>, Range<usize>)>,
    layers: Vec<PackedLayer>,
    head: Linear,
    rope: RopeTable,
    /// Buffers of decode workers, kept from call to call.
    workspaces: Mutex<Vec<decode::Workspace>>,
}

/// What a forward pass leaves behind for the backward.
#[derive(Default)]
pub struct Activations {
    positions: Vec<u32>,
    layers: Vec<LayerActivations>,
    /// The residual stream after the last block, `[rows, d_model]`.
    out: Vec<f32>,
    scratch: Scratch,
    /// Whether every layer was kept, so that a backward can follow.
    kept: bool,
}

/// Gradients that add up over micro-batches.
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
        let tied = model.config.tied_embeddings;
        Gradients {
            params: Params::zeros(model.params.table.clone()),
            tied_head: vec![0.0; if tied { model.embedding.len() } else { 0 }],
            embedding: model.embedding.clone(),
        }
    }

    /// All zeros again.
    pub fn zero(&mut self) {
        self.params.data.fill(0.0);
        self.tied_head.fill(0.0);
    }

    /// The gradient of every parameter, once the last micro-batch is in.
    pub fn total(&mut self) -> &mut Params {
        for (sum, x) in self.params.data[self.embedding.clone()].iter_mut().zip(&mut self.tied_head) {
            *sum += std::mem::take(x);
        }
        &mut self.params
    }
}

impl Transformer {
    /// A model of this shape with these weights, packed.
    ///
    /// **Panics** when the weights belong to another shape.
    pub fn new(cpu: &Cpu, config: Config, params: Params) -> Self {
        let table = params.table.clone();
        assert_eq!(*table, Table::new(&config), "the weights are those of this shape");
        let range = |name: &str| table.find(name).map(|e| e.range());
        let embedding = range("model.embed_tokens.weight").unwrap_or_default();
        let heads = Heads { n_heads: config.n_heads, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim };
        let mut model = Transformer {
            heads,
            places: (0..config.n_layers).map(|l| Places::new(&table, &config, l)).collect(),
            lm_head: range("lm_head.weight").unwrap_or_else(|| embedding.clone()),
            embedding,
            final_norm: range("model.norm.weight").unwrap_or_default(),
            value_head: range("value_head.weight").zip(range("value_head.bias")),
            layers: vec![PackedLayer::default(); config.n_layers],
            head: Linear::default(),
            rope: RopeTable::new(config.rope_theta, config.head_dim, config.max_positions),
            workspaces: Mutex::default(),
            params,
            config,
        };
        model.pack(cpu);
        model
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

    /// The weights.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Changes the weights and packs them again, once per optimiser step; returns what the change returns.
    pub fn update<T>(&mut self, cpu: &Cpu, change: impl FnOnce(&mut Params) -> T) -> T {
        let outcome = change(&mut self.params);
        self.pack(cpu);
        outcome
    }

    fn pack(&mut self, cpu: &Cpu) {
        let (config, w) = (&self.config, &self.params.data);
        let (d, ff) = (config.d_model, config.d_ff);
        for (packed, places) in self.layers.iter_mut().zip(&self.places) {
            packed.qkv.pack(cpu, &w[places.qkv.clone()], self.heads.row(), d, true);
            packed.o.pack(cpu, &w[places.o.clone()], d, self.heads.q_width(), true);
            packed.gate_up.pack(cpu, &w[places.gate_up.clone()], 2 * ff, d, true);
            packed.down.pack(cpu, &w[places.down.clone()], d, ff, true);
        }
        self.head.pack(cpu, &w[self.lm_head.clone()], config.vocab, d, true);
    }

    /// Runs all blocks over the token tree. With `keep`, every layer's activations stay for [`Transformer::backward`];
    /// without, only the last hidden states do.
    ///
    /// **Panics** on an id outside the vocabulary or a path longer than `max_positions`.
    pub fn forward(&self, cpu: &Cpu, tree: &TokenTree, acts: &mut Activations, keep: bool) {
        let d = self.config.d_model;
        let rows = tree.rows();
        assert!(tree.longest_path() <= self.rope.positions(), "a path is longer than the model's context");
        acts.positions = tree.positions();
        acts.kept = keep;
        acts.layers.resize_with(if keep { self.config.n_layers } else { 1 }, LayerActivations::default);
        let first = sized(&mut acts.layers[0].x, rows * d);
        embedding_fwd(first, &tree.ids, &self.params.data[self.embedding.clone()], d);
        for l in 0..self.config.n_layers {
            let slot = if keep { l } else { 0 };
            // The block's output is the next one's input.
            let mut out = match acts.layers.get_mut(slot + 1) {
                Some(next) => std::mem::take(&mut next.x),
                None => std::mem::take(&mut acts.out),
            };
            self.layer_fwd(cpu, l, &mut acts.layers[slot], &mut out, &mut acts.scratch, &acts.positions, &|qkv, o| {
                attention_fwd(cpu, o, qkv, tree, self.heads);
            });
            match acts.layers.get_mut(slot + 1) {
                Some(next) => next.x = out,
                None if l + 1 < self.config.n_layers => {
                    acts.out = std::mem::replace(&mut acts.layers[0].x, out);
                }
                None => acts.out = out,
            }
        }
    }

    /// Rows of targets that the head works on at once: about a megabyte of logits.
    fn head_rows(&self) -> usize {
        ((1 << 18) / self.config.vocab).clamp(16, 1024)
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
        let chunk = self.head_rows();
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

    /// value = w · h + b of `rows` hidden states.
    fn value_rows(&self, cpu: &Cpu, normed: &[f32], values: &mut [f32], start: usize, rows: usize) {
        if let Some((w, b)) = &self.value_head {
            let (w, b) = (&self.params.data[w.clone()], self.params.data[b.start]);
            for (value, h) in values[start..start + rows].iter_mut().zip(normed.chunks_exact(self.config.d_model)) {
                *value = head::dot(cpu.isa, w, h) + b;
            }
        }
    }

    /// Adds the gradient of the objective whose derivatives with respect to the targets' values are `seeds`.
    ///
    /// **Panics** when `acts` were not kept.
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
        let d = self.config.d_model;
        let mut dx = vec![0.0; tree.rows() * d];
        self.head_bwd(cpu, acts, targets, temperature, seeds, &mut dx, grads);
        let grads = &mut grads.params.data;
        let mut scratch = std::mem::take(&mut acts.scratch);
        for l in (0..self.config.n_layers).rev() {
            self.layer_bwd(cpu, l, &acts.layers[l], &mut dx, grads, &mut scratch, tree, &acts.positions);
        }
        acts.scratch = scratch;
        embedding_bwd(cpu, &mut grads[self.embedding.clone()], &dx, &tree.ids, d);
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
        let chunk = self.head_rows();
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
                let dhead = if tied_head.is_empty() { &mut grads[self.lm_head.clone()] } else { &mut tied_head[..] };
                linear_bwd_weight(cpu, dhead, logits, &hidden.normed, vocab, d);
                linear_bwd_input(cpu, dnormed, logits, &self.head, false);
            }
            if let Some((w, b)) = &self.value_head
                && !seeds.value.is_empty()
            {
                for (t, normed) in hidden.normed.chunks_exact(d).enumerate() {
                    let dv = seeds.value[at.start + t];
                    for j in 0..d {
                        dnormed[t * d + j] = dv.mul_add(self.params.data[w.start + j], dnormed[t * d + j]);
                        grads[w.start + j] = dv.mul_add(normed[j], grads[w.start + j]);
                    }
                    grads[b.start] += dv;
                }
            }
            let layout = Layout::plain(rows, d);
            rmsnorm_gain_bwd(cpu, &mut grads[self.final_norm.clone()], dnormed, d, &hidden.rstd, &hidden.x, layout);
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

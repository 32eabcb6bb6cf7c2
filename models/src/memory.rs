//! What a model and the work on it take of memory, computed from shapes before anything is loaded.
//!
//! The figures follow the buffers of [`crate::transformer`], [`crate::kv_cache`] and [`crate::optim`] one by one. It does not know how much
//! there is, nor what is done with the model beyond [`Work`].

use crate::config::Config;
use crate::lora::Lora;
use crate::ops::attention::PAGE;
use crate::ops::linear::Precision;
use crate::params::Table;

/// What is done with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What the products' inputs are rounded to: the packed weights are stored so.
    pub precision: Precision,
    /// Adapters are trained instead of the weights.
    pub lora: Option<Lora>,
    /// A value model of its own is trained beside it.
    pub value_model: bool,
    /// A frozen copy of the weights is scored.
    pub reference: bool,
    /// Gradients are computed and optimiser steps taken.
    pub trains: bool,
    /// Gradients that are kept on the host beside those that are being gathered.
    pub gradients_held: usize,
    /// Packed tokens of one forward and backward at most.
    pub packed_tokens: usize,
    /// Blocks are computed again in the backward instead of kept.
    pub recompute: bool,
    /// Pages of keys and values held at once.
    pub pages: usize,
    /// Sequences sampled at once.
    pub sequences: usize,
    /// Threads of the pool.
    pub threads: usize,
}

/// Bytes, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights as they are saved and as they are packed, of all models.
    pub weights: usize,
    /// Gradients of what is trained, and those that are looked at on the host.
    pub gradients: usize,
    /// Both moments of what is trained.
    pub optimiser: usize,
    /// What a forward leaves for its backward, and the buffers of one block.
    pub activations: usize,
    /// Keys and values of the sequences that are played.
    pub kv_cache: usize,
    /// Logits: of the sequences that are sampled, and of the rows that the head trains on at once.
    pub head: usize,
    /// The program, its tokenizer, trajectories.
    pub other: usize,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Name and bytes of each part.
    pub fn parts(&self) -> [(&'static str, usize); 7] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimiser", self.optimiser),
            ("activations", self.activations),
            ("kv_cache", self.kv_cache),
            ("head", self.head),
            ("other", self.other),
        ]
    }
}

/// Rows of targets that the head works on at once: about a megabyte of logits, but with a large vocabulary as many rows as 64 MiB
/// hold, up to 252. Each such round reads the head and reads and writes its whole gradient, which fewer rows would not pay for.
pub fn head_rows(vocab: usize) -> usize {
    // A multiple of 12, the rows of a register block (and of 2, so that bf16 takes the same pairs however rows are cut).
    let large = (((1 << 24) / vocab).min(252) / 12 * 12).max(12);
    ((1 << 18) / vocab / 12 * 12).clamp(large, 1020)
}

/// Tokens that are prefilled at once at most; longer prompts are appended in several passes, with the same bits.
pub const PREFILL_TOKENS: usize = 1024;

/// Bytes of one page of keys and values: [`PAGE`] positions of all layers and heads.
pub fn page_bytes(config: &Config) -> usize {
    // Keys and values are padded to whole panels of 32 columns.
    let width = config.head_dim.next_multiple_of(32);
    4 * config.n_layers * config.n_kv_heads * 2 * PAGE * width
}

/// f32 numbers that a block's forward leaves of a token.
fn kept(config: &Config) -> usize {
    let (d, q, kv, ff) = (config.d_model, config.q_width(), config.kv_width(), config.d_ff);
    let norms = if config.qk_norm { q + 2 * kv + config.n_heads + config.n_kv_heads } else { 0 };
    2 * d + 2 + 2 * q + 2 * kv + 2 * ff + norms
}

/// f32 numbers of a token in the buffers of one block, forward and, if it trains, backward.
fn one_block(config: &Config, trains: bool) -> usize {
    let (d, q, kv, ff) = (config.d_model, config.q_width(), config.kv_width(), config.d_ff);
    let forward = d + ff;
    // dx and its norm; SwiGLU's input and output; attention's output; q, k and v.
    let backward = 2 * d + 3 * ff + q + q + 2 * kv + if config.qk_norm { q + 2 * kv } else { 0 };
    forward + d + if trains { backward } else { 0 }
}

/// Elements of the matrices that are packed for the products, by layer and in the head.
fn packed_elements(config: &Config) -> usize {
    let pad = |n: usize| n.next_multiple_of(32);
    let (d, ff) = (config.d_model, config.d_ff);
    let block =
        d * pad(config.q_width() + 2 * config.kv_width()) + config.q_width() * pad(d) + d * pad(2 * ff) + ff * pad(d);
    config.n_layers * block + d * pad(config.vocab)
}

/// What `work` on a model of this shape takes.
pub fn estimate(config: &Config, work: &Work) -> Memory {
    let elements = Table::len_of(config);
    let packed = packed_elements(config) * if work.precision == Precision::Bf16 { 2 } else { 4 };
    let model = 4 * elements + packed;
    let adapters = work.lora.as_ref().map(|lora| lora.table(config).len());
    let trained = adapters.unwrap_or(elements);
    let tied = config.tied_embeddings && work.lora.is_none();
    let tied_head = |tied: bool| if tied { 4 * config.vocab * config.d_model } else { 0 };
    let own_value = usize::from(work.value_model);

    // A forward that only scores keeps one block; training keeps all, or all inputs and one block.
    let layers = match (work.trains, work.recompute) {
        (false, _) => kept(config),
        (true, false) => config.n_layers * kept(config),
        (true, true) => config.n_layers * config.d_model + kept(config),
    };
    let training =
        4 * work.packed_tokens * (layers + one_block(config, work.trains) + config.d_model) * (1 + own_value);
    // Prefill and decoding have buffers of their own, which stay.
    let decoding = 4 * PREFILL_TOKENS.max(work.sequences) * (kept(config) + one_block(config, false));
    let rows = head_rows(config.vocab);
    Memory {
        weights: model * (1 + usize::from(work.reference) + own_value) + 8 * adapters.unwrap_or(0),
        gradients: if work.trains {
            4 * trained * (1 + work.gradients_held)
                + tied_head(tied)
                + own_value * (4 * elements + tied_head(config.tied_embeddings))
        } else {
            0
        },
        optimiser: if work.trains { 8 * trained + own_value * 8 * elements } else { 0 },
        activations: training + decoding,
        kv_cache: work.pages * page_bytes(config),
        head: 4 * config.vocab * (work.sequences + rows) + 4 * rows * 7 * config.d_model,
        // Measured: the program with its tables, and some hundred bytes for each token of the vocabulary.
        other: (24 << 20) + 700 * config.vocab + (2 << 20) * work.threads,
    }
}

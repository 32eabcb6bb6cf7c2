//! What shape a model has.

use serde::{Deserialize, Serialize};

/// A decoder of the Llama kind: pre-norm, RoPE, grouped-query attention, SwiGLU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Vocabulary size.
    pub vocab: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Hidden width of the SwiGLU.
    pub d_ff: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square inside RMSNorm.
    pub norm_eps: f64,
    /// The output head is the embedding.
    pub tied_embeddings: bool,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// RMSNorm of every head's q and k before RoPE.
    pub qk_norm: bool,
    /// A scalar value head `value = w · h + b` on the final norm's output.
    pub value_head: bool,
    /// Longest context in tokens.
    pub max_positions: usize,
}

impl Config {
    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together (and of all value heads).
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

//! The shapes of models that are measured without their weights.

use ragen_models::config::{Config, Family, Rope};

/// The shape of a small model: 4 layers, width 128, vocabulary 512.
pub fn small() -> Config {
    Config {
        family: Family::Llama,
        vocab: 512,
        d_model: 128,
        n_layers: 4,
        n_heads: 4,
        n_kv_heads: 4,
        head_dim: 32,
        d_ff: 512,
        rope: Rope::plain(10_000.0),
        sliding_window: None,
        norm_eps: 1e-6,
        tied_embeddings: false,
        qkv_bias: false,
        qk_norm: false,
        value_head: false,
        max_positions: 512,
    }
}

/// The shape of SmolLM2-135M.
pub fn smollm2() -> Config {
    Config {
        family: Family::Llama,
        vocab: 49_152,
        d_model: 576,
        n_layers: 30,
        n_heads: 9,
        n_kv_heads: 3,
        head_dim: 64,
        d_ff: 1536,
        rope: Rope::plain(100_000.0),
        sliding_window: None,
        norm_eps: 1e-5,
        tied_embeddings: true,
        qkv_bias: false,
        qk_norm: false,
        value_head: false,
        max_positions: 8192,
    }
}

/// The shape of Qwen2.5-0.5B, for contexts of 4,096 tokens.
pub fn half_billion() -> Config {
    Config {
        family: Family::Qwen2,
        vocab: 151_936,
        d_model: 896,
        n_layers: 24,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        d_ff: 4864,
        rope: Rope::plain(1_000_000.0),
        sliding_window: None,
        norm_eps: 1e-6,
        tied_embeddings: true,
        qkv_bias: true,
        qk_norm: false,
        value_head: false,
        max_positions: 4096,
    }
}

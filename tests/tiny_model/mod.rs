//! The tiny model with random weights that tests of the loop play with.

use ragen_models::config::{Family, Rope};
use ragen_models::params::Params;
use ragen_models::transformer::{Config as Shape, Transformer};

/// Two layers with biases and norms of q and k.
pub fn shape(vocab: usize, max_positions: usize, value_head: bool) -> Shape {
    Shape {
        family: Family::Qwen3,
        vocab,
        d_model: 24,
        n_layers: 2,
        n_heads: 3,
        n_kv_heads: 1,
        head_dim: 8,
        d_ff: 40,
        rope: Rope::plain(500.0),
        sliding_window: None,
        norm_eps: 1e-6,
        tied_embeddings: false,
        qkv_bias: true,
        qk_norm: true,
        value_head,
        max_positions,
    }
}

/// Fresh weights whose distributions are `sharpness` times as far from uniform, so that filters drop something and no logit is shared.
pub fn weights(shape: &Shape, sharpness: f32) -> Params {
    let mut params = Transformer::initial(shape, 3);
    params.get_mut("lm_head.weight").iter_mut().for_each(|w| *w *= sharpness);
    params
}

//! The shapes of models that are measured without their weights.

use ragen_models::config::{Config, Family, Rope};
use ragen_models::params::{Params, Table};
use ragen_models::random::Key;
use std::sync::Arc;

/// Numbers that weights are made of again and again: a prime, so that no two rows are equal.
const PERIOD: usize = 99_991;

/// Random weights that are made in no time, for measurements alone: normal numbers that repeat. Drawing half a billion of their own takes a minute.
pub fn weights(config: &Config) -> Params {
    let mut params = Params::zeros(Arc::new(Table::new(config)));
    let normal: Vec<f32> = (0..PERIOD).map(|i| Key::new(1).normal(i as u64) as f32).collect();
    let table = params.table.clone();
    for entry in &table.entries {
        let values = &mut params.data[entry.range()];
        match entry.name.as_str() {
            name if name.ends_with("norm.weight") => values.fill(1.0),
            name if name.ends_with("bias") || name.starts_with("value_head") => {}
            name => {
                let table = name == "model.embed_tokens.weight" || name == "lm_head.weight";
                let deviation = if table { 0.02 } else { 1.0 / (entry.shape[1] as f32).sqrt() };
                values.iter_mut().zip(normal.iter().cycle()).for_each(|(w, x)| *w = deviation * x);
            }
        }
    }
    params
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_the_spread_of_their_matrix_and_no_equal_rows() {
        let config = Config { n_layers: 1, ..half_billion() };
        let params = weights(&config);
        let up = params.get("model.layers.0.mlp.up_proj.weight");
        let square = up.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>() / up.len() as f64;
        assert!((square * config.d_model as f64 - 1.0).abs() < 0.02, "{square}");
        let mut rows: Vec<Vec<u32>> =
            up.chunks(config.d_model).map(|row| row.iter().map(|w| w.to_bits()).collect()).collect();
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), config.d_ff);
        assert!(params.get("model.norm.weight").iter().all(|w| *w == 1.0));
    }
}

//! What a model must compute and move at least, whoever does it: the denominators of MFU and MBU.
//!
//! Only matrix products count as operations, and nothing that is computed twice: a product's backward is two of its size. So training
//! costs 6 operations a token for each weight of the layers' products, 6 a target for each weight of the head, and
//! 12 · q_width · n_layers for each pair of a query and a key that it sees.

use ragen_models::params::Table;
use ragen_models::transformer::Config;

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of device memory; 0 where operations alone are counted.
    pub bytes: f64,
}

/// Weights of the products of all layers.
pub fn layer_weights(c: &Config) -> usize {
    let (q, kv) = (c.n_heads * c.head_dim, 2 * c.n_kv_heads * c.head_dim);
    c.n_layers * c.d_model * (q + kv + q + 3 * c.d_ff)
}

/// Weights of the head.
pub fn head_weights(c: &Config) -> usize {
    c.vocab * c.d_model
}

/// Pairs of a query and a key that it sees, for `new` tokens after `before`.
pub fn pairs(before: usize, new: usize) -> usize {
    new * before + new * (new + 1) / 2
}

/// A forward over `tokens` tokens that see `pairs` keys, with the head on `targets` of them.
pub fn forward(c: &Config, tokens: usize, targets: usize, pairs: usize) -> Cost {
    let products = layer_weights(c) as f64 * tokens as f64 + head_weights(c) as f64 * targets as f64;
    let attention = 4.0 * (c.n_heads * c.head_dim * c.n_layers) as f64 * pairs as f64;
    Cost { flops: 2.0 * products + attention, bytes: 0.0 }
}

/// Forward and backward.
pub fn train(c: &Config, tokens: usize, targets: usize, pairs: usize) -> Cost {
    Cost { flops: 3.0 * forward(c, tokens, targets, pairs).flops, bytes: 0.0 }
}

/// `new` steps of decoding `batch` sequences that hold `len` tokens each at first, with elements of so many bytes: every step reads
/// all weights that it multiplies with once, and the keys and values of every sequence.
pub fn decode(c: &Config, element_bytes: usize, batch: usize, len: usize, new: usize) -> Cost {
    let embeddings = if c.tied_embeddings { 0 } else { head_weights(c) };
    let weights = (Table::len_of(c) - embeddings) as f64;
    let seen = batch as f64 * pairs(len, new) as f64;
    let of_position = (c.n_layers * 2 * c.n_kv_heads * c.head_dim) as f64;
    Cost {
        flops: forward(c, batch * new, batch * new, batch * pairs(len, new)).flops,
        bytes: element_bytes as f64 * (new as f64 * weights + seen * of_position),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::half_billion;

    #[test]
    fn costs_of_half_a_billion_parameters_are_those_computed_by_hand() {
        let c = half_billion();
        // 896 · (1152 + 896 + 3 · 4864) · 24, and 151,936 · 896.
        assert_eq!((layer_weights(&c), head_weights(&c)), (357_826_560, 136_134_656));
        // What is left are biases (24 · 1152) and norms (49 · 896).
        assert_eq!(Table::len_of(&c), 357_826_560 + 136_134_656 + 27_648 + 43_904);
        assert_eq!((pairs(0, 3), pairs(10, 1), pairs(10, 2)), (6, 11, 23));
        let one = train(&c, 1, 0, 1).flops;
        assert_eq!(one, 6.0 * 357_826_560.0 + 12.0 * 896.0 * 24.0);
        assert_eq!(train(&c, 0, 2, 0).flops, 12.0 * 136_134_656.0);
        let step = decode(&c, 2, 4, 99, 1);
        assert_eq!(step.bytes, 2.0 * 494_032_768.0 + 2.0 * 4.0 * 100.0 * 24.0 * 256.0);
        assert_eq!(step.flops, 8.0 * 493_961_216.0 + 4.0 * 896.0 * 24.0 * 400.0);
        // Two tables: the one that tokens are looked up in is not read.
        let apart = ragen_models::transformer::Config { tied_embeddings: false, ..c.clone() };
        assert_eq!(decode(&apart, 2, 4, 99, 1), step);
    }
}

//! Flat parameters (decision D7): one buffer, and a table of names, shapes and offsets.
//!
//! Gradients, Adam's moments and the reference policy are the same type over the same table. Names are those of Hugging
//! Face checkpoints, so that saving and loading are one walk over the table.

use crate::config::Config;
use std::sync::Arc;

/// One named tensor inside the flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name as in a Hugging Face checkpoint, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Shape, row-major; a linear weight is `[out, in]`.
    pub shape: Vec<usize>,
    /// First element in the flat buffer.
    pub offset: usize,
}

impl Entry {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its place in the flat buffer.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// Names, shapes and offsets of all parameters, in the order of the forward pass.
///
/// q, k and v weights of a layer lie next to each other, and so do gate and up: each group is read as one matrix.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// The entries, by ascending offset, without gaps.
    pub entries: Vec<Entry>,
}

impl Table {
    /// The table of a model of this shape.
    pub fn new(config: &Config) -> Self {
        let mut table = Table { entries: Vec::new() };
        let (d, ff, hd) = (config.d_model, config.d_ff, config.head_dim);
        let (q, kv) = (config.q_width(), config.kv_width());
        table.push("model.embed_tokens.weight".into(), &[config.vocab, d]);
        for layer in 0..config.n_layers {
            let mut push = |name: &str, shape: &[usize]| table.push(format!("model.layers.{layer}.{name}"), shape);
            push("input_layernorm.weight", &[d]);
            push("self_attn.q_proj.weight", &[q, d]);
            push("self_attn.k_proj.weight", &[kv, d]);
            push("self_attn.v_proj.weight", &[kv, d]);
            if config.qkv_bias {
                push("self_attn.q_proj.bias", &[q]);
                push("self_attn.k_proj.bias", &[kv]);
                push("self_attn.v_proj.bias", &[kv]);
            }
            if config.qk_norm {
                push("self_attn.q_norm.weight", &[hd]);
                push("self_attn.k_norm.weight", &[hd]);
            }
            push("self_attn.o_proj.weight", &[d, q]);
            push("post_attention_layernorm.weight", &[d]);
            push("mlp.gate_proj.weight", &[ff, d]);
            push("mlp.up_proj.weight", &[ff, d]);
            push("mlp.down_proj.weight", &[d, ff]);
        }
        table.push("model.norm.weight".into(), &[d]);
        if !config.tied_embeddings {
            table.push("lm_head.weight".into(), &[config.vocab, d]);
        }
        if config.value_head {
            table.push("value_head.weight".into(), &[1, d]);
            table.push("value_head.bias".into(), &[1]);
        }
        table
    }

    /// Number of elements of a model of this shape, counted without making its table.
    pub fn len_of(config: &Config) -> usize {
        let (d, q, kv, ff, hd) = (config.d_model, config.q_width(), config.kv_width(), config.d_ff, config.head_dim);
        let bias = if config.qkv_bias { q + 2 * kv } else { 0 };
        let norms = 2 * d + if config.qk_norm { 2 * hd } else { 0 };
        let block = d * (q + 2 * kv) + bias + norms + q * d + 3 * d * ff;
        let heads = if config.tied_embeddings { 1 } else { 2 };
        config.n_layers * block + heads * config.vocab * d + d + if config.value_head { d + 1 } else { 0 }
    }

    /// Appends a tensor behind all others.
    pub(crate) fn push(&mut self, name: String, shape: &[usize]) {
        let offset = self.len();
        self.entries.push(Entry { name, shape: shape.to_vec(), offset });
    }

    /// Number of elements in all.
    pub fn len(&self) -> usize {
        self.entries.last().map_or(0, |e| e.range().end)
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry called `name`.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.name == name)
    }
}

/// A flat buffer over a [`Table`]: weights, gradients or moments.
#[derive(Clone, Debug)]
pub struct Params {
    /// What lies where.
    pub table: Arc<Table>,
    /// The elements of all tensors, `[table.len()]`.
    pub data: Vec<f32>,
}

impl Params {
    /// All zeros.
    pub fn zeros(table: Arc<Table>) -> Self {
        let data = vec![0.0; table.len()];
        Params { table, data }
    }

    /// The elements of the tensor called `name`.
    ///
    /// **Panics** if there is none.
    pub fn get(&self, name: &str) -> &[f32] {
        let entry = self.table.find(name).unwrap_or_else(|| panic!("no parameter {name}"));
        &self.data[entry.range()]
    }

    /// The elements of the tensor called `name`, to write.
    ///
    /// **Panics** if there is none.
    pub fn get_mut(&mut self, name: &str) -> &mut [f32] {
        let range = self.table.find(name).unwrap_or_else(|| panic!("no parameter {name}")).range();
        &mut self.data[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_without_a_table_is_the_tables() {
        for patch in [
            r#""model_type": "llama""#,
            r#""model_type": "qwen2", "tie_word_embeddings": true"#,
            r#""model_type": "qwen3", "head_dim": 24, "value_head": true"#,
        ] {
            let json = format!(
                r#"{{{patch}, "vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
                "num_key_value_heads": 2, "intermediate_size": 80, "rms_norm_eps": 1e-6, "hidden_act": "silu",
                "max_position_embeddings": 128, "rope_theta": 10000.0}}"#
            );
            let config = Config::from_hf_json(&json).unwrap();
            assert_eq!(Table::len_of(&config), Table::new(&config).len(), "{patch}");
        }
    }
}

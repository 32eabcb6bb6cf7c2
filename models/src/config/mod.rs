//! What shape a model has, and its spelling in a Hugging Face `config.json`.
//!
//! Knows sizes only; the weights of that shape are laid out by [`crate::params::Table`].

mod hf;
mod rope;

pub use hf::TiedEmbeddings;
pub use rope::{Rope, RopeScaling, Yarn};

use serde::{Deserialize, Serialize};
use std::fmt;

/// Whose layout a checkpoint has: what `model_type` says in `config.json`, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// Llama 1 to 3, SmolLM2 and many more: no biases, no norm of q and k, full attention.
    Llama,
    /// Qwen 2 and 2.5: biases on q, k and v.
    Qwen2,
    /// Qwen 3: RMSNorm of q and k.
    Qwen3,
    /// Mistral: Llama with one sliding window in all layers, or none.
    Mistral,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 4] = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Mistral];

    /// The family of a model with full attention that has these parts.
    pub fn of(qkv_bias: bool, qk_norm: bool) -> Self {
        match (qk_norm, qkv_bias) {
            (true, _) => Family::Qwen3,
            (false, true) => Family::Qwen2,
            (false, false) => Family::Llama,
        }
    }

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Mistral => "mistral",
        }
    }

    /// Its class in transformers.
    pub fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::Mistral => "MistralForCausalLM",
        }
    }
}

/// Attention that looks back a limited way in some layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingWindow {
    /// Keys that a query sees, itself included: those at positions j with i − size < j ≤ i.
    pub size: usize,
    /// Which layers look back so; the others see everything. At least one does.
    pub layers: Vec<bool>,
}

/// Most blocks that a model can have; a bound on what a few bytes of a file make us list.
const MAX_LAYERS: usize = 1 << 16;

/// A decoder of the Llama kind: pre-norm, RoPE, grouped-query attention, SwiGLU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Whose layout it has. It decides no number: `qkv_bias`, `qk_norm` and `sliding_window` do, and must be what it allows.
    pub family: Family,
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
    /// Rotary position embedding.
    pub rope: Rope,
    /// Layers with sliding-window attention; `None`: all layers see everything.
    pub sliding_window: Option<SlidingWindow>,
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
    /// Longest context in tokens, that of `max_position_embeddings`.
    pub max_positions: usize,
}

/// A size that no model can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key at fault: a field of [`Config`], or a key of `config.json` when the sizes came from there.
    pub key: &'static str,
    /// What is wrong with its value, and what would be right.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason)
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not a JSON object.
    #[error("not a JSON object: {0}")]
    Syntax(String),
    /// A key that every model has is absent.
    #[error("the key {0} is missing")]
    Missing(String),
    /// A key holds a value of the wrong type.
    #[error("{key} is {value}, which is not {expected}")]
    Type {
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// What it should be, with its article.
        expected: &'static str,
    },
    /// A model that this engine does not compute.
    #[error("{key} is {value}, which is not supported; {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// What is supported.
        supported: String,
    },
    /// Sizes that contradict themselves or each other; every one of them is listed.
    #[error("impossible sizes: {}", .0.iter().map(Fault::to_string).collect::<Vec<_>>().join("; "))]
    Impossible(Vec<Fault>),
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

    /// Refuses sizes that no model can have.
    ///
    /// **Errors** [`ConfigError::Impossible`] with every fault found, each under the name of its field.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut faults = Vec::new();
        let mut fault = |key, reason: String| faults.push(Fault { key, reason });
        let sizes = [
            ("vocab", self.vocab),
            ("d_model", self.d_model),
            ("n_heads", self.n_heads),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("d_ff", self.d_ff),
            ("max_positions", self.max_positions),
        ];
        if self.n_layers == 0 || self.n_layers > MAX_LAYERS {
            fault("n_layers", format!("{} is not between 1 and {MAX_LAYERS}", self.n_layers));
        }
        for (key, size) in sizes {
            // Token ids and positions are u32; the same bound keeps every product of two sizes within a u64.
            if size == 0 || size > u32::MAX as usize {
                fault(key, format!("{size} is not between 1 and {}", u32::MAX));
            }
        }
        if self.n_kv_heads != 0 && !self.n_heads.is_multiple_of(self.n_kv_heads) {
            fault("n_kv_heads", format!("{} does not divide the {} query heads", self.n_kv_heads, self.n_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            fault("head_dim", format!("{} is odd, but RoPE turns pairs: it must be even", self.head_dim));
        }
        for Fault { key, reason } in self.rope.faults(self.head_dim).into_iter().chain(self.family_faults()) {
            fault(key, reason);
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            fault("norm_eps", format!("{} is not a positive number", self.norm_eps));
        }
        if faults.is_empty() && self.parameter_count().is_none_or(|n| n > (isize::MAX / 4) as u128) {
            let reason = format!("{} layers of this width do not fit any memory", self.n_layers);
            faults.push(Fault { key: "n_layers", reason });
        }
        if faults.is_empty() { Ok(()) } else { Err(ConfigError::Impossible(faults)) }
    }

    /// Parts that the family does not have, or lacks though it has them.
    fn family_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |key, reason: String| faults.push(Fault { key, reason });
        let name = self.family.model_type();
        if self.qk_norm != (self.family == Family::Qwen3) {
            fault(
                "qk_norm",
                format!("{} is not what {name} models have: qwen3 has the norms, the others do not", self.qk_norm),
            );
        }
        match (self.family, self.qkv_bias) {
            (Family::Qwen2, false) => fault("qkv_bias", "false is not what qwen2 models have".into()),
            (Family::Llama | Family::Mistral, true) => {
                fault("qkv_bias", format!("true is not what {name} models have; qwen2 has such biases"));
            }
            _ => {}
        }
        let Some(SlidingWindow { size, layers }) = &self.sliding_window else { return faults };
        if *size == 0 || *size > u32::MAX as usize {
            fault("sliding_window", format!("{size} is not between 1 and {}", u32::MAX));
        }
        if layers.len() != self.n_layers {
            fault(
                "sliding_window",
                format!("{} layers are told apart, but the model has {}", layers.len(), self.n_layers),
            );
        } else if !layers.contains(&true) {
            fault("sliding_window", "no layer has it".into());
        }
        match self.family {
            Family::Llama => {
                fault("sliding_window", "llama models have full attention; mistral and qwen have windows".into())
            }
            Family::Mistral if layers.contains(&false) => {
                fault("sliding_window", "mistral models have it in all layers or in none".into());
            }
            _ => {}
        }
        faults
    }

    /// How many keys a query of this layer sees at most, itself included; `None`: all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window.as_ref().filter(|sliding| sliding.layers[layer]).map(|sliding| sliding.size)
    }

    /// Number of parameters without biases and norms, or `None` beyond the largest integer.
    fn parameter_count(&self) -> Option<u128> {
        let product = |a: usize, b: usize| a as u128 * b as u128;
        let q = product(self.n_heads, self.head_dim);
        let kv = product(self.n_kv_heads, self.head_dim);
        let attention = (self.d_model as u128).checked_mul(2 * q + 2 * kv)?;
        let mlp = product(self.d_model, self.d_ff).checked_mul(3)?;
        let layers = attention.checked_add(mlp)?.checked_mul(self.n_layers as u128)?;
        layers.checked_add(2 * product(self.vocab, self.d_model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_all_listed_under_their_fields() {
        let small = Config {
            family: Family::Qwen2,
            vocab: 96,
            d_model: 32,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 8,
            d_ff: 72,
            rope: Rope::plain(500.0),
            sliding_window: None,
            norm_eps: 1e-5,
            tied_embeddings: false,
            qkv_bias: true,
            qk_norm: false,
            value_head: false,
            max_positions: 128,
        };
        assert_eq!(small.check(), Ok(()));
        let broken = Config {
            vocab: 0,
            n_kv_heads: 0,
            head_dim: 3,
            rope: Rope::plain(f64::NAN),
            norm_eps: -1.0,
            qk_norm: true,
            sliding_window: Some(SlidingWindow { size: 0, layers: vec![true] }),
            ..small.clone()
        };
        let Err(ConfigError::Impossible(faults)) = broken.check() else { panic!() };
        let keys: Vec<_> = faults.iter().map(|fault| fault.key).collect();
        let wanted = [
            "vocab",
            "n_kv_heads",
            "head_dim",
            "rope_theta",
            "qk_norm",
            "sliding_window",
            "sliding_window",
            "norm_eps",
        ];
        assert_eq!(keys, wanted);
        let most = u32::MAX as usize;
        let huge = Config { d_model: most, n_layers: most, d_ff: most, n_heads: most - 1, head_dim: most - 1, ..small };
        assert!(huge.check().unwrap_err().to_string().contains("n_layers"));
    }
}

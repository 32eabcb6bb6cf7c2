//! What shape a model has, and its spelling in a Hugging Face `config.json`.
//!
//! Knows sizes only; the weights of that shape are laid out by [`crate::params::Table`].

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

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
    Missing(&'static str),
    /// A key holds a value of the wrong type.
    #[error("{key} is {value}, which is not {expected}")]
    Type {
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
        /// What it should be, with its article.
        expected: &'static str,
    },
    /// A model that this engine does not compute.
    #[error("{key} is {value}, which is not supported; {supported}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
        /// What is supported.
        supported: &'static str,
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
            ("n_layers", self.n_layers),
            ("n_heads", self.n_heads),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("d_ff", self.d_ff),
            ("max_positions", self.max_positions),
        ];
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
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            fault("rope_theta", format!("{} is not a positive number", self.rope_theta));
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

    /// Reads a Hugging Face `config.json` of type llama, qwen2 or qwen3.
    ///
    /// Two keys of our own are optional: `value_head` (false) says that a scalar value head is among the weights, and
    /// `qkv_bias` overrides what the type says about biases.
    ///
    /// **Errors** what this engine would compute wrongly is refused by name: other types and activations, scaled RoPE,
    /// sliding windows, biases elsewhere than on q, k and v, quantised weights; impossible sizes as in [`Config::check`],
    /// under the file's own keys.
    pub fn from_hf_json(text: &str) -> Result<Config, ConfigError> {
        let object: Map<String, Value> = serde_json::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string()))?;
        let json = Json(&object);
        let model_type = json.text("model_type")?.ok_or(ConfigError::Missing("model_type"))?;
        if !matches!(model_type, "llama" | "qwen2" | "qwen3") {
            return Err(json.unsupported("model_type", "the types llama, qwen2 and qwen3 are"));
        }
        json.only("hidden_act", "silu", "only \"silu\" is")?;
        for key in ["attention_bias", "mlp_bias"] {
            json.only(key, false, "biases can be on q, k and v alone (qwen2)")?;
        }
        json.only("use_sliding_window", false, "only full attention is")?;
        json.only("partial_rotary_factor", 1.0, "only RoPE over the whole head is")?;
        if let Some(kinds) = json.get("layer_types")
            && !kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "full_attention"))
        {
            return Err(json.unsupported("layer_types", "only full_attention is"));
        }
        if json.get("quantization_config").is_some() {
            return Err(json.unsupported("quantization_config", "only f32, bf16 and f16 weights are"));
        }

        let d_model = json.size("hidden_size")?;
        let n_heads = json.size("num_attention_heads")?;
        let head_dim = match json.optional_size("head_dim")? {
            Some(given) => given,
            None if model_type == "qwen3" => 128, // The default of that type, whatever the width.
            None if n_heads != 0 && d_model.is_multiple_of(n_heads) => d_model / n_heads,
            None => {
                let reason = format!("{n_heads} does not divide hidden_size {d_model}, and head_dim is not given");
                return Err(ConfigError::Impossible(vec![Fault { key: "num_attention_heads", reason }]));
            }
        };
        let n_kv_heads = match json.optional_size("num_key_value_heads")? {
            Some(given) => given,
            None if model_type == "llama" => n_heads,
            None => return Err(ConfigError::Missing("num_key_value_heads")),
        };
        let config = Config {
            vocab: json.size("vocab_size")?,
            d_model,
            n_layers: json.size("num_hidden_layers")?,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff: json.size("intermediate_size")?,
            rope_theta: json.rope_theta()?,
            norm_eps: json.number("rms_norm_eps")?.ok_or(ConfigError::Missing("rms_norm_eps"))?,
            tied_embeddings: json.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: json.flag("qkv_bias")?.unwrap_or(model_type == "qwen2"),
            qk_norm: model_type == "qwen3",
            value_head: json.flag("value_head")?.unwrap_or(false),
            max_positions: json.size("max_position_embeddings")?,
        };
        config.check().map_err(in_hf_keys)?;
        Ok(config)
    }

    /// Writes a Hugging Face `config.json`, in a fixed order of keys; [`Config::from_hf_json`] reads the same back.
    pub fn to_hf_json(&self) -> String {
        let (model_type, architecture) = match (self.qk_norm, self.qkv_bias) {
            (true, _) => ("qwen3", "Qwen3ForCausalLM"),
            (false, true) => ("qwen2", "Qwen2ForCausalLM"),
            (false, false) => ("llama", "LlamaForCausalLM"),
        };
        let mut object = serde_json::json!({
            "architectures": [architecture],
            "model_type": model_type,
            "hidden_act": "silu",
            "vocab_size": self.vocab,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.d_ff,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": self.tied_embeddings,
            "torch_dtype": "float32",
        });
        if self.value_head {
            object["value_head"] = true.into();
        }
        if self.qk_norm && self.qkv_bias {
            // No published type has both, so the type alone cannot say it.
            object["qkv_bias"] = true.into();
        }
        format!("{object:#}\n")
    }
}

/// Renames faults from our fields to the keys of `config.json`.
fn in_hf_keys(error: ConfigError) -> ConfigError {
    let ConfigError::Impossible(mut faults) = error else { return error };
    for fault in &mut faults {
        fault.key = match fault.key {
            "vocab" => "vocab_size",
            "d_model" => "hidden_size",
            "n_layers" => "num_hidden_layers",
            "n_heads" => "num_attention_heads",
            "n_kv_heads" => "num_key_value_heads",
            "d_ff" => "intermediate_size",
            "norm_eps" => "rms_norm_eps",
            "max_positions" => "max_position_embeddings",
            key => key,
        };
    }
    ConfigError::Impossible(faults)
}

/// Typed access to the keys of a JSON object; `null` counts as absent, as it does in Hugging Face files.
#[derive(Clone, Copy)]
struct Json<'a>(&'a Map<String, Value>);

impl<'a> Json<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(
        self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| ConfigError::Type { key, value: value.to_string(), expected })
    }

    fn text(self, key: &'static str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(key, "a text", Value::as_str)
    }

    fn flag(self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn number(self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn optional_size(self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a whole number", |value| value.as_u64().and_then(|n| n.try_into().ok()))
    }

    fn size(self, key: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(key)?.ok_or(ConfigError::Missing(key))
    }

    fn unsupported(self, key: &'static str, supported: &'static str) -> ConfigError {
        ConfigError::Unsupported { key, value: self.0[key].to_string(), supported }
    }

    /// Accepts an absent key or exactly this value.
    fn only(self, key: &'static str, value: impl Into<Value>, supported: &'static str) -> Result<(), ConfigError> {
        let wanted = value.into();
        match self.get(key) {
            Some(given) if *given != wanted && given.as_f64().is_none_or(|n| Some(n) != wanted.as_f64()) => {
                Err(self.unsupported(key, supported))
            }
            _ => Ok(()),
        }
    }

    /// The base of RoPE, from the top level or from `rope_parameters`; a scaling of any kind is refused.
    fn rope_theta(self) -> Result<f64, ConfigError> {
        let mut theta = self.number("rope_theta")?;
        for key in ["rope_scaling", "rope_parameters"] {
            let Some(inner) = self.typed(key, "an object", Value::as_object)?.map(Json) else { continue };
            for kind in ["rope_type", "type"] {
                if inner.text(kind)?.is_some_and(|value| value != "default") {
                    return Err(self.unsupported(key, "only the plain RoPE (rope_type default) is"));
                }
            }
            inner.only("partial_rotary_factor", 1.0, "only RoPE over the whole head is")?;
            theta = inner.number("rope_theta")?.or(theta);
        }
        Ok(theta.unwrap_or(10_000.0)) // The default of all three types.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Config {
        Config {
            vocab: 96,
            d_model: 32,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 8,
            d_ff: 72,
            rope_theta: 500.0,
            norm_eps: 1e-5,
            tied_embeddings: false,
            qkv_bias: false,
            qk_norm: false,
            value_head: false,
            max_positions: 128,
        }
    }

    /// The small model's file with some keys replaced; `null` removes one.
    fn patched(patch: Value) -> Result<Config, ConfigError> {
        let mut object: Value = serde_json::from_str(&small().to_hf_json()).unwrap();
        for (key, value) in patch.as_object().unwrap() {
            object[key] = value.clone();
        }
        Config::from_hf_json(&object.to_string())
    }

    #[test]
    fn every_shape_comes_back_from_its_file() {
        for bits in 0..16u32 {
            let flag = |bit: u32| bits >> bit & 1 == 1;
            let config = Config {
                tied_embeddings: flag(0),
                qkv_bias: flag(1),
                qk_norm: flag(2),
                value_head: flag(3),
                head_dim: 10,
                norm_eps: 1e-6,
                rope_theta: 1e6,
                ..small()
            };
            assert_eq!(Config::from_hf_json(&config.to_hf_json()), Ok(config));
        }
    }

    #[test]
    fn both_spellings_of_rope_and_a_derived_head_width_are_read() {
        let config = patched(serde_json::json!({"rope_theta": null, "head_dim": null,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}}))
        .unwrap();
        assert_eq!((config.rope_theta, config.head_dim), (1e6, 8));
        let config = patched(serde_json::json!({"rope_theta": null, "num_key_value_heads": null})).unwrap();
        assert_eq!((config.rope_theta, config.n_kv_heads), (10_000.0, 4));
        let qwen = patched(serde_json::json!({"model_type": "qwen2", "use_sliding_window": false,
            "sliding_window": 64, "layer_types": ["full_attention", "full_attention"]}))
        .unwrap();
        assert!(qwen.qkv_bias && !qwen.qk_norm);
        let qwen = patched(serde_json::json!({"model_type": "qwen3", "head_dim": null})).unwrap();
        assert!(!qwen.qkv_bias && qwen.qk_norm && qwen.head_dim == 128);
    }

    #[test]
    fn refusals_name_the_key_and_the_value() {
        for (patch, message) in [
            (
                serde_json::json!({"model_type": "mistral"}),
                "model_type is \"mistral\", which is not supported; the types llama, qwen2 and qwen3 are",
            ),
            (
                serde_json::json!({"hidden_act": "gelu"}),
                "hidden_act is \"gelu\", which is not supported; only \"silu\" is",
            ),
            (
                serde_json::json!({"rope_scaling": {"type": "linear", "factor": 2.5}}),
                "rope_scaling is {\"type\":\"linear\",\"factor\":2.5}, which is not supported; only the plain RoPE \
                 (rope_type default) is",
            ),
            (
                serde_json::json!({"use_sliding_window": true}),
                "use_sliding_window is true, which is not supported; only full attention is",
            ),
            (
                serde_json::json!({"attention_bias": true}),
                "attention_bias is true, which is not supported; biases can be on q, k and v alone (qwen2)",
            ),
            (serde_json::json!({"vocab_size": "96"}), "vocab_size is \"96\", which is not a whole number"),
            (serde_json::json!({"vocab_size": 9.5}), "vocab_size is 9.5, which is not a whole number"),
            (serde_json::json!({"intermediate_size": null}), "the key intermediate_size is missing"),
            (
                serde_json::json!({"hidden_size": 34, "head_dim": null}),
                "impossible sizes: num_attention_heads: 4 does not divide hidden_size 34, and head_dim is not given",
            ),
            (
                serde_json::json!({"num_key_value_heads": 3, "head_dim": 7}),
                "impossible sizes: num_key_value_heads: 3 does not divide the 4 query heads; head_dim: 7 is odd, but \
                 RoPE turns pairs: it must be even",
            ),
        ] {
            assert_eq!(patched(patch).unwrap_err().to_string(), message);
        }
        assert!(matches!(Config::from_hf_json("[1]"), Err(ConfigError::Syntax(_))));
        assert!(matches!(Config::from_hf_json("{"), Err(ConfigError::Syntax(_))));
    }

    #[test]
    fn impossible_sizes_are_all_listed_under_their_fields() {
        assert_eq!(small().check(), Ok(()));
        let broken = Config { vocab: 0, n_kv_heads: 0, head_dim: 3, rope_theta: f64::NAN, norm_eps: -1.0, ..small() };
        let Err(ConfigError::Impossible(faults)) = broken.check() else { panic!() };
        let keys: Vec<_> = faults.iter().map(|fault| fault.key).collect();
        assert_eq!(keys, ["vocab", "n_kv_heads", "head_dim", "rope_theta", "norm_eps"]);
        let most = u32::MAX as usize;
        let huge =
            Config { d_model: most, n_layers: most, d_ff: most, n_heads: most - 1, head_dim: most - 1, ..small() };
        assert!(huge.check().unwrap_err().to_string().contains("n_layers"));
    }
}

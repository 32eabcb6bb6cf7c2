//! A configuration as Hugging Face's `config.json` spells it.
//!
//! Defaults of absent keys are those of the configuration classes of transformers 5. A key that would change the computation and is
//! not computed here is refused by name; keys that say nothing about the computation are passed over.

use super::{Config, ConfigError, Family, Fault, MAX_LAYERS, Rope, RopeScaling, SlidingWindow, Yarn};
use serde_json::{Map, Value, json};

/// What `config.json` says about the output head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiedEmbeddings {
    /// `tie_word_embeddings` is there.
    Said(bool),
    /// It is not: the weights tell, by having `lm_head.weight` or not.
    Unsaid,
}

impl Config {
    /// Reads a Hugging Face `config.json` of type llama, qwen2, qwen3 or mistral.
    ///
    /// Two keys of our own are optional: `value_head` (false) says that a scalar value head is among the weights, and
    /// `qkv_bias` overrides what the type says about biases (a llama or mistral that has them is read as the qwen2 that it is). An absent `tie_word_embeddings` counts as false, the
    /// default of all four types; see [`Config::from_hf_json_of_weights`].
    ///
    /// **Errors** what this engine would compute wrongly is refused by name: other types, architectures, activations and kinds of RoPE,
    /// biases elsewhere than on q, k and v, quantised weights; impossible sizes as in [`Config::check`], under the file's own keys.
    pub fn from_hf_json(text: &str) -> Result<Config, ConfigError> {
        Ok(Config::from_hf_json_of_weights(text)?.0)
    }

    /// As [`Config::from_hf_json`], and what the file says about the output head, for one who can look at the weights.
    ///
    /// **Errors** as there.
    pub fn from_hf_json_of_weights(text: &str) -> Result<(Config, TiedEmbeddings), ConfigError> {
        let object: Map<String, Value> = serde_json::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string()))?;
        let json = Json { object: &object, within: "" };
        let family = json.family()?;
        json.refuse_what_is_not_computed(family)?;
        let defaults = Defaults::of(family);

        let d_model = json.size("hidden_size")?;
        let n_heads = json.size("num_attention_heads")?;
        let n_layers = json.size("num_hidden_layers")?;
        let max_positions = json.optional_size("max_position_embeddings")?.unwrap_or(defaults.max_positions);
        let head_dim = match json.optional_size("head_dim")?.or(defaults.head_dim) {
            Some(given) => given,
            None if n_heads != 0 && d_model.is_multiple_of(n_heads) => d_model / n_heads,
            None => {
                let reason = format!("{n_heads} does not divide hidden_size {d_model}, and head_dim is not given");
                return Err(ConfigError::Impossible(vec![Fault { key: "num_attention_heads", reason }]));
            }
        };
        let n_kv_heads = match json.optional_size("num_key_value_heads")? {
            Some(given) => given,
            None if json.says_null("num_key_value_heads") => n_heads,
            None => defaults.n_kv_heads.unwrap_or(n_heads),
        };
        let sliding_window = json.sliding_window(family, n_layers)?;
        let qkv_bias = json.flag("qkv_bias")?.unwrap_or(family == Family::Qwen2);
        // Where our own key says otherwise than the type, another type has just these parts.
        let family = match (family, qkv_bias) {
            (Family::Llama | Family::Mistral, true) => Family::Qwen2,
            (Family::Qwen2, false) if sliding_window.is_none() => Family::Llama,
            _ => family,
        };
        let tied = json.flag("tie_word_embeddings")?.map_or(TiedEmbeddings::Unsaid, TiedEmbeddings::Said);
        let config = Config {
            family,
            vocab: json.size("vocab_size")?,
            d_model,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff: json.size("intermediate_size")?,
            rope: json.rope(max_positions)?,
            sliding_window,
            norm_eps: json.number("rms_norm_eps")?.unwrap_or(1e-6),
            tied_embeddings: tied == TiedEmbeddings::Said(true),
            qkv_bias,
            qk_norm: family == Family::Qwen3,
            value_head: json.flag("value_head")?.unwrap_or(false),
            max_positions,
        };
        config.check().map_err(in_hf_keys)?;
        Ok((config, tied))
    }

    /// Writes a Hugging Face `config.json` beside f32 weights, in a fixed order of keys; [`Config::from_hf_json`] reads the same back.
    pub fn to_hf_json(&self) -> String {
        self.to_hf_json_of("float32")
    }

    /// As [`Config::to_hf_json`], beside weights of another `torch_dtype`.
    pub fn to_hf_json_of(&self, torch_dtype: &str) -> String {
        let mut object = json!({
            "architectures": [self.family.architecture()],
            "model_type": self.family.model_type(),
            "hidden_act": "silu",
            "vocab_size": self.vocab,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.d_ff,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope.theta,
        });
        if let Some(scaling) = scaling_in_hf(&self.rope.scaling) {
            object["rope_scaling"] = scaling;
        }
        match (&self.sliding_window, self.family) {
            // An absent window would be 4096 there.
            (window, Family::Mistral) => object["sliding_window"] = window.as_ref().map(|window| window.size).into(),
            (Some(window), _) => {
                let kind = |sliding| if sliding { "sliding_attention" } else { "full_attention" };
                object["use_sliding_window"] = true.into();
                object["sliding_window"] = window.size.into();
                object["max_window_layers"] = window.layers.iter().position(|&sliding| sliding).into();
                object["layer_types"] = window.layers.iter().map(|&sliding| kind(sliding)).collect();
            }
            (None, _) => {}
        }
        object["rms_norm_eps"] = self.norm_eps.into();
        object["tie_word_embeddings"] = self.tied_embeddings.into();
        object["torch_dtype"] = torch_dtype.into();
        if self.value_head {
            object["value_head"] = true.into();
        }
        if self.family == Family::Qwen3 && self.qkv_bias {
            // No published type has both, so the type alone cannot say it.
            object["qkv_bias"] = true.into();
        }
        format!("{object:#}\n")
    }
}

/// What the configuration class of a family takes for absent keys.
struct Defaults {
    head_dim: Option<usize>,
    n_kv_heads: Option<usize>,
    max_positions: usize,
}

impl Defaults {
    fn of(family: Family) -> Self {
        let (head_dim, n_kv_heads, max_positions) = match family {
            Family::Llama => (None, None, 2048),
            Family::Qwen2 => (None, Some(32), 32_768),
            Family::Qwen3 => (Some(128), Some(32), 32_768),
            Family::Mistral => (None, Some(8), 131_072),
        };
        Defaults { head_dim, n_kv_heads, max_positions }
    }
}

/// The object `rope_scaling`, unless there is nothing to say.
fn scaling_in_hf(scaling: &RopeScaling) -> Option<Value> {
    Some(match scaling {
        RopeScaling::Default => return None,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Dynamic { factor } => json!({"rope_type": "dynamic", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_positions,
        }),
        RopeScaling::Yarn(yarn) => {
            let mut object = json!({
                "rope_type": "yarn",
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original_max_positions,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
            });
            let optional = [
                ("attention_factor", yarn.attention_factor),
                ("mscale", yarn.mscale),
                ("mscale_all_dim", yarn.mscale_all_dim),
            ];
            for (key, value) in optional {
                if let Some(value) = value {
                    object[key] = value.into();
                }
            }
            if !yarn.truncate {
                object["truncate"] = false.into();
            }
            object
        }
    })
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

/// Typed access to the keys of a JSON object; `null` counts as absent, as it mostly does in Hugging Face files.
#[derive(Clone, Copy)]
struct Json<'a> {
    object: &'a Map<String, Value>,
    /// The key of this object with a dot, or nothing at the top.
    within: &'static str,
}

impl<'a> Json<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn says_null(self, key: &str) -> bool {
        self.object.get(key).is_some_and(Value::is_null)
    }

    fn name(self, key: &str) -> String {
        format!("{}{key}", self.within)
    }

    fn typed<T>(
        self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| ConfigError::Type {
            key: self.name(key),
            value: value.to_string(),
            expected,
        })
    }

    fn text(self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(key, "a text", Value::as_str)
    }

    fn flag(self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn number(self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn optional_size(self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a whole number", |value| value.as_u64().and_then(|n| n.try_into().ok()))
    }

    fn texts(self, key: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        self.typed(key, "a list of texts", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    fn size(self, key: &str) -> Result<usize, ConfigError> {
        self.optional_size(key)?.ok_or_else(|| ConfigError::Missing(self.name(key)))
    }

    fn unsupported(self, key: &str, supported: impl Into<String>) -> ConfigError {
        let value = self.object.get(key).unwrap_or(&Value::Null).to_string();
        ConfigError::Unsupported { key: self.name(key), value, supported: supported.into() }
    }

    /// Accepts an absent key or exactly this value.
    fn only(self, key: &str, value: impl Into<Value>, supported: &'static str) -> Result<(), ConfigError> {
        let wanted = value.into();
        match self.get(key) {
            Some(given) if *given != wanted && given.as_f64().is_none_or(|n| Some(n) != wanted.as_f64()) => {
                Err(self.unsupported(key, supported))
            }
            _ => Ok(()),
        }
    }

    fn family(self) -> Result<Family, ConfigError> {
        let name = self.text("model_type")?.ok_or_else(|| ConfigError::Missing("model_type".into()))?;
        let family = Family::ALL.into_iter().find(|family| family.model_type() == name);
        let family =
            family.ok_or_else(|| self.unsupported("model_type", "the types llama, qwen2, qwen3 and mistral are"))?;
        // A classifier or an encoder of the same type has the same sizes, but computes something else.
        let wanted = family.architecture();
        if self.texts("architectures")?.is_some_and(|names| names.iter().any(|name| !name.eq_ignore_ascii_case(wanted)))
        {
            return Err(self.unsupported("architectures", format!("only {wanted} is for model_type {name}")));
        }
        Ok(family)
    }

    fn refuse_what_is_not_computed(self, family: Family) -> Result<(), ConfigError> {
        self.only("hidden_act", "silu", "only \"silu\" is")?;
        self.only(
            "attention_bias",
            false,
            "it adds a bias to o_proj too, and biases can be on q, k and v alone (qwen2)",
        )?;
        self.only("mlp_bias", false, "biases can be on q, k and v alone (qwen2)")?;
        self.only("partial_rotary_factor", 1.0, "only RoPE over the whole head is")?;
        if self.get("quantization_config").is_some() {
            return Err(self.unsupported("quantization_config", "only f32, bf16 and f16 weights are"));
        }
        if family == Family::Llama && self.get("sliding_window").is_some() {
            let supported =
                "llama models have full attention: say null, or model_type mistral, whose layers all have the window";
            return Err(self.unsupported("sliding_window", supported));
        }
        if matches!(family, Family::Llama | Family::Mistral) {
            self.only("use_sliding_window", false, "it is a key of qwen2 and qwen3")?;
        }
        Ok(())
    }

    /// Which layers look back how far. In qwen2 and qwen3 `layer_types` says which, else those from `max_window_layers` on.
    fn sliding_window(self, family: Family, n_layers: usize) -> Result<Option<SlidingWindow>, ConfigError> {
        let size = self.optional_size("sliding_window")?;
        let size = match family {
            Family::Llama => None,
            Family::Mistral if self.says_null("sliding_window") => None,
            Family::Mistral => Some(size.unwrap_or(4096)),
            Family::Qwen2 | Family::Qwen3 if self.flag("use_sliding_window")? != Some(true) => None,
            Family::Qwen2 | Family::Qwen3 if self.says_null("sliding_window") => None,
            Family::Qwen2 | Family::Qwen3 => Some(size.unwrap_or(4096)),
        };
        let first = match family {
            Family::Qwen2 | Family::Qwen3 => self.optional_size("max_window_layers")?.unwrap_or(28),
            Family::Llama | Family::Mistral => 0,
        };
        if n_layers > MAX_LAYERS {
            return Ok(None); // Refused by the check of all sizes.
        }
        let kinds = self.texts("layer_types")?;
        let layers: Vec<bool> = match &kinds {
            None if size.is_none() => return Ok(None),
            None if first >= n_layers => return Ok(None),
            None => (0..n_layers).map(|layer| layer >= first).collect(),
            Some(kinds) => {
                let layers = kinds.iter().map(|kind| match *kind {
                    "sliding_attention" => Some(true),
                    "full_attention" => Some(false),
                    _ => None,
                });
                let layers: Option<Vec<bool>> = layers.collect();
                let known = "the kinds full_attention and sliding_attention are";
                let layers = layers.ok_or_else(|| self.unsupported("layer_types", known))?;
                if layers.len() != n_layers {
                    return Err(
                        self.unsupported("layer_types", format!("one kind for each of the {n_layers} layers is"))
                    );
                }
                layers
            }
        };
        if family == Family::Mistral && layers.contains(&size.is_none()) {
            let supported = "mistral has the window of sliding_window in all layers, or in none when that is null";
            return Err(self.unsupported("layer_types", supported));
        }
        match size {
            Some(size) if layers.contains(&true) => Ok(Some(SlidingWindow { size, layers })),
            None if layers.contains(&true) => {
                Err(self
                    .unsupported("layer_types", "sliding_attention needs use_sliding_window true and a sliding_window"))
            }
            _ => Ok(None),
        }
    }

    /// RoPE from `rope_scaling` or `rope_parameters`; its base from there or from the top level.
    fn rope(self, max_positions: usize) -> Result<Rope, ConfigError> {
        let theta = self.number("rope_theta")?.unwrap_or(10_000.0); // The default of all four types.
        let mut found: Option<(&str, Rope)> = None;
        for (key, within) in [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")] {
            let Some(object) = self.typed(key, "an object", Value::as_object)?.filter(|object| !object.is_empty())
            else {
                continue;
            };
            let rope = Json { object, within }.rope_object(key, self, theta, max_positions)?;
            match &found {
                Some((first, other)) if *other != rope => {
                    return Err(self.unsupported(
                        key,
                        format!("{first} says something else, and only one of the two can be followed"),
                    ));
                }
                _ => found = Some((key, rope)),
            }
        }
        Ok(found.map_or(Rope::plain(theta), |(_, rope)| rope))
    }

    /// The inner object: `self` is it, `top` the whole file.
    fn rope_object(self, key: &str, top: Json<'_>, theta: f64, max_positions: usize) -> Result<Rope, ConfigError> {
        for kind in ["full_attention", "sliding_attention"] {
            if self.get(kind).is_some() {
                return Err(top.unsupported(key, "one RoPE for all layers is"));
            }
        }
        let kind_key = if self.get("rope_type").is_some() { "rope_type" } else { "type" };
        let kind = self.text(kind_key)?.unwrap_or("default");
        let taken: &[&str] = match kind {
            "default" => &[],
            "linear" | "dynamic" => &["factor"],
            "llama3" => &["factor", "low_freq_factor", "high_freq_factor", ORIGINAL],
            "yarn" => &[
                "factor",
                ORIGINAL,
                "beta_fast",
                "beta_slow",
                "attention_factor",
                "mscale",
                "mscale_all_dim",
                "truncate",
                "finetuned",
            ],
            _ => return Err(self.unsupported(kind_key, "the types default, linear, llama3, yarn and dynamic are")),
        };
        self.only("partial_rotary_factor", 1.0, "only RoPE over the whole head is")?;
        let always = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
        let stranger = self
            .object
            .keys()
            .find(|key| self.get(key).is_some() && !always.contains(&key.as_str()) && !taken.contains(&key.as_str()));
        if let Some(stranger) = stranger {
            return Err(self.unsupported(stranger, format!("a RoPE of type {kind} has no such key")));
        }
        let required = |key: &str| self.number(key)?.ok_or_else(|| ConfigError::Missing(self.name(key)));
        let original = || match top.optional_size(ORIGINAL)? {
            Some(outside) => Ok(outside),
            None => Ok(self.optional_size(ORIGINAL)?.unwrap_or(max_positions)),
        };
        let scaling = match kind {
            "linear" => RopeScaling::Linear { factor: required("factor")? },
            "dynamic" => RopeScaling::Dynamic { factor: required("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_max_positions: original()?,
            },
            "yarn" => self.yarn(original()?, max_positions)?,
            _ => RopeScaling::Default,
        };
        Ok(Rope { theta: self.number("rope_theta")?.unwrap_or(theta), scaling })
    }

    fn yarn(self, original_max_positions: usize, max_positions: usize) -> Result<RopeScaling, ConfigError> {
        // Zero counts as not given in the last five, as it does there.
        let optional = |key: &str| Ok(self.number(key)?.filter(|&x| x != 0.0));
        let factor = match self.number("factor")? {
            Some(factor) => factor,
            None if self.says_null("factor") => max_positions as f64 / original_max_positions as f64,
            None => return Err(ConfigError::Missing(self.name("factor"))),
        };
        let (mscale, mscale_all_dim) = (optional("mscale")?, optional("mscale_all_dim")?);
        Ok(RopeScaling::Yarn(Yarn {
            factor,
            original_max_positions,
            beta_fast: optional("beta_fast")?.unwrap_or(32.0),
            beta_slow: optional("beta_slow")?.unwrap_or(1.0),
            attention_factor: self.number("attention_factor")?,
            mscale,
            mscale_all_dim,
            truncate: self.flag("truncate")?.unwrap_or(true),
        }))
    }
}

/// The key of the context that a model was first trained with.
const ORIGINAL: &str = "original_max_position_embeddings";

#[cfg(test)]
mod tests;

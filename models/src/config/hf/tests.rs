use super::*;
use serde_json::json;

fn small() -> Config {
    Config {
        family: Family::Llama,
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
        qkv_bias: false,
        qk_norm: false,
        value_head: false,
        max_positions: 128,
    }
}

fn yarn() -> Yarn {
    Yarn {
        factor: 4.0,
        original_max_positions: 32,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    }
}

/// The small model's file with some keys replaced.
fn patched(patch: Value) -> Result<Config, ConfigError> {
    let mut object: Value = serde_json::from_str(&small().to_hf_json()).unwrap();
    for (key, value) in patch.as_object().unwrap() {
        object[key] = value.clone();
    }
    if patch.get("model_type").is_some() {
        object.as_object_mut().unwrap().remove("architectures");
    }
    Config::from_hf_json(&object.to_string())
}

/// The small model's file without some keys.
fn without(keys: &[&str], patch: Value) -> Result<Config, ConfigError> {
    let mut object: Map<String, Value> = serde_json::from_str(&small().to_hf_json()).unwrap();
    object.retain(|key, _| !keys.contains(&key.as_str()) && key != "architectures");
    object.extend(patch.as_object().unwrap().clone());
    Config::from_hf_json(&Value::Object(object).to_string())
}

#[test]
fn every_shape_comes_back_from_its_file() {
    let scalings = [
        RopeScaling::Default,
        RopeScaling::Linear { factor: 2.5 },
        RopeScaling::Dynamic { factor: 3.0 },
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.1, original_max_positions: 32 },
        RopeScaling::Yarn(yarn()),
        RopeScaling::Yarn(Yarn {
            beta_fast: 4.0,
            beta_slow: 0.5,
            attention_factor: Some(1.1),
            mscale: Some(0.7),
            mscale_all_dim: Some(1.3),
            truncate: false,
            ..yarn()
        }),
    ];
    let windows = [None, Some(vec![true, true]), Some(vec![false, true]), Some(vec![true, false])];
    let mut seen = 0;
    for family in Family::ALL {
        for (scaling, layers) in scalings.iter().flat_map(|s| windows.iter().map(move |w| (s.clone(), w.clone()))) {
            for bits in 0..8u32 {
                let flag = |bit: u32| bits >> bit & 1 == 1;
                let config = Config {
                    family,
                    tied_embeddings: flag(0),
                    qkv_bias: family == Family::Qwen2 || family == Family::Qwen3 && flag(1),
                    qk_norm: family == Family::Qwen3,
                    value_head: flag(2),
                    head_dim: 10,
                    norm_eps: 1e-6,
                    rope: Rope { theta: 1e6, scaling: scaling.clone() },
                    sliding_window: layers.clone().map(|layers| SlidingWindow { size: 6, layers }),
                    ..small()
                };
                if config.check().is_ok() {
                    seen += 1;
                    let text = config.to_hf_json_of("bfloat16");
                    assert_eq!(Config::from_hf_json(&text), Ok(config), "{text}");
                }
            }
        }
    }
    assert_eq!(seen, 8 * 6 * (1 + 4 + 4 + 2), "windows: llama has none, mistral all or none");
}

#[test]
fn a_plain_model_is_written_as_it_always_was() {
    let text = r#"{
  "architectures": [
    "LlamaForCausalLM"
  ],
  "model_type": "llama",
  "hidden_act": "silu",
  "vocab_size": 96,
  "hidden_size": 32,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 8,
  "intermediate_size": 72,
  "max_position_embeddings": 128,
  "rope_theta": 500.0,
  "rms_norm_eps": 0.00001,
  "tie_word_embeddings": false,
  "torch_dtype": "float32"
}
"#;
    assert_eq!(small().to_hf_json(), text);
}

#[test]
fn absent_keys_take_the_defaults_of_the_type() {
    let keys =
        ["num_key_value_heads", "head_dim", "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_act"];
    let wide = |model_type: &str| {
        without(&keys, json!({"model_type": model_type, "num_attention_heads": 32, "hidden_size": 512})).unwrap()
    };
    for (model_type, n_kv_heads, head_dim, max_positions) in
        [("llama", 32, 16, 2048), ("qwen2", 32, 16, 32_768), ("qwen3", 32, 128, 32_768), ("mistral", 8, 16, 131_072)]
    {
        let config = wide(model_type);
        assert_eq!((config.n_kv_heads, config.head_dim, config.max_positions), (n_kv_heads, head_dim, max_positions));
        assert_eq!((config.rope, config.norm_eps), (Rope::plain(10_000.0), 1e-6));
        assert_eq!((config.tied_embeddings, config.qkv_bias), (false, model_type == "qwen2"));
        assert_eq!(config.sliding_window.map(|w| w.size), (model_type == "mistral").then_some(4096));
        let null = without(&["num_key_value_heads"], json!({"model_type": model_type, "num_key_value_heads": null}));
        assert_eq!(null.unwrap().n_kv_heads, 4, "null is one for each query head");
    }
    let text = small().to_hf_json();
    assert_eq!(Config::from_hf_json_of_weights(&text).unwrap().1, TiedEmbeddings::Said(false));
    let text = text.replace("tie_word_embeddings", "something_else");
    assert_eq!(Config::from_hf_json_of_weights(&text).unwrap().1, TiedEmbeddings::Unsaid);
}

#[test]
fn all_spellings_of_rope_are_read() {
    let rope = |patch: Value| without(&["rope_theta"], patch).map(|config| config.rope);
    let linear = Ok(Rope { theta: 1e6, scaling: RopeScaling::Linear { factor: 2.0 } });
    assert_eq!(rope(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1000000}})), Ok(Rope::plain(1e6)));
    assert_eq!(rope(json!({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 5.0})), Ok(Rope::plain(1e6)));
    assert_eq!(rope(json!({"rope_theta": 1e6, "rope_scaling": null})), Ok(Rope::plain(1e6)));
    assert_eq!(rope(json!({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2}})), linear);
    assert_eq!(rope(json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}})), linear);
    let both = json!({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2},
        "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 1e6}});
    assert_eq!(rope(both), linear);
    // Of two spellings of the type the newer one counts.
    let both = json!({"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "type": "default", "factor": 2}});
    assert_eq!(rope(both), linear);
    let long = |original_max_positions| {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions };
        Ok(Rope { theta: 10_000.0, scaling })
    };
    let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
    assert_eq!(rope(json!({"rope_scaling": llama3})), long(128), "max_position_embeddings");
    assert_eq!(rope(json!({"rope_scaling": llama3, "original_max_position_embeddings": 64})), long(64));
    let yarned = |yarn| Ok(Rope { theta: 10_000.0, scaling: RopeScaling::Yarn(yarn) });
    let bare = json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        "finetuned": true, "beta_fast": null, "mscale": 0}});
    assert_eq!(rope(bare), yarned(yarn()));
    let null = json!({"rope_scaling": {"type": "yarn", "factor": null, "original_max_position_embeddings": 32}});
    assert_eq!(rope(null), yarned(yarn()), "128 / 32");
}

#[test]
fn yarn_sharpens_attention_as_its_keys_say() {
    let near = |yarn: Yarn, wanted: f64| assert!((yarn.attention() - wanted).abs() < 1e-12, "{yarn:?}");
    near(yarn(), 1.138_629_436_111_989); // 0.1 ln 4 + 1
    near(Yarn { factor: 1.0, ..yarn() }, 1.0);
    near(Yarn { attention_factor: Some(0.5), ..yarn() }, 0.5);
    near(Yarn { mscale: Some(0.707), ..yarn() }, 1.138_629_436_111_989);
    near(Yarn { mscale: Some(1.0), mscale_all_dim: Some(1.0), ..yarn() }, 1.0);
    near(
        Yarn { mscale: Some(2.0), mscale_all_dim: Some(1.0), ..yarn() },
        1.277_258_872_223_978_2 / 1.138_629_436_111_989,
    );
}

#[test]
fn windows_are_those_of_the_type() {
    let layers =
        |patch: Value| patched(patch).map(|config| config.sliding_window.map(|window| (window.size, window.layers)));
    let qwen = |more: Value| {
        let mut patch = json!({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 6});
        patch.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        layers(patch)
    };
    assert_eq!(qwen(json!({"use_sliding_window": false})), Ok(None));
    assert_eq!(qwen(json!({"use_sliding_window": null})), Ok(None), "false is the default");
    assert_eq!(qwen(json!({})), Ok(None), "28 full layers are the default");
    assert_eq!(qwen(json!({"max_window_layers": 1})), Ok(Some((6, vec![false, true]))));
    assert_eq!(qwen(json!({"max_window_layers": 0})), Ok(Some((6, vec![true, true]))));
    assert_eq!(qwen(json!({"max_window_layers": 0, "sliding_window": null})), Ok(None));
    let kinds = json!({"layer_types": ["sliding_attention", "full_attention"], "max_window_layers": 1});
    assert_eq!(qwen(kinds), Ok(Some((6, vec![true, false]))));
    assert_eq!(qwen(json!({"layer_types": ["full_attention", "full_attention"], "max_window_layers": 0})), Ok(None));
    let mistral = |size: Value| layers(json!({"model_type": "mistral", "sliding_window": size}));
    assert_eq!(mistral(json!(6)), Ok(Some((6, vec![true, true]))));
    assert_eq!(mistral(Value::Null), Ok(None));
    assert_eq!(layers(json!({"model_type": "mistral"})), Ok(Some((4096, vec![true, true]))), "4096 is the default");
    let config = patched(json!({"model_type": "qwen3", "use_sliding_window": true, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"]}))
    .unwrap();
    assert_eq!((config.window(0), config.window(1)), (Some(9), None));
}

#[test]
fn biases_that_the_type_does_not_have_make_it_the_type_that_has_them() {
    let family = |model_type: &str, qkv_bias: bool| {
        let config = patched(json!({"model_type": model_type, "sliding_window": null, "qkv_bias": qkv_bias})).unwrap();
        assert_eq!(config.qkv_bias, qkv_bias);
        config.family
    };
    assert_eq!(["llama", "mistral", "qwen2"].map(|name| family(name, true)), [Family::Qwen2; 3]);
    assert_eq!(family("qwen2", false), Family::Llama);
    assert_eq!(family("qwen3", true), Family::Qwen3);
}

#[test]
fn refusals_name_the_key_and_the_value() {
    let mistral = |more: Value| {
        let mut patch = json!({"model_type": "mistral", "sliding_window": 6});
        patch.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        patch
    };
    for (patch, message) in [
        (
            json!({"model_type": "gemma2"}),
            "model_type is \"gemma2\", which is not supported; the types llama, qwen2, qwen3 and mistral are",
        ),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "architectures is [\"LlamaForSequenceClassification\"], which is not supported; only LlamaForCausalLM is for \
             model_type llama",
        ),
        (json!({"hidden_act": "gelu"}), "hidden_act is \"gelu\", which is not supported; only \"silu\" is"),
        (
            json!({"rope_scaling": {"rope_type": "longrope", "factor": 2.5}}),
            "rope_scaling.rope_type is \"longrope\", which is not supported; the types default, linear, llama3, yarn and \
             dynamic are",
        ),
        (
            json!({"rope_scaling": {"type": "mrope"}}),
            "rope_scaling.type is \"mrope\", which is not supported; the types default, linear, llama3, yarn and dynamic are",
        ),
        (json!({"rope_parameters": {"rope_type": "linear"}}), "the key rope_parameters.factor is missing"),
        (json!({"rope_scaling": {"type": "yarn"}}), "the key rope_scaling.factor is missing"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}}),
            "rope_scaling.beta_fast is 3, which is not supported; a RoPE of type linear has no such key",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2, "alpha": 1000.0}}),
            "rope_scaling.alpha is 1000.0, which is not supported; a RoPE of type dynamic has no such key",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": "2"}}),
            "rope_scaling.factor is \"2\", which is not a number",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0.0}}),
            "impossible sizes: rope_scaling.factor: 0 is not a positive number",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}}),
            "rope_parameters is {\"rope_type\":\"default\"}, which is not supported; rope_scaling says something else, and \
             only one of the two can be followed",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}),
            "rope_parameters is {\"full_attention\":{\"rope_theta\":5.0}}, which is not supported; one RoPE for all layers is",
        ),
        (
            json!({"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4}}),
            "impossible sizes: rope_scaling.high_freq_factor: 4 is not greater than low_freq_factor 4",
        ),
        (
            json!({"sliding_window": 64}),
            "sliding_window is 64, which is not supported; llama models have full attention: say null, or model_type \
             mistral, whose layers all have the window",
        ),
        (
            json!({"use_sliding_window": true}),
            "use_sliding_window is true, which is not supported; it is a key of qwen2 and qwen3",
        ),
        (
            mistral(json!({"layer_types": ["sliding_attention", "full_attention"]})),
            "layer_types is [\"sliding_attention\",\"full_attention\"], which is not supported; mistral has the window of \
             sliding_window in all layers, or in none when that is null",
        ),
        (mistral(json!({"sliding_window": 0})), "impossible sizes: sliding_window: 0 is not between 1 and 4294967295"),
        (
            json!({"model_type": "qwen2", "layer_types": ["sliding_attention", "full_attention"]}),
            "layer_types is [\"sliding_attention\",\"full_attention\"], which is not supported; sliding_attention needs \
             use_sliding_window true and a sliding_window",
        ),
        (
            json!({"model_type": "qwen3", "layer_types": ["full_attention"]}),
            "layer_types is [\"full_attention\"], which is not supported; one kind for each of the 2 layers is",
        ),
        (
            json!({"model_type": "qwen3", "layer_types": ["full_attention", "chunked_attention"]}),
            "layer_types is [\"full_attention\",\"chunked_attention\"], which is not supported; the kinds full_attention and \
             sliding_attention are",
        ),
        (
            json!({"attention_bias": true}),
            "attention_bias is true, which is not supported; it adds a bias to o_proj too, and biases can be on q, k and v \
             alone (qwen2)",
        ),
        (
            json!({"mlp_bias": true}),
            "mlp_bias is true, which is not supported; biases can be on q, k and v alone (qwen2)",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor is 0.5, which is not supported; only RoPE over the whole head is",
        ),
        (
            json!({"quantization_config": {"bits": 4}}),
            "quantization_config is {\"bits\":4}, which is not supported; only f32, bf16 and f16 weights are",
        ),
        (
            json!({"model_type": "qwen2", "qkv_bias": false, "use_sliding_window": true, "max_window_layers": 1}),
            "impossible sizes: qkv_bias: false is not what qwen2 models have",
        ),
        (json!({"vocab_size": "96"}), "vocab_size is \"96\", which is not a whole number"),
        (json!({"vocab_size": 9.5}), "vocab_size is 9.5, which is not a whole number"),
        (json!({"intermediate_size": null}), "the key intermediate_size is missing"),
        (
            json!({"num_hidden_layers": 4_000_000_000u32}),
            "impossible sizes: num_hidden_layers: 4000000000 is not between 1 and 65536",
        ),
        (
            json!({"hidden_size": 34, "head_dim": null}),
            "impossible sizes: num_attention_heads: 4 does not divide hidden_size 34, and head_dim is not given",
        ),
        (
            json!({"num_key_value_heads": 3, "head_dim": 7}),
            "impossible sizes: num_key_value_heads: 3 does not divide the 4 query heads; head_dim: 7 is odd, but \
             RoPE turns pairs: it must be even",
        ),
    ] {
        assert_eq!(patched(patch).unwrap_err().to_string(), message);
    }
    assert!(matches!(Config::from_hf_json("[1]"), Err(ConfigError::Syntax(_))));
    assert!(matches!(Config::from_hf_json("{"), Err(ConfigError::Syntax(_))));
}

/// What a published model's file says, with the keys that people have in theirs.
#[test]
fn files_of_published_models_are_read() {
    let qwen25 = |hidden: usize,
                  ff: usize,
                  layers: usize,
                  heads: usize,
                  kv: usize,
                  window: usize,
                  vocab: usize,
                  tied: bool| {
        json!({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
            "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.02, "intermediate_size": ff,
            "max_position_embeddings": 32768, "max_window_layers": layers, "model_type": "qwen2",
            "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv, "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0, "sliding_window": window, "tie_word_embeddings": tied, "torch_dtype": "bfloat16",
            "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false, "vocab_size": vocab})
    };
    let read = |file: &Value| Config::from_hf_json(&file.to_string()).unwrap();
    let base = Config {
        family: Family::Qwen2,
        vocab: 151_936,
        d_model: 896,
        n_layers: 24,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        d_ff: 4864,
        rope: Rope::plain(1e6),
        sliding_window: None,
        norm_eps: 1e-6,
        tied_embeddings: true,
        qkv_bias: true,
        qk_norm: false,
        value_head: false,
        max_positions: 32_768,
    };
    assert_eq!(read(&qwen25(896, 4864, 24, 14, 2, 32_768, 151_936, true)), base, "Qwen2.5-0.5B-Instruct");

    let mut seven = qwen25(3584, 18_944, 28, 28, 4, 131_072, 152_064, false);
    let seven_shape = Config {
        vocab: 152_064,
        d_model: 3584,
        n_layers: 28,
        n_heads: 28,
        n_kv_heads: 4,
        head_dim: 128,
        d_ff: 18_944,
        tied_embeddings: false,
        ..base.clone()
    };
    assert_eq!(read(&seven), seven_shape, "Qwen2.5-7B-Instruct");
    seven["rope_scaling"] = json!({"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"});
    let long = Yarn { original_max_positions: 32_768, ..yarn() };
    let stretched = Config { rope: Rope { theta: 1e6, scaling: RopeScaling::Yarn(long) }, ..seven_shape };
    assert_eq!(read(&seven), stretched, "as its model card stretches it");

    let qwen3 = json!({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936});
    let qwen3_shape = Config {
        family: Family::Qwen3,
        d_model: 1024,
        n_layers: 28,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        d_ff: 3072,
        qkv_bias: false,
        qk_norm: true,
        max_positions: 40_960,
        ..base.clone()
    };
    assert_eq!(read(&qwen3), qwen3_shape, "Qwen3-0.6B");

    let llama = json!({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256});
    let llama3 =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 8192 };
    let llama_shape = Config {
        family: Family::Llama,
        vocab: 128_256,
        d_model: 2048,
        n_layers: 16,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        d_ff: 8192,
        rope: Rope { theta: 5e5, scaling: llama3 },
        norm_eps: 1e-5,
        qkv_bias: false,
        max_positions: 131_072,
        ..base.clone()
    };
    assert_eq!(read(&llama), llama_shape, "Llama-3.2-1B-Instruct");

    let smollm = json!({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
        "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
        "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16", "q4f16": "float16"}},
        "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152});
    let smollm_shape = Config {
        vocab: 49_152,
        d_model: 576,
        n_layers: 30,
        n_heads: 9,
        n_kv_heads: 3,
        d_ff: 1536,
        rope: Rope::plain(1e5),
        max_positions: 8192,
        ..llama_shape.clone()
    };
    assert_eq!(read(&smollm), smollm_shape, "SmolLM2-135M-Instruct");

    let mut mistral = json!({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000});
    let mistral_shape = Config {
        family: Family::Mistral,
        vocab: 32_000,
        d_model: 4096,
        n_layers: 32,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        d_ff: 14_336,
        rope: Rope::plain(1e4),
        sliding_window: Some(SlidingWindow { size: 4096, layers: vec![true; 32] }),
        tied_embeddings: false,
        max_positions: 32_768,
        ..llama_shape
    };
    assert_eq!(read(&mistral), mistral_shape, "Mistral-7B-v0.1");
    for (key, value) in
        [("sliding_window", Value::Null), ("rope_theta", json!(1000000.0)), ("vocab_size", json!(32768))]
    {
        mistral[key] = value;
    }
    let third = Config { vocab: 32_768, rope: Rope::plain(1e6), sliding_window: None, ..mistral_shape };
    assert_eq!(read(&mistral), third, "Mistral-7B-Instruct-v0.3");
}

//! Files made here, byte by byte, and what is refused about them.

use super::*;
use crate::random::Key;

/// A file in the making: entries of the metadata and tensors, as bytes.
#[derive(Clone, Default)]
struct Draft {
    entries: Vec<(String, u32, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

/// An array: type of the elements, and their bytes.
fn list(kind: u32, len: usize, elements: Vec<u8>) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(len as u64).to_le_bytes(), &elements].concat()
}

fn texts_list(all: &[&str]) -> Vec<u8> {
    list(8, all.len(), all.iter().flat_map(|s| text(s)).collect())
}

impl Draft {
    fn set(&mut self, key: &str, kind: u32, value: Vec<u8>) -> &mut Self {
        self.entries.retain(|(other, ..)| other != key);
        self.entries.push((key.into(), kind, value));
        self
    }

    fn whole(&mut self, key: &str, value: u32) -> &mut Self {
        self.set(key, 4, value.to_le_bytes().to_vec())
    }

    fn real(&mut self, key: &str, value: f32) -> &mut Self {
        self.set(key, 6, value.to_le_bytes().to_vec())
    }

    fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.set(key, 8, text(value))
    }

    fn without(&mut self, name: &str) -> &mut Self {
        self.entries.retain(|(key, ..)| key != name);
        self.tensors.retain(|(tensor, ..)| tensor != name);
        self
    }

    fn tensor(&mut self, name: &str, dims: &[u64], x: &[f32]) -> &mut Self {
        let bytes = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.tensors.push((name.into(), dims.to_vec(), 0, bytes));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.entries.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.entries {
            file.extend(text(key));
            file.extend(kind.to_le_bytes());
            file.extend(value);
        }
        let mut offset = 0u64;
        for (name, dims, kind, bytes) in &self.tensors {
            file.extend(text(name));
            file.extend((dims.len() as u32).to_le_bytes());
            file.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset += bytes.len().next_multiple_of(32) as u64;
        }
        for (.., bytes) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(bytes);
        }
        file
    }

    fn open(&self) -> Result<Gguf, GgufError> {
        open_bytes(&self.bytes())
    }

    /// What is said of the file, without its path.
    fn message(&self) -> String {
        self.open().and_then(|file| file.load()).err().map_or("loads".into(), |e| e.fault.to_string())
    }
}

fn open_bytes(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    open(file.path())
}

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|i| Key::new(seed).normal(i as u64) as f32).collect()
}

/// One layer, 2 heads of 4 on 1 KV head, tied; biases on q, k and v for qwen2.
fn small(arch: &str) -> Draft {
    let mut draft = Draft::default();
    draft.text("general.architecture", arch);
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 6),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        draft.whole(&format!("{arch}.{key}"), value);
    }
    draft.real(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5).real(&format!("{arch}.rope.freq_base"), 5e5);
    draft.tensor("token_embd.weight", &[8, 12], &numbers(1, 96)).tensor("output_norm.weight", &[8], &numbers(2, 8));
    for (i, (name, dims)) in [
        ("attn_norm.weight", &[8u64][..]),
        ("attn_q.weight", &[8, 8]),
        ("attn_k.weight", &[8, 4]),
        ("attn_v.weight", &[8, 4]),
        ("attn_q.bias", &[8]),
        ("attn_k.bias", &[4]),
        ("attn_v.bias", &[4]),
        ("attn_output.weight", &[8, 8]),
        ("ffn_norm.weight", &[8]),
        ("ffn_gate.weight", &[8, 6]),
        ("ffn_up.weight", &[8, 6]),
        ("ffn_down.weight", &[6, 8]),
    ]
    .into_iter()
    .enumerate()
    .filter(|(_, (name, _))| arch == "qwen2" || !name.ends_with(".bias"))
    {
        draft.tensor(&format!("blk.0.{name}"), dims, &numbers(3 + i as u64, dims.iter().product::<u64>() as usize));
    }
    draft
}

#[test]
fn rows_of_q_and_k_are_put_back_for_llama_alone() {
    for (arch, order) in [("llama", [0, 2, 1, 3, 4, 6, 5, 7]), ("qwen2", [0, 1, 2, 3, 4, 5, 6, 7])] {
        let model = small(arch).open().unwrap().load().unwrap();
        assert_eq!(model.config.norm_eps, 1e-5, "not the f32 nearest to it");
        assert!(model.config.tied_embeddings);
        assert_eq!(model.config.qkv_bias, arch == "qwen2");
        let (q, k, bias) = (numbers(4, 64), numbers(5, 32), numbers(7, 8));
        let attention = |name: &str| model.params.get(&format!("model.layers.0.self_attn.{name}"));
        for (row, &from) in order.iter().enumerate() {
            // Order is its own inverse for heads of 4.
            assert_eq!(attention("q_proj.weight")[8 * row..][..8], q[8 * from..][..8], "{arch} q row {row}");
        }
        if arch == "qwen2" {
            assert_eq!(attention("q_proj.bias"), bias);
        }
        for row in 0..4 {
            assert_eq!(attention("k_proj.weight")[8 * row..][..8], k[8 * order[row]..][..8], "{arch} k row {row}");
        }
        assert_eq!(attention("v_proj.weight"), numbers(6, 32));
        assert_eq!(model.params.get("model.layers.0.mlp.down_proj.weight"), numbers(14, 48));
    }
    let eight = |row: usize| [0, 4, 1, 5, 2, 6, 3, 7][row];
    let config = Config { head_dim: 8, ..small("llama").open().unwrap().config().unwrap() };
    let order = shape::row_order(&small("llama").open().unwrap(), &config, "model.layers.0.self_attn.q_proj.weight");
    assert!((0..16).all(|row| order(row) == row / 8 * 8 + eight(row % 8)));
}

#[test]
fn every_type_of_metadata_is_read() {
    let mut draft = small("llama");
    let values: [(u32, Vec<u8>, Value); 11] = [
        (0, vec![200], Value::Unsigned(200)),
        (1, vec![200], Value::Signed(-56)),
        (2, 60_000u16.to_le_bytes().to_vec(), Value::Unsigned(60_000)),
        (3, (-2i16).to_le_bytes().to_vec(), Value::Signed(-2)),
        (4, 7u32.to_le_bytes().to_vec(), Value::Unsigned(7)),
        (5, (-7i32).to_le_bytes().to_vec(), Value::Signed(-7)),
        (6, 0.5f32.to_le_bytes().to_vec(), Value::F32(0.5)),
        (7, vec![1], Value::Bool(true)),
        (10, u64::MAX.to_le_bytes().to_vec(), Value::Unsigned(u64::MAX)),
        (11, i64::MIN.to_le_bytes().to_vec(), Value::Signed(i64::MIN)),
        (12, 1e300f64.to_le_bytes().to_vec(), Value::F64(1e300)),
    ];
    for (kind, bytes, _) in &values {
        draft.set(&format!("test.{kind}"), *kind, bytes.clone());
    }
    let inner = [texts_list(&["a", "bc"]), list(5, 2, vec![0; 8])].concat();
    draft.set("test.nested", 9, list(9, 2, inner)).text("test.text", "größer");
    let file = draft.open().unwrap();
    for (kind, _, value) in &values {
        assert_eq!(file.get(&format!("test.{kind}")), Some(value));
    }
    assert_eq!(file.text("test.text").unwrap(), Some("größer"));
    let nested = file.array("test.nested").unwrap().unwrap();
    assert_eq!((nested.kind, nested.len, nested.at.len()), (container::Kind::Array, 2, 12 + 9 + 10 + 12 + 8));
    assert!(file.load().is_ok(), "keys of others change nothing");
    let mut version_2 = draft.bytes();
    version_2[4] = 2;
    assert!(open_bytes(&version_2).unwrap().load().is_ok());
}

#[test]
fn damaged_files_are_refused_by_what_is_damaged() {
    let whole = small("llama").bytes();
    let message = |bytes: &[u8]| open_bytes(bytes).err().map_or("opens".into(), |e| e.fault.to_string());
    assert_eq!(message(&whole), "opens");
    assert_eq!(message(b""), "not a GGUF file: its first four bytes are not GGUF");
    let patched = |at: usize, with: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        message(&bytes)
    };
    assert_eq!(
        patched(4, &1u32.to_le_bytes()),
        "GGUF version 1 is not supported; versions 2 and 3, little-endian, are"
    );
    assert!(patched(4, &3u32.to_be_bytes()).starts_with("GGUF version 50331648"));
    let cut = |what: &str| format!("cut short or damaged: {what} ends beyond the end of the file; copy the file again");
    for huge in [u64::MAX, 1 << 40] {
        assert_eq!(patched(8, &huge.to_le_bytes()), cut("the table of tensors"));
        assert_eq!(patched(16, &huge.to_le_bytes()), cut("the metadata"));
        assert_eq!(patched(24, &huge.to_le_bytes()), cut("the key of metadata entry 0"));
    }
    assert_eq!(patched(24 + 8, &[0xff]), "damaged: the key of metadata entry 0 is not UTF-8");
    assert_eq!(patched(24 + 8 + 20, &[99]), "the metadata key general.architecture has the unknown type 99");
    assert_eq!(message(&whole[..whole.len() - 1]), cut("tensor blk.0.ffn_down.weight"));
    for len in 0..whole.len() {
        assert_ne!(message(&whole[..len]), "opens", "cut at {len}");
    }
}

#[test]
fn metadata_and_tensors_that_cannot_be_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Draft)| {
        let mut draft = small("llama");
        change(&mut draft);
        draft.message()
    };
    assert_eq!(refused(&|_| ()), "loads");
    let key = |key: &str, reason: &str| format!("the metadata key {key} {reason}");
    let deep = (0..5).fold(list(0, 0, vec![]), |inner, _| list(9, 1, inner));
    assert_eq!(refused(&|d| _ = d.set("x", 9, deep.clone())), key("x", "holds arrays in arrays, deeper than 4"));
    assert_eq!(refused(&|d| _ = d.set("x", 7, vec![2])), key("x", "is 2, neither 0 (false) nor 1 (true)"));
    assert_eq!(
        refused(&|d| d.entries.push(("llama.block_count".into(), 4, vec![1, 0, 0, 0]))),
        key("llama.block_count", "is there twice")
    );
    let huge = list(4, usize::MAX / 8, vec![]);
    assert!(refused(&|d| _ = d.set("x", 9, huge.clone())).starts_with("cut short or damaged: x "));
    let alignment = key("general.alignment", "is Unsigned(24), not a power of two");
    assert_eq!(refused(&|d| _ = d.whole("general.alignment", 24)), alignment);
    assert_eq!(refused(&|d| _ = d.whole("general.alignment", 32)), "loads");
    let split = "one of 4 pieces of a model; merge them first (llama-gguf-split --merge)";
    assert_eq!(refused(&|d| _ = d.set("split.count", 2, vec![4, 0])), split);

    let tensor = |name: &str, reason: &str| format!("tensor {name} {reason}");
    let norm = "output_norm.weight";
    assert_eq!(
        refused(&|d| d.tensors[1].2 = 11),
        format!(
            "tensor {norm} holds Q3_K; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K can be read"
        )
    );
    assert_eq!(refused(&|d| d.tensors[1].2 = 8), tensor(norm, "has rows of 8 numbers, but Q8_0 packs 32 together"));
    assert_eq!(refused(&|d| d.tensors[1].1 = vec![]), tensor(norm, "has 0 dimensions, not 1 to 4"));
    assert_eq!(refused(&|d| d.tensors[1].1 = vec![8, 0]), tensor(norm, "has the impossible shape [0, 8]"));
    assert!(refused(&|d| d.tensors[1].1 = vec![1 << 40, 1 << 40]).contains("impossible shape"));
    assert!(refused(&|d| d.tensors[1].1 = vec![1 << 62]).contains("impossible shape"));
    assert!(
        refused(&|d| d.tensors[1].1 = vec![1 << 40]).starts_with("cut short or damaged: tensor output_norm.weight")
    );
    assert_eq!(refused(&|d| d.tensors[2].0 = norm.into()), tensor(norm, "is there twice"));
    let shifted = {
        let mut draft = small("llama");
        draft.tensors.swap(0, 1);
        let mut bytes = draft.bytes();
        // The offset of the second tensor, the embedding, back to the beginning: upon the first.
        let at = bytes.windows(17).position(|w| w == b"token_embd.weight").unwrap() + 17 + 4 + 16 + 4;
        bytes[at] = 0;
        open_bytes(&bytes).err().unwrap().fault.to_string()
    };
    assert_eq!(shifted, tensor("token_embd.weight", "has the offset 0, but the tensors before it make that 32"));
}

#[test]
fn models_that_are_not_computed_here_are_refused_by_key() {
    let refused = |change: &dyn Fn(&mut Draft)| {
        let mut draft = small("llama");
        change(&mut draft);
        draft.message()
    };
    let key = |key: &str, reason: &str| format!("the metadata key {key} {reason}");
    let arch = "general.architecture";
    assert_eq!(
        refused(&|d| _ = d.text(arch, "gemma")),
        key(arch, "is \"gemma\", which is not supported; llama, qwen2 and qwen3 are")
    );
    assert_eq!(refused(&|d| _ = d.without(arch)), "the metadata key general.architecture is missing");
    let length = "llama.context_length";
    assert_eq!(refused(&|d| _ = d.without(length)), "the metadata key llama.context_length is missing");
    assert_eq!(refused(&|d| _ = d.real(length, 1.0)), key(length, "is F32(1.0), not a whole number"));
    let unknown = "is not known, and the model may not be computed rightly without it";
    assert_eq!(refused(&|d| _ = d.whole("llama.logit_scale", 1)), key("llama.logit_scale", unknown));
    assert_eq!(refused(&|d| _ = d.whole("llama.expert_count", 8)), key("llama.expert_count", unknown));
    assert_eq!(refused(&|d| _ = d.whole("llama.expert_count", 0)), "loads");
    assert_eq!(
        refused(&|d| _ = d.whole("llama.block_count", u32::MAX)),
        key("llama.block_count", "is 4294967295, but the file has only 11 tensors")
    );
    assert_eq!(refused(&|d| _ = d.whole("llama.block_count", 2)), "tensor blk.1.attn_norm.weight is missing");
    assert_eq!(
        refused(&|d| _ = d.whole("llama.vocab_size", 13)),
        key("llama.vocab_size", "is 13, but token_embd.weight has 12 rows")
    );
    let partial = "is 2, but a head is 4 wide, and only one width for all is supported";
    assert_eq!(refused(&|d| _ = d.whole("llama.rope.dimension_count", 2)), key("llama.rope.dimension_count", partial));
    let heads = "is 3, which does not divide the width 8, and no key_length is given";
    assert_eq!(refused(&|d| _ = d.whole("llama.attention.head_count", 3)), key("llama.attention.head_count", heads));
    assert_eq!(
        refused(&|d| _ = d.whole("llama.feed_forward_length", 7)),
        "tensor blk.0.ffn_gate.weight has shape [6, 8], but the metadata ask for [7, 8]"
    );
    assert!(refused(&|d| _ = d.tensor("blk.0.attn_sinks.weight", &[2], &[0.0; 2])).ends_with(unknown));
    let config = refused(&|d| _ = d.real("llama.attention.layer_norm_rms_epsilon", -1.0));
    assert!(config.contains("rms_norm_eps: -1"), "{config}");
}

#[test]
fn scaled_rope_is_taken_over_and_never_passed_over() {
    let scaling = |change: &dyn Fn(&mut Draft)| {
        let mut draft = small("llama");
        change(&mut draft);
        let file = draft.open().unwrap();
        shape::hf_config(&file).map(|config| config.get("rope_scaling").cloned()).map_err(|fault| fault.to_string())
    };
    assert_eq!(scaling(&|_| ()), Ok(None));
    let kind = "llama.rope.scaling.type";
    assert_eq!(scaling(&|d| _ = d.text(kind, "none")), Ok(None));
    let linear = serde_json::json!({"rope_type": "linear", "factor": 2.5});
    assert_eq!(
        scaling(&|d| _ = d.text(kind, "linear").real("llama.rope.scaling.factor", 2.5)),
        Ok(Some(linear.clone()))
    );
    assert_eq!(scaling(&|d| _ = d.real("llama.rope.scale_linear", 2.5)), Ok(Some(linear)));
    let yarn = scaling(&|d| {
        d.text(kind, "yarn")
            .real("llama.rope.scaling.factor", 4.0)
            .whole("llama.rope.scaling.original_context_length", 32);
        d.real("llama.rope.scaling.yarn_beta_fast", 16.0);
    });
    let wanted = serde_json::json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0});
    assert_eq!(yarn, Ok(Some(wanted)));
    let other = scaling(&|d| _ = d.text(kind, "longrope").real("llama.rope.scaling.factor", 4.0));
    assert!(other.unwrap_err().contains("is \"longrope\", which is not supported; none, linear and yarn are"));
    let unknown = scaling(&|d| {
        d.text(kind, "yarn").real("llama.rope.scaling.factor", 4.0).real("llama.rope.scaling.attn_factor", 2.0);
    });
    assert!(unknown.unwrap_err().starts_with("the metadata key llama.rope.scaling.attn_factor is not known"));

    // Llama 3's divisors for heads of 4 and base 500000: wavelengths 6.28 (kept) and 4443 (blended).
    let blended = |factor: f64| {
        let smooth = (8192.0 / (2.0 * std::f64::consts::PI * 500_000f64.sqrt()) - 1.0) / 3.0;
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    let freqs = |x: [f32; 2]| scaling(&|d| _ = d.tensor("rope_freqs.weight", &[2], &x));
    assert_eq!(freqs([1.0, 1.0]), Ok(None));
    let refused = freqs([1.0, blended(8.0)]).unwrap_err();
    assert!(refused.starts_with("tensor rope_freqs.weight scales RoPE otherwise than Llama 3"), "{refused}");
    assert!(scaling(&|d| _ = d.tensor("rope_freqs.weight", &[4], &[1.0; 4])).is_err());
    let both = scaling(&|d| {
        d.text(kind, "linear").real("llama.rope.scaling.factor", 2.0).tensor("rope_freqs.weight", &[2], &[1.0; 2]);
    });
    assert!(both.unwrap_err().contains("a second time"));
}

#[test]
fn llama_3s_divisors_give_its_scaling() {
    for (head_dim, factor) in [(64u64, 32.0f64), (128, 8.0)] {
        let divisors: Vec<f32> = (0..head_dim / 2)
            .map(|i| {
                let wavelength = 2.0 * std::f64::consts::PI * 500_000f64.powf(2.0 * i as f64 / head_dim as f64);
                let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                (if wavelength < 2048.0 {
                    1.0
                } else if wavelength > 8192.0 {
                    factor
                } else {
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }) as f32
            })
            .collect();
        let mut draft = small("llama");
        draft.whole("llama.attention.key_length", head_dim as u32);
        draft.tensor("rope_freqs.weight", &[head_dim / 2], &divisors);
        let scaling = shape::hf_config(&draft.open().unwrap()).unwrap()["rope_scaling"].clone();
        let wanted = serde_json::json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        assert_eq!(scaling, wanted);
    }
}

/// A vocabulary of seven tokens with two merges.
fn with_vocabulary(pre: &str) -> Draft {
    let mut draft = small("llama");
    draft.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre);
    draft.set("tokenizer.ggml.tokens", 9, texts_list(&["a", "b", "ab", "abb", "<s>", "<tool>", "[PAD6]"]));
    let kinds = [1u32, 1, 1, 1, 3, 4, 5].iter().flat_map(|kind| kind.to_le_bytes()).collect();
    draft.set("tokenizer.ggml.token_type", 9, list(5, 7, kinds));
    draft.set("tokenizer.ggml.merges", 9, texts_list(&["a b", "ab b"]));
    draft.whole("tokenizer.ggml.bos_token_id", 4).whole("tokenizer.ggml.eos_token_id", 5);
    draft
}

#[test]
fn a_tokenizer_is_made_from_the_metadata() {
    let file = with_vocabulary("llama-bpe").open().unwrap();
    let json: serde_json::Value = serde_json::from_str(&file.tokenizer_json().unwrap()).unwrap();
    assert_eq!(json["model"]["merges"], serde_json::json!([["a", "b"], ["ab", "b"]]));
    assert_eq!(json["model"]["vocab"]["abb"], 3);
    assert_eq!(json["model"]["vocab"]["[PAD6]"], serde_json::Value::Null, "unused");
    assert_eq!(json["model"]["ignore_merges"], true);
    let added: Vec<_> = json["added_tokens"].as_array().unwrap().iter().map(|t| (&t["id"], &t["special"])).collect();
    assert_eq!(added, [(&4.into(), &true.into()), (&5.into(), &false.into())]);
    assert_eq!(json["post_processor"]["special_tokens"]["<s>"]["ids"], serde_json::json!([4]));
    assert_eq!((file.bos().unwrap(), file.eos().unwrap(), file.eot().unwrap()), (Some(4), Some(5), None));
    assert_eq!((file.token(3), file.token(7), file.add_bos().unwrap()), (Some("abb"), None, true));
    let config: serde_json::Value = serde_json::from_str(&file.tokenizer_config_json().unwrap()).unwrap();
    assert_eq!(
        (&config["bos_token"], &config["eos_token"], &config["pad_token"]),
        (&"<s>".into(), &"<tool>".into(), &serde_json::Value::Null)
    );
    let mut told = with_vocabulary("llama-bpe");
    let file = told.set("tokenizer.ggml.add_bos_token", 7, vec![0]).open().unwrap();
    assert!(!file.add_bos().unwrap());
    assert!(file.tokenizer_json().unwrap().contains("\"post_processor\":null"));
    for pre in ["smollm", "qwen2", "gpt-2", "default", "llama3"] {
        let json = with_vocabulary(pre).open().unwrap().tokenizer_json().unwrap();
        assert!(tokenizers::Tokenizer::from_bytes(&json).is_ok(), "{pre}");
    }
}

#[test]
fn vocabularies_that_cannot_be_are_refused_by_key() {
    let refused = |change: &dyn Fn(&mut Draft)| {
        let mut draft = with_vocabulary("smollm");
        change(&mut draft);
        draft.open().unwrap().tokenizer_json().err().map_or("works".into(), |e| e.fault.to_string())
    };
    assert_eq!(refused(&|_| ()), "works");
    assert!(refused(&|d| _ = d.text("tokenizer.ggml.pre", "tekken")).starts_with(
        "the metadata key tokenizer.ggml.pre is \"tekken\", which is not supported; smollm, qwen2, llama-bpe, gpt-2 and default are"
    ));
    assert_eq!(
        refused(&|d| _ = d.text("tokenizer.ggml.model", "llama")),
        "the metadata key tokenizer.ggml.model is \"llama\", which is not supported; gpt2 (byte-level BPE) is"
    );
    for key in [
        "tokenizer.ggml.pre",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    ] {
        assert_eq!(refused(&|d| _ = d.without(key)), format!("the metadata key {key} is missing"));
    }
    let tokens = "tokenizer.ggml.tokens";
    let same = texts_list(&["a", "b", "ab", "abb", "<s>", "a", "[PAD6]"]);
    assert_eq!(
        refused(&|d| _ = d.set(tokens, 9, same.clone())),
        format!("the metadata key {tokens} has the token \"a\" twice")
    );
    let damaged = list(8, 7, [vec![1, 0, 0, 0, 0, 0, 0, 0, 0xff], text("b").repeat(6)].concat());
    assert_eq!(
        refused(&|d| _ = d.set(tokens, 9, damaged.clone())),
        format!("the metadata key {tokens} has a token 0 that is not UTF-8")
    );
    assert!(refused(&|d| _ = d.set(tokens, 9, texts_list(&["a"]))).contains("not an I32 for each of the 1 tokens"));
    for merge in ["ab", "a c", "b a"] {
        let message = refused(&|d| _ = d.set("tokenizer.ggml.merges", 9, texts_list(&[merge])));
        assert!(message.contains("that is not of two tokens into a third"), "{merge}: {message}");
    }
    let mut draft = with_vocabulary("llama-bpe");
    let file = draft.whole("tokenizer.ggml.bos_token_id", 7).open().unwrap();
    let wrong = "the metadata key tokenizer.ggml.bos_token_id is 7, but there are 7 tokens";
    assert_eq!(file.bos().unwrap_err().fault.to_string(), wrong);
    assert_eq!(file.tokenizer_json().unwrap_err().fault.to_string(), wrong);
}

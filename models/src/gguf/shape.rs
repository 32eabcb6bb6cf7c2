//! From the metadata's keys and the tensors' names to those of Hugging Face.
//!
//! The shape goes through a `config.json` in memory, so that there is one place which says what is supported. Nothing that
//! changes the model is passed over: what is not understood is refused by its key or tensor.

use super::container::TensorInfo;
use super::{Gguf, GgufFault};
use crate::config::Config;
use crate::params::Table;
use serde_json::{Map, Value, json};

/// How the rows of q and k lie for RoPE.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    /// The two members of a pair lie side by side: row 2i and 2i + 1 of a head.
    Interleaved,
    /// As in Hugging Face files: row i and i + head_dim / 2.
    Halves,
}

/// Keys below `{architecture}.` that describe what is read here, or that change no result.
const KNOWN: [&str; 14] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
];

/// Keys below `{architecture}.` whose zero means that the model is an ordinary one.
const ZERO: [&str; 2] = ["expert_count", "expert_used_count"];

/// The architecture by its name, and how it stores q and k.
fn architecture(gguf: &Gguf) -> Result<(&str, Rows), GgufFault> {
    let key = "general.architecture";
    let name = gguf.text(key)?.ok_or_else(|| GgufFault::Missing(key.into()))?;
    match name {
        "llama" => Ok((name, Rows::Interleaved)),
        "qwen2" | "qwen3" => Ok((name, Rows::Halves)),
        other => Err(Gguf::wrong(key, format!("is {other:?}, which is not supported; llama, qwen2 and qwen3 are"))),
    }
}

/// The shape of the model. The number of layers is at most the number of tensors.
pub fn config(gguf: &Gguf) -> Result<Config, GgufFault> {
    let text = Value::Object(hf_config(gguf)?).to_string();
    Config::from_hf_json(&text).map_err(GgufFault::Config)
}

/// The `config.json` that the model would have.
pub fn hf_config(gguf: &Gguf) -> Result<Map<String, Value>, GgufFault> {
    let (arch, _) = architecture(gguf)?;
    check_keys(gguf, arch)?;
    let key = |name: &str| format!("{arch}.{name}");
    let optional = |name: &str| gguf.whole(&key(name));
    let size = |name: &str| optional(name)?.ok_or_else(|| GgufFault::Missing(key(name)));

    let layers = size("block_count")?;
    if layers > gguf.container.tensors.len() as u64 {
        let reason = format!("is {layers}, but the file has only {} tensors", gguf.container.tensors.len());
        return Err(Gguf::wrong(&key("block_count"), reason));
    }
    let (d_model, heads) = (size("embedding_length")?, size("attention.head_count")?);
    let mut config = json!({
        "model_type": arch,
        "hidden_act": "silu",
        "vocab_size": vocab(gguf, arch)?,
        "hidden_size": d_model,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": optional("attention.head_count_kv")?.unwrap_or(heads),
        "intermediate_size": size("feed_forward_length")?,
        "max_position_embeddings": size("context_length")?,
        "rms_norm_eps": required_number(gguf, &key("attention.layer_norm_rms_epsilon"))?,
        "rope_theta": gguf.number(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        "tie_word_embeddings": !gguf.container.tensors.contains_key("output.weight"),
        "qkv_bias": gguf.container.tensors.contains_key("blk.0.attn_q.bias"),
    });
    let head_dim = head_dim(gguf, arch, d_model, heads)?;
    config["head_dim"] = head_dim.into();
    if let Some(scaling) = rope_scaling(gguf, arch, head_dim)? {
        config["rope_scaling"] = scaling;
    }
    if let Some(window @ 1..) = optional("attention.sliding_window")? {
        if arch != "llama" {
            let reason = format!("is {window}, but which layers of {arch} have a window is not said");
            return Err(Gguf::wrong(&key("attention.sliding_window"), reason));
        }
        // What Mistral's checkpoints are called where they come from.
        config["model_type"] = "mistral".into();
        config["sliding_window"] = window.into();
    }
    let Value::Object(config) = config else { unreachable!("made as an object") };
    Ok(config)
}

/// Refuses keys of the architecture that nothing here understands.
fn check_keys(gguf: &Gguf, arch: &str) -> Result<(), GgufFault> {
    for key in gguf.container.metadata.keys() {
        let Some(name) = key.strip_prefix(arch).and_then(|rest| rest.strip_prefix('.')) else { continue };
        if ZERO.contains(&name) && gguf.whole(key)? == Some(0) {
            continue;
        }
        if !KNOWN.contains(&name) && !name.starts_with("rope.scaling.") {
            return Err(Gguf::wrong(key, "is not known, and the model may not be computed rightly without it"));
        }
    }
    Ok(())
}

fn required_number(gguf: &Gguf, key: &str) -> Result<f64, GgufFault> {
    gguf.number(key)?.ok_or_else(|| GgufFault::Missing(key.into()))
}

/// Rows of the embedding; what else says so must agree.
fn vocab(gguf: &Gguf, arch: &str) -> Result<usize, GgufFault> {
    let name = "token_embd.weight";
    let missing = || GgufFault::Tensor { tensor: name.into(), reason: "is missing".into() };
    let rows = gguf.container.tensors.get(name).ok_or_else(missing)?.shape[0];
    let stated = gguf.whole(&format!("{arch}.vocab_size"))?;
    if let Some(stated) = stated.filter(|stated| *stated != rows as u64) {
        let reason = format!("is {stated}, but {name} has {rows} rows");
        return Err(Gguf::wrong(&format!("{arch}.vocab_size"), reason));
    }
    Ok(rows)
}

/// Width of a head: given for keys and values alike, or derived. RoPE must turn all of it.
fn head_dim(gguf: &Gguf, arch: &str, d_model: u64, heads: u64) -> Result<u64, GgufFault> {
    let key = |name: &str| format!("{arch}.{name}");
    let head_dim = match gguf.whole(&key("attention.key_length"))? {
        Some(given) => given,
        None if heads > 0 && d_model.is_multiple_of(heads) => d_model / heads,
        None => {
            let reason = format!("is {heads}, which does not divide the width {d_model}, and no key_length is given");
            return Err(Gguf::wrong(&key("attention.head_count"), reason));
        }
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = gguf.whole(&key(name))?.filter(|other| *other != head_dim) {
            let reason = format!("is {other}, but a head is {head_dim} wide, and only one width for all is supported");
            return Err(Gguf::wrong(&key(name), reason));
        }
    }
    Ok(head_dim)
}

/// `rope_scaling` of `config.json`: from the metadata, or recognised in the tensor that Llama 3's conversion leaves.
fn rope_scaling(gguf: &Gguf, arch: &str, head_dim: u64) -> Result<Option<Value>, GgufFault> {
    let key = |name: &str| format!("{arch}.rope.{name}");
    let by_metadata = metadata_scaling(gguf, arch)?;
    if !gguf.container.tensors.contains_key(ROPE_FREQS) {
        return Ok(by_metadata);
    }
    if by_metadata.is_some() {
        return Err(Gguf::wrong(&key("scaling.type"), format!("scales RoPE a second time beside tensor {ROPE_FREQS}")));
    }
    let theta = gguf.number(&key("freq_base"))?.unwrap_or(10_000.0);
    llama3_scaling(gguf, theta, head_dim)
}

fn metadata_scaling(gguf: &Gguf, arch: &str) -> Result<Option<Value>, GgufFault> {
    let key = |name: &str| format!("{arch}.rope.{name}");
    let kind = match gguf.text(&key("scaling.type"))? {
        None if gguf.get(&key("scale_linear")).is_some() => "linear", // The older spelling.
        None | Some("none") => return Ok(None),
        Some(kind) => kind,
    };
    let factor = match gguf.number(&key("scaling.factor"))? {
        Some(factor) => factor,
        None => required_number(gguf, &key("scale_linear"))?,
    };
    let mut scaling = json!({"rope_type": kind, "factor": factor});
    for key in gguf.container.metadata.keys().filter(|k| k.starts_with(&key("scaling."))) {
        match key.rsplit('.').next().unwrap_or_default() {
            "type" | "factor" | "finetuned" => {}
            "original_context_length" => {
                if let Some(length) = gguf.whole(key)?.filter(|_| kind == "yarn") {
                    scaling["original_max_position_embeddings"] = length.into();
                }
            }
            name @ ("yarn_beta_fast" | "yarn_beta_slow") => scaling[&name[5..]] = required_number(gguf, key)?.into(),
            _ => return Err(Gguf::wrong(key, "is not known, and RoPE may not be computed rightly without it")),
        }
    }
    match kind {
        "linear" | "yarn" => Ok(Some(scaling)),
        other => {
            let reason = format!("is {other:?}, which is not supported; none, linear and yarn are");
            Err(Gguf::wrong(&key("scaling.type"), reason))
        }
    }
}

const ROPE_FREQS: &str = "rope_freqs.weight";

/// Recognises Llama 3's scaling in the divisors of the frequencies, the only trace of it in a GGUF file.
///
/// The published checkpoints differ in the factor alone, which is the largest divisor; whatever else is in the tensor is
/// refused, for nothing tells what it was made from.
fn llama3_scaling(gguf: &Gguf, theta: f64, head_dim: u64) -> Result<Option<Value>, GgufFault> {
    let wrong = |reason: &str| GgufFault::Tensor { tensor: ROPE_FREQS.into(), reason: reason.into() };
    let info = &gguf.container.tensors[ROPE_FREQS];
    let n = info.at.len() / 4;
    if info.kind != super::blocks::TensorType::F32 || info.shape.len() != 1 || n as u64 * 2 != head_dim {
        return Err(wrong("is not one F32 number for each pair of a head"));
    }
    let mut divisors = vec![0.0; n];
    info.kind.dequantise(&gguf.map[info.at.clone()], &mut divisors);
    let factor = f64::from(divisors.iter().copied().fold(1.0, f32::max));
    if divisors.iter().all(|d| *d == 1.0) {
        return Ok(None);
    }
    let (low, high, original) = (1.0, 4.0, 8192.0);
    let same = divisors.iter().enumerate().all(|(i, &divisor)| {
        let exponent = 2.0 * i as f64 / head_dim as f64;
        let wavelength = 2.0 * std::f64::consts::PI * crate::math::pow(theta, exponent);
        let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
        let wanted = 1.0 / ((1.0 - smooth) / factor + smooth);
        (f64::from(divisor) - wanted).abs() <= 1e-5 * wanted
    });
    if !same {
        return Err(wrong(
            "scales RoPE otherwise than Llama 3 (low_freq_factor 1, high_freq_factor 4, 8192 original positions), \
             which is not supported",
        ));
    }
    Ok(Some(json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original as u64})))
}

/// The file's name of a parameter.
fn gguf_name(hf: &str) -> Option<String> {
    let whole = match hf {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(name) = whole {
        return Some(name.into());
    }
    let (layer, name) = hf.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, part) = name.rsplit_once('.')?; // weight or bias
    let module = match module {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{module}.{part}"))
}

/// The tensor of each parameter of the table, in its order and shape; none is left over.
pub fn sources<'a>(gguf: &'a Gguf, table: &Table) -> Result<Vec<&'a TensorInfo>, GgufFault> {
    let mut left: std::collections::BTreeSet<&str> = gguf.container.tensors.keys().map(String::as_str).collect();
    left.remove(ROPE_FREQS); // The shape has it.
    let mut sources = Vec::new();
    for entry in &table.entries {
        let name = gguf_name(&entry.name).unwrap_or_else(|| entry.name.clone());
        let wrong = |reason: String| GgufFault::Tensor { tensor: name.clone(), reason };
        let info = gguf.container.tensors.get(&name).ok_or_else(|| wrong("is missing".into()))?;
        if info.shape != entry.shape {
            return Err(wrong(format!("has shape {:?}, but the metadata ask for {:?}", info.shape, entry.shape)));
        }
        left.remove(name.as_str());
        sources.push(info);
    }
    match left.first() {
        None => Ok(sources),
        Some(name) => {
            let reason = "is not known, and the model may not be computed rightly without it".into();
            Err(GgufFault::Tensor { tensor: name.to_string(), reason })
        }
    }
}

/// Where row r of the file belongs among the rows of the parameter called `name`.
pub fn row_order(gguf: &Gguf, config: &Config, name: &str) -> impl Fn(usize) -> usize + use<> {
    let turned = name.contains(".q_proj.") || name.contains(".k_proj.");
    let interleaved = turned && architecture(gguf).is_ok_and(|(_, rows)| rows == Rows::Interleaved);
    let head_dim = config.head_dim;
    move |row| {
        let (head, inside) = (row / head_dim, row % head_dim);
        if interleaved { head * head_dim + inside % 2 * (head_dim / 2) + inside / 2 } else { row }
    }
}

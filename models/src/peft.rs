//! Adapters on disk, in the layout of the Python library peft: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! A value head is trained together with adapters and lies beside them in `value_head.safetensors`, a file that peft does
//! not look at. What an adapter file can say and this engine does not compute is refused by name.

use crate::atomic_file;
use crate::config::Config;
use crate::lora::{Lora, Module};
use crate::params::Params;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that makes a folder an adapter.
pub const CONFIG: &str = "adapter_config.json";
const MODEL: &str = "adapter_model.safetensors";
const VALUE_HEAD: &str = "value_head.safetensors";
const PREFIX: &str = "base_model.model.";

/// Why adapters could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PeftError {
    /// The file system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Read or write.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file does not say what it should.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and with which key or tensor.
        reason: String,
    },
}

/// An adapter folder: what it is, and the model it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Rank, α and targets.
    pub lora: Lora,
    /// `base_model_name_or_path`: the model whose weights the adapters add to.
    pub base: String,
}

fn content(path: &Path, reason: impl Into<String>) -> PeftError {
    PeftError::Content { path: path.to_path_buf(), reason: reason.into() }
}

/// Reads `adapter_config.json`.
///
/// **Errors** [`PeftError`]: no LoRA, or one with what is not computed here (DoRA, patterns of ranks, trained biases or other
/// modules, chosen layers).
pub fn describe(dir: &Path) -> Result<Description, PeftError> {
    let path = dir.join(CONFIG);
    let read = |source| PeftError::Io { what: "read", path: path.clone(), source };
    let text = std::fs::read_to_string(&path).map_err(read)?;
    let object: Map<String, Value> =
        serde_json::from_str(&text).map_err(|e| content(&path, format!("not a JSON object: {e}")))?;
    let bad = |key: &str, expected: &str| {
        let found = object.get(key).map_or("missing".to_string(), Value::to_string);
        content(&path, format!("{key} is {found}; {expected}"))
    };
    if object.get("peft_type") != Some(&json!("LORA")) {
        return Err(bad("peft_type", "only \"LORA\" is supported"));
    }
    let absent = |v: &Value| match v {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    for key in [
        "use_dora",
        "rank_pattern",
        "alpha_pattern",
        "layers_to_transform",
        "layers_pattern",
        "modules_to_save",
        "fan_in_fan_out",
        "layer_replication",
        "lora_bias",
        "trainable_token_indices",
        "exclude_modules",
        "target_parameters",
    ] {
        if object.get(key).is_some_and(|v| !absent(v)) {
            return Err(bad(key, "this is not supported: it must be absent, null, false or empty"));
        }
    }
    if object.get("bias").is_some_and(|v| v != "none") {
        return Err(bad("bias", "only \"none\" is supported"));
    }
    let rank = object.get("r").and_then(Value::as_u64).and_then(|r| usize::try_from(r).ok());
    let rank =
        rank.filter(|r| (1..=1 << 16).contains(r)).ok_or_else(|| bad("r", "a rank of 1 to 65536 is expected"))?;
    let alpha = object.get("lora_alpha").and_then(Value::as_f64).filter(|a| a.is_finite());
    let alpha = alpha.ok_or_else(|| bad("lora_alpha", "a number is expected"))?;
    // With rsLoRA the scale is α/√r; ours is α/r.
    let rs = object.get("use_rslora").is_some_and(|v| v == &json!(true));
    let alpha = if rs { alpha * (rank as f64).sqrt() } else { alpha };
    let names = match object.get("target_modules") {
        Some(Value::String(all)) if all == "all-linear" => Module::ALL.map(|m| m.name().to_string()).to_vec(),
        Some(Value::Array(list)) => list.iter().map(|n| n.as_str().unwrap_or_default().to_string()).collect(),
        _ => return Err(bad("target_modules", "a list of linear layers, or \"all-linear\", is expected")),
    };
    let mut targets = Vec::new();
    for name in &names {
        let known = Module::ALL.map(|m| m.name()).join(", ");
        let module = Module::parse(name);
        targets.push(module.ok_or_else(|| content(&path, format!("target_modules has {name:?}; known are {known}")))?);
    }
    targets.sort_unstable();
    targets.dedup();
    if targets.is_empty() {
        return Err(bad("target_modules", "at least one is needed"));
    }
    let base = object.get("base_model_name_or_path").and_then(Value::as_str).unwrap_or_default().to_string();
    Ok(Description { lora: Lora { rank, alpha, targets }, base })
}

/// Reads the adapters of a folder, over the table of `lora` for a model of this shape; a value head that the file lacks is zero.
///
/// **Errors** [`PeftError`], naming the file and the tensor.
pub fn load(dir: &Path, config: &Config, lora: &Lora) -> Result<Params, PeftError> {
    let path = dir.join(MODEL);
    let table = lora.table(config);
    // Before anything of that size is allocated: a number takes at least two bytes of the file.
    let bytes =
        std::fs::metadata(&path).map_err(|source| PeftError::Io { what: "read", path: path.clone(), source })?.len();
    if table.len() as u64 > bytes / 2 + config.d_model as u64 + 1 {
        return Err(content(
            &path,
            format!("{bytes} bytes do not hold the {} numbers that {CONFIG} asks for", table.len()),
        ));
    }
    let mut params = Params::zeros(Arc::new(table));
    let mut missing: Vec<String> = params.table.entries.iter().map(|e| e.name.clone()).collect();
    read_into(&path, PREFIX, &mut params, &mut missing)?;
    let value_head = dir.join(VALUE_HEAD);
    if config.value_head && value_head.exists() {
        read_into(&value_head, "", &mut params, &mut missing)?;
    }
    missing.retain(|name| !name.starts_with("value_head."));
    match missing.first() {
        None => Ok(params),
        Some(name) => Err(content(&path, format!("has no tensor {PREFIX}{name}, which {CONFIG} asks for"))),
    }
}

/// Whether a folder of adapters has a value head with them.
pub fn has_value_head(dir: &Path) -> bool {
    dir.join(VALUE_HEAD).exists()
}

fn read_into(path: &Path, prefix: &str, params: &mut Params, missing: &mut Vec<String>) -> Result<(), PeftError> {
    let read = |source| PeftError::Io { what: "read", path: path.to_path_buf(), source };
    let bytes = std::fs::read(path).map_err(read)?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|e| content(path, format!("not a whole safetensors file: {e}; copy the file again")))?;
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0)); // So that the first thing wrong is always the same one.
    for (name, tensor) in tensors {
        let entry = name.strip_prefix(prefix).and_then(|name| params.table.find(name)).cloned();
        let entry = entry.ok_or_else(|| {
            content(path, format!("has a tensor {name} that {CONFIG} and the base model do not ask for"))
        })?;
        if tensor.shape() != entry.shape {
            let (found, wanted) = (tensor.shape(), &entry.shape);
            return Err(content(path, format!("tensor {name} has shape {found:?}, but {wanted:?} is asked for")));
        }
        let to = params.data[entry.range()].iter_mut();
        let data = tensor.data();
        match tensor.dtype() {
            Dtype::F32 => {
                to.zip(data.chunks_exact(4)).for_each(|(x, b)| *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            }
            Dtype::BF16 => {
                to.zip(data.chunks_exact(2)).for_each(|(x, b)| *x = half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
            }
            Dtype::F16 => {
                to.zip(data.chunks_exact(2)).for_each(|(x, b)| *x = half::f16::from_le_bytes([b[0], b[1]]).to_f32())
            }
            other => {
                return Err(content(path, format!("tensor {name} holds {other:?}; F32, BF16 and F16 can be read")));
            }
        }
        missing.retain(|name| *name != entry.name);
    }
    Ok(())
}

/// Writes an adapter folder, each file atomically; equal adapters give equal bytes. The folder is made if it is not there.
///
/// **Errors** [`PeftError::Io`].
pub fn save(dir: &Path, of: &Description, params: &Params) -> Result<(), PeftError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| PeftError::Io { what: "write", path, source }
    };
    std::fs::create_dir_all(dir).map_err(failed(dir))?;
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        atomic_file::write(&path, |file| file.write_all(bytes)).map_err(failed(&path))
    };
    let is_value_head = |name: &str| name.starts_with("value_head.");
    write(MODEL, &encode(params, PREFIX, &|name| !is_value_head(name)))?;
    if params.table.entries.iter().any(|e| is_value_head(&e.name)) {
        write(VALUE_HEAD, &encode(params, "", &is_value_head))?;
    }
    let names: Vec<&str> = of.lora.targets.iter().map(|m| m.name()).collect();
    let alpha = match of.lora.alpha.fract() == 0.0 && of.lora.alpha.abs() < 1e15 {
        true => json!(of.lora.alpha as i64),
        false => json!(of.lora.alpha),
    };
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": of.base,
        "r": of.lora.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "use_rslora": false,
        "target_modules": names,
    });
    write(CONFIG, format!("{config:#}\n").as_bytes())
}

/// A safetensors file of the tensors whose names `wanted` accepts.
fn encode(params: &Params, prefix: &str, wanted: &dyn Fn(&str) -> bool) -> Vec<u8> {
    let views = params.table.entries.iter().filter(|e| wanted(&e.name)).map(|entry| {
        let bytes = bytemuck::cast_slice(&params.data[entry.range()]);
        let view = TensorView::new(Dtype::F32, entry.shape.clone(), bytes);
        (format!("{prefix}{}", entry.name), view.unwrap_or_else(|e| unreachable!("the shape is that of the data: {e}")))
    });
    // One entry, so the map's order cannot reach the file.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    serialize(views, Some(metadata)).unwrap_or_else(|e| unreachable!("names in a table differ: {e}"))
}

//! From a configuration to a policy: a fresh model, a folder, a run, or a shipped model by name; and back to a checkpoint.

use super::Failure;
use ragen::config::{Config, Optim};
use ragen::estimator::Estimator;
use ragen::policy::model::Model;
use ragen::run::{self, RunDir, Saved, StateToSave};
use ragen::train::TrainState;
use ragen_models::chat_template::Chat;
use ragen_models::config::{Family, Rope};
use ragen_models::device::Cpu;
use ragen_models::gguf::{self, GgufError};
use ragen_models::lora::Lora;
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::{Params, Table};
use ragen_models::peft;
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::{Config as Shape, Transformer};
use ragen_models::weights::{self, Checkpoint};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A policy with the tokenizer that belongs to it.
pub struct Opened {
    /// The policy.
    pub policy: Model,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, if it brings one.
    pub chat: Option<Arc<Chat>>,
    /// The model that adapters add to: an absolute path, or the name of a shipped model.
    pub base: String,
}

/// The folder in a run in which a warm start leaves its model.
pub const MODEL: &str = "model";

/// The files of a model folder: name and content.
type Files = &'static [(&'static str, &'static [u8])];

/// The files of a shipped model.
macro_rules! shipped {
    ($name:literal) => {
        (
            $name,
            &[
                ("config.json", include_bytes!(concat!("../../models/shipped/", $name, "/config.json"))),
                ("model.safetensors", include_bytes!(concat!("../../models/shipped/", $name, "/model.safetensors"))),
                ("tokenizer.json", include_bytes!(concat!("../../models/shipped/", $name, "/tokenizer.json"))),
            ],
        )
    };
}

/// The shipped models by name: warm starts, made by `ragen warmstart NAME` byte for byte.
const SHIPPED: &[(&str, Files)] = &[shipped!("sokoban"), shipped!("frozen_lake")];

/// Refuses a device that is not there.
pub fn check_device(config: &Config) -> Result<(), Failure> {
    match config.run.device.as_str() {
        "auto" | "cpu" => Ok(()),
        _ => ragen_models::require_cuda().map_err(|e| Failure::Device(format!("--device {}: {e}", config.run.device))),
    }
}

/// The policy that training starts from.
pub fn open(config: &Config) -> Result<Opened, Failure> {
    if config.model.path.is_empty() { fresh(config, &config.optim) } else { load(&config.model.path, config) }
}

/// A policy of fresh weights, whatever `model.path` says.
pub fn fresh(config: &Config, optim: &Optim) -> Result<Opened, Failure> {
    let tokenizer = Tokenizer::tiny();
    let shape = fresh_shape(config, &tokenizer)?;
    let params = Transformer::initial(&shape, config.run.seed);
    let checkpoint = Checkpoint { config: shape, params };
    let model = Loaded { checkpoint, tokenizer, chat: None, base: String::new(), adapters: None };
    assemble(config, optim, model)
}

/// The shape that `[model]` describes.
pub fn fresh_shape(config: &Config, tokenizer: &Tokenizer) -> Result<Shape, Failure> {
    let model = &config.model;
    let shape = Shape {
        family: Family::of(model.qkv_bias, model.qk_norm),
        vocab: tokenizer.vocab(),
        d_model: model.d_model,
        n_layers: model.n_layers,
        n_heads: model.n_heads,
        n_kv_heads: model.n_kv_heads,
        head_dim: model.d_model / model.n_heads,
        d_ff: model.d_ff,
        rope: Rope::plain(model.rope_theta),
        sliding_window: None,
        norm_eps: model.norm_eps,
        tied_embeddings: model.tied_embeddings,
        qkv_bias: model.qkv_bias,
        qk_norm: model.qk_norm,
        value_head: needs_value_head(config),
        max_positions: config.rollout.model_tokens,
    };
    shape.check().map_err(|e| Failure::Usage(format!("model: {e}")))?;
    Ok(shape)
}

/// The policy at `path`: a model folder, a run, or the name of a shipped model.
pub fn load(path: &str, config: &Config) -> Result<Opened, Failure> {
    assemble(config, &config.optim, read(path)?)
}

/// What a path holds.
struct Loaded {
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    chat: Option<Chat>,
    base: String,
    /// Adapters that were saved, over the shape with a value head if they have one.
    adapters: Option<(Lora, Params)>,
}

fn read(path: &str) -> Result<Loaded, Failure> {
    if let Some((name, files)) = SHIPPED.iter().find(|(name, _)| *name == path && !Path::new(path).exists()) {
        return unpack(name, files).and_then(|folder| {
            let loaded = read_folder(&folder);
            let _ = fs::remove_dir_all(&folder); // It is in a folder for temporary files.
            Ok(Loaded { base: (*name).into(), ..loaded? })
        });
    }
    match Path::new(path) {
        file if file.is_file() => read_gguf(file),
        folder => read_folder(&model_folder(folder)?),
    }
}

fn read_gguf(path: &Path) -> Result<Loaded, Failure> {
    let broken = |e: GgufError| Failure::Usage(e.to_string());
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(format!("{}: {e}", path.display()));
    let file = gguf::open(path).map_err(broken)?;
    let tokenizer = Tokenizer::from_json(file.tokenizer_json().map_err(broken)?).map_err(|e| usage(&e))?;
    let chat = match file.chat_template().map_err(broken)? {
        None => None,
        Some(source) => {
            let bos = file.bos().map_err(broken)?;
            let ends = [file.eos().map_err(broken)?, file.eot().map_err(broken)?];
            let ends: Vec<u32> = ends.into_iter().flatten().collect();
            let name = format!("of {}", path.display());
            Some(Chat::from_parts(&name, source, bos, &ends, &tokenizer).map_err(|e| usage(&e))?)
        }
    };
    let checkpoint = file.load().map_err(broken)?;
    let base = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string();
    Ok(Loaded { checkpoint, tokenizer, chat, base, adapters: None })
}

fn read_folder(folder: &Path) -> Result<Loaded, Failure> {
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(e.to_string());
    if folder.join(peft::CONFIG).is_file() {
        let peft::Description { lora, base } = peft::describe(folder).map_err(|e| usage(&e))?;
        let mut loaded = read(&base).map_err(|e| {
            let why = e.text().unwrap_or_default();
            usage(&format_args!("{}: base_model_name_or_path: {why}", folder.join(peft::CONFIG).display()))
        })?;
        if loaded.adapters.is_some() {
            return Err(usage(&format_args!("{}: {base} is no base but has adapters itself", folder.display())));
        }
        loaded.checkpoint.config.value_head |= peft::has_value_head(folder);
        let params = peft::load(folder, &loaded.checkpoint.config, &lora).map_err(|e| usage(&e))?;
        loaded.adapters = Some((lora, params));
        return Ok(loaded);
    }
    let checkpoint = weights::load(folder).map_err(|e| usage(&e))?;
    let tokenizer = Tokenizer::load(folder).map_err(|e| usage(&e))?;
    let base = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf()).display().to_string();
    let chat = Chat::load(folder, &tokenizer).map_err(|e| usage(&e))?;
    Ok(Loaded { checkpoint, tokenizer, chat, base, adapters: None })
}

/// The model folder that a path means: itself, or the newest model of a run.
fn model_folder(path: &Path) -> Result<PathBuf, Failure> {
    let is_model = |path: &Path| path.join("config.json").is_file() || path.join(peft::CONFIG).is_file();
    if is_model(path) {
        return Ok(path.to_path_buf());
    }
    if run::is_run(path) {
        let warm = path.join(MODEL);
        if is_model(&warm) {
            return Ok(warm);
        }
        return Ok(RunDir::open(path)?.newest_checkpoint()?.path);
    }
    let shipped = SHIPPED.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let shipped = if shipped.is_empty() { String::new() } else { format!(", nor one of the shipped models {shipped}") };
    Err(Failure::Usage(format!(
        "there is no model {}: it is neither a folder with config.json nor a run{shipped}",
        path.display()
    )))
}

fn unpack(name: &str, files: Files) -> Result<PathBuf, Failure> {
    let folder = std::env::temp_dir().join(format!("ragen-{}-{name}", std::process::id()));
    let written = fs::create_dir_all(&folder)
        .and_then(|()| files.iter().try_for_each(|(file, bytes)| fs::write(folder.join(file), bytes)));
    written.map_err(|e| Failure::Run(format!("cannot unpack the shipped model into {}: {e}", folder.display())))?;
    Ok(folder)
}

/// Puts a policy together from what was loaded and what the configuration asks for.
fn assemble(config: &Config, optim: &Optim, loaded: Loaded) -> Result<Opened, Failure> {
    let cpu = Arc::new(Cpu::new(config.run.threads).map_err(Failure::Usage)?);
    let Loaded { checkpoint, tokenizer, chat, base, adapters } = loaded;
    let precision = config.model.dtype;
    let value_model = config.model.value_model.then(|| {
        let Checkpoint { config, params } = checkpoint.clone().with_value_head();
        Transformer::new(&cpu, config, params, precision)
    });
    let checkpoint = if needs_value_head(config) { checkpoint.with_value_head() } else { checkpoint };
    let model = match adapters_of(config, &checkpoint, adapters)? {
        None => Transformer::new(&cpu, checkpoint.config, checkpoint.params, precision),
        Some((lora, adapters)) => {
            let shape = checkpoint.config.clone();
            let frozen = checkpoint.without_value_head().params;
            Transformer::with_adapters(&cpu, shape, frozen, precision, lora, adapters)
        }
    };
    let mut policy = Model::over(cpu, model, adamw(optim));
    if let Some(value_model) = value_model {
        policy = policy.with_value_model(value_model, config.model.value_lr_factor);
    }
    Ok(Opened { policy, tokenizer: Arc::new(tokenizer), chat: chat.map(Arc::new), base })
}

/// The adapters to train: those that were saved, or fresh ones as `[model.lora]` says.
fn adapters_of(
    config: &Config,
    checkpoint: &Checkpoint,
    saved: Option<(Lora, Params)>,
) -> Result<Option<(Lora, Params)>, Failure> {
    let asked = config.model.lora.settings();
    let shape = &checkpoint.config;
    // A value head that the weights bring along goes on from what they say.
    let with_value = |lora: &Lora, from: Option<&Params>, mut params: Params| {
        for entry in lora.table(shape).entries {
            let known = from.and_then(|from| from.table.find(&entry.name).map(|e| &from.data[e.range()]));
            if let Some(known) = known {
                params.data[entry.range()].copy_from_slice(known);
            }
        }
        params
    };
    match (saved, asked) {
        (None, None) => Ok(None),
        (None, Some(lora)) => {
            let params = with_value(&lora, Some(&checkpoint.params), lora.initial(shape, config.run.seed));
            Ok(Some((lora, params)))
        }
        (Some((lora, _)), Some(asked)) if lora != asked => Err(Failure::Usage(format!(
            "model.lora: model.path holds adapters of rank {}, alpha {} on {}; ask for the same, or set model.lora.rank=0",
            lora.rank,
            lora.alpha,
            lora.targets.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ")
        ))),
        (Some((lora, params)), _) => {
            // The shape may have gained a value head since they were saved.
            let fresh = with_value(&lora, Some(&checkpoint.params), Params::zeros(Arc::new(lora.table(shape))));
            let params = with_value(&lora, Some(&params), fresh);
            Ok(Some((lora, params)))
        }
    }
}

/// GAE reads values, so it brings its head with it, unless a model of its own gives them.
fn needs_value_head(config: &Config) -> bool {
    config.model.value_head || (config.algorithm.estimator == Estimator::Gae && !config.model.value_model)
}

fn adamw(optim: &Optim) -> AdamWSettings {
    AdamWSettings {
        beta1: optim.betas[0],
        beta2: optim.betas[1],
        eps: optim.eps,
        weight_decay: optim.weight_decay,
        clip_norm: (optim.clip_norm > 0.0).then_some(optim.clip_norm),
    }
}

/// Writes a model folder: shape and weights, or the adapters and which model they add to; tokenizer and chat template.
pub fn save_model(
    folder: &Path,
    policy: &Model,
    tokenizer: &Tokenizer,
    chat: Option<&Chat>,
    base: &str,
) -> Result<(), String> {
    match policy.model().lora() {
        None => weights::save(folder, policy.config(), policy.params()).map_err(|e| e.to_string())?,
        Some(lora) => {
            let of = peft::Description { lora: lora.clone(), base: base.into() };
            peft::save(folder, &of, policy.trained()).map_err(|e| e.to_string())?;
        }
    }
    tokenizer.save(folder).map_err(|e| e.to_string())?;
    chat.map_or(Ok(()), |chat| chat.save(folder).map_err(|e| e.to_string()))
}

/// Everything beside the model folder that training goes on from.
pub fn trainer_state<'a>(policy: &'a Model, state: &TrainState) -> StateToSave<'a> {
    let optimiser = policy.optimiser();
    let mut value = json!({"optimiser_steps": optimiser.steps, "train": state});
    let mut buffers: Vec<(&str, &[f32])> = vec![("m", &optimiser.m.data), ("v", &optimiser.v.data)];
    buffers.extend(policy.reference().map(|params| ("reference", params.data.as_slice())));
    if let Some((params, optimiser)) = policy.value_model() {
        value["value_optimiser_steps"] = json!(optimiser.steps);
        buffers.push(("value_model", &params.data));
        buffers.push(("value_model.m", &optimiser.m.data));
        buffers.push(("value_model.v", &optimiser.v.data));
    }
    StateToSave { value, buffers }
}

/// The policy and the trainer's state of a checkpoint.
pub fn restore(config: &Config, mut saved: Saved) -> Result<(Opened, TrainState), Failure> {
    let broken = |why: &str| Failure::Run(format!("{}: {why}", saved.path.display()));
    let mut opened = assemble(config, &config.optim, read_folder(&saved.path)?)?;
    let policy = &mut opened.policy;
    let mut optimiser = |m: &str, v: &str, steps: &str, table: &Arc<Table>| {
        let params = |data: Vec<f32>| Params { table: table.clone(), data };
        let m = saved.state.take(m, table.len()).map(params);
        let v = saved.state.take(v, table.len()).map(params);
        let steps = saved.state.value[steps].as_u64().ok_or_else(|| broken("trainer.state has no count of steps"))?;
        let (m, v) = m.zip(v).ok_or_else(|| broken("trainer.state belongs to a model of another shape"))?;
        Ok::<AdamW, Failure>(AdamW { settings: adamw(&config.optim), m, v, steps })
    };
    let own = optimiser("m", "v", "optimiser_steps", &policy.trained().table)?;
    let value_table = policy.value_model().map(|(params, _)| params.table.clone());
    let of_value = match &value_table {
        Some(table) => Some(optimiser("value_model.m", "value_model.v", "value_optimiser_steps", table)?),
        None => None,
    };
    let table = policy.params().table.clone();
    let reference = saved.state.take("reference", table.len()).map(|data| Params { table, data });
    policy.restore(own, reference);
    if let Some((table, optimiser)) = value_table.zip(of_value) {
        let data = saved.state.take("value_model", table.len());
        let data = data.ok_or_else(|| broken("trainer.state lacks the value model's weights"))?;
        policy.restore_value_model(Params { table, data }, optimiser);
    }
    let state: TrainState = serde_json::from_value(saved.state.value["train"].clone())
        .map_err(|e| broken(&format!("trainer.state cannot be read: {e}")))?;
    if config.update.loss.kl.coef != 0.0 && !policy.has_reference() {
        return Err(broken("update.loss.kl.coef needs the reference, which this checkpoint lacks"));
    }
    Ok((opened, state))
}

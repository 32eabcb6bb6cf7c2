//! From a configuration to a policy: a fresh model, a folder, a run, or a shipped model by name; and back to a checkpoint.

use super::Failure;
use ragen::config::{Config, Optim};
use ragen::estimator::Estimator;
use ragen::policy::model::Model;
use ragen::run::{self, RunDir, Saved, TrainerState};
use ragen::train::TrainState;
use ragen_models::device::Cpu;
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::{Params, Table};
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
    assemble(config, optim, Checkpoint { config: shape, params }, tokenizer)
}

/// The shape that `[model]` describes.
pub fn fresh_shape(config: &Config, tokenizer: &Tokenizer) -> Result<Shape, Failure> {
    let model = &config.model;
    let shape = Shape {
        vocab: tokenizer.vocab(),
        d_model: model.d_model,
        n_layers: model.n_layers,
        n_heads: model.n_heads,
        n_kv_heads: model.n_kv_heads,
        head_dim: model.d_model / model.n_heads,
        d_ff: model.d_ff,
        rope_theta: model.rope_theta,
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
    if let Some((name, files)) = SHIPPED.iter().find(|(name, _)| *name == path && !Path::new(path).exists()) {
        return unpack(name, files).and_then(|folder| {
            let opened = load_folder(&folder, config);
            let _ = fs::remove_dir_all(&folder); // It is in a folder for temporary files.
            opened
        });
    }
    load_folder(&model_folder(Path::new(path))?, config)
}

/// The model folder that a path means: itself, or the newest model of a run.
fn model_folder(path: &Path) -> Result<PathBuf, Failure> {
    if path.join("config.json").is_file() {
        return Ok(path.to_path_buf());
    }
    if run::is_run(path) {
        let warm = path.join(MODEL);
        if warm.join("config.json").is_file() {
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

fn load_folder(folder: &Path, config: &Config) -> Result<Opened, Failure> {
    let checkpoint = weights::load(folder).map_err(|e| Failure::Usage(e.to_string()))?;
    let tokenizer = Tokenizer::load(folder).map_err(|e| Failure::Usage(e.to_string()))?;
    let checkpoint = if needs_value_head(config) { checkpoint.with_value_head() } else { checkpoint };
    assemble(config, &config.optim, checkpoint, tokenizer)
}

fn assemble(config: &Config, optim: &Optim, model: Checkpoint, tokenizer: Tokenizer) -> Result<Opened, Failure> {
    let cpu = Cpu::new(config.run.threads).map_err(Failure::Usage)?;
    let policy = Model::new(Arc::new(cpu), model.config, model.params, adamw(optim));
    Ok(Opened { policy, tokenizer: Arc::new(tokenizer) })
}

/// GAE reads values, so it brings its head with it.
fn needs_value_head(config: &Config) -> bool {
    config.model.value_head || config.algorithm.estimator == Estimator::Gae
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

/// Writes a model folder: shape, weights, tokenizer.
pub fn save_model(folder: &Path, policy: &Model, tokenizer: &Tokenizer) -> Result<(), String> {
    weights::save(folder, policy.config(), policy.params()).map_err(|e| e.to_string())?;
    tokenizer.save(folder).map_err(|e| e.to_string())
}

/// Everything beside the model folder that training goes on from.
pub fn trainer_state(policy: &Model, state: &TrainState) -> TrainerState {
    let optimiser = policy.optimiser();
    let mut buffers = vec![("m".to_string(), optimiser.m.data.clone()), ("v".to_string(), optimiser.v.data.clone())];
    buffers.extend(policy.reference().map(|params| ("reference".to_string(), params.data.clone())));
    TrainerState { value: json!({"optimiser_steps": optimiser.steps, "train": state}), buffers }
}

/// The policy and the trainer's state of a checkpoint.
pub fn restore(config: &Config, saved: &Saved) -> Result<(Opened, TrainState), Failure> {
    let broken = |why: &str| Failure::Run(format!("{}: {why}", saved.path.display()));
    let mut opened = load_folder(&saved.path, config)?;
    let policy = &mut opened.policy;
    let table = Arc::new(Table::new(policy.config()));
    let params = |name: &str| {
        let data = saved.state.buffer(name, table.len())?;
        Some(Params { table: table.clone(), data: data.to_vec() })
    };
    let moments = params("m").zip(params("v"));
    let (m, v) = moments.ok_or_else(|| broken("trainer.state belongs to a model of another shape"))?;
    let steps = saved.state.value["optimiser_steps"].as_u64();
    let steps = steps.ok_or_else(|| broken("trainer.state has no optimiser_steps"))?;
    let state: TrainState = serde_json::from_value(saved.state.value["train"].clone())
        .map_err(|e| broken(&format!("trainer.state cannot be read: {e}")))?;
    let optimiser = AdamW { settings: adamw(&config.optim), m, v, steps };
    let weights = policy.params().clone();
    policy.restore(weights, optimiser, params("reference"));
    if config.update.loss.kl.coef != 0.0 && policy.reference().is_none() {
        return Err(broken("update.loss.kl.coef needs the reference, which this checkpoint lacks"));
    }
    Ok((opened, state))
}

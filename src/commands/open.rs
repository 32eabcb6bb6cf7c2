//! From a configuration to a policy: a fresh model, a folder, a GGUF file, a run, or a shipped model by name; and back to a checkpoint.
//!
//! A [`Source`] is opened first: its shape, tokenizer and chat template are known then, so that prompts can be laid out and the
//! memory planned, before [`Source::assemble`] loads the weights.

use super::{Failure, engines};
use ragen::config::{Config, Optim};
use ragen::context_manager::ContextManager;
use ragen::plan::{self, Machine, Plan};
use ragen::policy::model::Model;
use ragen::run::{self, RunDir, Saved, StateToSave, Which};
use ragen::train::TrainState;
use ragen_models::chat_template::Chat;
use ragen_models::config::{Family, Rope, RopeScaling};
use ragen_models::device::{Cpu, Device, Taken};
use ragen_models::engine::EngineError;
use ragen_models::gpu;
use ragen_models::lora::Lora;
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::{Params, Table};
use ragen_models::peft;
use ragen_models::pretrained::{self, Companions, Pretrained};
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::{Config as Shape, Transformer};
use ragen_models::weights::{Checkpoint, SaveOptions};
use serde_json::json;
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// Takes the device that the configuration names and says so unless asked to be quiet; its name is then in the configuration.
pub fn take_device(config: &mut Config, quiet: bool) -> Result<Taken, Failure> {
    let device = Device::parse(&config.run.device).map_err(|text| Failure::Usage(format!("run.device: {text}")))?;
    let taken = device.take().map_err(|e| Failure::Device(format!("--device {}: {e}", config.run.device)))?;
    if !quiet {
        eprintln!("device: {}", taken.line(config.run.threads));
    }
    config.run.device = taken.device.to_string();
    Ok(taken)
}

/// A model that is opened, not loaded.
pub struct Source {
    /// Its shape, as it lies there.
    pub shape: Shape,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, if it brings one.
    pub chat: Option<Arc<Chat>>,
    /// What lies beside its weights.
    pub companions: Companions,
    /// What adapters of it call their base: an absolute path, or the name of a shipped model.
    pub base: String,
    weights: Weights,
    /// The folder of the adapters that were saved on top of it, and which they are.
    adapters: Option<(PathBuf, Lora)>,
    /// A shipped model's folder, which goes when it has been read.
    _unpacked: Option<Unpacked>,
}

/// A folder for temporary files.
struct Unpacked(PathBuf);

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

enum Weights {
    /// Drawn from this seed.
    Fresh(u64),
    Kept(Box<Pretrained>),
}

/// What a [`Source`] holds.
pub struct Loaded {
    /// Shape and weights.
    pub checkpoint: Checkpoint,
    /// Adapters that were saved, over the shape with a value head if they have one.
    pub adapters: Option<(Lora, Params)>,
}

/// The model that training starts from.
pub fn source(config: &Config) -> Result<Source, Failure> {
    if config.model.path.is_empty() { Source::fresh(config) } else { Source::open(&config.model.path) }
}

/// What a run is made of before its weights are loaded.
pub struct Prepared {
    /// The model, opened.
    pub source: Source,
    /// Lays out prompts.
    pub context: ContextManager,
    /// What fits.
    pub plan: Plan,
}

impl Prepared {
    /// Lays out prompts and plans memory; the plan's choices are written into the configuration, those that reach no result in the
    /// copy that is returned only.
    pub fn new(
        source: Source,
        config: &mut Config,
        device: &Taken,
        trains: bool,
    ) -> Result<(Prepared, Config), Failure> {
        let (tokenizer, chat) = (source.tokenizer.clone(), source.chat.clone());
        let context = ContextManager::new(config, tokenizer, chat, source.positions(config))?;
        let plan = source.plan(config, &context, device, trains)?;
        if trains {
            plan.settle(config);
        }
        let mut settled = config.clone();
        settled.rollout.places = plan.places;
        Ok((Prepared { source, context, plan }, settled))
    }
}

impl Source {
    /// Fresh weights of the shape that `[model]` describes, whatever `model.path` says.
    pub fn fresh(config: &Config) -> Result<Source, Failure> {
        let tokenizer = Tokenizer::tiny();
        Ok(Source {
            shape: fresh_shape(config, &tokenizer)?,
            tokenizer: Arc::new(tokenizer),
            chat: None,
            companions: Companions::default(),
            base: String::new(),
            weights: Weights::Fresh(config.run.seed),
            adapters: None,
            _unpacked: None,
        })
    }

    /// The model at `path`: a model folder, a GGUF file, adapters, a run, or the name of a shipped model.
    pub fn open(path: &str) -> Result<Source, Failure> {
        Source::open_at(path, None)
    }

    /// As [`Source::open`], and of a run this checkpoint.
    pub fn open_at(path: &str, which: Option<Which>) -> Result<Source, Failure> {
        match SHIPPED.iter().find(|(name, _)| *name == path && !Path::new(path).exists()) {
            Some((name, files)) if which.is_none() => {
                let unpacked = unpack(name, files)?;
                let opened = Source::open_kept(&unpacked.0)?;
                Ok(Source { base: (*name).into(), _unpacked: Some(unpacked), ..opened })
            }
            _ => Source::open_kept(&model_folder(Path::new(path), which)?),
        }
    }

    /// A model folder, a GGUF file or a folder of adapters.
    pub fn open_kept(path: &Path) -> Result<Source, Failure> {
        if !path.join(peft::CONFIG).is_file() {
            return Source::open_whole(path);
        }
        let peft::Description { lora, base } = peft::describe(path).map_err(|e| Failure::Usage(e.to_string()))?;
        let of_config = |why: &str| Failure::Usage(format!("{}: {why}", path.join(peft::CONFIG).display()));
        let mut source = match base.as_str() {
            // Adapters may lie in the very folder of their base.
            "" if pretrained::is_model(path) => Source::open_whole(path)?,
            "" => return Err(of_config("base_model_name_or_path is empty; name the folder of the base model")),
            base => Source::open(base).map_err(|e| match e {
                Failure::Usage(why) => of_config(&format!("base_model_name_or_path: {why}")),
                other => other,
            })?,
        };
        if source.adapters.is_some() {
            return Err(of_config(&format!("{base} is no base but has adapters itself")));
        }
        source.adapters = Some((path.to_path_buf(), lora));
        Ok(source)
    }

    /// A model folder or a GGUF file.
    fn open_whole(path: &Path) -> Result<Source, Failure> {
        let kept = pretrained::open(path).map_err(|e| Failure::Usage(e.to_string()))?;
        let base = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string();
        Ok(Source {
            shape: kept.config.clone(),
            tokenizer: kept.tokenizer.clone(),
            chat: kept.chat.clone(),
            companions: kept.companions.clone(),
            base,
            weights: Weights::Kept(Box::new(kept)),
            adapters: None,
            _unpacked: None,
        })
    }

    /// The shape of what is computed: with the value head that the estimator needs or adapters bring.
    fn shape_for(&self, config: &Config) -> Shape {
        let saved = self.adapters.as_ref().is_some_and(|(path, _)| peft::has_value_head(path));
        Shape { value_head: self.shape.value_head || saved || needs_value_head(config), ..self.shape.clone() }
    }

    /// Longest context of a run with this model, in tokens: its own, or with dynamic RoPE as long as is asked for.
    pub fn positions(&self, config: &Config) -> usize {
        match self.shape.rope.scaling {
            RopeScaling::Dynamic { .. } => self.shape.max_positions.max(config.rollout.model_tokens),
            _ => self.shape.max_positions,
        }
    }

    /// The memory plan of a run with this model on this device.
    pub fn plan(
        &self,
        config: &Config,
        context: &ContextManager,
        device: &Taken,
        trains: bool,
    ) -> Result<Plan, Failure> {
        let shape = self.shape_for(config);
        let machine = match &device.gpu {
            None => Machine::Cpu { threads: Cpu::threads(config.run.threads) },
            Some(gpu) => {
                let of = if self.base.is_empty() { "model" } else { &self.base };
                gpu::check(&shape).map_err(|why| Failure::Usage(format!("{of}: {why}; run with --device cpu")))?;
                Machine::Gpu { gpu: gpu.clone(), positions: self.positions(config) }
            }
        };
        // Nothing has started yet, so what cannot be played is a matter of the configuration.
        let lengths = plan::Lengths::measure(config, context).map_err(|e| Failure::Usage(e.to_string()))?;
        let lora = self.adapters.as_ref().map(|(_, lora)| lora.clone()).or_else(|| config.model.lora.settings());
        let budget = machine.budget_bytes(config.run.memory_bytes).map_err(|e| Failure::Run(e.to_string()))?;
        Plan::new(config, &shape, lora, lengths, trains, &machine, budget).map_err(|e| Failure::Usage(e.to_string()))
    }

    /// Loads the weights, and the adapters on top of them.
    pub fn load(self) -> Result<Loaded, Failure> {
        let checkpoint = match self.weights {
            Weights::Fresh(seed) => Checkpoint { params: Transformer::initial(&self.shape, seed), config: self.shape },
            Weights::Kept(kept) => kept.load().map_err(|e| Failure::Usage(e.to_string()))?,
        };
        let adapters = self.adapters.map(|saved| load_adapters(&checkpoint.config, saved)).transpose()?;
        Ok(Loaded { checkpoint, adapters })
    }

    /// Loads the adapters alone, if there are any; the base is not read.
    pub fn load_adapters(&self) -> Result<Option<(Lora, Params)>, Failure> {
        self.adapters.clone().map(|saved| load_adapters(&self.shape, saved)).transpose()
    }

    /// Loads the weights and makes of them the policy that the configuration asks for, on the device and as planned.
    pub fn assemble(self, config: &Config, optim: &Optim, device: &Taken, plan: &Plan) -> Result<Opened, Failure> {
        let (positions, shape) = (self.positions(config), self.shape_for(config));
        let belongings = Belongings {
            tokenizer: self.tokenizer.clone(),
            companions: self.companions.clone(),
            base: self.base.clone(),
        };
        let Loaded { checkpoint, adapters } = self.load()?;
        let adapters = adapters_of(config, &shape, &checkpoint, adapters)?;
        let parts = engines::Parts { shape, positions, checkpoint, adapters, optimiser: adamw(optim) };
        Ok(Opened { policy: engines::policy(parts, config, device, plan)?, belongings })
    }
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

/// The model that a path means: itself, or one of a run, the newest unless another is asked for.
fn model_folder(path: &Path, which: Option<Which>) -> Result<PathBuf, Failure> {
    let is_model = |path: &Path| pretrained::is_model(path) || path.join(peft::CONFIG).is_file();
    if let Some(which) = which {
        if !run::is_run(path) {
            let text = format!("--checkpoint {which}: {} is no run, which alone has checkpoints", path.display());
            return Err(Failure::Usage(text));
        }
        return Ok(RunDir::open(path)?.checkpoint(which)?.path);
    }
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
    Err(Failure::Usage(format!(
        "there is no model {}: it is neither a folder with config.json, nor a GGUF file, nor a run, nor one of the shipped models {shipped}",
        path.display()
    )))
}

fn unpack(name: &str, files: Files) -> Result<Unpacked, Failure> {
    let folder = std::env::temp_dir().join(format!("ragen-{}-{name}", std::process::id()));
    let written = fs::create_dir_all(&folder)
        .and_then(|()| files.iter().try_for_each(|(file, bytes)| fs::write(folder.join(file), bytes)));
    written.map_err(|e| Failure::Run(format!("cannot unpack the shipped model into {}: {e}", folder.display())))?;
    Ok(Unpacked(folder))
}

/// The adapters in a folder, for a base of this shape; a value head beside them is among them.
fn load_adapters(base: &Shape, (path, lora): (PathBuf, Lora)) -> Result<(Lora, Params), Failure> {
    let shape = Shape { value_head: base.value_head || peft::has_value_head(&path), ..base.clone() };
    let params = peft::load(&path, &shape, &lora).map_err(|e| Failure::Usage(e.to_string()))?;
    Ok((lora, params))
}

/// The adapters to train: those that were saved, or fresh ones as `[model.lora]` says.
fn adapters_of(
    config: &Config,
    shape: &Shape,
    checkpoint: &Checkpoint,
    saved: Option<(Lora, Params)>,
) -> Result<Option<(Lora, Params)>, Failure> {
    // Takes over what another table knows of the same names: a value head of the weights, or what was saved.
    fn take(from: &Params, mut params: Params) -> Params {
        for entry in &params.table.clone().entries {
            if let Some(known) = from.table.find(&entry.name) {
                params.data[entry.range()].copy_from_slice(&from.data[known.range()]);
            }
        }
        params
    }
    let asked = config.model.lora.settings();
    let (lora, params) = match (saved, asked) {
        (None, None) => return Ok(None),
        (None, Some(lora)) => {
            let params = lora.initial(shape, config.run.seed);
            (lora, take(&checkpoint.params, params))
        }
        (Some((lora, _)), Some(asked)) if lora != asked => {
            let targets = lora.targets.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ");
            return Err(Failure::Usage(format!(
                "model.lora: model.path holds adapters of rank {}, alpha {} on {targets}; ask for the same, or set model.lora.rank=0",
                lora.rank, lora.alpha,
            )));
        }
        (Some((lora, saved)), _) => {
            // The shape may have gained a value head since they were saved.
            let zeros = Params::zeros(Arc::new(lora.table(shape)));
            (lora, take(&saved, take(&checkpoint.params, zeros)))
        }
    };
    Ok(Some((lora, params)))
}

/// An estimator that reads values brings a head with it, unless a model of its own gives them.
fn needs_value_head(config: &Config) -> bool {
    config.model.value_head || (config.algorithm.estimator.reads_values() && !config.model.value_model)
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

/// A policy with what belongs to it.
pub struct Opened {
    /// The policy.
    pub policy: Model,
    /// What is saved with it.
    pub belongings: Belongings,
}

/// What a saved model has beside its policy.
#[derive(Clone)]
pub struct Belongings {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// What lay beside the weights.
    pub companions: Companions,
    /// The model that adapters add to.
    pub base: String,
}

impl Belongings {
    /// Writes a model folder: shape and weights, or the adapters and which model they add to; and what lay beside the weights.
    pub fn save(&self, folder: &Path, policy: &Model) -> Result<(), String> {
        let Belongings { tokenizer, companions, base } = self;
        let trained = policy.trained().map_err(|e| e.to_string())?;
        let saved = match policy.lora() {
            None => companions.save(folder, policy.config(), &trained, tokenizer, SaveOptions::default()),
            Some(lora) => {
                let of = peft::Description { lora: lora.clone(), base: base.clone() };
                peft::save(folder, &of, &trained).map_err(|e| e.to_string())?;
                companions.save_text(folder, tokenizer)
            }
        };
        saved.map_err(|e| e.to_string())
    }
}

/// Everything beside the model folder that training goes on from.
pub fn trainer_state<'a>(policy: &'a Model, state: &TrainState) -> Result<StateToSave<'a>, EngineError> {
    let optimiser = policy.optimiser()?;
    let mut value = json!({"optimiser_steps": optimiser.steps, "train": state});
    let mut buffers = Vec::from(moments(["m", "v"], optimiser));
    buffers.extend(policy.reference()?.map(|params| ("reference", numbers(params))));
    if let Some((params, optimiser)) = policy.value_model()? {
        value["value_optimiser_steps"] = json!(optimiser.steps);
        buffers.push(("value_model", numbers(params)));
        buffers.extend(moments(["value_model.m", "value_model.v"], optimiser));
    }
    Ok(StateToSave { value, buffers })
}

fn numbers(params: Cow<'_, Params>) -> Cow<'_, [f32]> {
    match params {
        Cow::Borrowed(params) => Cow::Borrowed(&params.data),
        Cow::Owned(params) => Cow::Owned(params.data),
    }
}

fn moments<'a>([m, v]: [&'a str; 2], optimiser: Cow<'a, AdamW>) -> [(&'a str, Cow<'a, [f32]>); 2] {
    match optimiser {
        Cow::Borrowed(of) => [(m, Cow::Borrowed(&of.m.data)), (v, Cow::Borrowed(&of.v.data))],
        Cow::Owned(of) => [(m, Cow::Owned(of.m.data)), (v, Cow::Owned(of.v.data))],
    }
}

/// The policy and the trainer's state of a checkpoint.
pub fn restore(
    config: &Config,
    source: Source,
    device: &Taken,
    plan: &Plan,
    saved: Saved,
) -> Result<(Opened, TrainState), Failure> {
    let mut opened = source.assemble(config, &config.optim, device, plan)?;
    let state = take_up(config, &mut opened.policy, saved)?;
    Ok((opened, state))
}

/// Puts a checkpoint's weights, optimiser and all else into a policy that is there already; the trainer's state of it.
pub fn go_back(config: &Config, policy: &mut Model, saved: Saved) -> Result<TrainState, Failure> {
    let source = Source::open_kept(&saved.path)?;
    let params = match source.load_adapters()? {
        Some((_, adapters)) => adapters,
        None => source.load()?.checkpoint.params,
    };
    let failed = |e: EngineError| Failure::Run(e.to_string());
    if policy.trained_table() != params.table {
        return Err(Failure::Run(format!("{} holds a model of another shape", saved.path.display())));
    }
    policy.set_trained(params).map_err(failed)?;
    take_up(config, policy, saved)
}

/// Puts what lies beside a checkpoint's weights into a policy that has them; the trainer's state of it.
fn take_up(config: &Config, policy: &mut Model, mut saved: Saved) -> Result<TrainState, Failure> {
    let broken = |why: &str| Failure::Run(format!("{}: {why}", saved.path.display()));
    let mut optimiser = |m: &str, v: &str, steps: &str, table: &Arc<Table>| {
        let params = |data: Vec<f32>| Params { table: table.clone(), data };
        let m = saved.state.take(m, table.len()).map(params);
        let v = saved.state.take(v, table.len()).map(params);
        let steps = saved.state.value[steps].as_u64().ok_or_else(|| broken("trainer.state has no count of steps"))?;
        let (m, v) = m.zip(v).ok_or_else(|| broken("trainer.state belongs to a model of another shape"))?;
        Ok::<AdamW, Failure>(AdamW { settings: adamw(&config.optim), m, v, steps })
    };
    let failed = |e: EngineError| Failure::Run(e.to_string());
    let own = optimiser("m", "v", "optimiser_steps", &policy.trained_table())?;
    let value_table = policy.value_table();
    let of_value = match &value_table {
        Some(table) => Some(optimiser("value_model.m", "value_model.v", "value_optimiser_steps", table)?),
        None => None,
    };
    let table = policy.table();
    let reference = saved.state.take("reference", table.len()).map(|data| Params { table, data });
    policy.restore(own, reference).map_err(failed)?;
    if let Some((table, optimiser)) = value_table.zip(of_value) {
        let data = saved.state.take("value_model", table.len());
        let data = data.ok_or_else(|| broken("trainer.state lacks the value model's weights"))?;
        policy.restore_value_model(Params { table, data }, optimiser).map_err(failed)?;
    }
    let state: TrainState = serde_json::from_value(saved.state.value["train"].clone())
        .map_err(|e| broken(&format!("trainer.state cannot be read: {e}")))?;
    if config.needs_reference() && !policy.has_reference() {
        return Err(broken(
            "update.loss.kl.coef, reward.kl.coef and model.reference need the reference, which this checkpoint lacks",
        ));
    }
    Ok(state)
}

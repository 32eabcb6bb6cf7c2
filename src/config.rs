//! What a run is made of: one struct a section, each field one key of the configuration file.
//!
//! The defaults are those of the published method; `configs/*.toml` choose the small ones. This module composes the
//! sections and knows the shipped environment tags; it does not read files (the command line does).
//!
//! Every struct refuses unknown keys. A default configuration serialises to the complete list of keys but for those that
//! have no default, so a file is merged over it key by key (maps merge, lists replace) before it is read back.

use crate::collapse::CollapseConfig;
use crate::estimator::AlgorithmConfig;
use crate::filter::FilterConfig;
use crate::gradient_analysis::GradientAnalysisConfig;
use crate::guards::GuardsConfig;
use crate::objective::LossConfig;
use crate::objective::correction::CorrectionConfig;
use crate::policy::Sampling;
use crate::reward::RewardConfig;
use ragen_models::optim::{Decay, Schedule};
use ragen_models::transformer::Precision;
use ragen_models::{gpu, lora};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod history;
mod rollout;

pub use history::{ContextMode, History, Overflow, Window};
pub use rollout::{Curriculum, PromptStyle, Rollout};

/// The whole configuration of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name, seed, length.
    pub run: Run,
    /// Which model, or the shape of a fresh one.
    pub model: Model,
    /// Which environments to train and validate on.
    pub env: Env,
    /// The tags that `env.*.tags` can name. The shipped ones are there from the start; a file adds or patches.
    pub envs: BTreeMap<String, Tag>,
    /// How episodes are played.
    pub rollout: Rollout,
    /// From rewards to the score that is trained on.
    pub reward: RewardConfig,
    /// Which groups are trained on.
    pub filter: FilterConfig,
    /// The advantage estimator, and what may follow it.
    pub algorithm: AlgorithmConfig,
    /// How a step's rows become optimiser steps.
    pub update: Update,
    /// The optimiser and its schedule.
    pub optim: Optim,
    /// The collapse detector.
    pub collapse: CollapseConfig,
    /// What gradients are made of.
    pub gradient_analysis: GradientAnalysisConfig,
    /// Signs that the run has gone wrong, and what is done about them.
    pub guards: GuardsConfig,
    /// Validation during training.
    pub val: Val,
    /// When to save.
    pub checkpoint: Checkpoint,
    /// Supervised start on a scripted player's demonstrations.
    pub warmstart: Warmstart,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            run: Run::default(),
            model: Model::default(),
            env: Env::default(),
            envs: ragen_envs::tags().into_iter().map(|tag| (tag.name.clone(), Tag::from(tag))).collect(),
            rollout: Rollout::default(),
            reward: RewardConfig::default(),
            filter: FilterConfig::default(),
            algorithm: AlgorithmConfig::default(),
            update: Update::default(),
            optim: Optim::default(),
            collapse: CollapseConfig::default(),
            gradient_analysis: GradientAnalysisConfig::default(),
            guards: GuardsConfig::default(),
            val: Val::default(),
            checkpoint: Checkpoint::default(),
            warmstart: Warmstart::default(),
        }
    }
}

impl Config {
    /// Whether anything is measured from the frozen reference.
    pub fn needs_reference(&self) -> bool {
        self.model.reference || self.update.loss.kl.coef != 0.0 || self.reward.kl.coef != 0.0
    }
}

/// How the number of a step's trajectories is made divisible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchAdjust {
    /// Not at all.
    #[default]
    None,
    /// Some are trained on twice.
    Copy,
    /// Some are left out; where that would leave none, as `copy`.
    Delete,
}

/// `[run]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// Name of the run; its directory is `runs/<name>-<seed>`.
    pub name: String,
    /// Root of all random numbers: weights, demonstrations, sampling.
    pub seed: u64,
    /// Training steps.
    pub steps: u64,
    /// Worker threads; 0 is one per core. Results do not depend on it.
    pub threads: usize,
    /// Where to compute: a name of `ragen_models::device::Device`.
    pub device: String,
    /// Who multiplies matrices on a GPU.
    pub products: Products,
    /// Write every n-th step's trajectories; 0 writes none.
    pub trajectories_every: u64,
    /// Bytes that the run may take; 0: what the machine has available.
    pub memory_bytes: usize,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            name: "run".into(),
            seed: 0,
            steps: 200,
            threads: 0,
            device: "auto".into(),
            products: Products::Library,
            trajectories_every: 10,
            memory_bytes: 0,
        }
    }
}

/// Who multiplies matrices on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Products {
    /// cuBLASLt where it is there, our own kernel elsewhere.
    Library,
    /// Our own kernel.
    Invariant,
}

impl From<Products> for gpu::Products {
    fn from(products: Products) -> Self {
        match products {
            Products::Library => gpu::Products::Library,
            Products::Invariant => gpu::Products::Invariant,
        }
    }
}

/// `[model]`: a path, or the shape of a fresh model when there is no path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Directory in Hugging Face layout, or the name of a shipped model. Empty: a fresh model of the shape below.
    pub path: String,
    /// What the inputs of the linear products are rounded to: `f32` (not at all) or `bf16`. Weights and optimiser stay f32.
    pub dtype: Precision,
    /// Blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads; `d_model` is divisible by it.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
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
    /// RMSNorm of every head's q and k.
    pub qk_norm: bool,
    /// Keep a reference also where the divergence from it costs nothing.
    pub reference: bool,
    /// A value head. Added to a loaded model too, when it has none and the estimator needs one.
    pub value_head: bool,
    /// A value model of its own, which starts from the same weights, instead of a head on the policy.
    pub value_model: bool,
    /// The value model's learning rate, in units of the policy's.
    pub value_lr_factor: f64,
    /// Steps at the beginning in which the value model alone is trained.
    pub value_warmup_steps: u64,
    /// Low-rank adapters, trained instead of the weights.
    pub lora: Lora,
}

/// `[model.lora]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lora {
    /// Rank r; 0 trains the weights themselves.
    pub rank: usize,
    /// α: an adapter's product is scaled by α / r.
    pub alpha: f64,
    /// The linear layers that have one, by their names in a checkpoint.
    pub targets: Vec<String>,
}

impl Default for Lora {
    fn default() -> Self {
        Lora { rank: 0, alpha: 16.0, targets: lora::Module::ALL.map(|module| module.name().into()).to_vec() }
    }
}

impl Lora {
    /// The adapters asked for, if any.
    pub fn settings(&self) -> Option<lora::Lora> {
        let mut targets: Vec<_> = self.targets.iter().filter_map(|name| lora::Module::parse(name)).collect();
        targets.sort_unstable();
        targets.dedup();
        (self.rank > 0).then_some(lora::Lora { rank: self.rank, alpha: self.alpha, targets })
    }
}

impl Default for Model {
    fn default() -> Self {
        Model {
            path: String::new(),
            dtype: Precision::F32,
            n_layers: 3,
            d_model: 96,
            n_heads: 4,
            n_kv_heads: 4,
            d_ff: 256,
            rope_theta: 500.0,
            norm_eps: 1e-6,
            tied_embeddings: false,
            qkv_bias: false,
            qk_norm: false,
            reference: false,
            value_head: false,
            value_model: false,
            value_lr_factor: 1.0,
            value_warmup_steps: 0,
            lora: Lora::default(),
        }
    }
}

/// `[env]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Env {
    /// The environments trained on.
    pub train: EnvSet,
    /// The environments validated on.
    pub val: EnvSet,
}

impl Default for Env {
    fn default() -> Self {
        Env {
            train: EnvSet { groups: 8, group_size: 16, seed: 10_000, ..EnvSet::default() },
            val: EnvSet { groups: 512, group_size: 1, seed: 123, ..EnvSet::default() },
        }
    }
}

/// `[env.train]`, `[env.val]`: which tags, how many groups of each, how many members a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSet {
    /// The tags, each a key of `[envs]`.
    pub tags: Vec<String>,
    /// Groups in all.
    pub groups: usize,
    /// Groups of each tag, summing to `groups`. Empty: an even split, the remainder to the first tags.
    pub n_groups: Vec<usize>,
    /// Members of a group: trajectories from one seed.
    pub group_size: usize,
    /// Base seed. Training moves on by `groups` a step; validation uses the same seeds every time.
    pub seed: u64,
    /// Environments that wait for something outside (a program, a server) played at once at most; 0: two a core, at least 8.
    /// Changes no result.
    pub workers: usize,
}

impl Default for EnvSet {
    fn default() -> Self {
        EnvSet {
            tags: vec!["CoordSokoban".into()],
            groups: 8,
            n_groups: Vec::new(),
            group_size: 1,
            seed: 0,
            workers: 0,
        }
    }
}

/// `[envs.TAG]`: a named preset of an environment type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tag {
    /// The environment type, as `ragen envs` lists them.
    pub r#type: String,
    /// Actions executed in one episode at most.
    pub max_actions: usize,
    /// Task text of the system message; empty: the environment's own.
    pub instruction: String,
    /// The whole answer is one action: it is not split at the separator.
    pub single_action: bool,
    /// The response length that the prompt announces, in tokens; never enforced. 0: `rollout.response_tokens`.
    pub max_tokens: usize,
    /// The environment's own settings; those left out keep the type's defaults.
    pub config: serde_json::Map<String, serde_json::Value>,
}

impl From<ragen_envs::Tag> for Tag {
    fn from(tag: ragen_envs::Tag) -> Self {
        Tag {
            r#type: tag.env_type,
            max_actions: tag.max_actions,
            instruction: tag.instruction.unwrap_or_default(),
            single_action: tag.single_action,
            max_tokens: tag.max_tokens,
            config: tag.config.as_object().cloned().unwrap_or_default(),
        }
    }
}

/// What of a forward is computed again in the backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Blocks, if they do not all fit.
    Auto,
    /// Nothing.
    None,
    /// Every block, from its input.
    Layer,
}

/// `[update]`: how a step's rows become optimiser steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Update {
    /// Trajectories of one optimiser step at most; a step's rows are split in order, as evenly as can be.
    pub mini_batch: usize,
    /// Optimiser steps a pass, whatever the number of rows; 0 goes by `mini_batch`.
    pub mini_batches: usize,
    /// Rows of one forward and backward at most; 0 goes by tokens alone.
    pub micro_batch: usize,
    /// Tokens of one forward and backward at most (a longer row goes alone). Bounds memory; changes gradients by rounding only.
    pub micro_batch_tokens: usize,
    /// The same, a prompt that rows share counted once; 0: as the memory plan says.
    pub packed_tokens: usize,
    /// Whether blocks are computed again in the backward instead of kept. Changes no result.
    pub recompute: Recompute,
    /// Passes over a step's rows.
    pub epochs: usize,
    /// Each pass draws anew which trajectories share a mini-batch.
    pub shuffle: bool,
    /// How the number of trajectories is made divisible: `none`, `copy` or `delete`.
    pub batch_adjust: BatchAdjust,
    /// Trajectories with a response that was cut count in their group's statistics, and are not trained on.
    pub skip_cut: bool,
    /// Score the rows again for the old log-probabilities instead of taking those they were sampled with.
    pub rescore: bool,
    /// Weights for tokens that another policy sampled.
    pub correction: CorrectionConfig,
    /// The objective's terms.
    pub loss: LossConfig,
}

impl Default for Update {
    fn default() -> Self {
        Update {
            mini_batch: 32,
            mini_batches: 0,
            micro_batch: 0,
            micro_batch_tokens: 8192,
            packed_tokens: 0,
            recompute: Recompute::Auto,
            epochs: 1,
            shuffle: false,
            batch_adjust: BatchAdjust::None,
            skip_cut: false,
            rescore: false,
            correction: CorrectionConfig::default(),
            loss: LossConfig::default(),
        }
    }
}

/// `[optim]`: AdamW and its schedule, counted in training steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optim {
    /// Learning rate after the warm-up.
    pub lr: f64,
    /// Decay of the two moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 does not clip.
    pub clip_norm: f64,
    /// Steps over which the rate rises from 0.
    pub warmup_steps: u64,
    /// How the rate goes afterwards.
    pub schedule: Decay,
    /// Share of `lr` that is left at the last step.
    pub floor: f64,
}

impl Default for Optim {
    fn default() -> Self {
        Optim {
            lr: 1e-6,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
            clip_norm: 1.0,
            warmup_steps: 0,
            schedule: Decay::Constant,
            floor: 0.0,
        }
    }
}

impl Optim {
    /// The learning rate of every step of a run of `total_steps`.
    pub fn schedule(&self, total_steps: u64) -> Schedule {
        Schedule {
            peak: self.lr,
            warmup_steps: self.warmup_steps,
            total_steps,
            decay: self.schedule,
            floor: self.floor,
        }
    }
}

/// `[val]`: validation during training, on `env.val`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Val {
    /// Every n-th step, and after the last; 0 never.
    pub every: u64,
    /// Also before the first step.
    pub before_train: bool,
    /// Groups of a validation between the first and the last step, tags in even parts; 0: those of `env.val`.
    pub groups: usize,
    /// Temperature of validation rollouts; 0 is greedy.
    pub temperature: f32,
    /// Keep this many tokens; 0 is off.
    pub top_k: usize,
    /// Keep the shortest prefix of the sorted probabilities that reaches this; 1 is off.
    pub top_p: f32,
    /// Keep tokens of at least this share of the largest probability; 0 is off.
    pub min_p: f32,
    /// Rollouts of the validation set a time, each on seeds of its own.
    pub rounds: u64,
    /// No trained level starts from a state that a validation level starts from.
    pub exclude_from_training: bool,
}

impl Default for Val {
    fn default() -> Self {
        Val {
            every: 10,
            before_train: true,
            groups: 0,
            temperature: 0.5,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            rounds: 1,
            exclude_from_training: true,
        }
    }
}

impl Val {
    /// How validation draws tokens.
    pub fn sampling(&self) -> Sampling {
        Sampling { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, min_p: self.min_p }
    }
}

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Every n-th step, and after the last; 0 never.
    pub every: u64,
    /// The newest so many stay; 0 keeps all.
    pub keep: usize,
    /// Also where a validation went better than all before it; that checkpoint stays until there is a better one.
    pub best: bool,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Checkpoint { every: 100, keep: 1, best: true }
    }
}

/// `[warmstart]`: one pass over demonstrations of the scripted player on `env.train`'s tags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Warmstart {
    /// Demonstrated trajectories.
    pub demos: usize,
    /// Probability that a planned move is replaced by a random one.
    pub noise: f64,
    /// Probability that a turn holds as many actions as it may; otherwise their number is uniform from 1.
    pub full: f64,
    /// Probability that a turn's reasoning names only what the player does.
    pub bare: f64,
    /// Trajectories of one optimiser step.
    pub batch: usize,
    /// The optimiser, its schedule counted in optimiser steps.
    pub optim: Optim,
}

impl Default for Warmstart {
    fn default() -> Self {
        Warmstart {
            demos: 8000,
            noise: 0.5,
            full: 0.0,
            bare: 0.0,
            batch: 8,
            optim: Optim {
                lr: 1.2e-3,
                betas: [0.9, 0.95],
                warmup_steps: 100,
                schedule: Decay::Cosine,
                floor: 0.1,
                ..Optim::default()
            },
        }
    }
}

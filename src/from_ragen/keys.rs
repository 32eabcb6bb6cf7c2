//! Every key of RAGEN's configuration: its default there, what it comes to here, and what differs on purpose.
//!
//! This is the one place where RAGEN's keys are described: the translation, its errors and the table of docs/from-ragen.md
//! read it. What several keys say together is put together in `combine`.

use std::fmt;

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Its value is the value here, in the words here or RAGEN's.
    Same,
    /// A number; what is below 0 is 0 here.
    Positive,
    /// Its value becomes one of another kind: `combine` knows how.
    Kind(Kind),
    /// It is read together with other keys.
    Together,
    /// It is a short name: the other key reads it.
    By(&'static str),
    /// Only one of these values can be had here, as YAML; the note says why, or what to do.
    Only(&'static [&'static str]),
    /// The value model has no setting of its own: it must be that of the policy's key, wherever values are learned.
    Like(&'static str),
    /// It has no meaning here.
    Ignored(Group),
}

/// How a value becomes one of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name that becomes a folder's.
    Name,
    /// A list, where null is an empty one.
    List,
    /// A number, where null is 0.
    Count,
    /// The number type of weights, as torch names it.
    Dtype,
    /// Layers by name, or `all-linear`.
    Layers,
    /// A loss by veRL's name.
    Loss,
    /// The schedule of a learning rate.
    Schedule,
}

/// Why a key has no meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Settings of another program that samples.
    Sampler,
    /// How work is spread over processes and devices.
    Spread,
    /// Sizes that fit work into a GPU's memory.
    Memory,
    /// Logging services.
    Logs,
    /// Files of checkpoints.
    Files,
    /// Data sets, reward models.
    Data,
    /// Evaluation behind an API, its output files.
    Api,
    /// Hydra's own settings.
    Hydra,
}

impl Group {
    /// All of them, in the order in which they are told.
    pub const ALL: [Group; 8] = [
        Group::Sampler,
        Group::Spread,
        Group::Memory,
        Group::Logs,
        Group::Files,
        Group::Data,
        Group::Api,
        Group::Hydra,
    ];
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Sampler => "vLLM and SGLang (one engine samples and trains)",
            Group::Spread => "Ray, FSDP, Megatron and parallelism (one process, one device)",
            Group::Memory => "sizes that fit work into memory (planned before a run, changes no result)",
            Group::Logs => "logging services (everything is a file of the run)",
            Group::Files => "files of checkpoints (`--run DIR`; model and optimiser are always saved)",
            Group::Data => "data sets and reward models (environments give both)",
            Group::Api => "evaluation behind an API and its output (`ragen eval` writes eval.json and trajectories)",
            Group::Hydra => "Hydra itself",
        })
    }
}

/// A key of RAGEN's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Dotted path; `TAG` stands for any name, `*` at the end for the key itself and all below it.
    pub path: &'static str,
    /// RAGEN's default as YAML; empty where it has none, and then ours stays.
    pub default: &'static str,
    /// The keys here that it sets; of an ignored one, those that do the like.
    pub ours: &'static [&'static str],
    /// What becomes of it.
    pub rule: Rule,
    /// What differs on purpose, and why.
    pub note: &'static str,
}

const fn row(
    path: &'static str,
    default: &'static str,
    ours: &'static [&'static str],
    rule: Rule,
    note: &'static str,
) -> Row {
    Row { path, default, ours, rule, note }
}

const fn ignored(group: Group, path: &'static str) -> Row {
    row(path, "", &[], Rule::Ignored(group), "")
}

use Group::{Api, Data, Files, Hydra, Logs, Memory, Sampler, Spread};
use Kind::{Count, Dtype, Layers, List, Loss, Name, Schedule};
use Rule::{By, Ignored, Like, Only, Positive, Same, Together};

/// Shorthands of the table's paths.
macro_rules! actor {
    ($name:literal) => {
        concat!("actor_rollout_ref.actor.", $name)
    };
}
macro_rules! rollout {
    ($name:literal) => {
        concat!("actor_rollout_ref.rollout.", $name)
    };
}

/// All keys, by section.
#[rustfmt::skip] // A row a key.
pub const ROWS: &[Row] = &[
    row("seed.train", "10000", &["env.train.seed"], Same, "Kept in checkpoints, so that a resumed run goes on with new levels (Q4)."),
    row("seed.val", "123", &["env.val.seed"], Same, ""),
    row("model_path", "", &["model.path"], By("actor_rollout_ref.model.path"), "A folder or file on this machine; nothing is downloaded."),
    row("ppo_mini_batch_size", "32", &["update.mini_batch"], By(actor!("ppo_mini_batch_size")), ""),
    row("micro_batch_size_per_gpu", "1", &["update.micro_batch"], Ignored(Memory), "Gradients do not depend on it here (Q24); set `update.micro_batch` to bound rows."),
    ignored(Memory, "log_prob_micro_batch_size_per_gpu"),
    row("enable_response_mask", "true", &[], Only(&["true"]), "only the tokens that the model sampled are ever trained on"),
    row("grpo_advantage_length_weight", "false", &["algorithm.length_weight"], By(actor!("grpo_advantage_length_weight")), ""),
    row("lora.rank", "0", &["model.lora.rank"], By("actor_rollout_ref.model.lora_rank"), ""),
    row("lora.alpha", "64", &["model.lora.alpha"], By("actor_rollout_ref.model.lora_alpha"), ""),
    row("lora.target_modules", "all-linear", &["model.lora.targets"], By("actor_rollout_ref.model.target_modules"), ""),
    row("system.CUDA_VISIBLE_DEVICES", "'0'", &["run.device"], Ignored(Spread), ""),

    row("actor_rollout_ref.model.path", "${model_path}", &["model.path"], Together, ""),
    row("actor_rollout_ref.model.lora_rank", "${lora.rank}", &["model.lora.rank"], Same, ""),
    row("actor_rollout_ref.model.lora_alpha", "${lora.alpha}", &["model.lora.alpha"], Same, ""),
    row("actor_rollout_ref.model.target_modules", "${lora.target_modules}", &["model.lora.targets"], Rule::Kind(Layers), ""),
    row("actor_rollout_ref.model.enable_gradient_checkpointing", "", &["update.recompute"], Ignored(Memory), ""),

    row("agent_proxy.context_window_mode", "full", &["rollout.context"], Same, "What does not fit is left out in whole turns, with room kept for the response (Q7, Q8)."),
    row("agent_proxy.max_context_window", "-1", &["rollout.context_window"], Together, "Below 0 or null: all. With mode `full` it has no effect, as there; it is said (Q1). 0 is refused (Q6)."),
    row("agent_proxy.max_turn", "5", &["rollout.max_turns"], Same, ""),
    row("agent_proxy.max_actions_per_turn", "2", &["rollout.max_actions_per_turn"], Same, ""),
    row("agent_proxy.action_sep", "'||'", &["rollout.action_separator"], Same, ""),
    row("agent_proxy.enable_think", "true", &["rollout.think"], Same, ""),
    row("agent_proxy.use_turn_scores", "false", &["reward.placement"], Together, "true: `turn`. A turn's score has its format penalty and stands at that turn's end (Q11, Q12)."),
    row("agent_proxy.batch_adjust_mode", "copy", &["update.batch_adjust"], Same, "Statistics are made before rows are copied (Q18); `delete` never leaves nothing (Q17)."),
    row("agent_proxy.reward_normalization.grouping", "state", &["reward.grouping"], Same, ""),
    row("agent_proxy.reward_normalization.method", "identity", &["reward.method"], Same, "The filter reads scores that are not normalised (Q13)."),

    row("es_manager.format_penalty", "-0.1", &["rollout.format_penalty"], Same, ""),
    row("es_manager.train.env_groups", "8", &["env.train.groups"], Same, ""),
    row("es_manager.train.group_size", "16", &["env.train.group_size"], Same, ""),
    row("es_manager.train.env_configs.tags", "[CoordSokoban]", &["env.train.tags"], Same, ""),
    row("es_manager.train.env_configs.n_groups", "null", &["env.train.n_groups"], Rule::Kind(List), "null: an even split."),
    row("es_manager.val.env_groups", "512", &["env.val.groups"], Same, ""),
    row("es_manager.val.group_size", "1", &["env.val.group_size"], Same, ""),
    row("es_manager.val.env_configs.tags", "[CoordSokoban]", &["env.val.tags"], Same, ""),
    row("es_manager.val.env_configs.n_groups", "null", &["env.val.n_groups"], Rule::Kind(List), "null: an even split."),

    row("custom_envs.TAG.env_type", "", &["envs.TAG.type"], Together, "A tag of a type that is not here is left out, unless it is used: then it is an error."),
    row("custom_envs.TAG.max_actions_per_traj", "", &["envs.TAG.max_actions"], Together, ""),
    row("custom_envs.TAG.env_instruction", "", &["envs.TAG.instruction"], Together, "Empty: the environment's own text."),
    row("custom_envs.TAG.max_tokens", "", &["envs.TAG.max_tokens"], Together, ""),
    row("custom_envs.TAG.env_config.*", "", &["envs.TAG.config"], Together, "Under the type's own setting names, which are RAGEN's. The prompt is made from these values (Q5)."),
    ignored(Spread, "custom_envs.TAG.parallel_friendly"),
    ignored(Spread, "custom_envs.TAG.max_workers"),

    row("algorithm.adv_estimator", "gae", &["algorithm.estimator", "model.value_model"], Together, "`gae` learns values by a model of its own (`model.value_model`), as there."),
    row("algorithm.bi_level_gae", "false", &["algorithm.estimator"], Together, "true: `bilevel_gae`, which works here, also with turn scores (Q19, Q20)."),
    row("algorithm.gamma", "1.0", &["algorithm.gamma"], Same, ""),
    row("algorithm.lam", "1.0", &["algorithm.lambda"], Same, ""),
    row("algorithm.high_level_gamma", "0.95", &["algorithm.turn_gamma"], Same, ""),
    row("algorithm.norm_adv_by_std_in_grpo", "true", &["algorithm.norm_by_std"], Same, ""),
    row("algorithm.soft_advantage_reweight", "false", &["algorithm.soft_reweight"], Same, "Works with every estimator that compares groups and is refused with the others, not left out in silence (Q23)."),
    row("algorithm.zero_task_advantage", "false", &["algorithm.zero_task_advantage"], Same, ""),
    row("algorithm.use_kl_in_reward", "false", &["reward.kl.coef"], Together, "Works here (Q29). false: a coefficient of 0."),
    row("algorithm.kl_penalty", "kl", &["reward.kl.kind"], Same, "`kl` is `k1`, `mse` `k2`, `low_var_kl` `k3`; hyphens are taken (Q27)."),
    row("algorithm.kl_ctrl.type", "fixed", &["reward.kl.target"], Together, "`fixed`: a target of 0."),
    row("algorithm.kl_ctrl.kl_coef", "0.0", &["reward.kl.coef"], Together, ""),
    row("algorithm.kl_ctrl.target_kl", "0.1", &["reward.kl.target"], Together, ""),
    row("algorithm.kl_ctrl.horizon", "10000", &["reward.kl.horizon"], Same, ""),
    row("algorithm.use_pf_ppo", "false", &[], Only(&["false"]), "sampling rows by weight is not here"),

    row(actor!("ppo_mini_batch_size"), "${ppo_mini_batch_size}", &["update.mini_batch"], Same, "A step's rows are split as evenly as can be; nothing is left over."),
    row(actor!("clip_ratio"), "0.2", &["update.loss.clip_low", "update.loss.clip_high"], Together, "Only where the two below are null, as there."),
    row(actor!("clip_ratio_low"), "0.2", &["update.loss.clip_low"], Together, ""),
    row(actor!("clip_ratio_high"), "0.28", &["update.loss.clip_high"], Together, ""),
    row(actor!("clip_ratio_c"), "3.0", &["update.loss.clip_dual"], Same, ""),
    row(actor!("policy_loss.loss_mode"), "vanilla", &["update.loss.policy"], Rule::Kind(Loss), "`vanilla` is `ppo`; `gspo` is `gspo`."),
    row(actor!("loss_agg_mode"), "token-mean", &["update.loss.average"], Same, "Over the mini-batch, whatever its micro-batches (Q24). The value loss is averaged in the same way; there always by token."),
    row(actor!("entropy_coeff"), "0.001", &["update.loss.entropy_coef"], Same, ""),
    row(actor!("use_ref"), "true", &["model.reference", "update.loss.kl.coef"], Together, "false: no divergence in the loss."),
    row(actor!("use_kl_loss"), "false", &["update.loss.kl.coef"], Together, "false: a coefficient of 0."),
    row(actor!("kl_loss_coef"), "0.0", &["update.loss.kl.coef"], Together, ""),
    row(actor!("kl_loss_type"), "kl", &["update.loss.kl.kind"], Same, "`kl` is `k1`, which pulls nowhere on average (Q28); with a coefficient above 0 that is said. Hyphens are taken (Q27)."),
    row(actor!("filter_loss_scaling"), "none", &["algorithm.filter_loss_scaling"], Same, ""),
    row(actor!("grpo_advantage_length_weight"), "${grpo_advantage_length_weight}", &["algorithm.length_weight"], Same, ""),
    row(actor!("ppo_epochs"), "1", &["update.epochs"], Same, ""),
    row(actor!("shuffle"), "false", &["update.shuffle"], Same, "By trajectories, not rows."),
    row(actor!("grad_clip"), "1.0", &["optim.clip_norm"], Same, ""),
    row(actor!("optim.lr"), "1e-6", &["optim.lr", "model.value_lr_factor"], Together, ""),
    row(actor!("optim.betas"), "[0.9, 0.999]", &["optim.betas"], Same, ""),
    row(actor!("optim.weight_decay"), "0.01", &["optim.weight_decay"], Same, ""),
    row(actor!("optim.lr_warmup_steps"), "-1", &["optim.warmup_steps"], Together, "The schedule moves on by training steps; RAGEN never steps it for the policy (Q26). Below 0: the share in the next key."),
    row(actor!("optim.lr_warmup_steps_ratio"), "0.0", &["optim.warmup_steps"], Together, ""),
    row(actor!("optim.lr_scheduler_type"), "constant", &["optim.schedule"], Rule::Kind(Schedule), ""),
    row(actor!("optim.warmup_style"), "", &["optim.schedule"], Rule::Kind(Schedule), "The former name of `lr_scheduler_type`; null leaves it to that."),
    row(actor!("optim.min_lr_ratio"), "0.0", &["optim.floor"], Together, "null is 0."),
    ignored(Data, actor!("optim.total_training_steps")),
    ignored(Data, "critic.optim.total_training_steps"),
    row(actor!("optim.num_cycles"), "0.5", &[], Only(&["0.5", "null"]), "a cosine goes down once"),
    row(actor!("optim.clip_grad"), "", &[], Only(&["1.0", "null"]), "veRL reads actor.grad_clip, and so does this: set that"),
    row(actor!("tis_imp_ratio_cap"), "-1", &[], Only(&["-1", "null"]), "one engine samples and trains, so nothing is to be corrected; update.correction.* has it"),

    row("critic.enable", "null", &["model.value_model"], Together, "null: where the estimator reads values. Anything else must say the same."),
    row("critic.model.path", "${model_path}", &["model.value_model"], Like("actor_rollout_ref.model.path"), "The value model starts from the policy's weights."),
    row("critic.model.lora_rank", "${lora.rank}", &[], Like("actor_rollout_ref.model.lora_rank"), ""),
    row("critic.model.lora_alpha", "${lora.alpha}", &[], Like("actor_rollout_ref.model.lora_alpha"), ""),
    row("critic.model.target_modules", "${lora.target_modules}", &[], Like("actor_rollout_ref.model.target_modules"), ""),
    row("critic.optim.lr", "1e-5", &["model.value_lr_factor"], Together, "As a multiple of the policy's."),
    row("critic.optim.betas", "[0.9, 0.999]", &[], Like(actor!("optim.betas")), ""),
    row("critic.optim.weight_decay", "0.01", &[], Like(actor!("optim.weight_decay")), ""),
    row("critic.optim.lr_warmup_steps", "-1", &[], Like(actor!("optim.lr_warmup_steps")), ""),
    row("critic.optim.lr_warmup_steps_ratio", "0.0", &[], Like(actor!("optim.lr_warmup_steps_ratio")), ""),
    row("critic.ppo_mini_batch_size", "${ppo_mini_batch_size}", &[], Like(actor!("ppo_mini_batch_size")), "Policy and values take their step together."),
    row("critic.ppo_epochs", "1", &[], Like(actor!("ppo_epochs")), ""),
    row("critic.shuffle", "false", &[], Like(actor!("shuffle")), ""),
    row("critic.grad_clip", "1.0", &[], Like(actor!("grad_clip")), ""),
    row("critic.cliprange_value", "0.5", &["update.loss.value_clip"], Same, ""),
    row("critic.loss_agg_mode", "", &[], Only(&["token-mean", "null"]), "the value loss is averaged as the policy's, actor.loss_agg_mode"),

    row(rollout!("temperature"), "1", &["rollout.sampling.temperature"], Same, ""),
    row(rollout!("top_p"), "1.0", &["rollout.sampling.top_p"], Same, "Old log-probabilities are those that were sampled with, cut as sampling was."),
    row(rollout!("top_k"), "-1", &["rollout.sampling.top_k"], Positive, "−1 is off: 0."),
    row(rollout!("do_sample"), "true", &[], Only(&["true"]), "training samples; greedy validation is actor_rollout_ref.rollout.val_kwargs.do_sample=False"),
    row(rollout!("n"), "1", &[], Only(&["1"]), "the members of a group are es_manager.train.group_size"),
    row(rollout!("ignore_eos"), "false", &[], Only(&["false"]), "a response ends where the model ends it"),
    row(rollout!("max_model_len"), "3600", &["rollout.model_tokens"], Same, ""),
    row(rollout!("response_length"), "400", &["rollout.response_tokens"], Same, ""),
    row(rollout!("dtype"), "", &["model.dtype"], Rule::Kind(Dtype), "Only where it is given; `bfloat16` is `bf16`, `float32` `f32`."),
    row(rollout!("val_kwargs.do_sample"), "true", &["val.temperature"], Together, "false: a temperature of 0, greedy."),
    row(rollout!("val_kwargs.temperature"), "0.5", &["val.temperature"], Together, ""),
    row(rollout!("val_kwargs.top_p"), "1.0", &["val.top_p"], Same, ""),
    row(rollout!("val_kwargs.top_k"), "-1", &["val.top_k"], Positive, "−1 is off: 0."),
    row(rollout!("val_kwargs.n"), "1", &[], Only(&["1"]), "the members of a group are es_manager.val.group_size"),
    row(rollout!("rollout_filter_strategy"), "top_p", &["filter.strategy"], Same, "Equal scores are kept by the lower group. The README's spelling without `.rollout` is taken."),
    row(rollout!("rollout_filter_value"), "1.0", &["filter.value"], Same, "Its former name `rollout_filter_ratio` is taken."),
    row(rollout!("rollout_filter_type"), "largest", &["filter.kind"], Same, ""),
    row(rollout!("rollout_filter_metric"), "reward_variance", &["filter.metric"], Same, "A group whose rewards are equal has a spread of exactly 0 (Q14); works with a row a turn (Q15)."),
    row(rollout!("rollout_filter_include_zero"), "true", &["filter.include_zero"], Same, ""),
    row(rollout!("rollout_filter_top_p_prob_mode"), "linear", &["filter.top_p_prob_mode"], Same, ""),
    row(rollout!("rollout_filter_selection_eps"), "0.01", &["filter.selection_eps"], Same, ""),
    row(rollout!("rollout_filter_empty_stop_steps"), "5", &["filter.empty_stop_steps"], Positive, "Validation and checkpoint of such a step are not left out (Q16), and the run is saved (Q35)."),
    row(rollout!("gradient_analysis_num_buckets"), "6", &["gradient_analysis.buckets"], Same, ""),
    row(rollout!("gradient_analysis_bucket_mode"), "quantile", &["gradient_analysis.mode"], Same, "A bucket's norm is that of its mean gradient (Q33)."),

    row("collapse_detection.compute_freq", "5", &["collapse.every"], Positive, ""),
    row("collapse_detection.first_turn_enabled", "true", &["collapse.first_turn"], Same, "By what a prompt says, so that a bandit's prompts may differ within a group (Q31)."),
    row("collapse_detection.multi_turn_enabled", "true", &["collapse.multi_turn"], Same, "The number of different prompts is a metric beside the bound (Q32)."),
    row("collapse_detection.num_samples", "64", &["collapse.num_samples"], Same, ""),
    row("collapse_detection.std_eps", "1e-3", &["collapse.std_eps"], Same, ""),
    row("collapse_detection.ema_decay", "0.9", &["collapse.ema_decay"], Same, "Kept in checkpoints."),
    row("collapse_detection.micro_batch_size", "128", &[], Ignored(Memory), ""),

    row("trainer.total_training_steps", "200", &["run.steps"], Together, ""),
    row("trainer.experiment_name", "test", &["run.name"], Rule::Kind(Name), "Names the run's folder, so a `/` in it becomes `-`."),
    row("trainer.save_freq", "100", &["checkpoint.every"], Positive, "0 and below: never."),
    row("trainer.max_actor_ckpt_to_keep", "1", &["checkpoint.keep"], Rule::Kind(Count), "null: all."),
    row("trainer.test_freq", "10", &["val.every"], Positive, "0 and below: never."),
    row("trainer.validation_steps", "1", &["val.rounds"], Same, "Every round has seeds of its own (Q3)."),
    row("trainer.val_before_train", "true", &["val.before_train"], Together, ""),
    row("trainer.val_only", "false", &["run.steps", "val.before_train"], Together, "true: no step, and one validation, also without `val_before_train` (Q44)."),
    row("trainer.critic_warmup", "0", &["model.value_warmup_steps"], Together, "Counted there to the policy's first step, here the steps before it: one less."),
    row("trainer.resume_mode", "auto", &[], Only(&["auto", "disable"]), "a run here goes on with `ragen train --resume --run DIR`; of a checkpoint of RAGEN's give the merged model's folder, model.path=DIR"),
    row("trainer.gradient_analysis_mode", "false", &["gradient_analysis.every"], Together, "false: never."),
    row("trainer.gradient_analysis_every", "50", &["gradient_analysis.every"], Together, ""),
    row("trainer.gradient_analysis_env_groups", "null", &["gradient_analysis.groups"], Rule::Kind(Count), "null: as in training, 0."),
    row("trainer.gradient_analysis_group_size", "null", &["gradient_analysis.group_size"], Rule::Kind(Count), "null: as in training, 0."),
    row("trainer.gradient_analysis_log_prefilter", "false", &["gradient_analysis.prefilter"], Same, ""),
    row("trainer.gradient_analysis_only", "false", &["gradient_analysis.only"], Same, ""),
    row("trainer.exit_after_gradient_analysis", "false", &["gradient_analysis.exit_after"], Same, "Also where the filter kept nothing (Q34)."),
    row("trainer.generations_to_log_to_wandb.*", "{val: 20}", &["run.trajectories_every"], Ignored(Logs), ""),
    row("trainer.rollout_data_dir", "null", &["run.trajectories_every"], Ignored(Logs), ""),
    ignored(Logs, "trainer.validation_data_dir"),
    ignored(Logs, "trainer.log_group_rv_table"),
    ignored(Logs, "trainer.log_val_generations"),
    ignored(Logs, "trainer.logger"),
    ignored(Logs, "trainer.project_name"),
    ignored(Logs, "trainer.wandb_id"),
    ignored(Logs, "trainer.local_log_dir"),
    ignored(Logs, "trainer.profile_steps"),
    ignored(Logs, "global_profiler.*"),
    ignored(Logs, actor!("profiler.*")),
    ignored(Logs, rollout!("profiler.*")),
    ignored(Logs, "actor_rollout_ref.ref.profiler.*"),
    ignored(Logs, "actor_rollout_ref.profiler.*"),
    ignored(Logs, "critic.profiler.*"),

    ignored(Files, "trainer.default_local_dir"),
    ignored(Files, "trainer.default_hdfs_dir"),
    ignored(Files, "trainer.max_critic_ckpt_to_keep"),
    ignored(Files, "trainer.resume_from_path"),
    ignored(Files, "trainer.del_local_ckpt_after_load"),
    ignored(Files, "trainer.remove_previous_ckpt_in_save"),
    ignored(Files, "trainer.esi_redundant_time"),
    ignored(Files, actor!("checkpoint.*")),
    ignored(Files, "critic.checkpoint.*"),

    ignored(Sampler, rollout!("name")),
    ignored(Sampler, rollout!("mode")),
    ignored(Sampler, rollout!("load_format")),
    ignored(Sampler, rollout!("prompt_length")),
    ignored(Sampler, rollout!("enforce_eager")),
    ignored(Sampler, rollout!("free_cache_engine")),
    ignored(Sampler, rollout!("cudagraph_capture_sizes")),
    ignored(Sampler, rollout!("enable_chunked_prefill")),
    ignored(Sampler, rollout!("enable_prefix_caching")),
    ignored(Sampler, rollout!("disable_log_stats")),
    ignored(Sampler, rollout!("swap_space")),
    ignored(Sampler, rollout!("engine_kwargs.*")),
    ignored(Sampler, rollout!("layered_summon")),
    ignored(Sampler, rollout!("calculate_log_probs")),
    ignored(Sampler, rollout!("over_sample_rate")),
    ignored(Sampler, rollout!("multi_stage_wake_up")),
    ignored(Sampler, rollout!("multi_turn.*")),
    ignored(Sampler, rollout!("agent.*")),
    ignored(Sampler, rollout!("trace.*")),
    ignored(Sampler, rollout!("update_weights_bucket_megabytes")),
    ignored(Sampler, rollout!("skip_rollout")),
    ignored(Sampler, rollout!("skip_dump_dir")),
    ignored(Sampler, rollout!("skip_tokenizer_init")),
    ignored(Sampler, rollout!("val_kwargs.logprobs")),
    ignored(Sampler, "ctx_manager.*"),

    row(rollout!("gpu_memory_utilization"), "", &["run.memory_bytes"], Ignored(Memory), ""),
    row(rollout!("max_num_seqs"), "", &["rollout.places"], Ignored(Memory), ""),
    ignored(Memory, rollout!("max_num_batched_tokens")),
    ignored(Memory, rollout!("log_prob_micro_batch_size")),
    ignored(Memory, rollout!("log_prob_micro_batch_size_per_gpu")),
    ignored(Memory, rollout!("log_prob_use_dynamic_bsz")),
    ignored(Memory, rollout!("log_prob_max_token_len_per_gpu")),
    ignored(Memory, "actor_rollout_ref.ref.log_prob_micro_batch_size"),
    ignored(Memory, "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"),
    ignored(Memory, "actor_rollout_ref.ref.log_prob_use_dynamic_bsz"),
    ignored(Memory, "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"),
    ignored(Memory, "actor_rollout_ref.ref.entropy_from_logits_with_chunking"),
    ignored(Memory, "actor_rollout_ref.ref.entropy_checkpointing"),
    ignored(Memory, actor!("micro_batch_size_per_gpu")),
    ignored(Memory, actor!("ppo_micro_batch_size")),
    ignored(Memory, actor!("ppo_micro_batch_size_per_gpu")),
    ignored(Memory, actor!("ppo_max_token_len_per_gpu")),
    ignored(Memory, actor!("use_dynamic_bsz")),
    ignored(Memory, actor!("entropy_from_logits_with_chunking")),
    ignored(Memory, actor!("entropy_checkpointing")),
    ignored(Memory, "actor_rollout_ref.model.enable_activation_offload"),
    ignored(Memory, "critic.ppo_micro_batch_size"),
    ignored(Memory, "critic.ppo_micro_batch_size_per_gpu"),
    ignored(Memory, "critic.ppo_max_token_len_per_gpu"),
    ignored(Memory, "critic.forward_micro_batch_size"),
    ignored(Memory, "critic.forward_micro_batch_size_per_gpu"),
    ignored(Memory, "critic.forward_max_token_len_per_gpu"),
    ignored(Memory, "critic.use_dynamic_bsz"),
    ignored(Memory, "critic.model.enable_gradient_checkpointing"),
    ignored(Memory, "critic.model.enable_activation_offload"),

    ignored(Spread, "trainer.n_gpus_per_node"),
    ignored(Spread, "trainer.nnodes"),
    ignored(Spread, "trainer.device"),
    ignored(Spread, "trainer.balance_batch"),
    ignored(Spread, "trainer.use_legacy_worker_impl"),
    ignored(Spread, "trainer.ray_wait_register_center_timeout"),
    ignored(Spread, "trainer.npu_profile.*"),
    ignored(Spread, "ray_kwargs.*"),
    ignored(Spread, "ray_init.*"),
    ignored(Spread, "transfer_queue.*"),
    ignored(Spread, "actor_rollout_ref.hybrid_engine"),
    ignored(Spread, "actor_rollout_ref.nccl_timeout"),
    ignored(Spread, "actor_rollout_ref.model.use_shm"),
    ignored(Spread, "actor_rollout_ref.model.use_remove_padding"),
    ignored(Spread, "actor_rollout_ref.model.use_liger"),
    ignored(Spread, "actor_rollout_ref.model.use_fused_kernels"),
    ignored(Spread, "actor_rollout_ref.model.fused_kernel_options.*"),
    ignored(Spread, "actor_rollout_ref.model.trust_remote_code"),
    ignored(Spread, "actor_rollout_ref.model._target_"),
    ignored(Spread, actor!("_target_")),
    ignored(Spread, actor!("strategy")),
    ignored(Spread, actor!("fsdp_config.*")),
    ignored(Spread, actor!("megatron.*")),
    ignored(Spread, actor!("ulysses_sequence_parallel_size")),
    ignored(Spread, actor!("use_torch_compile")),
    ignored(Spread, actor!("use_remove_padding")),
    ignored(Spread, actor!("use_fused_kernels")),
    ignored(Spread, actor!("optim._target_")),
    ignored(Spread, "actor_rollout_ref.ref._target_"),
    ignored(Spread, "actor_rollout_ref.ref.strategy"),
    ignored(Spread, "actor_rollout_ref.ref.fsdp_config.*"),
    ignored(Spread, "actor_rollout_ref.ref.megatron.*"),
    ignored(Spread, "actor_rollout_ref.ref.ulysses_sequence_parallel_size"),
    ignored(Spread, "actor_rollout_ref.ref.use_torch_compile"),
    ignored(Spread, rollout!("tensor_model_parallel_size")),
    ignored(Spread, rollout!("data_parallel_size")),
    ignored(Spread, rollout!("expert_parallel_size")),
    ignored(Spread, rollout!("pipeline_model_parallel_size")),
    ignored(Spread, rollout!("tp_size_check")),
    ignored(Spread, "critic._target_"),
    ignored(Spread, "critic.strategy"),
    ignored(Spread, "critic.optim._target_"),
    ignored(Spread, "critic.model.fsdp_config.*"),
    ignored(Spread, "critic.model.use_shm"),
    ignored(Spread, "critic.model.use_remove_padding"),
    ignored(Spread, "critic.model.trust_remote_code"),
    ignored(Spread, "critic.model._target_"),
    ignored(Spread, "critic.megatron.*"),
    ignored(Spread, "critic.ulysses_sequence_parallel_size"),

    ignored(Data, "data.*"),
    row("reward_model.enable", "false", &[], Only(&["false", "null"]), "rewards come from environments"),
    ignored(Data, "reward_model.*"),
    row("custom_reward_function.path", "null", &[], Only(&["null"]), "rewards come from environments"),
    ignored(Data, "custom_reward_function.*"),
    ignored(Data, "reward_manager.*"),
    ignored(Data, "trainer.total_epochs"),
    ignored(Api, "model_config.*"),
    ignored(Api, "model_info.*"),
    ignored(Api, "output.*"),
    ignored(Hydra, "hydra.*"),
];

/// The row of a dotted path: the one that names it most exactly.
pub fn find(path: &str) -> Option<&'static Row> {
    let exact = ROWS.iter().find(|row| !row.path.ends_with('*') && matches(row.path, path));
    exact.or_else(|| ROWS.iter().find(|row| matches(row.path, path)))
}

/// Whether a path names a section, such as `agent_proxy`.
pub fn is_section(path: &str) -> bool {
    let depth = path.split('.').count();
    ROWS.iter().any(|row| {
        let parts: Vec<&str> = row.path.split('.').collect();
        parts.len() > depth && matches(&parts[..depth].join("."), path)
    })
}

/// The first section of a path is one of RAGEN's alone, not one that there is here too.
pub fn is_of_ragen(path: &str) -> bool {
    find(path).is_some() || path.split('.').next().is_some_and(|first| first != "algorithm" && is_section(first))
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('.'), path.split('.'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) | (Some("*"), _) => return true,
            (Some(p), Some(s)) if p == s || p == "TAG" => {}
            _ => return false,
        }
    }
}

/// The known key most similar to a path, spelled with the path's own tag where it names one.
pub fn nearest(path: &str) -> Option<String> {
    let last = |p: &str| p.rsplit('.').next().unwrap_or_default().to_string();
    let tag = path.strip_prefix("custom_envs.").and_then(|rest| rest.split('.').next());
    let score = |known: &str| {
        let whole = strsim::normalized_damerau_levenshtein(known, path);
        // A key that is at the wrong place is still named by its end.
        whole.max(0.95 * strsim::normalized_damerau_levenshtein(&last(known), &last(path)))
    };
    let known = ROWS.iter().map(|row| row.path.trim_end_matches(".*"));
    let best = known.map(|known| (score(known), known)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)))?;
    (best.0 > 0.6).then(|| tag.map_or(best.1.to_string(), |tag| best.1.replace("TAG", tag)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hydra::yaml;
    use crate::settings::keys::{self, KEYS};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn rows_are_whole() {
        let mut paths = BTreeSet::new();
        for row in ROWS {
            assert!(paths.insert(row.path), "{} stands twice", row.path);
            assert_eq!(find(row.path.trim_end_matches(".*")).unwrap().path, row.path);
            assert!(yaml::parse("default", &format!("v: {}", row.default)).is_ok(), "{}", row.path);
            row.ours.iter().for_each(|ours| assert!(keys::find(ours).is_some(), "{}: there is no {ours}", row.path));
            match row.rule {
                By(other) | Like(other) => assert!(ROWS.iter().any(|row| row.path == other), "{}: {other}", row.path),
                Only(values) => assert!(!row.note.is_empty() && !values.is_empty(), "{}", row.path),
                Same | Positive | Rule::Kind(_) => assert!(!row.ours.is_empty(), "{}", row.path),
                Together | Ignored(_) => {}
            }
        }
    }

    /// RAGEN's keys in a cell of docs/configuration.md, in full.
    fn named(cell: &str) -> BTreeSet<String> {
        let full = |path: &str| match path.split('.').next() {
            Some("actor" | "rollout" | "ref" | "model") => format!("actor_rollout_ref.{path}"),
            _ => path.to_string(),
        };
        cell.split(", ").filter(|path| !path.is_empty()).map(full).collect()
    }

    #[test]
    fn the_page_of_keys_names_the_same_keys_of_ragen() {
        let mut ours: BTreeMap<&str, BTreeSet<String>> = KEYS.iter().map(|key| (key.path, BTreeSet::new())).collect();
        for row in ROWS {
            for key in row.ours {
                ours.get_mut(keys::find(key).unwrap().path).unwrap().insert(row.path.trim_end_matches(".*").into());
            }
        }
        for key in KEYS {
            let expected =
                ours[key.path].iter().map(|path| path.replace("actor_rollout_ref.", "")).collect::<Vec<_>>().join(", ");
            assert_eq!(named(key.ragen), ours[key.path], "{}: the cell should be {expected:?}", key.path);
        }
    }

    #[test]
    fn a_path_means_one_key() {
        // Where both have a section, an override is RAGEN's if RAGEN has the key: it must then mean the same.
        for key in KEYS.iter().filter(|key| find(key.path).is_some()) {
            let row = find(key.path).unwrap();
            assert_eq!((row.ours, row.rule), ([key.path].as_slice(), Same), "{}", key.path);
        }
        assert!(is_of_ragen("algorithm.lam") && !is_of_ragen("algorithm.lambda") && is_of_ragen("trainer.no_such"));
        assert!(!is_of_ragen("model.path") && !is_of_ragen("rollout.temperature") && !is_of_ragen("no_such"));
    }

    #[test]
    fn nearest_key() {
        let check = |path: &str, expected: Option<&str>| assert_eq!(nearest(path).as_deref(), expected, "{path}");
        check("trainer.total_training_step", Some("trainer.total_training_steps"));
        check("actor_rollout_ref.rollout.rollout_filter_valeu", Some("actor_rollout_ref.rollout.rollout_filter_value"));
        check("agent_proxy.max_turns", Some("agent_proxy.max_turn"));
        check("actor_rollout_ref.max_model_len", Some("actor_rollout_ref.rollout.max_model_len"));
        check("custom_envs.Lake.max_action_per_traj", Some("custom_envs.Lake.max_actions_per_traj"));
        check("zzzzzzzzzzzzzz", None);
    }
}

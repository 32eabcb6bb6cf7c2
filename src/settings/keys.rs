//! Every key of the configuration: what it expects, its unit, its meaning and the key of RAGEN that it corresponds to.
//!
//! This is the one place where keys are described: errors, `docs/configuration.md` and the checks read it. Defaults are
//! not here, they are the configuration's own. A test holds the table to the keys that a default configuration has.

/// What the value of a key may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// True or false.
    Flag,
    /// A whole number from the first to the second.
    Whole(u64, u64),
    /// A finite number from the first to the second.
    Number(f64, f64),
    /// A text.
    Text,
    /// One of a few words (and their spellings in RAGEN, which the section's type knows).
    Word(&'static [&'static str]),
    /// A whole number from the first on, or the word.
    WholeOr(u64, &'static str),
    /// A list of so many numbers within a range.
    Numbers(usize, f64, f64),
    /// A list of whole numbers, each from the first on.
    Wholes(u64),
    /// A list of texts.
    Texts,
    /// A table of an environment's own settings; the environment checks it.
    Settings,
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Dotted path; [`ANY`] stands for any name.
    pub path: &'static str,
    /// What its value may be.
    pub expect: Expect,
    /// Unit of the value; empty for none.
    pub unit: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// The key of RAGEN that it corresponds to; empty for none.
    pub ragen: &'static str,
}

/// The part of a path that stands for any name: the tag in `envs.TAG.type`.
pub const ANY: &str = "TAG";

/// The largest whole number of a TOML file.
const MAX: u64 = i64::MAX as u64;
const INF: f64 = f64::MAX;

/// What a guard may do.
const ACTION: Expect = Word(&["off", "warn", "stop", "rollback"]);

use Expect::{Flag, Number, Numbers, Settings, Text, Texts, Whole, WholeOr, Wholes, Word};

const fn key(
    path: &'static str,
    expect: Expect,
    unit: &'static str,
    meaning: &'static str,
    ragen: &'static str,
) -> Key {
    Key { path, expect, unit, meaning, ragen }
}

/// All keys, by section.
#[rustfmt::skip] // A row a key.
pub const KEYS: &[Key] = &[
    key("run.name", Text, "", "Name of the run; without `--run` its directory is `runs/<name>-<seed>`.", "trainer.experiment_name"),
    key("run.seed", Whole(0, MAX), "", "Root of all random numbers: weights, demonstrations, sampling (`--seed`).", ""),
    key("run.steps", Whole(0, MAX), "steps", "Training steps.", "trainer.total_training_steps, trainer.val_only"),
    key("run.threads", Whole(0, 1024), "", "Worker threads (`--threads`); 0 is one per core. Results do not depend on it.", ""),
    key("run.device", Text, "", "Where to compute (`--device`): `auto` (a GPU if one can be used, else the CPU), `cpu`, `cuda` or `cuda:N`; in builds with the feature `emulator` also `emulator`. What was taken stands in the run's `config.toml`, so that a resume goes on there.", "system.CUDA_VISIBLE_DEVICES"),
    key("run.products", Word(&["library", "invariant"]), "", "Who multiplies matrices on a GPU: cuBLASLt with one algorithm pinned for each shape (our own kernel where it is not there), or always our own kernel, whose rows do not depend on how many there are, by its making. The CPU does not read it.", ""),
    key("run.trajectories_every", Whole(0, MAX), "steps", "Write the trajectories of every n-th step; 0 writes none.", "trainer.generations_to_log_to_wandb, trainer.rollout_data_dir"),
    key("run.memory_bytes", Whole(0, MAX), "bytes", "Memory that the run may take, of the device it computes on; 0: what is available there (on a GPU, less a 64th of it). The plan that fits is printed before anything is loaded.", "rollout.gpu_memory_utilization"),

    key("model.path", Text, "", "Directory in Hugging Face layout, or the name of a shipped model. Empty: a fresh model of the shape below.", "model.path, model_path"),
    key("model.dtype", Word(&["f32", "bf16"]), "", "What the inputs of the linear products (activations, their gradients, weights) are rounded to. Sums, stored weights (also the embedding's rows, which are looked up unrounded even where the head shares them), optimiser, norms, attention and log-probabilities are f32 either way; checkpoints do not depend on it.", "rollout.dtype"),
    key("model.n_layers", Whole(1, 1 << 16), "", "Blocks.", ""),
    key("model.d_model", Whole(1, 1 << 20), "", "Width of the residual stream.", ""),
    key("model.n_heads", Whole(1, 1 << 16), "", "Query heads; divides `model.d_model`.", ""),
    key("model.n_kv_heads", Whole(1, 1 << 16), "", "Key and value heads; divides `model.n_heads`.", ""),
    key("model.d_ff", Whole(1, 1 << 24), "", "Hidden width of the SwiGLU.", ""),
    key("model.rope_theta", Number(1.0, INF), "", "Base of the rotary frequencies.", ""),
    key("model.norm_eps", Number(0.0, 1.0), "", "Added to the mean square inside RMSNorm.", ""),
    key("model.tied_embeddings", Flag, "", "The output head is the embedding.", ""),
    key("model.qkv_bias", Flag, "", "Biases on q, k and v.", ""),
    key("model.qk_norm", Flag, "", "RMSNorm of every head's q and k.", ""),
    key("model.reference", Flag, "", "Keep the weights that training starts from (below adapters: the base) and measure the divergence from them (`policy/kl_loss`) also where nothing is charged for it; with `update.loss.kl.coef` or `reward.kl.coef` they are kept anyway. It takes memory for a second model and a forward a step. (RAGEN: true.)", "actor.use_ref"),
    key("model.value_head", Flag, "", "A value head, also on a loaded model that has none.", ""),
    key("model.value_model", Flag, "", "A value model of its own, starting from the same weights, instead of a head on the policy.", "algorithm.adv_estimator, critic.enable, critic.model.path"),
    key("model.value_lr_factor", Number(0.0, 1e6), "", "The value model's learning rate, in units of `optim.lr`.", "actor.optim.lr, critic.optim.lr"),
    key("model.value_warmup_steps", Whole(0, MAX), "steps", "Steps at the beginning in which the value model alone is trained: the policy learns from its advantages once they mean something. (RAGEN counts to the first step of the policy: one more.)", "trainer.critic_warmup"),
    key("model.lora.rank", Whole(0, 1 << 16), "", "Rank of low-rank adapters, which are trained instead of the weights; 0 is off.", "model.lora_rank, lora.rank"),
    key("model.lora.alpha", Number(-INF, INF), "", "An adapter's product is scaled by alpha / rank.", "model.lora_alpha, lora.alpha"),
    key("model.lora.targets", Texts, "", "The linear layers that have an adapter: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`.", "model.target_modules, lora.target_modules"),

    key("env.train.tags", Texts, "", "The environments trained on, each a key of `[envs]`.", "es_manager.train.env_configs.tags"),
    key("env.train.groups", Whole(1, 1 << 16), "", "Groups in all.", "es_manager.train.env_groups"),
    key("env.train.n_groups", Wholes(1), "", "Groups of each tag, summing to `groups`. Empty: an even split, the remainder to the first tags.", "es_manager.train.env_configs.n_groups"),
    key("env.train.group_size", Whole(1, 1 << 12), "", "Members of a group: trajectories from one seed.", "es_manager.train.group_size"),
    key("env.train.seed", Whole(0, MAX), "", "Base seed of the training levels; it moves on by `groups` a step.", "seed.train"),
    key("env.train.workers", Whole(0, 1 << 12), "", "Environments that wait for something outside (a program, a server) played at once at most; 0: two a core, at least 8. Changes no result.", ""),
    key("env.val.tags", Texts, "", "The environments validated on, each a key of `[envs]`.", "es_manager.val.env_configs.tags"),
    key("env.val.groups", Whole(1, 1 << 16), "", "Groups in all.", "es_manager.val.env_groups"),
    key("env.val.n_groups", Wholes(1), "", "Groups of each tag, summing to `groups`. Empty: an even split, the remainder to the first tags.", "es_manager.val.env_configs.n_groups"),
    key("env.val.group_size", Whole(1, 1 << 12), "", "Members of a group, which is the n of pass@k for every k up to it.", "es_manager.val.group_size"),
    key("env.val.seed", Whole(0, MAX), "", "Base seed of the validation levels, the same every time.", "seed.val"),
    key("env.val.workers", Whole(0, 1 << 12), "", "Environments that wait for something outside (a program, a server) played at once at most; 0: two a core, at least 8. Changes no result.", ""),

    key("envs.TAG.type", Text, "", "The environment type, as `ragen envs` lists them.", "custom_envs.TAG.env_type"),
    key("envs.TAG.max_actions", Whole(1, 1 << 32), "actions", "Actions executed in one episode at most.", "custom_envs.TAG.max_actions_per_traj"),
    key("envs.TAG.instruction", Text, "", "Task text of the system message. Empty: the environment's own.", "custom_envs.TAG.env_instruction"),
    key("envs.TAG.single_action", Flag, "", "The whole answer is one action: it is not split at the separator.", ""),
    key("envs.TAG.max_tokens", Whole(0, 1 << 32), "tokens", "The response length that the prompt announces; never enforced. 0: `rollout.response_tokens`.", "custom_envs.TAG.max_tokens"),
    key("envs.TAG.config", Settings, "", "The environment's own settings (`ragen envs TAG`); those left out keep the type's defaults. `wrappers`, a list, puts layers around it (docs/environments/wrappers.md).", "custom_envs.TAG.env_config"),

    key("rollout.max_turns", Whole(1, 1 << 32), "turns", "Turns of an episode at most.", "agent_proxy.max_turn"),
    key("rollout.curriculum.turns", Whole(0, 1 << 32), "turns", "Turns of a training episode at most in the first step; they rise evenly to `rollout.max_turns`, which validation plays at all times. 0: no curriculum.", ""),
    key("rollout.curriculum.steps", Whole(1, 1 << 32), "steps", "Steps after which they have risen.", ""),
    key("rollout.places", Whole(0, 1 << 20), "", "Episodes played at once; 0: as many as the memory plan has room for, at most 256. Changes no result.", "rollout.max_num_seqs"),
    key("rollout.max_actions_per_turn", Whole(1, 1 << 32), "actions", "Actions of a turn at most; further ones are dropped without penalty.", "agent_proxy.max_actions_per_turn"),
    key("rollout.action_separator", Text, "", "What separates two actions in an answer.", "agent_proxy.action_sep"),
    key("rollout.think", Flag, "", "The response reasons between `<think>` tags before it answers.", "agent_proxy.enable_think"),
    key("rollout.prompt", Word(&["full", "compact"]), "", "How a prompt is laid out: `full` has instruction, legend, budget and format, `compact` only the observation between the role tokens of the small tokenizer.", ""),
    key("rollout.force_open_tag", Flag, "", "The prompt ends with the opening tag, which is then not trained: on for chat models, off for the tiny ones.", ""),
    key("rollout.force_close_tag", Flag, "", "A response that reaches `response_tokens` without `</answer>` is closed by the template, untrained: lets a model that knows nothing answer at all.", ""),
    key("rollout.response_tokens", Whole(1, 1 << 32), "tokens", "Tokens sampled a turn at most.", "rollout.response_length"),
    key("rollout.model_tokens", Whole(2, 1 << 32), "tokens", "Longest sequence, prompt and responses together.", "rollout.max_model_len"),
    key("rollout.sampling.temperature", Number(0.0, 100.0), "", "Temperature of training rollouts.", "rollout.temperature"),
    key("rollout.sampling.top_k", Whole(0, 1 << 32), "tokens", "Keep this many tokens; 0 is off.", "rollout.top_k"),
    key("rollout.sampling.top_p", Number(0.0, 1.0), "", "Keep the shortest prefix of the sorted probabilities that reaches this; 1 is off.", "rollout.top_p"),
    key("rollout.sampling.min_p", Number(0.0, 1.0), "", "Keep tokens of at least this share of the largest probability; 0 is off.", ""),
    key("rollout.format_penalty", Number(-INF, 0.0), "reward", "Added to an episode's score for each turn that holds an unknown action or none.", "es_manager.format_penalty"),
    key("rollout.context", Word(&["full", "limited_multi_turn", "single_turn"]), "", "Which part of the history the policy sees: `full` all turns, as one row; `limited_multi_turn` the last turns as a conversation, a row a turn; `single_turn` one message that sums up the last turns and states the present one, a row a turn.", "agent_proxy.context_window_mode"),
    key("rollout.context_window", WholeOr(1, "all"), "turns", "Turns seen in the windowed context modes, the present one included.", "agent_proxy.max_context_window"),
    key("rollout.overflow", Word(&["drop", "end"]), "", "Where the turns that a prompt would show leave no room for `response_tokens`: `drop` leaves out the earliest, whole turns, and goes on in a new row; `end` ends the episode as truncated.", ""),
    key("rollout.history", Word(&["auto", "append", "template"]), "", "What a later prompt shows of the earlier turns, for a model that brings a chat template: `append` what was read and sampled, id by id; `template` what the template makes of it, as a row of its own; `auto` appends where the two read the same.", ""),

    key("reward.grouping", Word(&["state", "inductive", "batch"]), "", "Which trajectories are normalised together: of one group, of one tag, or all.", "agent_proxy.reward_normalization.grouping"),
    key("reward.method", Word(&["identity", "mean", "mean_std", "asym_clip"]), "", "How scores are normalised. The filter always reads scores that are not.", "agent_proxy.reward_normalization.method"),
    key("reward.placement", Word(&["trajectory", "turn"]), "", "Where the score is earned: all of it at the end of the trajectory, or each turn's reward and format penalty at the end of that turn. By `turn` the group estimators compare each turn's return with its group's from that turn on.", "agent_proxy.use_turn_scores"),
    key("reward.overlong_buffer_tokens", Whole(0, 1 << 32), "tokens", "A response pays for what it has above `rollout.response_tokens` less this, linearly (DAPO); 0 is off.", ""),
    key("reward.overlong_penalty", Number(0.0, INF), "reward", "What a response of `rollout.response_tokens` pays.", ""),
    key("reward.think_cost", Number(0.0, INF), "reward a token", "What each token between the thinking tags pays. The filter and the logged rewards do not see it.", ""),
    key("reward.kl.coef", Number(0.0, INF), "reward a nat", "What the divergence from the reference costs, taken out of each token's reward; 0 needs no reference.", "algorithm.kl_ctrl.kl_coef, algorithm.use_kl_in_reward"),
    key("reward.kl.kind", Word(&["k1", "k2", "k3", "abs"]), "", "Its estimator. In the reward `k1` gives the exact gradient of the divergence on average; the others do not.", "algorithm.kl_penalty"),
    key("reward.kl.target", Number(0.0, INF), "nats a token", "The mean divergence that `coef` is adapted towards; 0 leaves it as it is.", "algorithm.kl_ctrl.target_kl, algorithm.kl_ctrl.type"),
    key("reward.kl.horizon", Number(1.0, INF), "trajectories", "How slowly: a step changes `coef` by at most a fifth of its trajectories over this.", "algorithm.kl_ctrl.horizon"),

    key("filter.strategy", Word(&["top_p", "top_k", "top_k_abs", "min_p"]), "", "How many of the ranked groups are trained on.", "rollout.rollout_filter_strategy"),
    key("filter.value", Number(0.0, INF), "", "The share or number that the strategy takes; `top_p` with 1 or more keeps every group.", "rollout.rollout_filter_value"),
    key("filter.kind", Word(&["largest", "smallest"]), "", "Which end of the ranking is kept.", "rollout.rollout_filter_type"),
    key("filter.metric", Word(&["reward_variance", "reward", "reward_sum", "length", "entropy", "entropy_variance", "success", "success_variance"]), "", "What a group is scored by: the mean over its trajectories, for `reward_sum` their sum; the variances are standard deviations (n − 1).", "rollout.rollout_filter_metric"),
    key("filter.include_zero", Flag, "", "Groups whose score is exactly 0 take part in the ranking; a spread is 0 where all members are equal.", "rollout.rollout_filter_include_zero"),
    key("filter.scale_free", Flag, "", "Score what the metric looks at by its place between the least (0) and the most (1) of the rollout: then no choice of the reward's unit or zero changes what is kept, and `selection_eps` is in that unit.", ""),
    key("filter.top_p_prob_mode", Word(&["linear", "softmax"]), "", "What `top_p` takes the share of: the sum of the scores, or their softmax.", "rollout.rollout_filter_top_p_prob_mode"),
    key("filter.selection_eps", Number(0.0, INF), "score", "Slack below the share of `top_p` with `linear`; a batch with less score in all is empty.", "rollout.rollout_filter_selection_eps"),
    key("filter.empty_stop_steps", Whole(0, MAX), "steps", "Training stops after so many empty selections in a row; 0 never.", "rollout.rollout_filter_empty_stop_steps"),
    key("filter.max_rounds", Whole(1, 1 << 16), "rollouts", "Rollouts a step at most: while fewer than `full_groups` groups are kept, another one is played, on new levels, and all that were played are filtered together. 1 plays no more than one (DAPO's dynamic sampling: `include_zero = false` and this above 1).", ""),
    key("filter.full_groups", Whole(0, 1 << 32), "groups", "Groups that make a step full; of more the first in order of play are kept, and the rest is let go: one step later it would be another policy's. 0: with `max_rounds` above 1 `env.train.groups`, else no limit.", ""),

    key("algorithm.estimator", Word(&["gae", "bilevel_gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gigpo"]), "", "The advantage: `gae` over a value head (PPO), `bilevel_gae` over turns first; relative to the group by `grpo`, `rloo`, `reinforce_plus_plus_baseline`, and by `gigpo` also to other turns from the same state; `reinforce_plus_plus` whitens discounted returns.", "algorithm.adv_estimator, algorithm.bi_level_gae"),
    key("algorithm.gamma", Number(0.0, 1.0), "", "Discount from one trained token to the next (`gae`, `bilevel_gae`, `reinforce_plus_plus`).", "algorithm.gamma"),
    key("algorithm.lambda", Number(0.0, 1.0), "", "Weight of longer returns: 0 looks one token (or turn) ahead, 1 sums up to the end (`gae`, `bilevel_gae`).", "algorithm.lam"),
    key("algorithm.bootstrap_truncated", Flag, "", "What an episode that was cut off at a limit (`rollout.max_turns`, its actions, a full context) would still have earned is estimated by the value of its last token (`gae`, `bilevel_gae`). False, as in RAGEN: it earns nothing more.", ""),
    key("algorithm.turn_gamma", Number(0.0, 1.0), "", "Discount from one turn to the next (`bilevel_gae`, `gigpo`, and group estimators with `reward.placement = \"turn\"`).", "algorithm.high_level_gamma"),
    key("algorithm.norm_by_std", Flag, "", "Divide by the standard deviation (`grpo`, `gigpo`); false is Dr. GRPO.", "algorithm.norm_adv_by_std_in_grpo"),
    key("algorithm.epsilon", Number(0.0, INF), "score", "Added to the standard deviation before dividing (`grpo`, `gigpo`).", ""),
    key("algorithm.step_weight", Number(0.0, INF), "", "Weight of the comparison of turns from the same state (`gigpo`).", ""),
    key("algorithm.soft_reweight", Flag, "", "Scale each group's advantages by its standard deviation over the largest of the batch; for estimators that compare groups.", "algorithm.soft_advantage_reweight"),
    key("algorithm.filter_loss_scaling", Word(&["none", "linear", "sqrt"]), "", "Scale advantages by the share of groups that the filter kept, or by its root; entropy, divergence and value losses are not scaled.", "actor.filter_loss_scaling"),
    key("algorithm.length_weight", Flag, "", "Divide a trajectory's advantages by its trained tokens over their mean in the batch.", "actor.grpo_advantage_length_weight, grpo_advantage_length_weight"),
    key("algorithm.zero_task_advantage", Flag, "", "Set all advantages to 0: only entropy, divergence and values are trained.", "algorithm.zero_task_advantage"),

    key("update.mini_batch", Whole(1, 1 << 32), "trajectories", "Rows of one optimiser step at most; a step's rows are split in order, as evenly as can be.", "actor.ppo_mini_batch_size, ppo_mini_batch_size"),
    key("update.mini_batches", Whole(0, 1 << 32), "", "Optimiser steps a pass, whatever the number of rows; 0 goes by `mini_batch`.", ""),
    key("update.micro_batch", Whole(0, 1 << 32), "rows", "Rows of one forward and backward at most; 0 goes by tokens alone. Changes gradients by rounding only.", "micro_batch_size_per_gpu"),
    key("update.micro_batch_tokens", Whole(1, 1 << 32), "tokens", "Tokens of one forward and backward at most (a longer row goes alone). Bounds memory; changes gradients by rounding only.", ""),
    key("update.packed_tokens", Whole(0, 1 << 32), "tokens", "As `micro_batch_tokens`, but a prompt that rows share counts once; 0: as many as the memory plan has room for. Where prompts are shared decides how gradients round, so the choice is written into the run's configuration.", ""),
    key("update.recompute", Word(&["auto", "none", "layer"]), "", "Compute blocks again in the backward instead of keeping them: `auto` only if they do not all fit. Changes no result.", "model.enable_gradient_checkpointing"),
    key("update.epochs", Whole(1, 1 << 16), "passes", "Passes over a step's rows.", "actor.ppo_epochs"),
    key("update.shuffle", Flag, "", "Each pass draws anew, from the run's seed, which trajectories share a mini-batch.", "actor.shuffle"),
    key("update.batch_adjust", Word(&["none", "copy", "delete"]), "", "Make the number of trajectories a multiple of `env.train.groups` and `mini_batch`: some are trained on twice, or left out (never all). Advantages are estimated before. Nothing here needs it: mini-batches are as even as can be.", "agent_proxy.batch_adjust_mode"),
    key("update.skip_cut", Flag, "", "A trajectory with a response that was cut at `rollout.response_tokens` or a full context counts in its group's statistics and is not trained on (DAPO's overlong filtering).", ""),
    key("update.rescore", Flag, "", "Score the rows again for the old log-probabilities instead of taking those they were sampled with.", ""),
    key("update.correction.kind", Word(&["none", "tis", "mis"]), "", "Weight the policy's loss by the ratio of scored to sampled probability, for an engine that samples with other arithmetic: `tis` cuts weights at `cap`, `mis` makes those beyond it, or below its inverse, 0. Needs `update.rescore`.", ""),
    key("update.correction.level", Word(&["token", "sequence"]), "", "What has one weight: a token, or a trajectory (the product of its tokens').", ""),
    key("update.correction.cap", Number(1.0, INF), "", "The largest weight.", ""),
    key("update.loss.policy", Word(&["ppo", "gspo", "cispo"]), "", "The policy's loss: `ppo` clips each token's ratio, `gspo` the ratio of the row as a whole (its clip ranges are about 3e-4), `cispo` a weight on the log-probability, so that no token loses its gradient.", "actor.policy_loss.loss_mode"),
    key("update.loss.clip_low", Number(0.0, 1.0), "", "The ratio counts no further down than 1 − this.", "actor.clip_ratio, actor.clip_ratio_low"),
    key("update.loss.clip_high", Number(0.0, INF), "", "The ratio counts no further up than 1 + this.", "actor.clip_ratio, actor.clip_ratio_high"),
    key("update.loss.clip_dual", Number(1.0, INF), "", "For a negative advantage A the loss is at most −A times this (dual clip of `ppo`).", "actor.clip_ratio_c"),
    key("update.loss.average", Word(&["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]), "", "How token losses become one number.", "actor.loss_agg_mode"),
    key("update.loss.entropy_coef", Number(-INF, INF), "loss a nat", "Weight of the entropy bonus.", "actor.entropy_coeff"),
    key("update.loss.value_coef", Number(0.0, INF), "", "Weight of the value loss (`gae`).", ""),
    key("update.loss.value_clip", Number(0.0, INF), "reward", "The value counts no further from the old one than this.", "critic.cliprange_value"),
    key("update.loss.kl.coef", Number(0.0, INF), "", "Weight of the penalty on leaving the reference; 0 needs no reference.", "actor.kl_loss_coef, actor.use_kl_loss, actor.use_ref"),
    key("update.loss.kl.kind", Word(&["k1", "k2", "k3", "abs", "unbiased"]), "", "Its estimator (RAGEN's `kl`, `mse`, `low_var_kl`, `abs`). As a loss: `k1` has no useful gradient (0 on average); `k2` has the exact gradient of KL(policy, reference) on the policy's own samples; `k3` that of KL(reference, policy), which is biased but pulls to the same place; `abs` pulls by the sign; `unbiased` (ratio × `k3`) is exact in later mini-batches too.", "actor.kl_loss_type"),
    key("update.loss.kl.target", Number(0.0, INF), "nats", "The divergence, averaged like the loss, that `coef` is adapted towards; 0 leaves it as it is.", ""),
    key("update.loss.kl.horizon", Number(1.0, INF), "trajectories", "How slowly: a step changes `coef` by at most a fifth of its trajectories over this.", ""),

    key("optim.lr", Number(0.0, 1.0), "", "Learning rate after the warm-up.", "actor.optim.lr"),
    key("optim.betas", Numbers(2, 0.0, 1.0), "", "Decay of AdamW's two moments.", "actor.optim.betas"),
    key("optim.eps", Number(0.0, 1.0), "", "Added to the root of the second moment.", ""),
    key("optim.weight_decay", Number(0.0, 1.0), "", "Decoupled weight decay.", "actor.optim.weight_decay"),
    key("optim.clip_norm", Number(0.0, INF), "", "Largest global gradient norm; 0 does not clip.", "actor.grad_clip"),
    key("optim.warmup_steps", Whole(0, MAX), "steps", "Training steps over which the rate rises from 0.", "actor.optim.lr_warmup_steps, actor.optim.lr_warmup_steps_ratio"),
    key("optim.schedule", Word(&["constant", "linear", "cosine"]), "", "How the rate goes afterwards.", "actor.optim.lr_scheduler_type, actor.optim.warmup_style"),
    key("optim.floor", Number(0.0, 1.0), "share of `lr`", "What is left of the rate at the last step.", "actor.optim.min_lr_ratio"),

    key("collapse.every", Whole(0, MAX), "steps", "Measure template collapse on step 1 and on every n-th step; 0 never.", "collapse_detection.compute_freq"),
    key("collapse.first_turn", Flag, "", "Measure the reasoning of first turns.", "collapse_detection.first_turn_enabled"),
    key("collapse.multi_turn", Flag, "", "Measure the reasoning of turns drawn from whole trajectories too. (RAGEN: true.)", "collapse_detection.multi_turn_enabled"),
    key("collapse.num_samples", WholeOr(1, "all"), "pairs", "Pairs that are scored of each kind: a number, or `\"all\"`.", "collapse_detection.num_samples"),
    key("collapse.contrast", Whole(0, 1 << 32), "prompts", "Other prompts, drawn at random, that a reasoning is scored after: a lower bound of I(X;Z) that cannot exceed ln(this + 1). 0: all of them, which is exact.", ""),
    key("collapse.std_eps", Number(0.0, INF), "nats", "Added to the marginal's standard deviation in `mi_zscore`.", "collapse_detection.std_eps"),
    key("collapse.ema_decay", Number(0.0, 1.0), "", "How much of the running standard deviation in `mi_zscore_ema` is kept a measurement.", "collapse_detection.ema_decay"),
    key("collapse.regime.start", Whole(1, 1 << 32), "measurements", "The run's beginning is the mean of so many.", ""),
    key("collapse.regime.decay", Number(0.0, 1.0), "", "How much of the moving averages that are named is kept a measurement.", ""),
    key("collapse.regime.information", Number(0.0, 1.0), "share", "The input is lost where I(X;Z) and retrieval are below this share of what they were at the beginning.", ""),
    key("collapse.regime.entropy", Number(0.0, 1.0), "share", "The reasoning is thin where H(Z|X) is below this share of what it was at the beginning.", ""),
    key("collapse.regime.floor", Number(0.0, 1.0), "share", "The input is lost where I(X;Z), of its bound, and retrieval, of what there is above chance, are below this, whatever the beginning.", ""),

    key("gradient_analysis.every", Whole(0, MAX), "steps", "Take gradients apart on steps 1, 1 + n, 1 + 2n, …; 0 never. (RAGEN: 50, where `gradient_analysis_mode` is on.)", "trainer.gradient_analysis_every, trainer.gradient_analysis_mode"),
    key("gradient_analysis.mode", Word(&["quantile", "fixed"]), "", "How groups are put into buckets: equally many each by the spread of their rewards, or by the spread itself (0 to 1, … 5 and more).", "rollout.gradient_analysis_bucket_mode"),
    key("gradient_analysis.buckets", Whole(1, 1 << 16), "", "Buckets of mode `quantile`, at most one a group.", "rollout.gradient_analysis_num_buckets"),
    key("gradient_analysis.noise_draws", Whole(0, 1 << 16), "", "Times that rewards are dealt anew within groups for `noise_share`, a backward pass each; 0 leaves it out.", ""),
    key("gradient_analysis.groups", Whole(0, 1 << 16), "groups", "Groups of a rollout that is played for the analysis alone, from the levels that the step begins with, tags in proportion; 0: as many as training has. Where this and `group_size` are training's, the step's own batch is taken apart.", "trainer.gradient_analysis_env_groups"),
    key("gradient_analysis.group_size", Whole(0, 1 << 12), "", "Members of a group of that rollout; 0: as many as training has.", "trainer.gradient_analysis_group_size"),
    key("gradient_analysis.prefilter", Flag, "", "Take apart what the filter dropped as well, under `grad_norm_prefilter/`.", "trainer.gradient_analysis_log_prefilter"),
    key("gradient_analysis.only", Flag, "", "Never update. It is a run of its own whose steps count from 1; `model.path = \"RUN/checkpoints/step-000100\"` looks at the weights of a checkpoint.", "trainer.gradient_analysis_only"),
    key("gradient_analysis.exit_after", Flag, "", "End the run after the first analysis, before update, checkpoint and validation.", "trainer.exit_after_gradient_analysis"),

    key("guards.patience", Whole(1, 1 << 32), "steps", "Bad steps in a row after which `degenerate`, `entropy` and `kl` fire.", ""),
    key("guards.degenerate", ACTION, "", "What is done when responses repeat one token.", ""),
    key("guards.degenerate_share", Number(0.0, 1.0), "share of responses", "Bad: more of them than this have at least 8 tokens of which at least half are one token in a row.", ""),
    key("guards.entropy", ACTION, "", "What is done when the policy has no entropy left.", ""),
    key("guards.entropy_floor", Number(0.0, INF), "nats a token", "Bad: less entropy than this in the update (`policy/entropy_loss`).", ""),
    key("guards.kl", ACTION, "", "What is done when the policy moves too far.", ""),
    key("guards.kl_ceiling", Number(0.0, INF), "nats a token", "Bad: the update's mean divergence from the policy that sampled (`policy/ppo_kl`), or from the reference if there is one (`policy/kl_loss`), is above this.", ""),
    key("guards.reward", ACTION, "", "What is done when the rewards within groups no longer differ. (RAGEN: stop.)", ""),
    key("guards.reward_window", Whole(1, 1 << 16), "steps", "Steps with something to train on that the beginning is the mean of, and so many that must be bad in a row.", ""),
    key("guards.reward_share", Number(0.0, 1.0), "share", "Bad: the groups' mean standard deviation is below this share of the beginning's.", ""),
    key("guards.success", ACTION, "", "What is done when validation levels of a tag are never solved. (RAGEN: stop.)", ""),
    key("guards.success_patience", Whole(1, 1 << 32), "validations", "Bad validations in a row after which it fires; that before the first step does not count.", ""),
    key("guards.success_floor", Number(0.0, 1.0), "share", "Bad: less of a tag's levels than this are solved.", ""),
    key("guards.collapse", ACTION, "", "What is done when the collapse detector names a template or low-entropy collapse. It warns in any case.", ""),
    key("guards.max_rollbacks", Whole(0, 1 << 32), "", "Times that a run goes back to a checkpoint; then it stops.", ""),

    key("val.every", Whole(0, MAX), "steps", "Validate on every n-th step, and after the last; 0 never.", "trainer.test_freq"),
    key("val.before_train", Flag, "", "Validate before the first step too.", "trainer.val_before_train, trainer.val_only"),
    key("val.groups", Whole(0, 1 << 32), "", "Groups of a validation between the first and the last step, tags in even parts; 0: those of `env.val`.", ""),
    key("val.temperature", Number(0.0, 100.0), "", "Temperature of validation rollouts; 0 is greedy.", "rollout.val_kwargs.do_sample, rollout.val_kwargs.temperature"),
    key("val.top_k", Whole(0, 1 << 32), "tokens", "Keep this many tokens; 0 is off.", "rollout.val_kwargs.top_k"),
    key("val.top_p", Number(0.0, 1.0), "", "Keep the shortest prefix of the sorted probabilities that reaches this; 1 is off.", "rollout.val_kwargs.top_p"),
    key("val.min_p", Number(0.0, 1.0), "", "Keep tokens of at least this share of the largest probability; 0 is off.", ""),
    key("val.rounds", Whole(1, 1 << 32), "", "Rollouts of the validation set a time, each on seeds of its own.", "trainer.validation_steps"),
    key("val.exclude_from_training", Flag, "", "No trained level starts from a state that a validation level starts from.", ""),

    key("checkpoint.every", Whole(0, MAX), "steps", "Save on every n-th step, and after the last; 0 never.", "trainer.save_freq"),
    key("checkpoint.keep", Whole(0, 1 << 32), "", "The newest so many stay, and the best one; 0 keeps all.", "trainer.max_actor_ckpt_to_keep"),
    key("checkpoint.best", Flag, "", "Save also where a validation after a step had more success than all before it, those on a part of the levels (`val.groups`) among them (the first of equals; not where `checkpoint.every` is 0). `ragen eval RUN --checkpoint best` and `ragen export RUN DIR --checkpoint best` take it.", ""),

    key("warmstart.demos", Whole(1, 1 << 32), "trajectories", "Demonstrated trajectories, one pass.", ""),
    key("warmstart.noise", Number(0.0, 1.0), "", "Probability that a planned move is replaced by a random one.", ""),
    key("warmstart.full", Number(0.0, 1.0), "", "Probability that a turn holds as many actions as it may; otherwise their number is uniform from 1.", ""),
    key("warmstart.bare", Number(0.0, 1.0), "", "Probability that a turn's reasoning names nothing of what the player sees, only what it does: `go Down`.", ""),
    key("warmstart.batch", Whole(1, 1 << 32), "trajectories", "Rows of one optimiser step.", ""),
    key("warmstart.optim.lr", Number(0.0, 1.0), "", "Learning rate after the warm-up.", ""),
    key("warmstart.optim.betas", Numbers(2, 0.0, 1.0), "", "Decay of AdamW's two moments.", ""),
    key("warmstart.optim.eps", Number(0.0, 1.0), "", "Added to the root of the second moment.", ""),
    key("warmstart.optim.weight_decay", Number(0.0, 1.0), "", "Decoupled weight decay.", ""),
    key("warmstart.optim.clip_norm", Number(0.0, INF), "", "Largest global gradient norm; 0 does not clip.", ""),
    key("warmstart.optim.warmup_steps", Whole(0, MAX), "optimiser steps", "Steps over which the rate rises from 0.", ""),
    key("warmstart.optim.schedule", Word(&["constant", "linear", "cosine"]), "", "How the rate goes afterwards.", ""),
    key("warmstart.optim.floor", Number(0.0, 1.0), "share of `lr`", "What is left of the rate at the last step.", ""),
];

/// The key at a dotted path.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| matches(key.path, path))
}

/// Whether a path names a section, such as `update.loss`.
pub fn is_section(path: &str) -> bool {
    let depth = path.split('.').count();
    KEYS.iter().any(|key| {
        let parts: Vec<&str> = key.path.split('.').collect();
        parts.len() > depth && matches(&parts[..depth].join("."), path)
    })
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('.'), path.split('.'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some(p), Some(s)) if p == s || p == ANY => {}
            _ => return false,
        }
    }
}

/// The known key most similar to a path, spelled with the path's own tag where it names one.
pub fn nearest(path: &str) -> Option<String> {
    let last = |p: &str| p.rsplit('.').next().unwrap_or_default().to_string();
    let tag = path.strip_prefix("envs.").and_then(|rest| rest.split('.').next());
    let score = |key: &Key| {
        let whole = strsim::normalized_damerau_levenshtein(key.path, path);
        // `clip_low=0.1` means the one key that ends so, wherever it is.
        let end = strsim::normalized_damerau_levenshtein(&last(key.path), &last(path));
        whole.max(0.95 * end)
    };
    let best =
        KEYS.iter().map(|key| (score(key), key)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.path.cmp(a.1.path)))?;
    (best.0 > 0.5).then(|| tag.map_or(best.1.path.to_string(), |tag| best.1.path.replace(ANY, tag)))
}

impl std::fmt::Display for Expect {
    /// What is expected, as in "expected a number from 0 to 1".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whole = |from: u64, to: u64, what: &str| match (from, to) {
            (from, to) if to >= 1 << 32 && from == 0 => what.to_string(),
            (from, to) if to >= 1 << 32 => format!("{what} of at least {from}"),
            (from, to) => format!("{what} from {from} to {to}"),
        };
        let number = |from: f64, to: f64, what: &str| match (from == -INF, to == INF) {
            (true, true) => what.to_string(),
            (true, false) => format!("{what} of at most {to}"),
            (false, true) => format!("{what} of at least {from}"),
            (false, false) => format!("{what} from {from} to {to}"),
        };
        f.write_str(&match *self {
            Flag => "true or false".to_string(),
            Whole(from, to) => whole(from, to, "a whole number"),
            Number(from, to) => number(from, to, "a number"),
            Text => "a text".to_string(),
            Word(words) => format!("one of {}", words.join(", ")),
            WholeOr(from, word) => format!("{}, or \"{word}\"", whole(from, MAX, "a whole number")),
            Numbers(n, from, to) => format!("a list of {n} of {}", number(from, to, "a number")),
            Wholes(from) => format!("a list of {}", whole(from, MAX, "whole numbers")),
            Texts => "a list of texts".to_string(),
            Settings => "a table of settings".to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_key() {
        let check = |path: &str, expected: Option<&str>| assert_eq!(nearest(path).as_deref(), expected, "{path}");
        check("filter.valeu", Some("filter.value"));
        check("clip_low", Some("update.loss.clip_low"));
        check("update.clip_low", Some("update.loss.clip_low"));
        check("env.train.groupsize", Some("env.train.group_size"));
        check("envs.Lake.max_action", Some("envs.Lake.max_actions"));
        check("zzzzzzzzzzzzzz", None);
    }

    #[test]
    fn tags_have_any_name() {
        assert_eq!(find("envs.Mine.type").unwrap().path, "envs.TAG.type");
        assert!(find("envs.Mine").is_none() && is_section("envs.Mine") && is_section("update.loss"));
        assert!(!is_section("filter.value") && !is_section("no"));
    }
}

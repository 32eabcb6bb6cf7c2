//! Combinations of keys that cannot work, each value alone being fine.

use super::Problem;
use crate::config::{BatchAdjust, Config, ContextMode, EnvSet, History, Window};
use crate::estimator::Estimator;
use crate::guards::{Action, Guard};
use crate::objective::correction::Correction;
use crate::objective::{KlKind, PolicyLoss};
use crate::reward::Placement;
use ragen_envs::EnvError;
use ragen_models::device::Device;
use ragen_models::lora;

/// Everything that cannot work together, by key.
pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut found = Found(Vec::new());
    env_set(&mut found, config, "env.train", &config.env.train);
    env_set(&mut found, config, "env.val", &config.env.val);
    envs(&mut found, config);
    model(&mut found, config);
    values_and_adapters(&mut found, config);
    rollout(&mut found, config);
    update(&mut found, config);
    guards(&mut found, config);
    credit(&mut found, config);
    divergence(&mut found, config);
    run_name(&mut found, &config.run.name);
    device(&mut found, &config.run.device);
    found.0
}

/// The name becomes a folder in `runs/`.
fn run_name(found: &mut Found, name: &str) {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\']) {
        found.add(
            "run.name",
            format!("is {name:?}, but it names a folder in runs/: no path, nor one that starts with a dot"),
        );
    }
}

struct Found(Vec<Problem>);

impl Found {
    fn add(&mut self, key: &str, text: impl Into<String>) {
        self.0.push(Problem { key: key.into(), text: text.into() });
    }
}

fn env_set(found: &mut Found, config: &Config, path: &str, set: &EnvSet) {
    let at = |name: &str| format!("{path}.{name}");
    if set.tags.is_empty() {
        found.add(&at("tags"), "names no environment; `ragen envs` lists them");
    }
    for (i, tag) in set.tags.iter().enumerate() {
        if !config.envs.contains_key(tag) {
            let similarity = |known: &str| strsim::jaro_winkler(known, tag);
            let near = config.envs.keys().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
            let near = near.map_or(String::new(), |near| format!("; the nearest is {near}"));
            found.add(&at("tags"), format!("there is no tag {tag}{near}"));
        }
        if set.tags[..i].contains(tag) {
            found.add(&at("tags"), format!("{tag} is named twice"));
        }
    }
    let sum = set.n_groups.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
    if !set.n_groups.is_empty() && set.n_groups.len() != set.tags.len() {
        found.add(&at("n_groups"), format!("has {} numbers for {} tags", set.n_groups.len(), set.tags.len()));
    } else if !set.n_groups.is_empty() && sum != Some(set.groups) {
        found.add(&at("n_groups"), format!("must sum to {path}.groups, which is {}", set.groups));
    }
    if set.groups < set.tags.len() {
        found.add(&at("groups"), format!("{} groups cannot serve {} tags", set.groups, set.tags.len()));
    }
}

fn envs(found: &mut Found, config: &Config) {
    let shipped = Config::default().envs;
    for (name, tag) in &config.envs {
        let in_use = config.env.train.tags.contains(name) || config.env.val.tags.contains(name);
        // Some environments read files or look for programs: a shipped one that nobody plays is not built.
        if !in_use && shipped.get(name) == Some(tag) {
            continue;
        }
        let at = |key: &str| format!("envs.{name}.{key}");
        if tag.r#type.is_empty() {
            found.add(&at("type"), "is missing; `ragen envs` lists the types");
            continue;
        }
        if tag.max_actions == 0 {
            found.add(&at("max_actions"), "is missing: the most actions in an episode, at least 1");
        }
        match ragen_envs::make(&tag.r#type, &serde_json::Value::Object(tag.config.clone())) {
            Ok(_) => {}
            Err(EnvError::Config { problems, .. }) => {
                for problem in problems {
                    found.add(&at(&format!("config.{}", problem.key)), problem.message);
                }
            }
            // What is not available here is no mistake until it is used.
            Err(EnvError::Unavailable { .. }) if !in_use => {}
            Err(e) => found.add(&at("type"), e.to_string()),
        }
    }
}

fn model(found: &mut Found, config: &Config) {
    // The shape counts for a warm start even where training loads a model.
    let model = &config.model;
    if !model.d_model.is_multiple_of(model.n_heads) {
        found.add(
            "model.n_heads",
            format!("{} does not divide model.d_model, which is {}", model.n_heads, model.d_model),
        );
    } else if !(model.d_model / model.n_heads).is_multiple_of(2) {
        let width = model.d_model / model.n_heads;
        found.add(
            "model.d_model",
            format!("a head is {width} wide (d_model / n_heads), but RoPE turns pairs: make it even"),
        );
    }
    if model.norm_eps <= 0.0 {
        found.add("model.norm_eps", "must be above 0");
    }
    if !model.n_heads.is_multiple_of(model.n_kv_heads) {
        let text = format!("{} does not divide model.n_heads, which is {}", model.n_kv_heads, model.n_heads);
        found.add("model.n_kv_heads", text);
    }
}

fn values_and_adapters(found: &mut Found, config: &Config) {
    let model = &config.model;
    if model.value_model && model.value_head {
        found.add("model.value_model", "model.value_head is on too: values come from one of the two");
    }
    if model.value_model && !config.algorithm.estimator.reads_values() {
        found.add("model.value_model", "is on, but only algorithm.estimator = \"gae\" and \"bilevel_gae\" read values");
    }
    if model.value_warmup_steps > 0 && !model.value_model {
        let text = "is above 0, but only a value model of its own can be trained alone: set model.value_model = true";
        found.add("model.value_warmup_steps", text);
    }
    let known = lora::Module::ALL.map(|module| module.name());
    for name in model.lora.targets.iter().filter(|name| !known.contains(&name.as_str())) {
        found.add("model.lora.targets", format!("there is no layer {name:?}; there are {}", known.join(", ")));
    }
    if model.lora.rank > 0 && model.lora.targets.is_empty() {
        found.add("model.lora.targets", "names no layer, but model.lora.rank is above 0");
    }
    if model.lora.rank > 0 && model.path.is_empty() {
        found.add("model.lora.rank", "is above 0, but adapters add to a model that is kept: set model.path");
    }
}

fn rollout(found: &mut Found, config: &Config) {
    let rollout = &config.rollout;
    if rollout.response_tokens >= rollout.model_tokens {
        let text = format!(
            "{} leaves no room for a prompt in rollout.model_tokens = {}",
            rollout.response_tokens, rollout.model_tokens
        );
        found.add("rollout.response_tokens", text);
    }
    if rollout.curriculum.turns > rollout.max_turns {
        let text =
            format!("{} is more than rollout.max_turns, which is {}", rollout.curriculum.turns, rollout.max_turns);
        found.add("rollout.curriculum.turns", text);
    }
    if rollout.action_separator.is_empty() {
        found.add("rollout.action_separator", "is empty, so actions could not be told apart");
    }
    if rollout.context == ContextMode::Full && rollout.context_window != Window::All {
        found.add(
            "rollout.context_window",
            "has no effect with rollout.context = \"full\": remove it, or choose another",
        );
    }
    if rollout.context != ContextMode::Full && rollout.history == History::Append {
        let text =
            "is \"append\", but with this rollout.context every turn is a row of its own, to which nothing is appended";
        found.add("rollout.history", text);
    }
}

fn update(found: &mut Found, config: &Config) {
    let alone = config.env.train.group_size == 1;
    if config.algorithm.estimator.compares_groups() && alone {
        let name = serde_json::to_string(&config.algorithm.estimator).unwrap_or_default();
        let text = format!("is 1, but algorithm.estimator = {name} compares the members of a group: at least 2");
        found.add("env.train.group_size", text);
    }
    let filter = &config.filter;
    if !filter.passes_all() && alone && filter.metric.is_spread() {
        found.add("filter.metric", "is the spread within a group, but env.train.group_size is 1");
    }
    if filter.max_rounds > 1 && filter.passes_all() {
        let text = "is above 1, but the filter passes every group, so none is played in its place: set filter.include_zero = false";
        found.add("filter.max_rounds", text);
    }
    let most = (config.env.train.groups as u64).saturating_mul(filter.max_rounds);
    if filter.full_groups as u64 > most {
        found.add("filter.full_groups", format!("is more than the {most} groups of filter.max_rounds rollouts"));
    }
    let optims = [("optim", &config.optim), ("warmstart.optim", &config.warmstart.optim)];
    for (path, optim) in optims {
        for (i, beta) in optim.betas.iter().enumerate() {
            if *beta >= 1.0 {
                found.add(&format!("{path}.betas"), format!("beta {} is {beta}, it must be below 1", i + 1));
            }
        }
        if optim.eps <= 0.0 {
            found.add(&format!("{path}.eps"), "must be above 0");
        }
    }
}

fn guards(found: &mut Found, config: &Config) {
    let (analysis, n_tags) = (&config.gradient_analysis, config.env.train.tags.len());
    if (1..n_tags).contains(&analysis.groups) {
        found.add("gradient_analysis.groups", format!("{} groups cannot serve {n_tags} tags", analysis.groups));
    }
    for (key, is_on) in [("only", analysis.only), ("exit_after", analysis.exit_after)] {
        if is_on && analysis.every == 0 {
            found.add(
                &format!("gradient_analysis.{key}"),
                "is on, but gradient_analysis.every is 0, so nothing is analysed",
            );
        }
    }
    for guard in Guard::ALL.into_iter().filter(|guard| guard.action(&config.guards) == Action::Rollback) {
        let key = format!("guards.{}", guard.key());
        if config.checkpoint.every == 0 {
            found.add(&key, "is \"rollback\", but checkpoint.every is 0, so there is nothing to go back to");
        } else if config.checkpoint.keep == 1 {
            found.add(
                &key,
                "is \"rollback\", but checkpoint.keep is 1, and the newest checkpoint may be a bad one: at least 2, or 0 for all",
            );
        }
    }
}

fn credit(found: &mut Found, config: &Config) {
    let (algorithm, estimator) = (&config.algorithm, config.algorithm.estimator);
    if algorithm.soft_reweight && !estimator.compares_groups() {
        found.add("algorithm.soft_reweight", "is on, but this algorithm.estimator has no group statistics to weigh by");
    }
    if algorithm.bootstrap_truncated && !estimator.reads_values() {
        found.add(
            "algorithm.bootstrap_truncated",
            "is on, but this algorithm.estimator has no values to bootstrap with",
        );
    }
    if estimator == Estimator::Gigpo && config.reward.placement == Placement::Turn {
        let text = "is \"turn\", but algorithm.estimator = \"gigpo\" compares whole scores, and beside them each turn's return from its state, \
             as it is defined: leave it at \"trajectory\"";
        found.add("reward.placement", text);
    }
    if config.reward.overlong_buffer_tokens > config.rollout.response_tokens {
        let text = format!("is more than rollout.response_tokens, which is {}", config.rollout.response_tokens);
        found.add("reward.overlong_buffer_tokens", text);
    }
    let update = &config.update;
    if update.correction.kind != Correction::None && !update.rescore {
        let text = "compares what tokens were sampled with to what they score: set update.rescore = true";
        found.add("update.correction.kind", text);
    }
    if update.batch_adjust != BatchAdjust::None && update.mini_batches > 0 {
        found.add("update.batch_adjust", "goes by update.mini_batch, so update.mini_batches must be 0");
    }
}

fn divergence(found: &mut Found, config: &Config) {
    let (reward, loss) = (&config.reward.kl, &config.update.loss.kl);
    for (path, target, coef) in [("reward.kl", reward.target, reward.coef), ("update.loss.kl", loss.target, loss.coef)]
    {
        if target > 0.0 && coef == 0.0 {
            found.add(&format!("{path}.target"), format!("adapts {path}.coef, which is 0 and would stay so"));
        }
    }
    if reward.kind == KlKind::Unbiased {
        found.add("reward.kl.kind", "\"unbiased\" is a loss; in the reward \"k1\" is unbiased");
    }
}

/// What is possible but seldom meant, a line each.
pub fn notices(config: &Config) -> Vec<String> {
    let (reward, loss) = (&config.reward.kl, &config.update.loss);
    let mut notices = Vec::new();
    if loss.kl.coef != 0.0 && loss.kl.kind == KlKind::K1 {
        notices.push(
            "update.loss.kl.kind = \"k1\" pulls nowhere on average; \"unbiased\", \"k2\" and \"k3\" pull towards the reference".into(),
        );
    }
    if reward.coef != 0.0 && reward.kind != KlKind::K1 {
        notices.push("reward.kl.kind is not \"k1\", the one whose gradient is right in the reward".into());
    }
    if loss.policy == PolicyLoss::Gspo && loss.clip_high.min(loss.clip_low) > 0.05 {
        let (low, high) = (loss.clip_low, loss.clip_high);
        notices.push(format!(
            "update.loss.clip_low = {low} and clip_high = {high} hardly ever clip a row's ratio; gspo uses about 3e-4"
        ));
    }
    notices
}

fn device(found: &mut Found, device: &str) {
    if let Err(text) = Device::parse(device) {
        found.add("run.device", text);
    }
}

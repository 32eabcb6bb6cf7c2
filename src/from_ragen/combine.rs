//! What several of RAGEN's keys say together.

use super::keys::{ROWS, Rule};
use super::translation::{Translation, equal};
use crate::hydra::yaml::Value;
use std::path::Path;

/// Estimators by their names here, which are RAGEN's.
const ESTIMATORS: [&str; 7] =
    ["gae", "bilevel_gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gigpo"];

/// Shorthands of paths.
macro_rules! actor {
    ($name:literal) => {
        concat!("actor_rollout_ref.actor.", $name)
    };
}

/// Puts together everything that needs it; `is_own` tells the keys here that are set beside.
pub fn all(translation: &mut Translation, is_own: &dyn Fn(&str) -> bool) {
    model(translation, is_own);
    let learns_values = estimator(translation);
    rates(translation, learns_values);
    if learns_values {
        likeness(translation);
    }
    divergence_in_reward(translation);
    divergence_in_loss(translation);
    clips(translation);
    window(translation);
    turn_scores(translation);
    validation(translation);
    length(translation);
    analysis(translation);
}

/// The policy's weights: nothing is downloaded here.
fn model(translation: &mut Translation, is_own: &dyn Fn(&str) -> bool) {
    const PATH: &str = "actor_rollout_ref.model.path";
    if is_own("model.path") {
        return;
    }
    let is_set = translation.values.is_given(PATH) || translation.values.is_given("model_path");
    if !is_set {
        return translation.problem("model_path", "says no model; give a folder, or model.path=DIR");
    }
    let Some(path) = translation.text(PATH) else { return };
    let looks_hosted = path.split('/').count() == 2 && !path.starts_with(['.', '/', '~']);
    if looks_hosted && !Path::new(&path).exists() {
        let text = format!(
            "{path} is no folder here. If it is a name on Hugging Face: nothing is downloaded, so fetch it first and say where it \
             lies, model.path=DIR (docs/models.md says what loads)"
        );
        return translation.problem("model_path", text);
    }
    translation.set("model.path", path, &["model_path"]);
}

/// The estimator, and whether it learns values.
fn estimator(translation: &mut Translation) -> bool {
    const NAME: &str = "algorithm.adv_estimator";
    const TURNS: &str = "algorithm.bi_level_gae";
    let (Some(name), Some(by_turns)) = (translation.text(NAME), translation.flag(TURNS)) else { return false };
    let mut name = name.replace('-', "_");
    if !ESTIMATORS.contains(&name.as_str()) {
        translation.problem(NAME, format!("there is no estimator {name} here; there are {}", ESTIMATORS.join(", ")));
        return false;
    }
    if by_turns && name != "gae" {
        translation.problem(TURNS, format!("goes with algorithm.adv_estimator=gae, not {name}"));
    } else if by_turns {
        name = "bilevel_gae".into();
    }
    let learns_values = name.ends_with("gae");
    match translation.get("critic.enable").map(|node| node.value) {
        None | Some(Value::Null) => {}
        Some(Value::Flag(enabled)) if enabled == learns_values => {}
        Some(value) => {
            let text =
                format!("is {value}, but values are learned exactly where the estimator reads them: leave it null");
            translation.problem("critic.enable", text);
        }
    }
    translation.set("algorithm.estimator", name, &[NAME, TURNS]);
    translation.set("model.value_model", learns_values, &[NAME]);
    learns_values
}

/// Learning rates and their schedule.
fn rates(translation: &mut Translation, learns_values: bool) {
    const RATE: &str = actor!("optim.lr");
    const VALUES: &str = "critic.optim.lr";
    if let Some(lr) = translation.number(RATE) {
        translation.set("optim.lr", lr, &[RATE]);
        match translation.number(VALUES) {
            Some(values) if learns_values && lr == 0.0 && values != 0.0 => {
                translation
                    .problem(VALUES, format!("is {values}, but values learn at a multiple of {RATE}, which is 0"));
            }
            Some(values) if learns_values && lr != 0.0 => {
                // 1e-5 over 1e-6 is 10, not 10.000000000000002.
                let factor = format!("{:.12e}", values / lr).parse().unwrap_or(values / lr);
                translation.set("model.value_lr_factor", factor, &[VALUES, RATE]);
            }
            _ => {}
        }
    }
    const ALONE: &str = "trainer.critic_warmup";
    if let Some(first) = translation.whole(ALONE) {
        translation.set("model.value_warmup_steps", (first - 1).max(0), &[ALONE]);
    }
    const STEPS: &str = actor!("optim.lr_warmup_steps");
    const SHARE: &str = actor!("optim.lr_warmup_steps_ratio");
    let total = translation.whole("trainer.total_training_steps");
    if let (Some(steps), Some(share), Some(total)) =
        (translation.number_or(STEPS, -1.0), translation.number_or(SHARE, 0.0), total)
    {
        let steps = if steps < 0.0 { share * total as f64 } else { steps };
        translation.set("optim.warmup_steps", steps as i64, &[STEPS, SHARE]);
    }
    const FLOOR: &str = actor!("optim.min_lr_ratio");
    if let Some(floor) = translation.number_or(FLOOR, 0.0) {
        translation.set("optim.floor", floor, &[FLOOR]);
    }
}

/// The value model has no settings of its own.
fn likeness(translation: &mut Translation) {
    for row in ROWS {
        let Rule::Like(other) = row.rule else { continue };
        let (Some(own), Some(policy)) = (translation.get(row.path), translation.get(other)) else { continue };
        if !equal(&own, &policy.value) {
            let text = format!(
                "is {}, but the value model is trained as the policy is: make it {}, as {other} is",
                own.value, policy.value
            );
            translation.problem(row.path, text);
        }
    }
}

fn divergence_in_reward(translation: &mut Translation) {
    const USE: &str = "algorithm.use_kl_in_reward";
    const COEF: &str = "algorithm.kl_ctrl.kl_coef";
    const TYPE: &str = "algorithm.kl_ctrl.type";
    const TARGET: &str = "algorithm.kl_ctrl.target_kl";
    let (Some(used), Some(coef)) = (translation.flag(USE), translation.number(COEF)) else { return };
    translation.set("reward.kl.coef", if used { coef } else { 0.0 }, &[USE, COEF]);
    let target = match translation.text(TYPE).as_deref() {
        Some("fixed") => Some(0.0),
        Some("adaptive") => translation.number(TARGET),
        Some(other) => return translation.problem(TYPE, format!("expected fixed or adaptive, found {other:?}")),
        None => None,
    };
    if let Some(target) = target {
        translation.set("reward.kl.target", if used { target } else { 0.0 }, &[TYPE, TARGET]);
    }
}

fn divergence_in_loss(translation: &mut Translation) {
    const USE: &str = actor!("use_kl_loss");
    const COEF: &str = actor!("kl_loss_coef");
    const REFERENCE: &str = actor!("use_ref");
    let flags = (translation.flag(USE), translation.flag(REFERENCE));
    if let ((Some(used), Some(reference)), Some(coef)) = (flags, translation.number(COEF)) {
        if used && !reference {
            translation.notices.push(format!("{REFERENCE} is false, so {USE} has no effect, as in RAGEN"));
        }
        translation.set("model.reference", reference, &[REFERENCE]);
        translation.set("update.loss.kl.coef", if used && reference { coef } else { 0.0 }, &[USE, COEF, REFERENCE]);
    }
}

fn clips(translation: &mut Translation) {
    const BOTH: &str = actor!("clip_ratio");
    let Some(both) = translation.number(BOTH) else { return };
    for (path, ours) in
        [(actor!("clip_ratio_low"), "update.loss.clip_low"), (actor!("clip_ratio_high"), "update.loss.clip_high")]
    {
        if let Some(clip) = translation.number_or(path, both) {
            translation.set(ours, clip, &[path]);
        }
    }
}

fn window(translation: &mut Translation) {
    const TURNS: &str = "agent_proxy.max_context_window";
    const MODE: &str = "agent_proxy.context_window_mode";
    let Some(turns) = translation.number_or(TURNS, -1.0) else { return };
    if turns == 0.0 {
        return translation.problem(TURNS, "0 shows no turn at all: -1 shows all, 1 the present one alone");
    }
    let is_full = translation.text(MODE).is_none_or(|mode| mode == "full");
    if turns > 0.0 && is_full {
        translation.notices.push(format!(
            "{TURNS} = {turns} has no effect with {MODE} = full, as in RAGEN; limited_multi_turn shows so many turns"
        ));
    }
    if turns < 0.0 || is_full {
        translation.set("rollout.context_window", "all", &[TURNS, MODE]);
    } else {
        translation.set("rollout.context_window", turns as i64, &[TURNS]);
    }
}

fn turn_scores(translation: &mut Translation) {
    const SCORES: &str = "agent_proxy.use_turn_scores";
    if let Some(by_turns) = translation.flag(SCORES) {
        translation.set("reward.placement", if by_turns { "turn" } else { "trajectory" }, &[SCORES]);
    }
}

fn validation(translation: &mut Translation) {
    const SAMPLES: &str = "actor_rollout_ref.rollout.val_kwargs.do_sample";
    const TEMPERATURE: &str = "actor_rollout_ref.rollout.val_kwargs.temperature";
    if let (Some(samples), Some(temperature)) = (translation.flag(SAMPLES), translation.number(TEMPERATURE)) {
        translation.set("val.temperature", if samples { temperature } else { 0.0 }, &[SAMPLES, TEMPERATURE]);
    }
}

fn length(translation: &mut Translation) {
    const STEPS: &str = "trainer.total_training_steps";
    const ONLY: &str = "trainer.val_only";
    const BEFORE: &str = "trainer.val_before_train";
    let (Some(only), Some(before)) = (translation.flag(ONLY), translation.flag(BEFORE)) else { return };
    if only {
        translation.notices.push(format!("{ONLY} is true: nothing is trained, the model is validated once"));
        translation.set("run.steps", 0, &[ONLY]);
        translation.set("val.before_train", true, &[ONLY]);
    } else if let Some(steps) = translation.whole(STEPS) {
        translation.set("run.steps", steps, &[STEPS]);
        translation.set("val.before_train", before, &[BEFORE]);
    }
}

fn analysis(translation: &mut Translation) {
    const MODE: &str = "trainer.gradient_analysis_mode";
    const EVERY: &str = "trainer.gradient_analysis_every";
    if let (Some(is_on), Some(every)) = (translation.flag(MODE), translation.whole(EVERY)) {
        translation.set("gradient_analysis.every", if is_on { every.max(0) } else { 0 }, &[MODE, EVERY]);
    }
}

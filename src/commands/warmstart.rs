//! `ragen warmstart`: a model from fresh weights and a scripted player's demonstrations.

use super::open::{self, MODEL, Opened, Prepared, Source};
use super::{Common, Configured, Failure, interruption, print, thousands};
use crate::progress::{Progress, rate};
use ragen::agent_proxy::Play;
use ragen::config::Config;
use ragen::env_manager::EnvManager;
use ragen::eval::evaluate;
use ragen::run::{Log, RunDir, RunError};
use ragen::settings;
use ragen::warmstart::{WarmstartError, WarmstartReport, warmstart};
use ragen_envs::Mode;
use ragen_models::device::Taken;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The command.
pub fn run(common: &Common, what: &Configured) -> Result<(), Failure> {
    let started = Instant::now();
    let mut config = what.load(common)?;
    let device = open::take_device(&mut config, common.quiet)?;
    let (Prepared { source, context, plan }, settled) =
        Prepared::new(Source::fresh(&config)?, &mut as_planned(&config, &device), &device, true)?;
    let Opened { mut policy, belongings, .. } = source.assemble(&config, &config.warmstart.optim, &device, &plan)?;
    let mut val_envs = EnvManager::new(&config.env.val, &config.envs, Mode::Val)?;
    let name = format!("{}-warmstart", config.run.name);
    let run = RunDir::create(common.run.as_deref(), &name, config.run.seed, &settings::to_toml(&config))?;
    let steps = (config.warmstart.demos as u64).div_ceil(config.warmstart.batch as u64);
    let mut progress = Progress::new(common.quiet, steps, 0, (steps / 25).max(1));
    progress.say(&format!(
        "{}: {} demonstrations on {}; {} parameters from fresh weights",
        run.path().display(),
        thousands(config.warmstart.demos),
        config.env.train.tags.join(", "),
        thousands(policy.parameters()),
    ));

    let interrupted = interruption();
    let (mut tokens, mut last, mut failed) = (0, None, None);
    let mut report = |report: &WarmstartReport| {
        tokens += report.tokens;
        last = Some(*report);
        if let Err(error) = run.append(Log::Metrics, report.step, &record(report)) {
            failed = Some(error);
            return false;
        }
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        let values =
            [("loss", format!("{:.4}", report.loss)), ("read", format!("{} tok/s", rate(tokens as f64 / seconds)))];
        progress.step(report.step, &values);
        !interrupted.load(Ordering::SeqCst)
    };
    let done = warmstart(&mut policy, &config, context.clone(), &mut report);
    progress.finish();
    done?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    let step = last.as_ref().map_or(0, |report| report.step);
    let folder = run.path().join(MODEL);
    let write = || {
        std::fs::create_dir_all(&folder).map_err(|source| RunError::Io {
            action: "create",
            path: folder.clone(),
            source,
        })?;
        belongings.save(&folder, &policy).map_err(RunError::Model)
    };
    write()?;
    if step < steps {
        let text = format!("interrupted after update {step} of {steps}; the model so far is {}", folder.display());
        return Err(Failure::Interrupted(text));
    }
    progress.doing("validating");
    let how = Play::new(&context, &settled.rollout, config.val.sampling());
    let evaluation = evaluate(&mut policy, &mut val_envs, how, config.val.rounds, config.run.seed)?;
    progress.finish();
    let mut found = Map::new();
    found.insert("tags".into(), json!(evaluation.tags));
    run.append(Log::Val, step, &found)?;

    let loss = last.as_ref().map_or(f64::NAN, |report| report.loss);
    let seconds = started.elapsed().as_secs_f64();
    let source = what.name();
    let mut text = format!("\nloss {loss:.4} after {step} updates on {} tokens in {seconds:.1} s\n", thousands(tokens));
    for (tag, score) in &evaluation.tags {
        text.push_str(&format!(
            "{tag}: success {:.3}, format valid {:.3} on {} unseen levels at temperature {}\n",
            score.success,
            score.format_valid,
            thousands(score.episodes),
            config.val.temperature
        ));
    }
    text.push_str(&format!(
        "model   {}\nnext    ragen train {source} model.path={}\n",
        folder.display(),
        folder.display()
    ));
    print(&text)?;
    if common.json {
        let result = json!({"run": run.path().display().to_string(), "model": folder.display().to_string(), "updates": step,
            "loss": loss, "tokens": tokens, "tags": evaluation.tags, "seconds": seconds});
        print(&format!("{result}\n"))?;
    }
    Ok(())
}

/// What the memory plan is made for: batches go by `micro_batch_tokens` alone, and there is no reference. The CPU's memory sets no limit.
fn as_planned(config: &Config, device: &Taken) -> Config {
    let mut planned = config.clone();
    planned.update.packed_tokens = config.update.micro_batch_tokens;
    planned.update.loss.kl.coef = 0.0;
    if device.gpu.is_none() {
        planned.run.memory_bytes = usize::MAX;
    }
    planned
}

/// A report as a record of `metrics.jsonl`; the step comes first by itself.
fn record(report: &WarmstartReport) -> Map<String, Value> {
    let Ok(Value::Object(fields)) = serde_json::to_value(report) else { return Map::new() };
    fields
        .into_iter()
        .filter(|(key, _)| key != "step")
        .map(|(key, value)| (format!("warmstart/{key}"), value))
        .collect()
}

impl From<WarmstartError> for Failure {
    fn from(error: WarmstartError) -> Self {
        match error {
            WarmstartError::Envs(_) | WarmstartError::Context(_) | WarmstartError::NoPlayer { .. } => {
                Failure::Usage(error.to_string())
            }
            WarmstartError::Policy(_) | WarmstartError::Env { .. } => Failure::Run(error.to_string()),
        }
    }
}

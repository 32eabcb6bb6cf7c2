//! `ragen train`: the main job, from a configuration or from where a run stopped.

use super::open::{self, Belongings, Opened, Prepared, Source};
use super::{Common, Configured, Failure, interruption, print, table, thousands, with_common};
use crate::progress::{Progress, rate};
use ragen::agent_proxy::Rollout;
use ragen::collapse::Regime;
use ragen::config::Config;
use ragen::context_manager::ContextManager;
use ragen::env_manager::metrics::Metrics;
use ragen::eval::Evaluation;
use ragen::plan;
use ragen::policy::model::Model;
use ragen::run::{Log, Retention, RunDir, Saved};
use ragen::settings;
use ragen::train::{Journal, StepReport, Stopped, Summary, TrainError, TrainState, Trainer};
use ragen_models::optim::Decay;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The command.
pub fn run(common: &Common, what: &Configured) -> Result<(), Failure> {
    let started = Instant::now();
    let (mut config, resumed) = if common.resume { find_run(common, what)? } else { (what.load(common)?, None) };
    let device = open::take_device(&mut config, common.quiet)?;
    let source = match &resumed {
        Some((_, saved)) => Source::open_kept(&saved.path)?,
        None => open::source(&config)?,
    };
    let (Prepared { source, context, plan }, settled) = Prepared::new(source, &mut config, &device, true)?;
    let mut progress =
        Progress::new(common.quiet, config.run.steps, resumed.as_ref().map_or(0, |(_, saved)| saved.step), 1);
    progress.say(&plan.line());
    settings::notices(&config).iter().for_each(|notice| progress.say(&format!("note: {notice}")));
    let (opened, state, resumed) = match resumed {
        Some((run, saved)) => {
            let step = saved.step;
            let (opened, state) = open::restore(&config, source, &device, &plan, saved)?;
            (opened, Some(state), Some((run, step)))
        }
        None => (source.assemble(&config, &config.optim, &device, &plan)?, None, None),
    };
    let Opened { mut policy, belongings, .. } = opened;
    let mut trainer = Trainer::new(settled, context)?;
    if let Some(state) = state {
        trainer.resume(state);
    }
    // Nothing is written before everything fits together.
    let text = settings::to_toml(&config);
    let run = match resumed {
        Some((run, step)) => {
            run.rewind(step)?;
            run.mark_best(trainer.state.best.map(|best| best.step))?;
            run.write_config(&text)?;
            run
        }
        None => RunDir::create(common.run.as_deref(), &config.run.name, config.run.seed, &text)?,
    };
    progress.say(&opening(&config, &policy, &run, trainer.state.step));
    for (name, tag) in &config.envs {
        let plays = [&config.env.train, &config.env.val].iter().any(|set| set.tags.contains(name));
        if let (true, Some(backend)) = (plays, ragen::env_manager::build(name, tag)?.backend()) {
            progress.say(&format!("{name} stands on: {backend}"));
        }
    }
    if trainer.state.step == 0 && config.val.before_train {
        progress
            .doing(&format!("validating on {} levels", thousands(config.env.val.groups * config.env.val.group_size)));
    }
    let mut recorder = Recorder { run, config: &config, belongings, progress, interrupted: interruption() };
    let done = trainer.run(&mut policy, &mut recorder);
    recorder.progress.finish();
    let summary = done?;
    let run = recorder.run;
    if summary.stopped == Some(Stopped::Interrupted) {
        let (step, steps, path) = (summary.step, config.run.steps, run.path().display());
        let text = format!(
            "interrupted after step {step} of {steps}, which is saved\nresume with: ragen train --resume --run {path}"
        );
        return Err(Failure::Interrupted(text));
    }
    let memory = (plan.memory.total(), device.gpu.as_ref().map_or_else(plan::peak_bytes, |gpu| Some(gpu.held().most)));
    let device = device.words(config.run.threads);
    let result = Outcome::read(&run, &summary, device, started.elapsed().as_secs_f64(), memory)?;
    print(&result.table(&config, &summary, &run))?;
    if common.json { print(&format!("{}\n", result.json(&run))) } else { Ok(()) }
}

/// Keys that a resumed run may have another value of, beside those of `[checkpoint]`.
const CHANGES_NO_RESULT: [&str; 9] = [
    "env.train.workers",
    "env.val.workers",
    "run.name",
    "run.threads",
    "run.device",
    "run.trajectories_every",
    "run.memory_bytes",
    "rollout.places",
    "update.recompute",
];

/// The run to go on with, its configuration and its newest checkpoint.
fn find_run(common: &Common, what: &Configured) -> Result<(Config, Option<(RunDir, Saved)>), Failure> {
    let path = match &common.run {
        Some(path) => path.clone(),
        None => newest_run(&what.load(common)?)?,
    };
    let run = RunDir::open(&path)?;
    let source = path.join("config.toml").display().to_string();
    let recorded = settings::parse(&source, &run.config()?, &[])?;
    let mut asked = if what.is_named() {
        what.load(common)?
    } else {
        settings::parse(&source, &run.config()?, &with_common(what.split().1, common))?
    };
    if asked.update.packed_tokens == 0 {
        // What the run's plan chose stays, whatever the machine has now.
        asked.update.packed_tokens = recorded.update.packed_tokens;
    }
    let may_differ = |key: &str| {
        let changes_no_result = CHANGES_NO_RESULT.contains(&key) || key.starts_with("checkpoint.");
        // A schedule counts down to the last step, so another length would be another run from the first step on.
        changes_no_result || (key == "run.steps" && asked.optim.schedule == Decay::Constant)
    };
    let differences = settings::differences(&recorded, &asked, may_differ);
    if !differences.is_empty() {
        return Err(Failure::Usage(format!(
            "{} was started with another configuration, so it cannot be resumed with this one \
             (\"here\" is the run):\n  {}",
            path.display(),
            differences.join("\n  ")
        )));
    }
    let saved = run.newest_checkpoint()?;
    for skipped in &saved.skipped {
        eprintln!("warning: skipped a checkpoint that is not whole: {skipped}");
    }
    Ok((asked, Some((run, saved))))
}

fn newest_run(config: &Config) -> Result<PathBuf, Failure> {
    let (name, seed) = (&config.run.name, config.run.seed);
    RunDir::newest(name, seed)
        .ok_or_else(|| Failure::Usage(format!("there is no run runs/{name}-{seed} to resume; name one with --run DIR")))
}

fn opening(config: &Config, policy: &Model, run: &RunDir, step: u64) -> String {
    let set = &config.env.train;
    let from = match (step, config.model.path.as_str()) {
        (0, "") => "fresh weights".to_string(),
        (0, path) => format!("model {path}"),
        (step, _) => format!("its checkpoint of step {step}"),
    };
    format!(
        "{}: {} groups of {} on {}, {} steps; {} parameters from {from}",
        run.path().display(),
        set.groups,
        set.group_size,
        set.tags.join(", "),
        config.run.steps,
        thousands(policy.parameters()),
    )
}

/// Writes a run into its directory and shows that it moves.
struct Recorder<'a> {
    run: RunDir,
    config: &'a Config,
    belongings: Belongings,
    progress: Progress,
    interrupted: Arc<AtomicBool>,
}

impl Journal<Model> for Recorder<'_> {
    fn step(&mut self, report: &StepReport, context: &ContextManager) -> Result<(), TrainError> {
        let (run, step) = (&self.run, report.step);
        let every = self.config.run.trajectories_every;
        if every > 0 && step.is_multiple_of(every) {
            run.write_trajectories(step, report.trajectories(context)).map_err(journal)?;
        }
        run.append(Log::Timing, step, &timing(report)).map_err(journal)?;
        run.append(Log::Groups, step, &report.groups_json()).map_err(journal)?;
        let mut metrics = to_json(&report.metrics);
        let regime = report.metrics.get("collapse/regime").and_then(|&number| Regime::numbered(number));
        metrics.extend(regime.map(|regime| ("collapse/regime_name".into(), regime.name().into())));
        run.append(Log::Metrics, step, &metrics).map_err(journal)?;
        let value = |key: &str| report.metrics.get(key).copied().unwrap_or(0.0);
        let rates = Rates::of(report);
        let mut values = vec![
            ("success", format!("{:.2}", value("train/success"))),
            ("reward", format!("{:.2}", value("train/reward"))),
            ("tok/s", format!("{} sampled, {} updated", rate(rates.sampled), rate(rates.updated))),
        ];
        values.extend(regime.map(|regime| ("reasoning", regime.name().to_string())));
        self.progress.step(step, &values);
        if value("rollout/empty_after_filter") == 1.0 {
            self.progress.say(&format!("step {step}: nothing to train on, so no update"));
        }
        if value("update/skipped") > 0.0 {
            self.progress.say(&format!("step {step}: a gradient was not finite, so its optimiser step was skipped"));
        }
        Ok(())
    }

    fn notice(&mut self, step: u64, text: &str) -> Result<(), TrainError> {
        let record = Map::from_iter([("text".to_string(), json!(text))]);
        self.run.append(Log::Notices, step, &record).map_err(journal)?;
        self.progress.say(text);
        Ok(())
    }

    fn validation(&mut self, step: u64, evaluation: &Evaluation) -> Result<(), TrainError> {
        let mut record = Map::new();
        record.insert("success".into(), json!(evaluation.success()));
        record.insert("reward".into(), json!(reward(evaluation)));
        record.insert("tags".into(), json!(evaluation.tags));
        record.insert("metrics".into(), Value::Object(to_json(&evaluation.metrics)));
        self.run.append(Log::Val, step, &record).map_err(journal)?;
        let episodes = evaluation.rollouts.iter().map(|rollout: &Rollout| rollout.trajectories.len()).sum();
        self.progress.say(&format!(
            "validation after step {step}: success {:.3}, reward {:.3} on {} unseen levels at temperature {}",
            evaluation.success(),
            reward(evaluation),
            thousands(episodes),
            self.config.val.temperature
        ));
        Ok(())
    }

    fn checkpoint(&mut self, step: u64, policy: &Model, state: &TrainState) -> Result<(), TrainError> {
        let saved = open::trainer_state(policy, state).map_err(|e| TrainError::Journal(Box::new(e)))?;
        let best = state.best.map(|best| best.step);
        let retention = Retention { newest: self.config.checkpoint.keep, best };
        let write = |folder: &std::path::Path| self.belongings.save(folder, policy);
        self.run.save(step, retention, &saved, write).map_err(journal)?;
        Ok(())
    }

    fn go_back(&mut self, policy: &mut Model, before: u64) -> Result<Option<TrainState>, TrainError> {
        match self.run.newest_checkpoint_before(before) {
            Err(ragen::run::RunError::NoCheckpoint { .. }) => Ok(None),
            Err(error) => Err(journal(error)),
            Ok(saved) => open::go_back(self.config, policy, saved)
                .map(Some)
                .map_err(|error| TrainError::Journal(error.text().unwrap_or_default().into())),
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }
}

fn journal(error: ragen::run::RunError) -> TrainError {
    TrainError::Journal(Box::new(error))
}

/// Metrics as a JSON object, keys ascending; what is not finite is null.
pub fn to_json(metrics: &Metrics) -> Map<String, Value> {
    metrics.iter().map(|(key, value)| (key.clone(), Value::from(*value))).collect()
}

/// Tokens a second.
struct Rates {
    /// Sampled, over the time of the rollout with its environments.
    sampled: f64,
    /// Read by the update, each row counted once, over the time of the update.
    updated: f64,
}

impl Rates {
    fn of(report: &StepReport) -> Self {
        let seconds = |name: &str| report.seconds.phases.iter().find(|(phase, _)| *phase == name).map_or(0.0, |p| p.1);
        let read = report.metrics.get("batch/tokens").copied().unwrap_or(0.0);
        Rates {
            sampled: report.sampled_tokens() as f64 / seconds("rollout").max(1e-9),
            updated: read / seconds("update").max(1e-9),
        }
    }
}

fn timing(report: &StepReport) -> Map<String, Value> {
    let phases = report.seconds.phases.iter().map(|(phase, seconds)| (format!("seconds/{phase}"), json!(seconds)));
    let mut record: Map<String, Value> = phases.collect();
    let rates = Rates::of(report);
    record.insert("seconds/total".into(), json!(report.seconds.total()));
    record.insert("rate/sampled_tokens_per_s".into(), json!(rates.sampled));
    record.insert("rate/updated_tokens_per_s".into(), json!(rates.updated));
    record
}

fn reward(evaluation: &Evaluation) -> f64 {
    evaluation.metrics.get("reward").copied().unwrap_or(0.0)
}

/// What a run came to, read from its files, so that a resumed run tells of all of it.
struct Outcome {
    /// In words.
    device: String,
    steps: u64,
    before: Option<Value>,
    after: Option<Value>,
    /// The validation of the best checkpoint.
    best: Option<Value>,
    sampled_tokens: usize,
    trained_tokens: usize,
    seconds: f64,
    /// Of the memory of the device that it computed on, as `peak_bytes` is.
    planned_bytes: usize,
    /// Unknown where the system does not tell.
    peak_bytes: Option<usize>,
}

impl Outcome {
    fn read(
        run: &RunDir,
        summary: &Summary,
        device: String,
        seconds: f64,
        (planned_bytes, peak_bytes): (usize, Option<usize>),
    ) -> Result<Self, Failure> {
        let validations = run.read(Log::Val)?;
        let at = |step: u64| validations.iter().find(|record| record["step"] == step).cloned();
        let metrics = run.read(Log::Metrics)?;
        let sum = |key: &str| metrics.iter().filter_map(|record| record[key].as_f64()).sum::<f64>() as usize;
        Ok(Outcome {
            device,
            steps: summary.step,
            before: at(0),
            after: at(summary.step).filter(|_| summary.step > 0),
            best: run.best_step()?.and_then(at),
            sampled_tokens: sum("train/sampled_tokens"),
            trained_tokens: sum("batch/trained_tokens"),
            seconds,
            planned_bytes,
            peak_bytes,
        })
    }

    fn table(&self, config: &Config, summary: &Summary, run: &RunDir) -> String {
        let row = |cells: [String; 4]| cells.to_vec();
        let mut rows = vec![row(["on unseen levels".into(), "before".into(), "after".into(), "change".into()])];
        let tags = self.after.as_ref().or(self.before.as_ref()).and_then(|record| record["tags"].as_object());
        for tag in tags.into_iter().flat_map(Map::keys) {
            for measure in ["success", "reward", "format_valid"] {
                let of =
                    |record: &Option<Value>| record.as_ref().and_then(|record| record["tags"][tag][measure].as_f64());
                let show = |x: Option<f64>| x.map_or("–".to_string(), |x| format!("{x:.3}"));
                let (before, after) = (of(&self.before), of(&self.after));
                let change = before.zip(after).map_or("–".to_string(), |(b, a)| format!("{:+.3}", a - b));
                rows.push(row([format!("{tag} {}", measure.replace('_', " ")), show(before), show(after), change]));
            }
        }
        let mut text = String::from("\n");
        if rows.len() > 1 {
            text.push_str(&table(&rows));
        }
        match summary.stopped {
            Some(Stopped::EmptyFilter) => text.push_str(&format!(
                "stopped early: the filter kept nothing for {} steps in a row (filter.empty_stop_steps)\n",
                config.filter.empty_stop_steps
            )),
            Some(Stopped::Guard(guard)) => text.push_str(&format!(
                "stopped early, {}: guards.{} (notices.jsonl says why)\n",
                guard.name().replace('_', " "),
                guard.key()
            )),
            Some(Stopped::Analysed) => {
                text.push_str("stopped after the gradient analysis (gradient_analysis.exit_after); nothing was updated or saved\n");
            }
            Some(Stopped::Interrupted) | None => {}
        }
        if let Some((step, success)) =
            self.best.as_ref().and_then(|best| Some((best["step"].as_u64()?, best["success"].as_f64()?)))
        {
            text.push_str(&format!(
                "best    success {success:.3} after step {step} (--checkpoint best of eval and export)\n"
            ));
        }
        let phases: f64 = summary.seconds.iter().map(|(_, seconds)| seconds).sum();
        let mut parts: Vec<String> = summary.seconds.iter().map(|(phase, s)| format!("{phase} {s:.1}")).collect();
        parts.push(format!("validation and files {:.1}", (self.seconds - phases).max(0.0)));
        let mib = |bytes: usize| thousands(bytes.div_ceil(1 << 20));
        let peak = self.peak_bytes.map_or("unknown".to_string(), |bytes| format!("{} MiB", mib(bytes)));
        let memory = format!("{peak} at the peak, {} MiB planned", mib(self.planned_bytes));
        text.push_str(&format!(
            "steps   {}\ntokens  {} sampled, {} trained on\nseconds {:.1}: {}\nmemory  {memory}\nfiles   {}\n",
            self.steps,
            thousands(self.sampled_tokens),
            thousands(self.trained_tokens),
            self.seconds,
            parts.join(", "),
            run.path().display()
        ));
        text
    }

    fn json(&self, run: &RunDir) -> Value {
        let of =
            |record: &Option<Value>, name: &str| record.as_ref().map_or(Value::Null, |record| record[name].clone());
        json!({
            "run": run.path().display().to_string(),
            "device": self.device,
            "steps": self.steps,
            "success_before": of(&self.before, "success"),
            "success_after": of(&self.after, "success"),
            "best_step": of(&self.best, "step"),
            "best_success": of(&self.best, "success"),
            "reward_before": of(&self.before, "reward"),
            "reward_after": of(&self.after, "reward"),
            "sampled_tokens": self.sampled_tokens,
            "trained_tokens": self.trained_tokens,
            "seconds": self.seconds,
            "planned_bytes": self.planned_bytes,
            "peak_bytes": self.peak_bytes,
        })
    }
}

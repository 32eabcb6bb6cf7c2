//! `ragen eval`: success and reward on fixed levels that were never trained on.

use super::open::{self, Opened, Prepared, Source};
use super::{Common, Failure, load_ragen, print, table, thousands, with_common};
use clap::Args;
use ragen::agent_proxy::Play;
use ragen::config::Config;
use ragen::env_manager::EnvManager;
use ragen::eval::{Evaluation, evaluate};
use ragen::run::{self, RunDir, Which};
use ragen::settings::{self, SHIPPED};
use ragen_envs::Mode;
use serde_json::{Map, json};
use std::collections::BTreeSet;
use std::path::Path;

/// What to evaluate, and on what.
#[derive(Args, Debug)]
pub struct Options {
    /// A run, a model folder, or the name of a shipped model
    #[arg(value_name = "MODEL_OR_RUN")]
    pub model: String,
    /// Evaluate on this tag; again for more [default: those of env.val]
    #[arg(long, value_name = "TAG")]
    pub env: Vec<String>,
    /// The configuration to play by [default: that of the run, or the shipped one of the model's name]
    #[arg(long, value_name = "CONFIG")]
    pub config: Option<String>,
    /// Which checkpoint of a run: newest, best (by validation), or the number of its step
    #[arg(long, value_name = "WHICH")]
    pub checkpoint: Option<Which>,
    /// RAGEN's YAML to play by, files with commas between them (docs/from-ragen.md)
    #[arg(long, value_name = "FILES", conflicts_with = "config")]
    pub ragen_config: Option<String>,
    /// Changes to it, such as val.temperature=0.5, env.val.groups=256, env.val.group_size=8 (for pass@k up to 8)
    #[arg(value_name = "KEY=VALUE")]
    pub changes: Vec<String>,
}

/// The command.
pub fn run(common: &Common, options: &Options) -> Result<(), Failure> {
    let path = Path::new(&options.model);
    let of_run = run::is_run(path);
    let mut config = configure(common, options, of_run)?;
    let device = open::take_device(&mut config, common.quiet)?;
    let (Prepared { source, context, plan }, settled) =
        Prepared::new(Source::open_at(&options.model, options.checkpoint)?, &mut config, &device, false)?;
    let Opened { mut policy, belongings, .. } = source.assemble(&config, &config.optim, &device, &plan)?;
    let tokenizer = belongings.tokenizer;
    let mut envs = EnvManager::new(&config.env.val, &config.envs, Mode::Val)?;
    let run = match &common.run {
        None if of_run => RunDir::open(path)?,
        given => {
            let name = format!("{}-eval", config.run.name);
            RunDir::create(given.as_deref(), &name, config.run.seed, &settings::to_toml(&config))?
        }
    };
    let how = Play::new(&context, &settled.rollout, config.val.sampling());
    let evaluation = evaluate(&mut policy, &mut envs, how, config.val.rounds, config.run.seed)?;

    let result = json!({"tags": evaluation.tags, "device": device.words(config.run.threads)});
    let (eval, trajectories) = free_names(&run);
    run.write_text(&eval, &format!("{result:#}\n"))?;
    let played = evaluation.rollouts.iter().flat_map(|rollout| &rollout.trajectories);
    let file = run.write_lines(&trajectories, played.map(|t| t.to_json(&|ids| tokenizer.decode(ids), Map::new())))?;
    let files = format!("files   {}, {}\n", run.path().join(&eval).display(), file.display());
    print(&format!("{}{files}", show(&evaluation, &config)))?;
    if common.json { print(&format!("{result}\n")) } else { Ok(()) }
}

fn configure(common: &Common, options: &Options, of_run: bool) -> Result<Config, Failure> {
    let mut changes = with_common(&options.changes, common);
    if !options.env.is_empty() {
        let tags: Vec<String> = options.env.iter().map(|tag| format!("{tag:?}")).collect();
        changes.push(format!("env.val.tags=[{}]", tags.join(", ")));
        changes.push("env.val.n_groups=[]".into());
    }
    let shipped = SHIPPED.iter().find(|(name, _)| *name == options.model).map(|(name, _)| *name);
    if options.config.is_some() || options.ragen_config.is_some() || !of_run {
        changes.push(format!("model.path={}", toml_text(&options.model)));
    }
    if let Some(files) = &options.ragen_config {
        return Ok(load_ragen(files, &changes, common.quiet)?.config);
    }
    let source = match &options.config {
        Some(config) => Some(config.as_str()),
        None if of_run => Some(options.model.as_str()),
        None => shipped,
    };
    Ok(settings::load(source, &changes)?)
}

/// A text as TOML writes it.
fn toml_text(text: &str) -> String {
    json!(text).to_string()
}

/// Names of the two files that overwrite nothing.
fn free_names(run: &RunDir) -> (String, String) {
    let mut n = 1;
    loop {
        let suffix = if n == 1 { String::new() } else { format!("-{n}") };
        let names = (format!("eval{suffix}.json"), format!("trajectories/eval{suffix}.jsonl"));
        if !run.path().join(&names.0).exists() && !run.path().join(&names.1).exists() {
            return names;
        }
        n += 1;
    }
}

fn show(evaluation: &Evaluation, config: &Config) -> String {
    let mut of_k: BTreeSet<usize> = evaluation.tags.values().flat_map(|score| score.pass_at.keys().copied()).collect();
    if of_k.len() > 1 {
        // The success, beside it.
        of_k.remove(&1);
    }
    let mut head = ["tag", "episodes", "success", "reward", "format valid"].map(str::to_string).to_vec();
    head.extend(of_k.iter().map(|k| format!("pass@{k}")));
    let mut rows = vec![head];
    for (tag, score) in &evaluation.tags {
        let mut row = vec![tag.clone(), thousands(score.episodes)];
        row.extend([score.success, score.reward, score.format_valid].map(|x| format!("{x:.3}")));
        row.extend(of_k.iter().map(|k| score.pass_at.get(k).map_or("–".into(), |x| format!("{x:.3}"))));
        rows.push(row);
    }
    format!("{}temperature {}\n", table(&rows), config.val.temperature)
}

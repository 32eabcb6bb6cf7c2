//! `ragen inspect`: what a configuration comes to, before anything is trained.

use super::open::{self, Opened, Prepared};
use super::{Common, Configured, Failure, load_ragen, print, table, thousands, with_common};
use ragen::agent_proxy::{Play, play};
use ragen::config::{Config, EnvSet};
use ragen::env_manager::EnvManager;
use ragen::policy::Policy;
use ragen::policy::model::Model;
use ragen::settings;
use ragen::train::Trainer;
use ragen::trajectory::{Provenance, Trajectory};
use ragen_envs::Mode;
use ragen_models::random::Key;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Instant;

/// Groups whose first prompts are shown.
const SHOWN: usize = 2;

/// The command.
pub fn run(common: &Common, what: &Configured) -> Result<(), Failure> {
    let (mut config, listing) = match &what.ragen_config {
        Some(files) => {
            let translated = load_ragen(files, &with_common(&what.what, common), common.quiet)?;
            let listing = translated.listing();
            (translated.config, listing)
        }
        None => (what.load(common)?, String::new()),
    };
    let device = open::take_device(&mut config, common.quiet)?;
    let (Prepared { source, context, plan }, settled) =
        Prepared::new(open::source(&config)?, &mut config, &device, true)?;
    if !common.quiet {
        print(&format!("{}\n\n", plan.line()))?;
    }
    let Opened { mut policy, belongings, .. } = source.assemble(&config, &config.optim, &device, &plan)?;
    let tokenizer = belongings.tokenizer;
    let trainer = Trainer::new(settled, context)?;
    let (first, speed) = first_turns(&mut policy, &trainer, &config)?;
    let memory = plan.memory.parts().into_iter().chain([("total", plan.memory.total())]);
    let step_seconds = speed.step_seconds(&config);

    let toml = settings::to_toml(&config);
    if !common.quiet {
        let mut text = format!("{listing}{toml}\n");
        for t in &first {
            let _ =
                writeln!(text, "--- the first turn on {}, seed {}; tokens with * are trained on ---", t.tag, t.seed);
            let ids = first_row(t);
            let _ = writeln!(text, "{}", tokenizer.decode(ids));
            for (id, mask) in ids.iter().zip(loss_mask(t)) {
                let bytes = tokenizer.bytes(*id);
                let piece =
                    std::str::from_utf8(bytes).map_or_else(|_| format!("{bytes:02x?}"), |piece| format!("{piece:?}"));
                let _ = write!(text, "{id}{}{piece} ", if mask == 1 { "*" } else { ":" });
            }
            text.push_str("\n\n");
        }
        let rows: Vec<_> = memory
            .clone()
            .map(|(name, bytes)| vec![name.to_string(), format!("{:.1} MiB", bytes as f64 / 1048576.0)])
            .collect();
        let _ = writeln!(text, "{} parameters; memory:", thousands(policy.parameters()));
        text.push_str(&table(&rows));
        let _ = writeln!(
            text,
            "a step takes about {step_seconds:.1} s at most, {} of them {:.0} s",
            config.run.steps,
            step_seconds * config.run.steps as f64
        );
        print(&text)?;
    }
    if common.json {
        let prompts: Vec<Value> = first
            .iter()
            .map(|t| json!({"text": tokenizer.decode(first_row(t)), "ids": first_row(t), "loss_mask": loss_mask(t)}))
            .collect();
        let memory: serde_json::Map<String, Value> =
            memory.map(|(name, bytes)| (name.to_string(), json!(bytes))).collect();
        let config = serde_json::to_value(&config).unwrap_or(Value::Null);
        let result =
            json!({"config": config, "prompts": prompts, "memory_bytes": memory, "step_seconds": step_seconds});
        print(&format!("{result}\n"))?;
    }
    Ok(())
}

/// 1 for each token that the policy sampled.
fn loss_mask(t: &Trajectory) -> Vec<u8> {
    let provenance = t.rows.first().map_or(&[][..], |row| &row.tokens.provenance);
    provenance.iter().map(|p| u8::from(*p == Provenance::Sampled)).collect()
}

/// The ids that a first turn is played in.
fn first_row(t: &Trajectory) -> &[u32] {
    t.rows.first().map_or(&[], |row| &row.tokens.ids)
}

/// Tokens a second, as measured on a few sequences.
struct Speed {
    sampled: f64,
    scored: f64,
    /// Tokens of a first turn, prompt and response.
    turn_tokens: f64,
}

impl Speed {
    /// Seconds of a training step in which every turn is played and all is kept.
    fn step_seconds(&self, config: &Config) -> f64 {
        let episodes = (config.env.train.groups * config.env.train.group_size) as f64;
        let turns = episodes * config.rollout.max_turns as f64;
        let sampled = turns * config.rollout.response_tokens.min(self.turn_tokens as usize) as f64;
        // A backward costs two forwards.
        let trained = 3.0 * turns * self.turn_tokens * config.update.epochs as f64;
        sampled / self.sampled + trained / self.scored
    }
}

/// Plays the first turn of the first groups, and takes the time.
fn first_turns(policy: &mut Model, trainer: &Trainer, config: &Config) -> Result<(Vec<Trajectory>, Speed), Failure> {
    // Enough members that they are computed side by side, as in training.
    let members = config.env.train.group_size.min(8);
    let set = EnvSet {
        groups: config.env.train.tags.len().max(SHOWN),
        group_size: members,
        n_groups: Vec::new(),
        ..config.env.train.clone()
    };
    let mut envs = EnvManager::new(&set, &config.envs, Mode::Train)?;
    envs.excluded = trainer.train_envs.excluded.clone();
    let broken = envs.reset()?;
    let how = Play { max_turns: 1, ..Play::new(&trainer.context, &config.rollout, config.rollout.sampling) };
    let started = Instant::now();
    let rollout = play(policy, &mut envs, broken, how, Key::new(config.run.seed).named("rollout").with(1))?;
    let playing = started.elapsed().as_secs_f64();
    let rows: Vec<_> =
        rollout.trajectories.iter().flat_map(Trajectory::views).filter(|row| !row.targets.is_empty()).collect();
    let started = Instant::now();
    policy.score(ragen::policy::Weights::Policy, &rows, config.rollout.sampling.temperature)?;
    let scoring = started.elapsed().as_secs_f64();
    let total: usize = rows.iter().map(|row| row.ids.len()).sum();
    let sampled: usize = rows.iter().map(|row| row.targets.len()).sum();
    let speed = Speed {
        sampled: sampled.max(1) as f64 / playing.max(1e-9),
        scored: total.max(1) as f64 / scoring.max(1e-9),
        turn_tokens: total as f64 / rows.len().max(1) as f64,
    };
    let first = rollout.trajectories.into_iter().filter(|t| t.member == 0).take(SHOWN).collect();
    Ok((first, speed))
}

//! `ragen rollout`: the first training rollout's trajectories, and no update.

use super::open::{self, Opened, Prepared};
use super::train::to_json;
use super::{Common, Configured, Failure, print, thousands};
use crate::progress::rate;
use ragen::agent_proxy::{Play, play};
use ragen::env_manager::EnvManager;
use ragen::run::{Log, RunDir};
use ragen::settings;
use ragen_envs::Mode;
use ragen_models::random::Key;
use serde_json::{Map, json};
use std::time::Instant;

/// The command.
pub fn run(common: &Common, what: &Configured) -> Result<(), Failure> {
    let mut config = what.load(common)?;
    let device = open::take_device(&mut config, common.quiet)?;
    let (Prepared { source, context, plan }, settled) =
        Prepared::new(open::source(&config)?, &mut config, &device, false)?;
    let Opened { mut policy, belongings, .. } = source.assemble(&config, &config.optim, &device, &plan)?;
    let tokenizer = belongings.tokenizer;
    let mut envs = EnvManager::new(&config.env.train, &config.envs, Mode::Train)?;
    let name = format!("{}-rollout", config.run.name);
    let run = RunDir::create(common.run.as_deref(), &name, config.run.seed, &settings::to_toml(&config))?;

    let started = Instant::now();
    let broken = envs.reset()?;
    let how = Play::new(&context, &settled.rollout, config.rollout.sampling);
    // The key of the first training step, so that these are the trajectories that it would train on.
    let key = Key::new(config.run.seed).named("rollout").with(1);
    let rollout = play(&mut policy, &mut envs, broken, how, key)?;
    let seconds = started.elapsed().as_secs_f64();
    let file = run.write_trajectories(
        1,
        rollout.trajectories.iter().map(|t| t.to_json(&|ids| tokenizer.decode(ids), Map::new())),
    )?;
    run.append(Log::Metrics, 1, &to_json(&rollout.metrics))?;

    let value = |key: &str| rollout.metrics.get(key).copied().unwrap_or(0.0);
    let (success, reward, sampled) = (value("success"), value("reward"), value("sampled_tokens") as usize);
    let episodes = rollout.trajectories.len();
    print(&format!(
        "{} episodes: success {success:.3}, reward {reward:.3}, format valid {:.3}, {:.1} turns\n\
         {} tokens sampled, {} tok/s\nfiles   {}\n",
        thousands(episodes),
        value("format_valid"),
        value("turns"),
        thousands(sampled),
        rate(sampled as f64 / seconds.max(1e-9)),
        file.display()
    ))?;
    if common.json {
        let result = json!({"run": run.path().display().to_string(), "episodes": episodes, "success": success, "reward": reward,
            "sampled_tokens": sampled, "seconds": seconds});
        print(&format!("{result}\n"))?;
    }
    Ok(())
}

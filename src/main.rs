//! The command line of ragen: what can be asked, and how the answer becomes an exit code.
//!
//! Exit codes: 0 done, 1 the run failed, 2 wrong usage or configuration, 3 the device asked for is absent,
//! 130 interrupted (after saving). Each command is a file in `commands/`.

use clap::{Parser, Subcommand};
use commands::{Common, Failure};
use std::process::ExitCode;

mod commands;
mod progress;

/// Trains language-model agents by reinforcement learning, end to end, on one machine.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train an agent: the main job
    Train(commands::Configured),
    /// Supervised start from a scripted player's noisy demonstrations
    Warmstart(commands::Configured),
    /// Success and reward on fixed unseen levels; writes eval.json and trajectories
    Eval(commands::eval::Options),
    /// Play one training rollout and write its trajectories; update nothing
    Rollout(commands::Configured),
    /// Resolved configuration, first prompts with their loss mask, memory and time; train nothing
    Inspect(commands::Configured),
    /// A model, or what a run has trained, as other programs load it
    Export(commands::export::Export),
    /// Play an environment by hand
    Play(commands::play::Options),
    /// What environments there are, whether they are available here, and their settings
    Envs(commands::envs::Options),
    /// Train, prefill, decode and environment rates of the engine on this machine; the last line is JSON
    Bench(commands::Configured),
    /// What this machine has, and every fast path against its reference; the last line is JSON
    Doctor(commands::doctor::Options),
}

fn main() -> ExitCode {
    let Cli { command, common } = Cli::parse();
    let done = match command {
        Command::Train(what) => commands::train::run(&common, &what),
        _ if common.resume => Err(Failure::Usage("--resume goes on with a training run: ragen train --resume".into())),
        Command::Warmstart(what) => commands::warmstart::run(&common, &what),
        Command::Eval(options) => commands::eval::run(&common, &options),
        Command::Rollout(what) => commands::rollout::run(&common, &what),
        Command::Inspect(what) => commands::inspect::run(&common, &what),
        Command::Export(what) => commands::export::run(&common, &what),
        Command::Play(options) => commands::play::run(&common, &options),
        Command::Envs(options) => commands::envs::run(&common, &options),
        Command::Bench(what) => commands::bench::run(&common, &what),
        Command::Doctor(options) => commands::doctor::run(&common, &options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.text() {
                eprintln!("{text}");
            }
            ExitCode::from(failure.code())
        }
    }
}

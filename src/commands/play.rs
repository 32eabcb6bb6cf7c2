//! `ragen play TAG`: an environment by hand, on a terminal or through a pipe.

use super::{Common, Failure, envs, print};
use clap::Args;
use ragen_envs::{Demonstration, Env, Mode, Stream};
use std::io::{self, BufRead};

/// What to play.
#[derive(Args, Debug)]
pub struct Options {
    /// A tag or an environment type
    pub tag: String,
}

/// The command.
pub fn run(common: &Common, options: &Options) -> Result<(), Failure> {
    let (name, tag) = envs::find(&options.tag)?;
    let seed = common.seed.unwrap_or(0);
    let mut env = ragen_envs::make(&tag.r#type, &serde_json::Value::Object(tag.config.clone()))?;
    env.reset(seed, 0, Mode::Train)?;
    let instruction = if tag.instruction.is_empty() { env.instruction() } else { tag.instruction.clone() };
    let mut text = format!("{name}, seed {seed}\n{instruction}\n");
    let legend = env.legend().to_string();
    if !legend.is_empty() {
        text.push_str(&format!("{legend}\n"));
    }
    text.push_str(&match env.actions() {
        Some(names) => format!("Actions: {}.", names.join(", ")),
        None => "An action is any text.".to_string(),
    });
    text.push_str(match tag.single_action {
        true => " A line is one action. Also: hint, quit.\n",
        false => " Several in a line are separated by ||. Also: hint, quit.\n",
    });
    if let Some(backend) = env.backend() {
        text.push_str(&format!("It stands on: {backend}\n"));
    }
    print(&text)?;
    play(&mut *env, tag.max_actions, tag.single_action)
}

fn play(env: &mut dyn Env, budget: usize, single_action: bool) -> Result<(), Failure> {
    let (mut played, mut total) = (0, 0.0);
    let mut lines = io::stdin().lock().split(b'\n');
    print(&format!("\n{}\n> ", env.observation()))?;
    loop {
        let line = match lines.next() {
            None => return print(&format!("\nno more input after {played} actions; reward {total:.2}\n")),
            // What is no text becomes text that is no action.
            Some(line) => {
                String::from_utf8_lossy(&line.map_err(|e| Failure::Run(format!("cannot read standard input: {e}")))?)
                    .into_owned()
            }
        };
        match line.trim() {
            "" => {
                print("> ")?;
                continue;
            }
            "quit" | "exit" => return print(&format!("left after {played} actions; reward {total:.2}\n")),
            "hint" => {
                let turn = env.demonstrate(&Demonstration::perfect(1), &mut Stream::new(0));
                let hint = turn.map_or("there is none".to_string(), |turn| {
                    format!("{} ({})", turn.actions.join(" || "), turn.thought)
                });
                print(&format!("hint: {hint}\n> "))?;
                continue;
            }
            _ => {}
        }
        let parts: Vec<&str> = if single_action { vec![line.as_str()] } else { line.split("||").collect() };
        for action in parts.into_iter().map(str::trim).filter(|action| !action.is_empty()) {
            let step = env.step(action)?;
            played += 1;
            total += step.reward;
            let note = match (step.valid, step.effective) {
                (false, _) => " (not an action here)",
                (true, false) => " (nothing changed)",
                (true, true) => "",
            };
            print(&format!("{action}: reward {:.2}{note}\n", step.reward))?;
            let out_of_actions = played >= budget && !step.ended();
            if step.ended() || out_of_actions {
                let how = match step.success {
                    true => "solved",
                    false if out_of_actions => "out of actions",
                    false => "not solved",
                };
                return print(&format!("\n{}\n{how} after {played} actions; reward {total:.2}\n", env.observation()));
            }
        }
        print(&format!("\n{}\n> ", env.observation()))?;
    }
}

//! ALFWorld's stand-in: chores in a house, in words.
//!
//! It knows its own houses and tasks, and nothing of other tasks. [`House`] holds the rules, [`Goal`] what is asked.
//! The page docs/environments/alfworld.md has the rest.
//!
//! **Source** ALFWorld (Shridhar et al. 2021) for the six kinds of tasks, the commands and the form of an observation;
//! houses and words are our own.

mod goal;
mod house;

pub use goal::{Goal, Kind};
pub use house::{Command, House};

use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Brief, Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TYPE: &str = "alfworld";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "score", default: "10.0", meaning: "what the task pays when it is done" },
    Setting {
        name: "eval_dataset",
        default: "\"eval_in_distribution\"",
        meaning: "what validation asks: eval_in_distribution (as in training) or eval_out_of_distribution (pairs of a thing and a place that training never asks)",
    },
    Setting { name: "max_steps", default: "50", meaning: "commands after which an episode is truncated, 1 to 1000000" },
    Setting { name: "backend", default: "\"auto\"", meaning: "auto or embedded, which are the same: generated houses" },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "do a chore in a house: find things, clean, heat, cool and put them away",
    many_starts: true,
    waits: false,
    recap: Recap::Brief(Brief { task, gist, offers, max_chars: 400 }),
    settings: SETTINGS,
    tags: || {
        let tag = |name, dataset: &str| Tag::new(name, TYPE, 50, 512, json!({"eval_dataset": dataset}));
        vec![tag("Alfworld", "eval_in_distribution"), tag("AlfworldOOD", "eval_out_of_distribution")]
    },
    unavailable: || None,
    build: |config| Ok(Box::new(Alfworld::new(config)?)),
};

const TASK: &str = "Your task is to: ";
const OFFERS: &str = "Admissible actions: ";

fn task(state: &str) -> String {
    state.lines().find(|line| line.starts_with(TASK)).unwrap_or_default().to_owned()
}

fn gist(state: &str) -> String {
    let kept = state.lines().filter(|line| !line.is_empty() && !line.starts_with(TASK) && !line.starts_with(OFFERS));
    kept.collect::<Vec<_>>().join("\n")
}

fn offers(state: &str) -> String {
    state.lines().find(|line| line.starts_with(OFFERS)).unwrap_or_default().to_owned()
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Alfworld {
    score: f64,
    is_out_of_distribution: bool,
    max_steps: usize,
    episode: Option<Episode>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Episode {
    house: House,
    goal: Goal,
    /// What the last command led to; the overview and the task at first.
    feedback: String,
    steps: usize,
}

impl Alfworld {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        reader.choice("backend", &["auto", "embedded"]);
        let alfworld = Alfworld {
            score: reader.number("score", f64::NEG_INFINITY..=f64::INFINITY),
            is_out_of_distribution: reader
                .choice("eval_dataset", &["eval_in_distribution", "eval_out_of_distribution"])
                == 1,
            max_steps: reader.integer("max_steps", 1..=1_000_000),
            episode: None,
        };
        reader.finish(alfworld)
    }
}

impl Env for Alfworld {
    fn reset(&mut self, seed: u64, _member: u64, mode: Mode) -> Result<(), EnvError> {
        let mut layout = Stream::derive(TYPE, seed, "layout");
        let goal = Goal::draw(&mut layout, mode != Mode::Train && self.is_out_of_distribution);
        let house = House::draw(&mut layout, &goal.wanted(), goal.place);
        let feedback = format!("{}\n{TASK}{}.", house.overview(), goal.say());
        self.episode = Some(Episode { house, goal, feedback, steps: 0 });
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(Episode { house, feedback, .. }) = &self.episode else { return String::new() };
        let commands: Vec<String> = house.commands().into_iter().map(|command| house.say(command)).collect();
        format!("{feedback}\n\n{OFFERS}[{}]", commands.join(", "))
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let (score, max_steps) = (self.score, self.max_steps);
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset { env_type: TYPE })?;
        if episode.goal.is_done(&episode.house) {
            return Ok(Step { terminated: true, success: true, ..Step::default() });
        }
        episode.steps += 1;
        let command = episode.house.understand(action);
        let before = episode.house.clone();
        episode.feedback = match command {
            Some(command) => episode.house.perform(command),
            None => "Nothing happens.".to_owned(),
        };
        let done = episode.goal.is_done(&episode.house);
        Ok(Step {
            reward: if done { score } else { 0.0 },
            terminated: done,
            truncated: !done && episode.steps == max_steps,
            success: done,
            valid: command.is_some(),
            effective: before != episode.house,
            ..Step::default()
        })
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        "You do a chore in a house. You see only what is open before you: go to places, open them, take what you need, one thing at \
         a time. A microwave heats, a fridge cools, a sinkbasin cleans what you carry. Answer with one of the admissible actions, \
         word for word."
            .to_owned()
    }

    fn backend(&self) -> Option<String> {
        Some("embedded houses, generated".to_owned())
    }

    fn state(&self) -> Value {
        self.episode.as_ref().map_or(Value::Null, |episode| json!(episode))
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let episode = Episode::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        episode.house.check().map_err(wrong)?;
        let Goal { thing, place, kind } = episode.goal;
        let known = thing < house::THINGS.len() && place.is_none_or(|place| place < house::PLACES.len());
        if !known || place.is_none() != (kind == Kind::Light) {
            return Err(wrong("goal names a thing or a place that there is not".to_owned()));
        }
        self.episode = Some(episode);
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(Episode { house, goal, .. }) = &self.episode else { return 0 };
        hash_bytes(json!([house, goal]).to_string().bytes())
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let Episode { house, goal, .. } = self.episode.as_ref().filter(|episode| episode.steps < self.max_steps)?;
        let (mut house, mut actions, mut thought) = (house.clone(), Vec::new(), None);
        for _ in 0..options.turn_len(draws) {
            if goal.is_done(&house) {
                break;
            }
            let Some((planned, why)) = goal.next(&house) else { break };
            let commands = house.commands();
            let command = if draws.chance(options.noise) { commands[draws.below(commands.len())] } else { planned };
            thought.get_or_insert(why);
            actions.push(house.say(command));
            house.perform(command);
        }
        thought.map(|thought| Turn { thought, actions })
    }
}

#[cfg(test)]
mod tests;

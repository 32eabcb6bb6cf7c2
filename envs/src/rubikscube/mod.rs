//! Rubik's cube of 2×2×2: a few turns away from solved.
//!
//! It knows its own cube and nothing of other tasks. [`Cube`] holds the rules and the solver. The page
//! docs/environments/rubikscube.md has the rest.

mod cube;

pub use cube::{COLOURS, Cube, FACES, NAMES, SOURCES};

use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write;

const TYPE: &str = "rubikscube";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "scramble_depth",
        default: "5",
        meaning: "random turns that a solved cube is scrambled by, 0 to 1000",
    },
    Setting {
        name: "max_steps",
        default: "20",
        meaning: "turns after which an unsolved episode is truncated, 1 to 1000000",
    },
    Setting {
        name: "action_lookup",
        default: r#"{"1": "U", "2": "U'", "3": "D", "4": "D'", "5": "L", "6": "L'", "7": "R", "8": "R'", "9": "F", "10": "F'", "11": "B", "12": "B'"}"#,
        meaning: "names of the turns by id",
    },
    Setting {
        name: "observation_format",
        default: "\"text\"",
        meaning: "text, or compact: a line for each face, and how many turns are left",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "solve a cube of 2x2x2 that is a few turns away from solved",
    many_starts: false,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || vec![Tag::new("rubikscube", TYPE, 20, 96, json!({"scramble_depth": 1, "max_steps": 20}))],
    unavailable: || None,
    build: |config| Ok(Box::new(RubiksCube::new(config)?)),
};

#[derive(Clone, Copy, Debug)]
struct Episode {
    cube: Cube,
    steps: usize,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    stickers: Vec<u8>,
    current_step: usize,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct RubiksCube {
    scramble_depth: usize,
    max_steps: usize,
    is_compact: bool,
    names: Vec<String>,
    episode: Option<Episode>,
}

impl RubiksCube {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        let cube = RubiksCube {
            scramble_depth: reader.integer("scramble_depth", 0..=1000),
            max_steps: reader.integer("max_steps", 1..=1_000_000),
            is_compact: reader.choice("observation_format", &["text", "compact"]) == 1,
            names: reader.names("action_lookup", 1, &NAMES),
            episode: None,
        };
        reader.finish(cube)
    }

    /// The end that the episode has come to: (solved, out of turns). A cube that was dealt solved is not over.
    fn end(&self, episode: &Episode) -> (bool, bool) {
        let solved = episode.steps > 0 && episode.cube.is_solved();
        (solved, !solved && episode.steps >= self.max_steps)
    }

    fn find(&self, action: &str) -> Option<usize> {
        let wanted = action.replace(['\u{2019}', '\u{2032}'], "'");
        self.names.iter().position(|name| name.eq_ignore_ascii_case(&wanted))
    }

    fn tell(&self, episode: &Episode) -> String {
        let mut text = format!("2x2 cube\nStep: {}/{}\n\n", episode.steps, self.max_steps);
        for (face, name) in FACES.into_iter().enumerate() {
            let colour = |i: usize| COLOURS[episode.cube.0[4 * face + i] as usize];
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name}:\n[{}, {}]\n [{}, {}]", colour(0), colour(1), colour(2), colour(3));
        }
        match self.end(episode) {
            (true, _) => text.push_str("\nThe episode is over: the cube is solved."),
            (_, true) => text.push_str("\nThe episode is over: no turns are left, and the cube is not solved."),
            _ => {
                let _ = write!(text, "\nTurns: {}\n\nWhich turn comes next?", self.names.join(", "));
            }
        }
        text
    }

    fn tell_compactly(&self, episode: &Episode) -> String {
        let mut text = String::with_capacity(64);
        for (face, name) in FACES.into_iter().enumerate() {
            text.push(name);
            text.push(' ');
            text.extend((0..4).map(|i| COLOURS[episode.cube.0[4 * face + i] as usize]));
            text.push('\n');
        }
        let _ = match self.end(episode) {
            (true, _) => write!(text, "solved"),
            _ => write!(text, "left {}", self.max_steps.saturating_sub(episode.steps)),
        };
        text
    }
}

impl Env for RubiksCube {
    fn reset(&mut self, seed: u64, _member: u64, _mode: Mode) -> Result<(), EnvError> {
        let mut layout = Stream::derive(TYPE, seed, "layout");
        let cube = (0..self.scramble_depth).fold(Cube::solved(), |cube, _| cube.turn(layout.below(12)));
        self.episode = Some(Episode { cube, steps: 0 });
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(episode) = &self.episode else { return String::new() };
        if self.is_compact { self.tell_compactly(episode) } else { self.tell(episode) }
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let mut episode = self.episode.ok_or(EnvError::NotReset { env_type: TYPE })?;
        let turn = self.find(action);
        if let Some(turn) = turn {
            episode = Episode { cube: episode.cube.turn(turn), steps: episode.steps + 1 };
            self.episode = Some(episode);
        }
        let (solved, out_of_turns) = self.end(&episode);
        Ok(Step {
            reward: if turn.is_some() && solved { 1.0 } else { 0.0 },
            terminated: solved,
            truncated: out_of_turns,
            success: solved,
            valid: turn.is_some(),
            effective: turn.is_some(),
            ..Step::default()
        })
    }

    fn actions(&self) -> Option<Vec<String>> {
        Some(self.names.clone())
    }

    fn instruction(&self) -> String {
        "You solve a Rubik's cube of 2x2x2. U, D, L, R, F and B turn the upper, lower, left, right, front and back face by a quarter \
         clockwise, as seen from that face; with a prime they turn it back. The cube is solved when every face has one colour."
            .to_owned()
    }

    fn state(&self) -> Value {
        let Some(Episode { cube, steps }) = self.episode else { return Value::Null };
        json!(Saved { stickers: cube.0.to_vec(), current_step: steps })
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let Saved { stickers, current_step } = Saved::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        let count = |colour: u8| stickers.iter().filter(|sticker| **sticker == colour).count();
        match <[u8; 24]>::try_from(stickers.as_slice()) {
            Ok(stickers) if (0..6).all(|colour| count(colour) == 4) => {
                self.episode = Some(Episode { cube: Cube(stickers), steps: current_step });
                Ok(())
            }
            _ => Err(wrong("stickers must be 24 colours, each of 0 to 5 four times".to_owned())),
        }
    }

    fn state_hash(&self) -> u64 {
        let Some(episode) = &self.episode else { return 0 };
        hash_bytes(TYPE.bytes().chain(episode.cube.0))
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let episode = self.episode.filter(|episode| self.end(episode) == (false, false))?;
        let plan = episode.cube.solution()?;
        let name = |turn: &usize| self.names[*turn].clone();
        let thought = match plan.is_empty() {
            // It was dealt solved, and only a turn can end the episode: there and back.
            true => "solved already, turn and turn back".to_owned(),
            false => format!("{} to go: {}", plan.len(), plan.iter().map(name).collect::<Vec<_>>().join(" ")),
        };
        let (mut cube, mut actions) = (episode.cube, Vec::new());
        for i in 0..options.turn_len(draws) {
            if i > 0 && cube.is_solved() {
                break;
            }
            let planned = cube.solution()?.first().copied().unwrap_or(0);
            let turn = if draws.chance(options.noise) { draws.below(12) } else { planned };
            cube = cube.turn(turn);
            actions.push(self.names[turn].clone());
        }
        Some(Turn { thought, actions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[test]
    fn the_player_solves_every_cube_in_as_few_turns_as_it_takes() {
        for depth in [1, 2, 3, 20] {
            let build = || crate::make(TYPE, &json!({"scramble_depth": depth}));
            let n = if depth > 3 { 10 } else { 400 };
            let (success, turns) = conformance::demonstrated(&build, &Demonstration::perfect(1), n, 20, 20).unwrap();
            assert_eq!(success, 1.0, "depth {depth}");
            assert!(turns <= if depth > 3 { 14.0 } else { 3.0 }, "depth {depth}: {turns} turns");
        }
    }

    #[test]
    fn what_is_shown_in_either_format() {
        let mut env = RubiksCube::new(&json!({"scramble_depth": 0, "max_steps": 3})).unwrap();
        env.reset(1, 0, Mode::Train).unwrap();
        assert!(env.observation().starts_with("2x2 cube\nStep: 0/3\n\nU:\n[W, W]\n [W, W]\nL:\n[O, O]\n [O, O]\nF:\n"));
        env.step("r").unwrap();
        assert!(env.observation().contains("Turns: U, U', D, D'"));
        assert!(env.step("R\u{2019}").unwrap().success);
        assert!(env.observation().ends_with("The episode is over: the cube is solved."));
        let mut env =
            RubiksCube::new(&json!({"scramble_depth": 0, "max_steps": 3, "observation_format": "compact"})).unwrap();
        env.reset(1, 0, Mode::Train).unwrap();
        env.step("R").unwrap();
        assert_eq!(env.observation(), "U WGWG\nL OOOO\nF GYGY\nR RRRR\nB WBWB\nD YBYB\nleft 2");
    }

    #[test]
    fn states_that_are_no_cube_are_refused() {
        let mut env = RubiksCube::new(&Value::Null).unwrap();
        for bad in [json!({"stickers": vec![0; 24], "current_step": 0}), json!({"stickers": [1, 2], "current_step": 0})]
        {
            assert!(env.load_state(&bad).unwrap_err().to_string().contains("each of 0 to 5 four times"));
        }
    }
}

//! 2048: slide tiles, merge equal ones, make a large one before the board is full.
//!
//! It knows its own game and nothing of other tasks. [`Board`] holds the rules and the player's look ahead. The page
//! docs/environments/game_2048.md has the rest.

mod board;

pub use board::{Board, MAX_SIDE, NAMES};

use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write;

const TYPE: &str = "game_2048";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "size", default: "4", meaning: "rows and columns, 2 to 8" },
    Setting { name: "two_prob", default: "0.9", meaning: "probability that a new tile is a 2; else it is a 4" },
    Setting {
        name: "use_log_reward",
        default: "true",
        meaning: "whether a move pays 0.1 log2(gain + 1); else it pays the gain itself",
    },
    Setting {
        name: "invalid_act_score",
        default: "-0.1",
        meaning: "raw reward of a move that moves nothing; with use_log_reward it pays 0",
    },
    Setting {
        name: "member_noise",
        default: "false",
        meaning: "whether each member of a group is dealt tiles of its own after the first two",
    },
    Setting {
        name: "action_lookup",
        default: r#"{"0": "Up", "1": "Right", "2": "Down", "3": "Left"}"#,
        meaning: "names of the moves by id",
    },
    Setting {
        name: "observation_format",
        default: "\"text\"",
        meaning: "text, or compact: rows of numbers and the moves that are possible",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "slide and merge tiles up to 2048 before the board is full",
    many_starts: false,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || vec![Tag::new("game_2048", TYPE, 700, 8192, Value::Null)],
    unavailable: || None,
    build: |config| Ok(Box::new(Game2048::new(config)?)),
};

#[derive(Clone, Copy, Debug)]
struct Episode {
    board: Board,
    score: u64,
    tiles: Stream,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    grid: Vec<Vec<u64>>,
    score: u64,
    tiles: Stream,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Game2048 {
    side: usize,
    two_p: f64,
    is_log: bool,
    invalid_score: f64,
    member_noise: bool,
    is_compact: bool,
    names: Vec<String>,
    episode: Option<Episode>,
}

impl Game2048 {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        let game = Game2048 {
            side: reader.integer("size", 2..=MAX_SIDE as u64),
            two_p: reader.number("two_prob", 0.0..=1.0),
            is_log: reader.flag("use_log_reward"),
            invalid_score: reader.number("invalid_act_score", f64::NEG_INFINITY..=f64::INFINITY),
            member_noise: reader.flag("member_noise"),
            is_compact: reader.choice("observation_format", &["text", "compact"]) == 1,
            names: reader.names("action_lookup", 0, &NAMES),
            episode: None,
        };
        reader.finish(game)
    }

    /// A new tile on a random empty cell: first the cell is drawn, then the tile.
    fn deal(&self, board: &mut Board, tiles: &mut Stream) {
        let n = tiles.below(board.n_empty());
        let tile = if tiles.chance(self.two_p) { 1 } else { 2 };
        if let Some(cell) = board.empty(n) {
            board.put(cell, tile);
        }
    }

    /// Plays a move; `deal` puts the new tile on the board that has moved.
    pub(crate) fn play(
        &mut self,
        direction: usize,
        deal: impl FnOnce(&Self, &mut Board, &mut Stream),
    ) -> Result<Step, EnvError> {
        let mut episode = self.episode.ok_or(EnvError::NotReset { env_type: TYPE })?;
        let gain = episode.board.slide(direction);
        if let Some(gain) = gain {
            episode.score += gain;
            deal(self, &mut episode.board, &mut episode.tiles);
            self.episode = Some(episode);
        }
        let raw = gain.map_or(self.invalid_score, |gain| gain as f64);
        let reward = match (self.is_log, raw > 0.0) {
            (false, _) => raw,
            (true, true) => 0.1 * (raw + 1.0).log2(),
            (true, false) => 0.0,
        };
        Ok(Step {
            reward,
            valid: gain.is_some(),
            effective: gain.is_some(),
            ..self.report(&episode, raw, gain.is_some())
        })
    }

    /// How the episode stands after a move: it is over when a move that moved something was the last one possible.
    fn report(&self, episode: &Episode, raw: f64, has_moved: bool) -> Step {
        let (max, is_over) = (episode.board.max(), has_moved && !episode.board.is_alive());
        let mut info = vec![
            ("score".into(), episode.score as f64),
            ("raw_reward".into(), raw),
            ("reached_2048".into(), f64::from(u8::from(max >= 2048))),
        ];
        if is_over {
            info.push(("max_tile".into(), max as f64));
        }
        Step { terminated: is_over, success: is_over && max >= 2048, info, ..Step::default() }
    }

    fn possible(&self, board: &Board) -> Vec<usize> {
        (0..4).filter(|direction| board.can_move(*direction)).collect()
    }

    fn tell(&self, episode: &Episode) -> String {
        let mut text = format!("2048, a board of {0} by {0}\n", self.side);
        for (i, row) in episode.board.rows().iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "Row {}: {row:?}", i + 1);
        }
        let possible = self.possible(&episode.board);
        let possible: Vec<String> = possible.iter().map(|id| format!("{id}({})", self.names[*id])).collect();
        let possible = if possible.is_empty() { "None".to_owned() } else { possible.join(", ") };
        let _ = write!(
            text,
            "\nValid Actions: {possible}.\nMerge tiles until one of them is 2048.\nCurrent Score: {}\nWhich move comes next?",
            episode.score
        );
        text
    }

    fn tell_compactly(&self, episode: &Episode) -> String {
        let row = |row: &Vec<u64>| row.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        let mut lines: Vec<String> = episode.board.rows().iter().map(row).collect();
        let possible: Vec<&str> = self.possible(&episode.board).iter().map(|id| self.names[*id].as_str()).collect();
        lines.push(format!("moves {}", possible.join(" ")));
        lines.join("\n")
    }
}

impl Env for Game2048 {
    fn reset(&mut self, seed: u64, member: u64, _mode: Mode) -> Result<(), EnvError> {
        let mut layout = Stream::derive(TYPE, seed, "layout");
        let mut board = Board::new(self.side);
        (0..2).for_each(|_| self.deal(&mut board, &mut layout));
        let tiles = Stream::derive(TYPE, seed, "tiles").branch(if self.member_noise { member } else { 0 });
        self.episode = Some(Episode { board, score: 0, tiles });
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(episode) = &self.episode else { return String::new() };
        if self.is_compact { self.tell_compactly(episode) } else { self.tell(episode) }
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        match self.names.iter().position(|name| name.eq_ignore_ascii_case(action)) {
            Some(direction) => self.play(direction, Self::deal),
            None => {
                let episode = self.episode.as_ref().ok_or(EnvError::NotReset { env_type: TYPE })?;
                Ok(self.report(episode, 0.0, false))
            }
        }
    }

    fn actions(&self) -> Option<Vec<String>> {
        Some(self.names.clone())
    }

    fn instruction(&self) -> String {
        "You play 2048. A move slides all tiles to one side of the board; two equal tiles that meet become one of twice the value, and \
         pay that value. After each move a new tile appears. The game is over when no move is possible. Make a tile of 2048."
            .to_owned()
    }

    fn state(&self) -> Value {
        let Some(Episode { board, score, tiles }) = self.episode else { return Value::Null };
        json!(Saved { grid: board.rows(), score, tiles })
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let saved = Saved::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        let board = Board::read(&saved.grid).filter(|board| board.side() == self.side).ok_or_else(|| {
            wrong(format!("grid must have {0} rows of {0} tiles, each 0 or a power of two from 2 on", self.side))
        })?;
        self.episode = Some(Episode { board, score: saved.score, tiles: saved.tiles });
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(episode) = &self.episode else { return 0 };
        hash_bytes(TYPE.bytes().chain(episode.board.tiles().iter().copied()))
    }

    /// One move a turn: nobody knows where the next tile appears.
    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let Episode { board, .. } = self.episode?;
        let possible = self.possible(&board);
        let planned = board.best_move()?;
        let direction = if draws.chance(options.noise) { possible[draws.below(possible.len())] } else { planned };
        let name = self.names[direction].clone();
        Some(Turn {
            thought: format!("largest {} empty {} go {name}", board.max(), board.n_empty()),
            actions: vec![name],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Games of the player within the budget of the shipped tag: the share that makes a tile of 512, and the mean score.
    #[test]
    fn the_player_makes_a_tile_of_512() {
        let (n, mut reached) = (60, 0);
        for seed in 0..n {
            let mut game = Game2048::new(&Value::Null).unwrap();
            game.reset(seed, 0, Mode::Val).unwrap();
            let mut draws = Stream::new(seed);
            for _ in 0..700 {
                let Some(turn) = game.demonstrate(&Demonstration::perfect(1), &mut draws) else { break };
                game.step(&turn.actions[0]).unwrap();
            }
            reached += usize::from(game.episode.unwrap().board.max() >= 512);
        }
        let share = reached as f64 / n as f64;
        assert!(share >= 0.8, "{share}");
        println!("{share}");
    }

    #[test]
    fn what_is_shown_in_either_format() {
        let show = |format: &str| {
            let mut game = Game2048::new(&json!({"size": 2, "observation_format": format})).unwrap();
            let state = json!({"grid": [[2, 4], [0, 4]], "score": 8, "tiles": Stream::new(1)});
            game.load_state(&state).unwrap();
            game.observation()
        };
        assert_eq!(
            show("text"),
            "2048, a board of 2 by 2\nRow 1: [2, 4]\nRow 2: [0, 4]\n\nValid Actions: 0(Up), 2(Down), 3(Left).\n\
             Merge tiles until one of them is 2048.\nCurrent Score: 8\nWhich move comes next?"
        );
        assert_eq!(show("compact"), "2 4\n0 4\nmoves Up Down Left");
    }

    #[test]
    fn tiles_are_dealt_as_often_as_said_and_alike_within_a_group() {
        let start = |config: Value, member| {
            let mut game = Game2048::new(&config).unwrap();
            game.reset(5, member, Mode::Train).unwrap();
            let moves = game.possible(&game.episode.unwrap().board);
            game.step(NAMES[moves[0]]).unwrap();
            game.observation()
        };
        assert_eq!(start(Value::Null, 0), start(Value::Null, 3));
        assert!(
            (1..9)
                .any(|member| start(json!({"member_noise": true}), member) != start(json!({"member_noise": true}), 0))
        );
        let game = Game2048::new(&Value::Null).unwrap();
        let mut tiles = Stream::new(3);
        let twos = (0..20_000).filter(|_| {
            let mut board = Board::new(4);
            game.deal(&mut board, &mut tiles);
            board.max() == 2
        });
        assert!((twos.count() as f64 / 20_000.0 - 0.9).abs() < 0.01);
    }

    #[test]
    fn broken_states_are_refused() {
        let mut game = Game2048::new(&Value::Null).unwrap();
        for grid in [json!([[2, 4], [0, 4]]), json!([[3, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])] {
            let state = json!({"grid": grid, "score": 0, "tiles": Stream::new(1)});
            assert!(game.load_state(&state).unwrap_err().to_string().contains("4 rows of 4 tiles"));
        }
    }
}

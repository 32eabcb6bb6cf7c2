//! Sudoku: fill a grid so that every row, column and box has every number once.
//!
//! It knows its own puzzles and nothing of other tasks. [`Grid`] holds the rules, the solver and the maker, [`moves`] what a
//! move is called. The page docs/environments/sudoku.md has the rest.

mod grid;
pub mod moves;
mod view;

pub use grid::Grid;

use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use moves::Move;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use view::{Format, View};

const TYPE: &str = "sudoku";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "grid_size", default: "9", meaning: "rows and columns: 4, 9 or 16" },
    Setting {
        name: "difficulty",
        default: "\"easy\"",
        meaning: "easy, medium or hard: 4, 5 or 6 of 10 cells are empty",
    },
    Setting { name: "unique", default: "true", meaning: "whether a puzzle has one solution only" },
    Setting {
        name: "max_steps",
        default: "81",
        meaning: "moves after which an unsolved episode is truncated, 1 to 1000000",
    },
    Setting {
        name: "render_format",
        default: "\"detailed\"",
        meaning: "simple, detailed, with_feedback, or compact: rows without spaces",
    },
    Setting { name: "show_conflicts", default: "true", meaning: "with_feedback: cells in conflict are listed" },
    Setting {
        name: "show_valid_numbers",
        default: "true",
        meaning: "with_feedback: the numbers that fit are listed where at most 10 cells are empty",
    },
    Setting { name: "show_candidates", default: "false", meaning: "read and not used, as in RAGEN" },
    Setting {
        name: "correct_placement_score",
        default: "1.0",
        meaning: "what a number of the solution pays; another that fits pays half",
    },
    Setting { name: "invalid_action_score", default: "-0.1", meaning: "what a move that cannot be made pays" },
    Setting { name: "completion_bonus", default: "10.0", meaning: "what the last number pays besides" },
    Setting {
        name: "parity",
        default: "false",
        meaning: "RAGEN's own ways: triples may be read as number, row, column; invalid moves never end an episode; a cell pays each time",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "fill a grid so that every row, column and box has every number once",
    many_starts: true,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || {
        let tag = |name, difficulty: &str, budget| {
            let config = json!({"grid_size": 9, "difficulty": difficulty, "render_format": "with_feedback",
                "show_conflicts": true, "show_valid_numbers": true, "max_steps": 81});
            Tag::new(name, TYPE, budget, 150, config)
        };
        vec![tag("SimpleSudoku", "easy", 20), tag("MediumSudoku", "medium", 30)]
    },
    unavailable: || None,
    build: |config| Ok(Box::new(Sudoku::new(config)?)),
};

#[derive(Clone, Debug)]
struct Episode {
    initial: Grid,
    solution: Grid,
    current: Grid,
    /// What each cell has paid so far.
    paid: Vec<f64>,
    steps: usize,
    feedback: String,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    initial_grid: Vec<Vec<u8>>,
    solution_grid: Vec<Vec<u8>>,
    current_grid: Vec<Vec<u8>>,
    #[serde(default)]
    paid: Vec<f64>,
    num_steps: usize,
    #[serde(default)]
    feedback: String,
}

/// Why a move cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// In words.
    pub(crate) reason: String,
    /// The numbers that fit instead, where the number is at fault.
    pub(crate) valid_numbers: Option<Vec<u8>>,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Sudoku {
    n: usize,
    n_empty: usize,
    unique: bool,
    max_steps: usize,
    format: Format,
    conflicts: bool,
    valid_numbers: bool,
    placement: f64,
    invalid: f64,
    bonus: f64,
    parity: bool,
    episode: Option<Episode>,
}

impl Sudoku {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        reader.flag("show_candidates");
        let any = f64::NEG_INFINITY..=f64::INFINITY;
        let n = reader.read("grid_size", "4, 9 or 16", |value| [4, 9, 16].into_iter().find(|n| *value == *n as u64));
        let share = [4, 5, 6][reader.choice("difficulty", &["easy", "medium", "hard"])];
        let formats = [Format::Simple, Format::Detailed, Format::WithFeedback, Format::Compact];
        let sudoku = Sudoku {
            n,
            n_empty: n * n * share / 10,
            unique: reader.flag("unique"),
            max_steps: reader.integer("max_steps", 1..=1_000_000),
            format: formats[reader.choice("render_format", &["simple", "detailed", "with_feedback", "compact"])],
            conflicts: reader.flag("show_conflicts"),
            valid_numbers: reader.flag("show_valid_numbers"),
            placement: reader.number("correct_placement_score", any.clone()),
            invalid: reader.number("invalid_action_score", any.clone()),
            bonus: reader.number("completion_bonus", any),
            parity: reader.flag("parity"),
            episode: None,
        };
        reader.finish(sudoku)
    }

    /// The cell and the number of a text, from 0 and from 1, or why they cannot be had.
    fn judge(&self, episode: &Episode, text: &str) -> Result<(usize, usize, u8), Refusal> {
        let refuse = |reason: String| Err(Refusal { reason, valid_numbers: None });
        let Some(Move { row, col, number }) = moves::read(text, self.parity) else {
            return refuse("no move was understood; write: place N at row R col C".to_owned());
        };
        if [row, col, number].iter().any(|x| !(1..=self.n).contains(x)) {
            return refuse(format!("row, column and number go from 1 to {}", self.n));
        }
        let (row, col, number) = (row - 1, col - 1, number as u8);
        if episode.initial.at(row, col) != 0 {
            return refuse(format!("the number at ({}, {}) is given", row + 1, col + 1));
        }
        if episode.current.holds(row, col, number) {
            let fitting = episode.current.fitting(row, col);
            let at = format!("({}, {})", row + 1, col + 1);
            let instead = if fitting.is_empty() { String::new() } else { format!("; what fits:\n  {at}: {fitting:?}") };
            let reason = format!("{number} is in the row, column or box of {at}{instead}");
            return Err(Refusal { reason, valid_numbers: Some(fitting) });
        }
        Ok((row, col, number))
    }

    /// Why an action would be refused now.
    #[cfg(test)]
    pub(crate) fn refusal(&self, text: &str) -> Option<Refusal> {
        self.judge(self.episode.as_ref()?, text).err()
    }

    /// Writes a number that may stand there; what it pays, and whether it is the solution's.
    fn place(&self, episode: &mut Episode, row: usize, col: usize, number: u8) -> (f64, bool) {
        let is_right = episode.solution.at(row, col) == number;
        episode.current.put(row, col, number);
        let worth = if is_right { self.placement } else { self.placement / 2.0 };
        let paid = &mut episode.paid[row * self.n + col];
        // A cell pays what is new to it, so that writing to and fro earns nothing.
        let reward = if self.parity { worth } else { (worth - *paid).max(0.0) };
        *paid = paid.max(worth);
        let at = format!("{number} at ({}, {})", row + 1, col + 1);
        episode.feedback = if is_right {
            format!("✓ {at} is right")
        } else {
            format!("⚠ {at} fits, but differs from the solution")
        };
        (reward, is_right)
    }

    /// Cells that need a number or another one, each with what fits, the fewest first.
    fn next_cell(&self, episode: &Episode) -> Option<(usize, usize, Vec<u8>)> {
        let wrong = |row: usize, col: usize| episode.current.at(row, col) != episode.solution.at(row, col);
        let free = |row: usize, col: usize| !episode.current.holds(row, col, episode.solution.at(row, col));
        let cells = (0..self.n * self.n).map(|cell| (cell / self.n, cell % self.n));
        let open = cells.filter(|(row, col)| wrong(*row, *col) && free(*row, *col));
        open.map(|(row, col)| (row, col, episode.current.fitting(row, col))).min_by_key(|(.., fitting)| fitting.len())
    }
}

impl Env for Sudoku {
    fn reset(&mut self, seed: u64, _member: u64, _mode: Mode) -> Result<(), EnvError> {
        let mut layout = Stream::derive(TYPE, seed, "layout");
        let drawn = Grid::draw(self.n, self.n_empty, self.unique, &mut layout);
        let failed = EnvError::Generation { env_type: TYPE, seed, attempts: 20, loosen: "`difficulty` or `unique`" };
        let (initial, solution) = drawn.ok_or(failed)?;
        let (current, paid) = (initial.clone(), vec![0.0; self.n * self.n]);
        self.episode = Some(Episode { initial, solution, current, paid, steps: 0, feedback: String::new() });
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(episode) = &self.episode else { return String::new() };
        let view = View {
            initial: &episode.initial,
            current: &episode.current,
            feedback: &episode.feedback,
            steps: (episode.steps, self.max_steps),
            conflicts: self.conflicts,
            valid_numbers: self.valid_numbers,
        };
        view.tell(self.format)
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let mut episode = self.episode.take().ok_or(EnvError::NotReset { env_type: TYPE })?;
        episode.steps += 1;
        let out_of_steps = episode.steps >= self.max_steps;
        let step = match self.judge(&episode, action) {
            Err(refusal) => {
                episode.feedback = format!("✗ {}", refusal.reason);
                Step { reward: self.invalid, truncated: out_of_steps && !self.parity, ..Step::default() }
            }
            Ok((row, col, number)) => {
                let (mut reward, is_right) = self.place(&mut episode, row, col, number);
                let solved = episode.current.is_solved();
                if solved {
                    reward += self.bonus;
                    episode.feedback = "🎉 solved".to_owned();
                }
                let filled = episode.current.n_filled();
                let info = vec![
                    ("correct_placement".into(), f64::from(u8::from(is_right))),
                    ("steps_remaining".into(), self.max_steps as f64 - episode.steps as f64),
                    ("cells_filled".into(), filled as f64),
                    ("cells_remaining".into(), (self.n * self.n - filled) as f64),
                ];
                let truncated = out_of_steps && !solved;
                Step { reward, terminated: solved, truncated, success: solved, valid: true, effective: true, info }
            }
        };
        self.episode = Some(episode);
        Ok(step)
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        format!(
            "You solve a Sudoku of {0} rows and {0} columns: every row, every column and every box of {1} by {1} cells has each number \
             from 1 to {0} once. Place one number after the other: place N at row R col C. Rows and columns count from 1. What is given \
             cannot be changed.",
            self.n,
            self.n.isqrt()
        )
    }

    fn state(&self) -> Value {
        let Some(Episode { initial, solution, current, paid, steps, feedback }) = &self.episode else {
            return Value::Null;
        };
        json!(Saved {
            initial_grid: initial.rows(),
            solution_grid: solution.rows(),
            current_grid: current.rows(),
            paid: paid.clone(),
            num_steps: *steps,
            feedback: feedback.clone(),
        })
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let saved = Saved::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        let grid = |rows: &[Vec<u8>]| {
            let must = || wrong(format!("each grid must have {0} rows of {0} numbers from 0 to {0}", self.n));
            Grid::read(self.n, rows).ok_or_else(must)
        };
        let (initial, solution) = (grid(&saved.initial_grid)?, grid(&saved.solution_grid)?);
        let current = grid(&saved.current_grid)?;
        let paid = if saved.paid.is_empty() { vec![0.0; self.n * self.n] } else { saved.paid };
        let cells = (0..self.n * self.n).map(|cell| (cell / self.n, cell % self.n));
        let mut given = cells.filter(|(row, col)| initial.at(*row, *col) != 0);
        if !given.all(|(row, col)| initial.at(row, col) == current.at(row, col)) || paid.len() != self.n * self.n {
            return Err(wrong("the present grid must hold what is given, and paid a number a cell".to_owned()));
        }
        let (steps, feedback) = (saved.num_steps, saved.feedback);
        self.episode = Some(Episode { initial, solution, current, paid, steps, feedback });
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(episode) = &self.episode else { return 0 };
        let cells = episode.initial.rows().concat().into_iter().chain(episode.current.rows().concat());
        hash_bytes(TYPE.bytes().chain(cells))
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let mut episode = self.episode.clone().filter(|e| !e.current.is_solved() && e.steps < self.max_steps)?;
        let (mut thought, mut actions) = (None, Vec::new());
        for _ in 0..options.turn_len(draws) {
            let Some((mut row, mut col, fitting)) = self.next_cell(&episode) else { break };
            let mut number = episode.solution.at(row, col);
            let why = match fitting.len() {
                1 => format!("row {} col {} only fits {number}", row + 1, col + 1),
                _ => format!("row {} col {} is {number}", row + 1, col + 1),
            };
            if draws.chance(options.noise) {
                // A number that fits into some cell, not always the solution's.
                let cell = draws.below(self.n * self.n);
                let fitting = episode.current.fitting(cell / self.n, cell % self.n);
                if !fitting.is_empty() {
                    (row, col, number) = (cell / self.n, cell % self.n, fitting[draws.below(fitting.len())]);
                }
            }
            thought.get_or_insert(why);
            actions.push(format!("place {number} at row {} col {}", row + 1, col + 1));
            episode.current.put(row, col, number);
            if episode.current.is_solved() {
                break;
            }
        }
        thought.map(|thought| Turn { thought, actions })
    }
}

#[cfg(test)]
mod tests;

//! Sokoban: push every box onto a target, and never pull one back.
//!
//! It knows its own levels and nothing of other tasks. [`Level`] holds the rules, [`solve`] the shortest solution,
//! [`generator`] the makers of levels.
//!
//! # Description
//! A board in a ring of wall, with boxes, as many targets, and a player that walks and pushes. A push can make a level
//! unsolvable; nothing tells the player so.
//!
//! # Action Space
//! `Up`, `Down`, `Left`, `Right` (ids 1 to 4), in any case; `action_lookup` renames them. Anything else is invalid:
//! reward 0, nothing changes, the step is not counted.
//!
//! # Observation Space
//! Text in one of the formats of `observation_format`. `grid`: rows of symbols. `coord`: the board size, then the lists
//! Targets (all of them), Boxes, Boxes on target, Player, Player on target, empty ones left out. `compact`: the rows,
//! then `Player r c Box r c Target r c`, every box and every target in row-major order; `compact_near` adds
//! `near Up s Down s Left s Right s`.
//!
//! # Starting State
//! `generator = rooms`: a room dug by a random walk, boxes pulled away from their targets, so it can be solved.
//! `generator = open`: open floor with few walls, everything on random cells, accepted if the shortest solution has as
//! many moves as `solution_moves` says.
//!
//! # Rewards
//! −0.1 a move, +1 if there are more boxes on targets than after the move before, −1 if fewer, +10 if all targets are
//! covered.
//!
//! # Episode End
//! Terminated when every target has a box; truncated by the move that is number `max_steps`, unless
//! it solves the level. Play may go on after either; moves past the limit are not marked as truncated again.
//!
//! # Information
//! `effective`: the player moved. `success`: every target has a box. No further numbers.
//!
//! # Arguments
//! [`SETTINGS`].
//!
//! **Source** gym-sokoban as RAGEN configures it.

pub mod generator;
mod level;
mod solver;

pub use level::{Level, MAX_BOXES, MAX_SIDE, Moved};
pub use solver::solve;

use crate::grid::{Direction, FORMAT_MEANING, Format, MoveNames, Symbols, View};
use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Legend, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use level::{BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET, TARGET};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TYPE: &str = "sokoban";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "dim_room",
        default: "[6, 6]",
        meaning: "rows and columns, the ring of wall included; 3 to 16 each",
    },
    Setting { name: "dim_x", default: "null", meaning: "rows; with dim_y it replaces dim_room" },
    Setting { name: "dim_y", default: "null", meaning: "columns; with dim_x it replaces dim_room" },
    Setting { name: "num_boxes", default: "3", meaning: "boxes and targets, 1 to 15" },
    Setting { name: "max_steps", default: "100", meaning: "moves after which an unsolved episode is truncated" },
    Setting { name: "generator", default: "\"rooms\"", meaning: "rooms or open" },
    Setting { name: "search_depth", default: "300", meaning: "rooms: how deep boxes are pulled away, 2 to 100000" },
    Setting { name: "wall_p", default: "0.1", meaning: "open: probability that an inner cell is wall, 0 to 1" },
    Setting {
        name: "solution_moves",
        default: "null",
        meaning: "least and most moves of the shortest solution, 1 to 100; null is [2, 6] for open, any for rooms",
    },
    Setting { name: "observation_format", default: "\"grid\"", meaning: FORMAT_MEANING },
    Setting {
        name: "grid_lookup",
        default: r##"{"0": "#", "1": "_", "2": "O", "3": "√", "4": "X", "5": "P", "6": "S"}"##,
        meaning: "symbols of 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target",
    },
    Setting { name: "grid_vocab", default: "null", meaning: "meanings of symbols in the prompt, instead of the usual" },
    Setting {
        name: "action_lookup",
        default: r#"{"1": "Up", "2": "Down", "3": "Left", "4": "Right"}"#,
        meaning: "names of the actions by id",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "push every box onto a target; a wrong push cannot be undone",
    many_starts: true,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags,
    unavailable: || None,
    build: |config| Ok(Box::new(Sokoban::new(config)?)),
};

fn tags() -> Vec<Tag> {
    let other_symbols = json!({"0": "W", "1": ".", "2": "G", "3": "C", "4": "B", "5": "A", "6": "@"});
    let simple = json!({"dim_room": [6, 6], "num_boxes": 1, "max_steps": 100});
    let larger = json!({"dim_room": [8, 8], "num_boxes": 2, "search_depth": 10});
    let vocab = json!({"dim_room": [6, 6], "num_boxes": 1, "search_depth": 30, "grid_lookup": other_symbols});
    let coord = json!({"dim_room": [6, 6], "num_boxes": 1, "observation_format": "grid_coord"});
    vec![
        Tag::new("SimpleSokoban", TYPE, 10, 100, simple),
        Tag::new("LargerSokoban", TYPE, 10, 100, larger),
        Tag::new("SokobanDifferentGridVocab", TYPE, 10, 100, vocab),
        Tag::new("CoordSokoban", TYPE, 10, 120, coord),
    ]
}

/// Symbol and meaning of each code that is drawn.
const SYMBOLS: [(char, &str); 7] = [
    ('#', "wall"),
    ('_', "empty floor"),
    ('O', "target"),
    ('√', "box on a target"),
    ('X', "box"),
    ('P', "player"),
    ('S', "player on a target"),
];

/// Levels tried before a seed is given up.
const ATTEMPTS: usize = 10_000;
/// Positions searched, over all tries, before a seed is given up: seconds at most, whatever the settings.
const EFFORT: usize = 10_000_000;
/// Longest solution that is looked for.
const MAX_SOLUTION: usize = 100;

#[derive(Clone, Copy, Debug)]
enum Generator {
    Rooms { search_depth: usize },
    Open { wall_p: f64 },
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    level: Level,
    steps: usize,
    /// Boxes on targets as the rewards have counted them; 0 at the start, whatever the level shows.
    on_target: usize,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    room_fixed: Vec<Vec<u8>>,
    room_state: Vec<Vec<u8>>,
    num_env_steps: usize,
    boxes_on_target: usize,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Sokoban {
    size: (usize, usize),
    num_boxes: usize,
    max_steps: usize,
    generator: Generator,
    solution_moves: Option<[usize; 2]>,
    format: Format,
    symbols: Symbols,
    moves: MoveNames,
    episode: Option<Episode>,
}

impl Sokoban {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        let sides = 3..=MAX_SIDE as u64;
        let dim_room = reader.pair("dim_room", sides.clone()).unwrap_or([6, 6]);
        let [rows, cols] = match [reader.optional("dim_x", sides.clone()), reader.optional("dim_y", sides)] {
            [Some(rows), Some(cols)] => [rows, cols],
            _ => dim_room,
        };
        let num_boxes = reader.integer("num_boxes", 1..=MAX_BOXES as u64);
        let (search_depth, wall_p) = (reader.integer("search_depth", 2..=100_000), reader.number("wall_p", 0.0..=1.0));
        let solution_moves = reader.pair("solution_moves", 1..=MAX_SOLUTION as u64);
        let (generator, solution_moves, needed) = match reader.choice("generator", &["rooms", "open"]) {
            0 => (Generator::Rooms { search_depth }, solution_moves, num_boxes + 2),
            _ => (Generator::Open { wall_p }, solution_moves.or(Some([2, 6])), 2 * num_boxes + 1),
        };
        let inside = (rows - 2) * (cols - 2);
        if inside < needed {
            let fit =
                format!("is {num_boxes}, which needs {needed} cells, but {rows} x {cols} has {inside} inside its wall");
            reader.problem("num_boxes", fit);
        }
        if let Some([least, most]) = solution_moves.filter(|[least, most]| least > most) {
            reader.problem("solution_moves", format!("is [{least}, {most}], but the least comes first"));
        }
        let format = Format::read(&mut reader);
        let sokoban = Sokoban {
            size: (rows, cols),
            num_boxes,
            max_steps: reader.integer("max_steps", 1..=1_000_000),
            generator,
            solution_moves,
            format,
            symbols: Symbols::read(&mut reader, format, &SYMBOLS),
            moves: MoveNames::read(&mut reader, Direction::ALL),
            episode: None,
        };
        reader.finish(sokoban)
    }

    /// The level in play.
    pub fn level(&self) -> Option<&Level> {
        self.episode.as_ref().map(|episode| &episode.level)
    }

    fn draw_level(&self, draws: &mut Stream, effort: &mut usize) -> Option<Level> {
        let level = match self.generator {
            Generator::Rooms { search_depth } => {
                generator::rooms(self.size, self.num_boxes, search_depth, draws, effort)
            }
            Generator::Open { wall_p } => generator::open(self.size, self.num_boxes, wall_p, draws),
        }?;
        match self.solution_moves {
            Some([least, most]) => {
                solver::search(&level, most, effort).filter(|plan| plan.len() >= least).map(|_| level)
            }
            None => Some(level),
        }
    }

    /// Plays one move; nothing is allocated.
    ///
    /// **Errors** [`EnvError::NotReset`].
    pub fn play(&mut self, direction: Direction) -> Result<Step, EnvError> {
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset { env_type: TYPE })?;
        let moved = episode.level.play(direction);
        let before = std::mem::replace(&mut episode.on_target, self.num_boxes - episode.level.uncovered());
        let change = (episode.on_target as f64 - before as f64).clamp(-1.0, 1.0);
        let success = episode.level.is_solved();
        episode.steps += 1;
        Ok(Step {
            reward: -0.1 + change + if success { 10.0 } else { 0.0 },
            terminated: success,
            truncated: !success && episode.steps == self.max_steps,
            success,
            valid: true,
            effective: moved != Moved::Not,
            info: Vec::new(),
        })
    }
}

impl Env for Sokoban {
    fn reset(&mut self, seed: u64, _member: u64, _mode: Mode) -> Result<(), EnvError> {
        let layout = Stream::derive(TYPE, seed, "layout");
        let (mut attempts, mut effort, mut level) = (0, EFFORT, None);
        while level.is_none() && attempts < ATTEMPTS && effort > 0 {
            level = self.draw_level(&mut layout.branch(attempts as u64), &mut effort);
            attempts += 1;
        }
        let loosen = "`solution_moves`, `num_boxes` or `dim_room`";
        let level = level.ok_or(EnvError::Generation { env_type: TYPE, seed, attempts, loosen })?;
        self.episode = Some(Episode { level, steps: 0, on_target: 0 });
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(level) = self.level() else { return String::new() };
        let code = |at| match level.live(at) {
            PLAYER if level.fixed(at) == TARGET => PLAYER_ON_TARGET,
            code => code,
        };
        let list = |wanted: &dyn Fn(u8) -> bool| level.cells().filter(|at| wanted(code(*at))).collect::<Vec<_>>();
        let targets = || level.cells().filter(|at| level.fixed(*at) == TARGET);
        let boxes = || level.cells().filter(|at| matches!(level.live(*at), BOX | BOX_ON_TARGET));
        let view = View {
            size: level.size(),
            symbol: &|at| self.symbols.of(code(at)),
            player: level.player(),
            lists: &|| {
                vec![
                    ("Targets", targets().collect()),
                    ("Boxes", list(&|code| code == BOX)),
                    ("Boxes on target", list(&|code| code == BOX_ON_TARGET)),
                    ("Player", list(&|code| code == PLAYER)),
                    ("Player on target", list(&|code| code == PLAYER_ON_TARGET)),
                ]
            },
            words: &|| {
                let boxes = boxes().map(|at| ("Box", at));
                [("Player", level.player())]
                    .into_iter()
                    .chain(boxes)
                    .chain(targets().map(|at| ("Target", at)))
                    .collect()
            },
        };
        view.render(self.format)
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let episode = self.episode.as_ref().ok_or(EnvError::NotReset { env_type: TYPE })?;
        match self.moves.find(action) {
            Some(direction) => self.play(direction),
            None => {
                let success = episode.level.is_solved();
                let truncated = !success && episode.steps == self.max_steps;
                Ok(Step { terminated: success, truncated, success, ..Step::default() })
            }
        }
    }

    fn actions(&self) -> Option<Vec<String>> {
        Some(self.moves.all())
    }

    fn instruction(&self) -> String {
        let (boxes, targets) = if self.num_boxes == 1 { ("the box", "the target") } else { ("every box", "a target") };
        format!(
            "You solve a Sokoban puzzle of {} rows and {} columns. Push {boxes} onto {targets}. You can push a box but never \
             pull it, and only one at a time, so keep boxes away from walls and corners that they cannot leave.",
            self.size.0, self.size.1
        )
    }

    fn legend(&self) -> Legend {
        self.symbols.legend(self.format, self.size)
    }

    fn state(&self) -> Value {
        let Some(Episode { level, steps, on_target }) = &self.episode else { return Value::Null };
        let (rows, cols) = level.size();
        let grid = |code: &dyn Fn((usize, usize)) -> u8| -> Vec<Vec<u8>> {
            (0..rows).map(|row| (0..cols).map(|col| code((row, col))).collect()).collect()
        };
        json!(Saved {
            room_fixed: grid(&|at| level.fixed(at)),
            room_state: grid(&|at| level.live(at)),
            num_env_steps: *steps,
            boxes_on_target: *on_target,
        })
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let saved = Saved::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        let level = Level::from_grids(&saved.room_fixed, &saved.room_state).map_err(wrong)?;
        if level.size() != self.size || level.num_boxes() != self.num_boxes || saved.boxes_on_target > self.num_boxes {
            let (rows, cols) = self.size;
            return Err(wrong(format!("the settings ask for {rows} x {cols} cells and {} boxes", self.num_boxes)));
        }
        self.episode = Some(Episode { level, steps: saved.num_env_steps, on_target: saved.boxes_on_target });
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(level) = self.level() else { return 0 };
        let codes = level.cells().flat_map(|at| [level.fixed(at), level.live(at)]);
        let size = [level.size().0 as u8, level.size().1 as u8];
        hash_bytes(TYPE.bytes().chain(size).chain(codes))
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let Episode { mut level, steps, .. } = self.episode?;
        let mut plan = (steps < self.max_steps).then(|| solve(&level, MAX_SOLUTION)).flatten()?.into_iter();
        let (push, stand) = next_push(level, plan.as_slice())?;
        let mut moves = Vec::new();
        for _ in 0..options.turn_len(draws) {
            let Some(planned) = plan.next() else { break };
            let direction = if draws.chance(options.noise) { Direction::ALL[draws.below(4)] } else { planned };
            moves.push(direction);
            level.play(direction);
            if direction != planned {
                plan = solve(&level, MAX_SOLUTION).unwrap_or_default().into_iter();
            }
        }
        let actions = self.moves.list(&moves);
        let thought = format!("push {} from {} {} go {}", self.moves.name(push), stand.0, stand.1, actions.join(" "));
        Some(Turn { thought, actions })
    }
}

/// The first push of a plan, and the cell from which it is made.
fn next_push(mut level: Level, plan: &[Direction]) -> Option<(Direction, (usize, usize))> {
    plan.iter().find_map(|direction| {
        let stand = level.player();
        (level.play(*direction) == Moved::Pushed).then_some((*direction, stand))
    })
}

#[cfg(test)]
mod tests;

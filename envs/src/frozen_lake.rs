//! FrozenLake: cross a slippery lake to the goal without falling into a hole.
//!
//! It knows its own map and slip rule, and nothing of other tasks.
//!
//! # Description
//! A square board of ice with holes, a start and a goal. Every move may slip sideways, never backwards.
//!
//! # Action Space
//! `Left`, `Down`, `Right`, `Up` (ids 1 to 4), in any case; `action_lookup` renames them and `action_map` permutes what
//! they do. Anything else is invalid: reward 0, nothing changes, no random number is taken.
//!
//! # Observation Space
//! Text in one of the formats of `observation_format`. `grid`: rows of symbols, the start drawn as ice. `coord`: the
//! board size, then the lists Start, Goal, Player (or `Player on goal`, `Player in hole`) and Holes. `compact`: the rows,
//! then `Player r c Goal r c`; `compact_near` adds `near Up s Down s Left s Right s`, `#` outside the board.
//!
//! # Starting State
//! Every cell is ice with probability `p`, else a hole; start and goal are two random cells; maps are drawn until the
//! goal can be reached. The player stands on the start.
//!
//! # Rewards
//! 1 on entering the goal, else 0.
//!
//! # Episode End
//! Terminated on the goal or in a hole; never truncated. Both tiles hold the player for good.
//!
//! # Information
//! `success`: the player is on the goal. `effective`: the player's cell changed, be it by a slip. No further numbers.
//!
//! # Arguments
//! [`SETTINGS`].
//!
//! **Transition** with u uniform in [0, 1), f = (1 − success_rate) / 2 and the directions in the cycle Left, Down, Right,
//! Up: u < f moves one back in the cycle, u < f + success_rate as intended, else one on. The edge of the board stops a
//! move. The k-th number is the same for every member of a group unless `member_noise` is set.
//!
//! **Source** Gymnasium's FrozenLake with `success_rate`; random start and goal as in RAGEN.

mod player;

use crate::grid::{Cell, Direction, FORMAT_MEANING, Format, MoveNames, Symbols, View};
use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Legend, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TYPE: &str = "frozen_lake";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "size", default: "4", meaning: "rows and columns of the board, 2 to 64" },
    Setting { name: "p", default: "0.9", meaning: "probability that a cell is ice and no hole; above 0, at most 1" },
    Setting { name: "success_rate", default: "0.8", meaning: "probability that a move goes as intended, 0 to 1" },
    Setting { name: "is_slippery", default: "true", meaning: "whether moves may slip at all" },
    Setting {
        name: "member_noise",
        default: "false",
        meaning: "whether each member of a group slips by numbers of its own",
    },
    Setting { name: "observation_format", default: "\"grid\"", meaning: FORMAT_MEANING },
    Setting {
        name: "grid_lookup",
        default: r#"{"0": "P", "1": "_", "2": "O", "3": "G", "4": "X", "5": "√"}"#,
        meaning: "symbols of 0 player, 1 ice, 2 hole, 3 goal, 4 player in a hole, 5 player on the goal",
    },
    Setting { name: "grid_vocab", default: "null", meaning: "meanings of symbols in the prompt, instead of the usual" },
    Setting {
        name: "action_lookup",
        default: r#"{"1": "Left", "2": "Down", "3": "Right", "4": "Up"}"#,
        meaning: "names of the actions by id",
    },
    Setting {
        name: "action_map",
        default: r#"{"1": 0, "2": 1, "3": 2, "4": 3}"#,
        meaning: "direction of each action id: 0 left, 1 down, 2 right, 3 up",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "cross a slippery lake to the goal without falling into a hole",
    many_starts: true,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || {
        let coord = json!({"observation_format": "grid_coord", "success_rate": 0.8});
        vec![
            Tag::new("FrozenLake", TYPE, 10, 100, json!({"success_rate": 0.8})),
            Tag::new("CoordFrozenLake", TYPE, 10, 120, coord),
        ]
    },
    unavailable: || None,
    build: |config| Ok(Box::new(FrozenLake::new(config)?)),
};

/// Symbol and meaning of each code that is drawn.
const SYMBOLS: [(char, &str); 6] = [
    ('P', "player"),
    ('_', "ice"),
    ('O', "hole"),
    ('G', "goal"),
    ('X', "player in a hole"),
    ('√', "player on the goal"),
];

/// The cycle of directions: a slip goes one back or one on.
pub(crate) const CYCLE: [Direction; 4] = [Direction::Left, Direction::Down, Direction::Right, Direction::Up];

/// Maps drawn before a seed is given up.
const ATTEMPTS: usize = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tile {
    Ice,
    Hole,
    Goal,
}

/// The map of an episode.
#[derive(Clone, Debug, PartialEq)]
struct Lake {
    size: usize,
    tiles: Vec<Tile>, // [size * size], row by row
    start: Cell,
    goal: Cell,
}

impl Lake {
    fn tile(&self, (row, col): Cell) -> Tile {
        self.tiles[row * self.size + col]
    }

    /// The cell that a move leads to: the edge stops it, goal and holes hold the player.
    fn next(&self, from: Cell, direction: Direction) -> Cell {
        match self.tile(from) {
            Tile::Ice => direction.from_cell(from, (self.size, self.size)).unwrap_or(from),
            Tile::Hole | Tile::Goal => from,
        }
    }

    fn cells(&self) -> impl Iterator<Item = Cell> + use<> {
        let size = self.size;
        (0..size * size).map(move |i| (i / size, i % size))
    }
}

#[derive(Clone, Debug)]
struct Episode {
    lake: Lake,
    player: Cell,
    noise: Stream,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    /// Rows of S, F, H and G.
    desc: Vec<String>,
    player: Cell,
    noise: Stream,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct FrozenLake {
    size: usize,
    p: f64,
    success_rate: f64,
    is_slippery: bool,
    member_noise: bool,
    format: Format,
    symbols: Symbols,
    moves: MoveNames,
    episode: Option<Episode>,
}

impl FrozenLake {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        let p = reader.number("p", 0.0..=1.0);
        if p == 0.0 {
            reader.problem("p", "is 0, but a board without ice has no way to the goal");
        }
        let order =
            reader.read("action_map", "a map that gives the ids 1 to 4 the directions 0 to 3, each once", |value| {
                let map = value.as_object()?;
                let directions: Vec<u64> = (1..=4).filter_map(|id| map.get(&id.to_string())?.as_u64()).collect();
                let complete = map.len() == 4 && (0..4).all(|direction| directions.contains(&direction));
                let directions: [u64; 4] = directions.try_into().ok()?;
                complete.then(|| directions.map(|direction| CYCLE[direction as usize]))
            });
        let format = Format::read(&mut reader);
        let lake = FrozenLake {
            size: reader.integer("size", 2..=64),
            p,
            success_rate: reader.number("success_rate", 0.0..=1.0),
            is_slippery: reader.flag("is_slippery"),
            member_noise: reader.flag("member_noise"),
            format,
            symbols: Symbols::read(&mut reader, format, &SYMBOLS),
            moves: MoveNames::read(&mut reader, order),
            episode: None,
        };
        reader.finish(lake)
    }

    fn draw_lake(&self, layout: &mut Stream) -> Option<Lake> {
        let size = self.size;
        let n = size * size;
        let mut tiles: Vec<Tile> = (0..n).map(|_| if layout.chance(self.p) { Tile::Ice } else { Tile::Hole }).collect();
        let (start, goal) = (layout.below(n), layout.below(n));
        tiles[start] = Tile::Ice;
        tiles[goal] = Tile::Goal;
        let cell = |i| (i / size, i % size);
        let lake = Lake { size, tiles, start: cell(start), goal: cell(goal) };
        (start != goal && player::distances(&lake)[start] != usize::MAX).then_some(lake)
    }

    /// Probabilities of slipping one back in the cycle, of moving as intended, and of slipping one on.
    pub(crate) fn slip_weights(&self) -> [f64; 3] {
        let slip = (1.0 - self.success_rate) / 2.0;
        if self.is_slippery { [slip, self.success_rate, slip] } else { [0.0, 1.0, 0.0] }
    }

    /// Where a move really goes, by a draw in [0, 1).
    pub(crate) fn slip(&self, intended: Direction, draw: f64) -> Direction {
        let [back, straight, _] = self.slip_weights();
        let shift = if draw < back { 3 } else { usize::from(draw >= back + straight) };
        let index = CYCLE.iter().position(|direction| *direction == intended).unwrap_or(0);
        CYCLE[(index + shift) % 4]
    }

    /// Moves the player in a direction that no slip changes any more.
    pub(crate) fn slide(&mut self, direction: Direction) -> Result<Step, EnvError> {
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset { env_type: TYPE })?;
        let before = episode.player;
        episode.player = episode.lake.next(before, direction);
        let effective = episode.player != before;
        let tile = episode.lake.tile(episode.player);
        Ok(Step {
            reward: if effective && tile == Tile::Goal { 1.0 } else { 0.0 },
            terminated: tile != Tile::Ice,
            success: tile == Tile::Goal,
            valid: true,
            effective,
            ..Step::default()
        })
    }
}

impl Env for FrozenLake {
    fn reset(&mut self, seed: u64, member: u64, _mode: Mode) -> Result<(), EnvError> {
        let mut layout = Stream::derive(TYPE, seed, "layout");
        let lake = (0..ATTEMPTS).find_map(|_| self.draw_lake(&mut layout));
        let failed = EnvError::Generation { env_type: TYPE, seed, attempts: ATTEMPTS, loosen: "`p` or `size`" };
        let lake = lake.ok_or(failed)?;
        let noise = Stream::derive(TYPE, seed, "noise").branch(if self.member_noise { member } else { 0 });
        self.episode = Some(Episode { player: lake.start, lake, noise });
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(Episode { lake, player, .. }) = &self.episode else { return String::new() };
        let code = |cell| match (lake.tile(cell), cell == *player) {
            (Tile::Ice, true) => 0,
            (Tile::Ice, false) => 1,
            (Tile::Hole, false) => 2,
            (Tile::Goal, false) => 3,
            (Tile::Hole, true) => 4,
            (Tile::Goal, true) => 5,
        };
        let label = match lake.tile(*player) {
            Tile::Ice => "Player",
            Tile::Goal => "Player on goal",
            Tile::Hole => "Player in hole",
        };
        let holes = || lake.cells().filter(|cell| lake.tile(*cell) == Tile::Hole).collect();
        let view = View {
            size: (lake.size, lake.size),
            symbol: &|cell| self.symbols.of(code(cell)),
            player: *player,
            lists: &|| {
                vec![("Start", vec![lake.start]), ("Goal", vec![lake.goal]), (label, vec![*player]), ("Holes", holes())]
            },
            words: &|| vec![("Player", *player), ("Goal", lake.goal)],
        };
        view.render(self.format)
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset { env_type: TYPE })?;
        let Some(intended) = self.moves.find(action) else {
            let tile = episode.lake.tile(episode.player);
            return Ok(Step { terminated: tile != Tile::Ice, success: tile == Tile::Goal, ..Step::default() });
        };
        // One number a move, used or not, so that the k-th number belongs to the k-th move.
        let draw = episode.noise.uniform();
        self.slide(self.slip(intended, draw))
    }

    fn actions(&self) -> Option<Vec<String>> {
        Some(self.moves.all())
    }

    fn instruction(&self) -> String {
        let slip = match self.is_slippery && self.success_rate < 1.0 {
            true => format!(
                " The ice is slippery: a move goes as intended with probability {}, else it slips to one side.",
                self.success_rate
            ),
            false => String::new(),
        };
        format!(
            "You cross a frozen lake, a board of {0} rows and {0} columns. Reach the goal and keep out of the holes.{slip}",
            self.size
        )
    }

    fn legend(&self) -> Legend {
        self.symbols.legend(self.format, (self.size, self.size))
    }

    fn state(&self) -> Value {
        let Some(Episode { lake, player, noise }) = &self.episode else { return Value::Null };
        let letter = |cell| match lake.tile(cell) {
            _ if cell == lake.start => 'S',
            Tile::Ice => 'F',
            Tile::Hole => 'H',
            Tile::Goal => 'G',
        };
        let desc = (0..lake.size).map(|row| (0..lake.size).map(|col| letter((row, col))).collect()).collect();
        json!(Saved { desc, player: *player, noise: *noise })
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let Saved { desc, player, noise } = Saved::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        let size = self.size;
        if desc.len() != size || desc.iter().any(|row| row.len() != size) || player.0.max(player.1) >= size {
            return Err(wrong(format!("map and player must fit a board of {size} by {size}")));
        }
        let letters: Vec<u8> = desc.iter().flat_map(|row| row.bytes()).collect();
        let only = |letter: u8| {
            let mut found = (0..letters.len()).filter(|i| letters[*i] == letter);
            let cell = found.next().filter(|_| found.next().is_none()).map(|i| (i / size, i % size));
            cell.ok_or_else(|| wrong(format!("the map must have exactly one {}", letter as char)))
        };
        let (start, goal) = (only(b'S')?, only(b'G')?);
        let tile = |letter: &u8| match letter {
            b'S' | b'F' => Ok(Tile::Ice),
            b'H' => Ok(Tile::Hole),
            b'G' => Ok(Tile::Goal),
            other => Err(wrong(format!("the map may have S, F, H and G, not byte {other}"))),
        };
        let tiles = letters.iter().map(tile).collect::<Result<_, _>>()?;
        self.episode = Some(Episode { lake: Lake { size, tiles, start, goal }, player, noise });
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(Episode { lake, player, .. }) = &self.episode else { return 0 };
        let tiles = lake.tiles.iter().map(|tile| *tile as u8);
        let cells = [lake.start, *player].into_iter().flat_map(|cell| [cell.0 as u8, cell.1 as u8]);
        hash_bytes(TYPE.bytes().chain([lake.size as u8]).chain(tiles).chain(cells))
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let episode = self.episode.as_ref()?;
        let len = options.turn_len(draws);
        let plan = self.plan(&episode.lake, episode.player, len, options.noise, draws);
        if plan.is_empty() {
            return None;
        }
        let actions = self.moves.list(&plan);
        let (player, goal) = (episode.player, episode.lake.goal);
        let go = actions.join(" ");
        let thought = format!("Player {} {} Goal {} {} go {go}", player.0, player.1, goal.0, goal.1);
        Some(Turn { thought, actions })
    }
}

#[cfg(test)]
mod tests;

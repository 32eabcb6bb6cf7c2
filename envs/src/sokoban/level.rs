//! A Sokoban level: two small grids in fixed arrays, and the move that changes them.
//!
//! It knows walls, boxes and the player; rewards and text are the environment's affair. A cell is one byte,
//! `row * 16 + column`, so that a neighbour is an addition; the ring of wall keeps every neighbour on the board.

use crate::grid::{Cell, Direction};

/// The longest side of a level.
pub const MAX_SIDE: usize = 16;
/// The most boxes of a level; a solver state packs them and the player into 16 bytes.
pub const MAX_BOXES: usize = 15;

pub(crate) const WALL: u8 = 0;
pub(crate) const FLOOR: u8 = 1;
pub(crate) const TARGET: u8 = 2;
pub(crate) const BOX_ON_TARGET: u8 = 3;
pub(crate) const BOX: u8 = 4;
pub(crate) const PLAYER: u8 = 5;
/// Only drawn: a player whose cell is a target.
pub(crate) const PLAYER_ON_TARGET: u8 = 6;

/// The byte of a cell.
pub(crate) fn index((row, col): Cell) -> u8 {
    (row * MAX_SIDE + col) as u8
}

/// The cell of a byte.
pub(crate) fn cell(index: u8) -> Cell {
    (index as usize / MAX_SIDE, index as usize % MAX_SIDE)
}

/// The byte of the neighbour; both cells are on the board, since nothing but wall is on its edge.
pub(crate) fn neighbour(from: u8, direction: Direction) -> u8 {
    from.wrapping_add([0u8.wrapping_sub(MAX_SIDE as u8), MAX_SIDE as u8, u8::MAX, 1][direction as usize])
}

/// What a move did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Nothing: a wall, or a box that cannot be pushed.
    Not,
    /// The player walked.
    Walked,
    /// The player pushed a box and followed it.
    Pushed,
}

/// A level in play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    rows: u8,
    cols: u8,
    player: u8,
    num_boxes: u8,
    uncovered: u8,
    fixed: [u8; MAX_SIDE * MAX_SIDE],
    live: [u8; MAX_SIDE * MAX_SIDE],
}

impl Level {
    /// A level from its fixed grid, its boxes and its player, by bytes of cells.
    ///
    /// The caller has checked that the ring is wall and that boxes and player stand on distinct free cells.
    pub(crate) fn assemble(
        (rows, cols): (usize, usize),
        fixed: [u8; MAX_SIDE * MAX_SIDE],
        boxes: &[u8],
        player: u8,
    ) -> Self {
        let mut live = fixed;
        for &at in boxes {
            live[at as usize] = if fixed[at as usize] == TARGET { BOX_ON_TARGET } else { BOX };
        }
        let targets = fixed.iter().filter(|code| **code == TARGET).count();
        let covered = live.iter().filter(|code| **code == BOX_ON_TARGET).count();
        live[player as usize] = PLAYER;
        let (rows, cols, uncovered) = (rows as u8, cols as u8, (targets - covered) as u8);
        Level { rows, cols, player, num_boxes: boxes.len() as u8, uncovered, fixed, live }
    }

    /// A level from its two grids of codes: fixed (0 wall, 1 floor, 2 target) and live (also 3 box on target, 4 box,
    /// 5 player).
    ///
    /// **Errors** a sentence that says what is wrong with the grids.
    pub fn from_grids(fixed: &[Vec<u8>], live: &[Vec<u8>]) -> Result<Self, String> {
        let (rows, cols) = (fixed.len(), fixed.first().map_or(0, Vec::len));
        let sized = |grid: &[Vec<u8>]| grid.len() == rows && grid.iter().all(|row| row.len() == cols);
        if !(3..=MAX_SIDE).contains(&rows) || !(3..=MAX_SIDE).contains(&cols) || !sized(fixed) || !sized(live) {
            return Err(format!("both grids must have the same 3 to {MAX_SIDE} rows and columns"));
        }
        let (mut codes, mut boxes, mut players) = ([WALL; MAX_SIDE * MAX_SIDE], Vec::new(), Vec::new());
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            let (at, below, above) = (index((row, col)), fixed[row][col], live[row][col]);
            let ring = row == 0 || col == 0 || row + 1 == rows || col + 1 == cols;
            match (below, above) {
                (WALL, WALL) => {}
                (FLOOR | TARGET, _) if ring => return Err("the outer ring must be wall".to_owned()),
                (FLOOR, BOX) | (TARGET, BOX_ON_TARGET) => boxes.push(at),
                (FLOOR | TARGET, PLAYER) => players.push(at),
                (FLOOR, FLOOR) | (TARGET, TARGET) => {}
                _ => return Err(format!("({row}, {col}) is {above} where the fixed grid has {below}")),
            }
            codes[at as usize] = below;
        }
        let targets = codes.iter().filter(|code| **code == TARGET).count();
        match players[..] {
            [player] if !boxes.is_empty() && boxes.len() <= MAX_BOXES && boxes.len() == targets => {
                Ok(Level::assemble((rows, cols), codes, &boxes, player))
            }
            [_] => Err(format!("{} boxes and {targets} targets, not equally many from 1 to {MAX_BOXES}", boxes.len())),
            _ => Err(format!("{} players, not one", players.len())),
        }
    }

    /// Plays one move; nothing is allocated.
    #[inline]
    pub fn play(&mut self, direction: Direction) -> Moved {
        let next = neighbour(self.player, direction);
        let moved = match self.live[next as usize] {
            FLOOR | TARGET => Moved::Walked,
            code @ (BOX | BOX_ON_TARGET) => {
                let beyond = neighbour(next, direction);
                let onto = match self.live[beyond as usize] {
                    FLOOR => BOX,
                    TARGET => BOX_ON_TARGET,
                    _ => return Moved::Not,
                };
                self.live[beyond as usize] = onto;
                self.uncovered += u8::from(code == BOX_ON_TARGET);
                self.uncovered -= u8::from(onto == BOX_ON_TARGET);
                Moved::Pushed
            }
            _ => return Moved::Not,
        };
        self.live[self.player as usize] = self.fixed[self.player as usize];
        self.live[next as usize] = PLAYER;
        self.player = next;
        moved
    }

    /// (rows, columns).
    pub fn size(&self) -> (usize, usize) {
        (self.rows as usize, self.cols as usize)
    }

    /// Where the player stands.
    pub fn player(&self) -> Cell {
        cell(self.player)
    }

    /// How many boxes there are.
    pub fn num_boxes(&self) -> usize {
        self.num_boxes as usize
    }

    /// Targets without a box.
    pub fn uncovered(&self) -> usize {
        self.uncovered as usize
    }

    /// Whether every target has a box.
    pub fn is_solved(&self) -> bool {
        self.uncovered == 0
    }

    /// Code of a cell in the fixed grid.
    pub fn fixed(&self, at: Cell) -> u8 {
        self.fixed[index(at) as usize]
    }

    /// Code of a cell in the live grid; 5 for the player, whatever it stands on.
    pub fn live(&self, at: Cell) -> u8 {
        self.live[index(at) as usize]
    }

    /// The cells of the board, row by row.
    pub fn cells(&self) -> impl Iterator<Item = Cell> + use<> {
        let (rows, cols) = self.size();
        (0..rows).flat_map(move |row| (0..cols).map(move |col| (row, col)))
    }

    pub(crate) fn player_index(&self) -> u8 {
        self.player
    }

    pub(crate) fn is_wall(&self, at: u8) -> bool {
        self.fixed[at as usize] == WALL
    }

    pub(crate) fn is_target(&self, at: u8) -> bool {
        self.fixed[at as usize] == TARGET
    }

    /// Bytes of the cells with a box, ascending.
    pub(crate) fn boxes(&self) -> impl Iterator<Item = u8> + '_ {
        let is_box = |at: &u8| matches!(self.live[*at as usize], BOX | BOX_ON_TARGET);
        (0..=u8::MAX).filter(is_box)
    }
}

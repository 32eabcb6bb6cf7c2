//! The board of 2048: sliding, merging, and the player's look ahead.
//!
//! It knows tiles and moves, and nothing of episodes or random numbers.

/// Names of the moves in the order of their ids.
pub const NAMES: [&str; 4] = ["Up", "Right", "Down", "Left"];
/// The largest side of a board.
pub const MAX_SIDE: usize = 8;
const CELLS: usize = MAX_SIDE * MAX_SIDE;

/// A square board of tiles; a tile is the power of two that it shows, 0 none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    side: usize,
    cells: [u8; CELLS],
}

impl Board {
    /// An empty board.
    ///
    /// **Panics** if the side is 0 or more than [`MAX_SIDE`].
    pub fn new(side: usize) -> Board {
        assert!((1..=MAX_SIDE).contains(&side), "a board has 1 to {MAX_SIDE} rows");
        Board { side, cells: [0; CELLS] }
    }

    /// A board of these tiles' values, rows in order; `None` where a value is no power of two above 1 or rows differ.
    pub fn read(rows: &[Vec<u64>]) -> Option<Board> {
        let side = rows.len();
        if !(1..=MAX_SIDE).contains(&side) || rows.iter().any(|row| row.len() != side) {
            return None;
        }
        let mut board = Board::new(side);
        for (cell, value) in rows.iter().flatten().enumerate() {
            let known = *value == 0 || (*value > 1 && value.is_power_of_two() && value.trailing_zeros() < 60);
            board.cells[cell] = known.then(|| if *value == 0 { 0 } else { value.trailing_zeros() as u8 })?;
        }
        Some(board)
    }

    /// Rows of values.
    pub fn rows(&self) -> Vec<Vec<u64>> {
        let value = |tile: &u8| if *tile == 0 { 0 } else { 1 << tile };
        self.tiles().chunks(self.side).map(|row| row.iter().map(value).collect()).collect()
    }

    /// Rows and columns.
    pub fn side(&self) -> usize {
        self.side
    }

    /// The tiles, row by row.
    pub fn tiles(&self) -> &[u8] {
        &self.cells[..self.side * self.side]
    }

    /// How many cells are empty.
    pub fn n_empty(&self) -> usize {
        self.tiles().iter().filter(|tile| **tile == 0).count()
    }

    /// The `n`-th empty cell in row-major order.
    pub fn empty(&self, n: usize) -> Option<usize> {
        (0..self.side * self.side).filter(|cell| self.cells[*cell] == 0).nth(n)
    }

    /// Puts a tile on a cell.
    pub fn put(&mut self, cell: usize, tile: u8) {
        self.cells[cell] = tile;
    }

    /// The largest value; 0 on an empty board.
    pub fn max(&self) -> u64 {
        self.tiles().iter().max().map_or(0, |tile| if *tile == 0 { 0 } else { 1 << tile })
    }

    /// The index of the `i`-th cell from the wall that the move goes to, in the `line`-th line.
    fn cell(&self, direction: usize, line: usize, i: usize) -> usize {
        let last = self.side - 1;
        match direction {
            0 => i * self.side + line,
            1 => line * self.side + last - i,
            2 => (last - i) * self.side + line,
            _ => line * self.side + i,
        }
    }

    /// Slides every line to the wall of the move; equal neighbours merge once, those nearest the wall first. Returns the
    /// sum of the merged values, or `None` if nothing moved.
    pub fn slide(&mut self, direction: usize) -> Option<u64> {
        let (mut gain, mut has_moved) = (0, false);
        for line in 0..self.side {
            // Where the next tile goes, and whether the one before it may still merge.
            let (mut end, mut open) = (0, false);
            for i in 0..self.side {
                let from = self.cell(direction, line, i);
                let tile = self.cells[from];
                if tile == 0 {
                    continue;
                }
                if open && self.cells[self.cell(direction, line, end - 1)] == tile {
                    let to = self.cell(direction, line, end - 1);
                    self.cells[from] = 0;
                    self.cells[to] = tile + 1;
                    gain += 1 << (tile + 1);
                    (open, has_moved) = (false, true);
                    continue;
                }
                let to = self.cell(direction, line, end);
                if to != from {
                    self.cells[from] = 0;
                    self.cells[to] = tile;
                    has_moved = true;
                }
                (end, open) = (end + 1, true);
            }
        }
        has_moved.then_some(gain)
    }

    /// Whether a move would change anything.
    pub fn can_move(&self, direction: usize) -> bool {
        (0..self.side).any(|line| {
            (1..self.side).any(|i| {
                let (near, far) =
                    (self.cells[self.cell(direction, line, i - 1)], self.cells[self.cell(direction, line, i)]);
                far != 0 && (near == 0 || near == far)
            })
        })
    }

    /// Whether any move would change anything.
    pub fn is_alive(&self) -> bool {
        (0..4).any(|direction| self.can_move(direction))
    }

    /// How good the board is for the player: large tiles in order along a snake from the upper left corner.
    fn worth(&self) -> f64 {
        let (mut sum, mut weight) = (0.0, 1.0);
        for row in 0..self.side {
            for i in 0..self.side {
                let column = if row % 2 == 0 { i } else { self.side - 1 - i };
                let tile = self.cells[row * self.side + column];
                sum += if tile == 0 { 0.0 } else { weight * f64::from(1u32 << tile.min(31)) };
                weight *= 0.5;
            }
        }
        sum
    }

    /// The best move, by the mean worth of the board after it, a new tile of 2 on any empty cell, and the best move then.
    /// `None` if nothing moves.
    pub fn best_move(&self) -> Option<usize> {
        let worth = |direction: usize| {
            let mut after = *self;
            after.slide(direction)?;
            let (mut sum, mut n) = (0.0, 0.0);
            for cell in (0..self.side * self.side).filter(|cell| after.cells[*cell] == 0) {
                let mut dealt = after;
                dealt.cells[cell] = 1;
                sum += dealt.best_reply();
                n += 1.0;
            }
            Some((sum / f64::max(n, 1.0), direction))
        };
        (0..4).filter_map(worth).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, direction)| direction)
    }

    /// The worth of the best move; nothing where there is none.
    fn best_reply(&self) -> f64 {
        let replies = (0..4).filter_map(|direction| {
            let mut after = *self;
            after.slide(direction).map(|_| after.worth())
        });
        replies.fold(0.0, f64::max)
    }
}

//! Grids of numbers: what fits where, how many solutions there are, and how puzzles are made.
//!
//! It knows grids and nothing of episodes.

use crate::Stream;

/// Guesses of one search; a puzzle that needs more is taken for one of several solutions.
const MOST_GUESSES: usize = 5_000;
/// Whole grids drawn for one puzzle.
const ATTEMPTS: usize = 20;

/// A square grid of n·n cells in boxes of b·b, n = b²; 0 is an empty cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    n: usize,
    b: usize,
    cells: Vec<u8>,
}

impl Grid {
    /// An empty grid of 4, 9 or 16 rows.
    pub fn new(n: usize) -> Grid {
        Grid { n, b: n.isqrt(), cells: vec![0; n * n] }
    }

    /// A grid of these rows; `None` if they are not n rows of n numbers up to n.
    pub fn read(n: usize, rows: &[Vec<u8>]) -> Option<Grid> {
        let fits = rows.len() == n && rows.iter().all(|row| row.len() == n && row.iter().all(|x| usize::from(*x) <= n));
        fits.then(|| Grid { cells: rows.concat(), ..Grid::new(n) })
    }

    /// Its rows.
    pub fn rows(&self) -> Vec<Vec<u8>> {
        self.cells.chunks(self.n).map(<[u8]>::to_vec).collect()
    }

    /// Rows and columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Rows and columns of a box.
    pub fn b(&self) -> usize {
        self.b
    }

    /// The number at a row and a column, from 0.
    pub fn at(&self, row: usize, col: usize) -> u8 {
        self.cells[row * self.n + col]
    }

    /// Writes a number.
    pub fn put(&mut self, row: usize, col: usize, number: u8) {
        self.cells[row * self.n + col] = number;
    }

    /// The cells that are filled.
    pub fn n_filled(&self) -> usize {
        self.cells.iter().filter(|number| **number != 0).count()
    }

    /// The cells of the row, the column and the box of a cell, itself among them.
    fn peers(&self, row: usize, col: usize) -> impl Iterator<Item = usize> + use<> {
        let (n, b) = (self.n, self.b);
        let (top, left) = (row / b * b, col / b * b);
        let in_box = (0..n).map(move |i| (top + i / b) * n + left + i % b);
        (0..n).map(move |i| row * n + i).chain((0..n).map(move |i| i * n + col)).chain(in_box)
    }

    /// Whether a number stands in the row, the column or the box of a cell, itself counted.
    pub fn holds(&self, row: usize, col: usize, number: u8) -> bool {
        self.peers(row, col).any(|cell| self.cells[cell] == number)
    }

    /// The numbers that fit into an empty cell, in order; none of a filled one.
    pub fn fitting(&self, row: usize, col: usize) -> Vec<u8> {
        match self.at(row, col) {
            0 => (1..=self.n as u8).filter(|number| !self.holds(row, col, *number)).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a filled cell's number stands a second time in its row, column or box.
    pub fn is_conflicting(&self, row: usize, col: usize) -> bool {
        let number = self.at(row, col);
        let own = row * self.n + col;
        number != 0 && self.peers(row, col).any(|cell| cell != own && self.cells[cell] == number)
    }

    /// Every cell is filled and none conflicts.
    pub fn is_solved(&self) -> bool {
        let cells = || (0..self.n * self.n).map(|cell| (cell / self.n, cell % self.n));
        cells().all(|(row, col)| self.at(row, col) != 0 && !self.is_conflicting(row, col))
    }

    /// The numbers of `(row, col)` cells of lines: which are taken in each row, column and box, a bit a number.
    fn taken(&self) -> Option<Taken> {
        let mut taken = Taken { rows: vec![0; self.n], cols: vec![0; self.n], boxes: vec![0; self.n] };
        for cell in 0..self.n * self.n {
            if self.cells[cell] != 0 && !taken.take(self, cell, self.cells[cell]) {
                return None;
            }
        }
        Some(taken)
    }

    /// Up to `most` solutions, in the order that `draws` gives the guesses; `None` if the search was given up.
    fn solutions(&self, most: usize, draws: &mut Stream) -> Option<Vec<Grid>> {
        let mut search = Search { found: Vec::new(), most, guesses: 0 };
        let mut grid = self.clone();
        let Some(mut taken) = self.taken() else { return Some(Vec::new()) };
        search.fill(&mut grid, &mut taken, draws);
        (search.guesses <= MOST_GUESSES).then_some(search.found)
    }

    /// Whether there is exactly one solution, as far as a bounded search can tell.
    pub fn is_unique(&self) -> bool {
        self.solutions(2, &mut Stream::new(0)).is_some_and(|found| found.len() == 1)
    }

    /// A solution, if the bounded search finds one.
    pub fn solution(&self) -> Option<Grid> {
        self.solutions(1, &mut Stream::new(0))?.pop()
    }

    /// A full grid: a pattern whose bands, rows, columns and numbers are shuffled, which is quick at any size.
    fn draw_pattern(n: usize, draws: &mut Stream) -> Grid {
        let mut grid = Grid::new(n);
        let b = grid.b;
        let mut lines = || -> Vec<usize> {
            let bands = shuffled(b, draws);
            bands.into_iter().flat_map(|band| shuffled(b, draws).into_iter().map(move |i| band * b + i)).collect()
        };
        let (rows, cols) = (lines(), lines());
        let numbers = shuffled(n, draws);
        for row in 0..n {
            for col in 0..n {
                let shift = rows[row] % b * b + rows[row] / b;
                grid.put(row, col, numbers[(shift + cols[col]) % n] as u8 + 1);
            }
        }
        grid
    }

    /// Draws a puzzle with `n_empty` empty cells and its solution; `None` if none was found in 20 full grids.
    pub fn draw(n: usize, n_empty: usize, unique: bool, draws: &mut Stream) -> Option<(Grid, Grid)> {
        for _ in 0..ATTEMPTS {
            let full = match n {
                16 => Some(Grid::draw_pattern(n, draws)),
                _ => Grid::new(n).solutions(1, draws).and_then(|mut found| found.pop()),
            };
            let Some(full) = full else { continue };
            let mut puzzle = full.clone();
            let mut left = n_empty;
            for cell in shuffled(n * n, draws) {
                if left == 0 {
                    break;
                }
                let number = std::mem::take(&mut puzzle.cells[cell]);
                if unique && !puzzle.is_unique() {
                    puzzle.cells[cell] = number;
                } else {
                    left -= 1;
                }
            }
            if left == 0 {
                return Some((puzzle, full));
            }
        }
        None
    }
}

/// 0 to n − 1 in random order.
fn shuffled(n: usize, draws: &mut Stream) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, draws.below(i + 1));
    }
    order
}

/// Which numbers stand in each line, a bit a number.
#[derive(Clone)]
struct Taken {
    rows: Vec<u32>,
    cols: Vec<u32>,
    boxes: Vec<u32>,
}

impl Taken {
    fn lines(grid: &Grid, cell: usize) -> (usize, usize, usize) {
        let (row, col) = (cell / grid.n, cell % grid.n);
        (row, col, row / grid.b * grid.b + col / grid.b)
    }

    fn of(&self, grid: &Grid, cell: usize) -> u32 {
        let (row, col, square) = Taken::lines(grid, cell);
        self.rows[row] | self.cols[col] | self.boxes[square]
    }

    /// Takes a number for a cell; false if a line of the cell has it already.
    fn take(&mut self, grid: &Grid, cell: usize, number: u8) -> bool {
        let bit = 1 << number;
        let is_free = self.of(grid, cell) & bit == 0;
        let (row, col, square) = Taken::lines(grid, cell);
        self.rows[row] |= bit;
        self.cols[col] |= bit;
        self.boxes[square] |= bit;
        is_free
    }

    fn give_back(&mut self, grid: &Grid, cell: usize, number: u8) {
        let bit = !(1 << number);
        let (row, col, square) = Taken::lines(grid, cell);
        self.rows[row] &= bit;
        self.cols[col] &= bit;
        self.boxes[square] &= bit;
    }
}

struct Search {
    found: Vec<Grid>,
    most: usize,
    guesses: usize,
}

impl Search {
    /// Fills the cell with the fewest numbers that fit, and goes on; a place that only one cell of a line offers a number counts
    /// as such a cell.
    fn fill(&mut self, grid: &mut Grid, taken: &mut Taken, draws: &mut Stream) {
        let n = grid.n;
        let all = ((1u32 << (n + 1)) - 1) & !1;
        let mut best: Option<(u32, usize, u32)> = None;
        for cell in (0..n * n).filter(|cell| grid.cells[*cell] == 0) {
            let fitting = all & !taken.of(grid, cell);
            let count = fitting.count_ones();
            if best.is_none_or(|(fewest, ..)| count < fewest) {
                best = Some((count, cell, fitting));
                if count <= 1 {
                    break;
                }
            }
        }
        let Some((count, mut cell, mut fitting)) = best else {
            self.found.push(grid.clone());
            return;
        };
        if count > 1 {
            match only_place(grid, taken, all) {
                Some(Place::Nowhere) => return,
                Some(Place::At(at, bit)) => (cell, fitting) = (at, bit),
                None => self.guesses += 1,
            }
        }
        let mut numbers: Vec<u8> = (1..=n as u8).filter(|number| fitting & (1 << number) != 0).collect();
        for i in (1..numbers.len()).rev() {
            numbers.swap(i, draws.below(i + 1));
        }
        for number in numbers {
            grid.cells[cell] = number;
            taken.take(grid, cell, number);
            self.fill(grid, taken, draws);
            taken.give_back(grid, cell, number);
            grid.cells[cell] = 0;
            if self.found.len() >= self.most || self.guesses > MOST_GUESSES {
                return;
            }
        }
    }
}

enum Place {
    /// A number is missing in a line and fits nowhere in it.
    Nowhere,
    /// A number fits into this cell alone of some line.
    At(usize, u32),
}

/// A number that fits into one cell of a line alone, or into none.
fn only_place(grid: &Grid, taken: &Taken, all: u32) -> Option<Place> {
    let (n, b) = (grid.n, grid.b);
    let line = |kind: usize, i: usize, k: usize| match kind {
        0 => i * n + k,
        1 => k * n + i,
        _ => (i / b * b + k / b) * n + i % b * b + k % b,
    };
    for kind in 0..3 {
        for i in 0..n {
            let has = [&taken.rows, &taken.cols, &taken.boxes][kind][i];
            // Numbers that fit into at least one cell of the line, and into at least two.
            let (mut once, mut twice) = (0, 0);
            for cell in (0..n).map(|k| line(kind, i, k)).filter(|cell| grid.cells[*cell] == 0) {
                let fitting = all & !taken.of(grid, cell);
                twice |= once & fitting;
                once |= fitting;
            }
            if all & !has & !once != 0 {
                return Some(Place::Nowhere);
            }
            let alone = once & !twice;
            if alone != 0 {
                let bit = alone & alone.wrapping_neg();
                let cells = (0..n).map(|k| line(kind, i, k));
                let mut cells = cells.filter(|cell| grid.cells[*cell] == 0 && all & !taken.of(grid, *cell) & bit != 0);
                return cells.next().map(|cell| Place::At(cell, bit));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puzzles_have_one_solution_and_as_many_gaps_as_asked() {
        for (n, n_empty) in [(4, 6), (4, 9), (9, 32), (9, 48), (16, 102)] {
            let mut draws = Stream::new(n as u64);
            for _ in 0..if n == 16 { 2 } else { 20 } {
                let (puzzle, full) = Grid::draw(n, n_empty, true, &mut draws).unwrap();
                assert_eq!(puzzle.n_filled(), n * n - n_empty, "{n}");
                assert!(full.is_solved() && puzzle.is_unique(), "{n}");
                assert_eq!(puzzle.solution().unwrap(), full, "{n}");
                let kept = puzzle.cells.iter().zip(&full.cells).all(|(a, b)| *a == 0 || a == b);
                assert!(kept, "{n}");
            }
        }
    }

    /// Counted by hand: a grid of 4 that lacks two rows of a band, but for one cell, and one that lacks nothing but a swap.
    #[test]
    fn solutions_are_counted() {
        let grid = |rows: [[u8; 4]; 4]| Grid::read(4, &rows.map(|row| row.to_vec())).unwrap();
        let full = [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]];
        assert!(grid(full).is_unique() && grid(full).is_solved());
        let mut swap = full;
        // 1 2 over 2 1 can be exchanged with 2 1 over 1 2.
        [swap[0][0], swap[0][1], swap[2][0], swap[2][1]] = [0; 4];
        assert_eq!(grid(swap).solutions(9, &mut Stream::new(1)).unwrap().len(), 2);
        assert!(!grid(swap).is_unique());
        let mut clash = full;
        (clash[0][0], clash[3][3]) = (2, 0);
        assert_eq!(grid(clash).solution(), None);
        assert_eq!(Grid::new(4).solutions(1000, &mut Stream::new(1)).unwrap().len(), 288, "all grids of 4");
    }

    #[test]
    fn what_fits_and_what_conflicts() {
        let mut grid = Grid::new(4);
        grid.put(0, 0, 1);
        grid.put(3, 1, 2);
        assert_eq!(grid.fitting(0, 1), [3, 4]);
        assert!(grid.fitting(0, 0).is_empty());
        grid.put(1, 1, 1);
        assert!(grid.is_conflicting(0, 0) && grid.is_conflicting(1, 1) && !grid.is_conflicting(3, 1));
    }
}

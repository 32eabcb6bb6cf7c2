//! How a puzzle is told: `simple`, `detailed`, `with_feedback` as in RAGEN, and `compact` for small models.
//!
//! It knows grids and words, and nothing of rewards.

use super::grid::Grid;
use std::fmt::Write;

/// Empty cells up to which the numbers that fit are listed.
const FEW: usize = 10;

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The grid alone.
    Simple,
    /// With a title, marks on cells, and the last feedback.
    Detailed,
    /// The same with conflicts, what fits, and progress.
    WithFeedback,
    /// Rows without spaces, and how many cells are empty.
    Compact,
}

/// What is told of a puzzle.
pub struct View<'a> {
    /// The puzzle as given.
    pub initial: &'a Grid,
    /// The puzzle now.
    pub current: &'a Grid,
    /// What the last move led to; empty before the first.
    pub feedback: &'a str,
    /// Moves made, and the most there are.
    pub steps: (usize, usize),
    /// Whether conflicts are marked and listed.
    pub conflicts: bool,
    /// Whether what fits is listed.
    pub valid_numbers: bool,
}

impl View<'_> {
    /// The text.
    pub fn tell(&self, format: Format) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = match format {
            Format::Simple => self.grid(&mut text, 1, |grid, row, col| match grid.current.at(row, col) {
                0 => ".".to_owned(),
                number => number.to_string(),
            }),
            Format::Detailed => self.detailed(&mut text),
            Format::WithFeedback => self.detailed(&mut text).and_then(|()| self.help(&mut text)),
            Format::Compact => self.compact(&mut text),
        };
        text
    }

    /// Rows of cells, boxes apart; `width` is that of a cell whose number has one digit.
    fn grid(&self, text: &mut String, width: usize, cell: impl Fn(&Self, usize, usize) -> String) -> std::fmt::Result {
        let (n, b) = (self.current.n(), self.current.b());
        let rule = "-".repeat((width + 1) * n + b - 1);
        for row in 0..n {
            if row > 0 && row % b == 0 {
                writeln!(text, "{rule}")?;
            }
            let mut line = String::new();
            for col in 0..n {
                if col > 0 && col % b == 0 {
                    line.push_str("| ");
                }
                write!(line, "{} ", cell(self, row, col))?;
            }
            let end = if row + 1 < n { "\n" } else { "" };
            write!(text, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }

    fn detailed(&self, text: &mut String) -> std::fmt::Result {
        let (line, n) = ("=".repeat(50), self.current.n());
        writeln!(text, "{line}\nSUDOKU {n}x{n}\n{line}")?;
        self.grid(text, 2, |view, row, col| match view.current.at(row, col) {
            0 => " . ".to_owned(),
            number if view.conflicts && view.current.is_conflicting(row, col) => format!("*{number}*"),
            number if view.initial.at(row, col) != 0 => format!("[{number}]"),
            number => format!(" {number} "),
        })?;
        write!(text, "\n\nLegend: [n] given, n placed, *n* in conflict, . empty")?;
        if !self.feedback.is_empty() {
            write!(text, "\n\n{}", self.feedback)?;
        }
        Ok(())
    }

    fn cells(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let n = self.current.n();
        (0..n * n).map(move |cell| (cell / n, cell % n))
    }

    fn help(&self, text: &mut String) -> std::fmt::Result {
        let (n, filled, given) = (self.current.n(), self.current.n_filled(), self.initial.n_filled());
        if self.conflicts {
            let in_conflict: Vec<String> = self
                .cells()
                .filter(|(row, col)| self.current.is_conflicting(*row, *col))
                .map(|(row, col)| format!("({}, {})", row + 1, col + 1))
                .collect();
            if !in_conflict.is_empty() {
                write!(text, "\n\nIn conflict: {}", in_conflict.join(", "))?;
            }
        }
        if self.valid_numbers && n * n - filled <= FEW && filled < n * n {
            write!(text, "\n\nNumbers that fit:")?;
            for (row, col) in self.cells() {
                let fitting = self.current.fitting(row, col);
                if !fitting.is_empty() {
                    write!(text, "\n  ({}, {}): {fitting:?}", row + 1, col + 1)?;
                }
            }
        }
        let (step, most) = self.steps;
        write!(text, "\n\nProgress: {filled}/{} cells filled ({given} initial, {} placed)", n * n, filled - given)?;
        write!(text, "\nSteps: {step}/{most}")
    }

    fn compact(&self, text: &mut String) -> std::fmt::Result {
        for row in self.current.rows() {
            for number in row {
                // Beyond 9 a letter, so that every cell is one character.
                text.push(match number {
                    0 => '.',
                    number => char::from_digit(u32::from(number), 17).unwrap_or('?'),
                });
            }
            text.push('\n');
        }
        write!(text, "empty {}", self.current.n() * self.current.n() - self.current.n_filled())
    }
}

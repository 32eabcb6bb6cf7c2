//! What the tasks on a board of cells share: directions, names of moves, symbols, and the formats of the observation.
//!
//! It knows rows, columns and symbols; what a cell means is the task's affair.

use crate::Legend;
use crate::settings::Reader;
use serde_json::Value;
use std::fmt::Write;

/// A cell as (row, column), counted from zero at the top left.
pub type Cell = (usize, usize);

/// One of the four moves on a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One column to the left.
    Left,
    /// One column to the right.
    Right,
}

impl Direction {
    /// All four, in the order Up, Down, Left, Right.
    pub const ALL: [Direction; 4] = [Direction::Up, Direction::Down, Direction::Left, Direction::Right];

    /// The cell one further in this direction, if the board of that size has one.
    pub fn from_cell(self, (row, col): Cell, (rows, cols): (usize, usize)) -> Option<Cell> {
        match self {
            Direction::Up => row.checked_sub(1).map(|row| (row, col)),
            Direction::Down => Some((row + 1, col)).filter(|cell| cell.0 < rows),
            Direction::Left => col.checked_sub(1).map(|col| (row, col)),
            Direction::Right => Some((row, col + 1)).filter(|cell| cell.1 < cols),
        }
    }

    /// Its plain name.
    pub fn name(self) -> &'static str {
        ["Up", "Down", "Left", "Right"][self as usize]
    }
}

/// How a board is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Grid,
    Coord,
    GridCoord,
    Compact,
    CompactNear,
}

/// The words of `observation_format`, in the order of [`Format`].
const FORMATS: [(&str, Format); 5] = [
    ("grid", Format::Grid),
    ("coord", Format::Coord),
    ("grid_coord", Format::GridCoord),
    ("compact", Format::Compact),
    ("compact_near", Format::CompactNear),
];

/// What the settings tables say of `observation_format`.
pub(crate) const FORMAT_MEANING: &str = "grid (rows of symbols), coord (lists of coordinates), grid_coord (both), compact \
     (rows, then `Player r c ...` in a line; the check mark is written *), compact_near (compact, then the symbol on \
     each side of the player)";

impl Format {
    pub(crate) fn read(reader: &mut Reader) -> Self {
        FORMATS[reader.choice("observation_format", &FORMATS.map(|(word, _)| word))].1
    }

    fn is_compact(self) -> bool {
        matches!(self, Format::Compact | Format::CompactNear)
    }
}

/// The symbol and meaning of each cell code.
#[derive(Clone, Debug)]
pub(crate) struct Symbols {
    symbols: Vec<char>,
    meanings: Vec<String>,
}

impl Symbols {
    /// Reads `grid_lookup` (code → symbol; codes left out keep their default) and `grid_vocab` (symbol → meaning).
    pub(crate) fn read(reader: &mut Reader, format: Format, defaults: &[(char, &str)]) -> Self {
        let mut symbols: Vec<char> = defaults.iter().map(|(symbol, _)| *symbol).collect();
        let mut meanings: Vec<String> = defaults.iter().map(|(_, meaning)| (*meaning).to_owned()).collect();
        let last = symbols.len() - 1;
        let must_be = format!("a map from the codes 0 to {last} to one visible character each");
        let given: Vec<(usize, char)> = reader.read("grid_lookup", &must_be, |value| {
            let pair = |(code, symbol): (&String, &Value)| Some((code_of(code, last)?, one_char(symbol.as_str()?)?));
            value.as_object()?.iter().map(pair).collect()
        });
        given.into_iter().for_each(|(code, symbol)| symbols[code] = symbol);
        if format.is_compact() {
            // One byte a cell, so that any tokenizer can give every cell one token.
            symbols.iter_mut().filter(|symbol| **symbol == '√').for_each(|symbol| *symbol = '*');
            if let Some(symbol) = symbols.iter().find(|symbol| !symbol.is_ascii()) {
                reader.problem("grid_lookup", format!("`{symbol}` is not ASCII, which the compact formats need"));
            }
        }
        if let Some(i) = (1..symbols.len()).find(|i| symbols[..*i].contains(&symbols[*i])) {
            reader.problem("grid_lookup", format!("`{}` stands for two codes; each needs its own symbol", symbols[i]));
        }
        let must_be = "null or a map from symbols of the grid to their meanings";
        let given: Vec<(usize, String)> = reader.read("grid_vocab", must_be, |value| {
            let code = |symbol: &str| symbols.iter().position(|known| one_char(symbol) == Some(*known));
            let pair = |(symbol, meaning): (&String, &Value)| Some((code(symbol)?, meaning.as_str()?.to_owned()));
            if value.is_null() { Some(Vec::new()) } else { value.as_object()?.iter().map(pair).collect() }
        });
        given.into_iter().for_each(|(code, meaning)| meanings[code] = meaning);
        Symbols { symbols, meanings }
    }

    pub(crate) fn of(&self, code: u8) -> char {
        self.symbols[code as usize]
    }

    /// The legend of a board of that size told in that format.
    pub(crate) fn legend(&self, format: Format, (rows, cols): (usize, usize)) -> Legend {
        let pairs = self.symbols.iter().zip(&self.meanings);
        let symbols = match format {
            Format::Coord => Vec::new(),
            _ => pairs.map(|(symbol, meaning)| (symbol.to_string(), meaning.clone())).collect(),
        };
        let (shape, row, col) = match format {
            Format::Grid => return Legend { symbols, coordinates: None },
            Format::Coord | Format::GridCoord => ("(row, column)", rows - 1, cols - 1),
            Format::Compact | Format::CompactNear => ("row and column", rows - 1, cols - 1),
        };
        let coordinates = format!(
            "Places are given as {shape}, counted from zero at the top left; the bottom right cell is at row {row}, column {col}."
        );
        Legend { symbols, coordinates: Some(coordinates) }
    }
}

fn code_of(text: &str, last: usize) -> Option<usize> {
    text.parse().ok().filter(|code| *code <= last)
}

fn one_char(text: &str) -> Option<char> {
    let mut chars = text.chars();
    let first = chars.next().filter(|c| !c.is_whitespace() && !c.is_control());
    first.filter(|_| chars.next().is_none())
}

/// The names of the four moves, in the order of their ids 1 to 4.
#[derive(Clone, Debug)]
pub(crate) struct MoveNames([(String, Direction); 4]);

impl MoveNames {
    /// Reads `action_lookup` (id → name; ids left out keep the direction's own name).
    pub(crate) fn read(reader: &mut Reader, order: [Direction; 4]) -> Self {
        let mut names = order.map(|direction| (direction.name().to_owned(), direction));
        let must_be = "a map from the ids 1 to 4 to names, without spaces around them";
        let given: Vec<(usize, String)> = reader.read("action_lookup", must_be, |value| {
            let visible = |name: &str| !name.is_empty() && name.trim() == name && !name.contains(char::is_control);
            let pair = |(id, name): (&String, &Value)| {
                let name = name.as_str().filter(|name| visible(name))?;
                Some((code_of(id, 4)?.checked_sub(1)?, name.to_owned()))
            };
            value.as_object()?.iter().map(pair).collect()
        });
        given.into_iter().for_each(|(id, name)| names[id].0 = name);
        if let Some(i) = (1..4).find(|i| names[..*i].iter().any(|(name, _)| name.eq_ignore_ascii_case(&names[*i].0))) {
            reader.problem("action_lookup", format!("`{}` names two moves; each needs its own name", names[i].0));
        }
        MoveNames(names)
    }

    pub(crate) fn find(&self, text: &str) -> Option<Direction> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, direction)| *direction)
    }

    pub(crate) fn name(&self, wanted: Direction) -> &str {
        self.0.iter().find(|(_, direction)| *direction == wanted).map_or(wanted.name(), |(name, _)| name)
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The names of several moves, in order.
    pub(crate) fn list(&self, moves: &[Direction]) -> Vec<String> {
        moves.iter().map(|direction| self.name(*direction).to_owned()).collect()
    }
}

/// A board to be told. The lists are functions, so that a format which needs none of them pays for none.
pub(crate) struct View<'a> {
    /// (rows, columns).
    pub(crate) size: (usize, usize),
    /// The symbol drawn at a cell.
    pub(crate) symbol: &'a dyn Fn(Cell) -> char,
    /// Where the player stands.
    pub(crate) player: Cell,
    /// For the formats with coordinates: each label with its cells in row-major order; empty lists are left out.
    pub(crate) lists: &'a dyn Fn() -> Vec<(&'static str, Vec<Cell>)>,
    /// For the compact formats: one word and its cell after the other.
    pub(crate) words: &'a dyn Fn() -> Vec<(&'static str, Cell)>,
}

impl View<'_> {
    pub(crate) fn render(&self, format: Format) -> String {
        let mut text = String::with_capacity(64 + 2 * (self.size.1 + 1) * self.size.0);
        // Writing to a string cannot fail.
        let _ = match format {
            Format::Grid => self.draw(&mut text),
            Format::Coord => self.list(&mut text),
            Format::GridCoord => {
                text.push_str("Coordinates: \n");
                let _ = self.list(&mut text);
                text.push_str("\nGrid Map: \n");
                self.draw(&mut text)
            }
            Format::Compact => self.tell(&mut text, false),
            Format::CompactNear => self.tell(&mut text, true),
        };
        text
    }

    fn draw(&self, text: &mut String) -> std::fmt::Result {
        for row in 0..self.size.0 {
            if row > 0 {
                text.push('\n');
            }
            text.extend((0..self.size.1).map(|col| (self.symbol)((row, col))));
        }
        Ok(())
    }

    fn list(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "Board size: {} rows x {} cols (zero-indexed).", self.size.0, self.size.1)?;
        for (label, cells) in (self.lists)().iter().filter(|(_, cells)| !cells.is_empty()) {
            write!(text, "\n{label}: ")?;
            for (i, (row, col)) in cells.iter().enumerate() {
                write!(text, "{}({row}, {col})", if i > 0 { ", " } else { "" })?;
            }
        }
        Ok(())
    }

    fn tell(&self, text: &mut String, near: bool) -> std::fmt::Result {
        self.draw(text)?;
        for (i, (word, (row, col))) in (self.words)().iter().enumerate() {
            write!(text, "{}{word} {row} {col}", if i == 0 { '\n' } else { ' ' })?;
        }
        if near {
            text.push_str(" near");
            for direction in Direction::ALL {
                let symbol = direction.from_cell(self.player, self.size).map_or('#', self.symbol);
                write!(text, " {} {symbol}", direction.name())?;
            }
        }
        Ok(())
    }
}

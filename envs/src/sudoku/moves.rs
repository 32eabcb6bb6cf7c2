//! What a move is called: `place 5 at row 1 col 2` and its kin.
//!
//! It knows words and numbers, and nothing of grids. RAGEN reads moves with six patterns, each looked for anywhere in the text
//! and tried in order; so does this, in time that grows with the text and no faster.

/// A move as it was named; rows, columns and numbers from 1, [`usize::MAX`] where a number is larger than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The row.
    pub row: usize,
    /// The column.
    pub col: usize,
    /// The number.
    pub number: usize,
}

#[derive(Clone, Copy)]
enum Part {
    /// This text.
    Text(&'static str),
    /// White space, at least so much.
    Space(usize),
    /// Digits.
    Number,
}

use Part::{Number, Space, Text};

/// `place N at row R col C`
#[rustfmt::skip]
const IN_WORDS: &[Part] = &[
    Text("place"), Space(1), Number, Space(1), Text("at"), Space(1), Text("row"), Space(1), Number, Space(1), Text("col"), Space(1), Number,
];
/// `place N at (R, C)`
#[rustfmt::skip]
const IN_BRACKETS: &[Part] = &[
    Text("place"), Space(1), Number, Space(1), Text("at"), Space(1), Text("("), Number, Text(","), Space(0), Number, Text(")"),
];
/// `place N at R, C`
const PLACED: &[Part] =
    &[Text("place"), Space(1), Number, Space(1), Text("at"), Space(1), Number, Text(","), Space(0), Number];
/// `N at R, C`
const SHORT: &[Part] = &[Number, Space(1), Text("at"), Space(1), Number, Text(","), Space(0), Number];
/// `(A, B, C)`
const TRIPLE: &[Part] = &[Text("("), Number, Text(","), Space(0), Number, Text(","), Space(0), Number, Text(")")];
/// `A, B, C`
const BARE: &[Part] = &[Number, Text(","), Space(0), Number, Text(","), Space(0), Number];

/// The move that a text names. A triple is row, column, number; with `parity` it is number, row, column if the text has
/// `at` or `place` anywhere, as in RAGEN.
pub fn read(text: &str, parity: bool) -> Option<Move> {
    let text = text.trim().to_lowercase();
    for pattern in [IN_WORDS, IN_BRACKETS, PLACED, SHORT] {
        if let Some([number, row, col]) = find(pattern, &text) {
            return Some(Move { row, col, number });
        }
    }
    let flipped = parity && (text.contains("at") || text.contains("place"));
    let [a, b, c] = find(TRIPLE, &text).or_else(|| find(BARE, &text))?;
    Some(if flipped { Move { number: a, row: b, col: c } } else { Move { row: a, col: b, number: c } })
}

/// The three numbers of the first place where a pattern fits.
fn find(pattern: &[Part], text: &str) -> Option<[usize; 3]> {
    let bytes = text.as_bytes();
    let starts = text.char_indices().map(|(at, _)| at);
    // What fits from the middle of a number fits from its beginning, and that was tried.
    let fresh = starts.filter(|at| *at == 0 || !(bytes[*at].is_ascii_digit() && bytes[at - 1].is_ascii_digit()));
    fresh.into_iter().find_map(|at| matched(pattern, &text[at..]))
}

fn matched(pattern: &[Part], mut rest: &str) -> Option<[usize; 3]> {
    let (mut numbers, mut n) = ([0; 3], 0);
    for part in pattern {
        match part {
            Text(wanted) => rest = rest.strip_prefix(wanted)?,
            Space(least) => {
                let after = rest.trim_start();
                if rest.len() - after.len() < *least {
                    return None;
                }
                rest = after;
            }
            Number => {
                let len = rest.bytes().take_while(u8::is_ascii_digit).count();
                if len == 0 {
                    return None;
                }
                numbers[n] = rest[..len].parse().unwrap_or(usize::MAX);
                n += 1;
                rest = &rest[len..];
            }
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_anywhere_in_a_text() {
        let wanted = Some(Move { row: 1, col: 2, number: 3 });
        for text in [
            "place 3 at row 1 col 2",
            "I PLACE  3 at ROW 1\tcol 2, surely",
            "place 3 at (1,2)",
            "place 3 at 1, 2",
            "3 at 1,2",
            "(1, 2, 3)",
            "so 1,2,  3!",
            "  [1,2,3] ",
        ] {
            assert_eq!(read(text, false), wanted, "{text}");
        }
        for text in ["", "1 2 3", "place 3 at row 1, col 2", "place three at 1 2", "1;2;3", "3 at row 1 col 2", "(1,2)"]
        {
            assert_eq!(read(text, false), None, "{text}");
        }
        assert_eq!(read("99999999999999999999,1,1", false).unwrap().row, usize::MAX);
    }

    #[test]
    fn a_triple_is_turned_round_in_parity_only() {
        let text = "what about 1,2,3";
        assert_eq!(read(text, false), Some(Move { row: 1, col: 2, number: 3 }));
        assert_eq!(read(text, true), Some(Move { number: 1, row: 2, col: 3 }));
    }

    #[test]
    fn a_megabyte_is_read_in_no_time() {
        for text in ["9", " ", "place ", "(1,", "1,"].map(|piece| piece.repeat(1_000_000 / piece.len())) {
            assert!(read(&text, false).is_none_or(|found| found.row > 9 || text.starts_with("1,")));
        }
    }
}

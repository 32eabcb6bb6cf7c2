//! Arithmetic of an answer: what an expression is worth, and one that reaches a target.
//!
//! It knows integers, `+ - * /`, signs and parentheses, and nothing of points.

/// Parentheses and runs of signs nested deeper than this are no expression.
const DEPTH: usize = 200;

/// The maximal runs of digits of a text, without leading zeros: numbers of any length, compared by value.
pub(super) fn numbers(text: &str) -> Vec<&str> {
    let runs = text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    runs.map(|run| if run.bytes().all(|b| b == b'0') { "0" } else { run.trim_start_matches('0') }).collect()
}

/// The value of an arithmetic expression; `None` if the text is none, or where it divides by zero.
///
/// Whitespace may stand between signs and numbers, line breaks only inside parentheses; a number with a leading zero
/// (`07`) is none.
pub fn evaluate(text: &str) -> Option<f64> {
    let mut parser = Parser { text: text.trim_ascii().as_bytes(), at: 0, depth: 0 };
    let value = parser.sum()?;
    (parser.peek().is_none() && value.is_finite()).then_some(value)
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    /// The next sign or digit; spaces before it are passed over.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.text.get(self.at)? {
                b' ' | b'\t' | b'\x0c' => self.at += 1,
                b'\n' | b'\r' if self.depth > 0 => self.at += 1,
                other => return Some(other),
            }
        }
    }

    fn sum(&mut self) -> Option<f64> {
        let mut value = self.product()?;
        while let Some(sign @ (b'+' | b'-')) = self.peek() {
            self.at += 1;
            let term = self.product()?;
            value += if sign == b'+' { term } else { -term };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<f64> {
        let mut value = self.factor()?;
        while let Some(sign @ (b'*' | b'/')) = self.peek() {
            self.at += 1;
            let factor = self.factor()?;
            if sign == b'/' && factor == 0.0 {
                return None;
            }
            value = if sign == b'*' { value * factor } else { value / factor };
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<f64> {
        let mut sign = 1.0;
        while let Some(b @ (b'+' | b'-')) = self.peek() {
            self.at += 1;
            sign = if b == b'-' { -sign } else { sign };
        }
        match self.peek()? {
            b'(' => {
                self.depth += 1;
                if self.depth > DEPTH {
                    return None;
                }
                self.at += 1;
                let value = self.sum()?;
                let closed = self.peek()? == b')';
                self.at += 1;
                self.depth -= 1;
                closed.then_some(sign * value)
            }
            b'0'..=b'9' => {
                let start = self.at;
                while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
                    self.at += 1;
                }
                let digits = std::str::from_utf8(&self.text[start..self.at]).ok()?;
                let is_written_well = !digits.starts_with('0') || digits.bytes().all(|b| b == b'0');
                is_written_well.then(|| digits.parse().ok()).flatten().map(|value: f64| sign * value)
            }
            _ => None,
        }
    }
}

/// Whether some signs before the first four numbers make them sum to the target: which rows of a data set are kept.
pub fn has_signed_sum(nums: &[i64], target: i64) -> bool {
    let nums = &nums[..nums.len().min(4)];
    (0..1_u32 << nums.len()).any(|minus| signed_sum(nums, minus) == i128::from(target))
}

fn signed_sum(nums: &[i64], minus: u32) -> i128 {
    let signed = |(i, n): (usize, &i64)| if minus >> i & 1 == 1 { -i128::from(*n) } else { i128::from(*n) };
    nums.iter().enumerate().map(signed).sum()
}

/// The most numbers that a solution is looked for.
pub(super) const MOST_NUMBERS: usize = 6;

/// An expression of all the numbers, each once, that is worth the target: a sum with signs if there is one, else any.
/// `None` if there is none, or if there are more than six numbers.
pub fn solve(nums: &[i64], target: i64) -> Option<String> {
    if nums.is_empty() || nums.len() > MOST_NUMBERS {
        return None;
    }
    let minus = (0..1_u32 << nums.len()).find(|minus| signed_sum(nums, *minus) == i128::from(target));
    if let Some(minus) = minus {
        return Some(write_sum(nums, minus));
    }
    let leaves: Vec<Part> = nums.iter().map(|n| Part { value: *n as f64, text: n.to_string(), rank: 2 }).collect();
    combine(&leaves, target as f64)
}

/// The sum with those signs, a positive number first if there is one.
pub(super) fn write_sum(nums: &[i64], minus: u32) -> String {
    let is_minus = |i: &usize| minus >> i & 1 == 1;
    let order = (0..nums.len()).filter(|i| !is_minus(i)).chain((0..nums.len()).filter(is_minus));
    let mut text = String::new();
    for i in order {
        text += if is_minus(&i) {
            "-"
        } else if text.is_empty() {
            ""
        } else {
            "+"
        };
        text += &nums[i].to_string();
    }
    text
}

/// A partial expression; `rank` is 0 for a sum, 1 for a product, 2 for a number.
#[derive(Clone)]
struct Part {
    value: f64,
    text: String,
    rank: u8,
}

impl Part {
    /// Its text where at least that rank may stand without parentheses.
    fn within(&self, rank: u8) -> String {
        if self.rank >= rank { self.text.clone() } else { format!("({})", self.text) }
    }

    fn join(a: &Part, sign: char, b: &Part) -> Option<Part> {
        let (value, rank, right) = match sign {
            '+' => (a.value + b.value, 0, 0),
            '-' => (a.value - b.value, 0, 1),
            '*' => (a.value * b.value, 1, 1),
            _ => ((b.value != 0.0).then(|| a.value / b.value)?, 1, 2),
        };
        Some(Part { value, text: format!("{}{sign}{}", a.within(rank), b.within(right)), rank })
    }
}

/// Joins two of the parts in every way, until one is left that is worth the target.
fn combine(parts: &[Part], target: f64) -> Option<String> {
    if let [only] = parts {
        return ((only.value - target).abs() < 1e-9).then(|| only.text.clone());
    }
    for i in 0..parts.len() {
        for j in (0..parts.len()).filter(|j| *j != i) {
            let rest = parts.iter().enumerate().filter(|(k, _)| *k != i && *k != j).map(|(_, part)| part.clone());
            let rest: Vec<Part> = rest.collect();
            // What commutes is tried in one order.
            for sign in ['+', '*', '-', '/'].into_iter().filter(|sign| i < j || matches!(sign, '-' | '/')) {
                let Some(joined) = Part::join(&parts[i], sign, &parts[j]) else { continue };
                let mut next = rest.clone();
                next.push(joined);
                if let Some(found) = combine(&next, target) {
                    return Some(found);
                }
            }
        }
    }
    None
}

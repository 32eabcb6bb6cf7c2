//! Whether an answer is the label: as MetaMathQA compares, and as the static question sets do.
//!
//! It knows two texts, and nothing of episodes.

/// How an answer is compared with the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Equal but for whitespace and case.
    Strict,
    /// Strict, or numbers of equal value: `0.5`, `1/2`, `\frac{1}{2}`, `50%`, `$1,000$`, `\boxed{7}`, `12.`
    Lenient,
    /// Equal but for whitespace, case and ASCII punctuation.
    Exact,
    /// The first number of each, or equal texts.
    Numeric,
    /// The letter A to D of each.
    Choice,
}

impl Scoring {
    /// The words of the setting, in the order of [`Scoring::ALL`].
    pub(super) const WORDS: [&str; 5] = ["strict", "lenient", "exact", "numeric", "choice"];
    pub(super) const ALL: [Scoring; 5] =
        [Scoring::Strict, Scoring::Lenient, Scoring::Exact, Scoring::Numeric, Scoring::Choice];

    /// Whether the answer is right; an empty label has no right answer. `parity` reads numbers without sign and commas,
    /// and choices inside words, as RAGEN does.
    pub fn is_correct(self, answer: &str, label: &str, parity: bool) -> bool {
        if squeezed(label).is_empty() {
            return false;
        }
        match self {
            Scoring::Strict => squeezed(answer) == squeezed(label),
            Scoring::Lenient => {
                let equal = |(a, b): (f64, f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
                squeezed(answer) == squeezed(label) || value(answer).zip(value(label)).is_some_and(equal)
            }
            Scoring::Exact => normalised(answer) == normalised(label),
            Scoring::Numeric => {
                let is_same_text = match parity {
                    true => normalised(answer) == normalised(label),
                    false => squeezed(answer) == squeezed(label),
                };
                let numbers = number(answer, parity).zip(number(label, parity));
                is_same_text || numbers.is_some_and(|(a, b)| a == b)
            }
            Scoring::Choice => choice(answer, parity).is_some() && choice(answer, parity) == choice(label, parity),
        }
    }
}

/// Without whitespace, in lower case.
pub(super) fn squeezed(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

/// Without whitespace and ASCII punctuation, in lower case.
pub fn normalised(text: &str) -> String {
    squeezed(text).chars().filter(|c| !c.is_ascii_punctuation()).collect()
}

/// The first number of a text; `parity` leaves out its sign and ends it at a comma.
pub fn number(text: &str, parity: bool) -> Option<f64> {
    let text = if parity { text.to_owned() } else { text.replace(',', "") };
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let is_part = |(i, c): (usize, char)| {
        let is_point = c == '.' && text[start + i + 1..].starts_with(|c: char| c.is_ascii_digit());
        c.is_ascii_digit() || is_point
    };
    let digits: String = text[start..].char_indices().take_while(|at| is_part(*at)).map(|(_, c)| c).collect();
    // A second point ends the number.
    let end = digits.match_indices('.').nth(1).map_or(digits.len(), |(i, _)| i);
    let value: f64 = digits[..end].parse().ok()?;
    let is_negative = !parity && text[..start].trim_end_matches('$').ends_with('-');
    Some(if is_negative { -value } else { value })
}

/// The letter A to D that a text chooses: one that stands alone, in upper case before lower case; with `parity` the
/// first such letter anywhere, be it inside a word.
pub fn choice(text: &str, parity: bool) -> Option<char> {
    let chosen = |word: &str| word.chars().next().filter(|c| word.len() == 1 && ('A'..='D').contains(c));
    let upper = text.to_uppercase();
    if parity {
        return upper.chars().find(|c| ('A'..='D').contains(c));
    }
    let words = |text: &str| text.split(|c: char| !c.is_alphanumeric()).find_map(chosen);
    words(text).or_else(|| words(&upper))
}

/// The answer that a free text leads up to: what follows a cue in its line, else the last line.
pub fn extract(text: &str) -> String {
    const CUES: [&str; 5] = ["the answer is", "final answer", "answer:", "therefore,", "thus,"];
    let folded = text.to_ascii_lowercase();
    let after = CUES.iter().find_map(|cue| folded.find(cue).map(|at| &text[at + cue.len()..]));
    let line = match after {
        Some(rest) => rest.trim_start_matches([':', ' ']).lines().next(),
        None => text.trim().lines().last(),
    };
    line.unwrap_or_default().trim().to_owned()
}

/// The value of a number as mathematicians write it.
fn value(text: &str) -> Option<f64> {
    let mut text = squeezed(text);
    text.retain(|c| !matches!(c, '$' | ','));
    let text = text.strip_suffix('.').unwrap_or(&text);
    let text = text.strip_prefix("\\boxed{").and_then(|inner| inner.strip_suffix('}')).unwrap_or(text);
    let (text, unit) = match text.strip_suffix("\\%").or_else(|| text.strip_suffix('%')) {
        Some(percent) => (percent, 0.01),
        None => (text, 1.0),
    };
    let (text, sign) = text.strip_prefix('-').map_or((text, 1.0), |rest| (rest, -1.0));
    let latex = |text: &str| {
        let inner = text.strip_prefix("\\frac{").or_else(|| text.strip_prefix("\\dfrac{"))?;
        let (above, below) = inner.strip_suffix('}')?.split_once("}{")?;
        Some((above.to_owned(), below.to_owned()))
    };
    let parts = latex(text).or_else(|| text.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())));
    let plain = |text: &str| -> Option<f64> {
        let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        is_plain.then(|| text.parse().ok()).flatten()
    };
    let value = match parts {
        Some((above, below)) => plain(&above)? / plain(&below).filter(|below| *below != 0.0)?,
        None => plain(text)?,
    };
    Some(sign * unit * value)
}

//! How an answer is read and scored: HotpotQA's exact match and F1, as RAGEN uses them.
//!
//! It knows texts and nothing of episodes.

use std::collections::BTreeMap;

/// Lower case, without ASCII punctuation and the articles a, an, the; single spaces.
pub fn normalise(text: &str) -> String {
    let kept: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let words = kept.split_whitespace().filter(|word| !["a", "an", "the"].contains(word));
    words.collect::<Vec<_>>().join(" ")
}

/// How well an answer agrees with the best of several truths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// The truth that it agrees with best; empty if with none.
    pub best: String,
    /// Equal when normalised.
    pub exact: bool,
    /// The harmonic mean of the two below.
    pub f1: f64,
    /// Share of the answer's words that are in the truth.
    pub precision: f64,
    /// Share of the truth's words that are in the answer.
    pub recall: f64,
}

/// Compares an answer with each truth. `yes`, `no` and `noanswer` agree with nothing but themselves.
pub fn agreement(answer: &str, truths: &[String]) -> Agreement {
    let said = normalise(answer);
    let mut best = Agreement::default();
    for truth in truths {
        let wanted = normalise(truth);
        if said == wanted {
            return Agreement { best: truth.clone(), exact: true, f1: 1.0, precision: 1.0, recall: 1.0 };
        }
        if [&said, &wanted].iter().any(|text| ["yes", "no", "noanswer"].contains(&text.as_str())) {
            continue;
        }
        let count = |text: &str| {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            text.split(' ')
                .filter(|word| !word.is_empty())
                .for_each(|word| *counts.entry(word.into()).or_default() += 1);
            counts
        };
        let (ours, theirs) = (count(&said), count(&wanted));
        let common: usize = ours.iter().map(|(word, n)| (*n).min(theirs.get(word).copied().unwrap_or(0))).sum();
        if common == 0 {
            continue;
        }
        let share = |counts: &BTreeMap<String, usize>| common as f64 / counts.values().sum::<usize>() as f64;
        let (precision, recall) = (share(&ours), share(&theirs));
        let f1 = 2.0 * precision * recall / (precision + recall);
        if f1 > best.f1 {
            best = Agreement { best: truth.clone(), exact: false, f1, precision, recall };
        }
    }
    best
}

/// The answer in a text that is no action: what is boxed, else what is set in bold or italics, else what follows "answer is", else what
/// follows "therefore", "thus", "so" or "hence" (also inside a word, as in RAGEN), else the first sentence.
pub fn extract(text: &str) -> String {
    let text = without_thoughts(text).split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(inside) = text.split_once("\\boxed{").and_then(|(_, rest)| rest.split_once('}')) {
        return inside.0.trim().to_owned();
    }
    if let Some(emphasised) = emphasised(&text) {
        return emphasised;
    }
    for cues in [&["answer is"][..], &["therefore", "thus", "so", "hence"]] {
        if let Some(found) = after_cue(&text, cues).filter(|found| found.chars().count() > 3) {
            return found;
        }
    }
    let sentences = || text.split(['.', '!', '?']).map(str::trim);
    let sentence = sentences().find(|sentence| sentence.chars().count() > 5);
    sentence.map_or_else(|| text.chars().take(100).collect(), str::to_owned)
}

fn without_thoughts(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("<think>") {
        let Some((_, behind)) = after.split_once("</think>") else { break };
        kept.push_str(before);
        rest = behind;
    }
    kept + rest
}

/// The first span between stars (one or two before it, one behind) that is longer than two characters and has a letter or digit.
fn emphasised(text: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (_, after) = rest.split_once('*')?;
        let after = after.strip_prefix('*').unwrap_or(after);
        match after.split_once('*') {
            // No span begins here, but one may at the next star.
            Some(("", _)) => rest = after,
            Some((span, behind)) => {
                let span = span.trim();
                if span.chars().count() > 2 && span.chars().any(|c| c.is_alphanumeric() || c == '_') {
                    return Some(span.to_owned());
                }
                rest = behind;
            }
            None => return None,
        }
    }
}

/// What follows the first of the cues up to the end of the sentence, without what is no letter or digit at its ends.
fn after_cue(text: &str, cues: &[&str]) -> Option<String> {
    // ASCII lower case keeps every position.
    let lower = text.to_ascii_lowercase();
    let found = cues.iter().filter_map(|cue| Some((lower.find(cue)?, cue.len())));
    let (at, len) = found.min_by_key(|(at, len)| (*at, usize::MAX - len))?;
    let rest = &text[at + len..];
    let sentence = rest.split(['.', '!', '?']).next()?;
    Some(sentence.trim_matches(|c: char| !(c.is_alphanumeric() || c == '_')).to_owned())
}

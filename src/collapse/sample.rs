//! Which reasonings are scored after which prompts.

use crate::collapse::CollapseConfig;
use ragen_models::random::Key;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;

/// How many pairs are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleCount {
    /// Every pair there is.
    All,
    /// At most so many, drawn without replacement.
    AtMost(usize),
}

impl Serialize for SampleCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            SampleCount::All => serializer.serialize_str("all"),
            SampleCount::AtMost(n) => serializer.serialize_u64(*n as u64),
        }
    }
}

impl<'de> Deserialize<'de> for SampleCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = SampleCount;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number above 0, or \"all\"")
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<SampleCount, E> {
                match usize::try_from(n) {
                    Ok(n) if n > 0 => Ok(SampleCount::AtMost(n)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(n), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<SampleCount, E> {
                match u64::try_from(n) {
                    Ok(n) => self.visit_u64(n),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SampleCount, E> {
                match text {
                    "all" => Ok(SampleCount::All),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl SampleCount {
    /// How many of `n` that is.
    fn of(self, n: usize) -> usize {
        match self {
            SampleCount::All => n,
            SampleCount::AtMost(most) => n.min(most),
        }
    }
}

/// A turn: what the policy saw before its reasoning, and the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// Everything before the reasoning, the opening tag included.
    pub x: &'a [u32],
    /// The reasoning; empty if there is none or it is not closed.
    pub z: &'a [u32],
}

impl Pair<'_> {
    /// Whether there is a reasoning.
    pub fn is_valid(&self) -> bool {
        !self.z.is_empty()
    }
}

/// How many turns hold a reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// First turns.
    pub n_first: usize,
    /// First turns with a reasoning.
    pub n_first_valid: usize,
    /// All turns.
    pub n_turns: usize,
    /// All turns with a reasoning.
    pub n_turns_valid: usize,
}

impl Coverage {
    /// Counts the turns of all episodes.
    pub fn of<'a, E: AsRef<[Pair<'a>]>>(episodes: &[E]) -> Self {
        let mut found = Coverage::default();
        for turns in episodes.iter().map(AsRef::as_ref) {
            found.n_first += usize::from(!turns.is_empty());
            found.n_first_valid += usize::from(turns.first().is_some_and(Pair::is_valid));
            found.n_turns += turns.len();
            found.n_turns_valid += turns.iter().filter(|turn| turn.is_valid()).count();
        }
        found
    }

    /// Under the metrics' names; those of first turns only where they are measured.
    pub fn metrics(&self, config: &CollapseConfig) -> Vec<(String, f64)> {
        let rate = |part: usize, of: usize| part as f64 / of.max(1) as f64;
        let mut metrics = vec![("collapse/valid_thinking_rate".to_string(), rate(self.n_turns_valid, self.n_turns))];
        if config.first_turn {
            let (total, valid) = (self.n_first, self.n_first_valid);
            metrics.extend(
                [("num_total", total as f64), ("num_valid", valid as f64), ("valid_rate", rate(valid, total))]
                    .map(|(name, value)| (format!("collapse/first_turn_{name}"), value)),
            );
        }
        metrics
    }
}

/// Which reasonings are scored after which inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The pairs whose `z` is scored.
    pub rows: Vec<usize>,
    /// The pairs whose `x` they are scored after.
    pub columns: Vec<usize>,
    /// For each row the column of its own input.
    pub own: Vec<usize>,
    /// For each column the first one with the same input.
    pub input: Vec<usize>,
}

impl Selection {
    /// First turns: those with a reasoning, at most `count` of them, drawn with `key` without replacement; a column for each
    /// distinct input, in order of appearance.
    ///
    /// **Deviations** inputs are told apart by their content, so a group whose members begin differently is no obstacle (the
    /// reference drops all metrics then).
    pub fn first_turns(pairs: &[Pair<'_>], count: SampleCount, key: Key) -> Selection {
        let valid: Vec<usize> = (0..pairs.len()).filter(|&i| pairs[i].is_valid()).collect();
        let n = count.of(valid.len());
        let mut rows = valid.clone();
        if n < valid.len() {
            rows = key.permutation(valid.len()).into_iter().take(n).map(|i| valid[i]).collect();
        }
        rows.sort_unstable();
        let mut selection = Selection::default();
        let mut column_of = BTreeMap::new();
        for &row in &rows {
            let column = *column_of.entry(pairs[row].x).or_insert_with(|| {
                selection.columns.push(row);
                selection.columns.len() - 1
            });
            selection.own.push(column);
        }
        selection.input = (0..selection.columns.len()).collect();
        selection.rows = rows;
        selection
    }

    /// Turns of whole trajectories: as many draws as `count` says (at most as there are pairs), each an episode, then one of its
    /// pairs with a reasoning, both uniform and with replacement. A draw of an episode without one is passed over.
    ///
    /// Every draw is a row and a column of its own, as in the reference, so an input that was drawn twice is two columns and I(X;Z)
    /// then stays below ln N; [`Selection::n_inputs`] says how many there are.
    pub fn trajectories<'a, E: AsRef<[Pair<'a>]>>(episodes: &[E], count: SampleCount, key: Key) -> Selection {
        let mut places: Vec<Vec<usize>> = Vec::with_capacity(episodes.len());
        let (mut n_pairs, mut inputs) = (0, Vec::new());
        for turns in episodes.iter().map(AsRef::as_ref) {
            places.push((0..turns.len()).filter(|&t| turns[t].is_valid()).map(|t| n_pairs + t).collect());
            n_pairs += turns.len();
            inputs.extend(turns.iter().map(|turn| turn.x));
        }
        let mut selection = Selection::default();
        let mut column_of = BTreeMap::new();
        for draw in 0..count.of(places.iter().map(Vec::len).sum()) as u64 {
            let valid = &places[key.below(2 * draw, places.len())];
            if valid.is_empty() {
                continue;
            }
            let pair = valid[key.below(2 * draw + 1, valid.len())];
            let column = selection.columns.len();
            selection.rows.push(pair);
            selection.columns.push(pair);
            selection.own.push(column);
            selection.input.push(*column_of.entry(inputs[pair]).or_insert(column));
        }
        selection
    }

    /// Distinct inputs.
    pub fn n_inputs(&self) -> usize {
        (0..self.input.len()).filter(|&column| self.input[column] == column).count()
    }

    /// For each row the columns that it is scored after, ascending: all, or its own and `contrast` distinct other inputs
    /// drawn with `key`, if there are more.
    pub fn contrasts(&self, contrast: usize, key: Key) -> Vec<Vec<usize>> {
        let distinct: Vec<usize> = (0..self.input.len()).filter(|&column| self.input[column] == column).collect();
        if contrast == 0 || contrast + 1 >= distinct.len() {
            return vec![(0..self.columns.len()).collect(); self.rows.len()];
        }
        let of_row = |(row, &own): (usize, &usize)| {
            let others: Vec<usize> = distinct.iter().copied().filter(|&column| column != self.input[own]).collect();
            let drawn = key.with(row as u64).permutation(others.len());
            // In order of the columns, so that its place tells nothing of which one is its own.
            let mut columns: Vec<usize> = drawn.into_iter().take(contrast).map(|i| others[i]).collect();
            columns.push(self.input[own]);
            columns.sort_unstable();
            columns
        };
        self.own.iter().enumerate().map(of_row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &[u32] = &[1, 2];
    const B: &[u32] = &[1, 3];

    fn pairs() -> [Pair<'static>; 5] {
        [(B, 1), (A, 2), (B, 0), (A, 3), (B, 2)].map(|(x, n)| Pair { x, z: &[7, 8, 9][..n] })
    }

    #[test]
    fn pairs_are_keyed_by_the_content_of_their_input() {
        let pairs = pairs();
        let all = Selection::first_turns(&pairs, SampleCount::All, Key::new(1));
        assert_eq!((all.n_inputs(), all.input), (2, vec![0, 1]));
        assert_eq!((all.rows, all.columns, all.own), (vec![0, 1, 3, 4], vec![0, 1], vec![0, 1, 1, 0]));

        let some = Selection::first_turns(&pairs, SampleCount::AtMost(2), Key::new(1));
        assert_eq!(some, Selection::first_turns(&pairs, SampleCount::AtMost(2), Key::new(1)));
        assert!(some.rows.len() == 2 && some.rows[0] < some.rows[1] && !some.rows.contains(&2));
        assert_eq!(Selection::first_turns(&[], SampleCount::All, Key::new(1)), Selection::default());
    }

    #[test]
    fn coverage_counts_turns_with_a_closed_reasoning() {
        let [a, b, none, c, d] = pairs();
        let coverage = Coverage::of(&[vec![a, b], vec![none, c], vec![], vec![d]]);
        assert_eq!(coverage, Coverage { n_first: 3, n_first_valid: 2, n_turns: 5, n_turns_valid: 4 });
        let metrics: BTreeMap<_, _> = coverage.metrics(&CollapseConfig::default()).into_iter().collect();
        assert_eq!(metrics["collapse/valid_thinking_rate"], 0.8);
        assert_eq!(metrics["collapse/first_turn_valid_rate"], 2.0 / 3.0);
        let config = CollapseConfig { first_turn: false, multi_turn: true, ..CollapseConfig::default() };
        assert_eq!(coverage.metrics(&config).len(), 1);
    }

    /// An episode of one turn is drawn as often as one of four; the turns of an episode equally; one without reasoning never.
    #[test]
    fn trajectories_are_drawn_uniformly_and_then_their_turns() {
        let one: &[Pair<'_>] = &[Pair { x: A, z: &[1] }];
        let [a, b, none, c, d] = pairs();
        let episodes = [one.to_vec(), vec![a, b, none, c, d], vec![none]];
        let mut counts = [0.0f64; 7];
        let (mut total, mut passed): (f64, f64) = (0.0, 0.0);
        for seed in 0..4000 {
            let drawn = Selection::trajectories(&episodes, SampleCount::All, Key::new(seed));
            assert_eq!((&drawn.rows, drawn.own.len()), (&drawn.columns, drawn.input.len()));
            assert!(drawn.rows.len() <= 5 && drawn.n_inputs() <= 2);
            drawn.rows.iter().for_each(|&pair| counts[pair] += 1.0);
            total += 5.0;
            passed += 5.0 - drawn.rows.len() as f64;
        }
        let share = |pair: usize| counts[pair] / total;
        assert!((share(0) - 1.0 / 3.0).abs() < 0.02 && (passed / total - 1.0 / 3.0).abs() < 0.02);
        for pair in [1, 2, 4, 5] {
            assert!((share(pair) - 1.0 / 12.0).abs() < 0.01, "{counts:?}");
        }
        assert_eq!((counts[3], counts[6]), (0.0, 0.0));
        let two = Selection::trajectories(&episodes, SampleCount::AtMost(2), Key::new(3));
        assert!(two.rows.len() <= 2 && two == Selection::trajectories(&episodes, SampleCount::AtMost(2), Key::new(3)));
        assert_eq!(Selection::trajectories::<Vec<Pair<'_>>>(&[], SampleCount::All, Key::new(1)), Selection::default());
    }

    #[test]
    fn contrasts_hold_the_own_input_and_distinct_others() {
        let xs: Vec<[u32; 1]> = (0..9).map(|i| [i / 2]).collect();
        let pairs: Vec<Vec<Pair<'_>>> = xs.iter().map(|x| vec![Pair { x, z: &[1] }]).collect();
        let selection = Selection::trajectories(&pairs, SampleCount::All, Key::new(2));
        assert!(selection.n_inputs() > 2 && selection.n_inputs() < selection.columns.len(), "{selection:?}");
        let all = selection.contrasts(0, Key::new(5));
        assert!(all.iter().all(|columns| columns.len() == selection.columns.len()), "the exact form is the default");
        assert_eq!(selection.contrasts(selection.n_inputs() - 1, Key::new(5)), all, "as many as there are is all");
        let two = selection.contrasts(1, Key::new(5));
        assert_eq!(two, selection.contrasts(1, Key::new(5)));
        for (row, columns) in two.iter().enumerate() {
            let inputs: Vec<usize> = columns.iter().map(|&column| selection.input[column]).collect();
            assert!(columns.len() == 2 && inputs[0] < inputs[1], "{columns:?}");
            assert!(inputs.contains(&selection.input[selection.own[row]]));
        }
        assert!(two.iter().any(|columns| columns != &two[0]));
    }
}

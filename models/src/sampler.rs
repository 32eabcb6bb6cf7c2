//! From a row of logits to a token: temperature, top-k, top-p, min-p, and a draw from a uniform number.
//!
//! Knows one row at a time and no randomness: the caller brings the uniform number, so a draw is a function of the row
//! and of it alone. Every sum has one fixed order, whatever the instruction path.

use crate::ops::head::{RowStats, exponentials, row_stats};
use crate::random::Key;
use crate::simd::{Isa, LANES, Simd, dispatch, tree_sum_f64};
use serde::{Deserialize, Serialize};

/// Weights that are summed together before the search for the drawn token walks on.
const BLOCK: usize = 64;

/// How tokens are drawn. Order: temperature, top-k, top-p, min-p.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 is greedy (the filters are ignored then); never below.
    pub temperature: f32,
    /// Keep this many tokens; 0 is off.
    pub top_k: usize,
    /// Keep the shortest prefix of the sorted probabilities that reaches this; 1 is off.
    pub top_p: f32,
    /// Keep tokens of at least this share of the largest probability; 0 is off.
    pub min_p: f32,
}

impl Default for Sampling {
    /// The model's own distribution.
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

/// A row that is no distribution.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN or plus infinity.
    #[error("the logit of token {id} is {value}: the model has diverged")]
    NotFinite {
        /// The first such token.
        id: u32,
        /// Its logit.
        value: f32,
    },
    /// The row is empty, or every logit is minus infinity.
    #[error("no token has a finite logit")]
    Empty,
    /// The largest logit divided by the temperature is not finite.
    #[error(
        "the temperature is so small that logits divided by it are not finite: take 0, which is greedy, or a larger one"
    )]
    Temperature,
}

/// Memory that [`Sampling::filter`] and [`Sampling::draw`] reuse from row to row, and what they left there.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// e^((logit − largest) / temperature), of every token or of each kept one.
    weights: Vec<f32>,
    /// The kept ids, ascending, when `filtered`.
    kept: Vec<u32>,
    filtered: bool,
    /// What the filters sort.
    keys: Vec<u64>,
    /// Sums of `weights`, block by block.
    sums: Vec<f64>,
    total: f64,
    /// What the row comes to; `None` at temperature 0.
    stats: Option<RowStats>,
}

/// A drawn token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the distribution that it was drawn from.
    pub logp: f32,
}

/// Where a token is drawn: a row of logits, and the random number that decides.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// The row.
    pub row: usize,
    /// The random stream of the turn.
    pub key: Key,
    /// The token's position in its sequence.
    pub position: u64,
}

/// A drawn token and, when the filters dropped some, the ids that it was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The token and its log-probability.
    pub drawn: Drawn,
    /// Ascending; `None` is the whole vocabulary.
    pub kept: Option<Vec<u32>>,
}

impl Scratch {
    /// The kept ids of the last row, ascending; `None` when nothing was dropped.
    pub fn kept(&self) -> Option<&[u32]> {
        self.filtered.then_some(self.kept.as_slice())
    }

    /// The probability of each kept token of the last row, or of every token when nothing was dropped.
    pub fn probs(&self) -> impl Iterator<Item = f64> + '_ {
        self.weights.iter().map(|&w| f64::from(w) / self.total)
    }

    /// Index into the kept tokens at which the cumulative probability passes `u`.
    fn search(&self, u: f64) -> usize {
        let mut rest = u * self.total;
        let mut block = 0;
        // The last block is taken without a comparison, should rounding have carried `rest` up to the total.
        while block + 1 < self.sums.len() && rest >= self.sums[block] {
            rest -= self.sums[block];
            block += 1;
        }
        let start = block * BLOCK;
        let weights = &self.weights[start..self.weights.len().min(start + BLOCK)];
        let mut last = None;
        for (i, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            last = Some(start + i);
            rest -= f64::from(weight);
            if rest < 0.0 {
                break;
            }
        }
        // A block without weight is only met at the very end of the row: then the last token with weight was meant.
        last.or_else(|| self.weights.iter().rposition(|&weight| weight > 0.0)).unwrap_or(0)
    }
}

impl Sampling {
    /// Whether any filter is on.
    pub fn filters(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// Draws a token: the one at which the cumulative probability, by ascending id, passes `u` in [0, 1).
    ///
    /// The kept set stays in `scratch`.
    ///
    /// **Errors** [`SampleError`].
    pub fn draw(&self, isa: Isa, logits: &[f32], u: f64, scratch: &mut Scratch) -> Result<Drawn, SampleError> {
        self.filter(isa, logits, scratch)?;
        let index = scratch.search(u);
        let id = scratch.kept().map_or(index as u32, |kept| kept[index]);
        let logit = logits[id as usize];
        // The head's own functions, since training must find the same bits.
        let logp = match (&scratch.stats, scratch.kept()) {
            (None, _) => 0.0,
            (Some(stats), None) => stats.logp(logit),
            (Some(stats), Some(kept)) => stats.logp_kept(logit, stats.kept_sum(logits, kept)),
        };
        Ok(Drawn { id, logp })
    }

    /// Fills `scratch` with the distribution that this row is sampled from.
    ///
    /// - Temperature 0 keeps the token of the largest logit alone.
    /// - top-k keeps exactly min(k, finite logits) tokens.
    /// - top-p keeps the shortest prefix of what top-k left, sorted by probability and renormalised, whose sum reaches p;
    ///   at least one token.
    /// - min-p keeps tokens of at least min-p times the largest probability.
    /// - A tie goes to the lower id, everywhere. A logit of minus infinity is never kept by a filter.
    ///
    /// **Errors** [`SampleError`].
    pub fn filter(&self, isa: Isa, logits: &[f32], scratch: &mut Scratch) -> Result<(), SampleError> {
        let (largest, bad) = largest(isa, logits);
        if bad {
            let bad = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY).unwrap_or(0);
            return Err(SampleError::NotFinite { id: bad as u32, value: logits[bad] });
        }
        if largest == f32::NEG_INFINITY {
            return Err(SampleError::Empty);
        }
        let Scratch { weights, kept, filtered, stats, .. } = scratch;
        kept.clear();
        weights.clear();
        if self.temperature <= 0.0 {
            let best = logits.iter().position(|&x| x == largest).unwrap_or(0);
            kept.push(best as u32);
            weights.push(1.0);
            *filtered = true;
            *stats = None;
        } else if !(largest / self.temperature).is_finite() {
            return Err(SampleError::Temperature);
        } else {
            weights.resize(logits.len(), 0.0);
            let row = row_stats(isa, logits, self.temperature);
            exponentials(isa, weights, logits, &row);
            *stats = Some(row);
            *filtered = self.filters() && {
                self.keep(logits, weights, kept, &mut scratch.keys);
                kept.len() < logits.len()
            };
            if *filtered {
                // Ids ascend, so each weight moves to a place that was read already.
                for (i, &id) in kept.iter().enumerate() {
                    weights[i] = weights[id as usize];
                }
                weights.truncate(kept.len());
            }
        }
        scratch.total = block_sums(isa, &scratch.weights, &mut scratch.sums);
        Ok(())
    }

    /// The ids that the filters leave, ascending, into `kept`; `weights` are those of all tokens.
    fn keep(&self, logits: &[f32], weights: &[f32], kept: &mut Vec<u32>, keys: &mut Vec<u64>) {
        let finite = (0..logits.len() as u32).filter(|&id| logits[id as usize] > f32::NEG_INFINITY);
        let min_p = self.min_p.min(1.0); // The largest weight is 1, and at least one token stays.
        let heavy = |&id: &u32| weights[id as usize] >= min_p;
        if self.top_k == 0 && self.top_p >= 1.0 {
            kept.extend(finite.filter(heavy));
            return;
        }
        keys.clear();
        keys.extend(finite.map(|id| key(logits[id as usize], id)));
        if 0 < self.top_k && self.top_k < keys.len() {
            keys.select_nth_unstable(self.top_k - 1);
            keys.truncate(self.top_k);
            keys.sort_unstable(); // The sum below must not depend on how the selection went.
        }
        if self.top_p < 1.0 {
            let weight = |key: &u64| f64::from(weights[*key as u32 as usize]);
            let wanted = f64::from(self.top_p) * keys.iter().map(weight).sum::<f64>();
            let (mut sorted, mut piece, mut sum, mut len) = (0, 64, 0.0, None);
            // Mostly a few tokens reach p: sort the largest few, then more of them while they do not.
            while len.is_none() && sorted < keys.len() {
                let rest = &mut keys[sorted..];
                if piece < rest.len() {
                    rest.select_nth_unstable(piece);
                }
                let head = piece.min(rest.len());
                rest[..head].sort_unstable();
                len = rest[..head].iter().position(|key| {
                    sum += weight(key);
                    sum >= wanted
                });
                len = len.map(|i| sorted + i + 1);
                sorted += head;
                piece *= 8;
            }
            keys.truncate(len.unwrap_or(sorted));
        }
        kept.extend(keys.iter().map(|&key| key as u32).filter(heavy));
        kept.sort_unstable();
    }
}

/// A number that sorts the larger logit first, and of equal ones the lower id.
fn key(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits(); // Adding zero makes the two zeros equal.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(id)
}

/// The largest logit below infinity, and whether any is NaN or plus infinity.
#[inline(always)]
unsafe fn largest_kernel<S: Simd>(row: &[f32]) -> (f32, bool) {
    // SAFETY: lanes beyond the last whole vector are not read; the instructions are the caller's matter.
    unsafe {
        let (one, infinity) = (S::splat(1.0), S::splat(f32::INFINITY));
        let (mut largest, mut bad) = (S::splat(f32::NEG_INFINITY), S::splat(0.0));
        let mut chunks = row.chunks_exact(LANES);
        for chunk in &mut chunks {
            let x = S::load(chunk.as_ptr());
            largest = S::max(x, largest);
            bad = S::add(bad, S::zero_below(x, infinity, one)); // NaN is below nothing.
        }
        let rest = chunks.remainder().iter();
        let bad = S::lanes(bad).iter().any(|&n| n > 0.0) || rest.clone().any(|x| x.is_nan() || *x == f32::INFINITY);
        (S::lanes(largest).iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| a.max(b)), bad)
    }
}
dispatch!(fn largest(row: &[f32]) -> (f32, bool) = largest_kernel);

/// Sums of the blocks into `sums`, each of four vectors; returns the sum of all.
#[inline(always)]
unsafe fn block_sums_kernel<S: Simd>(weights: &[f32], sums: &mut Vec<f64>) -> f64 {
    sums.clear();
    let mut total = 0.0;
    for block in weights.chunks(BLOCK) {
        // SAFETY: n is the length of a chunk, at most 16; the instructions are the caller's matter.
        let lanes = unsafe {
            let mut lanes = S::splat(0.0);
            for chunk in block.chunks(LANES) {
                lanes = S::add(lanes, S::load_n(chunk.as_ptr(), chunk.len()));
            }
            S::lanes(lanes)
        };
        let sum = tree_sum_f64(lanes.map(f64::from));
        sums.push(sum);
        total += sum;
    }
    total
}
dispatch!(fn block_sums(weights: &[f32], sums: &mut Vec<f64>) -> f64 = block_sums_kernel);

#[cfg(test)]
mod tests {
    use super::*;

    fn row(stream: u64, len: usize, scale: f64) -> Vec<f32> {
        let key = Key::new(77).with(stream);
        (0..len as u64).map(|i| (scale * key.normal(i)) as f32).collect()
    }

    fn draw(sampling: &Sampling, logits: &[f32], u: f64) -> Drawn {
        sampling.draw(Isa::available()[0], logits, u, &mut Scratch::default()).unwrap()
    }

    #[test]
    fn tokens_come_as_often_as_their_probabilities_say() {
        let logits = row(0, 320, 2.0);
        for sampling in [
            Sampling::default(),
            Sampling { temperature: 0.7, ..Sampling::default() },
            Sampling { top_p: 0.9, ..Sampling::default() },
            Sampling { top_k: 30, min_p: 0.02, ..Sampling::default() },
        ] {
            let mut scratch = Scratch::default();
            let isa = Isa::available()[0];
            sampling.filter(isa, &logits, &mut scratch).unwrap();
            let mut expected = vec![0.0; logits.len()];
            let ids = scratch.kept().map_or_else(|| (0..320).collect::<Vec<_>>(), <[u32]>::to_vec);
            for (id, p) in ids.iter().zip(scratch.probs()) {
                expected[*id as usize] = p;
            }
            assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-6);
            // Evenly spaced numbers: every count must be within 1 of its share.
            let n = 100_000;
            let mut counts = vec![0.0f64; logits.len()];
            for i in 0..n {
                let drawn = sampling.draw(isa, &logits, (i as f64 + 0.5) / n as f64, &mut scratch).unwrap();
                let id = drawn.id as usize;
                assert!((f64::from(drawn.logp) - expected[id].ln()).abs() < 1e-5);
                counts[id] += 1.0;
            }
            for (count, p) in counts.iter().zip(&expected) {
                assert!((count - p * n as f64).abs() < 1.1, "{count} {}", p * n as f64);
            }
        }
    }

    #[test]
    fn the_ends_of_the_unit_interval_draw_tokens_with_weight() {
        let almost_one = 1.0 - f64::EPSILON / 2.0;
        for len in [1, 5, 63, 64, 65, 200] {
            let mut logits = row(len as u64, len, 1.0);
            assert_eq!(draw(&Sampling::default(), &logits, 0.0).id, 0);
            assert_eq!(draw(&Sampling::default(), &logits, almost_one).id, len as u32 - 1);
            if len > 2 {
                logits[0] = f32::NEG_INFINITY;
                logits[len - 1] = -1e30;
                assert_eq!(draw(&Sampling::default(), &logits, 0.0).id, 1);
                assert_eq!(draw(&Sampling::default(), &logits, almost_one).id, len as u32 - 2);
                logits[1..].fill(f32::NEG_INFINITY);
                logits[0] = -3.0;
                assert_eq!(draw(&Sampling::default(), &logits, almost_one), Drawn { id: 0, logp: 0.0 });
            }
        }
    }

    #[test]
    fn a_row_that_is_no_distribution_is_refused() {
        let isa = Isa::available()[0];
        for sampling in [Sampling::default(), Sampling { temperature: 0.0, ..Sampling::default() }] {
            let filter = |row: &[f32]| sampling.filter(isa, row, &mut Scratch::default());
            let bad = filter(&[0.0, f32::NAN]).unwrap_err();
            assert_eq!(bad.to_string(), "the logit of token 1 is NaN: the model has diverged");
            assert_eq!(filter(&[f32::INFINITY; 20]), Err(SampleError::NotFinite { id: 0, value: f32::INFINITY }));
            assert_eq!(filter(&[f32::NEG_INFINITY; 3]), Err(SampleError::Empty));
            assert_eq!(filter(&[]), Err(SampleError::Empty));
        }
        let cold = Sampling { temperature: 1e-40, ..Sampling::default() };
        for row in [[3.0, 2.0], [-3.0, -2.0], [f32::NEG_INFINITY, 1.0]] {
            assert_eq!(cold.filter(isa, &row, &mut Scratch::default()), Err(SampleError::Temperature));
        }
        assert_eq!(cold.filter(isa, &[f32::NEG_INFINITY; 2], &mut Scratch::default()), Err(SampleError::Empty));
        assert_eq!(draw(&cold, &[0.0, -1.0], 0.5), Drawn { id: 0, logp: 0.0 }, "zero divided stays zero");
    }

    #[test]
    fn instruction_paths_draw_the_same() {
        for (stream, len) in [(0, 1), (1, 31), (2, 320), (3, 5003)] {
            let logits = row(stream, len, 3.0);
            for sampling in [Sampling::default(), Sampling { temperature: 0.6, top_k: 40, top_p: 0.95, min_p: 0.001 }] {
                for u in [0.0, 0.3, 0.77, 0.999] {
                    let bits = |isa: Isa| {
                        let mut scratch = Scratch::default();
                        let drawn = sampling.draw(isa, &logits, u, &mut scratch).unwrap();
                        (drawn.id, drawn.logp.to_bits(), scratch.kept.clone(), scratch.total.to_bits())
                    };
                    assert!(Isa::available().into_iter().all(|isa| bits(isa) == bits(Isa::Plain)));
                }
            }
        }
    }

    #[test]
    fn a_partial_sort_keeps_what_a_whole_sort_keeps() {
        for stream in 0..20 {
            // Rounded, so that there are ties.
            let logits: Vec<f32> = row(stream, 3000, 1.5).iter().map(|x| (4.0 * x).round() / 4.0).collect();
            for (top_k, top_p) in [(0, 0.05), (0, 0.5), (0, 0.9), (0, 0.999), (700, 0.8), (2999, 0.3)] {
                let sampling = Sampling { top_k, top_p, ..Sampling::default() };
                let mut scratch = Scratch::default();
                sampling.filter(Isa::Plain, &logits, &mut scratch).unwrap();
                let mut order: Vec<u32> = (0..3000).collect();
                order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize])); // stable: lower id first
                order.truncate(if top_k > 0 { top_k } else { 3000 });
                let weight = |id: &u32| f64::from(logits[*id as usize]).exp();
                let total: f64 = order.iter().map(weight).sum();
                let mut sum = 0.0;
                let len = 1 + order
                    .iter()
                    .position(|id| {
                        sum += weight(id);
                        sum >= f64::from(top_p) * total
                    })
                    .unwrap();
                order.truncate(len);
                order.sort_unstable();
                assert_eq!(scratch.kept().unwrap(), order, "{stream} {top_k} {top_p}");
            }
        }
    }
}

//! Sampling: launchers of `sampling.cu`. The CPU's is `ragen_models::sampler`, and the rules are its rules.

use super::head::STATS;
use super::{Kernel, Shape, Work, args};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source {
    file: "sampling.cu",
    text: concat!(
        "#line 1 \"row_stats.cuh\"\n",
        include_str!("../../kernels/row_stats.cuh"),
        "#line 1 \"sampling.cu\"\n",
        include_str!("../../kernels/sampling.cu")
    ),
};

const THREADS: u32 = 256;

/// Warps of a block.
const WARPS: usize = 8;

/// Tokens, and blocks of tokens, that `sample_draw` sums together.
const BLOCK: usize = 64;

/// A float, a double and an id a warp.
const STATS_SHARED_BYTES: usize = WARPS * (4 + 8 + 4);

/// A key and an id a warp.
const GREEDY_SHARED_BYTES: usize = WARPS * (8 + 4);

/// A count a warp.
const KEEP_SHARED_BYTES: usize = WARPS * 4;

/// What `sample_filter` has: 16 doubles a thread, their totals, and a double a warp.
const FILTER_SHARED_BYTES: usize = 8 * (16 * (THREADS as usize + 1) + WARPS);

/// The most dynamic shared memory that every device from sm_80 on gives a block.
const LARGEST_SHARED_BYTES: usize = 99 << 10;

/// Rows of a step of decoding at which sampling is compared.
pub(crate) const SAMPLED_ROWS: usize = 64;
const ROWS: f64 = SAMPLED_ROWS as f64;

/// Kept ids of each of them at which their fetching is compared.
pub(crate) const LISTED: usize = 40;

/// The kernels of `sampling.cu`.
pub const KERNELS: &[Kernel] =
    &[UNIFORM, SAMPLE_STATS, SAMPLE_GREEDY, SAMPLE_FILTER, SAMPLE_KEEP, SAMPLE_DRAW, KEPT_LISTS];

const UNIFORM: Kernel =
    Kernel { work: |_| Work { bytes: 24.0 * ROWS, flops: ROWS }, ..Kernel::new("uniform", &SOURCE, THREADS) };
const SAMPLE_STATS: Kernel = Kernel {
    shared_bytes: |_| STATS_SHARED_BYTES,
    work: |s| Work { bytes: 4.0 * logits(s) + 44.0 * ROWS, flops: 20.0 * logits(s) },
    ..Kernel::new("sample_stats", &SOURCE, THREADS)
};
const SAMPLE_GREEDY: Kernel = Kernel {
    shared_bytes: |_| GREEDY_SHARED_BYTES,
    work: |s| Work { bytes: 4.0 * logits(s) + 20.0 * ROWS, flops: 0.0 },
    ..Kernel::new("sample_greedy", &SOURCE, THREADS)
};
const SAMPLE_FILTER: Kernel = Kernel {
    shared_bytes: |_| FILTER_SHARED_BYTES,
    // With top-p alone: the weights' sum, then 8 passes in which few tokens beyond the first are weighed.
    work: |s| Work { bytes: 4.0 * logits(s) + 44.0 * ROWS, flops: 34.0 * logits(s) },
    ..Kernel::new("sample_filter", &SOURCE, THREADS)
};
const SAMPLE_KEEP: Kernel = Kernel {
    shared_bytes: |_| KEEP_SHARED_BYTES,
    work: |s| Work { bytes: 4.0 * logits(s) + 48.0 * ROWS, flops: 0.0 },
    ..Kernel::new("sample_keep", &SOURCE, THREADS)
};
const SAMPLE_DRAW: Kernel = Kernel {
    shared_bytes: |s| draw_shared_bytes(s.vocab),
    work: |s| Work { bytes: 4.0 * logits(s) + 56.0 * ROWS, flops: 17.0 * logits(s) },
    ..Kernel::new("sample_draw", &SOURCE, THREADS)
};

const KEPT_LISTS: Kernel = Kernel {
    shared_bytes: |_| KEEP_SHARED_BYTES,
    work: |_| Work { bytes: (8.0 * LISTED as f64 + 4.0) * ROWS, flops: 0.0 },
    ..Kernel::new("kept_lists", &SOURCE, THREADS)
};

fn logits(s: &Shape) -> f64 {
    (SAMPLED_ROWS * s.vocab) as f64
}

/// A double for each block of tokens and for each run of blocks, the weights of one block, and a double a warp.
fn draw_shared_bytes(vocab: usize) -> usize {
    let blocks = vocab.div_ceil(BLOCK);
    (8 * blocks).next_multiple_of(16) + (8 * blocks.div_ceil(BLOCK)).next_multiple_of(16) + 4 * BLOCK + 8 * WARPS
}

/// How tokens are drawn. Order: temperature, top-k, top-p, min-p. A tie goes to the lower id, and a logit of minus infinity is never kept by
/// a filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy (the filters are ignored then).
    pub temperature: f32,
    /// Keep this many tokens; 0 is off.
    pub top_k: usize,
    /// Keep the shortest prefix of the sorted probabilities that reaches this; 1 is off.
    pub top_p: f32,
    /// Keep tokens of at least this share of the largest probability; 0 is off.
    pub min_p: f32,
}

impl Sampling {
    fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Whether top-k or top-p is on.
    fn cuts(&self) -> bool {
        self.top_k > 0 || self.top_p < 1.0
    }

    /// The most ids that a row can keep and that must be listed: none without filters.
    pub fn capacity(&self, vocab: usize) -> usize {
        if self.is_greedy() {
            1
        } else if self.top_k > 0 {
            self.top_k.min(vocab)
        } else if self.top_p < 1.0 || self.min_p > 0.0 {
            vocab
        } else {
            0
        }
    }
}

/// A row that is no distribution.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// A logit is NaN or plus infinity.
    #[error("logit {id} of the row is {value}, which is no distribution")]
    NotFinite {
        /// The first such token.
        id: u32,
        /// Its logit.
        value: f32,
    },
    /// Every logit is minus infinity.
    #[error("all logits of the row are minus infinity")]
    Empty,
    /// The largest logit divided by the temperature is not finite.
    #[error("the temperature is so small that logits divided by it are not finite")]
    Temperature,
}

/// What the id and the code of a drawn row mean.
fn check(id: u32, code: u32) -> Result<u32, Refusal> {
    match code {
        0 => Ok(id),
        1 => Err(Refusal::NotFinite { id, value: f32::NAN }),
        2 => Err(Refusal::NotFinite { id, value: f32::INFINITY }),
        3 => Err(Refusal::Empty),
        _ => Err(Refusal::Temperature),
    }
}

/// What [`sample`] writes, and what it needs on the way.
pub struct Draws {
    rows: usize,
    capacity: usize,
    /// Of each row its token, its log-probability, its code (0 is good) and the number of its kept tokens: a line each, one after the other.
    results: Buffer<u32>,
    /// The kept ids of each row, ascending, `[rows, capacity]`. Undefined beyond their number, and where nothing was dropped.
    kept: Buffer<u32>,
    /// As [`super::head::head_fwd`] saves them, but for the whole vocabulary, `[rows, STATS]`.
    stats: Buffer<f64>,
    /// Where top-k and top-p cut, `[rows]`.
    edge: Buffer<u64>,
}

/// A drawn token, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnRow {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the distribution that it was drawn from: the bits of [`super::head::head_fwd`].
    pub logp: f32,
    /// The ids that it was drawn from, ascending, if they were asked for; `None` when nothing was dropped.
    pub kept: Option<Vec<u32>>,
}

/// Lines of [`Draws`]' results.
const LINES: usize = 4;

impl Draws {
    /// Room for `rows` rows with `capacity` kept ids each: at least [`Sampling::capacity`].
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn new(gpu: &Gpu, rows: usize, capacity: usize) -> Result<Self, CudaError> {
        Ok(Draws {
            rows,
            capacity,
            results: gpu.buffer("drawn tokens", LINES * rows)?,
            kept: gpu.buffer("kept sets", rows * capacity)?,
            stats: gpu.buffer("statistics of drawn rows", rows * STATS)?,
            edge: gpu.buffer("edges of kept sets", rows)?,
        })
    }

    /// Kept ids that there is room for in a row.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What the last [`sample`] drew in its `rows` rows, in one download; and in another the ids that were kept, where some were dropped,
    /// if there is `space` of `[rows, capacity]` to gather them in. Nothing is fetched that was not drawn or kept.
    ///
    /// **Errors** those of a launch; of a row that was no distribution its own.
    pub fn read(
        &self,
        gpu: &Gpu,
        rows: usize,
        vocab: usize,
        space: Option<ViewMut<'_, u32>>,
    ) -> Result<Vec<Result<DrawnRow, Refusal>>, CudaError> {
        let lists = match space {
            Some(mut space) => {
                kept_lists(gpu, space.reborrow(), self, rows, vocab)?;
                Some(space)
            }
            None => None,
        };
        let results = gpu.to_vec(self.results.slice(0..LINES * rows))?;
        let line = |i: usize| &results[i * rows..][..rows];
        let [ids, logps, codes, lens] = [line(0), line(1), line(2), line(3)];
        let dropped = |len: u32| (len as usize) < vocab;
        let total: usize = lens.iter().filter(|&&len| dropped(len)).map(|&len| len as usize).sum();
        let kept = lists.as_ref().map(|lists| gpu.to_vec(lists.view().slice(0..total))).transpose()?;
        let mut rest = kept.as_deref();
        let row = |r: usize| {
            let kept = rest.as_mut().filter(|_| dropped(lens[r])).map(|rest| {
                let (kept, after) = rest.split_at(lens[r] as usize);
                *rest = after;
                kept.to_vec()
            });
            Ok(DrawnRow { id: check(ids[r], codes[r])?, logp: f32::from_bits(logps[r]), kept })
        };
        Ok((0..rows).map(row).collect())
    }
}

/// The kept ids of all rows of the last [`sample`] that dropped some, one row after the other.
///
/// **Panics** when `lists` has no room for all that rows could keep.
///
/// **Errors** those of a launch.
pub fn kept_lists(
    gpu: &Gpu,
    lists: ViewMut<'_, u32>,
    draws: &Draws,
    rows: usize,
    vocab: usize,
) -> Result<(), CudaError> {
    let Draws { capacity, results, kept, .. } = draws;
    let lens = results.slice((LINES - 1) * rows..LINES * rows);
    assert!(rows <= draws.rows && lists.len() >= rows * capacity && u32::try_from(rows * capacity).is_ok());
    let args = args![lists, kept.view(), lens, vocab, *capacity];
    // SAFETY: the lengths were checked above, and no row lists more than `capacity`.
    unsafe { gpu.launch(&KEPT_LISTS, KEPT_LISTS.unit::<f32>(), [rows, 1, 1], KEEP_SHARED_BYTES, args) }
}

/// u\[r\] in \[0, 1): the uniform number of the key `keys[r]` at `positions[r]`, bit for bit that of `ragen_models::random`.
///
/// **Errors** those of a launch.
pub fn uniform(gpu: &Gpu, u: ViewMut<'_, f64>, keys: View<'_, u64>, positions: View<'_, u64>) -> Result<(), CudaError> {
    let rows = u.len();
    assert!(keys.len() == rows && positions.len() == rows);
    let args = args![u, keys, positions, rows];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&UNIFORM, UNIFORM.unit::<f32>(), [rows.div_ceil(THREADS as usize), 1, 1], 0, args) }
}

/// Draws a token for every row of logits `[rows, vocab]`: the one at which the cumulative probability, by ascending id, passes `u` in
/// \[0, 1) (which is not read at temperature 0).
///
/// **Panics** if `draws` has room for fewer rows or for less than [`Sampling::capacity`], or on a vocabulary beyond 770,000.
///
/// **Errors** those of a launch. A row that is no distribution is none: [`Draws::read`] says so.
pub fn sample(
    gpu: &Gpu,
    draws: &mut Draws,
    logits: View<'_, f32>,
    u: View<'_, f64>,
    sampling: &Sampling,
    vocab: usize,
) -> Result<(), CudaError> {
    let (rows, capacity) = (u.len(), draws.capacity);
    let Sampling { temperature, top_k, top_p, .. } = *sampling;
    assert!(vocab > 0 && logits.len() == rows * vocab && capacity >= sampling.capacity(vocab) && rows <= draws.rows);
    let (id, rest) = draws.results.slice_mut(0..LINES * rows).split_at(rows);
    let (logp, rest) = rest.split_at(rows);
    let (code, kept_len) = rest.split_at(rows);
    let (kept, stats, edge) = (draws.kept.view_mut(), draws.stats.view_mut(), draws.edge.view_mut());
    let start = |kernel: &Kernel, shared_bytes, args: &[_]| {
        // SAFETY: the lengths were checked above; the kernels find all else in what those before them wrote.
        unsafe { gpu.launch(kernel, kernel.unit::<f32>(), [rows, 1, 1], shared_bytes, args) }
    };
    if sampling.is_greedy() {
        return start(
            &SAMPLE_GREEDY,
            GREEDY_SHARED_BYTES,
            args![id, logp, kept, kept_len, code, logits, vocab, capacity],
        );
    }
    let draw_bytes = draw_shared_bytes(vocab);
    assert!(draw_bytes <= LARGEST_SHARED_BYTES, "a vocabulary of {vocab} is too large to be sampled from");
    start(&SAMPLE_STATS, STATS_SHARED_BYTES, args![stats, id, kept_len, code, logits, temperature, vocab])?;
    if sampling.cuts() {
        let args = args![edge, stats, code, logits, temperature, top_k.min(vocab), top_p, vocab];
        start(&SAMPLE_FILTER, FILTER_SHARED_BYTES, args)?;
    }
    if sampling.cuts() || sampling.min_p > 0.0 {
        let edges = sampling.cuts().then(|| edge.view());
        // The largest weight is 1, and at least one token stays.
        let min_p = sampling.min_p.min(1.0);
        let args = args![kept, kept_len, stats, code, edges, logits, temperature, min_p, vocab, capacity];
        start(&SAMPLE_KEEP, KEEP_SHARED_BYTES, args)?;
    }
    let args = args![id, logp, stats, kept, kept_len, code, logits, u, temperature, vocab, capacity];
    start(&SAMPLE_DRAW, draw_bytes, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_what_is_wrong_with_a_row() {
        assert_eq!(check(7, 0), Ok(7));
        assert_eq!(check(7, 1).unwrap_err().to_string(), "logit 7 of the row is NaN, which is no distribution");
        assert_eq!(check(3, 2), Err(Refusal::NotFinite { id: 3, value: f32::INFINITY }));
        assert_eq!((check(u32::MAX, 3), check(0, 4)), (Err(Refusal::Empty), Err(Refusal::Temperature)));
    }

    #[test]
    fn the_largest_vocabulary_fits_into_shared_memory() {
        assert!(
            draw_shared_bytes(262_144) <= LARGEST_SHARED_BYTES && draw_shared_bytes(770_000) <= LARGEST_SHARED_BYTES
        );
        const { assert!(FILTER_SHARED_BYTES <= LARGEST_SHARED_BYTES) };
    }
}

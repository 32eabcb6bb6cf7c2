//! Causal grouped-query attention over the packed token tree (decision D1), one code for training, prefill and decode.
//!
//! Keys and values of a path lie in pages of [`PAGE`] positions, counted from the root: softmax therefore goes by position on
//! the path and never by where a segment or a prompt ends (decision D3). Segments that share a prefix share its pages.
//!
//! **Math** for a query q (already scaled by 1/√hd) at position p: s_j = q · k_j for j ≤ p; w = exp(s − max s); o = (Σ w_j v_j) / Σ w_j. Each
//! q · k_j is one chain over the head's width, Σ w_j runs over 16 lanes by position, Σ w_j v_j is one chain over positions.
//! With a sliding window of n keys only p − n < j ≤ p are seen. Pages that lie wholly before it are passed over, which changes no
//! bit: what is not seen has the weight 0, and a chain that starts with zeros is the chain without them.
//!
//! **Source** Vaswani et al. 2017, eq. 1; grouped queries: Ainslie et al. 2023. The backward recomputes the
//! probabilities from q and k, as Dao et al. 2022 do, instead of keeping them.

mod backward;
mod pages;

pub use backward::attention_bwd;
pub use pages::{PAGE, PageLayout};

use super::gemm::{Precision, Strip, column};
use crate::device::Cpu;
use crate::simd::{Isa, LANES, Simd, dispatch, exp_nonpositive, tree_sum};
use crate::threads::Shards;
use crate::token_tree::TokenTree;
use pages::{PathPages, fill_pages, trees};
use std::cell::RefCell;
use std::ops::Range;

/// Query rows that are worked on together.
const BLOCK: usize = 24;

/// Shape of the attention of one layer, and where a token's q, k and v lie in its row: all q heads, then k, then v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Heads {
    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }
    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }
    /// Width of a row of q, k and v.
    pub fn row(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }
    /// Column of key head `h`.
    pub fn k_column(&self, h: usize) -> usize {
        (self.n_heads + h) * self.head_dim
    }
    /// Column of value head `h`.
    pub fn v_column(&self, h: usize) -> usize {
        (self.n_heads + self.n_kv_heads + h) * self.head_dim
    }
}

/// Queries of one head at ascending positions, and where their outputs go.
struct Queries {
    q: *const f32,
    q_row: usize,
    out: *mut f32,
    out_row: usize,
    /// Number of rows, at most `BLOCK`.
    rows: usize,
    /// Position of row 0.
    first: usize,
    /// Position of row r is `first + r * advance`: 1 along a sequence, 0 for the heads of one token.
    advance: usize,
    /// Keys that a query sees at most, itself included.
    window: usize,
}

/// The pages that a block of queries sees, and the keys on them counted from the first of these pages.
struct Span {
    pages: Range<usize>,
    /// Position of the first key on the first page.
    base: usize,
    /// Keys up to the last query's own.
    keys: usize,
    /// Weights in a row: whole pages.
    row: usize,
}

impl Queries {
    fn span(&self) -> Span {
        let end = self.first + (self.rows - 1) * self.advance + 1;
        let pages = (self.first + 1).saturating_sub(self.window) / PAGE..end.div_ceil(PAGE);
        let base = pages.start * PAGE;
        Span { base, keys: end - base, row: pages.len() * PAGE, pages }
    }

    /// The keys that row r sees, counted from the position `base`.
    fn visible(&self, r: usize, base: usize) -> Range<usize> {
        let end = self.first + r * self.advance + 1;
        end.saturating_sub(self.window).max(base) - base..end - base
    }
}

dispatch!(
    fn attend(queries: &Queries, pages: &[*const f32], layout: PageLayout, weights: &mut Vec<f32>) = attend_kernel
);

/// Attention of a block of queries over the pages of their path.
#[inline(always)]
unsafe fn attend_kernel<S: Simd>(queries: &Queries, pages: &[*const f32], layout: PageLayout, weights: &mut Vec<f32>) {
    let Queries { out, out_row, rows, .. } = *queries;
    let PageLayout { head_dim: hd, width } = layout;
    let Span { pages: seen, base, keys, row } = queries.span();
    // SAFETY: the caller hands over all whole pages of the span, and `rows` rows of q and of out.
    unsafe {
        scores::<S>(queries, pages, layout, weights);
        let mut inverse = [0.0f32; BLOCK];
        for r in 0..rows {
            inverse[r] = softmax_row::<S>(&mut weights[r * row..][..row], queries.visible(r, base));
        }
        for (p, page) in pages[seen].iter().enumerate() {
            let keys = PAGE.min(keys - p * PAGE);
            let w = weights.as_ptr().add(p * PAGE);
            for (j, column0) in (0..hd).step_by(width).enumerate() {
                let panel = page.add(layout.keys() + j * PAGE * width);
                let columns = width.min(hd - column0);
                column(
                    S::ISA,
                    Strip {
                        rows,
                        precision: Precision::F32,
                        k: keys,
                        a: w,
                        a_row: row,
                        a_step: 1,
                        b: panel,
                        b_step: width,
                        c: out.add(column0),
                        c_row: out_row,
                        columns,
                        add: p > 0,
                    },
                );
            }
        }
        for r in 0..rows {
            let scale = S::splat(inverse[r]);
            for j in (0..hd).step_by(LANES) {
                let (p, n) = (out.add(r * out_row + j), LANES.min(hd - j));
                S::store_n(p, n, S::mul(S::load_n(p, n), scale));
            }
        }
    }
}

/// q·kᵀ of a block against all pages it sees, `[rows, span.row]`.
#[inline(always)]
unsafe fn scores<S: Simd>(queries: &Queries, pages: &[*const f32], layout: PageLayout, weights: &mut Vec<f32>) {
    let Queries { q, q_row, rows, .. } = *queries;
    let PageLayout { head_dim: hd, width } = layout;
    let Span { pages: seen, keys, row, .. } = queries.span();
    assert!(pages.len() >= seen.end && rows <= BLOCK);
    weights.resize(weights.len().max(BLOCK * row), 0.0);
    for (p, page) in pages[seen].iter().enumerate() {
        for j in (0..PAGE.min(keys - p * PAGE)).step_by(width) {
            // SAFETY: the page is whole, the scratch holds BLOCK rows.
            unsafe {
                let c = weights.as_mut_ptr().add(p * PAGE + j);
                column(
                    S::ISA,
                    Strip {
                        rows,
                        precision: Precision::F32,
                        k: hd,
                        a: q,
                        a_row: q_row,
                        a_step: 1,
                        b: page.add(j * hd),
                        b_step: width,
                        c,
                        c_row: row,
                        columns: width,
                        add: false,
                    },
                );
            }
        }
    }
}

/// Replaces the scores of the visible keys by exp(s − max), zeros the rest, and returns 1 / Σ.
#[inline(always)]
unsafe fn softmax_row<S: Simd>(row: &mut [f32], visible: Range<usize>) -> f32 {
    let Range { start: from, end: keys } = visible;
    // Lanes go by position: a window that begins within a block of lanes takes all of it, and the lanes before the
    // window, which repeat its first score until then, end as zeros.
    let start = from / LANES * LANES;
    let first = row[from];
    row[start..from].fill(first);
    let p = row.as_mut_ptr();
    // SAFETY: keys ≤ row.len(); every access is to lanes below that.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        let whole = keys / LANES * LANES;
        for j in (start..whole).step_by(LANES) {
            max = S::max(max, S::load(p.add(j)));
        }
        let mut top = S::lanes(max).into_iter().fold(f32::NEG_INFINITY, f32::max);
        for j in whole.max(start)..keys {
            top = top.max(*p.add(j));
        }
        let max = S::splat(top);
        let mut sum = S::splat(0.0);
        let mut next = start;
        if start < from {
            let n = LANES.min(keys - start);
            S::store_n(p.add(start), n, exp_nonpositive::<S>(S::sub(S::load_n(p.add(start), n), max)));
            (start..from).for_each(|j| *p.add(j) = 0.0);
            sum = S::add(sum, S::load_n(p.add(start), n));
            next += LANES;
        }
        for j in (next..whole).step_by(LANES) {
            let e = exp_nonpositive::<S>(S::sub(S::load(p.add(j)), max));
            S::store(p.add(j), e);
            sum = S::add(sum, e);
        }
        if whole < keys && next <= whole {
            let n = keys - whole;
            let e = exp_nonpositive::<S>(S::sub(S::load_n(p.add(whole), n), max));
            S::store_n(p.add(whole), n, e);
            sum = S::add(sum, S::load_n(p.add(whole), n));
        }
        row[..start].fill(0.0);
        row[keys..].fill(0.0);
        1.0 / tree_sum(S::lanes(sum))
    }
}

/// Attention of one new token over the pages of its sequence, for all query heads of key head `h`; its own key and value are
/// already in the pages.
///
/// **Shapes** `row` is the token's q, k, v (q scaled by 1/√hd), `out` its output in these query heads' columns.
pub(crate) fn attend_token(
    isa: Isa,
    heads: Heads,
    h: usize,
    row: &[f32],
    out: &mut [f32],
    position: usize,
    pages: &[*const f32],
    window: Option<usize>,
) {
    let layout = PageLayout::new(isa, heads.head_dim);
    let (group, hd) = (heads.group(), heads.head_dim);
    assert!(row.len() == heads.row() && out.len() == group * hd && pages.len() * PAGE > position);
    WORK.with_borrow_mut(|work| {
        for g0 in (0..group).step_by(BLOCK) {
            let queries = Queries {
                q: row[(h * group + g0) * hd..].as_ptr(),
                q_row: hd,
                out: out[g0 * hd..].as_mut_ptr(),
                out_row: hd,
                rows: BLOCK.min(group - g0),
                first: position,
                advance: 0,
                window: window.unwrap_or(usize::MAX),
            };
            attend(isa, &queries, pages, layout, &mut work.weights);
        }
    });
}

/// Attention of `rows` consecutive new tokens of one sequence (prefill), for all query heads of key head `h`.
///
/// **Shapes** `qkv` points at the first token's row, `out` at its output row.
///
/// # Safety
/// `qkv` holds `rows` rows of `heads.row()`, `out` `rows` rows of `heads.q_width()` that no other task writes in these heads' columns.
pub(crate) unsafe fn attend_run(
    isa: Isa,
    heads: Heads,
    h: usize,
    qkv: *const f32,
    out: *mut f32,
    rows: usize,
    position: usize,
    pages: &[*const f32],
    window: Option<usize>,
) {
    let layout = PageLayout::new(isa, heads.head_dim);
    WORK.with_borrow_mut(|work| {
        for r0 in (0..rows).step_by(BLOCK) {
            for head in h * heads.group()..(h + 1) * heads.group() {
                // SAFETY: rows r0 .. and the head's columns exist, by the caller's promise.
                let (q, out) = unsafe {
                    let column = head * heads.head_dim;
                    (qkv.add(r0 * heads.row() + column), out.add(r0 * heads.q_width() + column))
                };
                let queries = Queries {
                    q,
                    q_row: heads.row(),
                    out,
                    out_row: heads.q_width(),
                    rows: BLOCK.min(rows - r0),
                    first: position + r0,
                    advance: 1,
                    window: window.unwrap_or(usize::MAX),
                };
                attend(isa, &queries, pages, layout, &mut work.weights);
            }
        }
    });
}

/// Working space of one thread.
#[derive(Default)]
struct Work {
    weights: Vec<f32>,
    dweights: Vec<f32>,
    pages: Vec<f32>,
    /// Values as right operand of dO·Vᵀ and keys as right operand of dS·K, page for page.
    turned: Vec<f32>,
    dkeys: Vec<f32>,
    dvalues: Vec<f32>,
    packed: Vec<f32>,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

/// o = attention(q, k, v) over the whole token tree, each query seeing at most `window` keys.
///
/// **Shapes** qkv `[rows, heads.row()]` after RoPE with q scaled by 1/√hd; out `[rows, n_heads · head_dim]`.
pub fn attention_fwd(cpu: &Cpu, out: &mut [f32], qkv: &[f32], tree: &TokenTree, heads: Heads, window: Option<usize>) {
    assert!(qkv.len() == tree.rows() * heads.row() && out.len() == tree.rows() * heads.q_width());
    let trees = trees(tree);
    let layout = PageLayout::new(cpu.isa, heads.head_dim);
    let out = Shards::new(out);
    cpu.pool.run(trees.len() * heads.n_kv_heads, &|task| {
        let (range, h) = (trees[task / heads.n_kv_heads].clone(), task % heads.n_kv_heads);
        let plan = PathPages::new(tree, range.clone());
        let mut pages = WORK.with_borrow_mut(|work| std::mem::take(&mut work.pages));
        fill_pages(&mut pages, &plan, layout, qkv, heads, (heads.k_column(h), heads.v_column(h)));
        for (segment, list) in tree.segments[range].iter().zip(&plan.lists) {
            let path: Vec<*const f32> = list.iter().map(|p| pages[p * layout.elements()..].as_ptr()).collect();
            if segment.len > 0 {
                let q = qkv[segment.start * heads.row()..].as_ptr();
                // SAFETY: the segment's rows exist, and this task alone writes these heads' columns of them.
                unsafe {
                    let out = out.at(segment.start * heads.q_width());
                    attend_run(cpu.isa, heads, h, q, out, segment.len, segment.position, &path, window);
                }
            }
        }
        WORK.with_borrow_mut(|work| work.pages = pages);
    });
}

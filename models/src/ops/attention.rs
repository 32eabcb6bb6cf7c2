//! Causal grouped-query attention over the packed token tree (decision D1), one code for training, prefill and decode.
//!
//! Keys and values of a path lie in pages of [`PAGE`] positions, counted from the root: softmax therefore goes by position on
//! the path and never by where a segment or a prompt ends (decision D3). Segments that share a prefix share its pages.
//!
//! **Math** for a query q (already scaled by 1/√hd) at position p: s_j = q · k_j for j ≤ p; w = exp(s − max s); o = (Σ w_j v_j) / Σ w_j. Each
//! q · k_j is one chain over the head's width, Σ w_j runs over 16 lanes by position, Σ w_j v_j is one chain over positions.
//!
//! **Source** Vaswani et al. 2017, eq. 1; grouped queries: Ainslie et al. 2023. The backward recomputes the
//! probabilities from q and k, as Dao et al. 2022 do, instead of keeping them.

use super::gemm::{Precision, Strip, column, panel_width};
use crate::device::Cpu;
use crate::simd::{Isa, LANES, Simd, dispatch, exp_nonpositive, tree_sum};
use crate::threads::Shards;
use crate::token_tree::TokenTree;
use std::cell::RefCell;

/// Positions in a page.
pub const PAGE: usize = 32;
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

/// How a page is laid out on an instruction path: keys as panels of `[head_dim, width]` over positions (ready to be the right operand
/// of q·kᵀ), then values as panels of `[PAGE, width]` over the head's width (ready for w·v).
#[derive(Clone, Copy, Debug)]
pub struct PageLayout {
    head_dim: usize,
    width: usize,
}

impl PageLayout {
    /// The layout for heads of this width on the path `isa`.
    pub fn new(isa: Isa, head_dim: usize) -> Self {
        PageLayout { head_dim, width: panel_width(isa) }
    }

    fn keys(&self) -> usize {
        PAGE * self.head_dim
    }

    fn values(&self) -> usize {
        self.head_dim.div_ceil(self.width) * self.width * PAGE
    }

    /// Elements of one page of one head.
    pub fn elements(&self) -> usize {
        self.keys() + self.values()
    }

    /// Writes `k` and `v` of the position `slot` within the page.
    pub fn write(&self, page: &mut [f32], slot: usize, k: &[f32], v: &[f32]) {
        let (keys, values) = page[..self.elements()].split_at_mut(self.keys());
        write_across(keys, self.width, slot, k);
        write_along(values, self.width, PAGE, slot, v);
    }
}

/// One column of panels `[x.len(), width]`: element d goes to row d, lane `slot`.
fn write_across(panels: &mut [f32], width: usize, slot: usize, x: &[f32]) {
    let panel = &mut panels[slot / width * x.len() * width..][..x.len() * width];
    for (row, x) in panel.chunks_exact_mut(width).zip(x) {
        row[slot % width] = *x;
    }
}

/// One row of panels `[rows, width]` over the elements of x.
fn write_along(panels: &mut [f32], width: usize, rows: usize, slot: usize, x: &[f32]) {
    for (panel, x) in panels.chunks_exact_mut(rows * width).zip(x.chunks(width)) {
        panel[slot * width..][..x.len()].copy_from_slice(x);
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
}

dispatch!(
    fn attend(queries: &Queries, pages: &[*const f32], layout: PageLayout, weights: &mut Vec<f32>) = attend_kernel
);

/// Attention of a block of queries over the pages of their path.
#[inline(always)]
unsafe fn attend_kernel<S: Simd>(queries: &Queries, pages: &[*const f32], layout: PageLayout, weights: &mut Vec<f32>) {
    let Queries { out, out_row, rows, first, advance, .. } = *queries;
    let PageLayout { head_dim: hd, width } = layout;
    let used = (first + (rows - 1) * advance) / PAGE + 1;
    let row = used * PAGE;
    // SAFETY: the caller hands over at least `used` whole pages, and `rows` rows of q and of out.
    unsafe {
        scores::<S>(queries, pages, layout, weights);
        let mut inverse = [0.0f32; BLOCK];
        for r in 0..rows {
            inverse[r] = softmax_row::<S>(&mut weights[r * row..][..row], first + r * advance + 1);
        }
        for (p, page) in pages[..used].iter().enumerate() {
            let keys = PAGE.min(first + (rows - 1) * advance + 1 - p * PAGE);
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

/// q·kᵀ of a block against all pages it sees, `[rows, used · PAGE]`.
#[inline(always)]
unsafe fn scores<S: Simd>(queries: &Queries, pages: &[*const f32], layout: PageLayout, weights: &mut Vec<f32>) {
    let Queries { q, q_row, rows, first, advance, .. } = *queries;
    let PageLayout { head_dim: hd, width } = layout;
    let keys = first + (rows - 1) * advance + 1;
    let used = keys.div_ceil(PAGE);
    let row = used * PAGE;
    assert!(pages.len() >= used && rows <= BLOCK);
    weights.resize(weights.len().max(BLOCK * row), 0.0);
    for (p, page) in pages[..used].iter().enumerate() {
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

/// Replaces the first `keys` scores by exp(s − max), zeros the rest, and returns 1 / Σ.
#[inline(always)]
unsafe fn softmax_row<S: Simd>(row: &mut [f32], keys: usize) -> f32 {
    let p = row.as_mut_ptr();
    // SAFETY: keys ≤ row.len(); every access is to lanes below that.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        let whole = keys / LANES * LANES;
        for j in (0..whole).step_by(LANES) {
            max = S::max(max, S::load(p.add(j)));
        }
        let mut top = S::lanes(max).into_iter().fold(f32::NEG_INFINITY, f32::max);
        for j in whole..keys {
            top = top.max(*p.add(j));
        }
        let max = S::splat(top);
        let mut sum = S::splat(0.0);
        for j in (0..whole).step_by(LANES) {
            let e = exp_nonpositive::<S>(S::sub(S::load(p.add(j)), max));
            S::store(p.add(j), e);
            sum = S::add(sum, e);
        }
        if whole < keys {
            let n = keys - whole;
            let e = exp_nonpositive::<S>(S::sub(S::load_n(p.add(whole), n), max));
            S::store_n(p.add(whole), n, e);
            sum = S::add(sum, S::load_n(p.add(whole), n));
        }
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

/// The pages of all segments of some trees: which page holds which block of each segment's path.
struct PathPages {
    /// For every segment, page numbers by position / PAGE.
    lists: Vec<Vec<usize>>,
    /// (page to fill, page to copy from or none, first packed row, slot of that row, number of rows)
    fills: Vec<(usize, Option<usize>, usize, usize, usize)>,
    pages: usize,
}

impl PathPages {
    /// Plans the pages of segments `range` (whole trees): a child keeps its ancestors' full pages and copies a last partial one.
    fn new(tree: &TokenTree, range: std::ops::Range<usize>) -> Self {
        let base = range.start;
        let mut plan = PathPages { lists: Vec::new(), fills: Vec::new(), pages: 0 };
        for segment in &tree.segments[range] {
            let inherited = segment.parent.map_or(&[][..], |p| &plan.lists[p - base]);
            let full = segment.position / PAGE;
            let mut list = inherited[..full.min(inherited.len())].to_vec();
            let partial = inherited.get(full).copied().filter(|_| segment.position % PAGE > 0);
            if segment.len == 0 {
                list.extend(partial);
            }
            let mut row = 0;
            while row < segment.len {
                let position = segment.position + row;
                let n = (PAGE - position % PAGE).min(segment.len - row);
                let source = if row == 0 { partial } else { None };
                list.push(plan.pages);
                plan.fills.push((plan.pages, source, segment.start + row, position % PAGE, n));
                plan.pages += 1;
                row += n;
            }
            plan.lists.push(list);
        }
        plan
    }
}

/// Segment ranges of the trees: each starts at a root.
fn trees(tree: &TokenTree) -> Vec<std::ops::Range<usize>> {
    let mut starts: Vec<usize> = (0..tree.segments.len()).filter(|&s| tree.segments[s].parent.is_none()).collect();
    starts.push(tree.segments.len());
    // A child may hang under any earlier segment, so trees that interleave are taken together.
    let mut ranges: Vec<std::ops::Range<usize>> = starts.windows(2).map(|w| w[0]..w[1]).collect();
    for s in 0..tree.segments.len() {
        if let Some(parent) = tree.segments[s].parent {
            let from = ranges.iter().position(|r| r.contains(&parent)).unwrap_or(0);
            let to = ranges.iter().position(|r| r.contains(&s)).unwrap_or(0);
            if from < to {
                let merged = ranges[from].start..ranges[to].end;
                ranges.splice(from..=to, [merged]);
            }
        }
    }
    ranges
}

/// o = attention(q, k, v) over the whole token tree.
///
/// **Shapes** qkv `[rows, heads.row()]` after RoPE with q scaled by 1/√hd; out `[rows, n_heads · head_dim]`.
pub fn attention_fwd(cpu: &Cpu, out: &mut [f32], qkv: &[f32], tree: &TokenTree, heads: Heads) {
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
                    attend_run(cpu.isa, heads, h, q, out, segment.len, segment.position, &path);
                }
            }
        }
        WORK.with_borrow_mut(|work| work.pages = pages);
    });
}

/// Fills planned pages with the columns of a first vector (across) and a second (along): key and value for the way
/// forward; value and key, for dO·Vᵀ and dS·K, on the way back.
fn fill_pages(
    pages: &mut Vec<f32>,
    plan: &PathPages,
    layout: PageLayout,
    qkv: &[f32],
    heads: Heads,
    (across, along): (usize, usize),
) {
    let (len, hd) = (layout.elements(), heads.head_dim);
    pages.resize(pages.len().max(plan.pages * len), 0.0);
    for &(page, source, row, slot, n) in &plan.fills {
        match source {
            Some(source) => pages.copy_within(source * len..(source + 1) * len, page * len),
            // Slots that nothing fills are read against zero weights, so they must be finite.
            None => pages[page * len..][..len].fill(0.0),
        }
        let page = &mut pages[page * len..][..len];
        for i in 0..n {
            let token = &qkv[(row + i) * heads.row()..][..heads.row()];
            layout.write(page, slot + i, &token[across..][..hd], &token[along..][..hd]);
        }
    }
}

/// dqkv += the gradient of q, k and v.
///
/// **Math** per query with probabilities P: dP = dO·Vᵀ; dS = P ∘ (dP − Σ dO ∘ O); dQ = dS·K; over queries in row order
/// dK += dSᵀ·Q, dV += Pᵀ·dO. What children send to a shared prefix adds up in segment order.
pub fn attention_bwd(
    cpu: &Cpu,
    dqkv: &mut [f32],
    dout: &[f32],
    out: &[f32],
    qkv: &[f32],
    tree: &TokenTree,
    heads: Heads,
) {
    assert!(dqkv.len() == qkv.len() && dout.len() == out.len());
    let trees = trees(tree);
    let layout = PageLayout::new(cpu.isa, heads.head_dim);
    let dqkv = Shards::new(dqkv);
    let (hd, group) = (heads.head_dim, heads.group());
    cpu.pool.run(trees.len() * heads.n_kv_heads, &|task| {
        let (range, h) = (trees[task / heads.n_kv_heads].clone(), task % heads.n_kv_heads);
        let plan = PathPages::new(tree, range.clone());
        let mut work = WORK.take();
        let (k, v) = (heads.k_column(h), heads.v_column(h));
        fill_pages(&mut work.pages, &plan, layout, qkv, heads, (k, v));
        fill_pages(&mut work.turned, &plan, layout, qkv, heads, (v, k));
        for s in range.clone() {
            let (segment, list) = (&tree.segments[s], &plan.lists[s - range.start]);
            let (pages, turned) = (work.pages.as_ptr(), work.turned.as_ptr());
            // SAFETY: page numbers are below plan.pages, for which both buffers have room.
            let (path, turned): (Vec<*const f32>, Vec<*const f32>) = list
                .iter()
                .map(|p| unsafe { (pages.add(p * layout.elements()), turned.add(p * layout.elements())) })
                .unzip();
            let keys = segment.position + segment.len;
            for buffer in [&mut work.dkeys, &mut work.dvalues] {
                buffer.clear();
                buffer.resize(keys * hd, 0.0);
            }
            for head in h * group..(h + 1) * group {
                for r0 in (0..segment.len).step_by(BLOCK) {
                    let row = segment.start + r0;
                    let block = BackwardBlock {
                        q: qkv[row * heads.row() + head * hd..].as_ptr(),
                        q_row: heads.row(),
                        o: out[row * heads.q_width() + head * hd..].as_ptr(),
                        dout: dout[row * heads.q_width() + head * hd..].as_ptr(),
                        o_row: heads.q_width(),
                        dq: dqkv.at(row * heads.row() + head * hd),
                        rows: BLOCK.min(segment.len - r0),
                        first: segment.position + r0,
                    };
                    attend_bwd(cpu.isa, &block, &path, &turned, layout, &mut work);
                }
            }
            let mut position = 0;
            for ancestor in tree.path(s) {
                for row in tree.segments[ancestor].rows() {
                    // SAFETY: this task alone writes the k and v columns of head h in the rows of its trees.
                    let (dk, dv) = unsafe {
                        let (k, v) = (row * heads.row() + heads.k_column(h), row * heads.row() + heads.v_column(h));
                        (dqkv.part(k..k + hd), dqkv.part(v..v + hd))
                    };
                    add(dk, &work.dkeys[position * hd..][..hd]);
                    add(dv, &work.dvalues[position * hd..][..hd]);
                    position += 1;
                }
            }
        }
        WORK.replace(work);
    });
}

fn add(sum: &mut [f32], x: &[f32]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += x;
    }
}

/// A block of queries on the way back.
struct BackwardBlock {
    q: *const f32,
    q_row: usize,
    o: *const f32,
    dout: *const f32,
    o_row: usize,
    dq: *mut f32,
    rows: usize,
    first: usize,
}

dispatch!(
    fn attend_bwd(block: &BackwardBlock, pages: &[*const f32], turned: &[*const f32], layout: PageLayout, work: &mut Work)
        = attend_bwd_kernel
);

#[inline(always)]
unsafe fn attend_bwd_kernel<S: Simd>(
    block: &BackwardBlock,
    pages: &[*const f32],
    turned: &[*const f32],
    layout: PageLayout,
    work: &mut Work,
) {
    let BackwardBlock { q, q_row, o, dout, o_row, dq, rows, first } = *block;
    let PageLayout { head_dim: hd, width } = layout;
    let keys = first + rows;
    let used = keys.div_ceil(PAGE);
    let row = used * PAGE;
    let queries = Queries { q, q_row, out: std::ptr::null_mut(), out_row: 0, rows, first, advance: 1 };
    // SAFETY: pages are whole; q, o, dout and dq have `rows` rows of a head's columns; scratch is resized before use.
    unsafe {
        // P
        scores::<S>(&queries, pages, layout, &mut work.weights);
        for r in 0..rows {
            let p = &mut work.weights[r * row..][..row];
            let inverse = softmax_row::<S>(p, first + r + 1);
            scale_row::<S>(p, inverse);
        }
        // dP = dO·Vᵀ, then dS in its place
        work.dweights.resize(work.dweights.len().max(BLOCK * row), 0.0);
        for (p, page) in turned[..used].iter().enumerate() {
            for j in (0..PAGE.min(keys - p * PAGE)).step_by(width) {
                let c = work.dweights.as_mut_ptr().add(p * PAGE + j);
                column(
                    S::ISA,
                    Strip {
                        rows,
                        precision: Precision::F32,
                        k: hd,
                        a: dout,
                        a_row: o_row,
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
        for r in 0..rows {
            let mut sum = S::splat(0.0);
            for j in (0..hd).step_by(LANES) {
                let n = LANES.min(hd - j);
                sum = S::fma(S::load_n(dout.add(r * o_row + j), n), S::load_n(o.add(r * o_row + j), n), sum);
            }
            let delta = S::splat(tree_sum(S::lanes(sum)));
            let (p, dp) = (work.weights.as_ptr().add(r * row), work.dweights.as_mut_ptr().add(r * row));
            for j in (0..keys.next_multiple_of(LANES)).step_by(LANES) {
                let ds = S::mul(S::load(p.add(j)), S::sub(S::load(dp.add(j)), delta));
                S::store(dp.add(j), ds);
            }
        }
        // dQ += dS·K
        for (p, page) in turned[..used].iter().enumerate() {
            let n = PAGE.min(keys - p * PAGE);
            let ds = work.dweights.as_ptr().add(p * PAGE);
            for (j, column0) in (0..hd).step_by(width).enumerate() {
                let b = page.add(layout.keys() + j * PAGE * width);
                let (c, columns) = (dq.add(column0), width.min(hd - column0));
                let (a, a_row) = (ds, row);
                column(
                    S::ISA,
                    Strip {
                        rows,
                        columns,
                        k: n,
                        precision: Precision::F32,
                        a,
                        a_row,
                        a_step: 1,
                        b,
                        b_step: width,
                        c,
                        c_row: q_row,
                        add: true,
                    },
                );
            }
        }
        // dK += dSᵀ·Q and dV += Pᵀ·dO
        let panels = hd.div_ceil(width);
        work.packed.resize(work.packed.len().max(2 * panels * BLOCK * width), 0.0);
        let (packed_q, packed_dout) = work.packed.split_at_mut(panels * BLOCK * width);
        for r in 0..rows {
            write_along(packed_q, width, BLOCK, r, std::slice::from_raw_parts(q.add(r * q_row), hd));
            write_along(packed_dout, width, BLOCK, r, std::slice::from_raw_parts(dout.add(r * o_row), hd));
        }
        for (j, column0) in (0..hd).step_by(width).enumerate() {
            let columns = width.min(hd - column0);
            let (ds, p) = (work.dweights.as_ptr(), work.weights.as_ptr());
            let (q, dout) = (packed_q.as_ptr().add(j * BLOCK * width), packed_dout.as_ptr().add(j * BLOCK * width));
            let (dk, dv) = (work.dkeys.as_mut_ptr().add(column0), work.dvalues.as_mut_ptr().add(column0));
            column(
                S::ISA,
                Strip {
                    rows: keys,
                    precision: Precision::F32,
                    k: rows,
                    a: ds,
                    a_row: 1,
                    a_step: row,
                    b: q,
                    b_step: width,
                    c: dk,
                    c_row: hd,
                    columns,
                    add: true,
                },
            );
            column(
                S::ISA,
                Strip {
                    rows: keys,
                    precision: Precision::F32,
                    k: rows,
                    a: p,
                    a_row: 1,
                    a_step: row,
                    b: dout,
                    b_step: width,
                    c: dv,
                    c_row: hd,
                    columns,
                    add: true,
                },
            );
        }
    }
}

#[inline(always)]
unsafe fn scale_row<S: Simd>(row: &mut [f32], scale: f32) {
    for j in (0..row.len()).step_by(LANES) {
        // SAFETY: the row is a multiple of 16 long (whole pages).
        unsafe {
            let p = row.as_mut_ptr().add(j);
            S::store(p, S::mul(S::load(p), S::splat(scale)));
        }
    }
}

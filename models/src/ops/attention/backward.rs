//! The way back through attention: probabilities are computed again, then the forward is read upside down.

use super::pages::{PAGE, PageLayout, PathPages, fill_pages, trees, write_along};
use super::{BLOCK, Heads, Queries, Span, WORK, Work, scores, softmax_row};
use crate::device::Cpu;
use crate::ops::gemm::{Precision, Strip, column};
use crate::simd::{LANES, Simd, dispatch, tree_sum};
use crate::threads::Shards;
use crate::token_tree::TokenTree;

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
    window: Option<usize>,
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
                        window: window.unwrap_or(usize::MAX),
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
    window: usize,
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
    let BackwardBlock { q, q_row, o, dout, o_row, dq, rows, first, window } = *block;
    let PageLayout { head_dim: hd, width } = layout;
    let queries = Queries { q, q_row, out: std::ptr::null_mut(), out_row: 0, rows, first, advance: 1, window };
    // Pages and positions count from the first page that the block sees.
    let Span { pages: seen, base, keys, row } = queries.span();
    let turned = &turned[seen];
    // SAFETY: pages are whole; q, o, dout and dq have `rows` rows of a head's columns; scratch is resized before use.
    unsafe {
        // P
        scores::<S>(&queries, pages, layout, &mut work.weights);
        for r in 0..rows {
            let p = &mut work.weights[r * row..][..row];
            let inverse = softmax_row::<S>(p, queries.visible(r, base));
            scale_row::<S>(p, inverse);
        }
        // dP = dO·Vᵀ, then dS in its place
        work.dweights.resize(work.dweights.len().max(BLOCK * row), 0.0);
        for (p, page) in turned.iter().enumerate() {
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
        for (p, page) in turned.iter().enumerate() {
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
            let at = base * hd + column0;
            let (dk, dv) = (work.dkeys.as_mut_ptr().add(at), work.dvalues.as_mut_ptr().add(at));
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

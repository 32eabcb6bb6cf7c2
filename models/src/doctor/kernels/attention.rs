//! Attention: over token trees of every layout, forward and backward, and over a cache.

use super::super::Number;
use super::judge::{Judge, download, random, rounded, unwritten, upload};
use crate::ops::attention::{Heads, PAGE, attention_bwd, attention_fwd};
use crate::token_tree::{Segment, TokenTree};
use ragen_cuda::kernels::attention as kernel;
use ragen_cuda::{Buffer, CudaError, Element, Gpu};

/// (length, parent) of each segment.
type Layout = &'static [(usize, Option<usize>)];

const NO_PARENTS: Layout = &[(1, None), (31, None), (33, None), (5, None)];
const SHARED_PROMPT: Layout = &[(33, None), (31, Some(0)), (1, Some(0)), (36, Some(0))];
const LAYOUTS: &[(&str, Layout)] = &[
    ("nothing", &[]),
    ("no tokens", &[(0, None), (0, Some(0))]),
    ("no parents", NO_PARENTS),
    ("shared prompt", SHARED_PROMPT),
    ("grandchildren", &[(20, None), (30, Some(0)), (25, Some(1)), (10, Some(0)), (3, Some(2))]),
    ("empty segments", &[(0, None), (5, Some(0)), (0, Some(1)), (7, Some(2)), (0, None), (2, Some(4))]),
    ("several trees", &[(9, None), (4, Some(0)), (17, None), (3, Some(2)), (1, Some(2))]),
    ("interleaved trees", &[(6, None), (8, None), (5, Some(0)), (7, Some(1)), (2, Some(2))]),
    ("whole key blocks", &[(63, None), (1, Some(0)), (64, Some(1))]),
    ("broken key blocks", &[(65, None), (2, Some(0)), (130, None)]),
];

/// (query heads, key heads, width)
const HEADS: &[(usize, usize, usize)] =
    &[(6, 1, 24), (7, 1, 16), (2, 2, 32), (14, 2, 64), (2, 1, 128), (20, 1, 16), (1, 1, 80), (3, 3, 33)];

const WINDOWS: &[Option<usize>] = &[None, Some(1), Some(7), Some(33)];

const GQA: Heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 10 };

fn tree_of(layout: &[(usize, Option<usize>)]) -> TokenTree {
    let mut tree = TokenTree::new();
    for &(len, parent) in layout {
        tree.push(parent, &vec![0; len]);
    }
    tree
}

fn kernel_heads(heads: Heads) -> kernel::Heads {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    kernel::Heads { n_heads, n_kv_heads, head_dim }
}

fn tables(gpu: &Gpu, tree: &TokenTree, heads: Heads) -> Result<kernel::Tree, CudaError> {
    let segment = |s: &Segment| {
        let (start, len, parent, position) = (s.start, s.len, s.parent, s.position);
        kernel::Segment { start, len, parent, position }
    };
    let segments: Vec<kernel::Segment> = tree.segments.iter().map(segment).collect();
    kernel::Tree::new(gpu, &segments, kernel_heads(heads))
}

/// Random rows of q, k, v with scores of a spread that softmax is not flat at.
fn random_rows<E: Element>(seed: u64, rows: usize, heads: Heads) -> Vec<f32> {
    let mut qkv = random::<E>(seed, rows * heads.row());
    for row in qkv.chunks_exact_mut(heads.row()) {
        row[..heads.q_width()].iter_mut().for_each(|q| *q *= 2.0 / (heads.head_dim as f32).sqrt());
    }
    rounded::<E>(qkv)
}

/// The kernels' out and lse.
///
/// **Errors** those of a launch.
pub fn forward<E: Element>(
    gpu: &Gpu,
    qkv: &[f32],
    tree: &TokenTree,
    heads: Heads,
    window: Option<usize>,
) -> Result<(Vec<f32>, Buffer<f32>), CudaError> {
    let rows = tree.rows();
    let (qkv, tables) = (upload::<E>(gpu, qkv)?, tables(gpu, tree, heads)?);
    let mut out = unwritten::<E>(gpu, rows * heads.q_width())?;
    let mut lse = unwritten::<f32>(gpu, rows * heads.n_heads)?;
    kernel::attention_fwd(gpu, out.view_mut(), lse.view_mut(), qkv.view(), &tables, window)?;
    Ok((download(gpu, &out)?, lse))
}

/// The kernels' dqkv.
fn backward<E: Element>(
    gpu: &Gpu,
    [dout, out, qkv]: [&[f32]; 3],
    lse: &Buffer<f32>,
    tree: &TokenTree,
    heads: Heads,
    window: Option<usize>,
) -> Result<Vec<f32>, CudaError> {
    let tables = tables(gpu, tree, heads)?;
    let (mut dqkv, mut space) = (unwritten::<E>(gpu, qkv.len())?, unwritten::<f32>(gpu, tables.workspace())?);
    let (dout, out, qkv) = (upload::<E>(gpu, dout)?, upload::<E>(gpu, out)?, upload::<E>(gpu, qkv)?);
    let (to, space) = (dqkv.view_mut(), space.view_mut());
    kernel::attention_bwd(gpu, to, dout.view(), out.view(), lse.view(), qkv.view(), &tables, window, space)?;
    download(gpu, &dqkv)
}

/// Forward and backward of the CPU against those of the kernels.
fn compare<E: Number>(
    on: &mut Judge<'_>,
    what: &str,
    layout: &[(usize, Option<usize>)],
    heads: Heads,
    window: Option<usize>,
) {
    if !on.takes_heads(heads.head_dim) {
        return;
    }
    let tree = tree_of(layout);
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let what = format!("{what}, {n_heads} / {n_kv_heads} heads of {head_dim}, window {window:?}");
    on.case(what, tree.rows() * heads.row(), |on| both_ways::<E>(on, &tree, heads, window));
}

fn both_ways<E: Number>(
    on: &mut Judge<'_>,
    tree: &TokenTree,
    heads: Heads,
    window: Option<usize>,
) -> Result<(), CudaError> {
    let rows = tree.rows();
    let (qkv, dout) = (random_rows::<E>(1, rows, heads), random::<E>(2, rows * heads.q_width()));
    let (mut out, mut dqkv) = (vec![0.0; dout.len()], vec![0.0; qkv.len()]);
    attention_fwd(&on.cpu, &mut out, &qkv, tree, heads, window);
    on.op("attention_fwd");
    let (got, lse) = forward::<E>(&on.gpu, &qkv, tree, heads, window)?;
    on.near("", &got, &out, E::NMSE);

    let out = rounded::<E>(out);
    attention_bwd(&on.cpu, &mut dqkv, &dout, &out, &qkv, tree, heads, window);
    on.op("attention_bwd");
    let got = backward::<E>(&on.gpu, [&dout, &out, &qkv], &lse, tree, heads, window)?;
    let columns = [0, heads.q_width(), heads.v_column(0), heads.row()];
    for (part, columns) in ["dq", "dk", "dv"].into_iter().zip(columns.windows(2)) {
        let part_of = |x: &[f32]| -> Vec<f32> {
            x.chunks_exact(heads.row()).flat_map(|row| &row[columns[0]..columns[1]]).copied().collect()
        };
        // A window of one key has probability 1: dq and dk are zeros, or what rounding leaves of them.
        if window == Some(1) && part != "dv" {
            on.largest(part, part_of(&got).iter().map(|x| f64::from(x.abs())), 0.1);
        } else {
            on.near(part, &part_of(&got), &part_of(&dqkv), E::NMSE);
        }
    }
    Ok(())
}

/// Trees of every layout, each with a window and without.
pub(super) fn layouts<E: Number>(on: &mut Judge<'_>) {
    for (i, (what, layout)) in LAYOUTS.iter().enumerate() {
        for window in [None, WINDOWS[1 + i % 3]] {
            compare::<E>(on, what, layout, GQA, window);
        }
    }
    // So many queries see the prompt that its gradient is made in pieces: 73 tiles, three pieces
    // (and with fewer heads 37, two pieces); fewer for the second tile of keys.
    let children = [(31, Some(0)); 8];
    let layout = [&[(70, None)], children.as_slice()].concat();
    let window = if size_of::<E>() == 4 { None } else { Some(40) };
    for (n_heads, head_dim) in [(14, 12), (7, 5)] {
        let heads = Heads { n_heads, n_kv_heads: 1, head_dim };
        compare::<E>(on, "many children", &layout, heads, window);
    }
    // Pieces of which no query sees any of the keys.
    compare::<E>(on, "many children far away", &layout, Heads { n_heads: 14, n_kv_heads: 1, head_dim: 8 }, Some(7));
}

/// Every shape of heads, every width that the kernels are compiled for among them.
pub(super) fn shapes_of_heads<E: Number>(on: &mut Judge<'_>) {
    for (i, &(n_heads, n_kv_heads, head_dim)) in HEADS.iter().enumerate() {
        let (heads, window) = (Heads { n_heads, n_kv_heads, head_dim }, WINDOWS[i % 4]);
        compare::<E>(on, "three segments", &[(40, None), (31, Some(0)), (2, Some(0))], heads, window);
    }
}

/// Pages of a cache for sequences of at most four pages: every third one, so that none follow each other.
fn pages(sequence: usize) -> Vec<u32> {
    (0..4).map(|i| ((i * 3 + sequence) * 5 % 13) as u32).collect()
}

/// Attention over a cache that the sequences' rows come to in pieces, `[sequence][row]` as they lie in `sequences`.
fn in_pieces<E: Element>(
    gpu: &Gpu,
    sequences: &[Vec<f32>],
    heads: Heads,
    window: Option<usize>,
    pieces: &[usize],
    split: bool,
) -> Result<Vec<Vec<f32>>, CudaError> {
    let row = heads.row();
    let mut cache = unwritten::<E>(gpu, 13 * PAGE * kernel_heads(heads).kv_width())?;
    let mut outs = vec![Vec::new(); sequences.len()];
    let pages: Vec<Vec<u32>> = (0..sequences.len()).map(pages).collect();
    let mut position = 0;
    for &piece in pieces {
        let (mut extensions, mut rows) = (Vec::new(), Vec::new());
        for (sequence, pages) in sequences.iter().zip(&pages) {
            let len = piece.min(sequence.len() / row - position.min(sequence.len() / row));
            extensions.push(kernel::Extension { start: rows.len() / row, len, position, pages });
            rows.extend_from_slice(&sequence[sequence.len().min(position * row)..][..len * row]);
        }
        let tables = kernel::CachedTables::new(&extensions, PAGE, kernel_heads(heads));
        let memory = gpu.upload("tables", tables.numbers())?;
        let batch = tables.at(memory.view());
        let qkv = upload::<E>(gpu, &rows)?;
        let mut out = unwritten::<E>(gpu, rows.len() / row * heads.q_width())?;
        let mut space = unwritten::<f32>(gpu, tables.partials())?;
        kernel::kv_append(gpu, cache.view_mut(), qkv.view(), &batch)?;
        let partials = split.then(|| space.view_mut());
        kernel::attention_cached(gpu, out.view_mut(), qkv.view(), cache.view(), &batch, window, partials)?;
        let out = download(gpu, &out)?;
        for (extension, outs) in extensions.iter().zip(&mut outs) {
            outs.extend_from_slice(&out[extension.start * heads.q_width()..][..extension.len * heads.q_width()]);
        }
        position += piece;
    }
    Ok(outs)
}

/// The rows `columns` wide that `rows` names.
fn pick(x: &[f32], rows: impl Iterator<Item = usize>, columns: usize) -> Vec<f32> {
    rows.flat_map(|row| &x[row * columns..][..columns]).copied().collect()
}

/// The same bits in a tree, alone, prefilled and decoded.
pub(super) fn paths<E: Number>(on: &mut Judge<'_>) {
    let is_f32 = size_of::<E>() == 4;
    let wide = (!is_f32).then_some((Heads { n_heads: 20, n_kv_heads: 1, head_dim: 24 }, Some(66)));
    for (heads, window) in
        [Some((GQA, None)), Some((GQA, Some(if is_f32 { 33 } else { 7 }))), wide].into_iter().flatten()
    {
        if on.takes_heads(heads.head_dim) {
            let case = format!("{} heads of {}, window {window:?}", heads.n_heads, heads.head_dim);
            on.case(case, 155 * GQA.row(), |on| on_every_path::<E>(on, heads, window));
        }
    }
}

fn on_every_path<E: Number>(on: &mut Judge<'_>, heads: Heads, window: Option<usize>) -> Result<(), CudaError> {
    let gpu = &on.gpu.clone();
    // A prompt that ends within a key block, two children, and another tree before and after.
    let tree = tree_of(&[(5, None), (70, None), (37, Some(1)), (3, Some(1)), (40, None)]);
    let qkv = random_rows::<E>(3, tree.rows(), heads);
    on.op("attention_fwd");
    let (packed, _) = forward::<E>(gpu, &qkv, &tree, heads, window)?;
    let paths: Vec<Vec<usize>> = [2, 3].map(|s| tree.path(s)).into();
    let rows_of = |path: &[usize]| -> Vec<usize> { path.iter().flat_map(|&s| tree.segments[s].rows()).collect() };
    let mut sequences = Vec::new();
    for path in &paths {
        let rows = rows_of(path);
        let sequence = pick(&qkv, rows.iter().copied(), heads.row());
        let (alone, _) = forward::<E>(gpu, &sequence, &tree_of(&[(rows.len(), None)]), heads, window)?;
        sequences.push(sequence);
        let want = pick(&packed, rows.into_iter(), heads.q_width());
        on.bits("alone and in a tree", &alone, &want);
    }
    let mut pieces = vec![60];
    pieces.extend([1; 7]);
    pieces.extend([2, 26]);
    pieces.extend([1; 12]);
    for split in [false, true] {
        on.op("kv_append and attention_cached");
        let cached = in_pieces::<E>(gpu, &sequences, heads, window, &pieces, split)?;
        for (path, cached) in paths.iter().zip(cached) {
            let want = pick(&packed, rows_of(path).into_iter(), heads.q_width());
            on.bits(&format!("cached, split {split}"), &cached, &want);
        }
    }
    Ok(())
}

/// Gradients of a tree do not depend on the others.
pub(super) fn neighbours<E: Number>(on: &mut Judge<'_>) {
    let (first, second) = (tree_of(SHARED_PROMPT), tree_of(NO_PARENTS));
    let together = tree_of(&[SHARED_PROMPT, NO_PARENTS].concat());
    let rows = together.rows();
    on.case("two trees alone and together", rows * GQA.row(), |on| {
        let gpu = &on.gpu.clone();
        let (qkv, dout) = (random_rows::<E>(4, rows, GQA), random::<E>(5, rows * GQA.q_width()));
        let gradient = |tree: &TokenTree, from: usize| {
            let rows = from..from + tree.rows();
            let qkv = &qkv[rows.start * GQA.row()..rows.end * GQA.row()];
            let dout = &dout[rows.start * GQA.q_width()..rows.end * GQA.q_width()];
            let (out, lse) = forward::<E>(gpu, qkv, tree, GQA, None)?;
            backward::<E>(gpu, [dout, &out, qkv], &lse, tree, GQA, None)
        };
        on.op("attention_fwd and attention_bwd");
        let alone = [gradient(&first, 0)?, gradient(&second, first.rows())?].concat();
        on.bits("", &gradient(&together, 0)?, &alone);
        Ok(())
    });
}

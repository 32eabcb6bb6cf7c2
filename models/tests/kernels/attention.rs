//! Attention: over token trees of every layout, forward and backward, and over a cache.

use crate::golden_data::golden;
use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::kernels::attention as kernel;
use ragen_cuda::{Buffer, Gpu};
use ragen_models::ops::attention::{Heads, PAGE, attention_bwd, attention_fwd};
use ragen_models::token_tree::TokenTree;
use ragen_models::twin::model::{Model, convert};
use ragen_models::weights;

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

fn tables(gpu: &Gpu, tree: &TokenTree, heads: Heads) -> kernel::Tree {
    let segment = |s: &ragen_models::token_tree::Segment| {
        let (start, len, parent, position) = (s.start, s.len, s.parent, s.position);
        kernel::Segment { start, len, parent, position }
    };
    let segments: Vec<kernel::Segment> = tree.segments.iter().map(segment).collect();
    kernel::Tree::new(gpu, &segments, kernel_heads(heads)).unwrap()
}

/// A buffer of what no kernel may leave there.
fn unwritten<E: Precision>(gpu: &Gpu, len: usize) -> Buffer<E> {
    upload::<E>(gpu, &vec![f32::NAN; len])
}

fn rounded<E: Precision>(x: Vec<f32>) -> Vec<f32> {
    x.into_iter().map(|x| E::from_f32(x).to_f32()).collect()
}

/// Random rows of q, k, v with scores of a spread that softmax is not flat at.
fn random_rows<E: Precision>(seed: u64, rows: usize, heads: Heads) -> Vec<f32> {
    let mut qkv = random::<E>(seed, rows * heads.row());
    for row in qkv.chunks_exact_mut(heads.row()) {
        row[..heads.q_width()].iter_mut().for_each(|q| *q *= 2.0 / (heads.head_dim as f32).sqrt());
    }
    rounded::<E>(qkv)
}

/// The kernels' out and lse.
fn forward<E: Precision>(
    gpu: &Gpu,
    qkv: &[f32],
    tree: &TokenTree,
    heads: Heads,
    window: Option<usize>,
) -> (Vec<f32>, Buffer<f32>) {
    let rows = tree.rows();
    let (qkv, tables) = (upload::<E>(gpu, qkv), tables(gpu, tree, heads));
    let (mut out, mut lse) = (unwritten::<E>(gpu, rows * heads.q_width()), unwritten::<f32>(gpu, rows * heads.n_heads));
    kernel::attention_fwd(gpu, out.view_mut(), lse.view_mut(), qkv.view(), &tables, window).unwrap();
    (download(gpu, &out), lse)
}

/// The kernels' dqkv.
fn backward<E: Precision>(
    gpu: &Gpu,
    [dout, out, qkv]: [&[f32]; 3],
    lse: &Buffer<f32>,
    tree: &TokenTree,
    heads: Heads,
    window: Option<usize>,
) -> Vec<f32> {
    let tables = tables(gpu, tree, heads);
    let (mut dqkv, mut space) = (unwritten::<E>(gpu, qkv.len()), unwritten::<f32>(gpu, tables.workspace()));
    let [dout, out, qkv] = [dout, out, qkv].map(|x| upload::<E>(gpu, x));
    let (dqkv_view, space) = (dqkv.view_mut(), space.view_mut());
    let (dout, out, qkv) = (dout.view(), out.view(), qkv.view());
    kernel::attention_bwd(gpu, dqkv_view, dout, out, lse.view(), qkv, &tables, window, space).unwrap();
    download(gpu, &dqkv)
}

/// Forward and backward of the CPU against those of the kernels.
fn check<E: Precision>(what: &str, tree: &TokenTree, heads: Heads, window: Option<usize>) {
    let Some(gpu) = gpu() else { return };
    let what = format!("{what}, {heads:?}, window {window:?}");
    let rows = tree.rows();
    let (qkv, dout) = (random_rows::<E>(1, rows, heads), random::<E>(2, rows * heads.q_width()));
    let (mut out, mut dqkv) = (vec![0.0; dout.len()], vec![0.0; qkv.len()]);
    attention_fwd(&cpu(), &mut out, &qkv, tree, heads, window);
    let (got, lse) = forward::<E>(gpu, &qkv, tree, heads, window);
    assert_near(&format!("attention_fwd of {what}"), &got, &out, E::NMSE);

    let out = rounded::<E>(out);
    attention_bwd(&cpu(), &mut dqkv, &dout, &out, &qkv, tree, heads, window);
    let got = backward::<E>(gpu, [&dout, &out, &qkv], &lse, tree, heads, window);
    let columns = [0, heads.q_width(), heads.v_column(0), heads.row()];
    for (part, columns) in ["q", "k", "v"].into_iter().zip(columns.windows(2)) {
        let part_of = |x: &[f32]| -> Vec<f32> {
            x.chunks_exact(heads.row()).flat_map(|row| &row[columns[0]..columns[1]]).copied().collect()
        };
        // A window of one key has probability 1: dq and dk are zeros, or what rounding leaves of them.
        if window == Some(1) && part != "v" {
            assert!(part_of(&got).iter().all(|x| x.abs() < 0.1), "d{part} of {what}");
        } else {
            assert_near(&format!("d{part} of {what}"), &part_of(&got), &part_of(&dqkv), E::NMSE);
        }
    }
}

#[test]
fn attention_over_every_layout_is_that_of_the_cpu() {
    for (i, (what, layout)) in LAYOUTS.iter().enumerate() {
        check::<f32>(what, &tree_of(layout), GQA, None);
        check::<bf16>(what, &tree_of(layout), GQA, None);
        let window = WINDOWS[1 + i % 3];
        check::<f32>(what, &tree_of(layout), GQA, window);
        check::<bf16>(what, &tree_of(layout), GQA, window);
    }
}

/// So many queries see the prompt that its gradient is made in pieces: 73 tiles, three pieces; fewer for the second tile of keys.
#[test]
fn attention_of_many_children_is_that_of_the_cpu() {
    let children = [(31, Some(0)); 8];
    let tree = tree_of(&[&[(70, None)], children.as_slice()].concat());
    let heads = Heads { n_heads: 14, n_kv_heads: 1, head_dim: 12 };
    check::<f32>("many children", &tree, heads, None);
    check::<bf16>("many children", &tree, heads, Some(40));
}

#[test]
fn attention_of_every_shape_of_heads_is_that_of_the_cpu() {
    for (i, &(n_heads, n_kv_heads, head_dim)) in HEADS.iter().enumerate() {
        let (heads, window) = (Heads { n_heads, n_kv_heads, head_dim }, WINDOWS[i % 4]);
        let tree = tree_of(&[(40, None), (31, Some(0)), (2, Some(0))]);
        check::<f32>("heads", &tree, heads, window);
        check::<bf16>("heads", &tree, heads, window);
    }
}

/// Pages of a cache for sequences of at most four pages: every third one, so that none follow each other.
fn pages(sequence: usize) -> Vec<u32> {
    (0..4).map(|i| ((i * 3 + sequence) * 5 % 13) as u32).collect()
}

/// Attention over a cache that the sequences' rows come to in pieces, `[sequence][row]` as they lie in `sequences`.
fn in_pieces<E: Precision>(
    gpu: &Gpu,
    sequences: &[Vec<f32>],
    heads: Heads,
    window: Option<usize>,
    pieces: &[usize],
    split: bool,
) -> Vec<Vec<f32>> {
    let row = heads.row();
    let mut cache = unwritten::<E>(gpu, 13 * PAGE * kernel_heads(heads).kv_width());
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
        let memory = gpu.upload("tables", tables.numbers()).unwrap();
        let batch = tables.at(memory.view());
        let qkv = upload::<E>(gpu, &rows);
        let mut out = unwritten::<E>(gpu, rows.len() / row * heads.q_width());
        let mut space = unwritten::<f32>(gpu, tables.partials());
        kernel::kv_append(gpu, cache.view_mut(), qkv.view(), &batch).unwrap();
        let partials = split.then(|| space.view_mut());
        kernel::attention_cached(gpu, out.view_mut(), qkv.view(), cache.view(), &batch, window, partials).unwrap();
        let out = download(gpu, &out);
        for (extension, outs) in extensions.iter().zip(&mut outs) {
            outs.extend_from_slice(&out[extension.start * heads.q_width()..][..extension.len * heads.q_width()]);
        }
        position += piece;
    }
    outs
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The rows `columns` wide that `rows` names.
fn pick(x: &[f32], rows: impl Iterator<Item = usize>, columns: usize) -> Vec<f32> {
    rows.flat_map(|row| &x[row * columns..][..columns]).copied().collect()
}

fn bits_are_those_of_the_path<E: Precision>(heads: Heads, window: Option<usize>) {
    let Some(gpu) = gpu() else { return };
    // A prompt that ends within a key block, two children, and another tree before and after.
    let tree = tree_of(&[(5, None), (70, None), (37, Some(1)), (3, Some(1)), (40, None)]);
    let qkv = random_rows::<E>(3, tree.rows(), heads);
    let (packed, _) = forward::<E>(gpu, &qkv, &tree, heads, window);
    let paths: Vec<Vec<usize>> = [2, 3].map(|s| tree.path(s)).into();
    let rows_of = |path: &[usize]| -> Vec<usize> { path.iter().flat_map(|&s| tree.segments[s].rows()).collect() };
    let mut sequences = Vec::new();
    for path in &paths {
        let rows = rows_of(path);
        sequences.push(pick(&qkv, rows.iter().copied(), heads.row()));
        let (alone, _) =
            forward::<E>(gpu, &sequences[sequences.len() - 1], &tree_of(&[(rows.len(), None)]), heads, window);
        let want = pick(&packed, rows.into_iter(), heads.q_width());
        assert_eq!(bits(&alone), bits(&want), "alone and in a tree, {heads:?}, window {window:?}");
    }
    let mut pieces = vec![60];
    pieces.extend([1; 7]);
    pieces.extend([2, 26]);
    pieces.extend([1; 12]);
    for split in [false, true] {
        let cached = in_pieces::<E>(gpu, &sequences, heads, window, &pieces, split);
        for (path, cached) in paths.iter().zip(cached) {
            let want = pick(&packed, rows_of(path).into_iter(), heads.q_width());
            assert_eq!(bits(&cached), bits(&want), "cached, {heads:?}, window {window:?}, split {split}");
        }
    }
}

#[test]
fn bits_are_equal_in_a_tree_alone_prefilled_and_decoded() {
    bits_are_those_of_the_path::<f32>(GQA, None);
    bits_are_those_of_the_path::<bf16>(GQA, None);
    bits_are_those_of_the_path::<f32>(GQA, Some(33));
    bits_are_those_of_the_path::<bf16>(GQA, Some(7));
    bits_are_those_of_the_path::<bf16>(Heads { n_heads: 20, n_kv_heads: 1, head_dim: 24 }, Some(66));
}

fn gradients_are_those_alone<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    let (first, second) = (tree_of(SHARED_PROMPT), tree_of(NO_PARENTS));
    let together = tree_of(&[SHARED_PROMPT, NO_PARENTS].concat());
    let rows = together.rows();
    let (qkv, dout) = (random_rows::<E>(4, rows, GQA), random::<E>(5, rows * GQA.q_width()));
    let gradient = |tree: &TokenTree, from: usize| {
        let rows = from..from + tree.rows();
        let qkv = &qkv[rows.start * GQA.row()..rows.end * GQA.row()];
        let dout = &dout[rows.start * GQA.q_width()..rows.end * GQA.q_width()];
        let (out, lse) = forward::<E>(gpu, qkv, tree, GQA, None);
        backward::<E>(gpu, [dout, &out, qkv], &lse, tree, GQA, None)
    };
    let alone = [gradient(&first, 0), gradient(&second, first.rows())].concat();
    assert_eq!(bits(&gradient(&together, 0)), bits(&alone));
}

#[test]
fn gradients_of_a_tree_do_not_depend_on_the_others() {
    gradients_are_those_alone::<f32>();
    gradients_are_those_alone::<bf16>();
}

/// Queries, keys and values of PyTorch's tiny models, whose logits the f64 twin reproduces: its attention is what is held against.
#[test]
fn attention_in_golden_models_is_that_of_the_f64_twin() {
    let Some(gpu) = gpu() else { return };
    for name in ["llama_gqa", "llama_gqa7", "mistral_window", "qwen3"] {
        let weights::Checkpoint { config: c, params } = weights::load(&golden("models").join(name)).unwrap();
        let rows: Vec<Vec<u32>> = vec![(0..40).map(|i| i * 7 % c.vocab as u32).collect(), vec![3, 1, 2]];
        let tree = TokenTree::from_rows(&rows);
        let weights = convert::<f64>(&params);
        let activations = Model { config: &c, table: &params.table, weights: &weights }.forward(&tree);
        let heads = Heads { n_heads: c.n_heads, n_kv_heads: c.n_kv_heads, head_dim: c.head_dim };
        let scale = 1.0 / (c.head_dim as f64).sqrt();
        for (l, layer) in activations.layers.iter().enumerate() {
            let mut qkv = Vec::new();
            for row in 0..tree.rows() {
                let part = |x: &[f64], width: usize| x[row * width..][..width].to_vec();
                let kv_width = c.n_kv_heads * c.head_dim;
                qkv.extend(part(&layer.q, heads.q_width()).iter().map(|q| (q * scale) as f32));
                qkv.extend(part(&layer.k, kv_width).iter().chain(&part(&layer.v, kv_width)).map(|&x| x as f32));
            }
            let want: Vec<f32> = layer.attended.iter().map(|&x| x as f32).collect();
            let (got, _) = forward::<f32>(gpu, &qkv, &tree, heads, c.window(l));
            assert_near(&format!("{name}, layer {l}"), &got, &want, f32::NMSE);
        }
    }
}

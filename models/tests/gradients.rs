//! The first link of the chain of trust: every backward of the twin against central differences in f64, relative 1e-6.
//!
//! Each check also starts from gradients that are not zero, so that a backward which overwrites instead of adding fails.

use ragen_models::config::{Family, Rope, RopeScaling, SlidingWindow, Yarn};
use ragen_models::params::Table;
use ragen_models::random::Key;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::Config;
use ragen_models::twin::model::{Model, PerTarget, Target};
use ragen_models::twin::*;

/// `n` standard normal numbers; another `stream`, other numbers.
fn normals(stream: u64, n: usize) -> Vec<f64> {
    let key = Key::new(41).with(stream);
    (0..n as u64).map(|i| key.normal(i)).collect()
}

/// f'(x) = (8 (f(x+h) − f(x−h)) − (f(x+2h) − f(x−2h))) / 12h, up to terms of order h⁴.
fn derivative(mut f: impl FnMut(f64) -> f64, x: f64) -> f64 {
    let h = 1e-4;
    (8.0 * (f(x + h) - f(x - h)) - (f(x + 2.0 * h) - f(x - 2.0 * h))) / (12.0 * h)
}

/// Checks what a backward added to one tensor's gradient.
fn assert_gradient(what: &str, analytic: &[f64], numeric: &[f64]) {
    assert_eq!(analytic.len(), numeric.len(), "{what}");
    let largest = numeric.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    for (i, (a, n)) in analytic.iter().zip(numeric).enumerate() {
        // The floor is there for elements whose true gradient is zero.
        let allowed = 1e-6 * n.abs() + 1e-9 * largest + 1e-12;
        assert!((a - n).abs() <= allowed, "{what}[{i}]: backward {a:e}, differences {n:e}");
    }
}

/// Checks an op of several inputs: the loss is Σ dy ⊙ y for a random dy.
fn check(
    what: &str,
    inputs: &[(&str, Vec<f64>)],
    forward: impl Fn(&[&[f64]]) -> Vec<f64>,
    backward: impl Fn(&[&[f64]], &[f64], &mut [&mut [f64]]),
) {
    let mut x: Vec<Vec<f64>> = inputs.iter().map(|(_, x)| x.clone()).collect();
    let y_of = |x: &[Vec<f64>]| forward(&x.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let dy = normals(1000, y_of(&x).len());

    let before: Vec<Vec<f64>> = x.iter().enumerate().map(|(t, x)| normals(2000 + t as u64, x.len())).collect();
    let mut grads = before.clone();
    backward(
        &x.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        &dy,
        &mut grads.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
    );

    for (t, (name, _)) in inputs.iter().enumerate() {
        let numeric: Vec<f64> = (0..x[t].len())
            .map(|i| {
                let at = x[t][i];
                let slope = derivative(
                    |v| {
                        x[t][i] = v;
                        y_of(&x).iter().zip(&dy).map(|(y, dy)| y * dy).sum()
                    },
                    at,
                );
                x[t][i] = at;
                slope
            })
            .collect();
        let added: Vec<f64> = grads[t].iter().zip(&before[t]).map(|(g, b)| g - b).collect();
        assert_gradient(&format!("{what}: d{name}"), &added, &numeric);
    }
}

/// Two roots; the first has two children, one of which has a child of its own.
fn tree() -> TokenTree {
    let mut tree = TokenTree::new();
    let root = tree.push(None, &[3, 1, 4]);
    let child = tree.push(Some(root), &[1, 5]);
    tree.push(Some(root), &[9, 2, 6]);
    tree.push(Some(child), &[5, 3]);
    tree.push(None, &[5, 8]);
    tree
}

#[test]
fn embedding() {
    let ids = [2, 0, 2, 4];
    check(
        "embedding",
        &[("table", normals(1, 5 * 3))],
        |x| embedding_fwd(x[0], &ids, 3),
        |_, dy, g| embedding_bwd(&ids, dy, 3, g[0]),
    );
}

#[test]
fn linear_with_and_without_bias() {
    for rows in [0, 1, 3] {
        let (x, w, b) = (normals(2, rows * 4), normals(3, 5 * 4), normals(4, 5));
        check(
            "linear",
            &[("x", x.clone()), ("w", w.clone())],
            |x| linear_fwd(x[0], x[1], None, 4),
            |x, dy, g| {
                let [dx, dw] = g else { unreachable!() };
                linear_bwd(x[0], x[1], dy, 4, dx, dw, None);
            },
        );
        check(
            "linear with bias",
            &[("x", x), ("w", w), ("b", b)],
            |x| linear_fwd(x[0], x[1], Some(x[2]), 4),
            |x, dy, g| {
                let [dx, dw, db] = g else { unreachable!() };
                linear_bwd(x[0], x[1], dy, 4, dx, dw, Some(db));
            },
        );
    }
}

#[test]
fn rms_norm() {
    for (rows, width) in [(1, 1), (3, 5), (4, 2)] {
        check(
            "norm",
            &[("x", normals(5, rows * width)), ("w", normals(6, width))],
            |x| rms_norm_fwd(x[0], x[1], 0.1),
            |x, dy, g| {
                let [dx, dw] = g else { unreachable!() };
                rms_norm_bwd(x[0], x[1], dy, 0.1, dx, dw);
            },
        );
    }
}

/// One of each kind, for heads of width 6 and an original context of 8 positions.
fn scalings() -> Vec<RopeScaling> {
    let yarn = Yarn {
        factor: 4.0,
        original_max_positions: 8,
        beta_fast: 1.0,
        beta_slow: 0.1,
        attention_factor: None,
        mscale: None,
        mscale_all_dim: None,
        truncate: false,
    };
    vec![
        RopeScaling::Default,
        RopeScaling::Linear { factor: 2.5 },
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 0.2, high_freq_factor: 1.0, original_max_positions: 8 },
        RopeScaling::Yarn(yarn),
        RopeScaling::Dynamic { factor: 2.0 },
    ]
}

#[test]
fn rope() {
    let positions = [0, 7, 3];
    for scaling in scalings() {
        let rotation = Rotation::new(&Rope { theta: 500.0, scaling }, 6, 8, 24);
        check(
            "rope",
            &[("x", normals(7, 3 * 2 * 6))],
            |x| rope_fwd(x[0], &positions, &rotation),
            |_, dy, g| rope_bwd(dy, &positions, &rotation, g[0]),
        );
    }
}

#[test]
fn attention_over_a_tree() {
    let tree = tree();
    for (heads, kv_heads, window) in
        [(1, 1, None), (4, 2, None), (3, 1, None), (1, 1, Some(1)), (4, 2, Some(3)), (3, 1, Some(4)), (2, 2, Some(99))]
    {
        let (q, kv) = (tree.rows() * heads * 2, tree.rows() * kv_heads * 2);
        check(
            "attention",
            &[("q", normals(8, q)), ("k", normals(9, kv)), ("v", normals(10, kv))],
            |x| attention_fwd(x[0], x[1], x[2], &tree, heads, kv_heads, 2, window),
            |x, dy, g| {
                let [dq, dk, dv] = g else { unreachable!() };
                attention_bwd(x[0], x[1], x[2], dy, &tree, heads, kv_heads, 2, window, dq, dk, dv);
            },
        );
    }
}

#[test]
fn swiglu_and_residual() {
    let inputs = [("a", normals(11, 9)), ("b", normals(12, 9))];
    check(
        "swiglu",
        &inputs,
        |x| swiglu_fwd(x[0], x[1]),
        |x, dy, g| {
            let [dgate, dup] = g else { unreachable!() };
            swiglu_bwd(x[0], x[1], dy, dgate, dup);
        },
    );
    check(
        "residual",
        &inputs,
        |x| residual_fwd(x[0], x[1]),
        |_, dy, g| {
            let [dx, dbranch] = g else { unreachable!() };
            residual_bwd(dy, dx, dbranch);
        },
    );
}

#[test]
fn token_logp_and_entropy() {
    for kept in [None, Some(&[1, 3, 6][..]), Some(&[3][..])] {
        for temperature in [1.0, 0.7] {
            check(
                "head",
                &[("logits", normals(13, 8))],
                |x| {
                    let (logp, entropy) = token_fwd(x[0], 3, kept, temperature);
                    vec![logp, entropy]
                },
                |x, dy, g| token_bwd(x[0], 3, kept, temperature, dy[0], dy[1], g[0]),
            );
        }
    }
}

#[test]
fn two_layer_model() {
    let base = Config {
        family: Family::Llama,
        vocab: 11,
        d_model: 6,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 4,
        d_ff: 5,
        rope: Rope::plain(100.0),
        sliding_window: None,
        norm_eps: 1e-2,
        tied_embeddings: false,
        qkv_bias: false,
        qk_norm: false,
        value_head: false,
        max_positions: 16,
    };
    let variants = [
        base.clone(),
        Config { tied_embeddings: true, qkv_bias: true, ..base.clone() },
        Config { qk_norm: true, value_head: true, n_kv_heads: 1, ..base.clone() },
        Config { tied_embeddings: true, qkv_bias: true, qk_norm: true, value_head: true, ..base.clone() },
        Config { sliding_window: Some(SlidingWindow { size: 3, layers: vec![true, true] }), ..base.clone() },
        Config {
            sliding_window: Some(SlidingWindow { size: 2, layers: vec![false, true] }),
            qkv_bias: true,
            ..base.clone()
        },
    ];
    let scaled = |scaling| Config { rope: Rope { theta: 100.0, scaling }, ..base.clone() };
    let variants: Vec<Config> = variants.into_iter().chain(scalings().into_iter().skip(1).map(scaled)).collect();
    let tree = tree();
    let targets: Vec<Target> = [(0, 1, None), (2, 1, Some(vec![1, 4])), (2, 9, None), (7, 0, None), (9, 10, None)]
        .map(|(row, token, kept)| Target { row, token, kept })
        .to_vec();
    for config in variants {
        let table = Table::new(&config);
        let mut weights: Vec<f64> = normals(14, table.len()).iter().map(|w| 0.5 * w).collect();
        let seeds = PerTarget {
            logp: normals(15, targets.len()),
            entropy: normals(16, targets.len()),
            value: if config.value_head { normals(17, targets.len()) } else { Vec::new() },
        };
        let loss = |weights: &[f64]| -> f64 {
            let model = Model { config: &config, table: &table, weights };
            let s = model.score(&model.forward(&tree), &targets, 0.7);
            [(s.logp, &seeds.logp), (s.entropy, &seeds.entropy), (s.value, &seeds.value)]
                .iter()
                .flat_map(|(x, seed)| x.iter().zip(seed.iter()).map(|(x, seed)| x * seed))
                .sum()
        };
        let before = normals(18, table.len());
        let mut grads = before.clone();
        let model = Model { config: &config, table: &table, weights: &weights };
        model.backward(&tree, &model.forward(&tree), &targets, 0.7, &seeds, &mut grads);
        for entry in &table.entries {
            let numeric: Vec<f64> = entry
                .range()
                .map(|i| {
                    let at = weights[i];
                    let slope = derivative(
                        |v| {
                            weights[i] = v;
                            loss(&weights)
                        },
                        at,
                    );
                    weights[i] = at;
                    slope
                })
                .collect();
            let added: Vec<f64> = entry.range().map(|i| grads[i] - before[i]).collect();
            assert!(numeric.iter().any(|n| n.abs() > 1e-6), "{} has no gradient in {config:?}", entry.name);
            assert_gradient(&format!("{} in {config:?}", entry.name), &added, &numeric);
        }
    }
}

#[test]
fn a_shared_prefix_gives_what_its_rows_give_alone() {
    for window in [None, Some(4)] {
        shared_prefix(window.map(|size| SlidingWindow { size, layers: vec![true, true] }));
    }
}

fn shared_prefix(sliding_window: Option<SlidingWindow>) {
    let config = Config {
        family: Family::Llama,
        vocab: 11,
        d_model: 8,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 2,
        d_ff: 12,
        rope: Rope::plain(1e4),
        sliding_window,
        norm_eps: 1e-5,
        tied_embeddings: true,
        qkv_bias: false,
        qk_norm: false,
        value_head: false,
        max_positions: 16,
    };
    let table = Table::new(&config);
    let weights = normals(19, table.len());
    let model = Model { config: &config, table: &table, weights: &weights };
    let tree = tree();
    let packed = model.logits(&model.forward(&tree));
    for (s, segment) in tree.segments.iter().enumerate() {
        let row: Vec<u32> = tree.path(s).iter().flat_map(|&p| &tree.ids[tree.segments[p].rows()]).copied().collect();
        let alone = model.logits(&model.forward(&TokenTree::from_rows(&[row])));
        let own = &packed[segment.start * config.vocab..][..segment.len * config.vocab];
        let expected = &alone[segment.position * config.vocab..];
        assert_eq!(own, expected, "segment {s}");
    }
}

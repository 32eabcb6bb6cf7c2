//! Two-layer models of several kinds with random weights, a branching tree to run them on, and seeds for its targets.

use ragen_models::config::{Config, Family, Rope, RopeScaling, SlidingWindow, Yarn};
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::Transformer;

/// Kinds 0 to 2: biases, norms, neither; from 3 on the same with windows and with scaled RoPE, which the trees below reach beyond.
pub const KINDS: usize = 6;

/// The shape of a kind.
pub fn config(kind: usize) -> Config {
    let like = [0, 1, 2, 0, 1, 2][kind];
    let window = |size, layers: [bool; 2]| Some(SlidingWindow { size, layers: layers.to_vec() });
    Config {
        family: [Family::Qwen2, Family::Qwen3, Family::Llama][like],
        vocab: 83,
        d_model: 40,
        n_layers: 2,
        n_heads: [4, 6, 2][like],
        n_kv_heads: [2, 1, 2][like],
        head_dim: [10, 24, 32][like],
        d_ff: 72,
        rope: Rope { theta: 500.0, scaling: scaling(kind) },
        sliding_window: match kind {
            3 => window(7, [true, true]),
            4 => window(33, [true, false]),
            5 => window(17, [false, true]),
            _ => None,
        },
        norm_eps: 1e-5,
        tied_embeddings: like == 1,
        qkv_bias: like == 0,
        qk_norm: like == 1,
        value_head: like != 2,
        max_positions: 256,
    }
}

/// The scaled RoPE of a kind.
pub fn scaling(kind: usize) -> RopeScaling {
    match kind {
        3 => RopeScaling::Linear { factor: 2.5 },
        4 => RopeScaling::Yarn(Yarn {
            factor: 4.0,
            original_max_positions: 32,
            beta_fast: 4.0,
            beta_slow: 0.5,
            attention_factor: None,
            mscale: Some(0.8),
            mscale_all_dim: Some(0.3),
            truncate: false,
        }),
        5 => {
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 32 }
        }
        _ => RopeScaling::Default,
    }
}

/// Every parameter random, so that no gradient is zero by accident.
pub fn weights(config: &Config) -> Params {
    let mut params = Transformer::initial(config, 1);
    for (i, w) in params.data.iter_mut().enumerate() {
        *w += (0.1 * Key::new(9).normal(i as u64)) as f32;
    }
    params
}

/// `n` random ids.
pub fn ids(seed: u64, n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| Key::new(seed).below(i as u64, vocab) as u32).collect()
}

/// A root with two children, one of which has a child (an empty one too), and a second tree; segments of these lengths: the root, its
/// child, the one below the empty one, the grandchild, the second tree.
pub fn branching(vocab: usize, lens: [usize; 5]) -> TokenTree {
    let mut tree = TokenTree::new();
    let root = tree.push(None, &ids(1, lens[0], vocab));
    let a = tree.push(Some(root), &ids(2, lens[1], vocab));
    let empty = tree.push(Some(root), &[]);
    tree.push(Some(empty), &ids(3, lens[2], vocab));
    tree.push(Some(a), &ids(4, lens[3], vocab));
    tree.push(None, &ids(5, lens[4], vocab));
    tree
}

/// Every other row, some with a kept set.
pub fn targets(tree: &TokenTree, vocab: usize) -> Vec<Target> {
    (0..tree.rows())
        .step_by(2)
        .map(|row| {
            let token = Key::new(77).below(row as u64, vocab) as u32;
            let mut kept: Vec<u32> = ids(row as u64 + 100, 9, vocab);
            kept.push(token);
            kept.sort_unstable();
            kept.dedup();
            Target { row, token, kept: (row % 6 == 0).then_some(kept) }
        })
        .collect()
}

/// Random seeds of `n` targets.
pub fn seeds(n: usize, value: bool) -> PerTarget<f32> {
    let draw = |k: u64, n: usize| (0..n).map(|i| Key::new(k).normal(i as u64) as f32).collect();
    PerTarget { logp: draw(21, n), entropy: draw(22, n), value: draw(23, if value { n } else { 0 }) }
}

/// **Panics** when a number is further off than `tolerance` times the largest one wanted.
pub fn assert_near(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() <= tolerance * scale, "{what}[{i}] = {g}, not {w} (scale {scale})");
    }
}

//! Causal grouped-query attention over the packed token tree (Ainslie et al. 2023, *GQA*; decision D1).
//!
//! Query head h reads key and value head h / (n_heads / n_kv_heads). A token attends to itself, to earlier tokens of its
//! segment and to all tokens of the segment's ancestors: exactly the tokens on its path from the root, or the last `window`
//! of these. Otherwise position plays no part here; it entered q and k by RoPE.

use super::{Float, add_scaled, dot};
use crate::token_tree::TokenTree;

/// Packed rows of the tokens from the root to the end of `segment`. Its token i attends to the first position + i + 1.
fn path_rows(tree: &TokenTree, segment: usize) -> Vec<usize> {
    tree.path(segment).into_iter().flat_map(|s| tree.segments[s].rows()).collect()
}

/// Calls `visit(query row, key rows)` for every packed row; a query sees at most `window` keys.
fn for_each_query(tree: &TokenTree, window: Option<usize>, mut visit: impl FnMut(usize, &[usize])) {
    for (s, segment) in tree.segments.iter().enumerate() {
        let path = path_rows(tree, s);
        for (i, row) in segment.rows().enumerate() {
            let end = segment.position + i + 1;
            visit(row, &path[window.map_or(0, |window| end.saturating_sub(window))..end]);
        }
    }
}

/// softmax_j(q · k_j / √head_dim) over the key rows; `head` is the key head's place within a row of k.
fn probabilities<T: Float>(
    q: &[T],
    k: &[T],
    keys: &[usize],
    kv_width: usize,
    head: &std::ops::Range<usize>,
    scale: T,
) -> Vec<T> {
    let scores: Vec<T> = keys.iter().map(|&j| scale * dot(q, &k[j * kv_width..][head.clone()])).collect();
    super::log_softmax(&scores, T::ONE).into_iter().map(T::exp).collect()
}

/// **Math** For each query: s_j = q · k_j / √head_dim, p = softmax(s), y = Σ_j p_j v_j.
///
/// **Shapes** `q` [rows, n_heads · head_dim], `k` and `v` [rows, n_kv_heads · head_dim], y as q.
pub fn attention_fwd<T: Float>(
    q: &[T],
    k: &[T],
    v: &[T],
    tree: &TokenTree,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
) -> Vec<T> {
    let kv_width = n_kv_heads * head_dim;
    let scale = T::ONE / T::from_f64(head_dim as f64).sqrt();
    let mut y = vec![T::ZERO; q.len()];
    for_each_query(tree, window, |row, keys| {
        for h in 0..n_heads {
            let query = (row * n_heads + h) * head_dim..(row * n_heads + h + 1) * head_dim;
            let group = h / (n_heads / n_kv_heads);
            let head = group * head_dim..(group + 1) * head_dim;
            let p = probabilities(&q[query.clone()], k, keys, kv_width, &head, scale);
            for (&p, &j) in p.iter().zip(keys) {
                add_scaled(&mut y[query.clone()], p, &v[j * kv_width..][head.clone()]);
            }
        }
    });
    y
}

/// **Math** With p recomputed and dp_j = dy · v_j: ds_j = p_j (dp_j − Σ_l p_l dp_l) / √head_dim; dq += Σ_j ds_j k_j,
/// dk_j += ds_j q, dv_j += p_j dy. A key shared by several heads or by several children of its segment gets the sum.
///
/// **Shapes** as in [`attention_fwd`].
pub fn attention_bwd<T: Float>(
    q: &[T],
    k: &[T],
    v: &[T],
    dy: &[T],
    tree: &TokenTree,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    dq: &mut [T],
    dk: &mut [T],
    dv: &mut [T],
) {
    let kv_width = n_kv_heads * head_dim;
    let scale = T::ONE / T::from_f64(head_dim as f64).sqrt();
    for_each_query(tree, window, |row, keys| {
        for h in 0..n_heads {
            let query = (row * n_heads + h) * head_dim..(row * n_heads + h + 1) * head_dim;
            let group = h / (n_heads / n_kv_heads);
            let head = group * head_dim..(group + 1) * head_dim;
            let (q, dy) = (&q[query.clone()], &dy[query.clone()]);
            let p = probabilities(q, k, keys, kv_width, &head, scale);
            let dp: Vec<T> = keys.iter().map(|&j| dot(dy, &v[j * kv_width..][head.clone()])).collect();
            let mean_dp = dot(&p, &dp);
            for (t, &j) in keys.iter().enumerate() {
                let ds = scale * p[t] * (dp[t] - mean_dp);
                add_scaled(&mut dq[query.clone()], ds, &k[j * kv_width..][head.clone()]);
                add_scaled(&mut dk[j * kv_width..][head.clone()], ds, q);
                add_scaled(&mut dv[j * kv_width..][head.clone()], p[t], dy);
            }
        }
    });
}

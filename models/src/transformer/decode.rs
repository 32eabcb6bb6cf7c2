//! The forward pass over a KV cache: prefill and decode of many sequences at once.
//!
//! Sequences are independent rows, so they are dealt out to the threads, each of which runs all layers on its share; when there
//! is only one share, its ops use all threads instead. Either way the bits are those of one pass over the token tree.

use super::Transformer;
use super::layer::{LayerActivations, Scratch, sized};
use crate::device::Cpu;
use crate::kv_cache::{CacheId, KvCache};
use crate::ops::attention::{Heads, PAGE, PageLayout, attend_run, attend_token};
use crate::ops::embedding::embedding_fwd;
use crate::ops::linear::linear_fwd;
use crate::ops::norm::{Layout, rmsnorm_fwd};
use crate::threads::Shards;
use std::sync::PoisonError;

/// Buffers of one decode worker.
#[derive(Default)]
pub(super) struct Workspace {
    acts: LayerActivations,
    scratch: Scratch,
    out: Vec<f32>,
    last: Vec<f32>,
    positions: Vec<u32>,
    ids: Vec<u32>,
}

/// Tokens that a sequence grows by.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The sequence.
    pub id: CacheId,
    /// Its new tokens, at least one.
    pub tokens: &'a [u32],
}

/// One sequence's new rows, and the pages of its path.
struct Run {
    position: usize,
    rows: usize,
    pages: Vec<*mut f32>,
}

// SAFETY: the pages that a run writes belong to its sequence alone (`KvCache::grow`), and shared pages are only read.
unsafe impl Sync for Run {}

/// Fewest rows that make a share of their own.
const SHARE: usize = 16;

impl Transformer {
    /// Heads of the attention, as a cache for this model needs them.
    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// An empty cache for this model.
    pub fn new_cache(&self, cpu: &Cpu) -> KvCache {
        KvCache::new(cpu.isa, self.config.n_layers, self.heads)
    }

    /// Appends tokens to sequences and returns the logits after each one's last token, `[appends, vocab]`.
    ///
    /// **Panics** when a sequence is named twice or outgrows the context, or on an id outside the vocabulary.
    pub fn extend(&self, cpu: &Cpu, cache: &mut KvCache, appends: &[Append<'_>], logits: &mut Vec<f32>) {
        let mut runs = Vec::with_capacity(appends.len());
        for append in appends {
            let position = cache.len(append.id);
            assert!(!append.tokens.is_empty() && position + append.tokens.len() <= self.rope.positions());
            cache.grow(append.id, append.tokens.len());
            runs.push(Run { position, rows: append.tokens.len(), pages: Vec::new() });
        }
        // After all growth, since growing one fork of a sequence decides which fork keeps a shared page.
        for (run, append) in runs.iter_mut().zip(appends) {
            run.pages = cache.pointers(append.id);
        }
        let vocab = self.config.vocab;
        let shards = Shards::new(sized(logits, appends.len() * vocab));
        let shares = shares(&runs, cpu.pool.threads());
        cpu.pool.run(shares.len(), &|s| {
            let share = shares[s].clone();
            // SAFETY: shares are disjoint ranges of sequences.
            let logits = unsafe { shards.part(share.start * vocab..share.end * vocab) };
            let mut space = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
            self.extend_share(cpu, cache, &appends[share.clone()], &runs[share], logits, &mut space);
            self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(space);
        });
    }

    fn extend_share(
        &self,
        cpu: &Cpu,
        cache: &KvCache,
        appends: &[Append<'_>],
        runs: &[Run],
        logits: &mut [f32],
        space: &mut Workspace,
    ) {
        let d = self.config.d_model;
        let Workspace { acts, scratch, out, last, positions, ids } = space;
        positions.clear();
        ids.clear();
        for (run, append) in runs.iter().zip(appends) {
            positions.extend((run.position..run.position + run.rows).map(|p| p as u32));
            ids.extend_from_slice(append.tokens);
        }
        let rows = ids.len();
        embedding_fwd(sized(&mut acts.x, rows * d), ids, &self.params.data[self.embedding.clone()], d);
        for layer in 0..self.config.n_layers {
            self.layer_fwd(cpu, layer, acts, out, scratch, positions, &|qkv, attention| {
                attend_cached(cpu, cache, layer, self.heads, self.config.window(layer), runs, qkv, attention);
            });
            std::mem::swap(&mut acts.x, out);
        }
        // Only the last row of each sequence is asked for.
        let last = sized(last, runs.len() * d);
        let mut end = 0;
        for (row, run) in last.chunks_exact_mut(d).zip(runs) {
            end += run.rows;
            row.copy_from_slice(&acts.x[(end - 1) * d..end * d]);
        }
        let normed = sized(&mut scratch.normed, last.len());
        let rstd = sized(&mut acts.x_rstd, runs.len());
        let gain = &self.params.data[self.final_norm.clone()];
        rmsnorm_fwd(cpu, normed, d, rstd, last, gain, self.config.norm_eps as f32, Layout::plain(runs.len(), d));
        linear_fwd(cpu, logits, normed, &self.head, false);
    }
}

/// Ranges of sequences with about equally many rows; one a thread, or fewer when there are few rows.
fn shares(runs: &[Run], threads: usize) -> Vec<std::ops::Range<usize>> {
    let total: usize = runs.iter().map(|r| r.rows).sum();
    let wanted = (total / SHARE).clamp(1, threads).min(runs.len());
    let mut shares = Vec::with_capacity(wanted);
    let (mut start, mut rows) = (0, 0);
    for (i, run) in runs.iter().enumerate() {
        rows += run.rows;
        if rows * wanted >= total * (shares.len() + 1) || i + 1 == runs.len() {
            shares.push(start..i + 1);
            start = i + 1;
        }
    }
    shares
}

/// Writes the new keys and values into the pages, then attends over them.
fn attend_cached(
    cpu: &Cpu,
    cache: &KvCache,
    layer: usize,
    heads: Heads,
    window: Option<usize>,
    runs: &[Run],
    qkv: &[f32],
    out: &mut [f32],
) {
    let layout: PageLayout = cache.layout;
    let (row, width, hd) = (heads.row(), heads.q_width(), heads.head_dim);
    let starts: Vec<usize> = runs.iter().scan(0, |at, run| Some(std::mem::replace(at, *at + run.rows))).collect();
    let shards = Shards::new(out);
    cpu.pool.run(runs.len() * heads.n_kv_heads, &|task| {
        let (i, h) = (task / heads.n_kv_heads, task % heads.n_kv_heads);
        let (run, start) = (&runs[i], starts[i]);
        let offset = cache.offset(layer, h);
        // SAFETY: every page holds all layers and heads.
        let pages: Vec<*const f32> = run.pages.iter().map(|p| unsafe { p.add(offset) }.cast_const()).collect();
        for r in 0..run.rows {
            let position = run.position + r;
            // SAFETY: the page of a new position belongs to this sequence, and this head's part of it to this task.
            let page =
                unsafe { std::slice::from_raw_parts_mut(run.pages[position / PAGE].add(offset), layout.elements()) };
            let token = &qkv[(start + r) * row..][..row];
            layout.write(page, position % PAGE, &token[heads.k_column(h)..][..hd], &token[heads.v_column(h)..][..hd]);
        }
        if run.rows == 1 {
            let columns = h * heads.group() * hd..(h + 1) * heads.group() * hd;
            // SAFETY: this task alone writes these columns of this row.
            let out = unsafe { shards.part(start * width + columns.start..start * width + columns.end) };
            attend_token(cpu.isa, heads, h, &qkv[start * row..][..row], out, run.position, &pages, window);
        } else {
            // SAFETY: the run's rows exist, and this task alone writes these heads' columns of them.
            unsafe {
                let out = shards.at(start * width);
                attend_run(cpu.isa, heads, h, qkv[start * row..].as_ptr(), out, run.rows, run.position, &pages, window);
            }
        }
    });
}

//! Causal grouped-query attention: launchers of `attention.cu`, `attention_bwd.cu` and `attention_decode.cu`.
//! The CPU's ops are in `ragen_models::ops::attention`.
//!
//! A [`Tree`] or a [`Cached`] says which rows attend to which: made once a batch, used by all layers. A layer of the cache is
//! `[pages · page, 2 · n_kv_heads · head_dim]`, a row for a position: its k of all key heads, then its v, as they lie in a row of q, k
//! and v. So a page is `page` rows that follow each other.
//!
//! Bits of an output row depend on its query and on the keys of its path alone: forward, prefill over a cache in any pieces and decoding
//! give the same.

mod tables;

pub use tables::{Cached, CachedTables, Extension, Segment, Tree};

use super::{Kernel, Shape, Work, args};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::{Source, Unit};
use crate::{CudaError, Gpu};
use tables::Queries;

static FORWARD: Source = Source { file: "attention.cu", text: include_str!("../../../kernels/attention.cu") };
static DECODE: Source =
    Source { file: "attention_decode.cu", text: include_str!("../../../kernels/attention_decode.cu") };
static BACKWARD: Source = Source { file: "attention_bwd.cu", text: include_str!("../../../kernels/attention_bwd.cu") };

const THREADS: u32 = 128;

/// Positions in a key block, and keys in a tile of them.
const KEYS: usize = 64;

/// Query rows in a tile.
const TILE: usize = 64;

/// Query rows in a tile of attention_decode.
const TILE_FEW: usize = 16;

/// Key blocks that a block of threads goes through when attention_decode leaves partial results.
const SHARE: usize = 4;

/// More key blocks than any path has.
const ALL: usize = 1 << 30;

/// Fewest tiles of queries in a piece of the readers of some keys, and most pieces: what it pays to deal out, and to keep sums of.
const PIECE: (usize, usize) = (32, 4);

/// Readers in a piece, of `readers` in all.
fn piece_len(readers: usize) -> usize {
    PIECE.0.max(readers.div_ceil(PIECE.1))
}

/// The widths of heads that the kernels are compiled for.
pub const WIDTHS: [usize; 5] = [16, 32, 64, 96, 128];

/// The width that heads of `head_dim` are worked on as; `None` for wider heads than there are kernels for.
pub fn head_width(head_dim: usize) -> Option<usize> {
    WIDTHS.into_iter().find(|&width| head_dim <= width)
}

/// Shape of the attention of one layer; a token's row is all its q heads, then k, then v.
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
    /// Width of k and v of all key heads: of a row of the cache.
    pub fn kv_width(&self) -> usize {
        2 * self.n_kv_heads * self.head_dim
    }
    /// Width of a row of q, k and v.
    pub fn row(&self) -> usize {
        self.q_width() + self.kv_width()
    }

    fn of(shape: &Shape) -> Self {
        let [n_heads, n_kv_heads, head_dim] = shape.heads;
        Heads { n_heads, n_kv_heads, head_dim }
    }

    fn check(&self) {
        assert!(self.n_kv_heads > 0 && self.n_heads.is_multiple_of(self.n_kv_heads) && self.n_heads > 0, "{self:?}");
        assert!(self.head_dim > 0 && head_width(self.head_dim).is_some(), "{self:?}");
    }

    fn width(&self) -> usize {
        head_width(self.head_dim).unwrap_or(WIDTHS[WIDTHS.len() - 1])
    }

    fn unit<E: Element>(&self, kernel: &Kernel) -> Unit {
        Unit { head_dim: self.width() as u32, ..kernel.unit::<E>() }
    }

    /// Bytes of `rows` rows of a head in shared memory.
    fn staged(&self, rows: usize, element_bytes: usize) -> usize {
        rows * (self.width() + 8) * element_bytes
    }
}

fn forward_bytes(heads: &Heads, element_bytes: usize) -> usize {
    heads.staged(4 * KEYS, element_bytes)
}

fn decode_bytes(heads: &Heads, element_bytes: usize) -> usize {
    heads.staged(4 * KEYS + TILE_FEW, element_bytes) + TILE_FEW * (KEYS + 8) * size_of::<f32>()
}

fn backward_kv_bytes(heads: &Heads, element_bytes: usize) -> usize {
    heads.staged(2 * KEYS + 2 * TILE, element_bytes) + 3 * TILE * size_of::<f32>()
}

/// The kernels of `attention.cu`, `attention_decode.cu` and `attention_bwd.cu`.
pub const KERNELS: &[Kernel] = &[
    ATTENTION_FWD,
    KV_APPEND,
    ATTENTION_DECODE,
    ATTENTION_MERGE,
    ATTENTION_DELTA,
    ATTENTION_BWD_Q,
    ATTENTION_BWD_KV,
    ATTENTION_BWD_ADD,
];

/// `products` products of every query head with all the keys that it sees, half of the sequence; `q_rows` and `kv_rows` times rows of q
/// and of k and v moved; `floats` numbers for each query.
fn work(s: &Shape, products: usize, q_rows: usize, kv_rows: usize, floats: usize) -> Work {
    let heads = Heads::of(s);
    let elements = s.rows * (q_rows * heads.q_width() + kv_rows * heads.kv_width());
    let pairs = (s.rows * heads.q_width()) as f64 * (s.sequence + 1) as f64 / 2.0;
    Work {
        bytes: (elements * s.element_bytes + 4 * floats * s.rows * heads.n_heads) as f64,
        flops: 2.0 * products as f64 * pairs,
    }
}

/// A kernel of attention, in every width of heads.
const fn attention(name: &'static str, source: &'static Source) -> Kernel {
    Kernel { head_dims: &WIDTHS, ..Kernel::new(name, source, THREADS) }
}

const ATTENTION_FWD: Kernel = Kernel {
    shared_bytes: |s| forward_bytes(&Heads::of(s), s.element_bytes),
    work: |s| work(s, 2, 2, 1, 1),
    ..attention("attention_fwd", &FORWARD)
};
const KV_APPEND: Kernel = Kernel {
    work: |s| Work { bytes: (s.rows * 2 * Heads::of(s).kv_width() * s.element_bytes) as f64, flops: 0.0 },
    ..attention("kv_append", &DECODE)
};
// One new token for each sequence of the shape.
const ATTENTION_DECODE: Kernel = Kernel {
    shared_bytes: |s| decode_bytes(&Heads::of(s), s.element_bytes),
    work: |s| {
        let heads = Heads::of(s);
        let (keys, queries) = (s.rows * heads.kv_width(), s.rows / s.sequence * 2 * heads.q_width());
        Work { bytes: ((keys + queries) * s.element_bytes) as f64, flops: 4.0 * (s.rows * heads.q_width()) as f64 }
    },
    ..attention("attention_decode", &DECODE)
};
const ATTENTION_MERGE: Kernel = Kernel {
    work: |s| {
        let heads = Heads::of(s);
        let partials = s.rows / s.sequence * s.sequence.div_ceil(KEYS) * heads.n_heads;
        let out = s.rows / s.sequence * heads.q_width() * s.element_bytes;
        Work {
            bytes: (partials * (heads.width() + 2) * 4 + out) as f64,
            flops: 2.0 * (partials * heads.head_dim) as f64,
        }
    },
    ..attention("attention_merge", &DECODE)
};
const ATTENTION_DELTA: Kernel = Kernel {
    work: |s| Work { flops: 2.0 * (s.rows * Heads::of(s).q_width()) as f64, ..work(s, 0, 2, 0, 1) },
    ..attention("attention_delta", &BACKWARD)
};
const ATTENTION_BWD_Q: Kernel = Kernel {
    shared_bytes: |s| Heads::of(s).staged(2 * KEYS + 2 * TILE, s.element_bytes),
    work: |s| work(s, 3, 3, 1, 2),
    ..attention("attention_bwd_q", &BACKWARD)
};
const ATTENTION_BWD_KV: Kernel = Kernel {
    shared_bytes: |s| backward_kv_bytes(&Heads::of(s), s.element_bytes),
    work: |s| work(s, 4, 2, 2, 2),
    ..attention("attention_bwd_kv", &BACKWARD)
};

// The shape's first sequence as the prompt of all others.
const ATTENTION_BWD_ADD: Kernel = Kernel {
    work: |s| {
        let heads = Heads::of(s);
        let readers = (s.rows * heads.group()).div_ceil(TILE);
        let (numbers, pieces) = ((s.sequence * heads.kv_width()) as f64, readers.div_ceil(piece_len(readers)) as f64);
        Work { bytes: numbers * (4.0 * pieces + s.element_bytes as f64), flops: numbers * pieces }
    },
    ..attention("attention_bwd_add", &BACKWARD)
};

/// Keys that a query sees at most, for kernels.
fn limit(window: Option<usize>) -> u32 {
    let window = window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX));
    assert!(window > 0, "a query sees itself at least");
    window
}

/// o = attention(q, k, v) over the whole token tree, each query seeing at most `window` keys; lse = log Σ exp s of each query.
///
/// **Shapes** qkv `[rows, heads.row()]` after RoPE with q scaled by 1/√hd; out `[rows, n_heads · head_dim]`; lse `[rows, n_heads]`.
///
/// **Errors** those of a launch.
pub fn attention_fwd<E: Element>(
    gpu: &Gpu,
    out: ViewMut<'_, E>,
    lse: ViewMut<'_, f32>,
    qkv: View<'_, E>,
    tree: &Tree,
    window: Option<usize>,
) -> Result<(), CudaError> {
    let heads = tree.heads;
    assert!(qkv.len() == tree.rows * heads.row() && out.len() == tree.rows * heads.q_width());
    assert!(lse.len() == tree.rows * heads.n_heads);
    if tree.rows == 0 {
        return Ok(());
    }
    let kv = (qkv.slice(heads.q_width()..qkv.len()), heads.row());
    // SAFETY: the lengths were checked above, the tables when they were made.
    unsafe { forward(gpu, out, Some(lse), qkv, kv, tree.queries(), heads, window) }
}

/// # Safety
/// q, out and lse have the rows that the tiles name, and `kv` (with the distance of its rows) those that the table names.
unsafe fn forward<E: Element>(
    gpu: &Gpu,
    out: ViewMut<'_, E>,
    lse: Option<ViewMut<'_, f32>>,
    qkv: View<'_, E>,
    (kv, kv_stride): (View<'_, E>, usize),
    queries: Queries<'_>,
    heads: Heads,
    window: Option<usize>,
) -> Result<(), CudaError> {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let (Queries { table, shift, tiles }, window) = (queries, limit(window));
    let args =
        args![out, lse, qkv, heads.row(), kv, kv_stride, table, shift, tiles, n_heads, n_kv_heads, head_dim, window];
    let (grid, bytes) = ([tiles.len(), n_kv_heads, 1], forward_bytes(&heads, size_of::<E>()));
    // SAFETY: the caller's promise.
    unsafe { gpu.launch(&ATTENTION_FWD, heads.unit::<E>(&ATTENTION_FWD), grid, bytes, args) }
}

/// dqkv = the gradient of q, k and v, every number of it written once. What children send to a shared prefix is added in segment order.
///
/// **Shapes** as in [`attention_fwd`]; dout as out, dqkv as qkv; the workspace has at least [`Tree::workspace`] numbers.
///
/// **Errors** those of a launch.
pub fn attention_bwd<E: Element>(
    gpu: &Gpu,
    mut dqkv: ViewMut<'_, E>,
    dout: View<'_, E>,
    out: View<'_, E>,
    lse: View<'_, f32>,
    qkv: View<'_, E>,
    tree: &Tree,
    window: Option<usize>,
    workspace: ViewMut<'_, f32>,
) -> Result<(), CudaError> {
    let Tree { heads, rows, .. } = *tree;
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    assert!(qkv.len() == rows * heads.row() && dqkv.len() == qkv.len());
    assert!(out.len() == rows * heads.q_width() && dout.len() == out.len());
    assert!(lse.len() == rows * n_heads && workspace.len() >= tree.workspace());
    let (Queries { table, tiles, .. }, window) = (tree.queries(), limit(window));
    let (mut delta, mut sums) = workspace.split_at(lse.len());
    // SAFETY: the lengths were checked above, the tables when they were made.
    unsafe {
        let args = args![delta.reborrow(), dout, out, rows, n_heads, head_dim];
        let grid = [(rows * n_heads).div_ceil(THREADS as usize / 32), 1, 1];
        gpu.launch(&ATTENTION_DELTA, heads.unit::<E>(&ATTENTION_DELTA), grid, 0, args)?;

        let delta = delta.view();
        let args = args![dqkv.reborrow(), dout, lse, delta, qkv, table, tiles, n_heads, n_kv_heads, head_dim, window];
        let (grid, bytes) = ([tiles.len(), n_kv_heads, 1], heads.staged(2 * KEYS + 2 * TILE, size_of::<E>()));
        gpu.launch(&ATTENTION_BWD_Q, heads.unit::<E>(&ATTENTION_BWD_Q), grid, bytes, args)?;

        let (key_tiles, readers) = (tree.key_tiles.view(), tree.readers.view());
        let args = args![
            dqkv.reborrow(),
            dout,
            lse,
            delta,
            qkv,
            sums.reborrow(),
            tiles,
            key_tiles,
            readers,
            n_heads,
            n_kv_heads,
            head_dim,
            window
        ];
        let (grid, bytes) = ([tree.key_tile_count, n_kv_heads, 1], backward_kv_bytes(&heads, size_of::<E>()));
        gpu.launch(&ATTENTION_BWD_KV, heads.unit::<E>(&ATTENTION_BWD_KV), grid, bytes, args)?;

        let args = args![dqkv, sums.view(), tree.pieces.view(), n_heads, n_kv_heads, head_dim];
        let grid = [tree.in_pieces, n_kv_heads, 1];
        gpu.launch(&ATTENTION_BWD_ADD, heads.unit::<E>(&ATTENTION_BWD_ADD), grid, 0, args)
    }
}

impl Tree {
    /// Floats of the workspace of [`attention_bwd`]: Σ dO ∘ O of each query, and the sums of pieces. At most [`Heads::workspace`].
    pub fn workspace(&self) -> usize {
        self.rows * self.heads.n_heads + self.sum_rows * self.heads.n_kv_heads * 2 * self.heads.width()
    }
}

impl Heads {
    /// Floats of the workspace of [`attention_bwd`] that are enough for any tree of so many rows.
    pub fn workspace(&self, rows: usize) -> usize {
        rows * (self.n_heads + PIECE.1 * self.n_kv_heads * 2 * self.width())
    }
}

/// Writes the keys and values of a batch's rows into a layer of the cache.
///
/// **Shapes** qkv `[rows, heads.row()]`; cache as the module says, with all pages that the batch names.
///
/// **Errors** those of a launch.
pub fn kv_append<E: Element>(
    gpu: &Gpu,
    cache: ViewMut<'_, E>,
    qkv: View<'_, E>,
    batch: &Cached<'_>,
) -> Result<(), CudaError> {
    let (heads, rows) = (batch.heads, batch.rows);
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    assert!(qkv.len() == rows * heads.row() && cache.len() >= batch.cache_rows * heads.kv_width());
    let blocks = (rows * heads.kv_width().div_ceil(8)).div_ceil(THREADS as usize);
    assert!(blocks * THREADS as usize <= u32::MAX as usize, "too many rows at once: {rows}");
    let grid = [blocks, 1, 1];
    let args = args![cache, qkv, batch.slots, rows, n_heads, n_kv_heads, head_dim];
    // SAFETY: the lengths were checked above, the slots when they were made.
    unsafe { gpu.launch(&KV_APPEND, heads.unit::<E>(&KV_APPEND), grid, 0, args) }
}

/// Attention of a batch's rows over a layer of the cache, where their own keys and values already are ([`kv_append`]).
///
/// `partials`, if given, has at least [`CachedTables::partials`] numbers: then the key blocks of sequences that grow by few tokens are dealt
/// out to many blocks of threads and their results merged in a second launch. It pays for few sequences and changes no bit.
///
/// **Shapes** qkv `[rows, heads.row()]`; out `[rows, n_heads · head_dim]`.
///
/// **Errors** those of a launch.
pub fn attention_cached<E: Element>(
    gpu: &Gpu,
    mut out: ViewMut<'_, E>,
    qkv: View<'_, E>,
    cache: View<'_, E>,
    batch: &Cached<'_>,
    window: Option<usize>,
    partials: Option<ViewMut<'_, f32>>,
) -> Result<(), CudaError> {
    let (heads, rows) = (batch.heads, batch.rows);
    assert!(qkv.len() == rows * heads.row() && out.len() == rows * heads.q_width());
    assert!(cache.len() >= batch.cache_rows * heads.kv_width());
    assert!(partials.as_ref().is_none_or(|partials| partials.len() >= batch.partials()));
    // SAFETY: the lengths were checked above, the tables when they were made.
    unsafe {
        let kv = (cache, heads.kv_width());
        forward(gpu, out.reborrow(), None, qkv, kv, batch.many, heads, window)?;
        decode(gpu, out, qkv, cache, batch, window, partials)
    }
}

/// # Safety
/// As for [`attention_cached`], which checks it.
unsafe fn decode<E: Element>(
    gpu: &Gpu,
    mut out: ViewMut<'_, E>,
    qkv: View<'_, E>,
    cache: View<'_, E>,
    batch: &Cached<'_>,
    window: Option<usize>,
    mut partials: Option<ViewMut<'_, f32>>,
) -> Result<(), CudaError> {
    let (heads, window) = (batch.heads, limit(window));
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let (Queries { table, shift, tiles }, blocks) = (batch.few, batch.key_blocks);
    let (share, shares) = if partials.is_some() { (SHARE, blocks.div_ceil(SHARE)) } else { (ALL, 1) };
    let (q_stride, kv_stride, first) = (heads.row(), heads.kv_width(), partials.as_mut().map(ViewMut::reborrow));
    let args = args![
        out.reborrow(),
        first,
        qkv,
        q_stride,
        cache,
        kv_stride,
        table,
        shift,
        tiles,
        n_heads,
        n_kv_heads,
        head_dim,
        window,
        share,
        blocks
    ];
    let (grid, bytes) = ([tiles.len(), n_kv_heads, shares], decode_bytes(&heads, size_of::<E>()));
    // SAFETY: the caller's promise.
    unsafe {
        gpu.launch(&ATTENTION_DECODE, heads.unit::<E>(&ATTENTION_DECODE), grid, bytes, args)?;
        if let Some(partials) = partials {
            let args = args![out, partials.view(), tiles, n_heads, n_kv_heads, head_dim, window, blocks];
            let grid = [tiles.len() * TILE_FEW / (THREADS as usize / 32), n_kv_heads, 1];
            gpu.launch(&ATTENTION_MERGE, heads.unit::<E>(&ATTENTION_MERGE), grid, 0, args)?;
        }
    }
    Ok(())
}

impl Cached<'_> {
    fn partials(&self) -> usize {
        self.heads.partials(self.few.tiles.len(), self.key_blocks)
    }
}

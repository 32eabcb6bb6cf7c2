//! The forward over a KV cache on the GPU.
//!
//! A step allocates nothing: its buffers were made with [`Decoding`], and all that it needs of the host, ids and positions and the tables
//! of attention, comes in one upload. When every sequence grows by one token, rows are filled up to a number of a short list by the first
//! tokens of a sequence that is nobody's, so that steps have few shapes, and a shape that comes again is replayed; no row depends on another.
//!
//! A step launches embedding, blocks, norm and head: three besides the blocks. A block of a model like Qwen2 launches 12 times: two norms,
//! the bias, four products, RoPE, keys and values to the cache, attention (twice where it leaves partial results), SwiGLU. Without the bias it
//! is 11, and norms of heads are three more. A draw launches 3 times, with filters 6 with the lists of what was kept, and 1 where it is greedy.

use super::draw::Drawing;
use super::layer::{LayerActivations, Scratch};
use super::recordings::Recordings;
use super::{Attend, GpuTransformer, Precision};
use crate::kv_cache::{PageCopy, PageTable};
use crate::ops::attention::PAGE;
use crate::transformer::Append;
use ragen_cuda::gemm::{Write, linear_fwd};
use ragen_cuda::kernels::attention::{CachedTables, Extension};
use ragen_cuda::kernels::embedding::embedding_fwd;
use ragen_cuda::kernels::norm::{Layout, rmsnorm_fwd};
use ragen_cuda::{Buffer, CudaError};
use std::ops::{Deref, DerefMut};

/// Blocks of threads that fill a device: two for each of about 130 multiprocessors.
const FILLED_BLOCKS: usize = 256;

/// Floats that attention's partial results may take; beyond them it goes without.
const MOST_PARTIALS: usize = 16 << 20;

/// Rows of a step are 1, 2, 4 or a multiple of this.
const GRAIN: usize = 8;

/// Rows that a step of `n` sequences is filled up to.
fn filled(n: usize) -> usize {
    if n < GRAIN { n.next_power_of_two() } else { n.next_multiple_of(GRAIN) }
}

/// Keys and values of growing sequences on the device, in pages that sequences with a common prefix share.
pub struct GpuCache<E> {
    table: PageTable,
    /// Pages that sequences may have. Behind them is one more, that is nobody's.
    capacity: usize,
    /// Of every layer, `[pages, PAGE, 2 · n_kv_heads · head_dim]`.
    pub(super) layers: Vec<Buffer<E>>,
}

impl<E: Precision> GpuCache<E> {
    /// An empty cache of so many pages for this model.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn new(model: &GpuTransformer<E>, pages: usize) -> Result<Self, CudaError> {
        let made = if pages > 0 { pages + 1 } else { 0 };
        let layer = || model.gpu.buffer("the KV cache", made * PAGE * model.heads.kv_width());
        let layers = (0..model.config.n_layers).map(|_| layer()).collect::<Result<_, _>>()?;
        Ok(GpuCache { table: PageTable::default(), capacity: pages, layers })
    }

    /// Bytes of all pages that were ever needed at once.
    pub fn bytes(&self) -> usize {
        let bytes: usize = self.layers.iter().map(|layer| layer.len() * size_of::<E>()).sum();
        bytes / (self.capacity + 1) * self.table.made()
    }
}

impl<E> Deref for GpuCache<E> {
    type Target = PageTable;
    fn deref(&self) -> &PageTable {
        &self.table
    }
}

impl<E> DerefMut for GpuCache<E> {
    fn deref_mut(&mut self) -> &mut PageTable {
        &mut self.table
    }
}

/// Buffers of the decode for so many new rows and so many sequences at once; the logits of the last [`GpuTransformer::extend`] lie here.
pub struct Decoding<E> {
    rows: usize,
    sequences: usize,
    /// What a step gets of the host: ids, positions, ends of sequences, tables of attention. A list on the host, and its place.
    list: Vec<u32>,
    numbers: Buffer<u32>,
    /// The residual stream is its input before a block and after it.
    block: LayerActivations<E>,
    scratch: Scratch<E>,
    partials: Buffer<f32>,
    last: Buffer<E>,
    normed: Buffer<E>,
    rstd: Buffer<f32>,
    pub(super) logits: Buffer<f32>,
    /// Rows of logits that are valid.
    pub(super) valid: usize,
    pub(super) drawing: Drawing,
    pub(super) recordings: Recordings,
}

impl<E: Precision> Decoding<E> {
    /// Memory for `rows` new rows of `sequences` sequences at once.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn new(model: &GpuTransformer<E>, rows: usize, sequences: usize) -> Result<Self, CudaError> {
        let (gpu, config, heads, d) = (&model.gpu, &model.config, model.heads, model.config.d_model);
        let sequences = filled(sequences);
        let rows = rows.max(sequences);
        let hidden = |n: usize| gpu.buffer("hidden states of sequences", n * d);
        let tables = CachedTables::most_numbers(heads, rows, sequences, model.positions.div_ceil(PAGE));
        let few = sequences.min((FILLED_BLOCKS - 1) / heads.n_kv_heads);
        let partials = heads.decode_partials(few, model.positions).min(MOST_PARTIALS);
        Ok(Decoding {
            rows,
            sequences,
            list: Vec::new(),
            numbers: gpu.buffer("tables of a step", 2 * rows + sequences + tables)?,
            block: LayerActivations::new(gpu, config, heads, rows)?,
            scratch: Scratch::new(model, rows, false)?,
            partials: gpu.buffer("attention's partial results", partials)?,
            last: hidden(sequences)?,
            normed: hidden(sequences)?,
            rstd: gpu.buffer("statistics of sequences", sequences)?,
            logits: gpu.buffer("logits of sequences", sequences * config.vocab)?,
            valid: 0,
            drawing: Drawing::new(gpu, sequences, config.vocab)?,
            recordings: Recordings::new(),
        })
    }

    /// New rows that there is memory for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Sequences that there is memory for.
    pub fn sequences(&self) -> usize {
        self.sequences
    }
}

/// What a step's launches depend on, but for what lies at the addresses that they name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    rows: usize,
    sequences: usize,
    /// Row of logits that the first sequence's go to.
    first: usize,
    /// Whether attention leaves partial results.
    split: bool,
    key_blocks: usize,
}

impl<E: Precision> GpuTransformer<E> {
    /// Appends tokens to sequences, and leaves the logits after each one's last token in `space`, a row a sequence in their order from row
    /// `first` on; rows before it stay.
    ///
    /// **Panics** when a sequence is named twice or outgrows the context, on an id outside the vocabulary, and on more rows or sequences
    /// than `space` was made for.
    ///
    /// **Errors** [`CudaError::Memory`] when the cache is full, which then holds what it held; others of a launch.
    pub fn extend(
        &self,
        cache: &mut GpuCache<E>,
        space: &mut Decoding<E>,
        appends: &[Append<'_>],
        first: usize,
    ) -> Result<(), CudaError> {
        let (rows, n) = (appends.iter().map(|append| append.tokens.len()).sum::<usize>(), appends.len());
        assert!(rows <= space.rows && first + n <= space.sequences, "{rows} rows of {n} sequences");
        self.grow(cache, appends)?;
        space.valid = first + n;
        if n == 0 {
            return Ok(());
        }
        let tables = self.tables(cache, &mut space.list, appends, first);
        let (rows, sequences) = (tables.rows(), n + tables.rows() - rows);
        // Few sequences would leave most of the device idle, so their keys are dealt out to more blocks of threads; the bits are the same.
        let few = sequences * self.heads.n_kv_heads < FILLED_BLOCKS;
        let split = few && tables.partials() <= space.partials.len();
        let shape = Shape { rows, sequences, first, split, key_blocks: if split { tables.key_blocks() } else { 0 } };
        self.gpu.write(space.numbers.slice_mut(0..space.list.len()), &space.list)?;
        if sequences == rows && first == 0 {
            self.replay(cache, space, &tables, shape)
        } else {
            self.step(cache, space, &tables, shape)
        }
    }

    /// Writes into `list` what a step needs of the host, for sequences that have grown already; the tables of attention are its end.
    fn tables(&self, cache: &GpuCache<E>, list: &mut Vec<u32>, appends: &[Append<'_>], first: usize) -> CachedTables {
        list.clear();
        let mut extensions = Vec::with_capacity(filled(appends.len()));
        for append in appends {
            let (len, end) = (append.tokens.len(), cache.len(append.id));
            assert!(len > 0 && end <= self.positions, "a sequence outgrows the context");
            assert!(
                append.tokens.iter().all(|&id| (id as usize) < self.config.vocab),
                "a token outside the vocabulary"
            );
            let (start, position) = (list.len(), end - len);
            list.extend_from_slice(append.tokens);
            extensions.push(Extension { start, len, position, pages: cache.table.pages(append.id) });
        }
        let (rows, spare) = (list.len(), [cache.capacity as u32]);
        if rows == appends.len() && first == 0 && self.positions >= GRAIN {
            list.resize(filled(rows), 0);
            let nobody = |start| Extension { start, len: 1, position: start - rows, pages: &spare };
            extensions.extend((rows..list.len()).map(nobody));
        }
        list.extend(extensions.iter().flat_map(|e| e.position..e.position + e.len).map(|p| p as u32));
        list.extend(extensions.iter().map(|e| (e.start + e.len - 1) as u32));
        let tables = CachedTables::new(&extensions, PAGE, self.heads);
        list.extend_from_slice(tables.numbers());
        tables
    }

    /// The launches of a step, from what was uploaded to the logits.
    pub(super) fn step(
        &self,
        cache: &mut GpuCache<E>,
        space: &mut Decoding<E>,
        tables: &CachedTables,
        shape: Shape,
    ) -> Result<(), CudaError> {
        let (gpu, d, vocab) = (&self.gpu, self.config.d_model, self.config.vocab);
        let Shape { rows, sequences: n, first, split, .. } = shape;
        let Decoding { numbers, block, scratch, partials, last, normed, rstd, logits, .. } = space;
        let ends = 2 * rows..2 * rows + n;
        let (ids, positions) = (numbers.slice(0..rows), numbers.slice(rows..2 * rows));
        let batch = tables.at(numbers.slice(ends.end..ends.end + tables.numbers().len()));

        embedding_fwd(gpu, block.x.slice_mut(0..rows * d), ids, self.weights(&self.embedding), d)?;
        for (l, layer) in cache.layers.iter_mut().enumerate() {
            let attend = Attend::Cache { layer, batch: &batch, partials: split.then(|| partials.view_mut()) };
            self.layer_fwd(l, block, None, scratch, positions, attend)?;
        }
        // Only the last row of each sequence is asked for.
        if n < rows {
            embedding_fwd(gpu, last.slice_mut(0..n * d), numbers.slice(ends), block.x.slice(0..rows * d), d)?;
        }
        let last = if n < rows { &*last } else { &block.x }.slice(0..n * d);
        let (to, rstd) = (normed.slice_mut(0..n * d), rstd.slice_mut(0..n));
        let (gain, eps) = (self.weights(&self.final_norm), self.config.norm_eps as f32);
        rmsnorm_fwd(gpu, to, d, rstd, last, gain, eps, Layout::plain(n, d))?;
        let logits = logits.slice_mut(first * vocab..(first + n) * vocab);
        linear_fwd(
            gpu,
            self.products,
            logits,
            normed.slice(0..n * d),
            self.weights(&self.lm_head),
            d,
            Write::Scaled(1.0),
        )
    }

    /// The logits that the last [`GpuTransformer::extend`] left in `space`, `[sequences, vocab]`: for inspection and tests; sampling never
    /// fetches them.
    ///
    /// **Errors** [`CudaError`].
    pub fn next_logits(&self, space: &Decoding<E>) -> Result<Vec<f32>, CudaError> {
        self.gpu.to_vec(space.logits.slice(0..space.valid * self.config.vocab))
    }

    /// Makes room in the cache for all appends.
    fn grow(&self, cache: &mut GpuCache<E>, appends: &[Append<'_>]) -> Result<(), CudaError> {
        let GpuCache { table, capacity, layers } = cache;
        let new = table.pages_to_grow(appends.iter().map(|append| (append.id, append.tokens.len())));
        if new > *capacity - table.in_use() {
            let page_bytes = layers.len() * PAGE * self.heads.kv_width() * size_of::<E>();
            return Err(CudaError::Memory {
                what: "the KV cache".into(),
                wanted_bytes: new * page_bytes,
                free_bytes: (*capacity - table.in_use()) * page_bytes,
                total_bytes: *capacity * page_bytes,
            });
        }
        for append in appends {
            if let Some(PageCopy { from, to }) = table.grow(append.id, append.tokens.len()) {
                let page = PAGE * self.heads.kv_width();
                for layer in &mut *layers {
                    let (low, high) = layer.view_mut().split_at(from.max(to) * page);
                    let (low, high) = (low.slice(from.min(to) * page..(from.min(to) + 1) * page), high.slice(0..page));
                    let (target, source) = if to < from { (low, high) } else { (high, low) };
                    self.gpu.copy(target, source.view())?;
                }
            }
        }
        Ok(())
    }
}

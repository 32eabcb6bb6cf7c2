//! The forward over a KV cache on the GPU, and the drawing of tokens there: what comes back to the host is a token and its
//! log-probability a sequence.

use super::layer::{LayerActivations, Scratch};
use super::{Attend, GpuTransformer, Precision};
use crate::kv_cache::{CacheId, PageCopy, PageTable};
use crate::ops::attention::PAGE;
use crate::sampler::{Draw, Drawn, Outcome, SampleError, Sampling};
use crate::transformer::Append;
use ragen_cuda::gemm::linear_fwd;
use ragen_cuda::kernels::attention::{Cached, Extension};
use ragen_cuda::kernels::embedding::embedding_fwd;
use ragen_cuda::kernels::norm::{Layout, rmsnorm_fwd};
use ragen_cuda::kernels::sampling::{self, Draws, Refusal, sample, uniform};
use ragen_cuda::{Buffer, CudaError};

/// Blocks of threads that fill a device: two for each of about 130 multiprocessors.
const FILLED_BLOCKS: usize = 256;

/// Keys and values of growing sequences on the device, in pages that sequences with a common prefix share.
pub struct GpuCache<E> {
    table: PageTable,
    /// Pages that there is memory for.
    capacity: usize,
    /// Of every layer, `[pages, PAGE, 2 · n_kv_heads · head_dim]`.
    layers: Vec<Buffer<E>>,
}

impl<E: Precision> GpuCache<E> {
    /// An empty cache of so many pages for this model.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn new(model: &GpuTransformer<E>, pages: usize) -> Result<Self, CudaError> {
        let layer = || model.gpu.buffer("the KV cache", pages * PAGE * model.heads.kv_width());
        let layers = (0..model.config.n_layers).map(|_| layer()).collect::<Result<_, _>>()?;
        Ok(GpuCache { table: PageTable::default(), capacity: pages, layers })
    }

    /// A new, empty sequence.
    pub fn open(&mut self) -> CacheId {
        self.table.open()
    }

    /// Makes the empty sequence `id` a continuation of `source`, sharing all that it holds.
    ///
    /// **Panics** if either is closed or `id` is not empty.
    pub fn share(&mut self, id: CacheId, source: CacheId) {
        self.table.share(id, source);
    }

    /// Forgets a sequence; pages that no other sequence uses are free again.
    pub fn close(&mut self, id: CacheId) {
        self.table.close(id);
    }

    /// Tokens that the sequence holds.
    ///
    /// **Panics** if it is closed.
    pub fn len(&self, id: CacheId) -> usize {
        self.table.len(id)
    }

    /// Whether no sequence is open.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of all pages that were ever needed at once.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.len() * size_of::<E>()).sum::<usize>() / self.capacity.max(1)
            * self.table.made()
    }
}

impl<E> Decoding<E> {
    /// New rows that there is memory for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Sequences that there is memory for.
    pub fn sequences(&self) -> usize {
        self.sequences
    }
}

/// Buffers of the decode for so many new rows and so many sequences at once; the logits of the last [`GpuTransformer::extend`] lie here.
pub struct Decoding<E> {
    rows: usize,
    sequences: usize,
    block: LayerActivations<E>,
    scratch: Scratch<E>,
    out: Buffer<E>,
    last: Buffer<E>,
    normed: Buffer<E>,
    rstd: Buffer<f32>,
    logits: Buffer<f32>,
    /// Rows of logits that are valid.
    valid: usize,
    drawn: Buffer<f32>,
}

impl<E: Precision> Decoding<E> {
    /// Memory for `rows` new rows of `sequences` sequences at once.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn new(model: &GpuTransformer<E>, rows: usize, sequences: usize) -> Result<Self, CudaError> {
        let (gpu, config, d) = (&model.gpu, &model.config, model.config.d_model);
        let hidden = |n: usize| gpu.buffer("hidden states of sequences", n * d);
        Ok(Decoding {
            rows,
            sequences,
            block: LayerActivations::new(gpu, config, model.heads, rows)?,
            scratch: Scratch::new(model, rows, false)?,
            out: hidden(rows)?,
            last: hidden(sequences)?,
            normed: hidden(sequences)?,
            rstd: gpu.buffer("statistics of sequences", sequences)?,
            logits: gpu.buffer("logits of sequences", sequences * config.vocab)?,
            valid: 0,
            drawn: gpu.buffer("logits that are drawn from", sequences * config.vocab)?,
        })
    }
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
        let rows: usize = appends.iter().map(|append| append.tokens.len()).sum();
        assert!(
            rows <= space.rows && first + appends.len() <= space.sequences,
            "{rows} rows of {} sequences",
            appends.len()
        );
        self.grow(cache, appends)?;
        let (mut ids, mut positions, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut pages: Vec<Vec<u32>> = Vec::new();
        for append in appends {
            let (len, end) = (append.tokens.len(), cache.len(append.id));
            assert!(len > 0 && end <= self.positions, "a sequence outgrows the context");
            assert!(
                append.tokens.iter().all(|&id| (id as usize) < self.config.vocab),
                "a token outside the vocabulary"
            );
            ids.extend_from_slice(append.tokens);
            positions.extend((end - len..end).map(|p| p as u32));
            ends.push(ids.len() as u32 - 1);
            pages.push(cache.table.pages(append.id).iter().map(|&page| page as u32).collect());
        }
        let extensions: Vec<Extension<'_>> = appends
            .iter()
            .zip(&pages)
            .zip(&ends)
            .map(|((append, pages), &end)| {
                let len = append.tokens.len();
                Extension { start: end as usize + 1 - len, len, position: cache.len(append.id) - len, pages }
            })
            .collect();
        let gpu = &self.gpu;
        let batch = Cached::new(gpu, &extensions, PAGE, self.heads)?;
        let (ids, positions) = (gpu.upload("token ids", &ids)?, gpu.upload("positions", &positions)?);
        // Few sequences would leave most of the device idle, so their keys are dealt out to more blocks of threads; the bits are the same.
        let few = appends.len() * self.heads.n_kv_heads < FILLED_BLOCKS;
        let mut partials = few.then(|| gpu.buffer("attention's partial results", batch.partials())).transpose()?;

        let d = self.config.d_model;
        let table = self.weights(&self.embedding);
        embedding_fwd(gpu, space.out.slice_mut(0..rows * d), ids.view(), table, d)?;
        for l in 0..self.config.n_layers {
            std::mem::swap(&mut space.block.x, &mut space.out);
            let attend = Attend::Cache { layer: &mut cache.layers[l], batch: &batch, partials: partials.as_mut() };
            self.layer_fwd(l, &mut space.block, &mut space.out, &mut space.scratch, &positions, attend)?;
        }
        // Only the last row of each sequence is asked for.
        let (n, ends) = (appends.len(), gpu.upload("ends of sequences", &ends)?);
        embedding_fwd(gpu, space.last.slice_mut(0..n * d), ends.view(), space.out.slice(0..rows * d), d)?;
        let (normed, rstd) = (space.normed.slice_mut(0..n * d), space.rstd.slice_mut(0..n));
        let (gain, eps) = (self.weights(&self.final_norm), self.config.norm_eps as f32);
        rmsnorm_fwd(gpu, normed, d, rstd, space.last.slice(0..n * d), gain, eps, Layout::plain(n, d))?;
        let (normed, w) = (space.normed.slice(0..n * d), self.weights(&self.lm_head));
        space.valid = first + n;
        let logits = space.logits.slice_mut(first * self.config.vocab..(first + n) * self.config.vocab);
        linear_fwd(gpu, self.products, logits, normed, w, d, false)
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
        let new: usize = appends.iter().map(|append| table.pages_to_grow(append.id, append.tokens.len())).sum();
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

    /// Draws a token from every named row of the logits in `space`.
    ///
    /// **Panics** on a row that the last [`GpuTransformer::extend`] did not make.
    ///
    /// **Errors** [`DrawError`].
    pub fn draw(
        &self,
        space: &mut Decoding<E>,
        sampling: &Sampling,
        draws: &[Draw],
    ) -> Result<Vec<Outcome>, DrawError> {
        let (gpu, vocab, n) = (&self.gpu, self.config.vocab, draws.len());
        assert!(draws.iter().all(|draw| draw.row < space.valid), "a row of logits that was not made");
        let how = sampling::Sampling {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
        };
        let mut outcomes = Vec::with_capacity(n);
        // Members of a group share their prompt's row, so that there may be more draws than rows.
        for draws in draws.chunks(space.sequences.max(1)) {
            let n = draws.len();
            let as_they_are = draws.iter().enumerate().all(|(i, draw)| draw.row == i);
            if !as_they_are {
                let rows: Vec<u32> = draws.iter().map(|draw| draw.row as u32).collect();
                let (rows, from) =
                    (gpu.upload("rows that are drawn from", &rows)?, space.logits.slice(0..space.valid * vocab));
                embedding_fwd::<f32>(gpu, space.drawn.slice_mut(0..n * vocab), rows.view(), from, vocab)?;
            }
            let logits = if as_they_are { &space.logits } else { &space.drawn }.slice(0..n * vocab);
            let (keys, positions): (Vec<u64>, Vec<u64>) =
                draws.iter().map(|draw| (draw.key.number(), draw.position)).unzip();
            let mut u = gpu.buffer("uniform numbers", n)?;
            uniform(gpu, u.view_mut(), gpu.upload("keys", &keys)?.view(), gpu.upload("positions", &positions)?.view())?;
            let mut drawn = Draws::new(gpu, n, how.capacity(vocab))?;
            sample(gpu, &mut drawn, logits, u.view(), &how, vocab)?;
            self.collect(&drawn, n, sampling.filters(), &mut outcomes)?;
        }
        Ok(outcomes)
    }

    /// Fetches what was drawn: a few numbers a row, and the kept ids where there are any.
    fn collect(&self, drawn: &Draws, n: usize, filtered: bool, outcomes: &mut Vec<Outcome>) -> Result<(), DrawError> {
        let (gpu, vocab) = (&self.gpu, self.config.vocab);
        let (ids, logps) = (gpu.to_vec(drawn.id.view())?, gpu.to_vec(drawn.logp.view())?);
        let (codes, lens) = (gpu.to_vec(drawn.code.view())?, gpu.to_vec(drawn.kept_len.view())?);
        for i in 0..n {
            let id = sampling::check(ids[i], codes[i])?;
            let len = lens[i] as usize;
            let kept = if filtered && len < vocab {
                let from = i * drawn.capacity;
                Some(gpu.to_vec(drawn.kept.slice(from..from + len))?)
            } else {
                None
            };
            outcomes.push(Outcome { drawn: Drawn { id, logp: logps[i] }, kept });
        }
        Ok(())
    }
}

/// Why no token could be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// The row is no distribution.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl From<Refusal> for DrawError {
    fn from(refusal: Refusal) -> Self {
        DrawError::Sample(match refusal {
            Refusal::NotFinite { id, value } => SampleError::NotFinite { id, value },
            Refusal::Empty => SampleError::Empty,
        })
    }
}

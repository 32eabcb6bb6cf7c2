//! The head on the GPU: log-probability, entropy and value of targets, and their seeds back, chunk by chunk.

use super::{Activations, Batch, GpuTransformer, Precision};
use crate::config::Config;
use crate::ops::head::{PerTarget, Target};
use ragen_cuda::gemm::{Write, linear_bwd_input, linear_bwd_weight, linear_fwd};
use ragen_cuda::kernels::embedding::{RowsByToken, embedding_fwd, gather_bwd};
use ragen_cuda::kernels::head::{self, Kept, STATS, Seeds, Targets};
use ragen_cuda::kernels::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd};
use ragen_cuda::kernels::sums::{pieces, rmsnorm_gain_bwd};
use ragen_cuda::{Buffer, CudaError, Gpu};

/// Buffers of one chunk of targets.
pub(super) struct Rows<E> {
    capacity: usize,
    /// Hidden states of the targets, their norm and its 1/RMS.
    x: Buffer<E>,
    normed: Buffer<E>,
    rstd: Buffer<f32>,
    dnormed: Buffer<E>,
    dx: Buffer<E>,
    logits: Buffer<f32>,
    dlogits: Buffer<E>,
    stats: Buffer<f64>,
    logp: Buffer<f32>,
    entropy: Buffer<f32>,
    value: Buffer<f32>,
    pieces: Buffer<f32>,
}

impl<E: Precision> Rows<E> {
    /// For so many targets; what only the backward needs is empty without `backward`.
    pub fn new(gpu: &Gpu, config: &Config, capacity: usize, backward: bool) -> Result<Self, CudaError> {
        let (d, vocab) = (config.d_model, config.vocab);
        let back = |n: usize| if backward { n } else { 0 };
        let hidden = |rows: usize| gpu.buffer("hidden states of targets", rows * d);
        let floats = || gpu.buffer("numbers of targets", capacity);
        Ok(Rows {
            capacity,
            x: hidden(capacity)?,
            normed: hidden(capacity)?,
            rstd: floats()?,
            dnormed: hidden(back(capacity))?,
            dx: hidden(capacity)?,
            logits: gpu.buffer("logits of targets", capacity * vocab)?,
            dlogits: gpu.buffer("gradients of logits", back(capacity * vocab))?,
            stats: gpu.buffer("statistics of logits", capacity * STATS)?,
            logp: floats()?,
            entropy: floats()?,
            value: floats()?,
            pieces: gpu.buffer("pieces of sums over targets", back(pieces(capacity) * (d + 1)))?,
        })
    }
}

/// A chunk of targets on the device.
struct Chunk {
    rows: RowsByToken,
    gather: Buffer<u32>,
    tokens: Buffer<u32>,
    kept: Option<(Buffer<u32>, Buffer<u32>)>,
}

impl Chunk {
    fn upload(gpu: &Gpu, targets: &[Target]) -> Result<Self, CudaError> {
        let rows: Vec<u32> = targets.iter().map(|target| target.row as u32).collect();
        let tokens: Vec<u32> = targets.iter().map(|target| target.token).collect();
        let kept = if targets.iter().all(|target| target.kept.is_none()) {
            None
        } else {
            let mut starts = vec![0u32];
            let mut ids: Vec<u32> = Vec::new();
            for target in targets {
                ids.extend(target.kept.iter().flatten());
                starts.push(ids.len() as u32);
            }
            Some((gpu.upload("kept sets", &ids)?, gpu.upload("starts of kept sets", &starts)?))
        };
        Ok(Chunk {
            rows: RowsByToken::new(gpu, &rows)?,
            gather: gpu.upload("rows of targets", &rows)?,
            tokens: gpu.upload("tokens of targets", &tokens)?,
            kept,
        })
    }

    fn targets(&self) -> Targets<'_> {
        let kept = self.kept.as_ref().map(|(ids, starts)| Kept { ids: ids.view(), starts: starts.view() });
        Targets { tokens: self.tokens.view(), kept }
    }
}

impl<E: Precision> GpuTransformer<E> {
    /// Log-probability, entropy and value of every target of the last forward, at a temperature > 0.
    ///
    /// **Panics** without a forward before it.
    ///
    /// **Errors** [`CudaError`].
    pub fn values(
        &self,
        acts: &mut Activations<E>,
        targets: &[Target],
        temperature: f32,
    ) -> Result<PerTarget<f32>, CudaError> {
        let rows = acts.batch.as_ref().expect("values follow a forward").rows;
        let mut values = PerTarget::zeros(targets.len(), self.value_head.is_some());
        for (c, targets) in targets.chunks(acts.head.capacity).enumerate() {
            let (at, n) = (c * acts.head.capacity, targets.len());
            let chunk = Chunk::upload(&self.gpu, targets)?;
            self.score(&mut acts.head, &acts.out, rows, &chunk, n, temperature)?;
            self.gpu.read(&mut values.logp[at..at + n], acts.head.logp.slice(0..n))?;
            self.gpu.read(&mut values.entropy[at..at + n], acts.head.entropy.slice(0..n))?;
            if self.value_head.is_some() {
                self.read_values(&mut acts.head, &mut values.value[at..at + n])?;
            }
        }
        Ok(values)
    }

    /// The value of every target of the last forward alone, without logits; all zeros without a value head.
    ///
    /// **Panics** without a forward before it.
    ///
    /// **Errors** [`CudaError`].
    pub fn value_estimates(&self, acts: &mut Activations<E>, targets: &[Target]) -> Result<Vec<f32>, CudaError> {
        let rows = acts.batch.as_ref().expect("values follow a forward").rows;
        let mut values = vec![0.0; targets.len()];
        if self.value_head.is_some() {
            for (values, targets) in values.chunks_mut(acts.head.capacity).zip(targets.chunks(acts.head.capacity)) {
                let chunk = Chunk::upload(&self.gpu, targets)?;
                self.final_hidden(&mut acts.head, &acts.out, rows, &chunk, targets.len())?;
                self.read_values(&mut acts.head, values)?;
            }
        }
        Ok(values)
    }

    /// value = w · h + b of the first hidden states in `head`, to the host; nothing without a value head.
    fn read_values(&self, head: &mut Rows<E>, values: &mut [f32]) -> Result<(), CudaError> {
        let Some((w, b)) = &self.value_head else { return Ok(()) };
        let (n, trained) = (values.len(), self.trained_weights());
        let (value, h) = (head.value.slice_mut(0..n), head.normed.slice(0..n * self.config.d_model));
        head::value_fwd(&self.gpu, value, h, trained.view(w), trained.view(b))?;
        self.gpu.read(values, head.value.slice(0..n))
    }

    /// Logits of packed rows of the last forward, `[rows, vocab]`: for inspection and tests; training never fetches them.
    ///
    /// **Panics** without a forward before it.
    ///
    /// **Errors** [`CudaError`].
    pub fn logits(&self, acts: &mut Activations<E>, rows: &[usize]) -> Result<Vec<f32>, CudaError> {
        let packed = acts.batch.as_ref().expect("logits follow a forward").rows;
        let mut logits = Vec::with_capacity(rows.len() * self.config.vocab);
        for rows in rows.chunks(acts.head.capacity) {
            let targets: Vec<Target> = rows.iter().map(|&row| Target { row, token: 0, kept: None }).collect();
            let chunk = Chunk::upload(&self.gpu, &targets)?;
            self.score(&mut acts.head, &acts.out, packed, &chunk, rows.len(), 1.0)?;
            logits.extend(self.gpu.to_vec(acts.head.logits.slice(0..rows.len() * self.config.vocab))?);
        }
        Ok(logits)
    }

    /// Final norm of the targets' hidden states and its 1/RMS, in `head`.
    fn final_hidden(
        &self,
        head: &mut Rows<E>,
        out: &Buffer<E>,
        packed_rows: usize,
        chunk: &Chunk,
        n: usize,
    ) -> Result<(), CudaError> {
        let (gpu, d) = (&self.gpu, self.config.d_model);
        embedding_fwd(gpu, head.x.slice_mut(0..n * d), chunk.gather.view(), out.slice(0..packed_rows * d), d)?;
        let (normed, rstd) = (head.normed.slice_mut(0..n * d), head.rstd.slice_mut(0..n));
        let (x, gain, eps) = (head.x.slice(0..n * d), self.weights(&self.final_norm), self.config.norm_eps as f32);
        rmsnorm_fwd(gpu, normed, d, rstd, x, gain, eps, Layout::plain(n, d))
    }

    /// The final hidden states of the targets, their logits, log-probability and entropy, all in `head`.
    fn score(
        &self,
        head: &mut Rows<E>,
        out: &Buffer<E>,
        packed_rows: usize,
        chunk: &Chunk,
        n: usize,
        temperature: f32,
    ) -> Result<(), CudaError> {
        let (gpu, d, vocab) = (&self.gpu, self.config.d_model, self.config.vocab);
        self.final_hidden(head, out, packed_rows, chunk, n)?;
        let (normed, w) = (head.normed.slice(0..n * d), self.weights(&self.lm_head));
        linear_fwd(gpu, self.products, head.logits.slice_mut(0..n * vocab), normed, w, d, Write::Scaled(1.0))?;
        let (logp, entropy) = (head.logp.slice_mut(0..n), head.entropy.slice_mut(0..n));
        let (stats, logits) = (head.stats.slice_mut(0..n * STATS), head.logits.slice(0..n * vocab));
        head::head_fwd::<E>(gpu, logp, entropy, stats, logits, chunk.targets(), temperature, vocab)
    }

    /// The head upside down, chunk by chunk: logits are computed again. Leaves the gradient of the last hidden states in acts.dx.
    pub(super) fn head_bwd(
        &self,
        grads: &mut Buffer<f32>,
        acts: &mut Activations<E>,
        batch: &Batch,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
    ) -> Result<(), CudaError> {
        let (gpu, d, vocab, rows) = (&self.gpu, self.config.d_model, self.config.vocab, batch.rows);
        gpu.zero(acts.dx.slice_mut(0..rows * d))?;
        for (c, targets) in targets.chunks(acts.head.capacity).enumerate() {
            let (at, n) = (c * acts.head.capacity, targets.len());
            let Activations { head, out, dx, .. } = acts;
            let chunk = Chunk::upload(gpu, targets)?;
            self.score(head, out, rows, &chunk, n, temperature)?;
            let upload = |of: &[f32]| {
                let of = if of.is_empty() { None } else { Some(&of[at..at + n]) };
                of.map(|of| gpu.upload("seeds", of)).transpose()
            };
            let (dlogp, dentropy, dvalue) = (upload(&seeds.logp)?, upload(&seeds.entropy)?, upload(&seeds.value)?);
            if dlogp.is_none() && dentropy.is_none() {
                gpu.zero(head.dnormed.slice_mut(0..n * d))?;
            } else {
                let seeds =
                    Seeds { logp: dlogp.as_ref().map(Buffer::view), entropy: dentropy.as_ref().map(Buffer::view) };
                let (dlogits, logits) = (head.dlogits.slice_mut(0..n * vocab), head.logits.slice(0..n * vocab));
                let stats = head.stats.slice(0..n * STATS);
                head::head_bwd(gpu, dlogits, logits, stats, chunk.targets(), seeds, temperature, vocab)?;
                let (dlogits, normed) = (head.dlogits.slice(0..n * vocab), head.normed.slice(0..n * d));
                if self.lora.is_none() {
                    let dw = grads.slice_mut(self.lm_head.clone());
                    linear_bwd_weight(gpu, self.products, dw, dlogits, normed, d)?;
                }
                let (dnormed, w) = (head.dnormed.slice_mut(0..n * d), self.weights(&self.lm_head));
                linear_bwd_input(gpu, self.products, dnormed, dlogits, w, d, false)?;
            }
            if let (Some((w, b)), Some(dvalue)) = (&self.value_head, &dvalue) {
                // The bias lies right behind the weight.
                let (dw, db) = grads.slice_mut(w.start..b.end).split_at(w.len());
                let (dnormed, normed) = (head.dnormed.slice_mut(0..n * d), head.normed.slice(0..n * d));
                let space = head.pieces.view_mut();
                let w = self.trained_weights().view(w);
                head::value_bwd(gpu, dnormed, dw, db, dvalue.view(), normed, w, space)?;
            }
            let (dy, x, rstd) = (head.dnormed.slice(0..n * d), head.x.slice(0..n * d), head.rstd.slice(0..n));
            let layout = Layout::plain(n, d);
            if self.lora.is_none() {
                let dgain = grads.slice_mut(self.final_norm.clone());
                rmsnorm_gain_bwd(gpu, dgain, dy, d, rstd, x, layout, head.pieces.view_mut())?;
            }
            let gain = self.weights(&self.final_norm);
            rmsnorm_bwd(gpu, head.dx.slice_mut(0..n * d), dy, d, rstd, x, gain, layout, false)?;
            // Targets of a group can share the last hidden state of their prompt, so this adds in target order.
            gather_bwd(gpu, dx.slice_mut(0..rows * d), head.dx.slice(0..n * d), &chunk.rows, d)?;
        }
        Ok(())
    }
}

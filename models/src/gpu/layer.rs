//! One block on the GPU, forward and backward: `transformer/layer.rs` over device buffers.

use super::projection::{Low, Projection};
use super::{Attend, Batch, GpuTransformer, Precision};
use crate::config::Config;
use ragen_cuda::gemm::Write;
use ragen_cuda::kernels::attention::{Heads, attention_bwd, attention_cached, attention_fwd, kv_append};
use ragen_cuda::kernels::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd};
use ragen_cuda::kernels::pointwise::{bias_fwd, swiglu_bwd, swiglu_fwd};
use ragen_cuda::kernels::rope::rope;
use ragen_cuda::kernels::sums::{bias_bwd, pieces, rmsnorm_gain_bwd};
use ragen_cuda::{Buffer, CudaError, Gpu, View};
use std::ops::Range;

/// What a block's forward leaves behind for its backward; one line a packed row each.
pub(super) struct LayerActivations<E> {
    /// The residual stream as it comes in, `[rows, d_model]`.
    pub x: Buffer<E>,
    /// 1/RMS of x, `[rows]`.
    x_rstd: Buffer<f32>,
    /// q and k before their norm, `[rows, heads.row()]`; empty without q/k norm.
    raw: Buffer<E>,
    /// 1/RMS of every head of q, `[rows, n_heads]`, and of k, `[rows, n_kv_heads]`.
    q_rstd: Buffer<f32>,
    k_rstd: Buffer<f32>,
    /// q (scaled by 1/√hd), k and v as attention reads them, `[rows, heads.row()]`.
    qkv: Buffer<E>,
    /// Attention's output, `[rows, n_heads · head_dim]`, and log Σ exp of each query's scores, `[rows, n_heads]`.
    attention: Buffer<E>,
    lse: Buffer<f32>,
    /// The residual stream after attention, `[rows, d_model]`.
    mid: Buffer<E>,
    /// 1/RMS of mid, `[rows]`.
    mid_rstd: Buffer<f32>,
    /// Gate and up side by side, `[rows, 2 d_ff]`.
    gate_up: Buffer<E>,
}

impl<E: Precision> LayerActivations<E> {
    pub fn new(gpu: &Gpu, config: &Config, heads: Heads, rows: usize) -> Result<Self, CudaError> {
        let elements = |width: usize| gpu.buffer("a block's activations", rows * width);
        let floats = |width: usize| gpu.buffer("a block's statistics", rows * width);
        let normed = |width: usize| if config.qk_norm { width } else { 0 };
        Ok(LayerActivations {
            x: elements(config.d_model)?,
            x_rstd: floats(1)?,
            raw: elements(normed(heads.row()))?,
            q_rstd: floats(normed(heads.n_heads))?,
            k_rstd: floats(normed(heads.n_kv_heads))?,
            qkv: elements(heads.row())?,
            attention: elements(heads.q_width())?,
            lse: floats(heads.n_heads)?,
            mid: elements(config.d_model)?,
            mid_rstd: floats(1)?,
            gate_up: elements(2 * config.d_ff)?,
        })
    }
}

/// Buffers that live for one block only.
pub(super) struct Scratch<E> {
    /// A norm's output, `[rows, d_model]`.
    normed: Buffer<E>,
    /// 1/RMS of a norm that is computed again.
    rstd: Buffer<f32>,
    /// SwiGLU's output, `[rows, d_ff]`.
    act: Buffer<E>,
    dnormed: Buffer<E>,
    dact: Buffer<E>,
    dgate_up: Buffer<E>,
    dattention: Buffer<E>,
    attention_space: Buffer<f32>,
    dqkv: Buffer<E>,
    draw: Buffer<E>,
    low: Low<E>,
    /// Pieces of sums over rows.
    pieces: Buffer<f32>,
}

impl<E: Precision> Scratch<E> {
    /// Buffers for `rows` rows; what only the backward needs is empty without `backward`.
    pub fn new(model: &GpuTransformer<E>, rows: usize, backward: bool) -> Result<Self, CudaError> {
        let (gpu, config, heads) = (&model.gpu, &model.config, model.heads);
        let elements = |width: usize| gpu.buffer("a block's buffers", rows * width);
        let back = |width: usize| elements(if backward { width } else { 0 });
        let floats = |n: usize| gpu.buffer("a block's sums", if backward { n } else { 0 });
        Ok(Scratch {
            normed: elements(config.d_model)?,
            act: elements(config.d_ff)?,
            rstd: floats(rows)?,
            dnormed: back(config.d_model)?,
            dact: back(config.d_ff)?,
            dgate_up: back(2 * config.d_ff)?,
            dattention: back(heads.q_width())?,
            attention_space: floats(heads.workspace(rows))?,
            dqkv: back(heads.row())?,
            draw: back(if config.qk_norm { heads.row() } else { 0 })?,
            low: Low::new(gpu, model.lora(), rows, backward)?,
            pieces: floats(pieces(rows) * heads.row().max(config.d_model))?,
        })
    }
}

/// Layout of the q heads and of the k heads in rows of q, k and v.
fn head_layouts(heads: Heads, rows: usize) -> (Layout, Layout) {
    let layout = |n| Layout { rows, heads: n, d: heads.head_dim, stride: heads.row() };
    (layout(heads.n_heads), layout(heads.n_kv_heads))
}

impl<E: Precision> GpuTransformer<E> {
    /// out = block(acts.x); without `out` the block's input is overwritten.
    pub(super) fn layer_fwd(
        &self,
        layer: usize,
        acts: &mut LayerActivations<E>,
        out: Option<&mut Buffer<E>>,
        scratch: &mut Scratch<E>,
        positions: View<'_, u32>,
        attend: Attend<'_, E>,
    ) -> Result<(), CudaError> {
        self.layer_activations(layer, acts, scratch, positions, attend)?;
        let (gpu, rows, d, ff) = (&self.gpu, positions.len(), self.config.d_model, self.config.d_ff);
        let (LayerActivations { x, mid, gate_up, .. }, Scratch { act, low, .. }) = (acts, scratch);
        swiglu_fwd(gpu, act.slice_mut(0..rows * ff), gate_up.slice(0..rows * 2 * ff), ff)?;
        let (out, mid, act) = (out.unwrap_or(x), mid.slice(0..rows * d), act.slice(0..rows * ff));
        let down = &self.projections[layer].down;
        self.project(down, out.slice_mut(0..rows * d), act, Write::Onto(mid), low)
    }

    /// All that a block's backward needs, from acts.x: the forward up to gate and up.
    pub(super) fn layer_activations(
        &self,
        layer: usize,
        acts: &mut LayerActivations<E>,
        scratch: &mut Scratch<E>,
        positions: View<'_, u32>,
        attend: Attend<'_, E>,
    ) -> Result<(), CudaError> {
        let (gpu, config, heads) = (&self.gpu, &self.config, self.heads);
        let (places, projections) = (&self.places[layer], &self.projections[layer]);
        let (rows, d, ff, row) = (positions.len(), config.d_model, config.d_ff, heads.row());
        let (eps, plain) = (config.norm_eps as f32, Layout::plain(rows, d));
        let stream = 0..rows * d;

        let (normed, rstd) = (scratch.normed.slice_mut(stream.clone()), acts.x_rstd.slice_mut(0..rows));
        let gain = self.weights(&places.input_norm);
        rmsnorm_fwd(gpu, normed, d, rstd, acts.x.slice(stream.clone()), gain, eps, plain)?;
        let raw = if config.qk_norm { &mut acts.raw } else { &mut acts.qkv };
        if let Some(bias) = &places.qkv_bias {
            bias_fwd(gpu, raw.slice_mut(0..rows * row), self.weights(bias))?;
        }
        let write = if places.qkv_bias.is_some() { Write::Add } else { Write::Scaled(1.0) };
        let (to, normed) = (raw.slice_mut(0..rows * row), scratch.normed.slice(stream.clone()));
        self.project(&projections.qkv, to, normed, write, &mut scratch.low)?;
        if let (Some(q_norm), Some(k_norm)) = (&places.q_norm, &places.k_norm) {
            let (q, k) = head_layouts(heads, rows);
            let (all, keys) = (0..rows * row, heads.q_width()..rows * row);
            // v passes by the norm.
            gpu.copy(acts.qkv.slice_mut(all.clone()), acts.raw.slice(all.clone()))?;
            let (to, rstd) = (acts.qkv.slice_mut(all.clone()), acts.q_rstd.slice_mut(0..rows * heads.n_heads));
            rmsnorm_fwd(gpu, to, row, rstd, acts.raw.slice(all), self.weights(q_norm), eps, q)?;
            let (to, rstd) = (acts.qkv.slice_mut(keys.clone()), acts.k_rstd.slice_mut(0..rows * heads.n_kv_heads));
            rmsnorm_fwd(gpu, to, row, rstd, acts.raw.slice(keys), self.weights(k_norm), eps, k)?;
        }
        self.rope_heads(&mut acts.qkv, positions, false)?;

        let (out, qkv) = (acts.attention.slice_mut(0..rows * heads.q_width()), acts.qkv.slice(0..rows * row));
        let window = config.window(layer);
        match attend {
            Attend::Tree(tree) => {
                attention_fwd(gpu, out, acts.lse.slice_mut(0..rows * heads.n_heads), qkv, tree, window)?;
            }
            Attend::Cache { layer, batch, partials } => {
                kv_append(gpu, layer.view_mut(), qkv, batch)?;
                attention_cached(gpu, out, qkv, layer.view(), batch, window, partials)?;
            }
        }
        let (to, attention) = (acts.mid.slice_mut(stream.clone()), acts.attention.slice(0..rows * heads.q_width()));
        self.project(&projections.o, to, attention, Write::Onto(acts.x.slice(stream.clone())), &mut scratch.low)?;

        let (normed, rstd) = (scratch.normed.slice_mut(stream.clone()), acts.mid_rstd.slice_mut(0..rows));
        let gain = self.weights(&places.post_norm);
        rmsnorm_fwd(gpu, normed, d, rstd, acts.mid.slice(stream.clone()), gain, eps, plain)?;
        let (to, normed) = (acts.gate_up.slice_mut(0..rows * 2 * ff), scratch.normed.slice(stream));
        self.project(&projections.gate_up, to, normed, Write::Scaled(1.0), &mut scratch.low)
    }

    /// RoPE on q (which is also scaled by 1/√hd) and k; `backward` is its gradient.
    fn rope_heads(&self, qkv: &mut Buffer<E>, positions: View<'_, u32>, backward: bool) -> Result<(), CudaError> {
        let Heads { n_heads, n_kv_heads, head_dim } = self.heads;
        let (row, scale) = (self.heads.row(), 1.0 / (head_dim as f32).sqrt());
        let (x, table) = (qkv.slice_mut(0..positions.len() * row), self.rope.view());
        rope(&self.gpu, x, row, n_heads, n_kv_heads, positions, table, head_dim / 2, scale, backward)
    }

    /// Turns dx, the gradient of the block's output, into that of its input, and adds the weights' gradients to `grads`:
    /// the forward read upside down.
    pub(super) fn layer_bwd(
        &self,
        layer: usize,
        acts: &LayerActivations<E>,
        dx: &mut Buffer<E>,
        grads: &mut Buffer<f32>,
        scratch: &mut Scratch<E>,
        batch: &Batch,
    ) -> Result<(), CudaError> {
        let (gpu, config, heads) = (&self.gpu, &self.config, self.heads);
        let (places, projections) = (&self.places[layer], &self.projections[layer]);
        let (rows, d, ff) = (batch.rows, config.d_model, config.d_ff);
        let (stream, acted, wide) = (0..rows * d, 0..rows * ff, 0..rows * 2 * ff);
        let attended = 0..rows * heads.q_width();

        // out = mid + swiglu(gate, up)·Wdᵀ
        swiglu_fwd(gpu, scratch.act.slice_mut(acted.clone()), acts.gate_up.slice(wide.clone()), ff)?;
        let (dact, act) = (scratch.dact.slice_mut(acted.clone()), scratch.act.slice(acted.clone()));
        self.project_bwd(&projections.down, dact, dx.slice(stream.clone()), act, grads, &mut scratch.low)?;
        let (dgate_up, dact) = (scratch.dgate_up.slice_mut(wide.clone()), scratch.dact.slice(acted));
        swiglu_bwd(gpu, dgate_up, dact, acts.gate_up.slice(wide), ff)?;
        // gate, up = norm(mid)·Wᵀ; the norm's output is computed again
        let gate_up = &projections.gate_up;
        self.norm_bwd(&acts.mid, &acts.mid_rstd, &places.post_norm, gate_up, dx, grads, scratch, rows, false)?;

        // mid = x + attention·Woᵀ
        let (dattention, attention) =
            (scratch.dattention.slice_mut(attended.clone()), acts.attention.slice(attended.clone()));
        self.project_bwd(&projections.o, dattention, dx.slice(stream.clone()), attention, grads, &mut scratch.low)?;
        let (dqkv, dout, out) = (
            scratch.dqkv.slice_mut(0..rows * heads.row()),
            scratch.dattention.slice(attended.clone()),
            acts.attention.slice(attended),
        );
        let (lse, space) = (acts.lse.slice(0..rows * heads.n_heads), scratch.attention_space.view_mut());
        let qkv = acts.qkv.slice(0..rows * heads.row());
        attention_bwd(gpu, dqkv, dout, out, lse, qkv, &batch.tree, config.window(layer), space)?;
        self.rope_heads(&mut scratch.dqkv, batch.positions.view(), true)?;
        if let (Some(q_norm), Some(k_norm)) = (&places.q_norm, &places.k_norm) {
            self.head_norms_bwd(acts, q_norm, k_norm, grads, scratch, rows)?;
        }
        // q, k, v = norm(x)·Wᵀ + b
        if let (Some(bias), None) = (&places.qkv_bias, &self.lora) {
            let (db, dqkv) = (grads.slice_mut(bias.clone()), scratch.dqkv.slice(0..rows * heads.row()));
            bias_bwd(gpu, db, dqkv, scratch.pieces.view_mut())?;
        }
        let qkv = &projections.qkv;
        self.norm_bwd(&acts.x, &acts.x_rstd, &places.input_norm, qkv, dx, grads, scratch, rows, true)
    }

    /// Through y = norm(x)·Wᵀ, from dy in the scratch (of q, k, v or of gate, up): adds to dx, to the weight's gradient and to the gain's.
    fn norm_bwd(
        &self,
        x: &Buffer<E>,
        rstd: &Buffer<f32>,
        norm: &Range<usize>,
        projection: &Projection,
        dx: &mut Buffer<E>,
        grads: &mut Buffer<f32>,
        scratch: &mut Scratch<E>,
        rows: usize,
        of_attention: bool,
    ) -> Result<(), CudaError> {
        let (gpu, d) = (&self.gpu, self.config.d_model);
        let (plain, stream, gain) = (Layout::plain(rows, d), 0..rows * d, self.weights(norm));
        let Scratch { normed, rstd: again, dnormed, dgate_up, dqkv, low, pieces, .. } = scratch;
        let (y, again, eps) = (normed.slice_mut(stream.clone()), again.slice_mut(0..rows), self.config.norm_eps as f32);
        rmsnorm_fwd(gpu, y, d, again, x.slice(stream.clone()), gain, eps, plain)?;
        let dy = if of_attention {
            dqkv.slice(0..rows * self.heads.row())
        } else {
            dgate_up.slice(0..rows * 2 * self.config.d_ff)
        };
        let (to, normed) = (dnormed.slice_mut(stream.clone()), normed.slice(stream.clone()));
        self.project_bwd(projection, to, dy, normed, grads, low)?;
        let (dy, x, rstd) = (dnormed.slice(stream.clone()), x.slice(stream.clone()), rstd.slice(0..rows));
        if self.lora.is_none() {
            rmsnorm_gain_bwd(gpu, grads.slice_mut(norm.clone()), dy, d, rstd, x, plain, pieces.view_mut())?;
        }
        rmsnorm_bwd(gpu, dx.slice_mut(stream), dy, d, rstd, x, gain, plain, true)
    }

    /// dqkv through the norms of q and k; v passes by.
    fn head_norms_bwd(
        &self,
        acts: &LayerActivations<E>,
        q_norm: &Range<usize>,
        k_norm: &Range<usize>,
        grads: &mut Buffer<f32>,
        scratch: &mut Scratch<E>,
        rows: usize,
    ) -> Result<(), CudaError> {
        let (gpu, heads, row) = (&self.gpu, self.heads, self.heads.row());
        let (q, k) = head_layouts(heads, rows);
        let all = 0..rows * row;
        let Scratch { dqkv, draw, pieces, .. } = scratch;
        gpu.copy(draw.slice_mut(all.clone()), dqkv.slice(all.clone()))?;
        for (norm, layout, rstd, from) in [(q_norm, q, &acts.q_rstd, 0), (k_norm, k, &acts.k_rstd, heads.q_width())] {
            let (dy, x, rstd) =
                (dqkv.slice(from..all.end), acts.raw.slice(from..all.end), rstd.slice(0..rows * layout.heads));
            if self.lora.is_none() {
                rmsnorm_gain_bwd(gpu, grads.slice_mut(norm.clone()), dy, row, rstd, x, layout, pieces.view_mut())?;
            }
            let to = draw.slice_mut(from..all.end);
            rmsnorm_bwd(gpu, to, dy, row, rstd, x, self.weights(norm), layout, false)?;
        }
        std::mem::swap(dqkv, draw);
        Ok(())
    }
}

//! A linear layer of a block with the adapters on parts of its output: `transformer/projection.rs` over device buffers.
//!
//! An adapter's product goes on from what the base product left in its columns; in bf16 that was rounded when it was stored.

use super::{GpuTransformer, Precision};
use crate::config::Config;
use crate::lora::{Lora, Module, Place};
use crate::params::Table;
use crate::transformer::Places;
use ragen_cuda::gemm::{Matrix, MatrixMut, Write, gemm, linear_bwd_input, linear_bwd_weight, linear_fwd};
use ragen_cuda::{Buffer, CudaError, Gpu, View, ViewMut};
use std::ops::Range;

/// Where the weight of a linear layer lies, and where its adapters do.
pub(super) struct Projection {
    /// The weight, among the base weights.
    weight: Range<usize>,
    /// Width of x.
    input: usize,
    /// Adapters, among what is trained.
    adapters: Vec<Place>,
}

/// The linear layers of a block.
pub(super) struct Projections {
    pub qkv: Projection,
    pub o: Projection,
    pub gate_up: Projection,
    pub down: Projection,
}

impl Projections {
    /// Those of block `layer`; the adapters lie in `trained`.
    pub fn new(config: &Config, places: &Places, layer: usize, lora: Option<(&Lora, &Table)>) -> Self {
        let of = |weight: &Range<usize>, input: usize, modules: &[Module]| Projection {
            weight: weight.clone(),
            input,
            adapters: lora.map_or(Vec::new(), |(lora, trained)| lora.places(config, trained, layer, modules)),
        };
        Projections {
            qkv: of(&places.qkv, config.d_model, Module::QKV),
            o: of(&places.o, config.q_width(), &[Module::O]),
            gate_up: of(&places.gate_up, config.d_model, Module::GATE_UP),
            down: of(&places.down, config.d_ff, &[Module::Down]),
        }
    }
}

/// The narrow side of an adapter and its gradient, `[rows, rank]`.
pub(super) struct Low<E> {
    x: Buffer<E>,
    dx: Buffer<E>,
}

impl<E: Precision> Low<E> {
    /// For so many rows; empty without adapters, and the gradient's without `backward`.
    pub fn new(gpu: &Gpu, lora: Option<&Lora>, rows: usize, backward: bool) -> Result<Self, CudaError> {
        let len = lora.map_or(0, |lora| lora.rank) * rows;
        let narrow = |len| gpu.buffer("the narrow side of an adapter", len);
        Ok(Low { x: narrow(len)?, dx: narrow(if backward { len } else { 0 })? })
    }
}

impl<E: Precision> GpuTransformer<E> {
    /// y = x·Wᵀ, or what else `write` says, and while adapters are on also y += (α / r)·(x·Aᵀ)·Bᵀ on each adapter's columns.
    pub(super) fn project(
        &self,
        projection: &Projection,
        mut y: ViewMut<'_, E>,
        x: View<'_, E>,
        write: Write<'_, E>,
        low: &mut Low<E>,
    ) -> Result<(), CudaError> {
        let Projection { weight, input, adapters } = projection;
        linear_fwd(&self.gpu, self.products, y.reborrow(), x, self.weights(weight), *input, write)?;
        let (rows, out) = (x.len() / input, weight.len() / input);
        let Some(lora) = self.lora.as_ref().filter(|lora| lora.active && rows > 0) else { return Ok(()) };
        for Place { columns, a, b } in adapters {
            let rank = lora.settings.rank;
            let low = self.narrow(&mut low.x, x, lora.weights.view(a), *input, lora.settings.scale())?;
            let (low, b) = (Matrix::rows(low, rank), Matrix::transposed(lora.weights.view(b), rank));
            let (from, to) = (columns.start, y.len());
            let y = MatrixMut::rows(y.reborrow().slice(from..to), out);
            gemm(&self.gpu, self.products, [rows, columns.len(), rank], low, b, y, Write::Add)?;
        }
        Ok(())
    }

    /// dx = dy·W and the adapters' share of it; adds the gradients of what is trained to `grads`.
    pub(super) fn project_bwd(
        &self,
        projection: &Projection,
        mut dx: ViewMut<'_, E>,
        dy: View<'_, E>,
        x: View<'_, E>,
        grads: &mut Buffer<f32>,
        low: &mut Low<E>,
    ) -> Result<(), CudaError> {
        let (gpu, by) = (&self.gpu, self.products);
        let Projection { weight, input, adapters } = projection;
        linear_bwd_input(gpu, by, dx.reborrow(), dy, self.weights(weight), *input, false)?;
        let Some(lora) = &self.lora else {
            return linear_bwd_weight(gpu, by, grads.slice_mut(weight.clone()), dy, x, *input);
        };
        let (rows, out) = (x.len() / input, weight.len() / input);
        if rows == 0 {
            return Ok(());
        }
        let (rank, scale) = (lora.settings.rank, lora.settings.scale());
        for Place { columns, a, b } in adapters {
            let (width, dy) = (columns.len(), dy.slice(columns.start..dy.len()));
            let (wide, narrow) = (lora.weights.view(b), lora.weights.view(a));
            // dB += dyᵀ·low
            let low_x = self.narrow(&mut low.x, x, narrow, *input, scale)?;
            let (db, dy_t) = (MatrixMut::rows(grads.slice_mut(b.clone()), rank), Matrix::transposed(dy, out));
            gemm(gpu, by, [width, rank, rows], dy_t, Matrix::rows(low_x, rank), db, Write::Add)?;
            // dlow = (α / r)·dy·B
            let dlow = MatrixMut::rows(low.dx.slice_mut(0..rows * rank), rank);
            let (dy, wide) = (Matrix::rows(dy, out), Matrix::rows(wide, rank));
            gemm(gpu, by, [rows, rank, width], dy, wide, dlow, Write::Scaled(scale))?;
            // dA += dlowᵀ·x, dx += dlow·A
            let dlow = low.dx.slice(0..rows * rank);
            linear_bwd_weight(gpu, by, grads.slice_mut(a.clone()), dlow, x, *input)?;
            linear_bwd_input(gpu, by, dx.reborrow(), dlow, narrow, *input, true)?;
        }
        Ok(())
    }

    /// low = scale·x·Aᵀ, `[rows, rank]`.
    fn narrow<'a>(
        &self,
        low: &'a mut Buffer<E>,
        x: View<'_, E>,
        a: View<'_, E>,
        input: usize,
        scale: f32,
    ) -> Result<View<'a, E>, CudaError> {
        let (rows, rank) = (x.len() / input, a.len() / input);
        let to = MatrixMut::rows(low.slice_mut(0..rows * rank), rank);
        let (x, a) = (Matrix::rows(x, input), Matrix::transposed(a, input));
        gemm(&self.gpu, self.products, [rows, rank, input], x, a, to, Write::Scaled(scale))?;
        Ok(low.slice(0..rows * rank))
    }
}

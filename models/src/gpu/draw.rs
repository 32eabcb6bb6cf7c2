//! The drawing of tokens on the GPU: what comes back to the host is a few numbers a sequence, and the kept ids where there are any.

use super::decode::Decoding;
use super::{GpuTransformer, Precision};
use crate::sampler::{Draw, Drawn, Outcome, SampleError, Sampling};
use ragen_cuda::kernels::embedding::embedding_fwd;
use ragen_cuda::kernels::sampling::{self, DrawnRow, Draws, Refusal, sample, uniform};
use ragen_cuda::{Buffer, CudaError, Gpu};

/// Buffers of the drawing of so many tokens at once.
pub(super) struct Drawing {
    rows: usize,
    /// What a draw gets of the host: keys and positions, of two numbers each, and rows.
    list: Vec<u32>,
    numbers: Buffer<u32>,
    uniform: Buffer<f64>,
    /// Rows of logits in the order of the draws, and when all is drawn, the kept ids of all rows.
    logits: Buffer<f32>,
    /// With room for kept sets from when filters are first used.
    draws: Draws,
}

impl Drawing {
    pub fn new(gpu: &Gpu, rows: usize, vocab: usize) -> Result<Self, CudaError> {
        Ok(Drawing {
            rows,
            list: Vec::new(),
            numbers: gpu.buffer("keys of draws", 5 * rows)?,
            uniform: gpu.buffer("uniform numbers", rows)?,
            logits: gpu.buffer("logits that are drawn from", rows * vocab)?,
            draws: Draws::new(gpu, rows, 1)?,
        })
    }
}

impl<E: Precision> GpuTransformer<E> {
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
        assert!(draws.iter().all(|draw| draw.row < space.valid), "a row of logits that was not made");
        let Sampling { temperature, top_k, top_p, min_p } = *sampling;
        let how = sampling::Sampling { temperature, top_k, top_p, min_p };
        let (space, capacity) = (&mut *space, how.capacity(self.config.vocab));
        if space.drawing.draws.capacity() < capacity {
            space.drawing.draws = Draws::new(&self.gpu, space.drawing.rows, capacity)?;
        }
        let mut outcomes = Vec::with_capacity(draws.len());
        // Members of a group share their prompt's row, so that there may be more draws than rows.
        for draws in draws.chunks(space.drawing.rows) {
            for row in self.draw_rows(space, &how, sampling.filters(), draws)? {
                let DrawnRow { id, logp, kept } = row?;
                outcomes.push(Outcome { drawn: Drawn { id, logp }, kept });
            }
        }
        Ok(outcomes)
    }

    /// Draws as many tokens as there is room for, and fetches them.
    fn draw_rows(
        &self,
        space: &mut Decoding<E>,
        how: &sampling::Sampling,
        filtered: bool,
        of: &[Draw],
    ) -> Result<Vec<Result<DrawnRow, Refusal>>, CudaError> {
        let (gpu, vocab, n) = (&self.gpu, self.config.vocab, of.len());
        let Decoding { logits: all, valid, drawing, .. } = space;
        let Drawing { list, numbers, uniform: u, logits, draws, .. } = drawing;
        list.clear();
        for number in of.iter().map(|draw| draw.key.number()).chain(of.iter().map(|draw| draw.position)) {
            list.extend_from_slice(bytemuck::cast_slice(&[number]));
        }
        list.extend(of.iter().map(|draw| draw.row as u32));
        gpu.write(numbers.slice_mut(0..5 * n), list)?;

        let as_they_are = of.iter().enumerate().all(|(i, draw)| draw.row == i);
        if !as_they_are {
            let (rows, from) = (numbers.slice(4 * n..5 * n), all.slice(0..*valid * vocab));
            embedding_fwd::<f32>(gpu, logits.slice_mut(0..n * vocab), rows, from, vocab)?;
        }
        let (keys, positions) = (numbers.slice(0..2 * n).cast(), numbers.slice(2 * n..4 * n).cast());
        uniform(gpu, u.slice_mut(0..n), keys, positions)?;
        let from = if as_they_are { &*all } else { &*logits };
        sample(gpu, draws, from.slice(0..n * vocab), u.slice(0..n), how, vocab)?;
        draws.read(gpu, n, vocab, filtered.then(|| logits.view_mut().cast()))
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
            Refusal::Temperature => SampleError::Temperature,
        })
    }
}

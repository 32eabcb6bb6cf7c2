//! What trains a model on the GPU: its gradients, Adam's moments, and a step. The CPU's is [`crate::optim`].

use super::{GpuTransformer, Precision};
use crate::optim::{self, AdamW, AdamWSettings, Step};
use crate::params::Params;
use ragen_cuda::kernels::adamw::{Coefficients, adamw_step, grad_norm, pieces};
use ragen_cuda::{Buffer, CudaError};

/// Gradients and moments over the table of what is trained, and what a step needs besides.
pub(super) struct Learner {
    pub grads: Buffer<f32>,
    m: Buffer<f32>,
    v: Buffer<f32>,
    norm: Buffer<f64>,
    pieces: Buffer<f64>,
    steps: u64,
}

impl<E: Precision> GpuTransformer<E> {
    /// Makes gradients and moments, all zeros, so that the model can be trained.
    ///
    /// **Panics** when all weights are frozen.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn train(&mut self, optimiser: AdamWSettings) -> Result<(), CudaError> {
        assert!(!self.trained_weights().frozen(), "frozen weights are not trained");
        let (gpu, n) = (&self.gpu, self.trained_table().len());
        self.optimiser = optimiser;
        self.learner = Some(Learner {
            grads: gpu.zeros("the gradients", n)?,
            m: gpu.zeros("the first moments", n)?,
            v: gpu.zeros("the second moments", n)?,
            norm: gpu.zeros("the gradients' norm", 1)?,
            pieces: gpu.zeros("pieces of the gradients' norm", pieces(n))?,
            steps: 0,
        });
        Ok(())
    }

    /// The gradients gathered since the last update, copied to the host; `None` before [`GpuTransformer::train`].
    ///
    /// **Errors** [`CudaError`].
    pub fn gradients(&self) -> Result<Option<Vec<f32>>, CudaError> {
        self.learner.as_ref().map(|learner| self.gpu.to_vec(learner.grads.view())).transpose()
    }

    /// Forgets the gradients gathered since the last update.
    ///
    /// **Errors** [`CudaError`].
    pub fn zero_gradients(&mut self) -> Result<(), CudaError> {
        self.learner.as_mut().map_or(Ok(()), |learner| self.gpu.zero(learner.grads.view_mut()))
    }

    /// The optimiser's settings, moments and count of steps, copied to the host for a checkpoint; `None` before
    /// [`GpuTransformer::train`].
    ///
    /// **Errors** [`CudaError`].
    pub fn optimiser_state(&self) -> Result<Option<AdamW>, CudaError> {
        let Some(Learner { m, v, steps, .. }) = &self.learner else { return Ok(None) };
        let read = |from: &Buffer<f32>| {
            Ok(Params { table: self.trained_table().clone(), data: self.gpu.to_vec(from.view())? })
        };
        Ok(Some(AdamW { settings: self.optimiser, m: read(m)?, v: read(v)?, steps: *steps }))
    }

    /// Takes up the optimiser where a checkpoint left it; gradients are zeros.
    ///
    /// **Panics** when the moments belong to another shape, or all weights are frozen.
    ///
    /// **Errors** [`CudaError`].
    pub fn restore(&mut self, optimiser: &AdamW) -> Result<(), CudaError> {
        for moments in [&optimiser.m, &optimiser.v] {
            assert_eq!(moments.table, *self.trained_table(), "the moments are those of what is trained");
        }
        // What is there is written over, so that there is never memory for two of it.
        if self.learner.is_none() {
            self.train(optimiser.settings)?;
        }
        self.optimiser = optimiser.settings;
        let Some(Learner { grads, m, v, steps, .. }) = &mut self.learner else { return Ok(()) };
        self.gpu.zero(grads.view_mut())?;
        self.gpu.write(m.view_mut(), &optimiser.m.data)?;
        self.gpu.write(v.view_mut(), &optimiser.v.data)?;
        *steps = optimiser.steps;
        Ok(())
    }

    /// One optimiser step on the gradients gathered, which are then zeroed. A norm that is not finite changes nothing.
    ///
    /// **Panics** before [`GpuTransformer::train`].
    ///
    /// **Errors** [`CudaError`].
    pub fn update(&mut self, lr: f64) -> Result<Step, CudaError> {
        let gpu = &self.gpu;
        let Learner { grads, m, v, norm, pieces, steps } =
            self.learner.as_mut().expect("`train` comes before `update`");
        grad_norm(gpu, norm.view_mut(), grads.view(), pieces.view_mut())?;
        let c = coefficients(&self.optimiser, *steps + 1, lr);
        let (copy, master) = self.lora.as_mut().map_or(&mut self.base, |lora| &mut lora.weights).change();
        adamw_step(gpu, copy, master, m.view_mut(), v.view_mut(), grads.view(), norm.view(), &c)?;
        gpu.zero(grads.view_mut())?;
        let mut grad_norm = [0.0];
        gpu.read(&mut grad_norm, norm.view())?;
        let skipped = !grad_norm[0].is_finite();
        *steps += u64::from(!skipped);
        Ok(Step { grad_norm: grad_norm[0], skipped })
    }
}

/// The numbers of optimiser step `step`, counted from 1, as the kernel takes them.
fn coefficients(settings: &AdamWSettings, step: u64, lr: f64) -> Coefficients {
    let optim::Coefficients { beta1, beta2, gain1, gain2, root_scale, eps, keep, rate } =
        settings.coefficients(step, lr);
    let clip_norm = settings.clip_norm.unwrap_or(-1.0);
    Coefficients { clip_norm, beta1, beta2, gain1, gain2, root_scale, eps, keep, rate }
}

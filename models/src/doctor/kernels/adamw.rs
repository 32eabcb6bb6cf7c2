//! AdamW and the norm of the gradients.

use super::super::Number;
use super::judge::{Judge, random, rounded};
use crate::optim::{AdamW, AdamWSettings};
use crate::params::{Entry, Params, Table};
use ragen_cuda::CudaError;
use ragen_cuda::kernels::adamw::{Coefficients, adamw_step, grad_norm, pieces};
use std::sync::Arc;

const LR: f64 = 0.01;

/// What the CPU hands to its kernel in step `t` (from 1).
fn coefficients(settings: &AdamWSettings, t: i32) -> Coefficients {
    let correction = |beta: f64| 1.0 - beta.powi(t);
    Coefficients {
        clip_norm: settings.clip_norm.unwrap_or(-1.0),
        beta1: settings.beta1 as f32,
        beta2: settings.beta2 as f32,
        gain1: (1.0 - settings.beta1) as f32,
        gain2: (1.0 - settings.beta2) as f32,
        root_scale: (1.0 / correction(settings.beta2).sqrt()) as f32,
        eps: settings.eps as f32,
        keep: (1.0 - LR * settings.weight_decay) as f32,
        rate: (LR / correction(settings.beta1)) as f32,
    }
}

/// Four steps, of which the third has a norm that is not finite and must change nothing.
pub(super) fn adamw<E: Number>(on: &mut Judge<'_>) {
    for n in [0, 1, 33, 1023, 16_384 + 5] {
        for clip_norm in [None, Some(1.0), Some(1e9)] {
            on.case(format!("{n} parameters clipped at {clip_norm:?}"), n, |on| steps::<E>(on, n, clip_norm));
        }
    }
}

fn steps<E: Number>(on: &mut Judge<'_>, n: usize, clip_norm: Option<f64>) -> Result<(), CudaError> {
    let gpu = &on.gpu.clone();
    let settings = AdamWSettings { clip_norm, weight_decay: 0.1, ..AdamWSettings::default() };
    let table = Arc::new(Table { entries: vec![Entry { name: "w".into(), shape: vec![n], offset: 0 }] });
    let mut optimiser = AdamW::new(settings, table.clone());
    let (mut weights, mut grads) = (Params::zeros(table.clone()), Params::zeros(table));
    weights.data = random::<f32>(1, n);
    let mut master = gpu.upload("master", &weights.data)?;
    let mut copy = on.upload::<E>(&weights.data)?;
    let (mut m, mut v) = (gpu.zeros::<f32>("m", n)?, gpu.zeros::<f32>("v", n)?);
    let (mut norm, mut space) = (gpu.zeros::<f64>("norm", 1)?, gpu.buffer::<f64>("pieces", pieces(n))?);
    let mut taken = 0;
    for t in 1..=4 {
        grads.data = random::<f32>(10 + t, n);
        if t == 3 && n > 0 {
            grads.data[n / 2] = f32::NAN;
        }
        let step = optimiser.step(&on.cpu, &mut weights, &grads, LR);
        taken += i32::from(!step.skipped);
        let g = gpu.upload("gradients", &grads.data)?;
        on.op("grad_norm");
        grad_norm(gpu, norm.view_mut(), g.view(), space.view_mut())?;
        let got = gpu.to_vec(norm.view())?[0];
        let same = got == step.grad_norm || got.is_nan() && step.skipped;
        on.off(&format!("step {t}"), if same { 0.0 } else { (got - step.grad_norm).abs() / got }, 1e-12);
        on.op("adamw_step");
        let (c, weights) = (coefficients(&settings, taken.max(1)), (size_of::<E>() == 2).then(|| copy.view_mut()));
        adamw_step(gpu, weights, master.view_mut(), m.view_mut(), v.view_mut(), g.view(), norm.view(), &c)?;
    }
    on.near("weights", &on.download(&master)?, &weights.data, f32::NMSE);
    on.near("first moments", &on.download(&m)?, &optimiser.m.data, f32::NMSE);
    on.near("second moments", &on.download(&v)?, &optimiser.v.data, f32::NMSE);
    if size_of::<E>() == 2 {
        on.bits("the products' copy", &on.download(&copy)?, &rounded::<E>(on.download(&master)?));
    }
    Ok(())
}

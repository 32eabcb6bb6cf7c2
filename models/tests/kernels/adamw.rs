//! AdamW and the norm of the gradients.

use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::kernels::adamw::{Coefficients, adamw_step, grad_norm, pieces};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::{Entry, Params, Table};
use std::sync::Arc;

/// What the CPU hands to its kernel in step `t` (from 1) at rate `lr`.
fn coefficients(settings: &AdamWSettings, t: i32, lr: f64) -> Coefficients {
    let correction = |beta: f64| 1.0 - beta.powi(t);
    Coefficients {
        clip_norm: settings.clip_norm.unwrap_or(-1.0),
        beta1: settings.beta1 as f32,
        beta2: settings.beta2 as f32,
        gain1: (1.0 - settings.beta1) as f32,
        gain2: (1.0 - settings.beta2) as f32,
        root_scale: (1.0 / correction(settings.beta2).sqrt()) as f32,
        eps: settings.eps as f32,
        keep: (1.0 - lr * settings.weight_decay) as f32,
        rate: (lr / correction(settings.beta1)) as f32,
    }
}

fn steps<E: Precision>(n: usize, clip_norm: Option<f64>) {
    let Some(gpu) = gpu() else { return };
    let what = |of: &str| format!("{of} of {n} parameters, clipped at {clip_norm:?}");
    let settings = AdamWSettings { clip_norm, weight_decay: 0.1, ..AdamWSettings::default() };
    let table = Arc::new(Table { entries: vec![Entry { name: "w".into(), shape: vec![n], offset: 0 }] });
    let mut optimiser = AdamW::new(settings, table.clone());
    let (mut weights, mut grads) = (Params::zeros(table.clone()), Params::zeros(table));
    weights.data = random::<f32>(1, n);
    let mut master = gpu.upload("master", &weights.data).unwrap();
    let mut copy = upload::<E>(gpu, &weights.data);
    let (mut m, mut v) = (gpu.zeros::<f32>("m", n).unwrap(), gpu.zeros::<f32>("v", n).unwrap());
    let (mut norm, mut space) = (gpu.zeros::<f64>("norm", 1).unwrap(), gpu.buffer::<f64>("pieces", pieces(n)).unwrap());
    let mut taken = 0;
    for t in 1..=4 {
        grads.data = random::<f32>(10 + t, n);
        // A step that must change nothing.
        if t == 3 && n > 0 {
            grads.data[n / 2] = f32::NAN;
        }
        let step = optimiser.step(&cpu(), &mut weights, &grads, 0.01);
        taken += i32::from(!step.skipped);
        let g = gpu.upload("gradients", &grads.data).unwrap();
        grad_norm(gpu, norm.view_mut(), g.view(), space.view_mut()).unwrap();
        let got = gpu.to_vec(norm.view()).unwrap()[0];
        assert!(
            got == step.grad_norm || (got - step.grad_norm).abs() < 1e-12 * got || got.is_nan() && step.skipped,
            "{got}"
        );
        let c = coefficients(&settings, taken.max(1), 0.01);
        let weights = (size_of::<E>() == 2).then(|| copy.view_mut());
        adamw_step(gpu, weights, master.view_mut(), m.view_mut(), v.view_mut(), g.view(), norm.view(), &c).unwrap();
    }
    assert_near(&what("weights"), &download(gpu, &master), &weights.data, f32::NMSE);
    assert_near(&what("first moments"), &download(gpu, &m), &optimiser.m.data, f32::NMSE);
    assert_near(&what("second moments"), &download(gpu, &v), &optimiser.v.data, f32::NMSE);
    if size_of::<E>() == 2 {
        let rounded: Vec<f32> = download(gpu, &master).into_iter().map(|w| E::from_f32(w).to_f32()).collect();
        assert_eq!(download(gpu, &copy), rounded, "{}", what("the products' copy"));
    }
}

#[test]
fn adamw_is_that_of_the_cpu_and_a_norm_that_is_not_finite_changes_nothing() {
    for n in [0, 1, 33, 1023, 16_384 + 5] {
        for clip_norm in [None, Some(1.0), Some(1e9)] {
            steps::<f32>(n, clip_norm);
            steps::<bf16>(n, clip_norm);
        }
    }
}

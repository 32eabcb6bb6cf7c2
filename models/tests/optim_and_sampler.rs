//! The optimiser against PyTorch's numbers, the sampler against transformers'.

#[allow(dead_code)] // Other tests use the rest of it.
mod golden_data;

use golden_data::cases::{SamplingCase, cases};
use ragen_models::device::Cpu;
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::{Entry, Params, Table};
use ragen_models::sampler::{Sampling, Scratch};
use ragen_models::simd::Isa;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OptimCase {
    name: String,
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    clip_norm: Option<f64>,
    shapes: Vec<Vec<usize>>,
    params: Vec<Vec<f32>>,
    steps: Vec<OptimStep>,
    exp_avg: Vec<Vec<f32>>,
    exp_avg_sq: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OptimStep {
    grads: Vec<Vec<f32>>,
    grad_norm: f64,
    params: Vec<Vec<f32>>,
}

#[test]
fn golden_adamw() {
    for case in cases::<OptimCase>("adamw.json") {
        let mut entries = Vec::new();
        let mut offset = 0;
        for (i, shape) in case.shapes.iter().enumerate() {
            entries.push(Entry { name: format!("{i}"), shape: shape.clone(), offset });
            offset += shape.iter().product::<usize>();
        }
        let table = Arc::new(Table { entries });
        let flat = |tensors: &[Vec<f32>]| Params { table: table.clone(), data: tensors.concat() };
        let OptimCase { name, lr, beta1, beta2, eps, weight_decay, clip_norm, .. } = case;
        let cpu = Cpu::with(Isa::available()[0], 1);
        let mut optimiser = AdamW::new(AdamWSettings { beta1, beta2, eps, weight_decay, clip_norm }, table.clone());
        let mut weights = flat(&case.params);
        for (s, step) in case.steps.iter().enumerate() {
            let done = optimiser.step(&cpu, &mut weights, &flat(&step.grads), lr);
            assert!(!done.skipped);
            assert!((done.grad_norm - step.grad_norm).abs() <= 1e-5 * step.grad_norm, "{name} step {s}");
            for (ours, theirs) in weights.data.iter().zip(step.params.concat()) {
                assert!((ours - theirs).abs() <= 1e-6, "{name} step {s}: {ours}, not {theirs}");
            }
        }
        assert_eq!(optimiser.steps, case.steps.len() as u64);
        for (ours, theirs) in [(&optimiser.m, &case.exp_avg), (&optimiser.v, &case.exp_avg_sq)] {
            let theirs = theirs.concat();
            assert_eq!(ours.data.len(), theirs.len());
            for (ours, theirs) in ours.data.iter().zip(theirs) {
                assert!((ours - theirs).abs() <= 1e-5 * theirs.abs(), "{name}: moment {ours}, not {theirs}");
            }
        }
    }
}

#[test]
fn golden_sampling() {
    for case in cases::<SamplingCase>("sampling.json") {
        let logits = case.logits();
        let SamplingCase { name, temperature, top_k, top_p, min_p, .. } = case;
        let sampling = Sampling { temperature, top_k, top_p, min_p };
        for isa in Isa::available() {
            let mut scratch = Scratch::default();
            sampling.filter(isa, &logits, &mut scratch).unwrap();
            let probs: Vec<f64> = scratch.probs().collect();
            // Nothing was dropped: tokens of minus infinity are there with probability 0.
            let all: Vec<u32> = (0..logits.len() as u32).collect();
            let dense = scratch.kept().is_none();
            let kept: Vec<(u32, f64)> = scratch.kept().unwrap_or(&all).iter().copied().zip(probs).collect();
            let kept: Vec<_> =
                kept.into_iter().filter(|(id, _)| !dense || logits[*id as usize] > f32::NEG_INFINITY).collect();
            assert_eq!(kept.iter().map(|(id, _)| *id).collect::<Vec<_>>(), case.kept, "{name}");

            let mut cumulative = 0.0;
            for (i, (id, p)) in kept.iter().enumerate() {
                assert!((p - case.probs[i]).abs() <= 1e-6, "{name}: p({id}) = {p}, not {}", case.probs[i]);
                // The middle of a token's share of the unit interval draws that token.
                if *p > 1e-9 {
                    let drawn = sampling.draw(isa, &logits, cumulative + p / 2.0, &mut scratch).unwrap();
                    assert_eq!(drawn.id, *id, "{name}");
                    let allowed = 1e-5 + 1e-6 * case.logps[i].abs();
                    let distance = (f64::from(drawn.logp) - case.logps[i]).abs();
                    assert!(distance <= allowed, "{name}: logp({id}) = {}, not {}", drawn.logp, case.logps[i]);
                }
                cumulative += p;
            }
        }
    }
}

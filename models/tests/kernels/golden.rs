//! The kernels against golden data: PyTorch's numbers, and the f64 twin on PyTorch's models.

use crate::golden_data::cases::{LogSoftmaxCase, SamplingCase, cases};
use crate::golden_data::golden;
use crate::gpu;
use ragen_cuda::kernels::head::{STATS, Seeds};
use ragen_models::doctor::Number;
use ragen_models::doctor::kernels::attention;
use ragen_models::doctor::kernels::head::{OnDevice, Scored};
use ragen_models::doctor::kernels::sampling::draw;
use ragen_models::ops::attention::Heads;
use ragen_models::sampler::Sampling;
use ragen_models::token_tree::TokenTree;
use ragen_models::twin::model::{Model, convert};
use ragen_models::weights;

/// Queries, keys and values of PyTorch's tiny models, whose logits the f64 twin reproduces: its attention is what is held against.
#[test]
fn attention_in_golden_models_is_that_of_the_f64_twin() {
    let Some(gpu) = gpu() else { return };
    for name in ["llama_gqa", "llama_gqa7", "mistral_window", "qwen3"] {
        let weights::Checkpoint { config: c, params } = weights::load(&golden("models").join(name)).unwrap();
        let rows: Vec<Vec<u32>> = vec![(0..40).map(|i| i * 7 % c.vocab as u32).collect(), vec![3, 1, 2]];
        let tree = TokenTree::from_rows(&rows);
        let weights = convert::<f64>(&params);
        let activations = Model { config: &c, table: &params.table, weights: &weights }.forward(&tree);
        let heads = Heads { n_heads: c.n_heads, n_kv_heads: c.n_kv_heads, head_dim: c.head_dim };
        let scale = 1.0 / (c.head_dim as f64).sqrt();
        for (l, layer) in activations.layers.iter().enumerate() {
            let mut qkv = Vec::new();
            for row in 0..tree.rows() {
                let part = |x: &[f64], width: usize| x[row * width..][..width].to_vec();
                let kv_width = c.n_kv_heads * c.head_dim;
                qkv.extend(part(&layer.q, heads.q_width()).iter().map(|q| (q * scale) as f32));
                qkv.extend(part(&layer.k, kv_width).iter().chain(&part(&layer.v, kv_width)).map(|&x| x as f32));
            }
            let want: Vec<f32> = layer.attended.iter().map(|&x| x as f32).collect();
            let (got, _) = attention::forward::<f32>(gpu, &qkv, &tree, heads, c.window(l)).unwrap();
            let square = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
            let (error, size) = (square(&got, &want), square(&want, &vec![0.0; want.len()]));
            assert_eq!(got.len(), want.len());
            assert!(error <= f32::NMSE * size, "{name}, layer {l}: nmse {:.3e}", error / size);
        }
    }
}

/// Vocabularies of real size, with the tolerances of the golden data's README.
#[test]
fn golden_log_softmax() {
    let Some(gpu) = gpu() else { return };
    for case in cases::<LogSoftmaxCase>("log_softmax.json") {
        let near = |what: &str, got: f64, want: f64, allowed: f64| {
            assert!((got - want).abs() <= allowed, "seed {}: {what} is {got}, not {want}", case.seed);
        };
        let logits = case.logits();

        // All targets as rows of their own.
        assert_eq!(case.targets.len(), case.logps.len());
        let rows = OnDevice::new(gpu, &logits.repeat(case.targets.len()), &case.targets, &[]).unwrap();
        let Scored { logp, entropy, stats } = rows.forward::<f32>(gpu, 1.0).unwrap();
        let stats = gpu.to_vec(stats.view()).unwrap();
        for (r, &want) in case.logps.iter().enumerate() {
            near("logp", f64::from(logp[r]), want, 2e-6 + 2.5e-7 * want.abs());
            near("entropy", f64::from(entropy[r]), case.entropy, 1e-5 + 1e-6 * case.entropy);
            let logsumexp = stats[r * STATS] + stats[r * STATS + 1].ln();
            near("logsumexp", logsumexp, case.logsumexp, 2e-6 + 2.5e-7 * case.logsumexp.abs());
        }

        let row = OnDevice::new(gpu, &logits, &[case.seed_target], &[]).unwrap();
        let seeds = [("dlogp", case.dlogp), ("dentropy", case.dentropy)]
            .map(|(what, x)| gpu.upload(what, &[x as f32]).unwrap());
        let seeds = Seeds { logp: Some(seeds[0].view()), entropy: Some(seeds[1].view()) };
        let dlogits = row.backward::<f32>(gpu, &row.forward::<f32>(gpu, 1.0).unwrap().stats, seeds, 1.0).unwrap();
        assert_eq!(case.targets.len(), case.dlogits_at_targets.len());
        let largest = case.dlogits_at_targets.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for (&target, &want) in case.targets.iter().zip(&case.dlogits_at_targets) {
            near("dlogit", f64::from(dlogits[target as usize]), want, 1e-5 * largest);
        }
        let abs_sum: f64 = dlogits.iter().map(|x| f64::from(x.abs())).sum();
        near("Σ |dlogits|", abs_sum, case.dlogits_abs_sum, 1e-5 * case.dlogits_abs_sum);
        near("Σ dlogits", dlogits.iter().map(|&x| f64::from(x)).sum(), case.dlogits_sum, 1e-5);
    }
}

#[test]
fn golden_sampling() {
    let Some(gpu) = gpu() else { return };
    for case in cases::<SamplingCase>("sampling.json") {
        let logits = case.logits();
        let SamplingCase { name, temperature, top_k, top_p, min_p, kept, probs, logps, .. } = case;
        let sampling = Sampling { temperature, top_k, top_p, min_p };
        assert!(kept.len() == probs.len() && kept.len() == logps.len());
        // The middle of a token's share of the unit interval draws that token.
        let (mut u, mut want, mut cumulative) = (vec![0.5], vec![None], 0.0);
        for (id, p) in kept.iter().zip(&probs) {
            if *p > 1e-5 {
                u.push(cumulative + p / 2.0);
                want.push(Some(*id));
            }
            cumulative += p;
        }
        let finite = (0..logits.len() as u32).filter(|&id| logits[id as usize] > f32::NEG_INFINITY);
        let drawn = draw(gpu, &sampling, &logits, &u).unwrap();
        for (row, want) in drawn.iter().zip(want) {
            // Nothing was dropped: tokens of minus infinity are there with probability 0.
            assert_eq!(row.kept.clone().unwrap_or_else(|| finite.clone().collect()), kept, "{name}");
            assert!(want.is_none_or(|id| row.id == id), "{name}: {}, not {want:?}", row.id);
        }
        if temperature == 0.0 {
            assert!(drawn[0].logp == 0.0 && probs == [1.0] && logps == [0.0], "{name}");
            continue;
        }
        // What training makes of every kept token; that draws have the same bits is tested above.
        let sets = vec![drawn[0].kept.clone(); kept.len()];
        let head = OnDevice::new(gpu, &logits.repeat(kept.len()), &kept, &sets).unwrap();
        let got = head.forward::<f32>(gpu, temperature).unwrap().logp;
        for ((got, logp), p) in got.into_iter().map(f64::from).zip(&logps).zip(&probs) {
            assert!((got - logp).abs() <= 1e-5 + 1e-6 * logp.abs(), "{name}: logp {got}, not {logp}");
            assert!((got.exp() - p).abs() <= 1e-6, "{name}: probability {}, not {p}", got.exp());
        }
    }
}

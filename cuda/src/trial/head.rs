//! Trials of the head and of sampling.

use super::{Run, Trial, numbers};
use crate::buffer::Element;
use crate::kernels::head::{self, STATS, Seeds, Targets};
use crate::kernels::sampling::{self, Draws, LISTED, SAMPLED_ROWS, Sampling};
use crate::kernels::{Shape, sums};
use crate::{CudaError, Gpu};

const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

/// All trials for activations of type E.
pub(super) fn trials<E: Element>() -> Vec<Trial> {
    vec![
        Trial { name: "head_fwd", kernels: &["head_fwd"], prepare: |gpu, s| prepare_head::<E>(gpu, s, false) },
        Trial { name: "head_bwd", kernels: &["head_bwd"], prepare: |gpu, s| prepare_head::<E>(gpu, s, true) },
        Trial {
            name: "value_fwd",
            kernels: &["value_fwd"],
            prepare: |gpu, s| {
                let (h, w, b) = (numbers::<E>(gpu, s.rows * s.d_model)?, numbers(gpu, s.d_model)?, numbers(gpu, 1)?);
                let mut value = gpu.zeros("values", s.rows)?;
                Ok(Box::new(move |gpu| head::value_fwd(gpu, value.view_mut(), h.view(), w.view(), b.view())))
            },
        },
        Trial {
            name: "value_bwd",
            kernels: &["value_bwd", "add_pieces"],
            prepare: |gpu, s| {
                let (n, d) = (s.rows * s.d_model, s.d_model);
                let (h, w, mut dh) = (numbers::<E>(gpu, n)?, numbers::<E>(gpu, d)?, numbers::<E>(gpu, n)?);
                let (dvalue, mut dw, mut db) = (numbers(gpu, s.rows)?, gpu.zeros("dw", d)?, gpu.zeros("db", 1)?);
                let mut space = gpu.zeros("pieces", sums::pieces(s.rows) * (d + 1))?;
                Ok(Box::new(move |gpu| {
                    let (dh, dw, db, space) = (dh.view_mut(), dw.view_mut(), db.view_mut(), space.view_mut());
                    head::value_bwd(gpu, dh, dw, db, dvalue.view(), h.view(), w.view(), space)
                }))
            },
        },
        Trial {
            name: "uniform",
            kernels: &["uniform"],
            prepare: |gpu, _| {
                let keys: Vec<u64> = (0..SAMPLED_ROWS as u64).collect();
                let (keys, mut u) = (gpu.upload("keys", &keys)?, gpu.zeros("u", SAMPLED_ROWS)?);
                Ok(Box::new(move |gpu| sampling::uniform(gpu, u.view_mut(), keys.view(), keys.view())))
            },
        },
        Trial {
            name: "sample",
            kernels: &["sample_stats", "sample_draw"],
            prepare: |gpu, s| prepare_sample(gpu, s, PLAIN),
        },
        Trial {
            name: "sample top_p",
            kernels: &["sample_stats", "sample_filter", "sample_keep", "sample_draw"],
            prepare: |gpu, s| prepare_sample(gpu, s, Sampling { top_p: 0.9, ..PLAIN }),
        },
        Trial {
            name: "sample greedy",
            kernels: &["sample_greedy"],
            prepare: |gpu, s| prepare_sample(gpu, s, Sampling { temperature: 0.0, ..PLAIN }),
        },
        Trial {
            name: "kept_lists",
            kernels: &["kept_lists"],
            prepare: |gpu, s| {
                let (vocab, top_k) = (s.vocab, Sampling { top_k: LISTED, ..PLAIN });
                let (logits, u) = (numbers::<f32>(gpu, SAMPLED_ROWS * vocab)?, gpu.upload("u", &[0.5; SAMPLED_ROWS])?);
                let mut draws = Draws::new(gpu, SAMPLED_ROWS, LISTED)?;
                sampling::sample(gpu, &mut draws, logits.view(), u.view(), &top_k, vocab)?;
                let mut lists = gpu.zeros("lists", SAMPLED_ROWS * LISTED)?;
                Ok(Box::new(move |gpu| sampling::kept_lists(gpu, lists.view_mut(), &draws, SAMPLED_ROWS, vocab)))
            },
        },
    ]
}

fn prepare_head<E: Element>(gpu: &Gpu, s: &Shape, backward: bool) -> Result<Run, CudaError> {
    let (rows, vocab) = (head::chunk_rows(s), s.vocab);
    let tokens: Vec<u32> = (0..rows).map(|r| (r * 7919 % vocab) as u32).collect();
    let (tokens, logits) = (gpu.upload("tokens", &tokens)?, numbers::<f32>(gpu, rows * vocab)?);
    let (mut logp, mut entropy) = (gpu.zeros("logp", rows)?, gpu.zeros("entropy", rows)?);
    let (mut stats, seeds) = (gpu.upload("statistics", &vec![1.0; rows * STATS])?, numbers::<f32>(gpu, rows)?);
    let mut dlogits = gpu.zeros::<E>("dlogits", if backward { rows * vocab } else { 0 })?;
    Ok(Box::new(move |gpu| {
        let targets = Targets { tokens: tokens.view(), kept: None };
        if backward {
            let seeds = Seeds { logp: Some(seeds.view()), entropy: Some(seeds.view()) };
            head::head_bwd(gpu, dlogits.view_mut(), logits.view(), stats.view(), targets, seeds, 1.0, vocab)
        } else {
            let (logp, entropy, stats) = (logp.view_mut(), entropy.view_mut(), stats.view_mut());
            head::head_fwd::<E>(gpu, logp, entropy, stats, logits.view(), targets, 1.0, vocab)
        }
    }))
}

fn prepare_sample(gpu: &Gpu, s: &Shape, sampling: Sampling) -> Result<Run, CudaError> {
    let (vocab, logits) = (s.vocab, numbers::<f32>(gpu, SAMPLED_ROWS * s.vocab)?);
    let mut draws = Draws::new(gpu, SAMPLED_ROWS, sampling.capacity(vocab))?;
    let u = gpu.upload("u", &[0.5; SAMPLED_ROWS])?;
    Ok(Box::new(move |gpu| sampling::sample(gpu, &mut draws, logits.view(), u.view(), &sampling, vocab)))
}

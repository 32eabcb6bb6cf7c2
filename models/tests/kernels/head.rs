//! The head: log-probability, entropy and value, and the seeds of these back.

use crate::golden_data::cases::{LogSoftmaxCase, cases};
use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::kernels::head::{self as kernel, Kept, STATS, Seeds, Targets};
use ragen_cuda::kernels::sums;
use ragen_cuda::{Buffer, Gpu};
use ragen_models::ops::head::{RowSeeds, dot, row_bwd, row_stats};

/// Rows, vocabulary, temperature.
const CASES: &[(usize, usize, f32)] = &[
    (0, 5, 1.0),
    (1, 1, 1.0),
    (3, 5, 0.7),
    (2, 31, 1.3),
    (3, 33, 1.0),
    (2, 64, 2.0),
    (3, 65, 0.5),
    (4, 320, 1.0),
    (2, 2053, 0.8),
    (2, 5000, 1.0),
];

/// Rows of logits with a target each.
struct Chunk {
    vocab: usize,
    logits: Vec<f32>,
    tokens: Vec<u32>,
    kept: Vec<Option<Vec<u32>>>,
}

impl Chunk {
    /// Some logits are −∞, never the token's; with `with_kept`, all but every third row have a kept set.
    fn new(rows: usize, vocab: usize, with_kept: bool) -> Self {
        let mut logits: Vec<f32> = random::<f32>(10, rows * vocab).iter().map(|x| 3.0 * x).collect();
        let (mut tokens, mut kept) = (Vec::new(), Vec::new());
        for (r, row) in logits.chunks_exact_mut(vocab).enumerate() {
            let token = (7 * r + 2) % vocab;
            tokens.push(token as u32);
            for (j, logit) in row.iter_mut().enumerate() {
                if r % 2 == 1 && j % 5 == 3 && j != token {
                    *logit = f32::NEG_INFINITY;
                }
            }
            let stays = |&id: &u32| id as usize == token || (id % 3 == 1 && row[id as usize] > f32::NEG_INFINITY);
            kept.push((with_kept && r % 3 != 1).then(|| (0..vocab as u32).filter(stays).collect()));
        }
        Chunk { vocab, logits, tokens, kept }
    }

    /// Log-probability and entropy of the targets, and the gradient from seeds, by the CPU.
    fn on_cpu(&self, temperature: f32, seeds: &[RowSeeds]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let isa = cpu().isa;
        let (mut logp, mut entropy, mut dlogits) = (Vec::new(), Vec::new(), self.logits.clone());
        for (r, row) in dlogits.chunks_exact_mut(self.vocab).enumerate() {
            let (token, kept) = (self.tokens[r], self.kept[r].as_deref());
            let stats = row_stats(isa, row, temperature);
            let logit = row[token as usize];
            logp.push(kept.map_or(stats.logp(logit), |kept| stats.logp_kept(logit, stats.kept_sum(row, kept))));
            entropy.push(stats.entropy());
            row_bwd(isa, row, &stats, token, kept, seeds[r]);
        }
        (logp, entropy, dlogits)
    }
}

/// A chunk on the device.
pub struct OnDevice {
    logits: Buffer<f32>,
    tokens: Buffer<u32>,
    kept: Option<(Buffer<u32>, Buffer<u32>)>,
}

impl OnDevice {
    /// Uploads rows of logits and their targets; without any kept set there is no list at all.
    pub fn new(gpu: &Gpu, logits: &[f32], tokens: &[u32], kept: &[Option<Vec<u32>>]) -> Self {
        let ids: Vec<u32> = kept.iter().flatten().flatten().copied().collect();
        let lens = kept.iter().map(|kept| kept.as_ref().map_or(0, Vec::len) as u32);
        let starts: Vec<u32> = std::iter::once(0)
            .chain(lens.scan(0, |end, len| {
                *end += len;
                Some(*end)
            }))
            .collect();
        let lists = || (gpu.upload("kept", &ids).unwrap(), gpu.upload("starts", &starts).unwrap());
        OnDevice {
            logits: gpu.upload("logits", logits).unwrap(),
            tokens: gpu.upload("tokens", tokens).unwrap(),
            kept: kept.iter().any(Option::is_some).then(lists),
        }
    }

    fn targets(&self) -> Targets<'_> {
        let kept = self.kept.as_ref().map(|(ids, starts)| Kept { ids: ids.view(), starts: starts.view() });
        Targets { tokens: self.tokens.view(), kept }
    }

    /// Log-probability, entropy and statistics.
    pub fn forward<E: Precision>(&self, gpu: &Gpu, temperature: f32) -> (Vec<f32>, Vec<f32>, Buffer<f64>) {
        let rows = self.tokens.len();
        let mut logp = gpu.zeros::<f32>("logp", rows).unwrap();
        let mut entropy = gpu.zeros::<f32>("entropy", rows).unwrap();
        let mut stats = gpu.zeros::<f64>("stats", rows * STATS).unwrap();
        let vocab = self.logits.len() / rows.max(1);
        let (targets, out) = (self.targets(), (logp.view_mut(), entropy.view_mut(), stats.view_mut()));
        kernel::head_fwd::<E>(gpu, out.0, out.1, out.2, self.logits.view(), targets, temperature, vocab.max(1))
            .unwrap();
        (download(gpu, &logp), download(gpu, &entropy), stats)
    }

    fn backward<E: Precision>(&self, gpu: &Gpu, stats: &Buffer<f64>, seeds: Seeds<'_>, temperature: f32) -> Vec<f32> {
        let vocab = self.logits.len() / self.tokens.len().max(1);
        let mut dlogits = upload::<E>(gpu, &vec![f32::NAN; self.logits.len()]);
        let (out, logits) = (dlogits.view_mut(), self.logits.view());
        kernel::head_bwd(gpu, out, logits, stats.view(), self.targets(), seeds, temperature, vocab).unwrap();
        download(gpu, &dlogits)
    }
}

fn forward_and_backward<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for &(rows, vocab, temperature) in CASES {
        for with_kept in [false, true] {
            let what = |op: &str| format!("{op} {rows} x {vocab} at {temperature}, kept sets: {with_kept}");
            let chunk = Chunk::new(rows, vocab, with_kept);
            let (dlogp, dentropy) = (random::<f32>(11, rows), random::<f32>(12, rows));
            let device = OnDevice::new(gpu, &chunk.logits, &chunk.tokens, &chunk.kept);
            let (s, e) = (gpu.upload("dlogp", &dlogp).unwrap(), gpu.upload("dentropy", &dentropy).unwrap());
            let (logp, entropy, stats) = device.forward::<E>(gpu, temperature);
            for (with_s, with_e) in [(true, true), (true, false), (false, true)] {
                let seed = |on: bool, of: &[f32], r: usize| if on { of[r] } else { 0.0 };
                let seeds: Vec<RowSeeds> = (0..rows)
                    .map(|r| RowSeeds { logp: seed(with_s, &dlogp, r), entropy: seed(with_e, &dentropy, r) })
                    .collect();
                let (logp_want, entropy_want, dlogits_want) = chunk.on_cpu(temperature, &seeds);
                assert_near(&what("logp"), &logp, &logp_want, f32::NMSE);
                assert_near(&what("entropy"), &entropy, &entropy_want, f32::NMSE);
                let seeds = Seeds { logp: with_s.then(|| s.view()), entropy: with_e.then(|| e.view()) };
                let dlogits = device.backward::<E>(gpu, &stats, seeds, temperature);
                assert_near(&what("head_bwd"), &dlogits, &dlogits_want, E::NMSE);
            }
        }
    }
}

#[test]
fn head_is_that_of_the_cpu() {
    forward_and_backward::<f32>();
    forward_and_backward::<bf16>();
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let Some(gpu) = gpu() else { return };
    let chunk = Chunk::new(5, 2053, true);
    let all = OnDevice::new(gpu, &chunk.logits, &chunk.tokens, &chunk.kept).forward::<f32>(gpu, 0.9);
    for r in 0..5 {
        let row = &chunk.logits[r * chunk.vocab..][..chunk.vocab];
        let alone = OnDevice::new(gpu, row, &chunk.tokens[r..=r], &chunk.kept[r..=r]).forward::<f32>(gpu, 0.9);
        assert_eq!((alone.0[0].to_bits(), alone.1[0].to_bits()), (all.0[r].to_bits(), all.1[r].to_bits()));
    }
}

fn value<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for (rows, d) in [(0, 8), (3, 1), (9, 31), (65, 40), (130, 33), (8, 900)] {
        let what = |op: &str| format!("{op} {rows} x {d}");
        let (h, w, b) = (random::<E>(1, rows * d), random::<E>(2, d), random::<E>(3, 1));
        let (dvalue, start) = (random::<f32>(4, rows), random::<E>(5, rows * d));
        let value: Vec<f32> = h.chunks_exact(d).map(|h| dot(cpu().isa, &w, h) + b[0]).collect();
        let (mut dh, mut dw, mut db) = (start.clone(), random::<f32>(6, d), random::<f32>(7, 1));
        let mut got = (gpu.upload("dw", &dw).unwrap(), gpu.upload("db", &db).unwrap());
        // As the transformer's head_bwd does it.
        for (r, &dv) in dvalue.iter().enumerate() {
            for j in 0..d {
                dh[r * d + j] = dv.mul_add(w[j], dh[r * d + j]);
                dw[j] = dv.mul_add(h[r * d + j], dw[j]);
            }
            db[0] += dv;
        }

        let (h, w, b) = (upload::<E>(gpu, &h), upload::<E>(gpu, &w), upload::<E>(gpu, &b));
        let mut value_got = gpu.zeros::<f32>("value", rows).unwrap();
        kernel::value_fwd(gpu, value_got.view_mut(), h.view(), w.view(), b.view()).unwrap();
        assert_near(&what("value_fwd"), &download(gpu, &value_got), &value, f32::NMSE);

        let (mut dh_got, dvalue) = (upload::<E>(gpu, &start), gpu.upload("dvalue", &dvalue).unwrap());
        let mut space = gpu.buffer::<f32>("pieces", sums::pieces(rows) * (d + 1)).unwrap();
        let (dw_got, db_got) = (got.0.view_mut(), got.1.view_mut());
        let (dh_view, space) = (dh_got.view_mut(), space.view_mut());
        kernel::value_bwd(gpu, dh_view, dw_got, db_got, dvalue.view(), h.view(), w.view(), space).unwrap();
        assert_near(&what("dh"), &download(gpu, &dh_got), &dh, E::NMSE);
        assert_near(&what("dw"), &download(gpu, &got.0), &dw, f32::NMSE);
        assert_near(&what("db"), &download(gpu, &got.1), &db, f32::NMSE);
    }
}

#[test]
fn value_is_that_of_the_cpu() {
    value::<f32>();
    value::<bf16>();
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
        let rows = OnDevice::new(gpu, &logits.repeat(case.targets.len()), &case.targets, &[]);
        let (logp, entropy, stats) = rows.forward::<f32>(gpu, 1.0);
        let stats = gpu.to_vec(stats.view()).unwrap();
        for (r, &want) in case.logps.iter().enumerate() {
            near("logp", f64::from(logp[r]), want, 2e-6 + 2.5e-7 * want.abs());
            near("entropy", f64::from(entropy[r]), case.entropy, 1e-5 + 1e-6 * case.entropy);
            let logsumexp = stats[r * STATS] + stats[r * STATS + 1].ln();
            near("logsumexp", logsumexp, case.logsumexp, 2e-6 + 2.5e-7 * case.logsumexp.abs());
        }

        let row = OnDevice::new(gpu, &logits, &[case.seed_target], &[]);
        let seeds = [("dlogp", case.dlogp), ("dentropy", case.dentropy)]
            .map(|(what, x)| gpu.upload(what, &[x as f32]).unwrap());
        let seeds = Seeds { logp: Some(seeds[0].view()), entropy: Some(seeds[1].view()) };
        let dlogits = row.backward::<f32>(gpu, &row.forward::<f32>(gpu, 1.0).2, seeds, 1.0);
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

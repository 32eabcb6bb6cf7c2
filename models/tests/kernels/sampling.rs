//! Sampling: uniform numbers, filters, draws.

use crate::golden_data::cases::{SamplingCase, cases};
use crate::head::OnDevice;
use crate::support::{cpu, gpu, random};
use ragen_cuda::Gpu;
use ragen_cuda::kernels::sampling::{self as kernel, DrawnRow, Draws, Refusal};
use ragen_models::random::Key;
use ragen_models::sampler::{Sampling, Scratch};

const ALMOST_ONE: f64 = 1.0 - f64::EPSILON / 2.0;

/// Draws a row for each number of `u`, all from the same logits.
fn draw(gpu: &Gpu, sampling: &Sampling, logits: &[f32], u: &[f64]) -> Vec<DrawnRow> {
    draw_rows(gpu, sampling, &logits.repeat(u.len()), u).into_iter().map(Result::unwrap).collect()
}

fn draw_rows(gpu: &Gpu, sampling: &Sampling, logits: &[f32], u: &[f64]) -> Vec<Result<DrawnRow, Refusal>> {
    let vocab = logits.len() / u.len();
    let Sampling { temperature, top_k, top_p, min_p } = *sampling;
    let sampling = kernel::Sampling { temperature, top_k, top_p, min_p };
    let mut draws = Draws::new(gpu, u.len(), sampling.capacity(vocab)).unwrap();
    let (logits, u) = (gpu.upload("logits", logits).unwrap(), gpu.upload("u", u).unwrap());
    kernel::sample(gpu, &mut draws, logits.view(), u.view(), &sampling, vocab).unwrap();
    let mut lists = gpu.buffer("lists", u.len() * draws.capacity()).unwrap();
    draws.read(gpu, u.len(), vocab, Some(lists.view_mut())).unwrap()
}

/// Rows of logits: with ties when `step` rounds them, and with −∞ at every eleventh.
fn logits(stream: u64, len: usize, scale: f32, step: f32, masked: bool) -> Vec<f32> {
    let mut row: Vec<f32> = random::<f32>(stream, len)
        .iter()
        .map(|x| if step > 0.0 { (scale * x / step).round() * step } else { scale * x })
        .collect();
    if masked && len > 1 {
        row.iter_mut().skip(1).step_by(11).for_each(|x| *x = f32::NEG_INFINITY);
    }
    row
}

fn settings() -> Vec<Sampling> {
    let off = Sampling::default();
    let mut all = vec![off, Sampling { temperature: 0.7, ..off }, Sampling { temperature: 0.0, ..off }];
    all.extend([1, 3, 40, 1000].map(|top_k| Sampling { top_k, ..off }));
    all.extend([0.0, 0.3, 0.9, 0.999].map(|top_p| Sampling { top_p, ..off }));
    all.extend([0.02, 1.0].map(|min_p| Sampling { min_p, ..off }));
    all.push(Sampling { temperature: 1.7, top_k: 30, top_p: 0.8, min_p: 0.0 });
    all.push(Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, min_p: 0.01 });
    all
}

/// Compares draws from one row of logits with the CPU's: ids and kept sets are equal, log-probabilities near.
///
/// The weights have the CPU's bits and are summed in its order up to 4,096 tokens; beyond them, a number that is not within 1e-12 of a
/// cumulative probability must draw the same token.
fn compare(gpu: &Gpu, sampling: &Sampling, logits: &[f32], u: &[f64]) {
    let mut scratch = Scratch::default();
    sampling.filter(cpu().isa, logits, &mut scratch).unwrap();
    let mut cumulative: Vec<f64> = scratch.probs().collect();
    cumulative.iter_mut().fold(0.0, |sum, p| {
        *p += sum;
        *p
    });
    // At temperature 0 the CPU lists the only token of a vocabulary of one.
    let kept = scratch.kept().filter(|kept| kept.len() < logits.len()).map(<[u32]>::to_vec);
    for (row, &u) in draw(gpu, sampling, logits, u).into_iter().zip(u) {
        let what = format!("{sampling:?} of {} tokens at {u}", logits.len());
        assert_eq!(row.kept, kept, "{what}");
        let near = logits.len() > 4096 && cumulative.iter().any(|c| (c - u).abs() < 1e-12 && u > 0.0 && u < ALMOST_ONE);
        let want = sampling.draw(cpu().isa, logits, u, &mut scratch).unwrap();
        if !near {
            assert_eq!(row.id, want.id, "{what}");
            let distance = (row.logp - want.logp).abs();
            assert!(distance <= 1e-6 * want.logp.abs().max(1.0), "{what}: logp {}, not {}", row.logp, want.logp);
        }
    }
}

#[test]
fn uniform_numbers_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let keys: Vec<Key> = (0..300).map(|i| Key::new(i).named("sample").with(i * i)).collect();
    let positions: Vec<u64> =
        (0u64..300).map(|i| if i % 3 == 0 { i } else { i.wrapping_mul(0x1234_5678_9abc_def1) }).collect();
    let numbers: Vec<u64> = keys.iter().map(|key| key.number()).collect();
    let mut u = gpu.zeros::<f64>("u", 300).unwrap();
    let (keys_view, places) = (gpu.upload("keys", &numbers).unwrap(), gpu.upload("positions", &positions).unwrap());
    kernel::uniform(gpu, u.view_mut(), keys_view.view(), places.view()).unwrap();
    let got: Vec<u64> = gpu.to_vec(u.view()).unwrap().into_iter().map(f64::to_bits).collect();
    let want: Vec<u64> = keys.iter().zip(&positions).map(|(key, &at)| key.uniform(at).to_bits()).collect();
    assert_eq!(got, want);
}

#[test]
fn draws_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let u = [0.0, 0.07, 0.33, 0.5, 0.81, 0.993, ALMOST_ONE];
    for (i, len) in [1, 5, 31, 33, 64, 65, 320].into_iter().enumerate() {
        for sampling in settings() {
            compare(gpu, &sampling, &logits(i as u64, len, 2.0, 0.0, len % 2 == 0), &u);
            compare(gpu, &sampling, &logits(i as u64, len, 2.0, 0.5, len % 2 == 1), &u[2..5]);
        }
    }
    // All logits equal, and both zeros among them: everything is decided by id.
    for (top_k, top_p) in [(70, 1.0), (0, 0.55), (70, 0.9)] {
        let zeros: Vec<f32> = (0..130).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
        compare(gpu, &Sampling { top_k, top_p, ..Sampling::default() }, &zeros, &[0.0, 0.4]);
    }
}

#[test]
fn large_vocabularies_draw_as_on_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let row = logits(50, 5003, 3.0, 0.0, true);
    for sampling in settings() {
        compare(gpu, &sampling, &row, &[0.25]);
    }
    let row = logits(51, 262_144, 2.0, 0.25, true);
    compare(gpu, &Sampling::default(), &row, &[0.7, ALMOST_ONE]);
    compare(gpu, &Sampling { top_k: 100_000, top_p: 0.9, ..Sampling::default() }, &row, &[0.7]);
}

#[test]
fn tokens_come_as_often_as_their_probabilities_say() {
    let Some(gpu) = gpu() else { return };
    let logits = logits(60, 90, 2.0, 0.0, false);
    let u: Vec<f64> = (0..500).map(|i| (f64::from(i) + 0.5) / 500.0).collect();
    for sampling in [Sampling::default(), Sampling { temperature: 0.8, top_k: 30, top_p: 0.95, min_p: 0.01 }] {
        let mut scratch = Scratch::default();
        sampling.filter(cpu().isa, &logits, &mut scratch).unwrap();
        let ids: Vec<u32> = scratch.kept().map_or_else(|| (0..90).collect(), <[u32]>::to_vec);
        let mut expected = vec![0.0; 90];
        for (id, p) in ids.iter().zip(scratch.probs()) {
            expected[*id as usize] = 500.0 * p;
        }
        for row in draw(gpu, &sampling, &logits, &u) {
            expected[row.id as usize] -= 1.0;
        }
        // Evenly spaced numbers: every count is within 1 of its share.
        assert!(expected.iter().all(|rest| rest.abs() < 1.1), "{expected:?}");
    }
}

#[test]
fn the_ends_of_the_unit_interval_draw_tokens_with_weight() {
    let Some(gpu) = gpu() else { return };
    let ends = |logits: &[f32]| draw(gpu, &Sampling::default(), logits, &[0.0, ALMOST_ONE]);
    for len in [1, 5, 63, 64, 65, 200, 4160] {
        let mut logits = logits(len as u64, len, 1.0, 0.0, false);
        assert_eq!(ends(&logits).iter().map(|row| row.id).collect::<Vec<_>>(), [0, len as u32 - 1]);
        if len > 2 {
            logits[0] = f32::NEG_INFINITY;
            logits[len - 1] = -1e30;
            assert_eq!(ends(&logits).iter().map(|row| row.id).collect::<Vec<_>>(), [1, len as u32 - 2]);
            // The blocks behind have no weight.
            logits[1..].fill(f32::NEG_INFINITY);
            logits[0] = -3.0;
            let only = DrawnRow { id: 0, logp: 0.0, kept: None };
            assert_eq!(ends(&logits), [only.clone(), only]);
        }
    }
    // Blocks, and runs of blocks, without weight before the first token with weight.
    for first in [64, 130, 4100] {
        let mut logits = logits(3, first + 70, 1.0, 0.0, false);
        logits[..first].fill(f32::NEG_INFINITY);
        assert_eq!(ends(&logits)[0].id, first as u32);
    }
    // Rounding carries some of these past the last block with weight, since their weights have many different exponents.
    for stream in 100..130 {
        let mut logits = logits(stream, 2048, 9.0, 0.0, false);
        logits[1900..].fill(f32::NEG_INFINITY);
        compare(gpu, &Sampling::default(), &logits, &[ALMOST_ONE]);
    }
}

#[test]
fn greedy_takes_the_lowest_of_the_largest() {
    let Some(gpu) = gpu() else { return };
    let greedy = Sampling { temperature: 0.0, top_k: 5, top_p: 0.1, min_p: 0.3 };
    for (len, best) in [(1, 0), (40, 17), (300, 299), (700, 256)] {
        let mut logits = logits(70, len, 1.0, 0.0, false);
        logits.iter_mut().for_each(|x| *x = x.min(5.0));
        logits[best] = 6.0;
        logits.iter_mut().skip(best).step_by(50).for_each(|x| *x = 6.0);
        let want = DrawnRow { id: best as u32, logp: 0.0, kept: (len > 1).then(|| vec![best as u32]) };
        assert_eq!(draw(gpu, &greedy, &logits, &[0.9]), [want]);
    }
    assert_eq!(draw(gpu, &greedy, &[-1.0, -0.0, 0.0], &[0.9])[0].id, 1);
}

#[test]
fn rows_that_are_no_distribution_are_refused_and_harm_no_others() {
    let Some(gpu) = gpu() else { return };
    let good = logits(80, 300, 1.0, 0.0, false);
    let with = |changes: &[(usize, f32)]| {
        let mut row = good.clone();
        changes.iter().for_each(|&(id, x)| row[id] = x);
        row
    };
    let rows = [
        good.clone(),
        with(&[(7, f32::NAN), (3, f32::NAN), (4, f32::INFINITY)]),
        with(&[(299, f32::INFINITY)]),
        vec![f32::NEG_INFINITY; 300],
        vec![f32::NAN; 300],
        good.clone(),
    ]
    .concat();
    for sampling in settings() {
        let drawn = draw_rows(gpu, &sampling, &rows, &[0.6; 6]);
        let words: Vec<String> = drawn[1..5].iter().map(|row| row.as_ref().unwrap_err().to_string()).collect();
        assert_eq!(
            words,
            [
                "logit 3 of the row is NaN, which is no distribution",
                "logit 299 of the row is inf, which is no distribution",
                "all logits of the row are minus infinity",
                "logit 0 of the row is NaN, which is no distribution",
            ],
            "{sampling:?}"
        );
        let want = draw(gpu, &sampling, &good, &[0.6]).remove(0);
        assert_eq!((&drawn[0], &drawn[5]), (&Ok(want.clone()), &Ok(want)), "{sampling:?}");
    }
    let cold = Sampling { temperature: 1e-40, ..Sampling::default() };
    for row in [[3.0, 2.0], [-3.0, -2.0], [f32::NEG_INFINITY, 1.0]] {
        assert_eq!(draw_rows(gpu, &cold, &row, &[0.5]), [Err(Refusal::Temperature)]);
    }
    assert_eq!(draw_rows(gpu, &cold, &[f32::NEG_INFINITY; 2], &[0.5]), [Err(Refusal::Empty)]);
    assert_eq!(draw(gpu, &cold, &[0.0, -1.0], &[0.5]), [DrawnRow { id: 0, logp: 0.0, kept: None }]);
}

#[test]
fn training_finds_the_bits_of_sampling() {
    let Some(gpu) = gpu() else { return };
    let u: Vec<f64> = (0..6).map(|i| Key::new(90).uniform(i)).collect();
    for len in [5, 65, 320, 2053] {
        let logits = logits(91, len, 2.0, 0.0, true);
        for sampling in settings().into_iter().filter(|sampling| sampling.temperature > 0.0) {
            let rows = draw(gpu, &sampling, &logits, &u);
            let tokens: Vec<u32> = rows.iter().map(|row| row.id).collect();
            let kept: Vec<Option<Vec<u32>>> = rows.iter().map(|row| row.kept.clone()).collect();
            let head = OnDevice::new(gpu, &logits.repeat(u.len()), &tokens, &kept);
            let (logp, _, _) = head.forward::<half::bf16>(gpu, sampling.temperature);
            for (row, logp) in rows.iter().zip(logp) {
                assert_eq!(row.logp.to_bits(), logp.to_bits(), "{sampling:?} of {len}: {} and {logp}", row.logp);
            }
        }
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
        let drawn = draw(gpu, &sampling, &logits, &u);
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
        let head = OnDevice::new(gpu, &logits.repeat(kept.len()), &kept, &sets);
        let (got, _, _) = head.forward::<f32>(gpu, temperature);
        for ((got, logp), p) in got.into_iter().map(f64::from).zip(&logps).zip(&probs) {
            assert!((got - logp).abs() <= 1e-5 + 1e-6 * logp.abs(), "{name}: logp {got}, not {logp}");
            assert!((got.exp() - p).abs() <= 1e-6, "{name}: probability {}, not {p}", got.exp());
        }
    }
}

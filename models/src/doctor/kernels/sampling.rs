//! Sampling: uniform numbers, filters, draws.

use super::super::Number;
use super::head::OnDevice;
use super::judge::{Judge, random};
use crate::random::Key;
use crate::sampler::{Sampling, Scratch};
use ragen_cuda::kernels::sampling::{self as kernel, DrawnRow, Draws, Refusal};
use ragen_cuda::{CudaError, Gpu};

const ALMOST_ONE: f64 = 1.0 - f64::EPSILON / 2.0;

/// Draws a row for each number of `u`, all from the same logits.
///
/// **Errors** those of the device. **Panics** where the logits are no distribution.
pub fn draw(gpu: &Gpu, sampling: &Sampling, logits: &[f32], u: &[f64]) -> Result<Vec<DrawnRow>, CudaError> {
    let rows = draw_rows(gpu, sampling, &logits.repeat(u.len()), u)?;
    Ok(rows.into_iter().map(|row| row.expect("logits that are a distribution")).collect())
}

fn draw_rows(
    gpu: &Gpu,
    sampling: &Sampling,
    logits: &[f32],
    u: &[f64],
) -> Result<Vec<Result<DrawnRow, Refusal>>, CudaError> {
    let vocab = logits.len() / u.len();
    let Sampling { temperature, top_k, top_p, min_p } = *sampling;
    let sampling = kernel::Sampling { temperature, top_k, top_p, min_p };
    let mut draws = Draws::new(gpu, u.len(), sampling.capacity(vocab))?;
    let (logits, u_got) = (gpu.upload("logits", logits)?, gpu.upload("u", u)?);
    kernel::sample(gpu, &mut draws, logits.view(), u_got.view(), &sampling, vocab)?;
    let mut lists = gpu.buffer("lists", u.len() * draws.capacity())?;
    draws.read(gpu, u.len(), vocab, Some(lists.view_mut()))
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

/// What is drawn does not depend on the number type of activations: one type stands for both.
fn once<E: Number>() -> bool {
    size_of::<E>() == 4
}

/// Compares draws from one row of logits with the CPU's: ids and kept sets are equal, log-probabilities near.
///
/// The weights have the CPU's bits and are summed in its order up to 4,096 tokens; beyond them, a number that is not within 1e-12 of a
/// cumulative probability must draw the same token.
fn compare(on: &mut Judge<'_>, sampling: &Sampling, logits: &[f32], u: &[f64]) {
    let what = format!("{} tokens, {sampling:?}", logits.len());
    on.case(what, logits.len() * u.len(), |on| {
        let (isa, mut scratch) = (on.cpu.isa, Scratch::default());
        sampling.filter(isa, logits, &mut scratch).expect("logits that are a distribution");
        let mut cumulative: Vec<f64> = scratch.probs().collect();
        cumulative.iter_mut().fold(0.0, |sum, p| {
            *p += sum;
            *p
        });
        // At temperature 0 the CPU lists the only token of a vocabulary of one.
        let kept = scratch.kept().filter(|kept| kept.len() < logits.len()).map(<[u32]>::to_vec);
        on.op("sample");
        for (row, &u) in draw(&on.gpu, sampling, logits, u)?.into_iter().zip(u) {
            on.same(&format!("kept at {u}"), &[row.kept], std::slice::from_ref(&kept));
            let close = |c: &f64| (c - u).abs() < 1e-12 && u > 0.0 && u < ALMOST_ONE;
            if logits.len() <= 4096 || !cumulative.iter().any(close) {
                let want = sampling.draw(isa, logits, u, &mut scratch).expect("logits that are a distribution");
                on.same(&format!("drawn at {u}"), &[row.id], &[want.id]);
                let distance = f64::from((row.logp - want.logp).abs() / want.logp.abs().max(1.0));
                on.off(&format!("logp at {u}"), distance, 1e-6);
            }
        }
        Ok(())
    });
}

/// Uniform numbers, bit for bit.
pub(super) fn uniform<E: Number>(on: &mut Judge<'_>) {
    if !once::<E>() {
        return;
    }
    on.case("300 keys", 300, |on| {
        let keys: Vec<Key> = (0..300).map(|i| Key::new(i).named("sample").with(i * i)).collect();
        let far = |i: u64| i.wrapping_mul(0x1234_5678_9abc_def1);
        let positions: Vec<u64> = (0u64..300).map(|i| if i % 3 == 0 { i } else { far(i) }).collect();
        let numbers: Vec<u64> = keys.iter().map(|key| key.number()).collect();
        let mut u = on.gpu.zeros::<f64>("u", 300)?;
        let (keys_got, places) = (on.gpu.upload("keys", &numbers)?, on.gpu.upload("positions", &positions)?);
        on.op("uniform");
        kernel::uniform(&on.gpu, u.view_mut(), keys_got.view(), places.view())?;
        let got: Vec<u64> = on.gpu.to_vec(u.view())?.into_iter().map(f64::to_bits).collect();
        let want: Vec<u64> = keys.iter().zip(&positions).map(|(key, &at)| key.uniform(at).to_bits()).collect();
        on.same("", &got, &want);
        Ok(())
    });
}

/// Draws under every setting, with and without ties and tokens of no weight.
pub(super) fn draws<E: Number>(on: &mut Judge<'_>) {
    if !once::<E>() {
        return;
    }
    let u = [0.0, 0.07, 0.33, 0.5, 0.81, 0.993, ALMOST_ONE];
    for (i, len) in [1, 5, 31, 33, 64, 65, 320].into_iter().enumerate() {
        for sampling in settings() {
            compare(on, &sampling, &logits(i as u64, len, 2.0, 0.0, len % 2 == 0), &u);
            compare(on, &sampling, &logits(i as u64, len, 2.0, 0.5, len % 2 == 1), &u[2..5]);
        }
    }
    // All logits equal, and both zeros among them: everything is decided by id.
    for (top_k, top_p) in [(70, 1.0), (0, 0.55), (70, 0.9)] {
        let zeros: Vec<f32> = (0..130).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
        compare(on, &Sampling { top_k, top_p, ..Sampling::default() }, &zeros, &[0.0, 0.4]);
    }
}

/// Draws from vocabularies that are larger than what a block of threads sums in the CPU's order.
pub(super) fn draws_of_many<E: Number>(on: &mut Judge<'_>) {
    if !once::<E>() {
        return;
    }
    let row = logits(50, 5003, 3.0, 0.0, true);
    for sampling in settings() {
        compare(on, &sampling, &row, &[0.25]);
    }
    let row = logits(51, 262_144, 2.0, 0.25, true);
    compare(on, &Sampling::default(), &row, &[0.7, ALMOST_ONE]);
    compare(on, &Sampling { top_k: 100_000, top_p: 0.9, ..Sampling::default() }, &row, &[0.7]);
}

/// Tokens come as often as their probabilities say: with evenly spaced numbers every count is within 1 of its share.
pub(super) fn frequencies<E: Number>(on: &mut Judge<'_>) {
    if !once::<E>() {
        return;
    }
    let logits = logits(60, 90, 2.0, 0.0, false);
    let u: Vec<f64> = (0..500).map(|i| (f64::from(i) + 0.5) / 500.0).collect();
    for sampling in [Sampling::default(), Sampling { temperature: 0.8, top_k: 30, top_p: 0.95, min_p: 0.01 }] {
        on.case(format!("500 draws of 90 tokens, {sampling:?}"), 500 * 90, |on| {
            let mut scratch = Scratch::default();
            sampling.filter(on.cpu.isa, &logits, &mut scratch).expect("logits that are a distribution");
            let ids: Vec<u32> = scratch.kept().map_or_else(|| (0..90).collect(), <[u32]>::to_vec);
            let mut rest = vec![0.0; 90];
            ids.iter().zip(scratch.probs()).for_each(|(&id, p)| rest[id as usize] = 500.0 * p);
            on.op("sample");
            draw(&on.gpu, &sampling, &logits, &u)?.iter().for_each(|row| rest[row.id as usize] -= 1.0);
            on.largest("counts off their shares by", rest.iter().map(|rest: &f64| rest.abs()), 1.1);
            Ok(())
        });
    }
}

/// Both ends of the unit interval draw tokens with weight.
pub(super) fn ends<E: Number>(on: &mut Judge<'_>) {
    if !once::<E>() {
        return;
    }
    for len in [1, 5, 63, 64, 65, 200, 4160] {
        on.case(format!("{len} tokens, the ends"), 2 * len, |on| ends_of(on, len));
    }
    // Blocks, and runs of blocks, without weight before the first token with weight.
    for first in [64, 130, 4100] {
        on.case(format!("{first} tokens without weight before the first"), 2 * first, |on| {
            let mut logits = logits(3, first + 70, 1.0, 0.0, false);
            logits[..first].fill(f32::NEG_INFINITY);
            on.op("sample");
            let id = draw(&on.gpu, &Sampling::default(), &logits, &[0.0, ALMOST_ONE])?[0].id;
            on.same("", &[id], &[first as u32]);
            Ok(())
        });
    }
    // Rounding carries some of these past the last block with weight, since their weights have many different exponents.
    for stream in 100..130 {
        let mut logits = logits(stream, 2048, 9.0, 0.0, false);
        logits[1900..].fill(f32::NEG_INFINITY);
        compare(on, &Sampling::default(), &logits, &[ALMOST_ONE]);
    }
}

fn ends_of(on: &mut Judge<'_>, len: usize) -> Result<(), CudaError> {
    let ends = |on: &Judge<'_>, logits: &[f32]| draw(&on.gpu, &Sampling::default(), logits, &[0.0, ALMOST_ONE]);
    let ids = |rows: &[DrawnRow]| rows.iter().map(|row| row.id).collect::<Vec<u32>>();
    let mut logits = logits(len as u64, len, 1.0, 0.0, false);
    on.op("sample");
    let rows = ends(on, &logits)?;
    on.same("all with weight", &ids(&rows), &[0, len as u32 - 1]);
    if len > 2 {
        logits[0] = f32::NEG_INFINITY;
        logits[len - 1] = -1e30;
        let rows = ends(on, &logits)?;
        on.same("the first and the last without weight", &ids(&rows), &[1, len as u32 - 2]);
        // The blocks behind have no weight.
        logits[1..].fill(f32::NEG_INFINITY);
        logits[0] = -3.0;
        let only = DrawnRow { id: 0, logp: 0.0, kept: None };
        let rows = ends(on, &logits)?;
        on.same("the first alone with weight", &rows, &[only.clone(), only]);
    }
    Ok(())
}

/// Greedy takes the lowest of the largest.
pub(super) fn greedy<E: Number>(on: &mut Judge<'_>) {
    if !once::<E>() {
        return;
    }
    let greedy = Sampling { temperature: 0.0, top_k: 5, top_p: 0.1, min_p: 0.3 };
    for (len, best) in [(1, 0), (40, 17), (300, 299), (700, 256)] {
        on.case(format!("{len} tokens, greedy"), len, |on| {
            let mut logits = logits(70, len, 1.0, 0.0, false);
            logits.iter_mut().for_each(|x| *x = x.min(5.0));
            logits[best] = 6.0;
            logits.iter_mut().skip(best).step_by(50).for_each(|x| *x = 6.0);
            let want = DrawnRow { id: best as u32, logp: 0.0, kept: (len > 1).then(|| vec![best as u32]) };
            on.op("sample");
            on.same("", &draw(&on.gpu, &greedy, &logits, &[0.9])?, &[want]);
            Ok(())
        });
    }
    on.case("both zeros, greedy", 3, |on| {
        on.op("sample");
        on.same("", &[draw(&on.gpu, &greedy, &[-1.0, -0.0, 0.0], &[0.9])?[0].id], &[1]);
        Ok(())
    });
}

/// Rows that are no distribution are refused and harm no others.
pub(super) fn refusals<E: Number>(on: &mut Judge<'_>) {
    if !once::<E>() {
        return;
    }
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
    let words = [
        "logit 3 of the row is NaN, which is no distribution",
        "logit 299 of the row is inf, which is no distribution",
        "all logits of the row are minus infinity",
        "logit 0 of the row is NaN, which is no distribution",
    ];
    for sampling in settings() {
        on.case(format!("rows that are no distribution, {sampling:?}"), rows.len(), |on| {
            on.op("sample");
            let drawn = draw_rows(&on.gpu, &sampling, &rows, &[0.6; 6])?;
            let said: Vec<String> = drawn[1..5]
                .iter()
                .map(|row| row.as_ref().map_or_else(ToString::to_string, |_| "drawn".into()))
                .collect();
            on.same("refused", &said, &words.map(String::from));
            let want = draw(&on.gpu, &sampling, &good, &[0.6])?.remove(0);
            on.same("the others", &[drawn[0].clone(), drawn[5].clone()], &[Ok(want.clone()), Ok(want)]);
            Ok(())
        });
    }
    on.case("logits too far apart for the temperature", 2, |on| {
        let cold = Sampling { temperature: 1e-40, ..Sampling::default() };
        on.op("sample");
        for row in [[3.0, 2.0], [-3.0, -2.0], [f32::NEG_INFINITY, 1.0]] {
            on.same("refused", &draw_rows(&on.gpu, &cold, &row, &[0.5])?, &[Err(Refusal::Temperature)]);
        }
        let empty = draw_rows(&on.gpu, &cold, &[f32::NEG_INFINITY; 2], &[0.5])?;
        on.same("empty", &empty, &[Err(Refusal::Empty)]);
        let only = DrawnRow { id: 0, logp: 0.0, kept: None };
        on.same("near enough", &draw(&on.gpu, &cold, &[0.0, -1.0], &[0.5])?, &[only]);
        Ok(())
    });
}

/// Training finds the bits of sampling: the log-probability of a drawn token among the kept ones.
pub(super) fn sampled_and_scored<E: Number>(on: &mut Judge<'_>) {
    let u: Vec<f64> = (0..6).map(|i| Key::new(90).uniform(i)).collect();
    for len in [5, 65, 320, 2053] {
        let logits = logits(91, len, 2.0, 0.0, true);
        for sampling in settings().into_iter().filter(|sampling| sampling.temperature > 0.0) {
            on.case(format!("{len} tokens, {sampling:?}"), 6 * len, |on| {
                on.op("sample and head_fwd");
                let rows = draw(&on.gpu, &sampling, &logits, &u)?;
                let tokens: Vec<u32> = rows.iter().map(|row| row.id).collect();
                let kept: Vec<Option<Vec<u32>>> = rows.iter().map(|row| row.kept.clone()).collect();
                let head = OnDevice::new(&on.gpu, &logits.repeat(u.len()), &tokens, &kept)?;
                let scored = head.forward::<E>(&on.gpu, sampling.temperature)?.logp;
                for (row, scored) in rows.iter().zip(scored) {
                    on.bits(&format!("token {}", row.id), &[scored], &[row.logp]);
                }
                Ok(())
            });
        }
    }
}

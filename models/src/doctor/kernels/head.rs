//! The head: log-probability, entropy and value, and the seeds of these back.

use super::super::Number;
use super::judge::{Judge, download, random, unwritten};
use crate::device::Cpu;
use crate::ops::head::{RowSeeds, dot, row_bwd, row_stats};
use ragen_cuda::kernels::head::{self as kernel, Kept, STATS, Seeds, Targets};
use ragen_cuda::kernels::sums;
use ragen_cuda::{Buffer, CudaError, Element, Gpu};

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
    fn on_cpu(&self, cpu: &Cpu, temperature: f32, seeds: &[RowSeeds]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (mut logp, mut entropy, mut dlogits) = (Vec::new(), Vec::new(), self.logits.clone());
        for (r, row) in dlogits.chunks_exact_mut(self.vocab).enumerate() {
            let (token, kept) = (self.tokens[r], self.kept[r].as_deref());
            let stats = row_stats(cpu.isa, row, temperature);
            let logit = row[token as usize];
            logp.push(kept.map_or(stats.logp(logit), |kept| stats.logp_kept(logit, stats.kept_sum(row, kept))));
            entropy.push(stats.entropy());
            row_bwd(cpu.isa, row, &stats, token, kept, seeds[r]);
        }
        (logp, entropy, dlogits)
    }
}

/// Rows of logits on the device, with a target each.
pub struct OnDevice {
    logits: Buffer<f32>,
    tokens: Buffer<u32>,
    kept: Option<(Buffer<u32>, Buffer<u32>)>,
}

/// What the device made of rows of logits.
pub struct Scored {
    /// Log-probabilities of the targets.
    pub logp: Vec<f32>,
    /// Entropies of the rows.
    pub entropy: Vec<f32>,
    /// What the way back needs, still on the device.
    pub stats: Buffer<f64>,
}

impl OnDevice {
    /// Uploads them; without any kept set there is no list at all.
    ///
    /// **Errors** those of the device, here and below.
    pub fn new(gpu: &Gpu, logits: &[f32], tokens: &[u32], kept: &[Option<Vec<u32>>]) -> Result<Self, CudaError> {
        let ids: Vec<u32> = kept.iter().flatten().flatten().copied().collect();
        let mut starts = vec![0];
        for kept in kept {
            starts.push(starts[starts.len() - 1] + kept.as_ref().map_or(0, Vec::len) as u32);
        }
        let kept = match kept.iter().any(Option::is_some) {
            true => Some((gpu.upload("kept", &ids)?, gpu.upload("starts", &starts)?)),
            false => None,
        };
        Ok(OnDevice { logits: gpu.upload("logits", logits)?, tokens: gpu.upload("tokens", tokens)?, kept })
    }

    fn targets(&self) -> Targets<'_> {
        let kept = self.kept.as_ref().map(|(ids, starts)| Kept { ids: ids.view(), starts: starts.view() });
        Targets { tokens: self.tokens.view(), kept }
    }

    /// Log-probability, entropy and statistics.
    ///
    /// **Errors** those of a launch.
    pub fn forward<E: Element>(&self, gpu: &Gpu, temperature: f32) -> Result<Scored, CudaError> {
        let rows = self.tokens.len();
        let mut logp = gpu.zeros::<f32>("logp", rows)?;
        let mut entropy = gpu.zeros::<f32>("entropy", rows)?;
        let mut stats = gpu.zeros::<f64>("stats", rows * STATS)?;
        let vocab = (self.logits.len() / rows.max(1)).max(1);
        let (targets, out) = (self.targets(), (logp.view_mut(), entropy.view_mut(), stats.view_mut()));
        kernel::head_fwd::<E>(gpu, out.0, out.1, out.2, self.logits.view(), targets, temperature, vocab)?;
        Ok(Scored { logp: download(gpu, &logp)?, entropy: download(gpu, &entropy)?, stats })
    }

    /// The gradient of the logits, from the statistics that [`OnDevice::forward`] left.
    ///
    /// **Errors** those of a launch.
    pub fn backward<E: Element>(
        &self,
        gpu: &Gpu,
        stats: &Buffer<f64>,
        seeds: Seeds<'_>,
        temperature: f32,
    ) -> Result<Vec<f32>, CudaError> {
        let vocab = (self.logits.len() / self.tokens.len().max(1)).max(1);
        let mut dlogits = unwritten::<E>(gpu, self.logits.len())?;
        let (out, logits) = (dlogits.view_mut(), self.logits.view());
        kernel::head_bwd(gpu, out, logits, stats.view(), self.targets(), seeds, temperature, vocab)?;
        download(gpu, &dlogits)
    }
}

/// Forward, and backward from every choice of seeds.
pub(super) fn head<E: Number>(on: &mut Judge<'_>) {
    for &(rows, vocab, temperature) in CASES {
        for with_kept in [false, true] {
            let case = format!("{rows} x {vocab} at {temperature}, kept sets {with_kept}");
            on.case(case, rows * vocab, |on| {
                forward_and_backward::<E>(on, &Chunk::new(rows, vocab, with_kept), temperature)
            });
        }
    }
}

fn forward_and_backward<E: Number>(on: &mut Judge<'_>, chunk: &Chunk, temperature: f32) -> Result<(), CudaError> {
    let (gpu, rows) = (&on.gpu.clone(), chunk.tokens.len());
    let (dlogp, dentropy) = (random::<f32>(11, rows), random::<f32>(12, rows));
    let device = OnDevice::new(gpu, &chunk.logits, &chunk.tokens, &chunk.kept)?;
    let (s, e) = (gpu.upload("dlogp", &dlogp)?, gpu.upload("dentropy", &dentropy)?);
    for (with_s, with_e) in [(true, true), (true, false), (false, true)] {
        let seed = |is_on: bool, of: &[f32], r: usize| if is_on { of[r] } else { 0.0 };
        let seeds: Vec<RowSeeds> = (0..rows)
            .map(|r| RowSeeds { logp: seed(with_s, &dlogp, r), entropy: seed(with_e, &dentropy, r) })
            .collect();
        let (logp_want, entropy_want, dlogits_want) = chunk.on_cpu(&on.cpu, temperature, &seeds);
        on.op("head_fwd");
        let Scored { logp, entropy, stats } = device.forward::<E>(gpu, temperature)?;
        on.near("logp", &logp, &logp_want, f32::NMSE);
        on.near("entropy", &entropy, &entropy_want, f32::NMSE);
        let seeds = Seeds { logp: with_s.then(|| s.view()), entropy: with_e.then(|| e.view()) };
        on.op("head_bwd");
        let dlogits = device.backward::<E>(gpu, &stats, seeds, temperature)?;
        on.near(&format!("seeds {with_s}, {with_e}"), &dlogits, &dlogits_want, E::NMSE);
    }
    Ok(())
}

/// A row alone has the bits that it has among others.
pub(super) fn neighbours<E: Number>(on: &mut Judge<'_>) {
    on.case("5 x 2053 at 0.9, each row alone", 5 * 2053, |on| {
        let (gpu, chunk) = (&on.gpu.clone(), Chunk::new(5, 2053, true));
        on.op("head_fwd");
        let all = OnDevice::new(gpu, &chunk.logits, &chunk.tokens, &chunk.kept)?.forward::<E>(gpu, 0.9)?;
        for r in 0..5 {
            let row = &chunk.logits[r * chunk.vocab..][..chunk.vocab];
            let alone = OnDevice::new(gpu, row, &chunk.tokens[r..=r], &chunk.kept[r..=r])?.forward::<E>(gpu, 0.9)?;
            on.bits(&format!("row {r}"), &[alone.logp[0], alone.entropy[0]], &[all.logp[r], all.entropy[r]]);
        }
        Ok(())
    });
}

/// The value head, forward and backward.
pub(super) fn value<E: Number>(on: &mut Judge<'_>) {
    for (rows, d) in [(0, 8), (3, 1), (9, 31), (65, 40), (130, 33), (8, 900)] {
        on.case(format!("{rows} x {d}"), rows * d, |on| of_values::<E>(on, rows, d));
    }
}

fn of_values<E: Number>(on: &mut Judge<'_>, rows: usize, d: usize) -> Result<(), CudaError> {
    let gpu = &on.gpu.clone();
    let (h, w, b) = (random::<E>(1, rows * d), random::<E>(2, d), random::<E>(3, 1));
    let (dvalue, start) = (random::<f32>(4, rows), random::<E>(5, rows * d));
    let value: Vec<f32> = h.chunks_exact(d).map(|h| dot(on.cpu.isa, &w, h) + b[0]).collect();
    let (mut dh, mut dw, mut db) = (start.clone(), random::<f32>(6, d), random::<f32>(7, 1));
    let (mut dw_got, mut db_got) = (gpu.upload("dw", &dw)?, gpu.upload("db", &db)?);
    // As the transformer's head_bwd does it.
    for (r, &dv) in dvalue.iter().enumerate() {
        for j in 0..d {
            dh[r * d + j] = dv.mul_add(w[j], dh[r * d + j]);
            dw[j] = dv.mul_add(h[r * d + j], dw[j]);
        }
        db[0] += dv;
    }

    let (h, w, b) = (on.upload::<E>(&h)?, on.upload::<E>(&w)?, on.upload::<E>(&b)?);
    let mut value_got = gpu.zeros::<f32>("value", rows)?;
    on.op("value_fwd");
    kernel::value_fwd(gpu, value_got.view_mut(), h.view(), w.view(), b.view())?;
    on.near("", &on.download(&value_got)?, &value, f32::NMSE);

    let (mut dh_got, dvalue) = (on.upload::<E>(&start)?, gpu.upload("dvalue", &dvalue)?);
    let mut space = gpu.buffer::<f32>("pieces", sums::pieces(rows) * (d + 1))?;
    let (dh_view, dw_view, db_view) = (dh_got.view_mut(), dw_got.view_mut(), db_got.view_mut());
    on.op("value_bwd");
    kernel::value_bwd(gpu, dh_view, dw_view, db_view, dvalue.view(), h.view(), w.view(), space.view_mut())?;
    on.near("dh", &on.download(&dh_got)?, &dh, E::NMSE);
    on.near("dw", &on.download(&dw_got)?, &dw, f32::NMSE);
    on.near("db", &on.download(&db_got)?, &db, f32::NMSE);
    Ok(())
}

//! The head: hidden states to per-token log-probability, entropy and value, and per-token seeds back (decision D5).
//!
//! Works through the targets in chunks of rows, so that logits of the whole batch never exist.
//!
//! **Math** z = logits / T; log p_j = z_j − max z − ln Σ exp(z − max z). With a kept set K the token's log-probability is over K: the sum
//! runs over K only. The entropy is over the whole vocabulary. With seeds s = dL/dlogp, e = dL/dH:
//! dz_j = s (1[j = token] − p^K_j) − e p_j (log p_j + H), and dlogits = dz / T.
//!
//! Exponentials are summed over 16 lanes in f32 for 128 elements at a time and from there on in f64: a serial f32 sum over a
//! large vocabulary is visibly biased.

use crate::math;
use crate::simd::{Isa, LANES, Simd, dispatch, exp_nonpositive, tree_sum_f64};

/// A token to score: `token` is predicted by the hidden state of packed row `row`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The packed row of the token before it.
    pub row: usize,
    /// The token.
    pub token: u32,
    /// The ids that it was drawn from, ascending; `None` is the whole vocabulary.
    pub kept: Option<Vec<u32>>,
}

/// One number of each kind a target: the model's outputs, or the derivatives of the loss with respect to them (the seeds,
/// where an empty vector is all zeros).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PerTarget<T> {
    /// Log-probability of the token, over its kept set.
    pub logp: Vec<T>,
    /// Entropy in nats, over the vocabulary.
    pub entropy: Vec<T>,
    /// The value head's output at the target's row; empty without a value head.
    pub value: Vec<T>,
}

impl PerTarget<f32> {
    /// Zeros for `n` targets.
    pub fn zeros(n: usize, value: bool) -> Self {
        PerTarget { logp: vec![0.0; n], entropy: vec![0.0; n], value: vec![0.0; if value { n } else { 0 }] }
    }
}

/// Elements whose exponentials are added in f32 before the sum goes on in f64.
const RUN: usize = 8 * LANES;

/// What a row of logits comes to at a temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowStats {
    /// The temperature.
    pub temperature: f32,
    /// Largest z.
    pub max: f32,
    /// Σ exp(z − max).
    pub sum: f64,
    /// Σ exp(z − max) (z − max).
    pub weighted: f64,
}

impl RowStats {
    /// z − max of a logit.
    pub fn shifted(&self, logit: f32) -> f32 {
        logit / self.temperature - self.max
    }

    /// log p of a token with this logit, over the whole vocabulary.
    pub fn logp(&self, logit: f32) -> f32 {
        (f64::from(self.shifted(logit)) - math::ln(self.sum)) as f32
    }

    /// log p of a token with this logit, over a kept set with this [`RowStats::kept_sum`].
    pub fn logp_kept(&self, logit: f32, kept_sum: f64) -> f32 {
        (f64::from(self.shifted(logit)) - math::ln(kept_sum)) as f32
    }

    /// Σ exp(z − max) over a kept set, ids ascending.
    pub fn kept_sum(&self, logits: &[f32], kept: &[u32]) -> f64 {
        kept.iter().map(|&id| math::exp(f64::from(self.shifted(logits[id as usize])))).sum()
    }

    /// Entropy in nats over the whole vocabulary.
    pub fn entropy(&self) -> f32 {
        (math::ln(self.sum) - self.weighted / self.sum) as f32
    }

    /// ln Σ exp(z).
    pub fn log_sum_exp(&self) -> f64 {
        f64::from(self.max) + math::ln(self.sum)
    }
}

dispatch!(
    /// Maximum and sums of a row of logits at `temperature` > 0.
    pub fn row_stats(logits: &[f32], temperature: f32) -> RowStats = row_stats_kernel
);

#[inline(always)]
unsafe fn row_stats_kernel<S: Simd>(logits: &[f32], temperature: f32) -> RowStats {
    let n = logits.len();
    let p = logits.as_ptr();
    // SAFETY: every access is to lanes below n.
    unsafe {
        let t = S::splat(temperature);
        let whole = n / LANES * LANES;
        let mut max = S::splat(f32::NEG_INFINITY);
        for j in (0..whole).step_by(LANES) {
            max = S::max(S::div(S::load(p.add(j)), t), max);
        }
        let mut top = S::lanes(max).into_iter().fold(f32::NEG_INFINITY, f32::max);
        for l in &logits[whole..] {
            top = top.max(l / temperature);
        }
        let max = S::splat(top);
        let (mut sum, mut weighted) = ([0.0f64; LANES], [0.0f64; LANES]);
        for start in (0..n).step_by(RUN) {
            let (mut run, mut run_weighted) = (S::splat(0.0), S::splat(0.0));
            for j in (start..n.min(start + RUN)).step_by(LANES) {
                let m = LANES.min(n - j);
                let d = S::sub(S::div(S::load_n(p.add(j), m), t), max);
                let mut e = exp_nonpositive::<S>(d);
                if m < LANES {
                    let mut lanes = S::lanes(e);
                    lanes[m..].fill(0.0);
                    e = S::load(lanes.as_ptr());
                }
                run = S::add(run, e);
                // A kept-out logit of −∞ has weight 0, and 0 · −∞ must stay 0.
                run_weighted = S::fma(e, S::max(d, S::splat(f32::MIN)), run_weighted);
            }
            for (i, (a, b)) in S::lanes(run).into_iter().zip(S::lanes(run_weighted)).enumerate() {
                sum[i] += f64::from(a);
                weighted[i] += f64::from(b);
            }
        }
        RowStats { temperature, max: top, sum: tree_sum_f64(sum), weighted: tree_sum_f64(weighted) }
    }
}

dispatch!(
    /// Writes exp(z − max) of every logit.
    pub fn exponentials(out: &mut [f32], logits: &[f32], stats: &RowStats) = exponentials_kernel
);

#[inline(always)]
unsafe fn exponentials_kernel<S: Simd>(out: &mut [f32], logits: &[f32], stats: &RowStats) {
    let n = logits.len();
    assert_eq!(out.len(), n);
    for j in (0..n).step_by(LANES) {
        let m = LANES.min(n - j);
        // SAFETY: lanes j .. j + m exist.
        unsafe {
            let z = S::div(S::load_n(logits.as_ptr().add(j), m), S::splat(stats.temperature));
            S::store_n(out.as_mut_ptr().add(j), m, exp_nonpositive::<S>(S::sub(z, S::splat(stats.max))));
        }
    }
}

/// The seeds of one row, ready for [`row_bwd`].
#[derive(Clone, Copy, Debug)]
pub struct RowSeeds {
    /// dL/dlogp.
    pub logp: f32,
    /// dL/dentropy.
    pub entropy: f32,
}

/// Turns a row of logits into dlogits in place.
///
/// **Math** see the module; `kept` restricts the distribution of the log-probability.
pub fn row_bwd(isa: Isa, logits: &mut [f32], stats: &RowStats, token: u32, kept: Option<&[u32]>, seeds: RowSeeds) {
    let inverse_t = 1.0 / stats.temperature;
    match kept {
        None => row_bwd_all(isa, logits, stats, seeds.logp, seeds.entropy),
        Some(kept) => {
            let kept_sum = stats.kept_sum(logits, kept);
            let parts: Vec<f32> = kept
                .iter()
                .map(|&id| {
                    let e = math::exp(f64::from(stats.shifted(logits[id as usize])));
                    -(f64::from(seeds.logp) * e / kept_sum) as f32 * inverse_t
                })
                .collect();
            row_bwd_all(isa, logits, stats, 0.0, seeds.entropy);
            for (&id, part) in kept.iter().zip(parts) {
                logits[id as usize] += part;
            }
        }
    }
    logits[token as usize] += seeds.logp * inverse_t;
}

dispatch!(
    fn row_bwd_all(logits: &mut [f32], stats: &RowStats, s: f32, e: f32) = row_bwd_kernel
);

#[inline(always)]
unsafe fn row_bwd_kernel<S: Simd>(logits: &mut [f32], stats: &RowStats, s: f32, e: f32) {
    let n = logits.len();
    let inverse = (1.0 / stats.sum) as f32;
    // −p (s + e (log p + H)) / T with log p + H = (z − max) − Σ w (z − max) / Σ w.
    let mean = (stats.weighted / stats.sum) as f32;
    // SAFETY: every access is to lanes below n.
    unsafe {
        let (t, max) = (S::splat(stats.temperature), S::splat(stats.max));
        let scale = S::splat(-inverse / stats.temperature);
        for j in (0..n).step_by(LANES) {
            let m = LANES.min(n - j);
            let pointer = logits.as_mut_ptr().add(j);
            let d = S::sub(S::div(S::load_n(pointer, m), t), max);
            let p = S::mul(exp_nonpositive::<S>(d), scale);
            let bounded = S::max(d, S::splat(f32::MIN));
            let slope = S::fma(S::splat(e), S::sub(bounded, S::splat(mean)), S::splat(s));
            S::store_n(pointer, m, S::mul(p, slope));
        }
    }
}

dispatch!(
    /// w · h over 16 lanes, combined in the fixed tree.
    pub fn dot(w: &[f32], h: &[f32]) -> f32 = dot_kernel
);

#[inline(always)]
unsafe fn dot_kernel<S: Simd>(w: &[f32], h: &[f32]) -> f32 {
    assert_eq!(w.len(), h.len());
    let n = w.len();
    // SAFETY: every access is to lanes below n.
    unsafe {
        let mut sum = S::splat(0.0);
        for j in (0..n).step_by(LANES) {
            let m = LANES.min(n - j);
            sum = S::fma(S::load_n(w.as_ptr().add(j), m), S::load_n(h.as_ptr().add(j), m), sum);
        }
        crate::simd::tree_sum(S::lanes(sum))
    }
}

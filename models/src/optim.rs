//! AdamW over flat parameters, and learning-rate schedules.
//!
//! Knows gradients only as numbers. The norm is summed in one fixed order and every other operation is elementwise and
//! exactly rounded, so neither threads nor the instruction path reach a result (decision D3).

use crate::device::Cpu;
use crate::math;
use crate::params::{Params, Table};
use crate::simd::{LANES, Simd, dispatch, tree_sum_f64};
use crate::threads::Shards;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Elements of one term of the norm, and the smallest piece of work for a thread.
const BLOCK: usize = 1 << 14;

/// Settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWSettings {
    /// Decay of the first moment, in [0, 1).
    pub beta1: f64,
    /// Decay of the second moment, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment; above 0.
    pub eps: f64,
    /// Share of every parameter, times the learning rate, that a step takes away: norms and biases too.
    pub weight_decay: f64,
    /// Largest global gradient norm; `None` does not clip.
    pub clip_norm: Option<f64>,
}

impl Default for AdamWSettings {
    /// Betas 0.9 and 0.999, ε 1e-8, decay 0.01, clip 1.
    fn default() -> Self {
        AdamWSettings { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, clip_norm: Some(1.0) }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// The norm was infinite or NaN, so nothing was changed.
    pub skipped: bool,
}

/// AdamW: Adam with bias correction and decoupled weight decay on every parameter; state in f32.
///
/// **Math** with g the clipped gradient: m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²,
/// w ← (1 − lr·decay) w − lr · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε).
///
/// **Source** Kingma and Ba, *Adam*, 2015, algorithm 1; Loshchilov and Hutter, *Decoupled weight decay regularization*,
/// 2019, algorithm 2.
#[derive(Clone, Debug)]
pub struct AdamW {
    /// The settings; may be changed between steps.
    pub settings: AdamWSettings,
    /// First moments.
    pub m: Params,
    /// Second moments.
    pub v: Params,
    /// Steps taken; skipped ones do not count.
    pub steps: u64,
}

impl AdamW {
    /// An optimiser that has not seen a gradient yet.
    pub fn new(settings: AdamWSettings, table: Arc<Table>) -> Self {
        AdamW { settings, m: Params::zeros(table.clone()), v: Params::zeros(table), steps: 0 }
    }

    /// One step at learning rate `lr`: clips by the global norm, then updates moments and weights.
    ///
    /// A norm that is not finite changes nothing, neither weights, moments nor the count of steps.
    ///
    /// **Panics** if `weights` or `grads` have another number of elements than the state.
    pub fn step(&mut self, cpu: &Cpu, weights: &mut Params, grads: &Params, lr: f64) -> Step {
        let n = self.m.data.len();
        assert_eq!((weights.data.len(), grads.data.len()), (n, n), "parameters over another table");
        let grad_norm = grad_norm(cpu, &grads.data);
        if !grad_norm.is_finite() {
            return Step { grad_norm, skipped: true };
        }
        self.steps += 1;
        let clip = self.settings.clip_norm.map_or(1.0, |limit| (limit / (grad_norm + 1e-6)).min(1.0)) as f32;
        let c = self.settings.coefficients(self.steps, lr);
        let (w, m, v) = (&mut weights.data, &mut self.m.data, &mut self.v.data);
        let (w, m, v) = (Shards::new(w), Shards::new(m), Shards::new(v));
        cpu.pool.split(n, BLOCK, LANES, &|range| {
            // SAFETY: `split` hands out ranges that do not overlap.
            let (w, m, v) = unsafe { (w.part(range.clone()), m.part(range.clone()), v.part(range.clone())) };
            update(cpu.isa, &c, clip, w, &grads.data[range], m, v);
        });
        Step { grad_norm, skipped: false }
    }
}

/// The numbers of one step, the same for every element, on every device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coefficients {
    pub beta1: f32,
    pub beta2: f32,
    pub gain1: f32,
    pub gain2: f32,
    pub root_scale: f32,
    pub eps: f32,
    pub keep: f32,
    pub rate: f32,
}

impl AdamWSettings {
    /// Those of step `step`, counted from 1, at learning rate `lr`.
    pub(crate) fn coefficients(&self, step: u64, lr: f64) -> Coefficients {
        let AdamWSettings { beta1, beta2, eps, weight_decay, .. } = *self;
        let correction = |beta: f64| 1.0 - math::pow(beta, step as f64);
        Coefficients {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            gain1: (1.0 - beta1) as f32,
            gain2: (1.0 - beta2) as f32,
            root_scale: (1.0 / correction(beta2).sqrt()) as f32,
            eps: eps as f32,
            keep: (1.0 - lr * weight_decay) as f32,
            rate: (lr / correction(beta1)) as f32,
        }
    }
}

/// Written as a plain loop over exactly rounded operations, none of them fused: the compiler makes vectors of it under
/// each path's features, with the same bits.
#[inline(always)]
unsafe fn update_kernel<S: Simd>(c: &Coefficients, clip: f32, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
        let g = g * clip;
        *m = c.beta1 * *m + c.gain1 * g;
        *v = c.beta2 * *v + c.gain2 * g * g;
        *w = *w * c.keep - c.rate * (*m / (v.sqrt() * c.root_scale + c.eps));
    }
}
dispatch!(fn update(c: &Coefficients, clip: f32, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) = update_kernel);

/// Euclidean norm of all gradients together, in f64; not finite if and only if an element is not.
///
/// Squares are exact in f64. Each block of 16,384 elements is summed over 16 lanes; the blocks are added in their order.
pub fn grad_norm(cpu: &Cpu, grads: &[f32]) -> f64 {
    let blocks = grads.len().div_ceil(BLOCK);
    let mut sums = vec![0.0f64; blocks];
    let shards = Shards::new(&mut sums);
    cpu.pool.run(blocks, &|i| {
        let block = &grads[i * BLOCK..grads.len().min((i + 1) * BLOCK)];
        // SAFETY: every task writes its own element.
        unsafe { shards.part(i..i + 1)[0] = sum_of_squares(cpu.isa, block) };
    });
    sums.iter().sum::<f64>().sqrt()
}

#[inline(always)]
unsafe fn sum_of_squares_kernel<S: Simd>(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            let x = f64::from(x);
            *lane += x * x;
        }
    }
    tree_sum_f64(lanes)
}
dispatch!(fn sum_of_squares(x: &[f32]) -> f64 = sum_of_squares_kernel);

/// How the learning rate falls after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// It stays.
    Constant,
    /// Along a line to the floor.
    Linear,
    /// Along half a cosine to the floor.
    Cosine,
}

/// A learning rate for every step: linear warm-up from 0, then a decay to a floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The largest learning rate.
    pub peak: f64,
    /// Steps of the warm-up: step s of it runs at (s + 1) / `warmup_steps` of the peak.
    pub warmup_steps: u64,
    /// Steps in all; after them the rate stays at the floor.
    pub total_steps: u64,
    /// How it falls.
    pub decay: Decay,
    /// Where it ends, as a share of the peak.
    pub floor: f64,
}

impl Schedule {
    /// The same rate at every step.
    pub fn constant(lr: f64) -> Self {
        Schedule { peak: lr, warmup_steps: 0, total_steps: 0, decay: Decay::Constant, floor: 1.0 }
    }

    /// The learning rate of step `step`, counted from 0.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * ((step + 1) as f64 / self.warmup_steps as f64);
        }
        let falling = self.total_steps.saturating_sub(self.warmup_steps);
        let passed = step - self.warmup_steps;
        let progress = if passed >= falling { 1.0 } else { passed as f64 / falling as f64 };
        let share = match self.decay {
            Decay::Constant => return self.peak,
            Decay::Linear => 1.0 - progress,
            Decay::Cosine => 0.5 * (1.0 + math::cos(std::f64::consts::PI * progress)),
        };
        self.peak * (self.floor + (1.0 - self.floor) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Entry;
    use crate::random::Key;
    use crate::simd::Isa;

    fn table(len: usize) -> Arc<Table> {
        Arc::new(Table { entries: vec![Entry { name: "x".into(), shape: vec![len], offset: 0 }] })
    }

    fn normals(stream: u64, len: usize) -> Params {
        let key = Key::new(9).with(stream);
        Params { table: table(len), data: (0..len as u64).map(|i| key.normal(i) as f32).collect() }
    }

    /// Three steps on a size that is no multiple of anything; the bits of everything that came out.
    fn three_steps(cpu: &Cpu) -> Vec<u64> {
        let len = 5 * BLOCK + 77;
        let mut weights = normals(0, len);
        let mut optimiser = AdamW::new(AdamWSettings::default(), table(len));
        let mut bits = Vec::new();
        for s in 1..=3 {
            let step = optimiser.step(cpu, &mut weights, &normals(s, len), 1e-2);
            assert!(!step.skipped);
            bits.push(step.grad_norm.to_bits());
        }
        let state = [&weights, &optimiser.m, &optimiser.v];
        bits.extend(state.iter().flat_map(|p| &p.data).map(|x| u64::from(x.to_bits())));
        bits
    }

    #[test]
    fn threads_and_instruction_paths_do_not_reach_the_result() {
        let expected = three_steps(&Cpu::with(Isa::Plain, 1));
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                assert!(three_steps(&Cpu::with(isa, threads)) == expected, "{isa:?}, {threads} threads");
            }
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let cpu = Cpu::with(Isa::Plain, 1);
        let mut weights = normals(0, 40);
        let mut optimiser = AdamW::new(AdamWSettings::default(), table(40));
        optimiser.step(&cpu, &mut weights, &normals(1, 40), 1e-2);
        let before = (weights.data.clone(), optimiser.m.data.clone(), optimiser.v.data.clone(), optimiser.steps);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut grads = normals(2, 40);
            grads.data[39] = bad;
            let step = optimiser.step(&cpu, &mut weights, &grads, 1e-2);
            assert!(step.skipped && !step.grad_norm.is_finite());
        }
        assert_eq!(before, (weights.data.clone(), optimiser.m.data.clone(), optimiser.v.data.clone(), 1));
        // The largest finite gradients have a finite norm, and are clipped.
        let grads = Params { table: table(40), data: vec![f32::MAX; 40] };
        let step = optimiser.step(&cpu, &mut weights, &grads, 1e-2);
        assert!(!step.skipped && weights.data.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn the_norm_is_that_of_all_elements() {
        let cpu = Cpu::with(Isa::available()[0], 2);
        assert_eq!(grad_norm(&cpu, &[]), 0.0);
        assert_eq!(grad_norm(&cpu, &[3.0, -4.0]), 5.0);
        let ones = vec![1.0; 3 * BLOCK + 1];
        assert_eq!(grad_norm(&cpu, &ones), (ones.len() as f64).sqrt());
    }

    #[test]
    fn schedules_warm_up_fall_and_stay_at_the_floor() {
        let schedule = Schedule { peak: 2.0, warmup_steps: 4, total_steps: 14, decay: Decay::Cosine, floor: 0.1 };
        let rates: Vec<f64> = [0, 1, 3, 4, 9, 14, 99].iter().map(|&s| schedule.lr(s)).collect();
        for (rate, expected) in rates.iter().zip([0.5, 1.0, 2.0, 2.0, 1.1, 0.2, 0.2]) {
            assert!((rate - expected).abs() < 1e-12, "{rates:?}");
        }
        let linear = Schedule { decay: Decay::Linear, floor: 0.0, warmup_steps: 0, total_steps: 4, peak: 1.0 };
        assert_eq!([0, 1, 2, 3, 4, 5].map(|s| linear.lr(s)), [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
        let warm = Schedule { decay: Decay::Constant, warmup_steps: 2, ..linear };
        assert_eq!([0, 1, 2, 50].map(|s| warm.lr(s)), [0.5, 1.0, 1.0, 1.0]);
        assert_eq!(Schedule::constant(0.3).lr(7), 0.3);
    }
}

//! Objectives against the truth: every sequence of a three-token vocabulary, weighted by its probability, gives the gradient that
//! sampling gives on average; and finite differences through a model of two layers.

mod tiny_model;

use ragen::config::Update;
use ragen::objective::correction::{Correction, CorrectionConfig, CorrectionLevel, weights};
use ragen::objective::{KlConfig, KlKind, LossAverage, LossConfig, LossMetrics, Objective, PolicyLoss, Targets};
use ragen::policy::model::Model;
use ragen::policy::tabular::Tabular;
use ragen::policy::{Policy, Row, TokenSeeds, TokenValues, Weights};
use ragen::reward::{RewardKl, penalties};
use ragen::statistics::log_softmax;
use ragen::update::accumulate;
use ragen_models::device::Cpu;
use ragen_models::optim::AdamWSettings;
use ragen_models::params::Params;
use ragen_models::random::Key;
use ragen_models::simd::Isa;
use ragen_models::transformer::Precision;
use std::sync::Arc;

type Logits = [f64; 3];
/// A loss of (advantage, present log-probabilities, old ones) of a sequence.
type Surrogate<'a> = &'a dyn Fn(f64, &[f64], &[f64]) -> f64;

const PRESENT: Logits = [0.3, -0.4, 0.9];
const OLD: Logits = [-0.2, 0.5, 0.4];
const REFERENCE: Logits = [0.8, 0.1, -0.6];

fn logps(logits: Logits) -> Vec<f64> {
    log_softmax(&logits)
}

/// All sequences of `length` tokens behind a first one, with their log-probability.
fn sequences(logits: Logits, length: usize) -> Vec<(Vec<u32>, f64)> {
    let logps = logps(logits);
    let of = |i: usize| {
        let tokens: Vec<u32> = (0..length).map(|t| (i / 3usize.pow(t as u32) % 3) as u32).collect();
        let logp = tokens.iter().map(|t| logps[*t as usize]).sum();
        ([vec![0], tokens].concat(), logp)
    };
    (0..3usize.pow(length as u32)).map(of).collect()
}

/// An advantage that is no sum over tokens.
fn advantage(ids: &[u32]) -> f64 {
    [1.3, -0.7, 0.4][ids[1] as usize] + ids.get(2).map_or(0.0, |id| [-0.5, 0.9, 2.0][*id as usize] * f64::from(ids[1]))
}

/// What the objective is asked for one sequence: its old and reference log-probabilities, advantage and weight a token.
struct Asked {
    old_logp: Vec<f32>,
    advantage: Vec<f64>,
    weight: Vec<f64>,
    reference_logp: Vec<f32>,
}

/// As things stand for tokens that a policy of logits `old` sampled.
fn asked(ids: &[u32], old: Logits) -> Asked {
    let of = |logits: Logits| ids[1..].iter().map(|id| logps(logits)[*id as usize] as f32).collect::<Vec<f32>>();
    let n = ids.len() - 1;
    Asked { old_logp: of(old), advantage: vec![advantage(ids); n], weight: vec![], reference_logp: of(REFERENCE) }
}

/// A table whose logits are the same in every context.
fn table(logits: Logits) -> Tabular {
    let mut policy = Tabular::new(logits.to_vec());
    policy.order = Some(0);
    policy
}

/// The mean gradient at `PRESENT` over what a policy of logits `sampler` says.
fn mean_gradient(config: &LossConfig, sampler: Logits, length: usize, ask: impl Fn(&[u32]) -> Asked) -> Vec<f64> {
    let mut policy = table(PRESENT);
    for (ids, logp) in sequences(sampler, length) {
        let (asked, lengths) = (ask(&ids), [length]);
        let targets = Targets {
            lengths: &lengths,
            old_logp: &asked.old_logp,
            advantage: &asked.advantage,
            weight: &asked.weight,
            reference_logp: &asked.reference_logp,
            ..Targets::default()
        };
        let objective = Objective::new(config, targets, length).unwrap();
        let places: Vec<u32> = (1..=length as u32).collect();
        let row = Row { ids: &ids, targets: &places, kept: &[] };
        let mut seeds = |now: &TokenValues| {
            let mut seeds = objective.evaluate(0..1, now, &mut LossMetrics::default());
            [&mut seeds.logp, &mut seeds.entropy].into_iter().flatten().for_each(|seed| *seed *= logp.exp() as f32);
            seeds
        };
        policy.accumulate(&[row], 1.0, &mut seeds).unwrap();
    }
    policy.gradients()[..3].to_vec()
}

/// The derivative of `f` at `PRESENT`.
fn exact(f: impl Fn(Logits) -> f64) -> Vec<f64> {
    let moved = |k: usize, by: f64| {
        let mut logits = PRESENT;
        logits[k] += by;
        f(logits)
    };
    (0..3).map(|k| (moved(k, 1e-6) - moved(k, -1e-6)) / 2e-6).collect()
}

#[track_caller]
fn same(got: &[f64], want: &[f64], what: &str) {
    assert!(want.iter().any(|x| x.abs() > 1e-3), "{what}: nothing to compare with");
    assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 2e-6), "{what}: {got:?} is not {want:?}");
}

fn differs(got: &[f64], other: &[f64]) -> bool {
    got.iter().zip(other).any(|(a, b)| (a - b).abs() > 1e-3)
}

const LOSSES: [PolicyLoss; 3] = [PolicyLoss::Ppo, PolicyLoss::Gspo, PolicyLoss::Cispo];

/// Only the policy's loss, summed over tokens.
fn bare(policy: PolicyLoss) -> LossConfig {
    LossConfig { policy, average: LossAverage::SeqMeanTokenSum, entropy_coef: 0.0, ..LossConfig::default() }
}

fn expected_return(logits: Logits) -> f64 {
    sequences(logits, 2).iter().map(|(ids, logp)| logp.exp() * advantage(ids)).sum()
}

#[test]
fn on_its_own_samples_every_objective_is_the_policy_gradient() {
    let want = exact(|logits| -expected_return(logits));
    for policy in LOSSES {
        same(&mean_gradient(&bare(policy), PRESENT, 2, |ids| asked(ids, PRESENT)), &want, &format!("{policy:?}"));
    }
}

#[test]
fn away_from_the_samples_every_objective_is_its_formula() {
    let config = |policy| LossConfig { clip_low: 0.15, clip_high: 0.2, clip_dual: 1.4, ..bare(policy) };
    let clip = |ratio: f64| ratio.clamp(0.85, 1.2);
    let surrogate = |advantage: f64, ratio: f64| (-advantage * ratio).max(-advantage * clip(ratio));
    let dual = |advantage: f64, loss: f64| if advantage < 0.0 { loss.min(-advantage * 1.4) } else { loss };
    // Means over what the old policy says of f(advantage, present and old log-probability of each token).
    let over = |logits: Logits, f: Surrogate<'_>| -> f64 {
        let (present, old) = (logps(logits), logps(OLD));
        let of = |from: &[f64], ids: &[u32]| ids[1..].iter().map(|id| from[*id as usize]).collect::<Vec<f64>>();
        sequences(OLD, 2)
            .iter()
            .map(|(ids, logp)| logp.exp() * f(advantage(ids), &of(&present, ids), &of(&old, ids)))
            .sum()
    };
    let ppo = |logits: Logits| {
        over(logits, &|a, new, old| new.iter().zip(old).map(|(n, o)| dual(a, surrogate(a, (n - o).exp()))).sum())
    };
    let gspo = |logits: Logits| {
        over(logits, &|a, new, old| 2.0 * surrogate(a, ((new[0] + new[1] - old[0] - old[1]) / 2.0).exp()))
    };
    let frozen = logps(PRESENT);
    let weight: Vec<f64> = frozen.iter().zip(logps(OLD)).map(|(new, old)| clip((new - old).exp())).collect();
    let cispo = |logits: Logits| {
        let logps = logps(logits);
        let of = |ids: &[u32]| ids[1..].iter().map(|id| weight[*id as usize] * logps[*id as usize]).sum::<f64>();
        sequences(OLD, 2).iter().map(|(ids, logp)| -logp.exp() * advantage(ids) * of(ids)).sum::<f64>()
    };
    let free = exact(|logits| over(logits, &|a, new, old| new.iter().zip(old).map(|(n, o)| -a * (n - o).exp()).sum()));
    let wants = [exact(ppo), exact(gspo), exact(cispo)];
    for (policy, want) in LOSSES.into_iter().zip(wants) {
        let got = mean_gradient(&config(policy), OLD, 2, |ids| asked(ids, OLD));
        same(&got, &want, &format!("{policy:?}"));
        assert!(differs(&got, &free), "{policy:?}: nothing is clipped");
    }
}

#[test]
fn samples_of_another_policy_are_corrected() {
    let want = exact(|logits| -expected_return(logits));
    for policy in LOSSES {
        let ask = |kind: Correction, cap: f64| {
            move |ids: &[u32]| {
                let (sampled, scored) = (asked(ids, OLD).old_logp, asked(ids, PRESENT));
                let config = CorrectionConfig { kind, level: CorrectionLevel::Sequence, cap };
                Asked { weight: weights(&config, &[2], &sampled, &scored.old_logp).weight, ..scored }
            }
        };
        let config = bare(policy);
        for kind in [Correction::Tis, Correction::Mis] {
            same(&mean_gradient(&config, OLD, 2, ask(kind, 1e6)), &want, &format!("{policy:?} {kind:?}"));
            assert!(differs(&mean_gradient(&config, OLD, 2, ask(kind, 1.1)), &want), "a low cap biases");
        }
        assert!(differs(&mean_gradient(&config, OLD, 2, ask(Correction::None, 2.0)), &want), "so does no weight");
    }
}

/// KL(p ‖ q).
fn divergence(p: Logits, q: Logits) -> f64 {
    logps(p).iter().zip(logps(q)).map(|(p, q)| p.exp() * (p - q)).sum()
}

fn only_kl(kind: KlKind) -> LossConfig {
    LossConfig { kl: KlConfig { coef: 0.7, kind, ..KlConfig::default() }, ..bare(PolicyLoss::Ppo) }
}

fn without_advantage(ids: &[u32], old: Logits) -> Asked {
    Asked { advantage: vec![0.0; ids.len() - 1], ..asked(ids, old) }
}

#[test]
fn each_divergence_as_a_loss_pulls_where_it_says() {
    let gradient = |kind, sampler| mean_gradient(&only_kl(kind), sampler, 1, |ids| without_advantage(ids, sampler));
    let right = exact(|logits| 0.7 * divergence(logits, REFERENCE));
    let other = exact(|logits| 0.7 * divergence(REFERENCE, logits));
    assert!(gradient(KlKind::K1, PRESENT).iter().all(|g| g.abs() < 1e-6), "K1 pulls nowhere");
    same(&gradient(KlKind::K2, PRESENT), &right, "K2");
    same(&gradient(KlKind::K3, PRESENT), &other, "K3 pulls along the other divergence");
    same(&gradient(KlKind::Unbiased, PRESENT), &right, "unbiased");
    assert!(differs(&right, &other));
    let (present, reference) = (logps(PRESENT), logps(REFERENCE));
    let sign = |i: usize| (present[i] - reference[i]).signum();
    let absolute = exact(|logits| 0.7 * (0..3).map(|i| present[i].exp() * sign(i) * logps(logits)[i]).sum::<f64>());
    same(&gradient(KlKind::Abs, PRESENT), &absolute, "|a − b| pulls by its sign");
    // Of another policy's samples only one keeps its word.
    same(&gradient(KlKind::Unbiased, OLD), &right, "unbiased");
    assert!(differs(&gradient(KlKind::K2, OLD), &right) && differs(&gradient(KlKind::K3, OLD), &other));
}

#[test]
fn in_the_reward_k1_is_the_exact_gradient() {
    let right = exact(|logits| 0.7 * divergence(logits, REFERENCE));
    let gradient = |kind| {
        let kl = RewardKl { coef: 0.7, kind, ..RewardKl::default() };
        mean_gradient(&bare(PolicyLoss::Ppo), PRESENT, 1, |ids| {
            let asked = asked(ids, PRESENT);
            Asked { advantage: penalties(&kl, &[1], &asked.old_logp, &asked.reference_logp).extra, ..asked }
        })
    };
    same(&gradient(KlKind::K1), &right, "K1 in the reward");
    assert!(differs(&gradient(KlKind::K3), &right) && differs(&gradient(KlKind::K2), &right));
}

#[test]
fn the_entropy_bonus_is_the_gradient_of_the_entropy() {
    let config = LossConfig { entropy_coef: 0.3, ..bare(PolicyLoss::Ppo) };
    let entropy = |logits: Logits| -logps(logits).iter().map(|p| p.exp() * p).sum::<f64>();
    let got = mean_gradient(&config, PRESENT, 1, |ids| without_advantage(ids, PRESENT));
    same(&got, &exact(|logits| -0.3 * entropy(logits)), "entropy");
}

#[test]
fn a_step_on_the_divergence_alone_lowers_it() {
    let ids: Vec<[u32; 2]> = (0..3).map(|id| [0, id]).collect();
    let rows: Vec<Row<'_>> = ids.iter().map(|ids| Row { ids, targets: &[1], kept: &[] }).collect();
    let measure = |policy: &mut Tabular| -> f64 {
        let [now, then] = [Weights::Policy, Weights::Reference].map(|w| policy.score(w, &rows, 1.0).unwrap().logp);
        now.iter().zip(then).map(|(p, q)| f64::from(*p).exp() * (f64::from(*p) - f64::from(q))).sum()
    };
    for kind in [KlKind::K1, KlKind::K2, KlKind::K3, KlKind::Abs, KlKind::Unbiased] {
        // The reference is where the policy began, and it has moved since.
        let mut policy = table(REFERENCE);
        policy.freeze_reference().unwrap();
        let mut push = |_: &TokenValues| TokenSeeds { logp: vec![0.9, -0.4, -0.5], ..TokenSeeds::default() };
        policy.accumulate(&rows, 1.0, &mut push).unwrap();
        policy.update(1.0).unwrap();
        let before = measure(&mut policy);
        let now = policy.score(Weights::Policy, &rows, 1.0).unwrap().logp;
        let reference_logp = policy.score(Weights::Reference, &rows, 1.0).unwrap().logp;
        let config = only_kl(kind);
        let targets = Targets {
            lengths: &[1; 3],
            old_logp: &now,
            advantage: &[0.0; 3],
            reference_logp: &reference_logp,
            ..Targets::default()
        };
        let objective = Objective::new(&config, targets, 1).unwrap();
        let mut seeds = |values: &TokenValues| {
            let mut seeds = objective.evaluate(0..3, values, &mut LossMetrics::default());
            seeds.logp.iter_mut().zip(&values.logp).for_each(|(seed, logp)| *seed *= 3.0 * logp.exp());
            seeds
        };
        policy.accumulate(&rows, 1.0, &mut seeds).unwrap();
        policy.update(0.2).unwrap();
        let after = measure(&mut policy);
        match kind {
            KlKind::K1 => assert!((after - before).abs() < 1e-6, "{before} -> {after}"),
            _ => assert!(before > 0.2 && after < before - 0.01, "{kind:?}: {before} -> {after}"),
        }
    }
}

/// Rows for the two-layer model, what they are trained towards, and the model's own values for them.
struct Batch {
    ids: Vec<Vec<u32>>,
    targets: Vec<Vec<u32>>,
    asked: Asked,
    ret: Vec<f64>,
    old_value: Vec<f32>,
}

impl Batch {
    fn new(model: &mut Model, vocab: usize) -> Batch {
        let key = Key::new(17);
        let lengths = [14usize, 9, 21, 12];
        let ids = |i: u64, n: usize| (0..n).map(|t| key.with(i).below(t as u64, vocab) as u32).collect::<Vec<u32>>();
        let ids: Vec<Vec<u32>> = lengths.iter().enumerate().map(|(i, n)| ids(i as u64, *n)).collect();
        // Turns of three tokens with two of the environment's between them.
        let sampled = |n: &usize| (1..*n as u32).filter(|t| t % 5 > 1).collect::<Vec<u32>>();
        let targets: Vec<Vec<u32>> = lengths.iter().map(sampled).collect();
        let mut batch = Batch {
            asked: Asked { old_logp: vec![], advantage: vec![], weight: vec![], reference_logp: vec![] },
            ids,
            targets,
            ret: vec![],
            old_value: vec![],
        };
        let now = model.score(Weights::Policy, &batch.rows(), 1.0).unwrap();
        let noise = |name: &str, scale: f64| {
            (0..now.logp.len()).map(|t| scale * key.named(name).normal(t as u64)).collect::<Vec<f64>>()
        };
        let near =
            |values: &[f32], noise: Vec<f64>| values.iter().zip(noise).map(|(x, e)| x + e as f32).collect::<Vec<f32>>();
        batch.asked.old_logp = near(&now.logp, noise("old", 0.3));
        batch.asked.reference_logp = near(&now.logp, noise("reference", 0.8));
        // One advantage a row, so that a row's ratio has one derivative.
        let rows = batch.targets.iter().enumerate();
        batch.asked.advantage = rows.flat_map(|(i, t)| vec![[1.2, -0.8, 0.5, -1.5][i]; t.len()]).collect();
        batch.asked.weight = noise("weight", 1.0).into_iter().map(f64::abs).collect();
        batch.ret = noise("return", 2.0);
        batch.old_value = near(&now.value, noise("value", 0.3));
        batch
    }

    fn rows(&self) -> Vec<Row<'_>> {
        self.ids.iter().zip(&self.targets).map(|(ids, targets)| Row { ids, targets, kept: &[] }).collect()
    }

    /// The loss, its gradients being added in the model.
    fn loss(&self, model: &mut Model, update: &Update, weighted: bool, valued: bool) -> f64 {
        let lengths: Vec<usize> = self.targets.iter().map(Vec::len).collect();
        let targets = Targets {
            lengths: &lengths,
            old_logp: &self.asked.old_logp,
            advantage: &self.asked.advantage,
            weight: if weighted { &self.asked.weight } else { &[] },
            ret: if valued { &self.ret } else { &[] },
            old_value: if valued { &self.old_value } else { &[] },
            reference_logp: &self.asked.reference_logp,
            ..Targets::default()
        };
        let objective = Objective::new(&update.loss, targets, 50).unwrap();
        accumulate(model, &self.rows(), &objective, update, 1.0).unwrap().loss
    }
}

/// The change of each objective along a direction through its gradient, in f32: steps of 1e-2 change losses by about 1e-3, and
/// rounding by 1e-7, so 0.5 % leaves room for what the second derivative adds.
#[test]
fn finite_differences_through_two_layers() {
    const VOCAB: usize = 13;
    let shape = tiny_model::shape(VOCAB, 64, true);
    let params = tiny_model::weights(&shape, 20.0);
    let cpu = Arc::new(Cpu::with(Isa::available()[0], 1));
    let model =
        |params: Params| Model::new(cpu.clone(), shape.clone(), params, Precision::F32, AdamWSettings::default());
    let batch = Batch::new(&mut model(params.clone()), VOCAB);
    let kl = |kind| KlConfig { coef: 0.4, kind, ..KlConfig::default() };
    let base = LossConfig { entropy_coef: 0.05, kl: kl(KlKind::K3), ..LossConfig::default() };
    let mut cases = vec![("values", base.clone(), false, true), ("weights", base.clone(), true, false)];
    for average in [LossAverage::SeqMeanTokenMean, LossAverage::SeqMeanTokenSum, LossAverage::SeqMeanTokenSumNorm] {
        cases.push(("averages", LossConfig { average, ..base.clone() }, false, false));
    }
    for kind in [KlKind::K1, KlKind::K2, KlKind::K3, KlKind::Abs, KlKind::Unbiased] {
        cases.push(("divergences", LossConfig { kl: kl(kind), ..base.clone() }, false, false));
    }
    cases.push((
        "gspo",
        LossConfig { policy: PolicyLoss::Gspo, clip_low: 0.05, clip_high: 0.05, ..base.clone() },
        // With weights of their own, tokens of a row would not move its ratio alike.
        false,
        true,
    ));
    // A weight that is held at 1 does not move, as its derivative says.
    cases.push(("cispo", LossConfig { policy: PolicyLoss::Cispo, clip_low: 0.0, clip_high: 0.0, ..base }, true, true));
    for (what, loss, weighted, valued) in cases {
        let update = Update { loss, ..Update::default() };
        let mut here = model(params.clone());
        batch.loss(&mut here, &update, weighted, valued);
        let gradient: Vec<f64> = here.gradients().unwrap().iter().map(|g| f64::from(*g)).collect();
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let key = Key::new(5);
        let random: Vec<f64> =
            (0..gradient.len()).map(|i| key.normal(i as u64) / (gradient.len() as f64).sqrt()).collect();
        let direction: Vec<f64> = gradient.iter().zip(&random).map(|(g, r)| g / norm + 0.3 * r).collect();
        let slope: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let moved = |by: f64| {
            let mut params = params.clone();
            params.data.iter_mut().zip(&direction).for_each(|(w, d)| *w += (by * d) as f32);
            batch.loss(&mut model(params), &update, weighted, valued)
        };
        let step = 1e-2 / norm.max(1.0);
        let numeric = (moved(step) - moved(-step)) / (2.0 * step);
        let config = &update.loss;
        assert!(norm > 0.01, "{what}: {norm}");
        assert!(
            (numeric - slope).abs() < 5e-3 * slope.abs(),
            "{what} {:?} {:?}: {slope} is not {numeric}",
            config.average,
            config.kl.kind
        );
    }
}

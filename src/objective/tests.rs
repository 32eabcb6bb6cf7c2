use super::divergence::MAX_K3;
use super::*;
use ragen_models::random::Key;

const STEP: f64 = 1e-6;

fn near(derivative: f64, low: f64, high: f64, what: &str) {
    let numeric = (high - low) / (2.0 * STEP);
    assert!((derivative - numeric).abs() <= 1e-6 * numeric.abs().max(1.0), "{what}: {derivative} is not {numeric}");
}

/// Values on a coarse grid, moved off it, so that no difference quotient straddles a kink.
fn off_grid(key: Key, position: u64, spread: f64) -> f64 {
    (key.below(position, 41) as f64 - 20.0) / 20.0 * spread + 0.0017
}

#[test]
fn derivatives_agree_with_finite_differences() {
    let config = LossConfig::default();
    let key = Key::new(11);
    let (mut n_clipped, mut n_lower) = (0, 0);
    for i in 0..3000 {
        let key = key.with(i);
        let (logp, old, advantage) = (off_grid(key, 0, 2.0), off_grid(key, 1, 2.0) - 0.0004, off_grid(key, 2, 3.0));
        let of = |logp| ppo_term(&config, Ratio::of(logp, old), advantage);
        let (term, loss) = (of(logp), |logp| of(logp).loss);
        near(term.dlogp, loss(logp - STEP), loss(logp + STEP), "policy loss");
        n_clipped += usize::from(term.is_clipped);
        n_lower += usize::from(term.is_clipped_lower);
        // The weight of CISPO is no part of what is differentiated.
        let weight = Ratio::of(logp, old);
        let loss = |logp| cispo_term(&config, weight, logp, advantage).loss;
        near(cispo_term(&config, weight, logp, advantage).dlogp, loss(logp - STEP), loss(logp + STEP), "CISPO");

        for kind in [KlKind::K1, KlKind::K2, KlKind::K3, KlKind::Abs, KlKind::Unbiased] {
            let of = |logp: f64| kind.estimate_at(Ratio::of(logp, advantage).value, logp, old);
            near(of(logp).1, of(logp - STEP).0, of(logp + STEP).0, "KL");
        }

        let (value, old_value, ret) = (logp, old, advantage + 0.0009);
        let loss = |value| value_term(value, old_value, ret, 0.5).loss;
        near(value_term(value, old_value, ret, 0.5).dvalue, loss(value - STEP), loss(value + STEP), "value loss");
    }
    assert!(n_clipped > 100 && n_lower > 100, "{n_clipped} clipped, {n_lower} by the dual clip");
}

#[test]
fn far_from_the_reference_k3_is_flat() {
    assert_eq!(KlKind::K3.estimate(-50.0, 0.0), (MAX_K3, 0.0));
    assert_eq!(KlKind::K3.estimate(0.0, 0.0), (0.0, 0.0));
    assert_eq!(KlKind::Abs.estimate(-1.5, -1.5), (0.0, 0.0));
}

#[test]
fn at_ratio_one_the_seed_is_exactly_the_advantage() {
    for advantage in [-3.7, -0.1, 0.0, 0.3, 1e6] {
        let logp = f64::from(-1.234f32);
        let ratio = Ratio::of(logp, logp);
        let config = LossConfig::default();
        for term in [ppo_term(&config, ratio, advantage), gspo_term(&config, ratio, advantage)] {
            assert_eq!((ratio.value, term.loss, term.dlogp), (1.0, -advantage, -advantage));
            assert!(!term.is_clipped && !term.is_clipped_lower);
        }
        assert_eq!(cispo_term(&config, ratio, logp, advantage).dlogp, -advantage);
    }
}

/// A mini-batch of ragged rows, one of them without trained tokens.
struct Batch {
    lengths: Vec<usize>,
    old_logp: Vec<f32>,
    advantage: Vec<f64>,
    weight: Vec<f64>,
    ret: Vec<f64>,
    old_value: Vec<f32>,
    reference_logp: Vec<f32>,
    now: TokenValues,
}

impl Batch {
    fn new() -> Batch {
        let lengths = vec![5, 1, 0, 9, 2, 3, 3, 14];
        let n = lengths.iter().sum::<usize>() as u64;
        let key = Key::new(23);
        let draw = |name: &str, scale: f64| -> Vec<f64> { (0..n).map(|i| scale * key.named(name).normal(i)).collect() };
        let single = |values: Vec<f64>| -> Vec<f32> { values.into_iter().map(|v| v as f32).collect() };
        Batch {
            lengths,
            old_logp: single(draw("old", 0.5)),
            advantage: draw("advantage", 1.0),
            weight: draw("weight", 1.0).into_iter().map(f64::abs).collect(),
            ret: draw("ret", 1.0),
            old_value: single(draw("old value", 1.0)),
            reference_logp: single(draw("reference", 0.5)),
            now: TokenValues {
                logp: single(draw("logp", 0.5)),
                entropy: single(draw("entropy", 1.0)),
                value: single(draw("value", 1.0)),
            },
        }
    }

    fn objective<'a>(&'a self, config: &'a LossConfig) -> Objective<'a> {
        let targets = Targets {
            episodes: &[],
            lengths: &self.lengths,
            old_logp: &self.old_logp,
            advantage: &self.advantage,
            weight: &self.weight,
            ret: &self.ret,
            old_value: &self.old_value,
            reference_logp: &self.reference_logp,
        };
        Objective::new(config, targets, 20).unwrap()
    }

    /// Seeds and metrics of the whole mini-batch, evaluated `rows_at_once` rows at a time.
    fn evaluate(&self, config: &LossConfig, rows_at_once: usize) -> (TokenSeeds, LossMetrics) {
        let objective = self.objective(config);
        let mut metrics = LossMetrics::default();
        let mut seeds = TokenSeeds::default();
        let mut token = 0;
        for start in (0..self.lengths.len()).step_by(rows_at_once) {
            let rows = start..(start + rows_at_once).min(self.lengths.len());
            let tokens = token..token + self.lengths[rows.clone()].iter().sum::<usize>();
            token = tokens.end;
            let now = TokenValues {
                logp: self.now.logp[tokens.clone()].to_vec(),
                entropy: self.now.entropy[tokens.clone()].to_vec(),
                value: self.now.value[tokens].to_vec(),
            };
            let micro = objective.evaluate(rows, &now, &mut metrics);
            seeds.logp.extend(micro.logp);
            seeds.entropy.extend(micro.entropy);
            seeds.value.extend(micro.value);
        }
        (seeds, metrics)
    }
}

const AVERAGES: [LossAverage; 4] = [
    LossAverage::TokenMean,
    LossAverage::SeqMeanTokenMean,
    LossAverage::SeqMeanTokenSum,
    LossAverage::SeqMeanTokenSumNorm,
];

const LOSSES: [PolicyLoss; 3] = [PolicyLoss::Ppo, PolicyLoss::Gspo, PolicyLoss::Cispo];

fn config(average: LossAverage) -> LossConfig {
    LossConfig {
        average,
        entropy_coef: 0.01,
        kl: KlConfig { coef: 0.1, ..KlConfig::default() },
        ..LossConfig::default()
    }
}

#[test]
fn loss_and_seeds_do_not_depend_on_the_split_in_any_bit() {
    let batch = Batch::new();
    for (average, policy) in AVERAGES.into_iter().flat_map(|a| LOSSES.map(|p| (a, p))) {
        let config = LossConfig { policy, ..config(average) };
        let whole = batch.evaluate(&config, 8);
        for rows_at_once in [1, 2, 3, 4] {
            let parts = batch.evaluate(&config, rows_at_once);
            assert_eq!(parts, whole, "{average:?}, {policy:?}, {rows_at_once} rows at once");
        }
    }
}

/// The whole loss against its seeds. Inputs are f32, so the quotients are taken with a step that f32 can hold.
#[test]
fn seeds_are_the_derivatives_of_the_whole_loss() {
    let batch = Batch::new();
    let n_tokens = batch.now.logp.len();
    for average in AVERAGES {
        let config = config(average);
        let objective = batch.objective(&config);
        let loss = |now: &TokenValues| {
            let mut metrics = LossMetrics::default();
            objective.evaluate(0..batch.lengths.len(), now, &mut metrics);
            metrics.loss
        };
        let seeds = objective.evaluate(0..batch.lengths.len(), &batch.now, &mut LossMetrics::default());
        let fields: [fn(&mut TokenValues) -> &mut Vec<f32>; 3] =
            [|v| &mut v.logp, |v| &mut v.entropy, |v| &mut v.value];
        for (field, seeds) in fields.into_iter().zip([&seeds.logp, &seeds.entropy, &seeds.value]) {
            for t in 0..n_tokens {
                let mut moved = [batch.now.clone(), batch.now.clone()];
                field(&mut moved[0])[t] -= 1e-3;
                field(&mut moved[1])[t] += 1e-3;
                let step = f64::from(field(&mut moved[1])[t]) - f64::from(field(&mut moved[0])[t]);
                let numeric = (loss(&moved[1]) - loss(&moved[0])) / step;
                assert!((f64::from(seeds[t]) - numeric).abs() < 3e-6, "{average:?} token {t}: {} {numeric}", seeds[t]);
            }
        }
    }
}

#[test]
fn nothing_to_train_and_broken_numbers_do_not_panic() {
    let config = config(LossAverage::SeqMeanTokenMean);
    let targets = Targets { lengths: &[0, 0], ..Targets::default() };
    let mut metrics = LossMetrics::default();
    let seeds = Objective::new(&config, targets, 0).unwrap().evaluate(0..2, &TokenValues::default(), &mut metrics);
    assert_eq!((seeds, metrics), (TokenSeeds::default(), LossMetrics::default()));

    for broken in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut batch = Batch::new();
        batch.now.logp[0] = broken as f32;
        batch.old_logp[1] = broken as f32;
        batch.old_value[2] = broken as f32;
        batch.now.value[3] = broken as f32;
        batch.advantage[4] = broken;
        batch.reference_logp[6] = broken as f32;
        let (seeds, _) = batch.evaluate(&config, 8);
        assert_eq!(seeds.logp.len(), batch.now.logp.len());
        // A token of which nothing is broken keeps a finite seed.
        assert!(seeds.logp[7..].iter().chain(&seeds.entropy).all(|seed| seed.is_finite()));
    }
}

#[test]
fn wrong_lengths_are_named() {
    let targets = Targets { lengths: &[2], old_logp: &[0.0; 2], advantage: &[0.0; 2], ..Targets::default() };
    let mut config = LossConfig::default();
    assert!(Objective::new(&config, targets, 2).is_ok());
    config.kl.coef = 0.1;
    assert_eq!(
        Objective::new(&config, targets, 2).unwrap_err(),
        ObjectiveError::Length { what: "reference_logp", found: 0, n_tokens: 2 }
    );
}

#[test]
fn settings_are_read_by_name() {
    let text = r#"{"average": "seq-mean-token-sum", "kl": {"coef": 0.1, "kind": "low-var-kl"}}"#;
    let config: LossConfig = serde_json::from_str(text).unwrap();
    assert_eq!((config.average, config.kl.kind), (LossAverage::SeqMeanTokenSum, KlKind::K3));
    for (name, kind) in [("kl", KlKind::K1), ("k1", KlKind::K1), ("mse", KlKind::K2), ("abs", KlKind::Abs)] {
        assert_eq!(serde_json::from_str::<KlKind>(&format!("{name:?}")).unwrap(), kind);
    }
    assert!(serde_json::from_str::<KlKind>("\"k3+\"").is_err());
}

/// An episode of several rows weighs what it would weigh as one row.
#[test]
fn rows_of_an_episode_count_as_one() {
    let config = |average| LossConfig { average, entropy_coef: 0.1, ..LossConfig::default() };
    let now = TokenValues { logp: vec![-0.5; 6], entropy: vec![1.0, 2.0, 0.5, 1.5, 0.7, 0.9], value: Vec::new() };
    for average in [
        LossAverage::TokenMean,
        LossAverage::SeqMeanTokenMean,
        LossAverage::SeqMeanTokenSum,
        LossAverage::SeqMeanTokenSumNorm,
    ] {
        let config = config(average);
        let evaluate = |lengths: &[usize], episodes: &[usize]| {
            let targets = Targets {
                lengths,
                episodes,
                old_logp: &[-0.6; 6],
                advantage: &[0.3, 0.3, 0.3, -0.2, -0.2, -0.2],
                ..Targets::default()
            };
            let mut metrics = LossMetrics::default();
            let seeds = Objective::new(&config, targets, 9).unwrap().evaluate(0..lengths.len(), &now, &mut metrics);
            (seeds, metrics)
        };
        let split = evaluate(&[1, 2, 2, 1], &[4, 4, 7, 7]);
        assert_eq!(split, evaluate(&[3, 3], &[]), "{average:?}");
        assert_eq!(evaluate(&[3, 3], &[0, 1]), evaluate(&[3, 3], &[]), "{average:?}");
        let differs = evaluate(&[1, 5], &[0, 1]).0 != split.0;
        assert_eq!(differs, average == LossAverage::SeqMeanTokenMean, "{average:?}");
    }
    let targets =
        Targets { lengths: &[1, 1], episodes: &[0], old_logp: &[0.0; 2], advantage: &[0.0; 2], ..Targets::default() };
    assert!(Objective::new(&LossConfig::default(), targets, 1).unwrap_err().to_string().contains("episodes"));
}

/// A row's ratio moves with each of its tokens; with one advantage a row, the seeds are the derivatives of the whole loss.
#[test]
fn the_ratio_of_a_row_moves_with_all_of_its_tokens() {
    let mut batch = Batch::new();
    batch.weight = Vec::new();
    let mut start = 0;
    for &length in &batch.lengths {
        let advantage = batch.advantage.get(start).copied().unwrap_or_default();
        batch.advantage[start..start + length].fill(advantage);
        start += length;
    }
    for average in AVERAGES {
        let config = LossConfig { policy: PolicyLoss::Gspo, clip_low: 0.05, clip_high: 0.05, ..config(average) };
        let objective = batch.objective(&config);
        let loss = |now: &TokenValues| {
            let mut metrics = LossMetrics::default();
            objective.evaluate(0..batch.lengths.len(), now, &mut metrics);
            metrics.loss
        };
        let mut metrics = LossMetrics::default();
        let seeds = objective.evaluate(0..batch.lengths.len(), &batch.now, &mut metrics);
        assert!(metrics.clip_fraction > 0.1 && metrics.clip_fraction < 0.9, "{}", metrics.clip_fraction);
        for t in 0..batch.now.logp.len() {
            let mut moved = [batch.now.clone(), batch.now.clone()];
            moved[0].logp[t] -= 1e-3;
            moved[1].logp[t] += 1e-3;
            let step = f64::from(moved[1].logp[t]) - f64::from(moved[0].logp[t]);
            let numeric = (loss(&moved[1]) - loss(&moved[0])) / step;
            assert!(
                (f64::from(seeds.logp[t]) - numeric).abs() < 3e-6,
                "{average:?} token {t}: {} {numeric}",
                seeds.logp[t]
            );
        }
    }
}

#[test]
fn a_ratio_of_ten_is_capped_where_the_advantage_is_negative() {
    let config = LossConfig::default();
    let ratio = Ratio::of(10f64.ln(), 0.0);
    let term = ppo_term(&config, ratio, -2.0);
    assert!((term.loss - 6.0).abs() < 1e-12 && term.dlogp == 0.0 && term.is_clipped_lower, "{term:?}");
    let uncapped = LossConfig { clip_dual: 1e9, ..config };
    assert!((ppo_term(&uncapped, ratio, -2.0).loss - 20.0).abs() < 1e-12);
    // CISPO weighs it no more than 1 + high, and still moves.
    assert!((cispo_term(&uncapped, ratio, -1.0, -2.0).dlogp - 2.0 * 1.28).abs() < 1e-12);
}

#[test]
fn weights_for_another_sampler_are_cut_or_masked() {
    use correction::{Correction, CorrectionConfig, CorrectionLevel, weights};
    let log = |ratios: &[f64]| ratios.iter().map(|r| r.ln() as f32).collect::<Vec<f32>>();
    let scored = log(&[1.0, 3.0, 0.25, 1.5, 1.5]);
    let sampled = [0.0; 5];
    let of = |kind, level| weights(&CorrectionConfig { kind, level, cap: 2.0 }, &[3, 0, 2], &sampled, &scored);
    let near = |got: &[f64], want: &[f64]| {
        assert!(got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?} {want:?}");
    };
    let tis = of(Correction::Tis, CorrectionLevel::Token);
    near(&tis.weight, &[1.0, 2.0, 0.25, 1.5, 1.5]);
    near(&[tis.mean_ratio, tis.max_ratio, tis.limited], &[7.25 / 5.0, 3.0, 0.2]);
    near(&[tis.kl], &[-(0.75f64.ln() + 2.25f64.ln()) / 5.0]);
    near(&of(Correction::Mis, CorrectionLevel::Token).weight, &[1.0, 0.0, 0.0, 1.5, 1.5]);
    near(&of(Correction::Tis, CorrectionLevel::Sequence).weight, &[0.75, 0.75, 0.75, 2.0, 2.0]);
    near(&of(Correction::Mis, CorrectionLevel::Sequence).weight, &[0.75, 0.75, 0.75, 0.0, 0.0]);
    near(&of(Correction::None, CorrectionLevel::Token).weight, &[1.0; 5]);
    // The policy's own samples weigh exactly 1.
    assert_eq!(weights(&CorrectionConfig::default(), &[5], &scored, &scored).mean_ratio, 1.0);
}

#[test]
fn the_coefficient_is_adapted_towards_its_target() {
    let control = (0.1, 100.0);
    assert_eq!(adapt(0.5, control, 0.1, 50), 0.5);
    assert!((adapt(0.5, control, 0.11, 50) - 0.5 * (1.0 + 0.1 * 0.5)).abs() < 1e-12);
    assert!((adapt(0.5, control, 7.0, 50) - 0.55).abs() < 1e-12 && (adapt(0.5, control, 0.0, 50) - 0.45).abs() < 1e-12);
    assert_eq!((adapt(0.5, (0.0, 100.0), 7.0, 50), adapt(0.5, control, f64::NAN, 50)), (0.5, 0.5));
}

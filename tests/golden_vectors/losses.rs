//! The objective against recorded losses and gradients.

use crate::cases::{Case, Matrix, lengths, single, trained};
use ragen::objective::{KlKind, LossAverage, LossConfig, LossMetrics, Objective, Targets};
use ragen::policy::{TokenSeeds, TokenValues};
use ragen::reward::{RewardKl, penalties};
use ragen::{estimator, statistics};

/// Seeds and metrics of a mini-batch whose rows are `horizon` predictions long.
fn evaluate(config: &LossConfig, targets: Targets<'_>, horizon: usize, now: &TokenValues) -> (TokenSeeds, LossMetrics) {
    let mut metrics = LossMetrics::default();
    let objective = Objective::new(config, targets, horizon).unwrap();
    let seeds = objective.evaluate(0..targets.lengths.len(), now, &mut metrics);
    (seeds, metrics)
}

fn double(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

fn check_policy_loss(case: &mut Case) {
    let mask: Matrix = case.inputs.take("mask");
    let config = LossConfig {
        clip_low: case.inputs.take("clip_low"),
        clip_high: case.inputs.take("clip_high"),
        clip_dual: case.inputs.take("dual_clip_c"),
        average: case.inputs.take("agg"),
        entropy_coef: 0.0,
        ..LossConfig::default()
    };
    let lengths = lengths(&mask);
    let old_logp = single(&trained(&case.inputs.take("old_log_prob"), &mask));
    let advantage = trained(&case.inputs.take("advantages"), &mask);
    let logp = single(&trained(&case.inputs.take("log_prob"), &mask));
    let targets = Targets { lengths: &lengths, old_logp: &old_logp, advantage: &advantage, ..Targets::default() };
    let now = TokenValues { entropy: vec![0.0; logp.len()], logp, value: Vec::new() };
    let (seeds, metrics) = evaluate(&config, targets, mask[0].len(), &now);
    for (key, got) in [
        ("loss", metrics.loss),
        ("clip_frac", metrics.clip_fraction),
        ("clip_frac_lower", metrics.clip_fraction_lower),
        ("ppo_kl", metrics.ppo_kl),
    ] {
        let want = case.expected.take(key);
        case.close(key, got, want, 1e-4);
    }
    let want = trained(&case.expected.take("grad_log_prob"), &mask);
    case.all_close("grad_log_prob", &double(&seeds.logp), &want, 1e-4);
}

fn check_value_loss(case: &mut Case) {
    let mask: Matrix = case.inputs.take("mask");
    let config = LossConfig { value_clip: case.inputs.take("clip"), entropy_coef: 0.0, ..LossConfig::default() };
    let lengths = lengths(&mask);
    let ret = trained(&case.inputs.take("returns"), &mask);
    let old_value = single(&trained(&case.inputs.take("values"), &mask));
    let value = single(&trained(&case.inputs.take("vpreds"), &mask));
    let zeros = vec![0.0f32; value.len()];
    let targets = Targets {
        lengths: &lengths,
        old_logp: &zeros,
        advantage: &vec![0.0; value.len()],
        ret: &ret,
        old_value: &old_value,
        ..Targets::default()
    };
    let now = TokenValues { logp: zeros.clone(), entropy: zeros.clone(), value };
    let (seeds, metrics) = evaluate(&config, targets, mask[0].len(), &now);
    let (loss, clip_frac) = (case.expected.take("loss"), case.expected.take("clip_frac"));
    case.close("loss", metrics.value_loss, loss, 1e-4);
    case.close("loss", metrics.loss, loss, 1e-4);
    case.close("clip_frac", metrics.value_clip_fraction, clip_frac, 1e-4);
    let want = trained(&case.expected.take("grad_vpreds"), &mask);
    case.all_close("grad_vpreds", &double(&seeds.value), &want, 1e-4);
}

/// The recorded gradient is that of the sum over all tokens.
fn check_kl(case: &mut Case) {
    let kind: KlKind = case.inputs.take("kind");
    let logp = case.inputs.take::<Matrix>("log_prob").concat();
    let reference_logp = case.inputs.take::<Matrix>("ref_log_prob").concat();
    let (kl, slope): (Vec<f64>, Vec<f64>) =
        logp.iter().zip(&reference_logp).map(|(&logp, &reference)| kind.estimate(logp, reference)).unzip();
    if case.expected.find::<String>("reference_error").is_some() {
        assert!(kl.iter().chain(&slope).all(|number| number.is_finite()), "{}", case.name);
        return;
    }
    let want = case.expected.take::<Matrix>("kl").concat();
    case.all_close("kl", &kl, &want, 1e-4);
    let want = case.expected.take::<Matrix>("grad_log_prob").concat();
    case.all_close("grad_log_prob", &slope, &want, 1e-4);
}

fn check_average(case: &mut Case) {
    let mask: Matrix = case.inputs.take("mask");
    let average: LossAverage = case.inputs.take("agg");
    let values = trained(&case.inputs.take("values"), &mask);
    let lengths = lengths(&mask);
    let weights = average.row_weights(&lengths, mask[0].len());
    let token_weights = lengths.iter().zip(weights).flat_map(|(&n, weight)| std::iter::repeat_n(weight, n));
    let want = case.expected.take("value");
    case.close("value", values.iter().zip(token_weights).map(|(value, weight)| value * weight).sum(), want, 1e-4);
}

fn check_entropy(case: &mut Case) {
    let temperature: f64 = case.inputs.take("temperature");
    let logits: Matrix = case.inputs.take("logits");
    let log_softmax: Matrix = logits
        .iter()
        .map(|row| statistics::log_softmax(&row.iter().map(|logit| logit / temperature).collect::<Vec<f64>>()))
        .collect();
    let entropy: Vec<f64> = log_softmax.iter().map(|logps| statistics::entropy(logps)).collect();
    let want: Vec<f64> = case.expected.take("entropy");
    case.all_close("entropy", &entropy, &want, 1e-4);
    let want = case.expected.take::<Matrix>("log_softmax").concat();
    case.all_close("log_softmax", &log_softmax.concat(), &want, 1e-4);
}

fn check_whiten(case: &mut Case) {
    let mask: Matrix = case.inputs.take("mask");
    let mut values = trained(&case.inputs.take("values"), &mask);
    let moments = estimator::whiten(&mut values);
    if case.expected.find::<String>("error").is_some() {
        assert!(moments.is_err(), "{}", case.name);
        return;
    }
    let (mean, var) = moments.unwrap();
    let (want_mean, want_var) = (case.expected.take("mean"), case.expected.take("var"));
    case.close("mean", mean, want_mean, 1e-4);
    case.close("var", var, want_var, 1e-4);
    let want = trained(&case.expected.take("whitened"), &mask);
    case.all_close("whitened", &values, &want, 1e-4);
}

fn check_kl_in_reward(case: &mut Case) {
    let mask: Matrix = case.inputs.take("mask");
    let kl = RewardKl { coef: case.inputs.take("coef"), kind: case.inputs.take("kind"), ..RewardKl::default() };
    let mut rewards = trained(&case.inputs.take("scores"), &mask);
    let old_logp = single(&trained(&case.inputs.take("old_log_prob"), &mask));
    let reference_logp = single(&trained(&case.inputs.take("ref_log_prob"), &mask));
    let costs = penalties(&kl, &lengths(&mask), &old_logp, &reference_logp);
    rewards.iter_mut().zip(&costs.extra).for_each(|(reward, extra)| *reward += extra);
    let want = case.expected.take("mean_kl");
    case.close("mean_kl", costs.mean, want, 1e-4);
    let want = trained(&case.expected.take("rewards"), &mask);
    case.all_close("rewards", &rewards, &want, 1e-4);
}

/// Checks one case; false for an unknown operation.
pub fn check(case: &mut Case) -> bool {
    match case.op.as_str() {
        "policy_loss" => check_policy_loss(case),
        "value_loss" => check_value_loss(case),
        "kl" => check_kl(case),
        "agg" => check_average(case),
        "entropy" => check_entropy(case),
        "whiten" => check_whiten(case),
        "kl_in_reward" => check_kl_in_reward(case),
        _ => return false,
    }
    true
}

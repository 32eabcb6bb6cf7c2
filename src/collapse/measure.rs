//! The statistics of log-probabilities of reasonings after inputs.

use crate::collapse::CollapseConfig;
use crate::statistics;
use ragen_models::math::ln;
use serde::{Deserialize, Serialize};

/// Log-probabilities of reasonings after inputs.
#[derive(Clone, Copy, Debug)]
pub struct CrossScores<'a> {
    /// S\[i, j\] = ln p(z_i | x_j) in nats, summed over tokens; row-major, `[rows, columns]`.
    pub sums: &'a [f64],
    /// Tokens of each reasoning.
    pub lengths: &'a [usize],
    /// For each row the column of its own input.
    pub own: &'a [usize],
    /// For each column what its input is; equal numbers, equal inputs.
    pub input: &'a [usize],
}

/// Running spread of the marginals, one a sampling kind; part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunningSpread {
    /// Of the marginals per token, in nats.
    pub per_token: Option<f64>,
    /// Of the marginals per sequence, in nats.
    pub per_sequence: Option<f64>,
}

/// Takes a new measurement into a running mean; one that is not finite is passed by.
fn track(running: &mut Option<f64>, now: f64, decay: f64) -> f64 {
    if now.is_finite() {
        *running = Some(running.map_or(now, |before| decay * before + (1.0 - decay) * now));
    }
    running.unwrap_or(now)
}

/// The detector's metrics, named `prefix` and their own name; none with fewer than two columns or no rows.
///
/// **Math** with C\[i, j\] = S\[i, j\] / length_i: matched_i = C\[i, own_i\], marginal_i = ln mean_j exp C\[i, j\];
/// I(X;Z) = mean(matched − marginal), H(Z|X) = −mean(matched), H(Z) = −mean(marginal); the `_seq` metrics use S in place
/// of C and are the ones in nats a reasoning, bounded by ln N. A row is retrieved if its best column (by C, the lower one
/// of equals) has its own input; `@k` takes the k best.
///
/// **Source** RAGEN-2, the mutual-information estimate of reasoning collapse.
///
/// **Panics** if the shapes disagree.
pub fn measure(
    prefix: &str,
    scores: &CrossScores<'_>,
    config: &CollapseConfig,
    running: &mut RunningSpread,
) -> Vec<(String, f64)> {
    let (n_rows, n_columns) = (scores.lengths.len(), scores.input.len());
    assert!(scores.sums.len() == n_rows * n_columns && scores.own.len() == n_rows, "[rows, columns] scores");
    if n_columns < 2 || n_rows == 0 {
        return Vec::new();
    }
    let mut metrics = Vec::new();
    let mut report = |name: String, value: f64| metrics.push((format!("{prefix}{name}"), value));

    let per_token: Vec<f64> =
        (0..scores.sums.len()).map(|at| scores.sums[at] / scores.lengths[at / n_columns].max(1) as f64).collect();
    report("mi_upper_bound".into(), ln(n_columns as f64));
    for (suffix, table, spread) in
        [("", per_token.as_slice(), &mut running.per_token), ("_seq", scores.sums, &mut running.per_sequence)]
    {
        let matched: Vec<f64> = (0..n_rows).map(|i| table[i * n_columns + scores.own[i]]).collect();
        let marginal: Vec<f64> =
            table.chunks(n_columns).map(|row| statistics::log_sum_exp(row) - ln(n_columns as f64)).collect();
        let (matched, mean_marginal) = (statistics::mean(&matched), statistics::mean(&marginal));
        let information = matched - mean_marginal;
        let std = statistics::population_std(&marginal);
        let running_std = track(spread, std, config.ema_decay);
        let (estimate, std_suffix) =
            if suffix.is_empty() { ("_estimate", "_est") } else { ("_seq_estimate", "_seq_est") };
        report(format!("mi{estimate}"), information);
        report(format!("conditional_entropy{std_suffix}"), -matched);
        report(format!("reasoning_entropy{std_suffix}"), -mean_marginal);
        report(format!("marginal_std{suffix}"), std);
        report(format!("marginal_std_ema{suffix}"), running_std);
        report(format!("mi_zscore{suffix}"), information / (std + config.std_eps));
        report(format!("mi_zscore_ema{suffix}"), information / (running_std + config.std_eps));
        if suffix.is_empty() {
            report("matched_log_prob_mean".into(), matched);
            report("marginal_log_prob_mean".into(), mean_marginal);
        }
    }

    let chance = statistics::mean(
        &scores
            .own
            .iter()
            .map(|&own| scores.input.iter().filter(|&&input| input == scores.input[own]).count() as f64)
            .collect::<Vec<f64>>(),
    ) / n_columns as f64;
    for k in [1, 2, 4, 8] {
        let n_best = k.min(n_columns);
        let n_retrieved = per_token
            .chunks(n_columns)
            .zip(scores.own)
            .filter(|(row, own)| best(row, n_best).any(|column| scores.input[column] == scores.input[**own]))
            .count();
        let accuracy = n_retrieved as f64 / n_rows as f64;
        let chance = (chance * n_best as f64).min(1.0);
        let at = if k == 1 { String::new() } else { format!("@{k}") };
        report(format!("retrieval_accuracy{at}"), accuracy);
        report(format!("retrieval_chance_level{at}"), chance);
        report(format!("retrieval_above_chance{at}"), accuracy - chance);
    }
    metrics
}

/// The `n` columns with the highest scores, best first; the lower one of equals.
fn best(row: &[f64], n: usize) -> impl Iterator<Item = usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    order.into_iter().take(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collapse::{FIRST_TURN, SampleCount};

    fn value(metrics: &[(String, f64)], name: &str) -> f64 {
        metrics.iter().find(|metric| metric.0 == format!("{FIRST_TURN}{name}")).expect(name).1
    }

    fn measure_square(sums: &[f64], n: usize) -> Vec<(String, f64)> {
        let index: Vec<usize> = (0..n).collect();
        let scores = CrossScores { sums, lengths: &vec![4; n], own: &index, input: &index };
        measure(FIRST_TURN, &scores, &CollapseConfig::default(), &mut RunningSpread::default())
    }

    /// Reasoning that names its input is at the bound; one template for all is at zero.
    #[test]
    fn planted_template_collapse_is_told_from_healthy_reasoning() {
        let n = 8;
        let healthy: Vec<f64> = (0..n * n).map(|at| if at / n == at % n { -4.0 } else { -400.0 }).collect();
        let metrics = measure_square(&healthy, n);
        assert!((value(&metrics, "mi_seq_estimate") - ln(8.0)).abs() < 1e-12);
        assert_eq!(value(&metrics, "retrieval_accuracy"), 1.0);
        assert_eq!(value(&metrics, "conditional_entropy_est"), 1.0);

        let metrics = measure_square(&vec![-4.0; n * n], n);
        assert!(value(&metrics, "mi_seq_estimate").abs() < 1e-12);
        assert_eq!(value(&metrics, "retrieval_accuracy"), 1.0 / 8.0);
        assert_eq!(value(&metrics, "retrieval_above_chance"), 0.0);
        assert!(value(&metrics, "mi_zscore").abs() < 1e-12);
    }

    #[test]
    fn too_little_to_compare_gives_no_metrics() {
        assert!(measure_square(&[-1.0], 1).is_empty());
        let scores = CrossScores { sums: &[], lengths: &[], own: &[], input: &[0, 1] };
        let config = CollapseConfig::default();
        assert!(measure(FIRST_TURN, &scores, &config, &mut RunningSpread::default()).is_empty());
    }

    #[test]
    fn a_broken_score_does_not_stay_in_the_running_spread() {
        let mut running = RunningSpread::default();
        let config = CollapseConfig::default();
        for first in [-1.0, f64::NAN, f64::NEG_INFINITY] {
            let sums = [first, -2.0, -3.0, -1.0];
            let scores = CrossScores { sums: &sums, lengths: &[1, 1], own: &[0, 1], input: &[0, 1] };
            assert!(!measure(FIRST_TURN, &scores, &config, &mut running).is_empty());
            assert!(running.per_token.is_some_and(f64::is_finite));
        }
    }

    #[test]
    fn settings_are_read_by_name() {
        let config: CollapseConfig = serde_json::from_str(r#"{"num_samples": "all"}"#).unwrap();
        assert_eq!(config.num_samples, SampleCount::All);
        let text = serde_json::to_string(&CollapseConfig::default()).unwrap();
        assert_eq!(serde_json::from_str::<CollapseConfig>(&text).unwrap(), CollapseConfig::default());
        for wrong in ["0", "-3", "\"some\"", "1.5"] {
            assert!(serde_json::from_str::<SampleCount>(wrong).is_err(), "{wrong} was taken");
        }
    }
}

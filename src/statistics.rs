//! Means, spreads, log-sums and rank correlations of host slices in f64.
//!
//! A slice whose values are all equal has exactly their value as mean and exactly 0 as spread: rounding must not make a
//! group without spread look as if it had one. Nothing here panics: an empty slice has mean 0 and spread 0.

use ragen_models::math::{exp, ln};

fn is_flat(values: &[f64]) -> bool {
    values.windows(2).all(|pair| pair[0] == pair[1])
}

/// The arithmetic mean; 0 for no values.
pub fn mean(values: &[f64]) -> f64 {
    match values.first() {
        None => 0.0,
        Some(&first) if is_flat(values) => first,
        Some(_) => values.iter().sum::<f64>() / values.len() as f64,
    }
}

fn squared_deviations(values: &[f64]) -> f64 {
    if is_flat(values) {
        return 0.0;
    }
    let centre = mean(values);
    values.iter().map(|value| (value - centre) * (value - centre)).sum()
}

/// The unbiased standard deviation (divisor n − 1); 0 for fewer than two values.
pub fn sample_std(values: &[f64]) -> f64 {
    if values.len() < 2 { 0.0 } else { (squared_deviations(values) / (values.len() - 1) as f64).sqrt() }
}

/// The standard deviation of the values as a whole population (divisor n); 0 for no values.
pub fn population_std(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { (squared_deviations(values) / values.len() as f64).sqrt() }
}

/// The largest value; negative infinity for no values.
pub fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// ln Σ e^v without overflow; negative infinity for no values.
pub fn log_sum_exp(values: &[f64]) -> f64 {
    let largest = max(values);
    if largest.is_infinite() {
        return largest;
    }
    largest + ln(values.iter().map(|value| exp(value - largest)).sum())
}

/// v − ln Σ e^v: log-probabilities from logits.
pub fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let total = log_sum_exp(logits);
    logits.iter().map(|logit| logit - total).collect()
}

/// −Σ p ln p in nats, from log-probabilities; impossible outcomes count 0.
pub fn entropy(logps: &[f64]) -> f64 {
    logps.iter().filter(|logp| **logp > f64::NEG_INFINITY).map(|logp| -exp(*logp) * logp).sum()
}

/// Each value's rank from 1 up; equal values share the mean of theirs. What is no number ranks last.
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let rank = first as f64 + (equal.len() + 1) as f64 / 2.0;
        equal.iter().for_each(|&i| ranks[i] = rank);
        first += equal.len();
    }
    ranks
}

/// Spearman's rank correlation, from −1 to 1; `None` for fewer than two pairs, or where all values of one side are equal.
///
/// **Math** Pearson's correlation of the [`ranks`], so ties are counted right.
///
/// **Panics** if the lengths differ.
pub fn spearman(x: &[f64], y: &[f64]) -> Option<f64> {
    assert_eq!(x.len(), y.len(), "a pair has two values");
    let (x, y) = (ranks(x), ranks(y));
    let centre = (x.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - centre) * (b - centre)).sum::<f64>();
    let spread = (product(&x, &x) * product(&y, &y)).sqrt();
    (spread > 0.0).then(|| product(&x, &y) / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_exactly_no_spread() {
        let flat = [-0.1; 16];
        assert_eq!((mean(&flat), sample_std(&flat), population_std(&flat)), (-0.1, 0.0, 0.0));
        assert_eq!((mean(&[]), sample_std(&[]), sample_std(&[3.0]), population_std(&[])), (0.0, 0.0, 0.0, 0.0));
        assert_eq!(sample_std(&[1.0, 3.0]), 2f64.sqrt());
        assert_eq!(population_std(&[1.0, 3.0]), 1.0);
    }

    #[test]
    fn rank_correlation_counts_ties() {
        assert_eq!(ranks(&[3.0, -1.0, 3.0, 7.0]), [2.5, 1.0, 2.5, 4.0]);
        assert_eq!(ranks(&[5.0; 3]), [2.0; 3]);
        // Any rising function has 1, any falling one −1.
        assert_eq!(spearman(&[1.0, 2.0, 9.0], &[0.1, 0.2, 0.3]), Some(1.0));
        assert_eq!(spearman(&[1.0, 2.0, 9.0], &[3.0, 2.0, -8.0]), Some(-1.0));
        // Without ties 1 − 6 Σd² / (n (n² − 1)): d = 0, 1, −1, 1, −1, so 1 − 24 / 120.
        assert_eq!(spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[10.0, 30.0, 20.0, 50.0, 40.0]), Some(0.8));
        // Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / √(4.5 · 5).
        let tied = spearman(&[0.0, 1.0, 1.0, 2.0], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert!((tied - 0.9f64.sqrt()).abs() < 1e-12, "{tied}");
        assert_eq!(
            (spearman(&[1.0, 1.0], &[1.0, 2.0]), spearman(&[1.0], &[1.0]), spearman(&[], &[])),
            (None, None, None)
        );
    }

    #[test]
    fn log_sums_survive_extremes() {
        assert_eq!(log_sum_exp(&[1000.0, 1000.0]), 1000.0 + ln(2.0));
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[f64::NEG_INFINITY; 2]), f64::NEG_INFINITY);
        assert!(log_sum_exp(&[f64::NAN, 0.0]).is_nan());
        let logps = log_softmax(&[0.0, f64::NEG_INFINITY, 0.0]);
        assert!((entropy(&logps) - ln(2.0)).abs() < 1e-15);
    }
}

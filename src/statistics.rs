//! Means, spreads and log-sums of host slices in f64.
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
    fn log_sums_survive_extremes() {
        assert_eq!(log_sum_exp(&[1000.0, 1000.0]), 1000.0 + ln(2.0));
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[f64::NEG_INFINITY; 2]), f64::NEG_INFINITY);
        assert!(log_sum_exp(&[f64::NAN, 0.0]).is_nan());
        let logps = log_softmax(&[0.0, f64::NEG_INFINITY, 0.0]);
        assert!((entropy(&logps) - ln(2.0)).abs() < 1e-15);
    }
}

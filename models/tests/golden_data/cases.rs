//! Cases of the head and of the sampler, which tests of several devices go through.

use super::{golden, read_json};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The cases of `golden/<name>`.
pub fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File<T> {
        cases: Vec<T>,
    }
    let file: File<T> = read_json(&golden(name));
    assert!(!file.cases.is_empty());
    file.cases
}

/// A row of logits of a vocabulary of real size, and what comes of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSoftmaxCase {
    pub seed: u32,
    pub n: usize,
    scale: f32,
    first_logits: Vec<f32>,
    last_logit: f32,
    pub logsumexp: f64,
    pub entropy: f64,
    pub targets: Vec<u32>,
    pub logps: Vec<f64>,
    pub seed_target: u32,
    pub dlogp: f64,
    pub dentropy: f64,
    pub dlogits_at_targets: Vec<f64>,
    pub dlogits_abs_sum: f64,
    pub dlogits_sum: f64,
    /// Of other programs.
    #[serde(rename = "measured_error")]
    _measured_error: Value,
}

impl LogSoftmaxCase {
    /// The row, made from the seed.
    pub fn logits(&self) -> Vec<f32> {
        let mut x = self.seed;
        let next = |_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            self.scale * ((x >> 8) as f32 / (1u32 << 24) as f32 - 0.5)
        };
        let logits: Vec<f32> = (0..self.n).map(next).collect();
        assert_eq!(logits[..self.first_logits.len()], self.first_logits);
        assert_eq!(logits[self.n - 1], self.last_logit);
        logits
    }
}

/// A row of logits, filters, and what they leave.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingCase {
    pub name: String,
    logits: Vec<Option<f32>>,
    pub temperature: f32,
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
    pub kept: Vec<u32>,
    pub probs: Vec<f64>,
    pub logps: Vec<f64>,
    /// Where a tie makes transformers keep another set; ours is `kept`.
    #[serde(rename = "transformers_kept")]
    _transformers_kept: Option<Vec<u32>>,
    #[serde(rename = "boundary_gap")]
    _boundary_gap: Option<f64>,
}

impl SamplingCase {
    /// The row; null stands for minus infinity.
    pub fn logits(&self) -> Vec<f32> {
        self.logits.iter().map(|x| x.unwrap_or(f32::NEG_INFINITY)).collect()
    }
}

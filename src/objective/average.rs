//! From token losses to one number: a weight for each row's tokens.

use super::{EPS, ObjectiveError};
use serde::{Deserialize, Serialize};

/// How token losses become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossAverage {
    /// The mean over all tokens (DAPO).
    #[default]
    #[serde(alias = "token-mean")]
    TokenMean,
    /// The mean over rows of each row's token mean (GRPO).
    #[serde(alias = "seq-mean-token-mean")]
    SeqMeanTokenMean,
    /// The mean over rows of each row's token sum.
    #[serde(alias = "seq-mean-token-sum")]
    SeqMeanTokenSum,
    /// The sum over all tokens divided by a length (Dr. GRPO).
    #[serde(alias = "seq-mean-token-sum-norm")]
    SeqMeanTokenSumNorm,
}

impl LossAverage {
    /// The weight of each row's tokens in the loss of a mini-batch, so that the loss is Σ weight × token loss.
    ///
    /// `lengths` holds the trained tokens of every row of the mini-batch, `horizon_tokens` what
    /// `seq_mean_token_sum_norm` divides by. The weights belong to the mini-batch, so neither loss nor gradient depends
    /// on how it is split. Rows without trained tokens do not count as rows.
    pub fn row_weights(self, lengths: &[usize], horizon_tokens: usize) -> Vec<f64> {
        let n_tokens = lengths.iter().sum::<usize>() as f64;
        let n_rows = lengths.iter().filter(|&&n| n > 0).count() as f64;
        let weight = |&n: &usize| match self {
            LossAverage::TokenMean => 1.0 / (n_tokens + EPS),
            LossAverage::SeqMeanTokenMean => 1.0 / ((n as f64 + EPS) * (n_rows + EPS)),
            LossAverage::SeqMeanTokenSum => 1.0 / (n_rows + EPS),
            LossAverage::SeqMeanTokenSumNorm => 1.0 / horizon_tokens.max(1) as f64,
        };
        lengths.iter().map(weight).collect()
    }
}

/// The weight of each row's tokens where the rows of an episode count as one.
pub(super) fn episode_weights(
    average: LossAverage,
    lengths: &[usize],
    episodes: &[usize],
    horizon_tokens: usize,
) -> Result<Vec<f64>, ObjectiveError> {
    if episodes.len() != lengths.len() {
        let (found, n_tokens) = (episodes.len(), lengths.len());
        return Err(ObjectiveError::Length { what: "episodes, one a row,", found, n_tokens });
    }
    let mut sums: Vec<usize> = Vec::new();
    let mut which = Vec::with_capacity(lengths.len());
    for (row, length) in lengths.iter().enumerate() {
        if row == 0 || episodes[row] != episodes[row - 1] {
            sums.push(0);
        }
        which.push(sums.len() - 1);
        sums[which[row]] += length;
    }
    let weights = average.row_weights(&sums, horizon_tokens);
    Ok(which.into_iter().map(|episode| weights[episode]).collect())
}

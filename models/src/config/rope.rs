//! What turns queries and keys by their position: the base of the rotary frequencies and how they are stretched.
//!
//! Parameters only; [`crate::config`] reads and writes them, the operation itself makes frequencies of them.

use super::Fault;
use serde::{Deserialize, Serialize};

/// Rotary position embedding over the whole width of a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base θ: pair i of a head turns by θ^(−2i/head_dim) a position, before any scaling.
    pub theta: f64,
    /// How these frequencies are changed for a longer context.
    pub scaling: RopeScaling,
}

/// How frequencies are changed to reach beyond the context that a model was first trained with.
///
/// **Source** the kinds, keys and defaults are those of `modeling_rope_utils` in transformers 5.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// All frequencies divided by one factor (position interpolation, Chen et al. 2023).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Long waves divided, short ones kept, those between blended (Llama 3.1).
    Llama3 {
        /// The divisor of the long waves.
        factor: f64,
        /// Waves longer than original / this are divided.
        low_freq_factor: f64,
        /// Waves shorter than original / this are kept.
        high_freq_factor: f64,
        /// The context of the first training, in positions.
        original_max_positions: usize,
    },
    /// A ramp over the pairs between divided and kept, with sharper attention (Peng et al. 2023).
    Yarn(Yarn),
    /// A larger base for a context beyond `max_positions` ("NTK", computed for one fixed context).
    ///
    /// **Deviations** transformers takes new frequencies whenever a sequence grows, so that the keys in its cache and
    /// those of a fresh pass differ. Here a row never depends on how long its sequence has become: the frequencies
    /// follow from the limit that the table was made for. Up to `max_positions` they are those of
    /// [`RopeScaling::Default`], in both.
    Dynamic {
        /// How many times the trained context is to be reached.
        factor: f64,
    },
}

/// Parameters of YaRN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Yarn {
    /// The divisor of the long waves.
    pub factor: f64,
    /// The context of the first training, in positions.
    pub original_max_positions: usize,
    /// Pairs that turn more often than this within the original context are kept.
    pub beta_fast: f64,
    /// Pairs that turn less often than this are divided.
    pub beta_slow: f64,
    /// Multiplies cosines and sines; `None`: as `factor`, `mscale` and `mscale_all_dim` say.
    pub attention_factor: Option<f64>,
    /// Weight of ln(factor) in the attention factor's numerator; counts only together with the next.
    pub mscale: Option<f64>,
    /// Weight of ln(factor) in its denominator.
    pub mscale_all_dim: Option<f64>,
    /// The ramp begins and ends at whole pairs.
    pub truncate: bool,
}

impl Yarn {
    /// What cosines and sines are multiplied by.
    ///
    /// **Math** with m(f, s) = 0.1 s ln f + 1 (and 1 for f ≤ 1): m(factor, mscale) / m(factor, mscale_all_dim), or
    /// m(factor, 1) when either is not given.
    pub fn attention(&self) -> f64 {
        let m = |scale: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * scale * crate::math::ln(self.factor) + 1.0 };
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(above), Some(below)) => m(above) / m(below),
            (None, _, _) => m(1.0),
        }
    }
}

impl Rope {
    /// Plain RoPE with this base.
    pub fn plain(theta: f64) -> Self {
        Rope { theta, scaling: RopeScaling::Default }
    }

    /// Everything that makes frequencies which are no numbers.
    pub(super) fn faults(&self, head_dim: usize) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut check = |key, x: f64, least: f64| {
            if !(x.is_finite() && x > 0.0) {
                faults.push(Fault { key, reason: format!("{x} is not a positive number") });
            } else if x < least {
                faults.push(Fault { key, reason: format!("{x} is less than {least}") });
            }
        };
        check("rope_theta", self.theta, 0.0);
        let mut original = None;
        match &self.scaling {
            RopeScaling::Default => {}
            RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor } => {
                check("rope_scaling.factor", *factor, 1.0)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                check("rope_scaling.factor", *factor, 1.0);
                check("rope_scaling.low_freq_factor", *low_freq_factor, 0.0);
                check("rope_scaling.high_freq_factor", *high_freq_factor, 0.0);
                original = Some(*original_max_positions);
                if high_freq_factor <= low_freq_factor {
                    let reason = format!("{high_freq_factor} is not greater than low_freq_factor {low_freq_factor}");
                    faults.push(Fault { key: "rope_scaling.high_freq_factor", reason });
                }
            }
            RopeScaling::Yarn(yarn) => {
                check("rope_scaling.factor", yarn.factor, 1.0);
                check("rope_scaling.beta_slow", yarn.beta_slow, 0.0);
                check("rope_scaling.beta_fast", yarn.beta_fast, yarn.beta_slow);
                check("rope_scaling.attention_factor", yarn.attention(), 0.0);
                original = Some(yarn.original_max_positions);
                if self.theta == 1.0 {
                    let reason = "1 gives all pairs one frequency, between which YaRN cannot tell".into();
                    faults.push(Fault { key: "rope_theta", reason });
                }
            }
        }
        if let Some(positions @ 0) | Some(positions @ 0x1_0000_0000..) = original {
            let reason = format!("{positions} is not between 1 and {}", u32::MAX);
            faults.push(Fault { key: "rope_scaling.original_max_position_embeddings", reason });
        }
        if matches!(self.scaling, RopeScaling::Dynamic { .. }) && head_dim == 2 {
            let reason = "2 leaves one pair, whose frequency no base changes: dynamic scaling needs 4 or more".into();
            faults.push(Fault { key: "head_dim", reason });
        }
        faults
    }
}

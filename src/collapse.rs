//! The collapse detector: does the reasoning still depend on the input?
//!
//! Inputs are called `x` and reasonings `z`, as in RAGEN-2. From the matrix S of log p(z_i | x_j) follow the mutual
//! information I(X;Z), the conditional entropy H(Z|X) and how often z_i tells its own x apart. A policy that answers
//! every input with the same template keeps its entropy and its reward for a while, but loses I(X;Z).
//!
//! Pure functions: which pairs to score, and the statistics of the scores. The scoring is the agent's.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How many pairs are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleCount {
    /// Every pair there is.
    All,
    /// At most so many, drawn without replacement.
    AtMost(usize),
}

impl Serialize for SampleCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            SampleCount::All => serializer.serialize_str("all"),
            SampleCount::AtMost(n) => serializer.serialize_u64(*n as u64),
        }
    }
}

impl<'de> Deserialize<'de> for SampleCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = SampleCount;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number above 0, or \"all\"")
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<SampleCount, E> {
                match usize::try_from(n) {
                    Ok(n) if n > 0 => Ok(SampleCount::AtMost(n)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(n), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<SampleCount, E> {
                match u64::try_from(n) {
                    Ok(n) => self.visit_u64(n),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SampleCount, E> {
                match text {
                    "all" => Ok(SampleCount::All),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// `[collapse]`: when and on what the collapse detector runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollapseConfig {
    /// On step 1 and on every n-th step; 0 never.
    pub every: u64,
    /// Measure the reasoning of first turns.
    pub first_turn: bool,
    /// First-turn pairs that are scored: a number, or `"all"`.
    pub num_samples: SampleCount,
    /// Added to the marginal's standard deviation in `mi_zscore`, in nats.
    pub std_eps: f64,
    /// How much of the running standard deviation in `mi_zscore_ema` is kept a measurement.
    pub ema_decay: f64,
}

impl Default for CollapseConfig {
    fn default() -> Self {
        CollapseConfig {
            every: 5,
            first_turn: true,
            num_samples: SampleCount::AtMost(64),
            std_eps: 1e-3,
            ema_decay: 0.9,
        }
    }
}

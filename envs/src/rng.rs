//! Random numbers of the environments: a counter behind a mixing function, equal on every machine.
//!
//! It knows nothing of tasks or of the policy's sampler. A [`Stream`] is derived from `(env type, seed, purpose)`, so
//! that the layout of a level and the noise inside an episode never share numbers; it is two integers, so that a saved
//! state holds it whole.
//!
//! **Source** the mixing function is SplitMix64's finaliser (Steele, Lea and Flood, *Fast splittable pseudorandom
//! number generators*, 2014); names are hashed with FNV-1a.

use serde::{Deserialize, Serialize};

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a over bytes, 64 bits; the hash behind [`crate::Env::state_hash`].
pub fn hash_bytes(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
}

/// An endless sequence of random numbers: which sequence, and how many were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Names the sequence.
    pub key: u64,
    /// How many numbers were taken from it.
    pub position: u64,
}

impl Stream {
    /// The sequence of a bare seed.
    pub fn new(seed: u64) -> Self {
        Stream { key: mix(seed.wrapping_add(GOLDEN_GAMMA)), position: 0 }
    }

    /// The sequence of one purpose within one environment type and seed.
    pub fn derive(env_type: &str, seed: u64, purpose: &str) -> Self {
        Stream::new(seed).branch(hash_bytes(env_type.bytes())).branch(hash_bytes(purpose.bytes()))
    }

    /// A child sequence; it depends on the key and the coordinate, never on how many numbers were taken.
    pub fn branch(&self, coordinate: u64) -> Self {
        let child = mix(coordinate.wrapping_add(GOLDEN_GAMMA)).wrapping_add(self.key);
        Stream { key: mix(self.key.rotate_left(23) ^ child), position: 0 }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let value = mix(self.key.wrapping_add(self.position.wrapping_mul(GOLDEN_GAMMA)));
        self.position = self.position.wrapping_add(1);
        value
    }

    /// The next number, uniform in [0, 1) with 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// The next number, uniform in `0..n` (0 if `n` is 0).
    pub fn below(&mut self, n: usize) -> usize {
        ((self.bits() as u128 * n as u128) >> 64) as usize
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_every_coordinate() {
        let draw = |env: &str, seed, purpose: &str| Stream::derive(env, seed, purpose).bits();
        assert_eq!(draw("sokoban", 1, "layout"), draw("sokoban", 1, "layout"));
        for other in [draw("bandit", 1, "layout"), draw("sokoban", 2, "layout"), draw("sokoban", 1, "noise")] {
            assert_ne!(draw("sokoban", 1, "layout"), other);
        }
        let mut taken = Stream::new(u64::MAX);
        let child = taken.branch(3);
        taken.bits();
        assert_eq!(child, taken.branch(3));
    }

    #[test]
    fn numbers_are_the_same_on_every_machine() {
        assert_eq!(hash_bytes(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(mix(GOLDEN_GAMMA), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn uniform_and_below_have_the_right_mean() {
        let mut stream = Stream::new(5);
        let n = 100_000;
        let mean = (0..n).map(|_| stream.uniform()).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.004, "{mean}");
        let mean = (0..n).map(|_| stream.below(7) as f64).sum::<f64>() / n as f64;
        assert!((mean - 3.0).abs() < 0.03, "{mean}");
    }
}

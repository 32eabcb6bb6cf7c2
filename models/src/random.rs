//! Random numbers as a function of where they are used: no state, no order, no threads (decision D8).
//!
//! A [`Key`] is made by mixing in one coordinate after another (run seed, step, group, member, turn …);
//! the number at a position of that key never depends on what else was drawn.
//!
//! **Source** the finaliser is SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, 2014).

/// A point in the tree of random streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Key {
    /// The root of a run.
    pub const fn new(seed: u64) -> Self {
        Key(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    /// The key one coordinate further down; `with(a).with(b)` and `with(b).with(a)` are different keys.
    pub const fn with(self, coordinate: u64) -> Self {
        Key(mix(self.0.rotate_left(23) ^ mix(coordinate.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(self.0)))
    }

    /// The key of a named purpose (FNV-1a of the name), so that streams of different use never meet.
    pub const fn named(self, name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut i = 0;
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            i += 1;
        }
        self.with(hash)
    }

    /// The key as a number, for a device that draws by itself.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// 64 random bits at `position`.
    pub const fn bits(self, position: u64) -> u64 {
        mix(self.0.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Uniform in [0, 1) with 53 bits, at `position`.
    pub fn uniform(self, position: u64) -> f64 {
        (self.bits(position) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `0..n` at `position` (by multiplication; the bias is below n / 2^64).
    ///
    /// **Panics** if `n` is 0.
    pub fn below(self, position: u64, n: usize) -> usize {
        assert!(n > 0, "Key::below needs a non-empty range");
        ((self.bits(position) as u128 * n as u128) >> 64) as usize
    }

    /// Standard normal at `position` (Box–Muller over two uniforms of a child key).
    pub fn normal(self, position: u64) -> f64 {
        let pair = self.with(position);
        let radius = (-2.0 * crate::math::ln(1.0 - pair.uniform(0))).sqrt();
        radius * crate::math::cos(std::f64::consts::TAU * pair.uniform(1))
    }

    /// A permutation of `0..n` (Fisher–Yates).
    pub fn permutation(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_coordinates_give_equal_numbers_and_order_matters() {
        let a = Key::new(1).with(2).with(3);
        assert_eq!(a, Key::new(1).with(2).with(3));
        assert_ne!(a, Key::new(1).with(3).with(2));
        assert_ne!(Key::new(0).named("sample"), Key::new(0).named("order"));
    }

    #[test]
    fn moments_of_uniform_and_normal() {
        let key = Key::new(7);
        let n = 100_000u64;
        let mean = (0..n).map(|i| key.uniform(i)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 4.0 * (1.0f64 / 12.0).sqrt() / (n as f64).sqrt(), "{mean}");
        let normals: Vec<f64> = (0..n).map(|i| key.normal(i)).collect();
        let mean = normals.iter().sum::<f64>() / n as f64;
        let var = normals.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!(mean.abs() < 4.0 / (n as f64).sqrt() && (var - 1.0).abs() < 0.02, "{mean} {var}");
    }

    #[test]
    fn permutation_is_one() {
        let mut p = Key::new(3).permutation(100);
        assert_ne!(p, (0..100).collect::<Vec<_>>());
        p.sort_unstable();
        assert_eq!(p, (0..100).collect::<Vec<_>>());
    }
}

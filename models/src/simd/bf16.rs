//! bf16: rounding, and the product of pairs as the instruction `vdpbf16ps` computes it.
//!
//! A 32-bit word holds a pair: the element of even k in the low half, that of odd k in the high half. One step of a chain adds the
//! products of a pair to an f32: first the odd elements, then the even ones, each as a fused multiply-add rounded to nearest even.
//! Denormals count as zeros, whether they come in or come out; a result counts as denormal by its size after rounding to 24
//! bits. That is what the instruction does on the machines it was tried on (AMD Zen 4), and what all other paths here do, so that bf16 has
//! equal bits on every path, as f32 has (decision D3). A machine whose instruction differs is found at start and runs the other path.

/// Denormals become zeros of their sign.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Rounded to bf16, to nearest even; denormals become zeros, a NaN stays one.
#[inline(always)]
pub fn round(x: f32) -> u16 {
    let bits = flush(x).to_bits();
    let rounded = if x.is_nan() { bits | 0x40_0000 } else { bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) };
    (rounded >> 16) as u16
}

/// The value of a bf16.
#[inline(always)]
pub fn widen(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// The word of a pair, both rounded.
#[inline(always)]
pub fn pair(even: f32, odd: f32) -> f32 {
    f32::from_bits(u32::from(round(odd)) << 16 | u32::from(round(even)))
}

/// a · b + c rounded once, where the factors are bf16 and nothing that comes in is denormal; a denormal result becomes zero.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let r = a.mul_add(b, c);
    if r.abs() > f32::MIN_POSITIVE || r.is_nan() {
        return r;
    }
    // Rounded to 24 bits, everything from half a step below the smallest normal number on is that number. The f64 is
    // exact there: the product has 16 bits, and c is a multiple of 2^-149.
    let edge = f64::from(f32::MIN_POSITIVE) * (1.0 - 1.0 / f64::from(1 << 25));
    let exact = f64::from(a).mul_add(f64::from(b), f64::from(c));
    if exact.abs() >= edge { f32::MIN_POSITIVE.copysign(r) } else { 0.0f32.copysign(r) }
}

/// One step: c plus the products of the pairs in the words a and b.
#[inline(always)]
pub(crate) fn dot2(a: f32, b: f32, c: f32) -> f32 {
    let odd = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    let even = |x: f32| f32::from_bits(x.to_bits() << 16);
    fma(even(a), even(b), fma(odd(a), odd(b), c))
}

/// Whether this machine's instruction gives what [`dot2`] gives, on numbers that tell the known variants apart.
///
/// The machine must have AVX512-BF16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn instruction_is_as_promised() -> bool {
    use super::{Avx512, LANES, Simd};

    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn instruction(a: &[f32; LANES], b: &[f32; LANES], c: &[f32; LANES]) -> [f32; LANES] {
        type A = Avx512<true>;
        // SAFETY: the arrays hold 16 elements, and this function's features are those that the path needs.
        unsafe { A::lanes(A::dot2(A::load(a.as_ptr()), A::load(b.as_ptr()), A::load(c.as_ptr()))) }
    }

    static AS_PROMISED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        if !std::arch::is_x86_feature_detected!("avx512bf16") {
            return false;
        }
        (0..64).all(|i| {
            let [a, b, c] = samples(i);
            let expected: [f32; LANES] = std::array::from_fn(|j| dot2(a[j], b[j], flush(c[j])));
            // SAFETY: the machine has the features.
            let got = unsafe { instruction(&a, &b, &c) };
            got.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan())
        })
    });
    *AS_PROMISED
}

/// Words and sums of group `i` for the comparison: all magnitudes, from those that cancel or vanish to infinities.
fn samples(i: u64) -> [[f32; 16]; 3] {
    use crate::random::Key;
    let key = Key::new(0xbf16).with(i);
    let edge = f32::MIN_POSITIVE;
    let number = |at: u64| -> f32 {
        // Every other group draws sums and products of like size, so that order and rounding show.
        let span = [4, 40, 254][i as usize % 3];
        let exponent = 127 - span / 2 + key.below(at, span as usize) as u32;
        f32::from_bits((key.below(at + 1, 2) as u32) << 31 | exponent << 23 | key.below(at + 2, 1 << 23) as u32)
    };
    let word = |at: u64| pair(number(at), number(at + 3));
    let mut found = [[0.0; 16]; 3];
    for j in 0..16 {
        let at = 64 * j as u64;
        for (k, x) in found.iter_mut().enumerate() {
            x[j] = if k < 2 { word(at + 8 * k as u64) } else { number(at + 8 * k as u64) };
        }
        if i % 4 == 3 {
            // The smallest normal number less a share of its last place: around half of one it is kept or flushed.
            let last = 2f32.powi(-75);
            let share = [0.25, 0.4921875, 0.5, 0.5078125, 0.75, 1.0, 1.5, 3.0][j % 8];
            let sign = if j < 8 { 1.0 } else { -1.0 };
            found[0][j] = if i % 8 == 3 { pair(-sign * share * last, 0.0) } else { pair(0.0, -sign * share * last) };
            (found[1][j], found[2][j]) = (pair(last, last), sign * edge);
        }
    }
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-40, 0.0, -0.0, f32::MAX];
    found[2][i as usize % 16] = odd[i as usize % 8];
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, LANES, Simd, dispatch_products};

    #[test]
    fn rounding_is_to_nearest_even_and_flushes() {
        for (x, wanted) in [
            (1.0, 0x3f80),
            (1.0 + 1.0 / 256.0, 0x3f80), // half a step above 1: to even
            (1.0 + 3.0 / 256.0, 0x3f82), // half a step above the odd neighbour: to even
            (1.0 + 1.0 / 256.0 + f32::EPSILON, 0x3f81),
            (-1.0 - 1.0 / 256.0 - f32::EPSILON, 0xbf81),
            (f32::MAX, 0x7f80),
            (f32::INFINITY, 0x7f80),
            (f32::NEG_INFINITY, 0xff80),
            (f32::NAN, 0x7fc0),
            (1e-40, 0),
            (-1e-40, 0x8000),
            (f32::MIN_POSITIVE, 0x80),
        ] {
            assert_eq!(round(x), wanted, "{x}");
        }
        assert_eq!(widen(round(3.140625)), 3.140625);
    }

    #[test]
    fn a_step_takes_the_odd_element_first_and_flushes_by_the_size_after_rounding() {
        // 1 + 2^-24 is lost alone, so the order of a large and a small product shows.
        let (big, small) = (1.0f32, 2f32.powi(-24));
        assert_eq!(dot2(pair(small, big), pair(1.0, 1.0), -1.0), small);
        assert_eq!(dot2(pair(big, small), pair(1.0, 1.0), -1.0), 2f32.powi(-24));
        assert_eq!(dot2(pair(-1.0, small), pair(1.0, 1.0), 1.0), 0.0);
        let last = 2f32.powi(-75);
        for (share, kept) in [(0.25, true), (0.5, true), (0.5078125, false), (1.0, false), (1.5, false)] {
            let got = dot2(pair(-share * last, 0.0), pair(last, 0.0), f32::MIN_POSITIVE);
            assert_eq!(got, if kept { f32::MIN_POSITIVE } else { 0.0 }, "{share} of the last place");
        }
    }

    #[inline(always)]
    unsafe fn all_kernel<S: Simd>(
        a: &[f32],
        b: &[f32],
        c: &[f32],
        sums: &mut [f32],
        pairs: &mut [f32],
        narrow: &mut [u16],
    ) {
        assert!([b.len(), c.len(), sums.len(), pairs.len(), narrow.len()].iter().all(|&n| n == LANES && a.len() == n));
        // SAFETY: every slice holds 16 elements.
        unsafe {
            let (a, b, c) = (S::load(a.as_ptr()), S::load(b.as_ptr()), S::load(c.as_ptr()));
            S::store(sums.as_mut_ptr(), S::dot2(a, b, S::flush(c)));
            S::store(pairs.as_mut_ptr(), S::pair(c, a));
            S::narrow(narrow.as_mut_ptr(), c);
        }
    }
    dispatch_products!(
        fn all(a: &[f32], b: &[f32], c: &[f32], sums: &mut [f32], pairs: &mut [f32], narrow: &mut [u16]) = all_kernel
    );

    #[test]
    fn every_path_equals_the_definition_on_all_magnitudes_infinities_and_nan() {
        for isa in Isa::available() {
            for i in 0..4000 {
                let [a, b, c] = samples(i);
                let (mut sums, mut pairs, mut narrow) = ([0.0; LANES], [0.0; LANES], [0u16; LANES]);
                all(isa, &a, &b, &c, &mut sums, &mut pairs, &mut narrow);
                for j in 0..LANES {
                    let wanted = dot2(a[j], b[j], flush(c[j]));
                    let same = sums[j].to_bits() == wanted.to_bits() || sums[j].is_nan() && wanted.is_nan();
                    assert!(
                        same,
                        "{isa:?}: {:e} + {:x} · {:x} = {:e}, not {wanted:e}",
                        c[j],
                        a[j].to_bits(),
                        b[j].to_bits(),
                        sums[j]
                    );
                    assert_eq!(pairs[j].to_bits(), pair(c[j], a[j]).to_bits(), "{isa:?}: {} {}", c[j], a[j]);
                    assert_eq!(narrow[j], round(c[j]), "{isa:?}: {}", c[j]);
                }
            }
        }
    }
}

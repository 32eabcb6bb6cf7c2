//! Elementary functions of our own, so that results do not change with the C library (decision D3).
//!
//! Scalar f64 versions serve tables, sampling and statistics; the vector versions of the hot loops are in `simd`.
//! Each is accurate to about one unit in the last place over the range that its tests state.

use std::f64::consts::{FRAC_PI_2, LN_2, LOG2_E};

/// e^x.
///
/// **Math** x = k ln 2 + r with |r| ≤ ln 2 / 2; e^r by its Taylor polynomial of degree 13; scaled by 2^k.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.79 {
        return f64::INFINITY;
    }
    if x < -745.2 {
        return 0.0;
    }
    const LN2_HI: f64 = 6.931_471_803_691_238e-1;
    const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
    let k = (x * LOG2_E).round();
    let r = (-k).mul_add(LN2_LO, (-k).mul_add(LN2_HI, x));
    let mut p = 1.0 / 6_227_020_800.0;
    for c in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = f64::mul_add(p, r, c);
    }
    // Two factors, since 2^k alone may leave the range of normal numbers.
    let half = (k / 2.0).trunc();
    p * power_of_two(half as i32) * power_of_two((k - half) as i32)
}

fn power_of_two(k: i32) -> f64 {
    f64::from_bits(((k + 1023) as u64) << 52)
}

/// The natural logarithm; negative infinity at 0, NaN below.
///
/// **Math** x = 2^k m with m in [√½, √2); ln m = 2 atanh(s), s = (m − 1)/(m + 1), by its odd series to s^25.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_infinite() {
        return x;
    }
    let (x, bias) = if x < f64::MIN_POSITIVE { (x * power_of_two(54), -54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut k = ((bits >> 52) as i32 & 0x7ff) - 1023 + bias;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        k += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut p = 1.0 / 25.0;
    for n in [23.0, 21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        p = f64::mul_add(p, z, 1.0 / n);
    }
    let ln_m = 2.0 * f64::mul_add(s * z, p, s);
    (k as f64).mul_add(LN_2, ln_m)
}

/// x^y for x > 0.
pub fn pow(x: f64, y: f64) -> f64 {
    exp(y * ln(x))
}

/// Sine and cosine of `x` in radians, for |x| up to about 1e6.
///
/// **Math** x = q π/2 + r with |r| ≤ π/4 by a three-part π/2 (Cody and Waite); Taylor polynomials of degree 17 and 16.
pub fn sin_cos(x: f64) -> (f64, f64) {
    const P1: f64 = 1.570_796_251_296_997;
    const P2: f64 = 7.549_789_415_861_596e-8;
    const P3: f64 = 5.390_302_858_158_119e-15;
    let q = (x / FRAC_PI_2).round();
    let r = (-q).mul_add(P3, (-q).mul_add(P2, (-q).mul_add(P1, x)));
    let z = r * r;
    let mut s = 1.0 / 355_687_428_096_000.0;
    for c in [
        -1.0 / 1_307_674_368_000.0,
        1.0 / 6_227_020_800.0,
        -1.0 / 39_916_800.0,
        1.0 / 362_880.0,
        -1.0 / 5_040.0,
        1.0 / 120.0,
        -1.0 / 6.0,
    ] {
        s = f64::mul_add(s, z, c);
    }
    let sin = f64::mul_add(r * z, s, r);
    let mut c = 1.0 / 20_922_789_888_000.0;
    for k in [
        -1.0 / 87_178_291_200.0,
        1.0 / 479_001_600.0,
        -1.0 / 3_628_800.0,
        1.0 / 40_320.0,
        -1.0 / 720.0,
        1.0 / 24.0,
        -0.5,
        1.0,
    ] {
        c = f64::mul_add(c, z, k);
    }
    match (q as i64).rem_euclid(4) {
        0 => (sin, c),
        1 => (c, -sin),
        2 => (-sin, -c),
        _ => (-c, sin),
    }
}

/// Cosine of `x` in radians; see [`sin_cos`].
pub fn cos(x: f64) -> f64 {
    sin_cos(x).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(low: f64, high: f64) -> impl Iterator<Item = f64> {
        (0..=20_000).map(move |i| low + (high - low) * i as f64 / 20_000.0)
    }

    #[test]
    fn exp_and_ln_agree_with_the_c_library() {
        for x in sweep(-740.0, 709.0) {
            let (ours, theirs) = (exp(x), x.exp());
            assert!((ours - theirs).abs() <= 4e-16 * theirs + f64::from_bits(1), "exp({x}) = {ours:e}, not {theirs:e}");
        }
        for x in sweep(-700.0, 700.0).map(f64::exp) {
            assert!((ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs() + 1e-16, "ln({x:e})");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert!(ln(-1.0).is_nan() && exp(f64::NAN).is_nan());
    }

    #[test]
    fn sin_and_cos_agree_with_the_c_library() {
        for x in sweep(-10.0, 10.0).chain(sweep(-2e5, 2e5)) {
            let (s, c) = sin_cos(x);
            assert!((s - x.sin()).abs() < 3e-15 && (c - x.cos()).abs() < 3e-15, "sin_cos({x}) = {s} {c}");
        }
    }
}

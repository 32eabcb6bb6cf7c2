//! The paths of x86-64: AVX2 with FMA, AVX-512F, and AVX512-BF16 on top of it.

use super::{Isa, LANES, Simd, bf16};
use std::arch::x86_64::*;

/// AVX2 with FMA: two registers of 8.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Sixteen ones in the sign bit, then sixteen zeros: a window into it is the mask of the first n lanes.
static MASK: [i32; 2 * LANES] = {
    let mut mask = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        mask[i] = -1;
        i += 1;
    }
    mask
};

#[inline(always)]
unsafe fn masks(n: usize) -> (__m256i, __m256i) {
    debug_assert!(n <= LANES);
    // SAFETY: n ≤ 16, so the window of 16 starts inside the first half of the table.
    unsafe {
        let p = MASK.as_ptr().add(LANES - n);
        (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast()))
    }
}

// SAFETY: `dispatch!` runs these only under AVX2 and FMA.
unsafe impl Simd for Avx2 {
    type V = (__m256, __m256);
    const MR: usize = 6;
    const NV: usize = 1;
    const ISA: Isa = Isa::Avx2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: see the impl; register-only, as are the arithmetic methods below.
        unsafe {
            let v = _mm256_set1_ps(x);
            (v, v)
        }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for 16 readable elements.
        unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller vouches for n readable elements; masked-off lanes are not read.
        unsafe {
            if n == LANES {
                return Self::load(p);
            }
            let (low, high) = masks(n);
            (_mm256_maskload_ps(p, low), _mm256_maskload_ps(p.wrapping_add(8), high))
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for 16 writable elements.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, n: usize, v: Self::V) {
        // SAFETY: the caller vouches for n writable elements. Masked stores are slow on many machines, so a part of a
        // vector goes through the stack.
        unsafe {
            if n == LANES {
                return Self::store(p, v);
            }
            debug_assert!(n < LANES);
            let lanes = Self::lanes(v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            (_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(x: Self::V, bound: Self::V, y: Self::V) -> Self::V {
        // SAFETY: register-only. Not-less-than is true for NaN, which so passes through.
        unsafe {
            (
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, bound.0), y.0),
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x.1, bound.1), y.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn select_sign(x: Self::V, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            let zero = _mm256_setzero_ps();
            (
                _mm256_blendv_ps(a.0, b.0, _mm256_cmp_ps::<_CMP_LT_OQ>(x.0, zero)),
                _mm256_blendv_ps(a.1, b.1, _mm256_cmp_ps::<_CMP_LT_OQ>(x.1, zero)),
            )
        }
    }
    #[inline(always)]
    unsafe fn scale_by_power(p: Self::V, shifted: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            let scale = |p: __m256, s: __m256| {
                let bits = _mm256_slli_epi32::<23>(_mm256_castps_si256(s));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), bits))
            };
            (scale(p.0, shifted.0), scale(p.1, shifted.1))
        }
    }
    #[inline(always)]
    unsafe fn flush(v: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (flush8(v.0), flush8(v.1)) }
    }
    #[inline(always)]
    unsafe fn pair(even: Self::V, odd: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            let pair = |even: __m256, odd: __m256| {
                let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                let odd = _mm256_and_si256(round8(odd), high);
                _mm256_castsi256_ps(_mm256_or_si256(odd, _mm256_srli_epi32::<16>(round8(even))))
            };
            (pair(even.0, odd.0), pair(even.1, odd.1))
        }
    }
    #[inline(always)]
    unsafe fn narrow(to: *mut u16, v: Self::V) {
        // SAFETY: the caller vouches for 16 writable elements.
        unsafe {
            let (low, high) = (_mm256_srli_epi32::<16>(round8(v.0)), _mm256_srli_epi32::<16>(round8(v.1)));
            // Packing works within halves of 128 bits, so the quarters are put in order afterwards.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(to.cast(), packed);
        }
    }
    #[inline(always)]
    unsafe fn dot2(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { (dot2_8(a.0, b.0, c.0), dot2_8(a.1, b.1, c.1)) }
    }
}

/// Denormals to zeros of their sign.
#[inline(always)]
unsafe fn flush8(v: __m256) -> __m256 {
    // SAFETY: register-only.
    unsafe {
        let sign = _mm256_set1_ps(-0.0);
        let small = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_andnot_ps(sign, v), _mm256_set1_ps(f32::MIN_POSITIVE));
        _mm256_blendv_ps(v, _mm256_and_ps(v, sign), small)
    }
}

/// Rounded to bf16 in the high half of every lane; the low half holds no meaning.
#[inline(always)]
unsafe fn round8(v: __m256) -> __m256i {
    // SAFETY: register-only.
    unsafe {
        let bits = _mm256_castps_si256(flush8(v));
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_blendv_epi8(rounded, quiet, nan)
    }
}

/// c plus the products of the pairs in a and b, the odd elements first. Functions, not closures: a closure does not get the
/// instructions of the path that it is inlined into, and every intrinsic in it would be a call.
#[inline(always)]
unsafe fn dot2_8(a: __m256, b: __m256, c: __m256) -> __m256 {
    // SAFETY: register-only.
    unsafe {
        let high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32));
        let c = fma8(_mm256_and_ps(a, high), _mm256_and_ps(b, high), c);
        fma8(even8(a), even8(b), c)
    }
}

/// The even elements of pairs.
#[inline(always)]
unsafe fn even8(x: __m256) -> __m256 {
    // SAFETY: register-only.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(x))) }
}

/// A fused multiply-add whose denormal results are flushed.
#[inline(always)]
unsafe fn fma8(a: __m256, b: __m256, c: __m256) -> __m256 {
    // SAFETY: register-only; the arrays have 8 elements.
    unsafe {
        let r = _mm256_fmadd_ps(a, b, c);
        let sign = _mm256_set1_ps(-0.0);
        let size = _mm256_andnot_ps(sign, r);
        let edge = _mm256_cmp_ps::<_CMP_EQ_OQ>(size, _mm256_set1_ps(f32::MIN_POSITIVE));
        if _mm256_movemask_ps(edge) != 0 {
            let (mut x, mut y, mut z) = ([0.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
            _mm256_storeu_ps(x.as_mut_ptr(), a);
            _mm256_storeu_ps(y.as_mut_ptr(), b);
            _mm256_storeu_ps(z.as_mut_ptr(), c);
            let lanes: [f32; 8] = std::array::from_fn(|i| bf16::fma(x[i], y[i], z[i]));
            return _mm256_loadu_ps(lanes.as_ptr());
        }
        let small = _mm256_cmp_ps::<_CMP_LT_OQ>(size, _mm256_set1_ps(f32::MIN_POSITIVE));
        _mm256_blendv_ps(r, _mm256_and_ps(r, sign), small)
    }
}

/// AVX-512F: one register of 16; with AVX512-BF16 if `BF16`.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool>;

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY: `dispatch!` runs these only under AVX-512F, and `dispatch_products!` those with `BF16` under AVX512-BF16.
unsafe impl<const BF16: bool> Simd for Avx512<BF16> {
    type V = __m512;
    const MR: usize = 12;
    const NV: usize = 2;
    const ISA: Isa = if BF16 { Isa::Avx512Bf16 } else { Isa::Avx512 };

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: see the impl; register-only, as are the arithmetic methods below.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for 16 readable elements.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller vouches for n readable elements; masked-off lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for 16 writable elements.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, n: usize, v: Self::V) {
        // SAFETY: the caller vouches for n writable elements; masked-off lanes are not written.
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn zero_below(x: Self::V, bound: Self::V, y: Self::V) -> Self::V {
        // SAFETY: register-only. Not-less-than is true for NaN, which so passes through.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, bound), y) }
    }
    #[inline(always)]
    unsafe fn select_sign(x: Self::V, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe { _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_setzero_ps()), b) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(p: Self::V, shifted: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            let bits = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), bits))
        }
    }
    #[inline(always)]
    unsafe fn flush(v: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(v), _mm512_set1_ps(f32::MIN_POSITIVE));
            let sign = _mm512_set1_epi32(i32::MIN);
            _mm512_castsi512_ps(_mm512_mask_and_epi32(_mm512_castps_si512(v), small, _mm512_castps_si512(v), sign))
        }
    }
    #[inline(always)]
    unsafe fn pair(even: Self::V, odd: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            let odd = _mm512_and_si512(round16(odd), high);
            _mm512_castsi512_ps(_mm512_or_si512(odd, _mm512_srli_epi32::<16>(round16(even))))
        }
    }
    #[inline(always)]
    unsafe fn narrow(to: *mut u16, v: Self::V) {
        // SAFETY: the caller vouches for 16 writable elements.
        unsafe {
            let words = _mm512_srli_epi32::<16>(round16(v));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(words));
        }
    }
    #[inline(always)]
    unsafe fn dot2(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: register-only.
        unsafe {
            if BF16 {
                use std::mem::transmute;
                return _mm512_dpbf16_ps(c, transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b));
            }
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            let odd = |x: __m512| _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), high));
            let even = |x: __m512| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(x)));
            fma16(even(a), even(b), fma16(odd(a), odd(b), c))
        }
    }
}

/// Rounded to bf16 in the high half of every lane; the low half holds no meaning.
#[inline(always)]
unsafe fn round16(v: __m512) -> __m512i {
    // SAFETY: register-only.
    unsafe {
        let bits = _mm512_castps_si512(Avx512::<false>::flush(v));
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000))
    }
}

/// A fused multiply-add whose denormal results are flushed.
#[inline(always)]
unsafe fn fma16(a: __m512, b: __m512, c: __m512) -> __m512 {
    // SAFETY: register-only; the arrays have 16 elements.
    unsafe {
        let r = _mm512_fmadd_ps(a, b, c);
        if _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(_mm512_abs_ps(r), _mm512_set1_ps(f32::MIN_POSITIVE)) != 0 {
            type A = Avx512<false>;
            let (x, y, z) = (A::lanes(a), A::lanes(b), A::lanes(c));
            let lanes: [f32; LANES] = std::array::from_fn(|i| bf16::fma(x[i], y[i], z[i]));
            return _mm512_loadu_ps(lanes.as_ptr());
        }
        Avx512::<false>::flush(r)
    }
}

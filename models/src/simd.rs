//! Sixteen virtual lanes, whatever the machine has (decision D3).
//!
//! Every hot loop is written once over the trait `Simd`, whose vector always has 16 f32 lanes: one AVX-512 register, two
//! AVX2 registers, or an array that the compiler maps to what there is (four NEON registers on aarch64). Each operation
//! is exactly rounded, and sums combine the lanes in one fixed tree, so all instruction paths give equal bits.
//!
//! [`Isa`] says which path runs; it is chosen once at run time and can be forced with the variable `RAGEN_ISA`.

/// Lanes of a vector on every path.
pub const LANES: usize = 16;

/// An instruction path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512F: 16 lanes in a register.
    Avx512,
    /// AVX2 with FMA: 16 lanes in two registers.
    Avx2,
    /// Arrays of 16; NEON on aarch64, and correct (if slow: fused multiply-add in software) anywhere.
    Plain,
}

impl Isa {
    /// The name that `RAGEN_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Plain => "plain",
        }
    }

    /// The paths that this machine can run, fastest first.
    pub fn available() -> Vec<Isa> {
        let mut paths = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") {
                paths.push(Isa::Avx512);
            }
            if avx2 {
                paths.push(Isa::Avx2);
            }
        }
        paths.push(Isa::Plain);
        paths
    }

    /// The path named by `RAGEN_ISA`, else the fastest that this machine can run.
    ///
    /// **Errors** when the variable names no path, or one that this machine lacks.
    pub fn from_env() -> Result<Isa, String> {
        let available = Isa::available();
        match std::env::var("RAGEN_ISA") {
            Err(_) => Ok(available[0]),
            Ok(name) => available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
                let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
                format!("RAGEN_ISA={name}: this machine can run {}", names.join(", "))
            }),
        }
    }
}

/// A vector of 16 f32 lanes and its operations.
///
/// # Safety
/// The methods may only run on a machine that has the implementor's instructions: they are called through [`dispatch!`],
/// which wraps each kernel in a function with those target features after [`Isa`] was checked.
pub(crate) unsafe trait Simd: Copy + 'static {
    /// 16 lanes.
    type V: Copy;
    /// Rows of the largest register block of the matrix product.
    const MR: usize;
    /// Vectors across the register block.
    const NV: usize;
    /// The path's name, to call a dispatched function from inside a kernel.
    const ISA: Isa;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::V;
    /// 16 lanes from memory.
    unsafe fn load(p: *const f32) -> Self::V;
    /// The first `n` lanes from memory, the others 0; nothing past `n` is touched.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    /// 16 lanes to memory.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n` lanes to memory; nothing past `n` is touched.
    unsafe fn store_n(p: *mut f32, n: usize, v: Self::V);
    /// a + b
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// a − b
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// a · b
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c, rounded once
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of a and b (no NaN may occur)
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// |a|
    unsafe fn abs(a: Self::V) -> Self::V;
    /// Per lane: `x < bound` gives 0, else `y`.
    unsafe fn zero_below(x: Self::V, bound: Self::V, y: Self::V) -> Self::V;
    /// Per lane: `x < 0` gives `b`, else `a`.
    unsafe fn select_sign(x: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// p · 2^k, where `shifted` is k + 1.5·2^23 and the result is a normal number.
    unsafe fn scale_by_power(p: Self::V, shifted: Self::V) -> Self::V;
    /// The lanes as an array.
    #[inline(always)]
    unsafe fn lanes(v: Self::V) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array has 16 elements.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        lanes
    }
}

/// Sum of the 16 lanes in the one tree that all paths use: halves, quarters, eighths, pairs.
#[inline(always)]
pub(crate) fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    for i in 0..8 {
        lanes[i] += lanes[i + 8];
    }
    for i in 0..4 {
        lanes[i] += lanes[i + 4];
    }
    (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
}

/// The same tree in f64.
#[inline(always)]
pub(crate) fn tree_sum_f64(mut lanes: [f64; LANES]) -> f64 {
    for i in 0..8 {
        lanes[i] += lanes[i + 8];
    }
    for i in 0..4 {
        lanes[i] += lanes[i + 4];
    }
    (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
}

/// e^x for x ≤ 0; 0 below −87.3, where the result would not be a normal number.
///
/// **Math** x = k ln 2 + r with |r| ≤ ln 2 / 2; Taylor polynomial of degree 7 in r (truncation 6e-9), times 2^k.
/// Relative error at most 1.2e-7 (tested).
#[inline(always)]
pub(crate) unsafe fn exp_nonpositive<S: Simd>(x: S::V) -> S::V {
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer and leaves that in the low bits.
    const LN2_HI: f32 = 0.693_145_75;
    const LN2_LO: f32 = 1.428_606_8e-6;
    // SAFETY: the caller runs on a machine with S's instructions; nothing here touches memory.
    unsafe {
        let shift = S::splat(SHIFT);
        let shifted = S::fma(x, S::splat(std::f32::consts::LOG2_E), shift);
        let k = S::sub(shifted, shift);
        let r = S::fma(k, S::splat(-LN2_HI), x);
        let r = S::fma(k, S::splat(-LN2_LO), r);
        let mut p = S::splat(1.0 / 5040.0);
        p = S::fma(p, r, S::splat(1.0 / 720.0));
        p = S::fma(p, r, S::splat(1.0 / 120.0));
        p = S::fma(p, r, S::splat(1.0 / 24.0));
        p = S::fma(p, r, S::splat(1.0 / 6.0));
        p = S::fma(p, r, S::splat(0.5));
        p = S::fma(p, r, S::splat(1.0));
        p = S::fma(p, r, S::splat(1.0));
        S::zero_below(x, S::splat(-87.3), S::scale_by_power(p, shifted))
    }
}

/// The logistic function 1 / (1 + e^−x), from e^−|x| so that nothing overflows.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller runs on a machine with S's instructions; nothing here touches memory.
    unsafe {
        let one = S::splat(1.0);
        let t = exp_nonpositive::<S>(S::sub(S::splat(0.0), S::abs(x)));
        let r = S::div(one, S::add(one, t));
        S::select_sign(x, r, S::mul(t, r))
    }
}

/// The plain path: an array of 16.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

// SAFETY: uses no instructions beyond the target's baseline.
unsafe impl Simd for Plain {
    type V = [f32; LANES];
    const MR: usize = 4;
    const NV: usize = 1;
    const ISA: Isa = Isa::Plain;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for 16 readable elements; the read is unaligned.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V {
        let mut v = [0.0; LANES];
        for (i, lane) in v.iter_mut().enumerate().take(n) {
            // SAFETY: the caller vouches for `n` readable elements.
            *lane = unsafe { *p.add(i) };
        }
        v
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for 16 writable elements; the write is unaligned.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, n: usize, v: Self::V) {
        for (i, lane) in v.iter().enumerate().take(n) {
            // SAFETY: the caller vouches for `n` writable elements.
            unsafe { *p.add(i) = *lane };
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].abs())
    }
    #[inline(always)]
    unsafe fn zero_below(x: Self::V, bound: Self::V, y: Self::V) -> Self::V {
        std::array::from_fn(|i| if x[i] < bound[i] { 0.0 } else { y[i] })
    }
    #[inline(always)]
    unsafe fn select_sign(x: Self::V, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if x[i] < 0.0 { b[i] } else { a[i] })
    }
    #[inline(always)]
    unsafe fn scale_by_power(p: Self::V, shifted: Self::V) -> Self::V {
        std::array::from_fn(|i| f32::from_bits(p[i].to_bits().wrapping_add(shifted[i].to_bits() << 23)))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Isa, LANES, Simd};
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
    }

    /// AVX-512F: one register of 16.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512;

    #[inline(always)]
    fn mask(n: usize) -> __mmask16 {
        ((1u32 << n) - 1) as __mmask16
    }

    // SAFETY: `dispatch!` runs these only under AVX-512F.
    unsafe impl Simd for Avx512 {
        type V = __m512;
        const MR: usize = 12;
        const NV: usize = 2;
        const ISA: Isa = Isa::Avx512;

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
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Makes a safe function `name(isa, …)` that runs the generic kernel on the path `isa`.
///
/// The kernel is `unsafe fn kernel<S: Simd>(…)`, inlined into a function with the path's target features; its own
/// contract (slice lengths) is checked inside it, so that the function made here is safe.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $kernel:ident) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function's features are those that the path needs.
                unsafe { $kernel::<$crate::simd::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function's features are those that the path needs.
                unsafe { $kernel::<$crate::simd::Avx2>($($arg),*) }
            }
            match isa {
                // SAFETY: an `Isa` other than `Plain` is only made by `Isa::available`, which asked the machine.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: the plain path needs nothing.
                _ => unsafe { $kernel::<$crate::simd::Plain>($($arg),*) },
            }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(always)]
    unsafe fn map_kernel<S: Simd>(which: u8, xs: &mut [f32]) {
        for chunk in xs.chunks_mut(LANES) {
            // SAFETY: n is the chunk's length, at most 16.
            unsafe {
                let x = S::load_n(chunk.as_ptr(), chunk.len());
                let y = if which == 0 { exp_nonpositive::<S>(x) } else { sigmoid::<S>(x) };
                S::store_n(chunk.as_mut_ptr(), chunk.len(), y);
            }
        }
    }
    dispatch!(fn map(which: u8, xs: &mut [f32]) = map_kernel);

    #[test]
    fn exp_and_sigmoid_are_accurate_and_equal_on_every_path() {
        let xs: Vec<f32> = (0..40_001).map(|i| -i as f32 * 0.0025).collect();
        let both: Vec<f32> = xs.iter().flat_map(|&x| [x, -x]).collect();
        let mut hashes = Vec::new();
        for isa in Isa::available() {
            let (mut e, mut s) = (xs.clone(), both.clone());
            map(isa, 0, &mut e);
            map(isa, 1, &mut s);
            for (x, y) in xs.iter().zip(&e) {
                let exact = f64::from(*x).exp();
                if *x < -87.3 {
                    assert_eq!(*y, 0.0);
                } else {
                    assert!((f64::from(*y) - exact).abs() <= 1.2e-7 * exact, "{isa:?} exp({x}) = {y}, not {exact}");
                }
            }
            for (x, y) in both.iter().zip(&s) {
                let exact = 1.0 / (1.0 + (-f64::from(*x)).exp());
                assert!((f64::from(*y) - exact).abs() <= 2.5e-7 * exact + 1.3e-38, "{isa:?} sigmoid({x}) = {y}");
            }
            hashes.push((e.iter().map(|y| y.to_bits()).collect::<Vec<_>>(), s.iter().map(|y| y.to_bits()).collect()));
        }
        let hashes: Vec<(Vec<u32>, Vec<u32>)> = hashes;
        assert!(hashes.windows(2).all(|w| w[0] == w[1]));
        let mut odd = [f32::NEG_INFINITY, f32::NAN, -0.0];
        map(Isa::available()[0], 0, &mut odd);
        assert!(odd[0] == 0.0 && odd[1].is_nan() && odd[2] == 1.0, "{odd:?}");
    }
}

//! Sixteen virtual lanes, whatever the machine has (decision D3).
//!
//! Every hot loop is written once over the trait `Simd`, whose vector always has 16 f32 lanes: one AVX-512 register, two
//! AVX2 registers, or an array that the compiler maps to what there is (four NEON registers on aarch64). Each operation
//! is exactly rounded, and sums combine the lanes in one fixed tree, so all instruction paths give equal bits.
//!
//! [`bf16`] defines the product of pairs of bf16, which all paths compute as the AVX512-BF16 instruction does.
//!
//! [`Isa`] says which path runs; it is chosen once at run time and can be forced with the variable `RAGEN_ISA`.

pub mod bf16;

/// Lanes of a vector on every path.
pub const LANES: usize = 16;

/// An instruction path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512F with AVX512-BF16: as [`Isa::Avx512`], and products of bf16 in hardware.
    Avx512Bf16,
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
            Isa::Avx512Bf16 => "avx512bf16",
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
                if is_x86_feature_detected!("avx512bf16") && bf16::instruction_is_as_promised() {
                    paths.push(Isa::Avx512Bf16);
                }
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
    /// Denormal lanes become zeros of their sign.
    unsafe fn flush(v: Self::V) -> Self::V;
    /// Per lane a pair of bf16 in one word: `odd` rounded in the high half, `even` rounded in the low half.
    unsafe fn pair(even: Self::V, odd: Self::V) -> Self::V;
    /// The lanes rounded to bf16, to memory.
    unsafe fn narrow(to: *mut u16, v: Self::V);
    /// c + a · b over pairs of bf16, in the order of the instruction (see [`bf16`]); c holds no denormal.
    unsafe fn dot2(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
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
    #[inline(always)]
    unsafe fn flush(v: Self::V) -> Self::V {
        v.map(bf16::flush)
    }
    #[inline(always)]
    unsafe fn pair(even: Self::V, odd: Self::V) -> Self::V {
        std::array::from_fn(|i| bf16::pair(even[i], odd[i]))
    }
    #[inline(always)]
    unsafe fn narrow(to: *mut u16, v: Self::V) {
        // SAFETY: the caller vouches for 16 writable elements; the write is unaligned.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(v.map(bf16::round)) };
    }
    #[inline(always)]
    unsafe fn dot2(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| bf16::dot2(a[i], b[i], c[i]))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
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
                unsafe { $kernel::<$crate::simd::Avx512<false>>($($arg),*) }
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
                $crate::simd::Isa::Avx512 | $crate::simd::Isa::Avx512Bf16 => unsafe { avx512($($arg),*) },
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

/// [`dispatch!`] for kernels that multiply bf16: they have a path of their own where the machine has the instruction.
macro_rules! dispatch_products {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $kernel:ident) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) {
            $crate::simd::dispatch!(fn others($($arg: $ty),*) = $kernel);
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bf16")]
            unsafe fn avx512bf16($($arg: $ty),*) {
                // SAFETY: this function's features are those that the path needs.
                unsafe { $kernel::<$crate::simd::Avx512<true>>($($arg),*) }
            }
            match isa {
                // SAFETY: this `Isa` is only made by `Isa::available`, which asked the machine.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512Bf16 => unsafe { avx512bf16($($arg),*) },
                _ => others(isa, $($arg),*),
            }
        }
    };
}
pub(crate) use dispatch_products;

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

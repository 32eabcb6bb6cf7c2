//! Products of the CPU, alone or beside the crate `gemm`.

use super::alternate;
use ragen_models::device::Cpu;
use ragen_models::ops::gemm::{Left, Packed, Right, gemm};
use ragen_models::random::Key;
use ragen_models::transformer::Precision;
use serde_json::{Value, json};

fn matrix(seed: u64, len: usize) -> Vec<f32> {
    let key = Key::new(seed);
    (0..len).map(|i| key.uniform(i as u64) as f32 - 0.5).collect()
}

/// How the operands of a product lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A `[m, k]`, B `[k, n]`.
    Nn,
    /// A `[m, k]`, B given as `[n, k]`: a weight, packed inside the measured time.
    Nt,
    /// The same, packed before.
    NtPacked,
    /// A given as `[k, m]`, B `[k, n]`: a weight's gradient.
    Tn,
}

impl Order {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Order::Nn => "NN",
            Order::Nt => "NT",
            Order::NtPacked => "NT packed",
            Order::Tn => "TN",
        }
    }
}

/// One product, to run as often as wanted.
pub struct Product {
    shape: (usize, usize, usize),
    order: Order,
    precision: Precision,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    packed: Packed,
}

impl Product {
    /// C `[m, n]` = A `[m, k]` · B `[k, n]` of random numbers.
    pub fn new(cpu: &Cpu, m: usize, k: usize, n: usize, order: Order, precision: Precision) -> Self {
        let b = matrix(2, k * n);
        let mut packed = Packed::default();
        packed.transposed(cpu, precision, &b, n, k);
        Product { shape: (m, k, n), order, precision, a: matrix(1, m * k), b, c: vec![0.0; m * n], packed }
    }

    /// Our product.
    pub fn ours(&mut self, cpu: &Cpu) {
        let Product { shape: (m, k, n), order, precision, a, b, c, packed } = self;
        let (m, k, n) = (*m, *k, *n);
        if *order == Order::Nt {
            packed.transposed(cpu, *precision, b, n, k);
        }
        let left = if *order == Order::Tn { Left::transposed(a, m) } else { Left::rows(a, k) };
        let right = if matches!(order, Order::Nt | Order::NtPacked) {
            Right::Packed(packed)
        } else {
            Right::Rows(b, *precision)
        };
        gemm(cpu, m, n, k, left, right, c, false);
    }

    /// The crate `gemm` on the same operands.
    #[cfg(feature = "peers")]
    pub fn peer(&mut self, cpu: &Cpu) {
        let (m, k, n) = self.shape;
        peer_gemm(cpu.pool.threads(), m, k, n, self.order, &self.a, &self.b, &mut self.c);
    }

    pub(super) fn flops(&self) -> f64 {
        let (m, k, n) = self.shape;
        2.0 * (m * k * n) as f64
    }
}

/// FLOP/s of our product of 256×576×1536, its weight packed before.
pub fn product_rate(cpu: &Cpu, precision: Precision) -> f64 {
    let mut product = Product::new(cpu, 256, 576, 1536, Order::NtPacked, precision);
    product.flops() / alternate(5, &mut [&mut || product.ours(cpu)])[0]
}

/// One product against its peer.
pub(super) fn measure_gemm(cpu: &Cpu, m: usize, k: usize, n: usize, order: Order, precision: Precision) -> Value {
    let mut product = Product::new(cpu, m, k, n, order, precision);
    let flops = product.flops();
    let rounds = (4e9 / flops).clamp(5.0, 200.0) as usize;
    let mut line = json!({"m": m, "k": k, "n": n, "layout": order.name(), "dtype": precision.name()});
    #[cfg(feature = "peers")]
    {
        let mut other = Product::new(cpu, m, k, n, order, Precision::F32);
        let seconds = alternate(rounds, &mut [&mut || product.ours(cpu), &mut || other.peer(cpu)]);
        line["gflops"] = json!(flops / seconds[0] / 1e9);
        line["peer"] = json!("gemm");
        line["peer_gflops"] = json!(flops / seconds[1] / 1e9);
    }
    #[cfg(not(feature = "peers"))]
    {
        line["gflops"] = json!(flops / alternate(rounds, &mut [&mut || product.ours(cpu)])[0] / 1e9);
    }
    line
}

/// The crate `gemm` on the same operands.
#[cfg(feature = "peers")]
fn peer_gemm(threads: usize, m: usize, k: usize, n: usize, order: Order, a: &[f32], b: &[f32], c: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == k * n && c.len() == m * n);
    let (m_, k_, n_) = (m as isize, k as isize, n as isize);
    let (a_column, a_row) = if order == Order::Tn { (m_, 1) } else { (1, k_) };
    let (b_column, b_row) = if matches!(order, Order::Nt | Order::NtPacked) { (k_, 1) } else { (1, n_) };
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    // SAFETY: the strides describe the slices, whose lengths were just checked.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n_,
            false,
            a.as_ptr(),
            a_column,
            a_row,
            b.as_ptr(),
            b_column,
            b_row,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

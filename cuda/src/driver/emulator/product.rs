//! The matrix product as cuBLAS means it, in the plainest way.

use crate::driver::{Kind, Matmul};
use half::bf16;

/// (name, address, bytes) of A, B, Z and C: from the first element to the last.
pub fn extents(p: &Matmul) -> [(&'static str, u64, usize); 4] {
    let extent = |rows: usize, columns: usize, stride: usize, kind: Kind| {
        if rows == 0 || columns == 0 { 0 } else { ((columns - 1) * stride + rows) * kind.bytes() }
    };
    let (a_rows, a_columns) = if p.transpose_a { (p.k, p.m) } else { (p.m, p.k) };
    let (b_rows, b_columns) = if p.transpose_b { (p.n, p.k) } else { (p.k, p.n) };
    [
        ("matmul of A", p.a.0, extent(a_rows, a_columns, p.a.1, p.input)),
        ("matmul of B", p.b.0, extent(b_rows, b_columns, p.b.1, p.input)),
        ("matmul of Z", p.z, if p.beta == 0.0 { 0 } else { extent(p.m, p.n, p.c.1, p.output) }),
        ("matmul of C", p.c.0, extent(p.m, p.n, p.c.1, p.output)),
    ]
}

/// Element `index` of a matrix.
///
/// # Safety
/// It lies in memory.
unsafe fn get(address: u64, index: usize, kind: Kind) -> f32 {
    // SAFETY: the caller's promise; addresses of numbers are multiples of their size.
    unsafe {
        match kind {
            Kind::F32 => *(address as *const f32).add(index),
            Kind::Bf16 => (*(address as *const bf16).add(index)).to_f32(),
        }
    }
}

/// `[rows, k]` with k innermost, as floats.
///
/// # Safety
/// As for [`multiply`].
unsafe fn gather((address, stride): (u64, usize), rows: usize, k: usize, k_inside: bool, kind: Kind) -> Vec<f32> {
    let place = |row: usize, i: usize| if k_inside { row * stride + i } else { i * stride + row };
    // SAFETY: the caller's promise.
    (0..rows * k).map(|j| unsafe { get(address, place(j / k, j % k), kind) }).collect()
}

/// C = alpha · op(A) · op(B) + beta · Z: each element one chain of fused multiply-adds in f32, k ascending from 0, then alpha, then Z is added.
///
/// # Safety
/// The matrices are memory of at least the stated shapes.
pub unsafe fn multiply(p: &Matmul) {
    // SAFETY: the caller's promise.
    let (a, b) =
        unsafe { (gather(p.a, p.m, p.k, p.transpose_a, p.input), gather(p.b, p.n, p.k, !p.transpose_b, p.input)) };
    for column in 0..p.n {
        for row in 0..p.m {
            let (left, right) = (&a[row * p.k..][..p.k], &b[column * p.k..][..p.k]);
            let mut sum = p.alpha * left.iter().zip(right).fold(0.0f32, |sum, (x, y)| x.mul_add(*y, sum));
            let index = column * p.c.1 + row;
            // SAFETY: the caller's promise.
            unsafe {
                if p.beta != 0.0 {
                    sum += p.beta * get(p.z, index, p.output);
                }
                match p.output {
                    Kind::F32 => *(p.c.0 as *mut f32).add(index) = sum,
                    Kind::Bf16 => *(p.c.0 as *mut bf16).add(index) = bf16::from_f32(sum),
                }
            }
        }
    }
}

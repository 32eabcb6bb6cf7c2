//! Memory and the library's products.

use super::{emulator, random};
use half::bf16;
use ragen_cuda::driver::{Driver, Emulator, Kind, Matmul};
use ragen_cuda::{CudaError, Gpu};
use std::sync::Arc;

#[test]
fn memory_runs_out_and_comes_back() {
    let Some(emulator) = emulator() else { return };
    let gpu = Gpu::over(Arc::new(emulator.with_memory(1000)));
    assert_eq!(gpu.memory().unwrap(), (1000, 1000));
    let first = gpu.zeros::<f32>("first", 200).unwrap();
    assert_eq!(gpu.memory().unwrap(), (200, 1000));
    let error = gpu.buffer::<f32>("second", 51).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "second needs 204 bytes of device memory, 200 of 1000 are free");
    drop(first);
    assert_eq!(gpu.zeros::<f32>("second", 250).unwrap().len(), 250);
    assert_eq!(gpu.memory().unwrap(), (1000, 1000));
}

#[test]
fn what_nobody_has_written_is_no_number() {
    let Some(emulator) = emulator() else { return };
    let gpu = Gpu::over(Arc::new(emulator));
    let fresh = gpu.buffer::<f32>("fresh", 33).unwrap();
    assert!(gpu.to_vec(fresh.view()).unwrap().iter().all(|x| x.is_nan()));
}

fn call<T>(result: Result<T, CudaError>) -> String {
    match result.map(|_| ()) {
        Err(error @ CudaError::Call { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn copies_stay_inside_a_buffer() {
    let Some(emulator) = emulator() else { return };
    let (a, b) = (emulator.allocate("a", 256).unwrap(), emulator.allocate("b", 512).unwrap());
    assert!(a % 256 == 0 && b % 256 == 0);
    emulator.upload(a, &[7; 256]).unwrap();
    emulator.copy(b + 256, a, 256).unwrap();
    emulator.zero(b + 256, 8).unwrap();
    let mut back = [1; 16];
    emulator.download(&mut back, b + 256).unwrap();
    assert_eq!(back, [0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);

    let place = format!("at {:#x}, byte 128 of `a` (256 bytes)", a + 128);
    assert_eq!(call(emulator.upload(a + 128, &[0; 129])), format!("upload failed: 129 bytes {place}"));
    assert_eq!(call(emulator.download(&mut [0; 129], a + 128)), format!("download failed: 129 bytes {place}"));
    assert_eq!(call(emulator.zero(a + 128, 129)), format!("zero failed: 129 bytes {place}"));
    assert_eq!(call(emulator.copy(b, a + 128, 129)), format!("copy failed: 129 bytes {place}"));
    assert_eq!(call(emulator.copy(b, b + 10, 11)), "copy failed: the ranges overlap");
    emulator.free(a);
    assert!(call(emulator.zero(a, 1)).starts_with("zero failed: 1 bytes at 0x"));
}

/// One product of each arrangement against sums in f64.
fn check_products(emulator: &Emulator, input: Kind, output: Kind, [alpha, beta]: [f32; 2], apart: bool) {
    let (m, n, k) = (5, 3, 7);
    let upload = |what: &str, data: &[f32], kind: Kind| {
        let bytes: Vec<u8> = match kind {
            Kind::F32 => bytemuck::cast_slice(data).to_vec(),
            Kind::Bf16 => data.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        };
        let address = emulator.allocate(what, bytes.len()).unwrap();
        emulator.upload(address, &bytes).unwrap();
        address
    };
    let round = |x: f32, kind: Kind| if kind == Kind::F32 { x } else { bf16::from_f32(x).to_f32() };
    for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let (lda, ldb, ldc) = (9, 8, 6);
        let (a, b, c) = (random(1, lda * 7), random(2, ldb * 7), random(3, ldc * n));
        let product = Matmul {
            m,
            n,
            k,
            transpose_a,
            transpose_b,
            a: (upload("a", &a, input), lda),
            b: (upload("b", &b, input), ldb),
            c: (upload("c", &c, output), ldc),
            z: 0,
            input,
            output,
            alpha,
            beta,
        };
        // Z is C, or another with other numbers.
        let z = if apart { random(4, ldc * n) } else { c.clone() };
        let product = Matmul { z: if apart { upload("z", &z, output) } else { product.c.0 }, ..product };
        // SAFETY: all matrices are at least as large as their columns' distances ask for.
        assert!(unsafe { emulator.matmul(&product) }.unwrap());
        let mut bytes = vec![0u8; ldc * n * if output == Kind::F32 { 4 } else { 2 }];
        emulator.download(&mut bytes, product.c.0).unwrap();
        let got: Vec<f32> = match output {
            Kind::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            Kind::Bf16 => bytes.chunks(2).map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect(),
        };
        for j in 0..n {
            for i in 0..ldc {
                let old = round(c[j * ldc + i], output);
                if i >= m {
                    assert_eq!(got[j * ldc + i], old, "between the columns");
                    continue;
                }
                let term = |p: usize| {
                    let x = a[if transpose_a { i * lda + p } else { p * lda + i }];
                    let y = b[if transpose_b { p * ldb + j } else { j * ldb + p }];
                    f64::from(round(x, input)) * f64::from(round(y, input))
                };
                let want =
                    f64::from(alpha) * (0..k).map(term).sum::<f64>() + f64::from(beta * round(z[j * ldc + i], output));
                let limit = if output == Kind::F32 { 1e-6 } else { want.abs() / 256.0 + 1e-6 };
                assert!((f64::from(got[j * ldc + i]) - want).abs() <= limit, "{product:?}: C({i}, {j})");
            }
        }
    }
}

#[test]
fn products_are_those_of_cublas() {
    let Some(emulator) = emulator() else { return };
    for factors in [[1.0, 0.0], [1.0, 1.0], [-0.75, 0.0]] {
        for (input, output) in [(Kind::F32, Kind::F32), (Kind::Bf16, Kind::Bf16), (Kind::Bf16, Kind::F32)] {
            check_products(&emulator, input, output, factors, false);
            check_products(&emulator, input, output, factors, true);
        }
    }
}

#[test]
fn a_product_without_a_library_is_left_to_us() {
    let Some(emulator) = emulator() else { return };
    let product = Matmul {
        m: 1,
        n: 1,
        k: 1,
        transpose_a: false,
        transpose_b: false,
        a: (0, 1),
        b: (0, 1),
        c: (0, 1),
        z: 0,
        input: Kind::F32,
        output: Kind::F32,
        alpha: 1.0,
        beta: 0.0,
    };
    // SAFETY: addresses outside all buffers are refused before they are used.
    let (without, refused) = unsafe { (emulator.matmul(&product), emulator.without_library().matmul(&product)) };
    assert!(call(without).starts_with("matmul of A failed: 4 bytes at 0x0"));
    assert!(!refused.unwrap());
}

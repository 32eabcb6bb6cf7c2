//! Matrix products, by our own kernel and by the library (on the emulator its column-major reference).

use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::gemm::{Matrix, MatrixMut, Products, Write, gemm, linear_bwd_input, linear_bwd_weight, linear_fwd};
use ragen_models::ops::linear::{self, Linear};

/// Rows, outputs, inputs.
const CASES: &[[usize; 3]] =
    &[[0, 5, 7], [1, 1, 1], [3, 31, 33], [17, 70, 8], [33, 40, 96], [65, 129, 31], [130, 136, 72], [200, 24, 264]];

fn products<E: Precision>(by: Products) {
    let Some(gpu) = gpu() else { return };
    for &[rows, out, input] in CASES {
        for accumulate in [false, true] {
            let what = |op: &str| format!("{op} {rows} x {out} x {input} by {by:?}, accumulate {accumulate}");
            let (x, w, dy) = (random::<E>(1, rows * input), random::<E>(2, out * input), random::<E>(3, rows * out));
            let (mut y, mut dx, mut dw) =
                (random::<E>(4, rows * out), random::<E>(5, rows * input), random::<f32>(6, out * input));
            let (mut y_got, mut dx_got) = (upload::<E>(gpu, &y), upload::<E>(gpu, &dx));
            let (mut logits, mut dw_got) = (upload::<f32>(gpu, &y), upload::<f32>(gpu, &dw));
            let mut layer = Linear::default();
            layer.pack(&cpu(), linear::Precision::F32, &w, out, input);
            linear::linear_fwd(&cpu(), &mut y, &x, &layer, accumulate);
            linear::linear_bwd_input(&cpu(), &mut dx, &dy, &layer, &w, accumulate);
            linear::linear_bwd_weight(&cpu(), &mut dw, &dy, &x, &layer);

            let (x, w, dy) = (upload::<E>(gpu, &x), upload::<E>(gpu, &w), upload::<E>(gpu, &dy));
            let write = if accumulate { Write::Add } else { Write::Scaled(1.0) };
            linear_fwd(gpu, by, y_got.view_mut(), x.view(), w.view(), input, write).unwrap();
            assert_near(&what("linear_fwd"), &download(gpu, &y_got), &y, E::NMSE);
            let write = if accumulate { Write::Add } else { Write::Scaled(1.0) };
            linear_fwd(gpu, by, logits.view_mut(), x.view(), w.view(), input, write).unwrap();
            assert_near(&what("linear_fwd in f32"), &download(gpu, &logits), &y, f32::NMSE);
            linear_bwd_input(gpu, by, dx_got.view_mut(), dy.view(), w.view(), input, accumulate).unwrap();
            assert_near(&what("linear_bwd_input"), &download(gpu, &dx_got), &dx, E::NMSE);
            linear_bwd_weight(gpu, by, dw_got.view_mut(), dy.view(), x.view(), input).unwrap();
            assert_near(&what("linear_bwd_weight"), &download(gpu, &dw_got), &dw, f32::NMSE);
            // Both are one chain of fused multiply-adds up k: in f32 that is the same bits.
            if size_of::<E>() == 4 && by == Products::Invariant {
                assert_eq!(download(gpu, &y_got), y, "{}", what("bits of linear_fwd"));
                assert_eq!(download(gpu, &dx_got), dx, "{}", what("bits of linear_bwd_input"));
                assert_eq!(download(gpu, &dw_got), dw, "{}", what("bits of linear_bwd_weight"));
            }
        }
    }
}

#[test]
fn our_products_are_those_of_the_cpu() {
    products::<f32>(Products::Invariant);
    products::<bf16>(Products::Invariant);
}

#[test]
fn the_librarys_products_are_asked_for_the_right_way_round() {
    products::<f32>(Products::Library);
    products::<bf16>(Products::Library);
}

/// Products of columns: of rows further apart than the columns are many, into such rows, with a factor and on top of what is there.
fn columns<E: Precision>(by: Products) {
    let Some(gpu) = gpu() else { return };
    let (row_a, row_b, row_c) = (120, 56, 88);
    for [m, n, k] in [[1, 1, 1], [5, 40, 24], [70, 33, 17], [130, 72, 96]] {
        for (alpha, adds) in [(1.0, false), (-0.375, false), (1.0, true)] {
            let (a, b, c) = (random::<E>(1, m * row_a), random::<E>(2, k * 2 * row_b), random::<E>(3, m * row_c));
            let (mut want, mut got) = (c.clone(), upload::<E>(gpu, &c));
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let sum: f64 =
                    (0..k).map(|l| f64::from(a[i * row_a + 16 + l]) * f64::from(b[l * 2 * row_b + 8 + j])).sum();
                let held = if adds { f64::from(c[i * row_c + 8 + j]) } else { 0.0 };
                want[i * row_c + 8 + j] = (held + f64::from(alpha) * sum) as f32;
            }
            let (a, b) = (upload::<E>(gpu, &a), upload::<E>(gpu, &b));
            let (a, b) = (a.slice(16..a.len()), b.slice(8..b.len()));
            let (a, b) = (Matrix::rows(a, row_a), Matrix::rows(b, 2 * row_b));
            // The same with C in f32, whatever the operands are.
            let mut floats = upload::<f32>(gpu, &c);
            let to = MatrixMut::rows(floats.slice_mut(8..m * row_c), row_c);
            gemm(gpu, by, [m, n, k], a, b, to, if adds { Write::Add } else { Write::Scaled(alpha) }).unwrap();
            assert_near(
                &format!("{m} x {n} x {k} in f32 by {by:?}, {alpha}, {adds}"),
                &download(gpu, &floats),
                &want,
                f32::NMSE,
            );
            let to = MatrixMut::rows(got.slice_mut(8..m * row_c), row_c);
            gemm(gpu, by, [m, n, k], a, b, to, if adds { Write::Add } else { Write::Scaled(alpha) }).unwrap();
            let got = download(gpu, &got);
            assert_near(&format!("{m} x {n} x {k} by {by:?}, {alpha}, {adds}"), &got, &want, E::NMSE);
            let between = |x: &[f32]| -> Vec<f32> {
                x.chunks(row_c).flat_map(|row| [&row[..8], &row[8 + n..]].concat()).collect()
            };
            assert_eq!(between(&got), between(&c), "what lies between the rows stays");
        }
    }
}

#[test]
fn products_of_columns_with_a_factor_leave_the_others_alone() {
    for by in [Products::Invariant, Products::Library] {
        columns::<f32>(by);
        columns::<bf16>(by);
    }
}

/// C = Z + A·B is what it would be with Z copied into C before, in every bit; Z and what lies between the rows stay.
fn onto<E: Precision, C: Precision>(by: Products) {
    let Some(gpu) = gpu() else { return };
    let (row, row_c) = (40, 88);
    for [m, n, k] in [[1, 1, 1], [5, 40, 24], [70, 33, 17], [130, 72, 31]] {
        let (a, b) = (upload::<E>(gpu, &random::<E>(1, m * row)), upload::<E>(gpu, &random::<E>(2, n * row)));
        let (z, old) = (random::<C>(3, m * row_c), random::<C>(4, m * row_c));
        let (mut copied, on_z, mut c) = (upload::<C>(gpu, &z), upload::<C>(gpu, &z), upload::<C>(gpu, &old));
        let all = 8..m * row_c;
        for (to, write) in [(&mut copied, Write::Add), (&mut c, Write::Onto(on_z.slice(all.clone())))] {
            let (a, b) = (Matrix::rows(a.view(), row), Matrix::transposed(b.view(), row));
            gemm(gpu, by, [m, n, k], a, b, MatrixMut::rows(to.slice_mut(all.clone()), row_c), write).unwrap();
        }
        let (copied, c) = (download(gpu, &copied), download(gpu, &c));
        let written = |i: usize| (8..8 + n).contains(&(i % row_c));
        for i in 0..m * row_c {
            assert_eq!(c[i], if written(i) { copied[i] } else { old[i] }, "element {i} of {m} x {n} x {k} by {by:?}");
        }
        assert_eq!(download(gpu, &on_z), z, "what is read stays");
        assert_ne!(copied, z, "there is something to add");
    }
}

#[test]
fn a_product_onto_another_matrix_is_that_onto_its_copy() {
    for by in [Products::Invariant, Products::Library] {
        onto::<f32, f32>(by);
        onto::<bf16, bf16>(by);
        onto::<bf16, f32>(by);
    }
}

/// 150 rows go through large tiles, one and 40 rows through small ones.
fn alone_and_together<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    let (rows, out, input) = (150, 70, 100);
    let (x, w) = (random::<E>(1, rows * input), upload::<E>(gpu, &random::<E>(2, out * input)));
    let y = |first: usize, rows: usize| {
        let mut y = gpu.buffer::<f32>("y", rows * out).unwrap();
        let x = upload::<E>(gpu, &x[first * input..][..rows * input]);
        linear_fwd(gpu, Products::Invariant, y.view_mut(), x.view(), w.view(), input, Write::Scaled(1.0)).unwrap();
        download(gpu, &y)
    };
    let all = y(0, rows);
    for (first, some) in [(0, 1), (149, 1), (77, 40), (20, 65)] {
        assert_eq!(y(first, some), all[first * out..][..some * out], "rows {first} and {some} more");
    }
}

#[test]
fn a_row_does_not_depend_on_how_many_there_are() {
    alone_and_together::<f32>();
    alone_and_together::<bf16>();
}

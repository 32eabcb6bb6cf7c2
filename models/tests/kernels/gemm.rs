//! Matrix products, by our own kernel and by the library (on the emulator its column-major reference).

use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::gemm::{Products, linear_bwd_input, linear_bwd_weight, linear_fwd};
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
            linear_fwd(gpu, by, y_got.view_mut(), x.view(), w.view(), input, accumulate).unwrap();
            assert_near(&what("linear_fwd"), &download(gpu, &y_got), &y, E::NMSE);
            linear_fwd(gpu, by, logits.view_mut(), x.view(), w.view(), input, accumulate).unwrap();
            assert_near(&what("linear_fwd in f32"), &download(gpu, &logits), &y, f32::NMSE);
            linear_bwd_input(gpu, by, dx_got.view_mut(), dy.view(), w.view(), input, accumulate).unwrap();
            assert_near(&what("linear_bwd_input"), &download(gpu, &dx_got), &dx, E::NMSE);
            linear_bwd_weight(gpu, by, dw_got.view_mut(), dy.view(), x.view(), input).unwrap();
            assert_near(&what("linear_bwd_weight"), &download(gpu, &dw_got), &dw, f32::NMSE);
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

/// 150 rows go through large tiles, one and 40 rows through small ones.
fn alone_and_together<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    let (rows, out, input) = (150, 70, 100);
    let (x, w) = (random::<E>(1, rows * input), upload::<E>(gpu, &random::<E>(2, out * input)));
    let y = |first: usize, rows: usize| {
        let mut y = gpu.buffer::<f32>("y", rows * out).unwrap();
        let x = upload::<E>(gpu, &x[first * input..][..rows * input]);
        linear_fwd(gpu, Products::Invariant, y.view_mut(), x.view(), w.view(), input, false).unwrap();
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

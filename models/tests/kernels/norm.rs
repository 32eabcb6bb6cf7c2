//! RMSNorm, and the sums over rows that give the gradients of gains and biases.

use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::kernels::{norm as kernel, sums};
use ragen_models::ops::linear::bias_bwd;
use ragen_models::ops::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd, rmsnorm_gain_bwd};

/// Rows, heads, d and the distance between rows.
const CASES: &[[usize; 4]] = &[
    [0, 1, 8, 8],
    [1, 1, 1, 1],
    [3, 1, 31, 31],
    [65, 1, 40, 40],
    [33, 1, 256, 256],
    [9, 1, 900, 900],
    [7, 3, 10, 50],
    [130, 2, 64, 256],
];

fn backward_and_forward<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for &[rows, heads, d, stride] in CASES {
        let what = |op: &str| format!("{op} {rows} x {heads} x {d}");
        let (x, gain) = (random::<E>(1, rows * stride), random::<E>(2, d));
        let (dy, start) = (random::<E>(3, rows * stride), random::<E>(4, rows * stride));
        let layout = Layout { rows, heads, d, stride };
        let (mut y, mut rstd) = (vec![0.0; rows * stride], vec![0.0; rows * heads]);
        rmsnorm_fwd(&cpu(), &mut y, stride, &mut rstd, &x, &gain, 1e-5, layout);
        let (mut dx, mut dgain) = (start.clone(), random::<f32>(5, d));
        rmsnorm_bwd(&cpu(), &mut dx, &dy, stride, &rstd, &x, &gain, layout);
        let mut dx_alone = start.clone();
        dx_alone.iter_mut().enumerate().filter(|(i, _)| i % stride < heads * d).for_each(|(_, x)| *x = 0.0);
        rmsnorm_bwd(&cpu(), &mut dx_alone, &dy, stride, &rstd, &x, &gain, layout);
        let mut dgain_got = gpu.upload("dgain", &dgain).unwrap();
        rmsnorm_gain_bwd(&cpu(), &mut dgain, &dy, stride, &rstd, &x, layout);

        let layout = kernel::Layout { rows, heads, d, stride };
        let (x, gain, dy) = (upload::<E>(gpu, &x), upload::<E>(gpu, &gain), upload::<E>(gpu, &dy));
        let mut got = upload::<E>(gpu, &vec![0.0; rows * stride]);
        let mut rstd_got = gpu.zeros::<f32>("rstd", rows * heads).unwrap();
        kernel::rmsnorm_fwd(gpu, got.view_mut(), stride, rstd_got.view_mut(), x.view(), gain.view(), 1e-5, layout)
            .unwrap();
        assert_near(&what("rmsnorm_fwd"), &download(gpu, &got), &y, E::NMSE);
        assert_near(&what("rstd"), &download(gpu, &rstd_got), &rstd, f32::NMSE);

        for (accumulate, want) in [(true, &dx), (false, &dx_alone)] {
            // What lies between the vectors stays as it was.
            let mut got = upload::<E>(gpu, &start);
            let (rstd, to) = (rstd_got.view(), got.view_mut());
            kernel::rmsnorm_bwd(gpu, to, dy.view(), stride, rstd, x.view(), gain.view(), layout, accumulate).unwrap();
            assert_near(&what("rmsnorm_bwd"), &download(gpu, &got), want, E::NMSE);
        }

        let mut space = gpu.buffer::<f32>("pieces", sums::pieces(rows) * d).unwrap();
        let (dgain_view, space) = (dgain_got.view_mut(), space.view_mut());
        sums::rmsnorm_gain_bwd(gpu, dgain_view, dy.view(), stride, rstd_got.view(), x.view(), layout, space).unwrap();
        assert_near(&what("rmsnorm_gain_bwd"), &download(gpu, &dgain_got), &dgain, f32::NMSE);
    }
}

#[test]
fn rmsnorm_is_that_of_the_cpu() {
    backward_and_forward::<f32>();
    backward_and_forward::<bf16>();
}

fn residual<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for &[rows, _, d, _] in CASES {
        let what = format!("residual_rmsnorm_fwd {rows} x {d}");
        let (x, delta, gain) = (random::<E>(1, rows * d), random::<E>(2, rows * d), random::<E>(3, d));
        // The norm is that of the sum as it is stored.
        let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| E::from_f32(a + b).to_f32()).collect();
        let (mut y, mut rstd) = (vec![0.0; rows * d], vec![0.0; rows]);
        rmsnorm_fwd(&cpu(), &mut y, d, &mut rstd, &sum, &gain, 1e-6, Layout::plain(rows, d));

        let zeros = vec![0.0; rows * d];
        let (mut sum_got, mut y_got) = (upload::<E>(gpu, &zeros), upload::<E>(gpu, &zeros));
        let mut rstd_got = gpu.zeros::<f32>("rstd", rows).unwrap();
        let (x, delta, gain) = (upload::<E>(gpu, &x), upload::<E>(gpu, &delta), upload::<E>(gpu, &gain));
        let (out, out_y, out_rstd) = (sum_got.view_mut(), y_got.view_mut(), rstd_got.view_mut());
        kernel::residual_rmsnorm_fwd(gpu, out, out_y, out_rstd, x.view(), delta.view(), gain.view(), 1e-6).unwrap();
        assert_eq!(download(gpu, &sum_got), sum, "{what}");
        assert_near(&what, &download(gpu, &y_got), &y, E::NMSE);
        assert_near(&what, &download(gpu, &rstd_got), &rstd, f32::NMSE);
    }
}

#[test]
fn the_norm_after_a_residual_is_that_of_the_stored_sum() {
    residual::<f32>();
    residual::<bf16>();
}

fn bias<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for (rows, width) in [(0, 3), (1, 1), (31, 33), (64, 40), (65, 129), (200, 16)] {
        let (dy, mut db) = (random::<E>(1, rows * width), random::<f32>(2, width));
        let mut got = gpu.upload("db", &db).unwrap();
        // The kernel's own order: rows within a piece of 64, then the pieces.
        let mut in_order = db.clone();
        for piece in dy.chunks(64 * width) {
            let mut sum = vec![0.0f32; width];
            piece.chunks(width).for_each(|row| sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
            in_order.iter_mut().zip(&sum).for_each(|(total, sum)| *total += sum);
        }
        bias_bwd(&cpu(), &mut db, &dy);
        let mut space = gpu.buffer::<f32>("pieces", sums::pieces(rows) * width).unwrap();
        sums::bias_bwd::<E>(gpu, got.view_mut(), upload(gpu, &dy).view(), space.view_mut()).unwrap();
        assert_near(&format!("bias_bwd {rows} x {width}"), &download(gpu, &got), &db, f32::NMSE);
        assert_eq!(download(gpu, &got), in_order, "bias_bwd {rows} x {width}, rows and pieces in their order");
    }
}

#[test]
fn the_gradient_of_a_bias_is_that_of_the_cpu() {
    bias::<f32>();
    bias::<bf16>();
}

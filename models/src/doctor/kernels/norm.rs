//! RMSNorm, alone and after a residual.

use super::super::Number;
use super::judge::{Judge, random};
use crate::ops::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd, rmsnorm_gain_bwd};
use ragen_cuda::CudaError;
use ragen_cuda::kernels::{norm as kernel, sums};

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

/// Forward, backward and the gain's gradient; what lies between the vectors stays.
pub(super) fn rmsnorm<E: Number>(on: &mut Judge<'_>) {
    for &[rows, heads, d, stride] in CASES {
        let layout = Layout { rows, heads, d, stride };
        on.case(format!("{rows} rows {stride} apart, {heads} x {d}"), rows * stride, |on| {
            forward_and_backward::<E>(on, layout)
        });
    }
}

fn forward_and_backward<E: Number>(on: &mut Judge<'_>, layout: Layout) -> Result<(), CudaError> {
    let Layout { rows, heads, d, stride } = layout;
    let (x, gain) = (random::<E>(1, rows * stride), random::<E>(2, d));
    let (dy, start) = (random::<E>(3, rows * stride), random::<E>(4, rows * stride));
    let (mut y, mut rstd) = (vec![0.0; rows * stride], vec![0.0; rows * heads]);
    rmsnorm_fwd(&on.cpu, &mut y, stride, &mut rstd, &x, &gain, 1e-5, layout);
    let (mut dx, mut dgain) = (start.clone(), random::<f32>(5, d));
    rmsnorm_bwd(&on.cpu, &mut dx, &dy, stride, &rstd, &x, &gain, layout);
    let mut dx_alone = start.clone();
    dx_alone.iter_mut().enumerate().filter(|(i, _)| i % stride < heads * d).for_each(|(_, x)| *x = 0.0);
    rmsnorm_bwd(&on.cpu, &mut dx_alone, &dy, stride, &rstd, &x, &gain, layout);
    let mut dgain_got = on.gpu.upload("dgain", &dgain)?;
    rmsnorm_gain_bwd(&on.cpu, &mut dgain, &dy, stride, &rstd, &x, layout);

    let layout = kernel::Layout { rows, heads, d, stride };
    let gpu = &on.gpu.clone();
    let (x, gain, dy) = (on.upload::<E>(&x)?, on.upload::<E>(&gain)?, on.upload::<E>(&dy)?);
    let mut got = on.upload::<E>(&vec![0.0; rows * stride])?;
    let mut rstd_got = gpu.zeros::<f32>("rstd", rows * heads)?;
    on.op("rmsnorm_fwd");
    kernel::rmsnorm_fwd(gpu, got.view_mut(), stride, rstd_got.view_mut(), x.view(), gain.view(), 1e-5, layout)?;
    on.near("y", &on.download(&got)?, &y, E::NMSE);
    on.near("rstd", &on.download(&rstd_got)?, &rstd, f32::NMSE);

    on.op("rmsnorm_bwd");
    for (accumulate, want) in [(true, &dx), (false, &dx_alone)] {
        let mut got = on.upload::<E>(&start)?;
        let (rstd, to) = (rstd_got.view(), got.view_mut());
        kernel::rmsnorm_bwd(gpu, to, dy.view(), stride, rstd, x.view(), gain.view(), layout, accumulate)?;
        on.near(if accumulate { "added" } else { "written" }, &on.download(&got)?, want, E::NMSE);
    }

    on.op("rmsnorm_gain_bwd");
    let mut space = gpu.buffer::<f32>("pieces", sums::pieces(rows) * d)?;
    let (dgain_view, space) = (dgain_got.view_mut(), space.view_mut());
    sums::rmsnorm_gain_bwd(gpu, dgain_view, dy.view(), stride, rstd_got.view(), x.view(), layout, space)?;
    on.near("", &on.download(&dgain_got)?, &dgain, f32::NMSE);
    Ok(())
}

/// The norm after a residual is that of the sum as it is stored.
pub(super) fn residual_rmsnorm<E: Number>(on: &mut Judge<'_>) {
    for &[rows, _, d, _] in CASES {
        on.case(format!("{rows} x {d}"), rows * d, |on| {
            let (x, delta, gain) = (random::<E>(1, rows * d), random::<E>(2, rows * d), random::<E>(3, d));
            let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| E::from_f32(a + b).to_f32()).collect();
            let (mut y, mut rstd) = (vec![0.0; rows * d], vec![0.0; rows]);
            rmsnorm_fwd(&on.cpu, &mut y, d, &mut rstd, &sum, &gain, 1e-6, Layout::plain(rows, d));

            let zeros = vec![0.0; rows * d];
            let (mut sum_got, mut y_got) = (on.upload::<E>(&zeros)?, on.upload::<E>(&zeros)?);
            let mut rstd_got = on.gpu.zeros::<f32>("rstd", rows)?;
            let (x, delta, gain) = (on.upload::<E>(&x)?, on.upload::<E>(&delta)?, on.upload::<E>(&gain)?);
            let (out, out_y, out_rstd) = (sum_got.view_mut(), y_got.view_mut(), rstd_got.view_mut());
            on.op("residual_rmsnorm_fwd");
            let gpu = &on.gpu;
            kernel::residual_rmsnorm_fwd(gpu, out, out_y, out_rstd, x.view(), delta.view(), gain.view(), 1e-6)?;
            on.bits("the sum", &on.download(&sum_got)?, &sum);
            on.near("y", &on.download(&y_got)?, &y, E::NMSE);
            on.near("rstd", &on.download(&rstd_got)?, &rstd, f32::NMSE);
            Ok(())
        });
    }
}

//! SwiGLU and bias: what goes element by element.

use super::super::Number;
use super::judge::{Judge, random};
use crate::ops::linear::bias_fwd;
use crate::ops::pointwise::{swiglu_bwd, swiglu_fwd};
use ragen_cuda::CudaError;
use ragen_cuda::kernels::pointwise;

/// Forward and backward, also far from zero.
pub(super) fn swiglu<E: Number>(on: &mut Judge<'_>) {
    for (rows, d_ff) in [(0, 8), (1, 1), (3, 31), (5, 33), (2, 2100), (33, 64)] {
        on.case(format!("{rows} x {d_ff}"), rows * d_ff, |on| {
            let (gate_up, da) = (random::<E>(1, rows * 2 * d_ff), random::<E>(2, rows * d_ff));
            let (mut a, mut dgate_up) = (vec![0.0; rows * d_ff], vec![0.0; rows * 2 * d_ff]);
            swiglu_fwd(&on.cpu, &mut a, &gate_up, d_ff);
            swiglu_bwd(&on.cpu, &mut dgate_up, &da, &gate_up, d_ff);

            let (gate_up, da) = (on.upload::<E>(&gate_up)?, on.upload::<E>(&da)?);
            let mut got = on.gpu.buffer::<E>("a", rows * d_ff)?;
            on.op("swiglu_fwd");
            pointwise::swiglu_fwd(&on.gpu, got.view_mut(), gate_up.view(), d_ff)?;
            on.near("", &on.download(&got)?, &a, E::NMSE);
            let mut got = on.gpu.buffer::<E>("dgate_up", rows * 2 * d_ff)?;
            on.op("swiglu_bwd");
            pointwise::swiglu_bwd(&on.gpu, got.view_mut(), da.view(), gate_up.view(), d_ff)?;
            on.near("", &on.download(&got)?, &dgate_up, E::NMSE);
            Ok(())
        });
    }
    on.case("gates of 90 and 200, up and down", 4, far_from_zero::<E>);
}

fn far_from_zero<E: Number>(on: &mut Judge<'_>) -> Result<(), CudaError> {
    let gate_up = on.upload::<E>(&[-200.0, -90.0, 90.0, 200.0, 1.0, 1.0, 1.0, 1.0])?;
    let mut got = on.gpu.buffer::<E>("a", 4)?;
    on.op("swiglu_fwd");
    pointwise::swiglu_fwd(&on.gpu, got.view_mut(), gate_up.view(), 4)?;
    let got = on.download(&got)?;
    on.same("where the gate is shut or open", &[got[0], got[2], got[3]], &[0.0, 90.0, 200.0]);
    on.largest("where it is all but shut", got[1..2].iter().map(|x| f64::from(x.abs())), 1e-36);
    Ok(())
}

/// A bias begins every row.
pub(super) fn bias<E: Number>(on: &mut Judge<'_>) {
    for (rows, width) in [(0, 3), (1, 1), (5, 33), (33, 40)] {
        on.case(format!("{rows} x {width}"), rows * width, |on| {
            let (b, mut y) = (random::<E>(1, width), vec![0.0; rows * width]);
            bias_fwd(&mut y, &b);
            let mut got = on.gpu.buffer::<E>("y", rows * width)?;
            on.op("bias_fwd");
            pointwise::bias_fwd(&on.gpu, got.view_mut(), on.upload(&b)?.view())?;
            on.bits("", &on.download(&got)?, &y);
            Ok(())
        });
    }
}

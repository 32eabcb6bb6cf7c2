//! Sums over rows: the gradient of a bias.

use super::super::Number;
use super::judge::{Judge, random};
use crate::ops::linear;
use ragen_cuda::kernels::sums;

/// The CPU's sum, and in the kernels' own order every bit.
pub(super) fn bias_bwd<E: Number>(on: &mut Judge<'_>) {
    for (rows, width) in [(0, 3), (1, 1), (31, 33), (64, 40), (65, 129), (200, 16)] {
        on.case(format!("{rows} x {width}"), rows * width, |on| {
            let (dy, mut db) = (random::<E>(1, rows * width), random::<f32>(2, width));
            let mut got = on.gpu.upload("db", &db)?;
            // The kernels' order: rows within a piece of 64, then the pieces.
            let mut in_order = db.clone();
            for piece in dy.chunks(64 * width) {
                let mut sum = vec![0.0f32; width];
                piece.chunks(width).for_each(|row| sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
                in_order.iter_mut().zip(&sum).for_each(|(total, sum)| *total += sum);
            }
            linear::bias_bwd(&on.cpu, &mut db, &dy);
            let mut space = on.gpu.buffer::<f32>("pieces", sums::pieces(rows) * width)?;
            on.op("bias_bwd");
            sums::bias_bwd::<E>(&on.gpu, got.view_mut(), on.upload(&dy)?.view(), space.view_mut())?;
            let got = on.download(&got)?;
            on.near("", &got, &db, f32::NMSE);
            on.bits("rows and pieces in their order", &got, &in_order);
            Ok(())
        });
    }
}

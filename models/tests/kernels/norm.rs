//! RMSNorm.

use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::kernels::norm as kernel;
use ragen_models::ops::norm::{Layout, rmsnorm_fwd};

/// (rows, heads, d, distance between rows)
const CASES: &[(usize, usize, usize, usize)] = &[
    (0, 1, 8, 8),
    (1, 1, 1, 1),
    (3, 1, 31, 31),
    (5, 1, 40, 40),
    (33, 1, 256, 256),
    (9, 1, 900, 900),
    (7, 3, 10, 50),
    (17, 2, 64, 256),
];

fn forward<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for &(rows, heads, d, stride) in CASES {
        let what = format!("rmsnorm_fwd {rows} x {heads} x {d}");
        let (x, gain) = (random::<E>(1, rows * stride), random::<E>(2, d));
        let (mut y, mut rstd) = (vec![0.0; rows * stride], vec![0.0; rows * heads]);
        rmsnorm_fwd(&cpu(), &mut y, stride, &mut rstd, &x, &gain, 1e-5, Layout { rows, heads, d, stride });

        let (x, gain) = (upload::<E>(gpu, &x), upload::<E>(gpu, &gain));
        let mut out = upload::<E>(gpu, &vec![0.0; rows * stride]);
        let mut scale = gpu.zeros::<f32>("rstd", rows * heads).unwrap();
        let layout = kernel::Layout { rows, heads, d, stride };
        kernel::rmsnorm_fwd(gpu, out.view_mut(), stride, scale.view_mut(), x.view(), gain.view(), 1e-5, layout)
            .unwrap();
        assert_near(&what, &download(gpu, &out), &y, E::NMSE);
        assert_near(&what, &download(gpu, &scale), &rstd, f32::NMSE);
    }
}

#[test]
fn rmsnorm_fwd_is_that_of_the_cpu() {
    forward::<f32>();
    forward::<bf16>();
}

//! Matrix products, by our own kernel and by the library (on the emulator its column-major reference).

use super::super::Number;
use super::judge::{Judge, random};
use crate::ops::linear::{self, Linear, Precision};
use ragen_cuda::CudaError;
use ragen_cuda::gemm::{Matrix, MatrixMut, Products, Write, gemm, linear_bwd_input, linear_bwd_weight, linear_fwd};

const BOTH: [Products; 2] = [Products::Invariant, Products::Library];

/// Rows, outputs, inputs.
const CASES: &[[usize; 3]] =
    &[[0, 5, 7], [1, 1, 1], [3, 31, 33], [17, 70, 8], [33, 40, 96], [65, 129, 31], [130, 136, 72], [200, 24, 264]];

/// The products of a layer, written and added. Our own kernel's are chains of fused multiply-adds up k, as on the CPU: in f32 the same bits.
pub(super) fn products<E: Number>(on: &mut Judge<'_>) {
    for by in BOTH {
        for &size in CASES {
            for accumulate in [false, true] {
                let [rows, out, input] = size;
                let case = format!("{rows} x {out} x {input} by {by:?}, accumulate {accumulate}");
                on.case(case, rows * out.max(input), |on| of_a_layer::<E>(on, by, size, accumulate));
            }
        }
    }
}

fn write<'a, C>(accumulate: bool) -> Write<'a, C> {
    if accumulate { Write::Add } else { Write::Scaled(1.0) }
}

fn of_a_layer<E: Number>(
    on: &mut Judge<'_>,
    by: Products,
    [rows, out, input]: [usize; 3],
    accumulate: bool,
) -> Result<(), CudaError> {
    let (x, w, dy) = (random::<E>(1, rows * input), random::<E>(2, out * input), random::<E>(3, rows * out));
    let (mut y, mut dx, mut dw) =
        (random::<E>(4, rows * out), random::<E>(5, rows * input), random::<f32>(6, out * input));
    let (mut y_got, mut dx_got) = (on.upload::<E>(&y)?, on.upload::<E>(&dx)?);
    let (mut logits, mut dw_got) = (on.upload::<f32>(&y)?, on.upload::<f32>(&dw)?);
    let mut layer = Linear::default();
    layer.pack(&on.cpu, Precision::F32, &w, out, input);
    linear::linear_fwd(&on.cpu, &mut y, &x, &layer, accumulate);
    linear::linear_bwd_input(&on.cpu, &mut dx, &dy, &layer, &w, accumulate);
    linear::linear_bwd_weight(&on.cpu, &mut dw, &dy, &x, &layer);

    let same_chains = size_of::<E>() == 4 && by == Products::Invariant;
    let gpu = &on.gpu.clone();
    let (x, w, dy) = (on.upload::<E>(&x)?, on.upload::<E>(&w)?, on.upload::<E>(&dy)?);
    let compare = |on: &mut Judge<'_>, got: Vec<f32>, want: &[f32], bound| {
        on.near("", &got, want, bound);
        if same_chains {
            on.bits("bits", &got, want);
        }
    };
    on.op("linear_fwd");
    linear_fwd(gpu, by, y_got.view_mut(), x.view(), w.view(), input, write(accumulate))?;
    let got = on.download(&y_got)?;
    compare(on, got, &y, E::NMSE);
    linear_fwd(gpu, by, logits.view_mut(), x.view(), w.view(), input, write(accumulate))?;
    on.near("logits", &on.download(&logits)?, &y, f32::NMSE);
    on.op("linear_bwd_input");
    linear_bwd_input(gpu, by, dx_got.view_mut(), dy.view(), w.view(), input, accumulate)?;
    let got = on.download(&dx_got)?;
    compare(on, got, &dx, E::NMSE);
    on.op("linear_bwd_weight");
    linear_bwd_weight(gpu, by, dw_got.view_mut(), dy.view(), x.view(), input)?;
    let got = on.download(&dw_got)?;
    compare(on, got, &dw, f32::NMSE);
    Ok(())
}

/// Distances between rows of A, of B and of C.
const ROWS: [usize; 3] = [120, 112, 88];

/// Products of columns: of rows further apart than the columns are many, into such rows, with a factor and on top of what is there.
pub(super) fn columns<E: Number>(on: &mut Judge<'_>) {
    for by in BOTH {
        for size in [[1, 1, 1], [5, 40, 24], [70, 33, 17], [130, 72, 96]] {
            for (alpha, adds) in [(1.0, false), (-0.375, false), (1.0, true)] {
                let [m, n, k] = size;
                let case = format!("{m} x {n} x {k} by {by:?}, times {alpha}, accumulate {adds}");
                on.case(case, m * ROWS[0], |on| of_columns::<E>(on, by, size, alpha, adds));
            }
        }
    }
}

fn of_columns<E: Number>(
    on: &mut Judge<'_>,
    by: Products,
    [m, n, k]: [usize; 3],
    alpha: f32,
    adds: bool,
) -> Result<(), CudaError> {
    let [row_a, row_b, row_c] = ROWS;
    let (a, b, c) = (random::<E>(1, m * row_a), random::<E>(2, k * row_b), random::<E>(3, m * row_c));
    let mut want = c.clone();
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        let sum: f64 = (0..k).map(|l| f64::from(a[i * row_a + 16 + l]) * f64::from(b[l * row_b + 8 + j])).sum();
        let held = if adds { f64::from(c[i * row_c + 8 + j]) } else { 0.0 };
        want[i * row_c + 8 + j] = (held + f64::from(alpha) * sum) as f32;
    }
    let gpu = &on.gpu.clone();
    let (a, b) = (on.upload::<E>(&a)?, on.upload::<E>(&b)?);
    let (a, b) = (a.slice(16..a.len()), b.slice(8..b.len()));
    let (a, b) = (Matrix::rows(a, row_a), Matrix::rows(b, row_b));
    let between =
        |x: &[f32]| -> Vec<f32> { x.chunks(row_c).flat_map(|row| [&row[..8], &row[8 + n..]].concat()).collect() };
    on.op("gemm");
    // C in f32, whatever the operands are.
    let mut floats = on.upload::<f32>(&c)?;
    let to = MatrixMut::rows(floats.slice_mut(8..m * row_c), row_c);
    gemm(gpu, by, [m, n, k], a, b, to, if adds { Write::Add } else { Write::Scaled(alpha) })?;
    let floats = on.download(&floats)?;
    on.near("to f32", &floats, &want, f32::NMSE);
    on.bits("to f32, what lies between the rows", &between(&floats), &between(&c));
    let mut got = on.upload::<E>(&c)?;
    let to = MatrixMut::rows(got.slice_mut(8..m * row_c), row_c);
    gemm(gpu, by, [m, n, k], a, b, to, if adds { Write::Add } else { Write::Scaled(alpha) })?;
    let got = on.download(&got)?;
    on.near("", &got, &want, E::NMSE);
    on.bits("what lies between the rows", &between(&got), &between(&c));
    Ok(())
}

/// C = Z + A·B is what it would be with Z copied into C before, in every bit; Z and what lies between the rows stay.
pub(super) fn onto<E: Number>(on: &mut Judge<'_>) {
    for by in BOTH {
        for size in [[1, 1, 1], [5, 40, 24], [70, 33, 17], [130, 72, 31]] {
            let [m, n, k] = size;
            on.case(format!("{m} x {n} x {k} by {by:?}"), m * ROWS[2], |on| of_onto::<E, E>(on, by, size));
            if size_of::<E>() == 2 {
                on.case(format!("{m} x {n} x {k} by {by:?}, to f32"), m * ROWS[2], |on| {
                    of_onto::<E, f32>(on, by, size)
                });
            }
        }
    }
}

fn of_onto<E: Number, C: Number>(on: &mut Judge<'_>, by: Products, [m, n, k]: [usize; 3]) -> Result<(), CudaError> {
    let (row, row_c) = (40, ROWS[2]);
    let (a, b) = (on.upload::<E>(&random::<E>(1, m * row))?, on.upload::<E>(&random::<E>(2, n * row))?);
    let (z, old) = (random::<C>(3, m * row_c), random::<C>(4, m * row_c));
    let (mut copied, on_z, mut c) = (on.upload::<C>(&z)?, on.upload::<C>(&z)?, on.upload::<C>(&old)?);
    let all = 8..m * row_c;
    on.op("gemm");
    for (to, write) in [(&mut copied, Write::Add), (&mut c, Write::Onto(on_z.slice(all.clone())))] {
        let (a, b) = (Matrix::rows(a.view(), row), Matrix::transposed(b.view(), row));
        gemm(&on.gpu, by, [m, n, k], a, b, MatrixMut::rows(to.slice_mut(all.clone()), row_c), write)?;
    }
    let copied = on.download(&copied)?;
    let is_written = |i: usize| (8..8 + n).contains(&(i % row_c));
    let want: Vec<f32> = (0..m * row_c).map(|i| if is_written(i) { copied[i] } else { old[i] }).collect();
    on.bits("", &on.download(&c)?, &want);
    on.bits("what is read", &on.download(&on_z)?, &z);
    on.same("whether there is something to add", &[copied != z], &[true]);
    Ok(())
}

/// Rows alone and among others, by our own kernel: 150 rows go through large tiles, one and 40 rows through small ones.
pub(super) fn rows<E: Number>(on: &mut Judge<'_>) {
    let (rows, out, input) = (150, 70, 100);
    on.case(format!("{rows} x {out} x {input}"), rows * input, |on| {
        let (x, w) = (random::<E>(1, rows * input), on.upload::<E>(&random::<E>(2, out * input))?);
        on.op("linear_fwd");
        let y = |on: &Judge<'_>, first: usize, rows: usize| {
            let mut y = on.gpu.buffer::<f32>("y", rows * out)?;
            let x = on.upload::<E>(&x[first * input..][..rows * input])?;
            linear_fwd(&on.gpu, Products::Invariant, y.view_mut(), x.view(), w.view(), input, write(false))?;
            on.download(&y)
        };
        let all = y(on, 0, rows)?;
        for (first, some) in [(0, 1), (149, 1), (77, 40), (20, 65)] {
            let alone = y(on, first, some)?;
            on.bits(&format!("{some} from {first} on, alone"), &alone, &all[first * out..][..some * out]);
        }
        Ok(())
    });
}

//! SwiGLU, RoPE, embedding and bias: what goes element by element.

use crate::support::{Precision, assert_near, cpu, download, gpu, random, upload};
use half::bf16;
use ragen_cuda::kernels::{embedding, pointwise, rope as rope_kernel};
use ragen_models::config::Rope;
use ragen_models::ops::embedding::{embedding_bwd, embedding_fwd};
use ragen_models::ops::linear::bias_fwd;
use ragen_models::ops::pointwise::{swiglu_bwd, swiglu_fwd};
use ragen_models::ops::rope::{RopeTable, rope};
use ragen_models::random::Key;

fn swiglu<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for (rows, d_ff) in [(0, 8), (1, 1), (3, 31), (5, 33), (2, 2100), (33, 64)] {
        let what = |op: &str| format!("{op} {rows} x {d_ff}");
        let (gate_up, da) = (random::<E>(1, rows * 2 * d_ff), random::<E>(2, rows * d_ff));
        let (mut a, mut dgate_up) = (vec![0.0; rows * d_ff], vec![0.0; rows * 2 * d_ff]);
        swiglu_fwd(&cpu(), &mut a, &gate_up, d_ff);
        swiglu_bwd(&cpu(), &mut dgate_up, &da, &gate_up, d_ff);

        let (gate_up, da) = (upload::<E>(gpu, &gate_up), upload::<E>(gpu, &da));
        let mut got = gpu.buffer::<E>("a", rows * d_ff).unwrap();
        pointwise::swiglu_fwd(gpu, got.view_mut(), gate_up.view(), d_ff).unwrap();
        assert_near(&what("swiglu_fwd"), &download(gpu, &got), &a, E::NMSE);
        let mut got = gpu.buffer::<E>("dgate_up", rows * 2 * d_ff).unwrap();
        pointwise::swiglu_bwd(gpu, got.view_mut(), da.view(), gate_up.view(), d_ff).unwrap();
        assert_near(&what("swiglu_bwd"), &download(gpu, &got), &dgate_up, E::NMSE);
    }
}

#[test]
fn swiglu_is_that_of_the_cpu_also_far_from_zero() {
    swiglu::<f32>();
    swiglu::<bf16>();
    let Some(gpu) = gpu() else { return };
    let gate_up = [-200.0, -90.0, 90.0, 200.0, 1.0, 1.0, 1.0, 1.0];
    let mut got = gpu.buffer::<f32>("a", 4).unwrap();
    pointwise::swiglu_fwd(gpu, got.view_mut(), upload(gpu, &gate_up).view(), 4).unwrap();
    let got = download(gpu, &got);
    assert!(got[0] == 0.0 && got[1].abs() < 1e-36 && got[2..] == [90.0, 200.0], "{got:?}");
}

fn turned<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for (rows, n_heads, n_kv_heads, width) in
        [(0, 1, 1, 2), (1, 1, 1, 2), (33, 4, 2, 10), (7, 14, 2, 64), (5, 6, 1, 24)]
    {
        let stride = (n_heads + 2 * n_kv_heads) * width;
        let positions: Vec<u32> = (0..rows).map(|i| Key::new(8).below(i as u64, 400) as u32).collect();
        let table = RopeTable::new(&Rope::plain(10_000.0), width, 400, 400);
        let rows_of_table: Vec<f32> = (0..400).flat_map(|p| [table.row(p).0, table.row(p).1].concat()).collect();
        let table_got = gpu.upload("table", &rows_of_table).unwrap();
        let positions_got = gpu.upload("positions", &positions).unwrap();
        for backward in [false, true] {
            let what = format!("rope {rows} x {n_heads} + {n_kv_heads} heads of {width}, backward {backward}");
            let mut x = random::<E>(1, rows * stride);
            let mut got = upload::<E>(gpu, &x);
            rope(&cpu(), &mut x, stride, 0, n_heads, &positions, &table, 0.125, backward);
            rope(&cpu(), &mut x, stride, n_heads * width, n_kv_heads, &positions, &table, 1.0, backward);
            let (positions, table) = (positions_got.view(), table_got.view());
            let out = got.view_mut();
            rope_kernel::rope(gpu, out, stride, n_heads, n_kv_heads, positions, table, width / 2, 0.125, backward)
                .unwrap();
            assert_near(&what, &download(gpu, &got), &x, E::NMSE);
        }
    }
}

#[test]
fn rope_is_that_of_the_cpu_and_leaves_values_alone() {
    turned::<f32>();
    turned::<bf16>();
}

fn embedded<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for (rows, vocab, d) in [(0, 5, 8), (1, 1, 1), (33, 7, 31), (65, 200, 40), (9, 3, 2100)] {
        let what = |op: &str| format!("{op} {rows} x {d} of {vocab}");
        let ids: Vec<u32> = (0..rows).map(|i| Key::new(8).below(i as u64, vocab) as u32).collect();
        let (table, dx) = (random::<E>(1, vocab * d), random::<E>(2, rows * d));
        let (mut x, mut dtable) = (vec![0.0; rows * d], random::<f32>(3, vocab * d));
        let mut dtable_got = gpu.upload("dE", &dtable).unwrap();
        embedding_fwd(&mut x, &ids, &table, d);
        embedding_bwd(&cpu(), &mut dtable, &dx, &ids, d);

        let mut got = gpu.buffer::<E>("x", rows * d).unwrap();
        let ids_got = gpu.upload("ids", &ids).unwrap();
        embedding::embedding_fwd(gpu, got.view_mut(), ids_got.view(), upload(gpu, &table).view(), d).unwrap();
        assert_eq!(download(gpu, &got), x, "{}", what("embedding_fwd"));
        let sorted = embedding::RowsByToken::new(gpu, &ids).unwrap();
        embedding::embedding_bwd::<E>(gpu, dtable_got.view_mut(), upload(gpu, &dx).view(), &sorted, d).unwrap();
        // One chain of additions a number, in the order of the CPU: the same bits.
        assert_eq!(download(gpu, &dtable_got), dtable, "{}", what("embedding_bwd"));
    }
}

#[test]
fn embedding_is_that_of_the_cpu_in_every_bit() {
    embedded::<f32>();
    embedded::<bf16>();
}

fn gathered<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for (rows, of, d) in [(0, 5, 8), (1, 1, 1), (33, 7, 31), (20, 50, 40)] {
        let picked: Vec<u32> = (0..rows).map(|i| Key::new(8).below(i as u64, of) as u32).collect();
        let (dy, mut dx) = (random::<E>(1, rows * d), random::<E>(2, of * d));
        let mut got = upload::<E>(gpu, &dx);
        let sorted = embedding::RowsByToken::new(gpu, &picked).unwrap();
        embedding::gather_bwd::<E>(gpu, got.view_mut(), upload(gpu, &dy).view(), &sorted, d).unwrap();
        // The CPU's sum, in f32; it is rounded once, when it is stored.
        embedding_bwd(&cpu(), &mut dx, &dy, &picked, d);
        let dx: Vec<f32> = dx.into_iter().map(|x| E::from_f32(x).to_f32()).collect();
        assert_eq!(download(gpu, &got), dx, "gather_bwd {rows} x {d} of {of}");
    }
}

#[test]
fn what_was_gathered_goes_back_row_by_row() {
    gathered::<f32>();
    gathered::<bf16>();
}

fn biased<E: Precision>() {
    let Some(gpu) = gpu() else { return };
    for (rows, width) in [(0, 3), (1, 1), (5, 33), (33, 40)] {
        let (b, mut y) = (random::<E>(1, width), vec![0.0; rows * width]);
        bias_fwd(&mut y, &b);
        let mut got = gpu.buffer::<E>("y", rows * width).unwrap();
        pointwise::bias_fwd(gpu, got.view_mut(), upload(gpu, &b).view()).unwrap();
        assert_eq!(download(gpu, &got), y, "bias_fwd {rows} x {width}");
    }
}

#[test]
fn a_bias_begins_every_row() {
    biased::<f32>();
    biased::<bf16>();
}

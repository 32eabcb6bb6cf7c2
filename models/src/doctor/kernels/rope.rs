//! RoPE over the query and key heads of a row; values stay as they are.

use super::super::Number;
use super::judge::{Judge, random};
use crate::config::Rope;
use crate::ops::rope::{RopeTable, rope as on_cpu};
use crate::random::Key;
use ragen_cuda::kernels::rope as kernel;

/// Positions are below this.
const POSITIONS: usize = 400;

/// Forward and backward, in place.
pub(super) fn rope<E: Number>(on: &mut Judge<'_>) {
    for (rows, n_heads, n_kv_heads, width) in
        [(0, 1, 1, 2), (1, 1, 1, 2), (33, 4, 2, 10), (7, 14, 2, 64), (5, 6, 1, 24)]
    {
        let stride = (n_heads + 2 * n_kv_heads) * width;
        on.case(format!("{rows} x {n_heads} + {n_kv_heads} heads of {width}"), rows * stride, |on| {
            let positions: Vec<u32> = (0..rows).map(|i| Key::new(8).below(i as u64, POSITIONS) as u32).collect();
            let table = RopeTable::new(&Rope::plain(10_000.0), width, POSITIONS, POSITIONS);
            let numbers: Vec<f32> = (0..POSITIONS).flat_map(|p| [table.row(p).0, table.row(p).1].concat()).collect();
            let (table_got, places) = (on.gpu.upload("table", &numbers)?, on.gpu.upload("positions", &positions)?);
            for backward in [false, true] {
                let mut x = random::<E>(1, rows * stride);
                let mut got = on.upload::<E>(&x)?;
                on_cpu(&on.cpu, &mut x, stride, 0, n_heads, &positions, &table, 0.125, backward);
                on_cpu(&on.cpu, &mut x, stride, n_heads * width, n_kv_heads, &positions, &table, 1.0, backward);
                on.op("rope");
                let (gpu, out, places, table) = (&on.gpu, got.view_mut(), places.view(), table_got.view());
                kernel::rope(gpu, out, stride, n_heads, n_kv_heads, places, table, width / 2, 0.125, backward)?;
                on.near(if backward { "backward" } else { "forward" }, &on.download(&got)?, &x, E::NMSE);
            }
            Ok(())
        });
    }
}

//! Embedding and what was gathered: rows of a table, and rows that go back.

use super::super::Number;
use super::judge::{Judge, random, rounded};
use crate::ops::embedding::{embedding_bwd, embedding_fwd};
use crate::random::Key;
use ragen_cuda::kernels::embedding as kernel;

/// Forward a copy, backward one chain of additions a number in the order of the CPU: the same bits.
pub(super) fn embedding<E: Number>(on: &mut Judge<'_>) {
    for (rows, vocab, d) in [(0, 5, 8), (1, 1, 1), (33, 7, 31), (65, 200, 40), (9, 3, 2100)] {
        on.case(format!("{rows} x {d} of {vocab}"), rows.max(vocab) * d, |on| {
            let ids: Vec<u32> = (0..rows).map(|i| Key::new(8).below(i as u64, vocab) as u32).collect();
            let (table, dx) = (random::<E>(1, vocab * d), random::<E>(2, rows * d));
            let (mut x, mut dtable) = (vec![0.0; rows * d], random::<f32>(3, vocab * d));
            let mut dtable_got = on.gpu.upload("dE", &dtable)?;
            embedding_fwd(&mut x, &ids, &table, d);
            embedding_bwd(&on.cpu, &mut dtable, &dx, &ids, d);

            let mut got = on.gpu.buffer::<E>("x", rows * d)?;
            let ids_got = on.gpu.upload("ids", &ids)?;
            on.op("embedding_fwd");
            kernel::embedding_fwd(&on.gpu, got.view_mut(), ids_got.view(), on.upload(&table)?.view(), d)?;
            on.bits("", &on.download(&got)?, &x);
            let sorted = kernel::RowsByToken::new(&on.gpu, &ids)?;
            on.op("embedding_bwd");
            kernel::embedding_bwd::<E>(&on.gpu, dtable_got.view_mut(), on.upload(&dx)?.view(), &sorted, d)?;
            on.bits("", &on.download(&dtable_got)?, &dtable);
            Ok(())
        });
    }
}

/// The CPU's sum in f32, rounded once, when it is stored.
pub(super) fn gather<E: Number>(on: &mut Judge<'_>) {
    for (rows, of, d) in [(0, 5, 8), (1, 1, 1), (33, 7, 31), (20, 50, 40)] {
        on.case(format!("{rows} x {d} of {of}"), rows.max(of) * d, |on| {
            let picked: Vec<u32> = (0..rows).map(|i| Key::new(8).below(i as u64, of) as u32).collect();
            let (dy, mut dx) = (random::<E>(1, rows * d), random::<E>(2, of * d));
            let mut got = on.upload::<E>(&dx)?;
            let sorted = kernel::RowsByToken::new(&on.gpu, &picked)?;
            on.op("gather_bwd");
            kernel::gather_bwd::<E>(&on.gpu, got.view_mut(), on.upload(&dy)?.view(), &sorted, d)?;
            embedding_bwd(&on.cpu, &mut dx, &dy, &picked, d);
            on.bits("", &on.download(&got)?, &rounded::<E>(dx));
            Ok(())
        });
    }
}

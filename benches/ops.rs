//! The operations of a transformer, forward and backward, at the shape of the small model: 8 rows of 256 tokens.
//!
//!     cargo bench --bench ops

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ragen_models::config::Rope;
use ragen_models::device::Cpu;
use ragen_models::ops::attention::{Heads, attention_bwd, attention_fwd};
use ragen_models::ops::head::{RowSeeds, row_bwd, row_stats};
use ragen_models::ops::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd, rmsnorm_gain_bwd};
use ragen_models::ops::pointwise::{swiglu_bwd, swiglu_fwd};
use ragen_models::ops::rope::{RopeTable, rope};
use ragen_models::random::Key;
use ragen_models::sampler::{Sampling, Scratch};
use ragen_models::token_tree::TokenTree;

const ROWS: usize = 2048;
const D: usize = 128;
const FF: usize = 512;

fn random(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| Key::new(seed).normal(i as u64) as f32).collect()
}

fn ops(c: &mut Criterion) {
    let cpu = Cpu::new(0).expect("RAGEN_ISA is unset or names a path of this machine");
    let mut group = c.benchmark_group("op");
    group.throughput(Throughput::Elements(ROWS as u64));
    let (x, dy, gain) = (random(1, ROWS * D), random(2, ROWS * D), random(3, D));
    let (mut y, mut rstd, mut dgain) = (vec![0.0; ROWS * D], vec![0.0; ROWS], vec![0.0; D]);
    let layout = Layout::plain(ROWS, D);
    group
        .bench_function("rmsnorm_fwd", |b| b.iter(|| rmsnorm_fwd(&cpu, &mut y, D, &mut rstd, &x, &gain, 1e-6, layout)));
    group.bench_function("rmsnorm_bwd", |b| b.iter(|| rmsnorm_bwd(&cpu, &mut y, &dy, D, &rstd, &x, &gain, layout)));
    group.bench_function("rmsnorm_gain_bwd", |b| {
        b.iter(|| rmsnorm_gain_bwd(&cpu, &mut dgain, &dy, D, &rstd, &x, layout));
    });

    let (gate_up, da) = (random(4, ROWS * 2 * FF), random(5, ROWS * FF));
    let (mut a, mut dgate_up) = (vec![0.0; ROWS * FF], vec![0.0; ROWS * 2 * FF]);
    group.bench_function("swiglu_fwd", |b| b.iter(|| swiglu_fwd(&cpu, &mut a, &gate_up, FF)));
    group.bench_function("swiglu_bwd", |b| b.iter(|| swiglu_bwd(&cpu, &mut dgate_up, &da, &gate_up, FF)));

    let heads = Heads { n_heads: 4, n_kv_heads: 4, head_dim: 32 };
    let tree = TokenTree::from_rows(&vec![vec![0u32; 256]; ROWS / 256]);
    let mut qkv = random(6, ROWS * heads.row());
    let table = RopeTable::new(&Rope::plain(10_000.0), 32, 256, 256);
    let positions = tree.positions();
    group.bench_function("rope", |b| {
        b.iter(|| rope(&cpu, &mut qkv, heads.row(), 0, heads.n_heads, &positions, &table, 1.0, false));
    });
    let (mut out, mut dqkv) = (vec![0.0; ROWS * D], vec![0.0; ROWS * heads.row()]);
    group.bench_function("attention_fwd", |b| b.iter(|| attention_fwd(&cpu, &mut out, &qkv, &tree, heads, None)));
    group.bench_function("attention_bwd", |b| {
        b.iter(|| attention_bwd(&cpu, &mut dqkv, &dy, &out, &qkv, &tree, heads, None))
    });
    group.finish();

    let mut group = c.benchmark_group("row of logits");
    for vocab in [352, 50_000, 150_000] {
        let logits = random(7, vocab);
        let mut row = logits.clone();
        let mut scratch = Scratch::default();
        group.throughput(Throughput::Elements(vocab as u64));
        group.bench_function(format!("stats {vocab}"), |b| b.iter(|| row_stats(cpu.isa, &logits, 1.0)));
        let stats = row_stats(cpu.isa, &logits, 1.0);
        let seeds = RowSeeds { logp: 1.0, entropy: 0.1 };
        group.bench_function(format!("backward {vocab}"), |b| {
            b.iter(|| {
                row.copy_from_slice(&logits);
                row_bwd(cpu.isa, &mut row, &stats, 3, None, seeds);
            });
        });
        for (name, sampling) in [
            ("plain", Sampling::default()),
            ("top-p 0.9", Sampling { top_p: 0.9, ..Sampling::default() }),
            ("top-k 50", Sampling { top_k: 50, ..Sampling::default() }),
        ] {
            group.bench_function(format!("draw {name} {vocab}"), |b| {
                b.iter(|| sampling.draw(cpu.isa, &logits, 0.7, &mut scratch).map_or(0, |d| d.id));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = ops
}
criterion_main!(benches);

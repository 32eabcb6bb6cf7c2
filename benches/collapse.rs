//! The collapse detector at 64 prompts × 64 reasonings: its statistics, and the scores of the shipped Sokoban model's shape with
//! prompts computed once, and once for every reasoning.
//!
//!     cargo bench --bench collapse

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ragen::collapse::{CollapseConfig, CrossScores, RunningSpread, measure};
use ragen::policy::model::Model;
use ragen::policy::{Policy, Row, Weights};
use ragen_models::config::{Config, Family, Rope};
use ragen_models::device::Cpu;
use ragen_models::optim::AdamWSettings;
use ragen_models::random::Key;
use ragen_models::transformer::{Precision, Transformer};
use std::sync::Arc;

const N: usize = 64;
/// Tokens that all prompts begin with, those of each alone, and those of a reasoning: a first turn of the small model.
const SHAPES: [(&str, usize, usize, usize); 2] = [("compact", 4, 51, 9), ("full prompt", 180, 60, 60)];

fn model(positions: usize) -> Model {
    let shape = Config {
        family: Family::of(false, false),
        vocab: 352,
        d_model: 96,
        n_layers: 3,
        n_heads: 4,
        n_kv_heads: 4,
        head_dim: 24,
        d_ff: 256,
        rope: Rope::plain(500.0),
        sliding_window: None,
        norm_eps: 1e-6,
        tied_embeddings: false,
        qkv_bias: false,
        qk_norm: false,
        value_head: false,
        max_positions: positions,
    };
    let cpu = Arc::new(Cpu::new(0).expect("RAGEN_ISA is unset or names a path of this machine"));
    let params = Transformer::initial(&shape, 1);
    Model::new(cpu, shape, params, Precision::F32, AdamWSettings::default())
}

fn collapse(c: &mut Criterion) {
    let key = Key::new(1);
    let random = |n: usize, from: usize| (0..n).map(|i| key.below((from + i) as u64, 340) as u32).collect::<Vec<_>>();
    let sums: Vec<f64> = (0..N * N).map(|i| -20.0 * key.uniform(i as u64)).collect();
    let own: Vec<usize> = (0..N).collect();
    let scores = CrossScores { sums: &sums, lengths: &[9; N], own: &own, input: &own };
    let mut group = c.benchmark_group("collapse 64 x 64");
    group.bench_function("statistics", |b| {
        b.iter(|| measure("", &scores, &CollapseConfig::default(), &mut RunningSpread::default()));
    });
    group.sample_size(10);
    for (name, common, prompt, reasoning) in SHAPES {
        let mut policy = model(common + prompt + reasoning);
        let head = random(common, 1);
        let mut sequences = Vec::new();
        for x in 0..N {
            let x = [head.clone(), random(prompt, 1000 * (x + 1))].concat();
            for z in 0..N {
                let targets: Vec<u32> = (x.len() as u32..(x.len() + reasoning) as u32).collect();
                sequences.push(([x.clone(), random(reasoning, 100_000 * (z + 1))].concat(), targets));
            }
        }
        let rows: Vec<Row<'_>> = sequences.iter().map(|(ids, targets)| Row { ids, targets, kept: &[] }).collect();
        group.throughput(Throughput::Elements((N * N * reasoning) as u64));
        // Long prompts apart take a minute.
        let ways: &[bool] = if name == "compact" { &[true, false] } else { &[true] };
        for &share in ways {
            policy.share_prefix = share;
            let tokens: usize = rows.chunks(4 * N).map(|rows| policy.tokens_to_score(rows).unwrap_or(0)).sum();
            let how = if share { "shared" } else { "apart" };
            group.bench_function(format!("{name}, prompts {how}, {tokens} tokens"), |b| {
                b.iter(|| {
                    // Four prompts a forward.
                    for rows in rows.chunks(4 * N) {
                        policy.score(Weights::Policy, rows, 1.0).expect("rows of this model");
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, collapse);
criterion_main!(benches);

//! The fast engine against its f64 twin, and against itself: alone, batched, packed, prefix-shared, cached, on every
//! instruction path and with one or more threads.

mod tiny_models;

use ragen_models::config::{Rope, RopeScaling};
use ragen_models::device::Cpu;
use ragen_models::kv_cache::CacheId;
use ragen_models::ops::head::{PerTarget, Target, row_stats};
use ragen_models::ops::rope::{RopeTable, rope as ops_rope};
use ragen_models::random::Key;
use ragen_models::simd::Isa;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Append, Gradients, Precision, Transformer};
use ragen_models::twin;
use std::collections::BTreeMap;
use tiny_models::*;

/// Every instruction path with every precision.
fn paths() -> Vec<(Isa, Precision)> {
    let both = |isa| [(isa, Precision::F32), (isa, Precision::Bf16)];
    Isa::available().into_iter().flat_map(both).collect()
}

#[test]
fn agrees_with_the_twin_forward_and_backward() {
    for kind in 0..KINDS {
        let config = config(kind);
        let params = weights(&config);
        let tree = branching(config.vocab, [37, 30, 5, 70, 64]);
        let targets = targets(&tree, config.vocab);
        let seeds = seeds(targets.len(), config.value_head);
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();

        let data = twin::model::convert::<f64>(&params);
        let oracle = twin::model::Model { config: &config, table: &params.table, weights: &data };
        let oracle_acts = oracle.forward(&tree);
        let scores = oracle.score(&oracle_acts, &targets, 0.7);
        let oracle_seeds =
            PerTarget { logp: wide(&seeds.logp), entropy: wide(&seeds.entropy), value: wide(&seeds.value) };
        let mut oracle_grads = vec![0.0; data.len()];
        // The fast engine takes the temperature as the f32 nearest to 0.7.
        let t = f64::from(0.7f32);
        oracle.backward(&tree, &oracle_acts, &targets, t, &oracle_seeds, &mut oracle_grads);

        for (isa, precision) in paths() {
            // bf16 has 8 bits: a rounding is within 2^-9 of its number, and errors of many of them add up.
            let near = |what: &str, got: &[f32], want: &[f64], f32_tolerance: f64, bf16_tolerance: f64| {
                let tolerance = if precision == Precision::F32 { f32_tolerance } else { bf16_tolerance };
                assert_near(&format!("{precision:?} {what}"), got, want, tolerance);
            };
            let cpu = Cpu::with(isa, 2);
            let model = Transformer::new(&cpu, config.clone(), params.clone(), precision);
            let mut acts = Activations::default();
            model.forward(&cpu, &tree, &mut acts, true);
            let rows: Vec<usize> = (0..tree.rows()).collect();
            near("logits", &model.logits(&cpu, &acts, &rows), &oracle.logits(&oracle_acts), 1e-5, 2e-2);
            let values = model.values(&cpu, &acts, &targets, 0.7);
            near("logp", &values.logp, &scores.logp, 1e-5, 2e-2);
            near("entropy", &values.entropy, &scores.entropy, 1e-5, 2e-2);
            near("value", &values.value, &scores.value, 1e-5, 2e-2);
            let mut grads = Gradients::zeros(&model);
            model.backward(&cpu, &tree, &mut acts, &targets, 0.7, &seeds, &mut grads);
            let once = grads.total().data.clone();
            for entry in &params.table.entries {
                let what = format!("kind {kind}: gradient of {}", entry.name);
                near(&what, &once[entry.range()], &oracle_grads[entry.range()], 2e-5, 4e-2);
            }
            model.backward(&cpu, &tree, &mut acts, &targets, 0.7, &seeds, &mut grads);
            for (twice, once) in grads.total().data.iter().zip(&once) {
                assert!((twice - 2.0 * once).abs() <= 1e-5 * once.abs().max(1.0), "a backward adds");
            }
        }
    }
}

#[test]
fn every_kind_of_rope_turns_as_in_the_twin_far_out_too() {
    let dynamic = RopeScaling::Dynamic { factor: 2.0 };
    for scaling in (2..KINDS).map(scaling).chain([dynamic]) {
        let rope = Rope { theta: 5e5, scaling };
        let (heads, hd, positions) = (2, 24, [0u32, 5, 255, 256, 4095]);
        let x: Vec<f32> = (0..positions.len() * heads * hd).map(|i| Key::new(3).normal(i as u64) as f32).collect();
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let want = twin::rope_fwd(&wide, &positions, &twin::Rotation::new(&rope, hd, 2048, 4096));
        let table = RopeTable::new(&rope, hd, 2048, 4096);
        for isa in Isa::available() {
            let mut got = x.clone();
            ops_rope(&Cpu::with(isa, 2), &mut got, heads * hd, 0, heads, &positions, &table, 1.0, false);
            // A frequency is off by a unit in the last place at most, which 4095 positions make 5e-4 of a radian where it is near 1.
            assert_near(&format!("{:?}", rope.scaling), &got, &want, 5e-4);
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn log_probabilities_are_equal_in_every_bit_however_they_are_computed() {
    for kind in 0..KINDS {
        check_log_probabilities(kind, Precision::F32);
    }
    // Attention and RoPE know no precision, so that one kind with a window is enough.
    for kind in 0..=3 {
        check_log_probabilities(kind, Precision::Bf16);
    }
}

fn check_log_probabilities(kind: usize, precision: Precision) {
    let config = config(kind);
    let params = weights(&config);
    // 32 sequences of odd lengths with a common prefix of 41 tokens; fewer where only attention and RoPE differ.
    let sequences = if kind < 3 { 32 } else { 9 };
    let prefix = ids(50, 41, config.vocab);
    let rows: Vec<Vec<u32>> = (0..sequences)
        .map(|i| [prefix.clone(), ids(60 + i, 5 + (i as usize * 7) % 60, config.vocab)].concat())
        .collect();
    let mut expected: Option<Vec<Vec<u32>>> = None;
    for isa in Isa::available() {
        for threads in [1, 2] {
            if (isa, precision, threads) == (Isa::Plain, Precision::Bf16, 1) {
                continue; // Slow, and with two threads it is compared with the others.
            }
            let cpu = Cpu::with(isa, threads);
            let model = Transformer::new(&cpu, config.clone(), params.clone(), precision);
            let mut acts = Activations::default();
            let mut score = |tree: &TokenTree, wanted: &[(usize, u32)]| {
                model.forward(&cpu, tree, &mut acts, false);
                let targets: Vec<Target> =
                    wanted.iter().map(|&(row, token)| Target { row, token, kept: None }).collect();
                bits(&model.values(&cpu, &acts, &targets, 0.7).logp)
            };
            let alone: Vec<Vec<u32>> = rows
                .iter()
                .map(|row| {
                    let wanted: Vec<_> = (41..row.len()).map(|t| (t - 1, row[t])).collect();
                    score(&TokenTree::from_rows(&[row]), &wanted)
                })
                .collect();
            let expected = expected.get_or_insert_with(|| alone.clone());
            assert_eq!(&alone, expected, "{isa:?}, {threads} threads, alone");
            for batch in [8, rows.len()] {
                let tree = TokenTree::from_rows(&rows[..batch]);
                let wanted: Vec<_> = rows[..batch]
                    .iter()
                    .zip(&tree.segments)
                    .flat_map(|(row, s)| (41..row.len()).map(move |t| (s.start + t - 1, row[t])))
                    .collect();
                assert_eq!(score(&tree, &wanted), expected[..batch].concat(), "{isa:?}, batch of {batch}");
            }
            let mut tree = TokenTree::new();
            let root = tree.push(None, &prefix);
            let mut wanted = Vec::new();
            for row in &rows {
                let s = tree.push(Some(root), &row[41..]);
                let start = tree.segments[s].start;
                wanted.push((40, row[41]));
                wanted.extend((42..row.len()).map(|t| (start + t - 42, row[t])));
            }
            assert_eq!(score(&tree, &wanted), expected.concat(), "{isa:?}, prefix shared");

            // Decoded: prefill of the prefix, shared by all, then token by token, all sequences at once.
            let mut cache = model.new_cache(&cpu);
            let first = cache.open();
            let mut logits = Vec::new();
            model.extend(&cpu, &mut cache, &[Append { id: first, tokens: &prefix }], &mut logits);
            let sequences: Vec<CacheId> = rows
                .iter()
                .map(|_| {
                    let id = cache.open();
                    cache.share(id, first);
                    id
                })
                .collect();
            let logp = |logits: &[f32], token: u32| row_stats(isa, logits, 0.7).logp(logits[token as usize]).to_bits();
            let mut decoded: Vec<Vec<u32>> = rows.iter().map(|row| vec![logp(&logits, row[41])]).collect();
            for t in 41..rows.iter().map(Vec::len).max().unwrap() - 1 {
                let active: Vec<usize> = (0..rows.len()).filter(|&i| rows[i].len() > t + 1).collect();
                let appends: Vec<Append<'_>> =
                    active.iter().map(|&i| Append { id: sequences[i], tokens: &rows[i][t..t + 1] }).collect();
                model.extend(&cpu, &mut cache, &appends, &mut logits);
                for (n, &i) in active.iter().enumerate() {
                    decoded[i].push(logp(&logits[n * config.vocab..][..config.vocab], rows[i][t + 1]));
                }
            }
            assert_eq!(&decoded, expected, "{isa:?}, {threads} threads, decoded");
        }
    }
}

#[test]
fn gradients_do_not_depend_on_threads_paths_micro_batches_or_recomputation() {
    for kind in 0..=3 {
        let config = config(kind);
        let params = weights(&config);
        let rows: Vec<Vec<u32>> = (0..8).map(|i| ids(60 + i, 5 + (i as usize * 17) % 60, config.vocab)).collect();
        // By precision and, as bf16 takes rows in pairs, by how the rows were cut: then equal up to rounding only.
        let mut expected: BTreeMap<(bool, usize), Vec<u32>> = BTreeMap::new();
        for (isa, precision) in paths() {
            for threads in [1, 2] {
                let cpu = Cpu::with(isa, threads);
                let model = Transformer::new(&cpu, config.clone(), params.clone(), precision);
                for (micro, recompute) in [(1, true), (2, false), (4, true), (8, false), (8, true)] {
                    let mut grads = Gradients::zeros(&model);
                    let mut acts = Activations::default();
                    acts.recompute = recompute;
                    for (m, rows) in rows.chunks(micro).enumerate() {
                        let tree = TokenTree::from_rows(rows);
                        model.forward(&cpu, &tree, &mut acts, true);
                        let targets: Vec<Target> = tree
                            .segments
                            .iter()
                            .flat_map(|s| s.rows().skip(1))
                            .map(|row| Target { row: row - 1, token: tree.ids[row], kept: None })
                            .collect();
                        // The seed of a token depends on the token only, not on where its micro-batch starts.
                        let logp = targets.iter().map(|t| (t.token as f32).sin()).collect();
                        let entropy = vec![0.01; targets.len()];
                        let value = if config.value_head { vec![0.1; targets.len()] } else { vec![] };
                        assert!(m < 8);
                        let seeds = PerTarget { logp, entropy, value };
                        model.backward(&cpu, &tree, &mut acts, &targets, 1.0, &seeds, &mut grads);
                    }
                    let got = bits(&grads.total().data);
                    let cut = if precision == Precision::F32 { 0 } else { micro };
                    let expected = expected.entry((cut > 0, cut)).or_insert_with(|| got.clone());
                    for entry in &params.table.entries {
                        let same = got[entry.range()] == expected[entry.range()];
                        assert!(
                            same,
                            "{}: {precision:?}, {isa:?}, {threads} threads, micro-batches of {micro}",
                            entry.name
                        );
                    }
                }
            }
        }
    }
}

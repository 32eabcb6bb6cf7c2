//! Steps a second of the puzzles on one core, without and with the text of the observation after each step.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ragen_envs::{Demonstration, Env, Mode, Stream, make};
use serde_json::{Value, json};
use std::hint::black_box;

/// The player's actions of an episode.
fn episode(env: &mut dyn Env, seed: u64) -> Vec<String> {
    env.reset(seed, 0, Mode::Train).unwrap();
    let mut actions = Vec::new();
    while let Some(turn) = env.demonstrate(&Demonstration::perfect(1), &mut Stream::new(seed)) {
        turn.actions.iter().for_each(|action| drop(env.step(action).unwrap()));
        actions.extend(turn.actions);
    }
    actions
}

/// Plays one recorded episode again and again; what is measured are the steps alone.
fn play(criterion: &mut Criterion, env_type: &str, config: Value) {
    let mut env = make(env_type, &config).unwrap();
    let actions = episode(env.as_mut(), 1);
    let mut group = criterion.benchmark_group(env_type);
    group.throughput(Throughput::Elements(actions.len() as u64));
    for (name, is_shown) in [("steps", false), ("steps_and_text", true)] {
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || {
                    let mut env = make(env_type, &config).unwrap();
                    env.reset(1, 0, Mode::Train).unwrap();
                    env
                },
                |env| {
                    for action in &actions {
                        black_box(env.step(action).unwrap());
                        if is_shown {
                            black_box(env.observation());
                        }
                    }
                },
                criterion::BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn puzzles(criterion: &mut Criterion) {
    play(criterion, "countdown", json!({"backend": "embedded"}));
    play(criterion, "game_2048", Value::Null);
    play(criterion, "metamathqa", json!({"backend": "embedded"}));
    play(criterion, "rubikscube", json!({"scramble_depth": 3}));
    play(criterion, "sudoku", json!({"grid_size": 9, "difficulty": "easy"}));
}

criterion_group!(benches, puzzles);
criterion_main!(benches);

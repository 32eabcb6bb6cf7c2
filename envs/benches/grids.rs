//! Steps a second of the grids on one core, without and with the observation as text; and resets.
//!
//! The walk goes round in a circle and never waits for an end: a step after the end is a step like any other.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ragen_envs::{Env, Mode, make};
use serde_json::json;
use std::hint::black_box;

/// Steps of one measurement.
const STEPS: usize = 1000;
const MOVES: [&str; 8] = ["Up", "Right", "Down", "Left", "Left", "Down", "Right", "Up"];

fn walk(env: &mut dyn Env, looks: bool) -> f64 {
    let mut sum = 0.0;
    for i in 0..STEPS {
        let step = env.step(MOVES[i % MOVES.len()]).expect("a step");
        sum += step.reward;
        if looks {
            black_box(env.observation());
        }
    }
    sum
}

fn grids(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("grids");
    group.throughput(Throughput::Elements(STEPS as u64));
    for (env_type, config) in [
        ("sokoban", json!({"dim_room": [6, 6], "num_boxes": 1, "max_steps": 1_000_000})),
        ("frozen_lake", json!({"size": 4})),
    ] {
        let mut env = make(env_type, &config).expect("an environment");
        env.reset(1, 0, Mode::Train).expect("a level");
        for (name, looks) in [("steps", false), ("steps with text", true)] {
            group.bench_function(format!("{env_type} {name}"), |bench| bench.iter(|| walk(env.as_mut(), looks)));
        }
    }
    group.throughput(Throughput::Elements(256));
    let mut env = make("sokoban", &json!({"dim_room": [6, 6], "num_boxes": 1})).expect("an environment");
    group.bench_function("sokoban 256 resets", |bench| {
        bench.iter(|| (0..256).for_each(|seed| env.reset(seed, 0, Mode::Train).expect("a level")));
    });
    group.finish();
}

criterion_group!(benches, grids);
criterion_main!(benches);

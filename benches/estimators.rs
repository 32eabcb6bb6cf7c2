//! Estimators and the objective on a step of 64 groups of 16 trajectories, five turns of 60 tokens each.
//!
//!     cargo bench --bench estimators

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ragen::estimator::{AlgorithmConfig, Estimator, Inputs, Scored, Turn, estimate};
use ragen::objective::{LossConfig, LossMetrics, Objective, PolicyLoss, Targets};
use ragen::policy::TokenValues;
use ragen::reward::Placement;
use ragen_models::random::Key;

const GROUPS: usize = 64;
const MEMBERS: usize = 16;
const TURNS: usize = 5;
const TOKENS: usize = 60;

fn trajectories() -> Vec<Scored> {
    let turn = |key: Key, k: u64| Turn { n_tokens: TOKENS, reward: key.normal(k), state: key.below(100 + k, 8) as u64 };
    let of = |i: usize| {
        let turns: Vec<Turn> = (0..TURNS as u64).map(|k| turn(Key::new(i as u64), k)).collect();
        Scored { group: i / MEMBERS, score: turns.iter().map(|turn| turn.reward).sum(), turns, truncated: false }
    };
    (0..GROUPS * MEMBERS).map(of).collect()
}

fn estimators(c: &mut Criterion) {
    let trajectories = trajectories();
    let n = GROUPS * MEMBERS * TURNS * TOKENS;
    let draw = |name: &str| (0..n).map(|t| Key::new(1).named(name).normal(t as u64) as f32).collect::<Vec<f32>>();
    let values = draw("values");
    let mut group = c.benchmark_group("estimator");
    group.throughput(Throughput::Elements(n as u64));
    for estimator in Estimator::ALL {
        for placement in [Placement::Trajectory, Placement::Turn] {
            let config = AlgorithmConfig { estimator, ..AlgorithmConfig::default() };
            let inputs = Inputs { trajectories: &trajectories, placement, extra: &[], values: &values };
            group.bench_function(format!("{estimator:?} by {placement:?}"), |b| b.iter(|| estimate(&config, &inputs)));
        }
    }
    group.finish();

    let mut group = c.benchmark_group("objective");
    group.throughput(Throughput::Elements(n as u64));
    let lengths = vec![TURNS * TOKENS; GROUPS * MEMBERS];
    let advantage: Vec<f64> = draw("advantage").into_iter().map(f64::from).collect();
    let (old_logp, reference_logp) = (draw("old"), draw("reference"));
    let now = TokenValues { logp: draw("now"), entropy: vec![1.0; n], value: Vec::new() };
    for policy in [PolicyLoss::Ppo, PolicyLoss::Gspo, PolicyLoss::Cispo] {
        let config = LossConfig { policy, ..LossConfig::default() };
        let targets = Targets {
            lengths: &lengths,
            old_logp: &old_logp,
            advantage: &advantage,
            reference_logp: &reference_logp,
            ..Targets::default()
        };
        let objective = Objective::new(&config, targets, TURNS * TOKENS).expect("lengths that fit");
        group.bench_function(format!("{policy:?} with a reference"), |b| {
            b.iter(|| objective.evaluate(0..lengths.len(), &now, &mut LossMetrics::default()));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = estimators
}
criterion_main!(benches);

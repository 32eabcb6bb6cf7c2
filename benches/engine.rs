//! The engine as a whole at the shape of the small model: a training step, decoding, and the environments.
//!
//!     cargo bench --bench engine

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ragen::bench::{Decode, Train, small};
use ragen_envs::Mode;
use ragen_models::device::Cpu;
use ragen_models::random::Key;

fn engine(c: &mut Criterion) {
    let cpu = Cpu::new(0).expect("RAGEN_ISA is unset or names a path of this machine");
    let mut group = c.benchmark_group("small model");
    let mut train = Train::new(&cpu, &small(), 32, 256);
    group.throughput(Throughput::Elements(32 * 256));
    group.bench_function("train 32 x 256 tokens", |b| b.iter(|| train.step(&cpu, 8)));
    for (groups, members) in [(64, 1), (8, 8)] {
        let mut decode = Decode::new(&cpu, &small(), groups, members, 128, 128);
        group.throughput(Throughput::Elements((groups * members * 128) as u64));
        group.bench_function(format!("decode {groups} prompts x {members}"), |b| b.iter(|| decode.run(&cpu)));
    }
    group.finish();

    let mut group = c.benchmark_group("environment step");
    for tag in ["SimpleSokoban", "FrozenLake"] {
        let tag = ragen_envs::tag(tag).expect("a shipped tag");
        let mut env = ragen_envs::make(&tag.env_type, &tag.config).expect("a shipped configuration");
        env.reset(1, 0, Mode::Train).expect("a level");
        let actions = env.actions().expect("named actions");
        let mut i = 0;
        group.throughput(Throughput::Elements(1));
        for observe in [false, true] {
            let name = format!("{}{}", tag.name, if observe { " with its text" } else { "" });
            group.bench_function(name, |b| {
                b.iter(|| {
                    i += 1;
                    let step = env.step(&actions[Key::new(6).below(i, actions.len())]).expect("a step");
                    if step.terminated || step.truncated {
                        env.reset(1, 0, Mode::Train).expect("a level");
                    }
                    if observe { env.observation().len() } else { 0 }
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = engine
}
criterion_main!(benches);

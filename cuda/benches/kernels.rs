//! Every kernel of the manifest at the 0.5B shape, timed by the device's own clock, in bf16 and in f32.
//!
//!     cargo bench -p ragen-cuda                     on the CUDA device that is there
//!     cargo bench -p ragen-cuda -- --test           once each at a tiny shape, on the emulator where there is no device

use criterion::{Criterion, Throughput};
use half::bf16;
use ragen_cuda::kernels::Shape;
use ragen_cuda::trial::trials;
use ragen_cuda::{CudaError, Element, Gpu};
use std::time::Duration;

fn main() {
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    // As criterion decides it: `cargo bench` says --bench, and --test asks for a try.
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let only_try = has("--test") || !has("--bench");
    let gpu = match Gpu::open(0) {
        Err(error) if only_try => {
            println!("{error}; trying the kernels on the emulator");
            Gpu::emulated()
        }
        result => result,
    };
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => {
            return println!("skipped: {error}, and time means nothing on the emulator (-- --test tries them there)");
        }
    };
    let shape = if only_try { Shape::tiny } else { Shape::half_billion };
    let result = bench::<bf16>(&mut criterion, &gpu, "bf16", &shape(2))
        .and_then(|()| bench::<f32>(&mut criterion, &gpu, "f32", &shape(4)));
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
    criterion.final_summary();
}

fn bench<E: Element>(criterion: &mut Criterion, gpu: &Gpu, element: &str, shape: &Shape) -> Result<(), CudaError> {
    let mut group = criterion.benchmark_group(element);
    for trial in trials::<E>() {
        group.throughput(Throughput::Bytes(trial.work(shape).bytes as u64));
        let (mut run, mut failure) = (trial.prepare(gpu, shape)?, None);
        group.bench_function(trial.name, |bencher| {
            bencher.iter_custom(|times| {
                let timed = gpu.time_ms(&mut || (0..times).try_for_each(|_| run(gpu)));
                let ms = timed.and_then(|ms| gpu.synchronize().map(|()| ms)).unwrap_or_else(|error| {
                    failure = Some(error);
                    None
                });
                Duration::from_secs_f32(ms.unwrap_or(1.0) / 1e3)
            });
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    group.finish();
    Ok(())
}

//! The matrix product in every layout; with `--features peers` beside the crate `gemm` in the same run.
//!
//!     cargo bench --features peers --bench products

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ragen::bench::{Order, Product};
use ragen_models::device::Cpu;
use ragen_models::transformer::Precision;

fn products(c: &mut Criterion) {
    let cpu = Cpu::new(0).expect("RAGEN_ISA is unset or names a path of this machine");
    let mut group = c.benchmark_group("product");
    for (m, k, n) in [(1024, 576, 1536), (256, 576, 1536), (4096, 128, 512), (32, 576, 1536)] {
        // Elements are floating-point operations, so the report's rate is FLOP/s.
        group.throughput(Throughput::Elements(2 * (m * k * n) as u64));
        let orders = [Order::Nn, Order::Nt, Order::NtPacked, Order::Tn];
        for (order, precision) in orders.into_iter().flat_map(|o| [(o, Precision::F32), (o, Precision::Bf16)]) {
            let mut product = Product::new(&cpu, m, k, n, order, precision);
            let name = format!("{m}x{k}x{n} {} {}", order.name(), precision.name());
            group.bench_function(BenchmarkId::new("ragen", &name), |b| b.iter(|| product.ours(&cpu)));
            #[cfg(feature = "peers")]
            if precision == Precision::F32 {
                group.bench_function(BenchmarkId::new("gemm", &name), |b| b.iter(|| product.peer(&cpu)));
            }
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = products
}
criterion_main!(benches);

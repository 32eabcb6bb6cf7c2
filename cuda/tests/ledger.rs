//! The machine that only counts.

use half::bf16;
use ragen_cuda::driver::{Driver, Kind, Ledger, Moved, Product};
use ragen_cuda::gemm::{Products, Write, linear_bwd_weight, linear_fwd};
use ragen_cuda::kernels::pointwise::swiglu_fwd;
use ragen_cuda::{Gpu, HeldBytes};
use std::collections::BTreeMap;

#[test]
fn memory_is_counted_by_name_now_and_at_most_as_the_driver_rounds_it() {
    let (gpu, ledger) = Gpu::counting();
    let large = gpu.buffer::<f32>("weights", 1 << 40).unwrap();
    let small = [gpu.buffer::<u8>("tables", 1).unwrap(), gpu.buffer::<u8>("tables", 513).unwrap()];
    let tables = 512 + 1024;
    assert_eq!(ledger.held(), ledger.most());
    assert_eq!(ledger.held().by_name, BTreeMap::from([("weights".into(), 4 << 40), ("tables".into(), tables)]));
    assert_eq!(gpu.held(), HeldBytes { now: (4 << 40) + tables, most: (4 << 40) + tables });
    drop(small);
    drop(gpu.buffer::<u8>("tables", 300).unwrap());
    assert_eq!((ledger.held().bytes, ledger.most().bytes), (4 << 40, (4 << 40) + tables));
    assert_eq!(gpu.memory().unwrap().0, gpu.memory().unwrap().1 - (4 << 40));
    drop(large);
    assert_eq!((ledger.held().bytes, gpu.held().now), (0, 0));
    assert_eq!(ledger.counts().allocations, 4);
    // Large ones are whole pages.
    let (_, ledger) = Gpu::counting();
    assert_eq!([1, 512, 1 << 20, (2 << 20) + 1].map(|n| ledger.taken(n)), [512, 512, 2 << 20, 4 << 20]);
}

#[test]
fn buffers_are_aligned_and_apart() {
    let ledger = Ledger::new(1 << 30, |bytes| bytes);
    let at = [1, 255, 256, 257, 0, 1].map(|bytes| (ledger.allocate("b", bytes).unwrap(), bytes as u64));
    for pair in at.windows(2) {
        let [(a, bytes), (b, _)] = pair else { panic!() };
        assert!(*a > 0 && a % 256 == 0 && b > a && *b >= a + bytes);
    }
}

#[test]
fn a_step_is_counted_by_kernel_and_by_product() {
    let (gpu, ledger) = Gpu::counting();
    let (rows, d, ff) = (10, 16, 24);
    let x = gpu.upload("x", &vec![bf16::ONE; rows * d]).unwrap();
    let w = gpu.buffer::<bf16>("w", 2 * ff * d).unwrap();
    let mut y = gpu.buffer::<bf16>("y", rows * 2 * ff).unwrap();
    let mut a = gpu.buffer::<bf16>("a", rows * ff).unwrap();
    let mut dw = gpu.zeros::<f32>("dw", 2 * ff * d).unwrap();
    let before = ledger.counts();
    for _ in 0..3 {
        linear_fwd(&gpu, Products::Library, y.view_mut(), x.view(), w.view(), d, Write::Scaled(1.0)).unwrap();
        swiglu_fwd(&gpu, a.view_mut(), y.view(), ff).unwrap();
    }
    linear_bwd_weight(&gpu, Products::Library, dw.view_mut(), y.view(), x.view(), d).unwrap();
    assert_eq!(gpu.to_vec(a.slice(0..5)).unwrap(), [bf16::ZERO; 5]);
    let counts = &ledger.counts() - &before;
    assert_eq!(counts.launches, BTreeMap::from([("swiglu_fwd".into(), 3)]));
    let types =
        |input, output, adds| Product { m: rows, n: 2 * ff, k: d, transposed: (false, true), input, output, adds };
    let forward = types(Kind::Bf16, Kind::Bf16, false);
    let backward =
        Product { m: 2 * ff, n: d, k: rows, transposed: (true, false), ..types(Kind::Bf16, Kind::F32, true) };
    assert_eq!(counts.products, BTreeMap::from([(forward, 3), (backward, 1)]));
    let flops = 2 * rows * 2 * ff * d;
    assert_eq!(counts.product_flops(), (4 * flops) as f64);
    let forward_bytes = 2 * (rows * d + 2 * ff * d + rows * 2 * ff);
    let backward_bytes = 2 * (rows * d + rows * 2 * ff) + 8 * 2 * ff * d;
    assert_eq!(counts.product_bytes(), (3 * forward_bytes + backward_bytes) as f64);
    assert_eq!((counts.kernel_launches(), counts.product_calls(), counts.allocations), (3, 4, 0));
    assert_eq!(counts.downloads, Moved { times: 1, bytes: 10 });
    assert_eq!((counts.uploads, counts.zeros), (Moved::default(), Moved::default()));
    assert_eq!((before.uploads.bytes, before.zeros.bytes), (2 * (rows * d) as u64, 4 * (2 * ff * d) as u64));
    // What is recorded counts when it is replayed.
    let before = ledger.counts();
    let recording = gpu.record(&mut || {
        linear_fwd(&gpu, Products::Library, y.view_mut(), x.view(), w.view(), d, Write::Scaled(1.0))?;
        swiglu_fwd(&gpu, a.view_mut(), y.view(), ff)?;
        gpu.zero(dw.view_mut())
    });
    let recording = recording.unwrap();
    assert_eq!(ledger.counts(), before);
    // SAFETY: all buffers are alive.
    unsafe { recording.replay().and_then(|()| recording.replay()) }.unwrap();
    let counts = &ledger.counts() - &before;
    assert_eq!((counts.replays, &counts.launches["swiglu_fwd"], &counts.products[&forward]), (2, &2, &2));
    assert_eq!(counts.zeros, Moved { times: 2, bytes: 2 * 4 * (2 * ff * d) as u64 });
    assert!(gpu.record(&mut || gpu.buffer::<f32>("b", 1).map(drop)).is_err());
    // Our own kernel multiplies by launches.
    let before = ledger.counts();
    linear_fwd(&gpu, Products::Invariant, y.view_mut(), x.view(), w.view(), d, Write::Scaled(1.0)).unwrap();
    assert_eq!((&ledger.counts() - &before).launches, BTreeMap::from([("gemm_nt_few".into(), 1)]));
}

#[test]
fn a_recording_that_panics_leaves_the_machine_as_it_was() {
    let (gpu, ledger) = Gpu::counting();
    let mut buffer = gpu.buffer::<f32>("b", 8).unwrap();
    let before = ledger.counts();
    let broken = std::panic::AssertUnwindSafe(|| {
        gpu.record(&mut || {
            gpu.zero(buffer.view_mut())?;
            panic!("in the middle of it")
        })
        .map(drop)
    });
    assert!(std::panic::catch_unwind(broken).is_err());
    assert_eq!(ledger.counts(), before, "nothing of it is counted");
    let recording = gpu.record(&mut || gpu.zero(buffer.view_mut())).unwrap();
    assert_eq!(gpu.to_vec(buffer.view()).unwrap(), [0.0; 8], "what waits for the device is allowed again");
    // SAFETY: the buffer is alive.
    unsafe { recording.replay() }.unwrap();
    assert_eq!((&ledger.counts() - &before).zeros, Moved { times: 1, bytes: 32 });
}

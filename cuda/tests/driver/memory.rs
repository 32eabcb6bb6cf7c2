//! Device memory: what crosses, what is asked of the driver in which order, and what is said when it runs out.

use super::{ask, told};
use ragen_cuda::{CudaError, Gpu};
use std::path::Path;

/// What was called for memory since the last time.
fn calls(folder: &Path) -> String {
    told(folder, b"fake_memory_calls")
}

/// What crosses between host and device, and memory that runs out.
pub fn crossing(gpu: &Gpu) {
    // Small ones pass through memory of the driver's own, a few times around; the large one does not.
    for (len, times) in [(1, 3), (700_000, 20), (3_000_000, 2)] {
        let mut buffers = Vec::new();
        for time in 0..times {
            // The data is gone when the driver comes to copy it, unless it was cared for.
            let data: Vec<u32> = (0..len).map(|i| i * 31 + time).collect();
            buffers.push(gpu.upload("numbers", &data).unwrap());
        }
        for (time, buffer) in (0..times).zip(&buffers) {
            let data = gpu.to_vec(buffer.view()).unwrap();
            assert!(data.iter().zip(0..len).all(|(x, i)| *x == i * 31 + time), "{len} numbers, time {time}");
        }
    }
    let from = gpu.upload("from", &[1.0_f32, 2.0, 3.0]).unwrap();
    let mut to = gpu.zeros::<f32>("to", 4).unwrap();
    gpu.copy(to.slice_mut(1..3), from.slice(1..3)).unwrap();
    assert_eq!(gpu.to_vec(to.view()).unwrap(), [0.0, 2.0, 3.0, 0.0]);

    let error = gpu.zeros::<u8>("far too much", 2 << 30).err().unwrap();
    let CudaError::Memory { what, wanted_bytes, free_bytes, total_bytes } = &error else { panic!("{error}") };
    assert_eq!((what.as_str(), *wanted_bytes, *total_bytes), ("far too much", 2 << 30, 1 << 30));
    assert!(*free_bytes < 1 << 30);
    assert!(gpu.memory().unwrap().0 > (1 << 30) - 1_000, "all but the two small ones was given back");
}

/// The words of a shortage: bytes wanted and free.
fn shortage(gpu: &Gpu, bytes: usize) -> (usize, usize) {
    match gpu.buffer::<u8>("too much", bytes).map(drop) {
        Err(CudaError::Memory { wanted_bytes, free_bytes, total_bytes: 0x4000_0000, .. }) => (wanted_bytes, free_bytes),
        other => panic!("{other:?}"),
    }
}

/// Memory comes from the pool and goes back to it in the order of the stream: nothing waits, until memory is short.
pub fn in_order(gpu: &Gpu, folder: &Path) {
    const MIB: usize = 1 << 20;
    gpu.synchronize().unwrap();
    calls(folder);
    let kept = gpu.upload("kept", &[1.0_f32, 2.0]).unwrap();
    let mut to = gpu.buffer::<f32>("to", 2).unwrap();
    {
        let mut between = gpu.buffer::<f32>("between", 2).unwrap();
        gpu.copy(between.view_mut(), kept.view()).unwrap();
        gpu.copy(to.view_mut(), between.view()).unwrap();
    }
    let next = gpu.buffer::<f32>("next", 2).unwrap();
    assert_eq!(calls(folder), "allocate, allocate, allocate, free, allocate");
    // The work that was started before `between` went still finds it.
    assert_eq!(gpu.to_vec(to.view()).unwrap(), [1.0, 2.0]);
    drop((kept, to, next));

    // What is freed is kept, and counts as free.
    let (free, total) = gpu.memory().unwrap();
    let large: Vec<_> = (0..3).map(|_| gpu.buffer::<u8>("large", 300 * MIB).unwrap()).collect();
    assert_eq!(gpu.memory().unwrap(), (free - 900 * MIB, total));
    drop(large);
    assert_eq!(gpu.memory().unwrap(), (free, total));
    calls(folder);
    drop(gpu.buffer::<u8>("large", 300 * MIB).unwrap());
    assert_eq!(calls(folder), "allocate, free");
    // No piece that is kept is large enough for this: they are made one again.
    let larger = gpu.buffer::<u8>("larger", 700 * MIB).unwrap();
    assert_eq!(calls(folder), "allocate, wait, trim, allocate");
    assert_eq!(gpu.memory().unwrap(), (free - 700 * MIB, total));
    assert_eq!(shortage(gpu, 400 * MIB), (400 * MIB, free - 700 * MIB));
    drop(larger);
    gpu.synchronize().unwrap();
    assert_eq!(shortage(gpu, 2 << 30), (2 << 30, free));
}

/// A device that has no pools is asked as devices were before there were any.
pub fn without_pools(folder: &Path) {
    ask(folder, "libcuda.so.1", "fake_without_pools");
    let gpu = Gpu::open(0).unwrap();
    calls(folder);
    let (free, total) = gpu.memory().unwrap();
    let buffer = gpu.zeros::<u8>("buffer", 1000).unwrap();
    assert_eq!(gpu.memory().unwrap(), (free - 1000, total));
    drop(buffer);
    assert_eq!(calls(folder), "plain allocate, wait, plain free");
    assert_eq!(shortage(&gpu, 2 << 30), (2 << 30, free));
    drop(gpu);
    assert_eq!(ask(folder, "libcuda.so.1", "fake_held"), 0);
}

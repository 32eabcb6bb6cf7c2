//! Recorded work: nothing happens until it is replayed, and then what would have happened.

use super::{emulator, place};
use ragen_cuda::driver::{Arg, Driver, Emulator, Kind, Launch, Matmul, Module, Source, Unit};
use ragen_cuda::{CudaError, Gpu};
use std::sync::Arc;

static SOURCE: Source = Source {
    file: "recordings.cu",
    text: "KERNEL(32) twice(float* x, u32 n) {\n    if (threadIdx.x < n) x[threadIdx.x] *= 2.0f; // mark: twice\n}\n",
};
static OTHER: Source =
    Source { file: "other.cu", text: "KERNEL(32) less(float* x) { if (threadIdx.x == 0) x[0] -= 1.0f; }\n" };

struct Bench {
    driver: Arc<Emulator>,
    gpu: Gpu,
    module: Module,
    x: u64,
}

impl Bench {
    fn new() -> Option<Bench> {
        let driver = Arc::new(emulator()?);
        let gpu = Gpu::over(driver.clone());
        let module = gpu.load(Unit { source: &SOURCE, element: Kind::F32, head_dim: 0 }).unwrap();
        let x = driver.allocate("x", 16).unwrap();
        Some(Bench { driver, gpu, module, x })
    }

    fn launch(&self, module: Module, kernel: &str, args: &[Arg]) -> Result<(), CudaError> {
        let launch = Launch { grid: [1; 3], threads: 32, shared_bytes: 0 };
        // SAFETY: what is wrong in these launches is what the emulator must find before harm is done.
        unsafe { self.driver.launch(module, kernel, launch, args) }
    }

    fn twice(&self, n: u32) -> Result<(), CudaError> {
        self.launch(self.module, "twice", &[Arg::Address(self.x), Arg::U32(n)])
    }

    fn set(&self, x: [f32; 4]) {
        self.driver.upload(self.x, bytemuck::bytes_of(&x)).unwrap();
    }

    fn get(&self) -> [f32; 4] {
        let mut x = [0.0; 4];
        self.driver.download(bytemuck::bytes_of_mut(&mut x), self.x).unwrap();
        x
    }

    /// The error of recording this work; afterwards the machine records and works as before.
    fn fails(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> String {
        let error = self.gpu.record(work).err().expect("this cannot be recorded").to_string();
        self.set([1.0, 2.0, 3.0, 4.0]);
        let recording = self.gpu.record(&mut || self.twice(2)).unwrap();
        assert_eq!(self.get(), [1.0, 2.0, 3.0, 4.0]);
        // SAFETY: x is alive.
        unsafe { recording.replay() }.unwrap();
        assert_eq!(self.get(), [2.0, 4.0, 3.0, 4.0], "after {error}");
        error
    }
}

#[test]
fn work_is_done_when_it_is_replayed() {
    let Some(bench) = Bench::new() else { return };
    let (gpu, driver) = (&bench.gpu, &bench.driver);
    let from = gpu.upload("from", &[5.0_f32, 6.0]).unwrap();
    let mut c = gpu.upload("c", &[7.0_f32; 6]).unwrap();
    let address = driver.allocate("matrices", 32).unwrap();
    driver.upload(address, bytemuck::cast_slice(&[1.0_f32, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0])).unwrap();
    let square = Matmul {
        m: 2,
        n: 2,
        k: 2,
        transpose_a: false,
        transpose_b: false,
        a: (address, 2),
        b: (address + 16, 2),
        c: (bench.x, 2),
        z: bench.x,
        input: Kind::F32,
        output: Kind::F32,
        alpha: 1.0,
        beta: 0.0,
    };
    bench.set([0.5; 4]);
    let recording = gpu.record(&mut || {
        // SAFETY: the matrices are there.
        assert!(unsafe { driver.matmul(&square) }?);
        // Loading goes on inside, also of what has to be compiled first.
        let other = gpu.load(Unit { source: &OTHER, element: Kind::F32, head_dim: 0 })?;
        bench.launch(other, "less", &[Arg::Address(bench.x)])?;
        bench.twice(3)?;
        gpu.zero(c.slice_mut(0..1))?;
        gpu.copy(c.slice_mut(1..3), from.view())
    });
    let recording = recording.unwrap();
    assert_eq!((bench.get(), gpu.to_vec(c.view()).unwrap()), ([0.5; 4], vec![7.0; 6]), "nothing is done by recording");
    for factor in [1.0_f32, 2.0] {
        // New contents at the same addresses.
        driver.upload(address, bytemuck::cast_slice(&[factor, 2.0, 3.0, 4.0])).unwrap();
        gpu.write(c.view_mut(), &[8.0; 6]).unwrap();
        // SAFETY: all memory is alive, and nobody borrows it.
        unsafe { recording.replay() }.unwrap();
        let want = [2.0 * (10.0 * factor + 60.0 - 1.0), 2.0 * 100.0, 2.0 * (30.0 * factor + 120.0), 220.0];
        assert_eq!(bench.get(), want);
        assert_eq!(gpu.to_vec(c.view()).unwrap(), [0.0, 5.0, 6.0, 8.0, 8.0, 8.0]);
    }
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let Some(bench) = Bench::new() else { return };
    let (gpu, driver) = (&bench.gpu, &bench.driver);
    let holds = "work is being recorded, and a recording holds launches, products, copies and zeros alone";
    let refused = |what: &str, call: &mut dyn FnMut() -> Result<(), CudaError>| {
        let error = bench.fails(call);
        assert!(error.starts_with(&format!("{what} failed: {holds}")), "{error}");
    };
    let nothing = gpu.record(&mut || Ok(())).unwrap();
    refused("allocation of 12 bytes for sums", &mut || gpu.buffer::<f32>("sums", 3).map(drop));
    refused("upload", &mut || driver.upload(bench.x, &[0; 4]));
    refused("download", &mut || driver.download(&mut [0; 4], bench.x));
    refused("synchronize", &mut || gpu.synchronize());
    refused("timing", &mut || gpu.time_ms(&mut || Ok(())).map(drop));
    // SAFETY: it names nothing.
    refused("replay", &mut || unsafe { nothing.replay() });
    assert!(bench.fails(&mut || gpu.record(&mut || Ok(())).map(drop)).contains("another recording is being made"));
    let there = || std::thread::scope(|scope| scope.spawn(|| bench.twice(1)).join().unwrap());
    assert!(bench.fails(&mut || there()).contains("another thread is recording"));

    let free = gpu.memory().unwrap();
    let mut buffer = Some(gpu.zeros::<f32>("buffer", 4).unwrap());
    let error = bench.fails(&mut || gpu.zero(buffer.take().unwrap().view_mut()));
    assert!(error.contains("memory was given back inside"), "{error}");
    assert_eq!(gpu.memory().unwrap(), free, "it was given back in the end");
}

#[test]
fn failures_leave_the_machine_usable() {
    let Some(bench) = Bench::new() else { return };
    let own = || CudaError::Unavailable { reason: "of the work itself".into() };
    bench.set([1.0; 4]);
    let failing = &mut || bench.twice(4).and(Err(own()));
    assert_eq!(bench.fails(failing), own().to_string());
    // A launch that no machine would do is found when it is put down.
    let error = bench.fails(&mut || bench.launch(bench.module, "twice", &[Arg::Address(bench.x)]));
    assert_eq!(error, "twice: launched with 1 arguments, it takes 2");
    assert!(
        bench.fails(&mut || bench.launch(bench.module, "thrice", &[])).contains("recordings.cu has no kernel thrice")
    );
    let broken = std::panic::AssertUnwindSafe(|| bench.gpu.record(&mut || panic!("in the middle of it")).map(drop));
    assert!(std::panic::catch_unwind(broken).is_err());
    bench.fails(&mut || Err(own()));
}

#[test]
fn faults_are_found_in_replayed_work() {
    let Some(bench) = Bench::new() else { return };
    bench.set([1.0; 4]);
    let too_far = bench.gpu.record(&mut || bench.twice(5).and_then(|()| bench.twice(1))).unwrap();
    // SAFETY: what is wrong in it is what the emulator must find before harm is done.
    let error = unsafe { too_far.replay() }.unwrap_err().to_string();
    assert!(
        error.starts_with("twice: block (0, 0, 0), thread 4: ") && error.contains("past the end of `x`"),
        "{error}"
    );
    assert!(error.contains(&place(&SOURCE, "twice")), "{error}");
    assert_eq!(bench.get()[0], 2.0, "what comes after a fault is not done");
    // Memory that is gone by then is found as well.
    let address = bench.driver.allocate("gone", 16).unwrap();
    let gone = bench.gpu.record(&mut || bench.driver.zero(address, 16)).unwrap();
    bench.driver.free(address);
    // SAFETY: as above.
    assert!(unsafe { gone.replay() }.unwrap_err().to_string().starts_with("zero failed: 16 bytes at 0x"));
}

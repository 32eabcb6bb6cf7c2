//! What is asked of the driver for a recording, also when something fails on the way.

use super::{KERNELS, calls};
use ragen_cuda::driver::{Arg, Driver, Kind, Launch, Module, Recorded, Unit};
use ragen_cuda::{CudaError, Gpu};
use std::path::Path;

/// A machine under test, and a number in its memory.
struct Bench<'a> {
    gpu: &'a Gpu,
    driver: &'a dyn Driver,
    module: Module,
    x: u64,
}

impl Bench<'_> {
    fn launch(&self, kernel: &str) -> Result<(), CudaError> {
        let launch = Launch { grid: [1; 3], threads: 64, shared_bytes: 0 };
        // SAFETY: `twice` takes a float, which x is; the others take nothing.
        unsafe { self.driver.launch(self.module, kernel, launch, &[Arg::Address(self.x)]) }
    }

    fn set(&self, x: f32) {
        self.driver.upload(self.x, bytemuck::bytes_of(&x)).unwrap();
    }

    fn get(&self) -> f32 {
        let mut x = 0.0_f32;
        self.driver.download(bytemuck::bytes_of_mut(&mut x), self.x).unwrap();
        x
    }

    /// The error of recording this work, and what was called for it; afterwards the machine records and works as before.
    fn fails(&self, folder: &Path, work: &mut dyn FnMut() -> Result<(), CudaError>) -> (String, String) {
        calls(folder);
        let error = self.gpu.record(work).err().expect("this cannot be recorded").to_string();
        let called = calls(folder);
        self.set(3.0);
        let recording = self.gpu.record(&mut || self.launch("twice")).unwrap();
        // SAFETY: x is alive.
        unsafe { recording.replay() }.unwrap();
        assert_eq!(self.get(), 6.0, "after {error}");
        (error, called)
    }
}

pub fn all(gpu: &Gpu, driver: &dyn Driver, folder: &Path) {
    let module = gpu.load(Unit { source: &KERNELS, element: Kind::F32, head_dim: 0 }).unwrap();
    let bench = Bench { gpu, driver, module, x: driver.allocate("x", 4).unwrap() };
    in_order(&bench, folder);
    failures(&bench, folder);
    refusals(&bench, folder);
    driver.free(bench.x);
}

fn in_order(bench: &Bench<'_>, folder: &Path) {
    let (gpu, driver) = (bench.gpu, bench.driver);
    bench.set(5.0);
    let (from, mut to) = (gpu.upload("from", &[1.0_f32, 2.0]).unwrap(), gpu.upload("to", &[7.0_f32; 4]).unwrap());
    calls(folder);
    let recording = gpu.record(&mut || {
        gpu.zero(to.slice_mut(0..1))?;
        gpu.copy(to.slice_mut(1..3), from.view())?;
        bench.launch("twice")
    });
    let recording = recording.unwrap();
    assert_eq!(calls(folder), "begin 2, end, instantiate 0, destroy", "2 is the relaxed mode");
    assert_eq!((bench.get(), gpu.to_vec(to.view()).unwrap()), (5.0, vec![7.0; 4]), "nothing is done by recording");
    for x in [5.0, 9.0] {
        bench.set(x);
        // SAFETY: x, `from` and `to` are alive.
        unsafe { recording.replay() }.unwrap();
        assert_eq!((bench.get(), gpu.to_vec(to.view()).unwrap()), (2.0 * x, vec![0.0, 1.0, 2.0, 7.0]));
    }
    assert_eq!(calls(folder), "launch, launch");
    drop(recording);
    assert_eq!(calls(folder), "forget");

    // A number of the driver's own: forgotten once, and not to be replayed after.
    let recorded = driver.record(&mut || Ok(())).unwrap();
    driver.forget(recorded);
    driver.forget(recorded);
    assert_eq!(calls(folder), "begin 2, end, instantiate 0, destroy, forget");
    for gone in [recorded, Recorded(9_999)] {
        // SAFETY: it names nothing.
        let error = unsafe { driver.replay(gone) }.unwrap_err().to_string();
        assert!(error.contains("replay failed: the recording was forgotten"), "{error}");
    }
    assert_eq!(calls(folder), "");
}

fn failures(bench: &Bench<'_>, folder: &Path) {
    let own = || CudaError::Unavailable { reason: "of the work itself".into() };
    let failing = &mut || bench.launch("twice").and(Err(own()));
    assert_eq!(bench.fails(folder, failing), (own().to_string(), "begin 2, end, destroy".into()));

    let (error, called) = bench.fails(folder, &mut || bench.launch("unrecordable"));
    assert!(
        error.contains("cuStreamEndCapture failed: operation failed due to a previous error during capture"),
        "{error}"
    );
    assert!(error.contains("something in it cannot be recorded"), "{error}");
    assert_eq!(called, "begin 2, end");

    let (error, called) = bench.fails(folder, &mut || bench.launch("unready"));
    assert!(error.contains("cuGraphInstantiate failed"), "{error}");
    assert_eq!(called, "begin 2, end, instantiate, destroy");

    let broken = std::panic::AssertUnwindSafe(|| bench.gpu.record(&mut || panic!("in the middle of it")).map(drop));
    assert!(std::panic::catch_unwind(broken).is_err());
    assert_eq!(calls(folder).rsplit_once("begin").unwrap().1, " 2, end, destroy");

    // A load inside is done, and breaks nothing.
    bench.set(1.0);
    let other = Unit { source: &KERNELS, element: Kind::Bf16, head_dim: 0 };
    let recording = bench.gpu.record(&mut || bench.gpu.load(other).and_then(|_| bench.launch("twice"))).unwrap();
    // SAFETY: x is alive.
    unsafe { recording.replay() }.unwrap();
    assert_eq!(bench.get(), 2.0);
}

/// What cannot be recorded never comes to the driver.
fn refusals(bench: &Bench<'_>, folder: &Path) {
    let (gpu, driver) = (bench.gpu, bench.driver);
    let holds = "work is being recorded, and a recording holds launches, products, copies and zeros alone";
    let waiting = gpu.record(&mut || Ok(())).unwrap();
    let refused = |what: &str, call: &mut dyn FnMut() -> Result<(), CudaError>| {
        let (error, called) = bench.fails(folder, call);
        assert!(error.starts_with(&format!("{what} failed: {holds}")), "{error}");
        assert_eq!(called, "begin 2, end, destroy");
    };
    refused("allocation of 12 bytes for sums", &mut || gpu.buffer::<f32>("sums", 3).map(drop));
    refused("upload", &mut || driver.upload(bench.x, &[0; 4]));
    refused("download", &mut || driver.download(&mut [0; 4], bench.x));
    refused("synchronize", &mut || gpu.synchronize());
    refused("timing", &mut || gpu.time_ms(&mut || Ok(())).map(drop));
    // SAFETY: it names nothing.
    refused("replay", &mut || unsafe { waiting.replay() });

    let (error, _) = bench.fails(folder, &mut || gpu.record(&mut || Ok(())).map(drop));
    assert!(error.contains("record failed: another recording is being made"), "{error}");
    // Memory that is given back inside is given back after the end of it.
    let mut buffer = Some(gpu.zeros::<f32>("buffer", 4).unwrap());
    let (error, called) = bench.fails(folder, &mut || gpu.zero(buffer.take().unwrap().view_mut()));
    assert!(error.contains("record failed: memory was given back inside"), "{error}");
    assert_eq!(called, "begin 2, end, destroy");
    let there = || std::thread::scope(|scope| scope.spawn(|| bench.launch("twice")).join().unwrap());
    let (error, _) = bench.fails(folder, &mut || there());
    assert!(error.contains("twice failed: another thread is recording"), "{error}");
}

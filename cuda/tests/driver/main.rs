//! The CUDA driver's side of the trait, held against a libcuda of our own that works on the host, late: the calls, their order and
//! arguments, and the lives of what is handed over. What only a device can show is left to a device.

mod memory;
mod recordings;

use ragen_cuda::Gpu;
use ragen_cuda::driver::{Arg, Driver, Kind, Launch, Nvidia, Source, Unit};
use ragen_cuda::gemm::{Products, Write, linear_bwd_input, linear_bwd_weight, linear_fwd};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

static KERNELS: Source = Source {
    file: "fill.cu",
    text: "KERNEL(64) fill(float* x, u32 a, u64 b, float c, double d) { x[0] = a + b + c + d; }\nKERNEL(64) twice(float* x) { x[0] *= 2.0f; }\n\
           KERNEL(64) breaks() {}\nKERNEL(64) unrecordable() {}\nKERNEL(64) unready() {}\n",
};

/// A folder with the fake driver and with NVRTC, made the one that libraries are looked for in; or why not.
fn libraries(folder: &Path) -> Result<(), String> {
    let nvrtc = std::env::var_os("RAGEN_CUDA_LIBRARIES").ok_or("RAGEN_CUDA_LIBRARIES names no folder with NVRTC")?;
    for file in std::fs::read_dir(nvrtc).map_err(|e| e.to_string())?.flatten().map(|entry| entry.path()) {
        let name = file.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with("libnvrtc") {
            std::os::unix::fs::symlink(&file, folder.join(name)).map_err(|e| e.to_string())?;
        }
    }
    build(folder, "fake_cuda.cc", "libcuda.so.1", &[])?;
    // SAFETY: this program has one test, and nothing else reads the environment while it is changed.
    unsafe {
        std::env::set_var("RAGEN_CUDA_LIBRARIES", folder);
        std::env::set_var("RAGEN_CACHE", folder.join("cache"));
    }
    Ok(())
}

/// Builds a fake library in the folder.
fn build(folder: &Path, source: &str, library: &str, others: &[&str]) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver").join(source);
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O1", "-shared", "-fPIC", &format!("-Wl,-soname,{library}"), "-o", library]);
    let built = compiler.arg(source).args(others).current_dir(folder).output().map_err(|e| format!("g++: {e}"))?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(())
}

/// What a function of a fake says, which takes nothing.
fn ask(folder: &Path, library: &str, function: &str) -> i32 {
    // SAFETY: our own library and function.
    unsafe {
        // It stays open, or else what it was told before others opened it would be gone with it.
        let library = Box::leak(Box::new(libloading::Library::new(folder.join(library)).unwrap()));
        library.get::<unsafe extern "C" fn() -> i32>(function.as_bytes()).unwrap()()
    }
}

/// What the fake driver was asked for, concerning recordings, since the last time.
fn calls(folder: &Path) -> String {
    told(folder, b"fake_calls")
}

fn told(folder: &Path, function: &[u8]) -> String {
    // SAFETY: our own library and function, whose text lasts until it is asked again.
    unsafe {
        let library = libloading::Library::new(folder.join("libcuda.so.1")).unwrap();
        let asked = library.get::<unsafe extern "C" fn() -> *const std::ffi::c_char>(function).unwrap();
        std::ffi::CStr::from_ptr(asked()).to_str().unwrap().to_string()
    }
}

#[test]
fn the_driver_is_asked_for_the_right_things_in_the_right_order() {
    let folder = tempfile::tempdir().unwrap();
    if ragen_cuda::is_available() {
        return println!("skipped: a driver is here already");
    }
    if let Err(reason) = libraries(folder.path()) {
        assert!(std::env::var_os("RAGEN_REQUIRE_NVRTC").is_none_or(|v| v != "1"), "{reason}");
        return println!("skipped: {reason}");
    }
    let absent = Gpu::open(1).err().unwrap().to_string();
    assert!(absent.contains("GPU 1 was asked for and the driver knows 1"), "{absent}");

    // Where opening fails half-way, what was taken is given back.
    ask(folder.path(), "libcuda.so.1", "fake_refuses_host_memory");
    let error = Nvidia::open(0).err().unwrap().to_string();
    assert!(error.contains("cuMemHostAlloc failed"), "{error}");
    assert_eq!(ask(folder.path(), "libcuda.so.1", "fake_held"), 0);

    let driver = Arc::new(Nvidia::open(0).unwrap());
    let gpu = Gpu::over(driver.clone());
    let name = gpu.name();
    let known = "Fake GPU (sm_90), driver for CUDA 13.0, NVRTC ";
    let why = "no cuBLASLt (cuBLASLt was not found: the system's loader knows no libcublasLt.so, and none is in ";
    assert!(name.starts_with(known) && name.contains(why), "{name}");
    memory::crossing(&gpu);
    memory::in_order(&gpu, folder.path());
    launches(&gpu, &*driver, folder.path());
    recordings::all(&gpu, &*driver, folder.path());
    // Another thread has no context of its own.
    let there = std::thread::scope(|scope| scope.spawn(|| gpu.upload("x", &[7.0_f32]).unwrap()).join().unwrap());
    assert_eq!(gpu.to_vec(there.view()).unwrap(), [7.0]);
    drop(there);
    fault(&gpu, &*driver);
    drop((gpu, driver));
    assert_eq!(ask(folder.path(), "libcuda.so.1", "fake_held"), 0, "what was taken of the driver is given back");

    build(folder.path(), "fake_cublaslt.cc", "libcublasLt.so.13", &["libcuda.so.1"]).unwrap();
    // A library that cannot be used is as good as none, and leaves nothing behind.
    ask(folder.path(), "libcublasLt.so.13", "fake_refuses");
    let name = Gpu::open(0).unwrap().name();
    assert!(name.ends_with(", no cuBLASLt (cublasLtCreate failed: the fake library refuses)"), "{name}");
    assert_eq!(ask(folder.path(), "libcuda.so.1", "fake_held"), 0);
    products(folder.path());
    memory::without_pools(folder.path());
    assert_eq!(ask(folder.path(), "libcuda.so.1", "fake_held"), 0);
    assert_eq!(ask(folder.path(), "libcublasLt.so.13", "fake_descriptions_held"), 0);
}

/// The library multiplies, by the one algorithm that will do, searched for once a product whatever the rows.
fn products(folder: &Path) {
    let gpu = Gpu::open(0).unwrap();
    assert!(gpu.name().ends_with("cuBLASLt 13.0.2"), "{}", gpu.name());
    let (input, out) = (8, 12);
    let numbers = |len: usize, step: usize| (0..len).map(|i| ((i * step) % 11) as f32 - 5.0).collect::<Vec<f32>>();
    let w = numbers(out * input, 3);
    let product = |m: usize, n: usize, k: usize, a: &dyn Fn(usize, usize) -> f32, b: &dyn Fn(usize, usize) -> f32| {
        (0..m * n).map(|i| (0..k).map(|l| a(i / n, l) * b(l, i % n)).sum()).collect::<Vec<f32>>()
    };
    for rows in [1, 3, 700] {
        let (x, dy) = (numbers(rows * input, 5), numbers(rows * out, 7));
        let (gx, gdy, gw) =
            (gpu.upload("x", &x).unwrap(), gpu.upload("dy", &dy).unwrap(), gpu.upload("w", &w).unwrap());
        let mut y = gpu.zeros::<f32>("y", rows * out).unwrap();
        linear_fwd(&gpu, Products::Library, y.view_mut(), gx.view(), gw.view(), input, Write::Scaled(1.0)).unwrap();
        let want = product(rows, out, input, &|r, l| x[r * input + l], &|l, o| w[o * input + l]);
        assert_eq!(gpu.to_vec(y.view()).unwrap(), want, "y of {rows} rows");
        // The library's products go into a recording like any other work of the stream.
        gpu.zero(y.view_mut()).unwrap();
        let recording = gpu.record(&mut || {
            linear_fwd(&gpu, Products::Library, y.view_mut(), gx.view(), gw.view(), input, Write::Scaled(1.0))
        });
        let recording = recording.unwrap();
        assert!(gpu.to_vec(y.view()).unwrap().iter().all(|y| *y == 0.0));
        // SAFETY: all three matrices are alive, and nobody borrows them.
        unsafe { recording.replay() }.unwrap();
        assert_eq!(gpu.to_vec(y.view()).unwrap(), want, "y of {rows} rows, replayed");
        let (z, mut sum) =
            (gpu.upload("z", &numbers(rows * out, 2)).unwrap(), gpu.zeros::<f32>("sum", rows * out).unwrap());
        let onto = Write::Onto(z.view());
        linear_fwd(&gpu, Products::Library, sum.view_mut(), gx.view(), gw.view(), input, onto).unwrap();
        let want: Vec<f32> = want.iter().zip(numbers(rows * out, 2)).map(|(sum, z)| sum + z).collect();
        assert_eq!(gpu.to_vec(sum.view()).unwrap(), want, "z and y of {rows} rows");
        let mut dx = gpu.upload("dx", &x).unwrap();
        linear_bwd_input(&gpu, Products::Library, dx.view_mut(), gdy.view(), gw.view(), input, true).unwrap();
        let mut want = product(rows, input, out, &|r, l| dy[r * out + l], &|l, i| w[l * input + i]);
        want.iter_mut().zip(&x).for_each(|(sum, old)| *sum += old);
        assert_eq!(gpu.to_vec(dx.view()).unwrap(), want, "dx of {rows} rows, added");
        let mut dw = gpu.upload("dw", &w).unwrap();
        linear_bwd_weight(&gpu, Products::Library, dw.view_mut(), gdy.view(), gx.view(), input).unwrap();
        let mut want = product(out, input, rows, &|o, r| dy[r * out + o], &|r, i| x[r * input + i]);
        want.iter_mut().zip(&w).for_each(|(sum, old)| *sum += old);
        assert_eq!(gpu.to_vec(dw.view()).unwrap(), want, "dw of {rows} rows, added");
        assert_eq!(ask(folder, "libcublasLt.so.13", "fake_searches"), 3);
    }
    // A row of 5 floats is no multiple of 16 bytes: our own kernel is asked for, which the fake driver does not have.
    let (x, w) = (gpu.zeros::<f32>("x", 5).unwrap(), gpu.zeros::<f32>("w", 20).unwrap());
    let mut y = gpu.zeros::<f32>("y", 4).unwrap();
    let error = linear_fwd(&gpu, Products::Library, y.view_mut(), x.view(), w.view(), 5, Write::Scaled(1.0))
        .unwrap_err()
        .to_string();
    assert!(error.contains("gemm_nt_few"), "{error}");
}

fn launches(gpu: &Gpu, driver: &dyn Driver, folder: &Path) {
    let module = gpu.load(Unit { source: &KERNELS, element: Kind::F32, head_dim: 0 }).unwrap();
    let address = driver.allocate("x", 36).unwrap();
    let args = [Arg::Address(address), Arg::U32(3), Arg::U64(1 << 40), Arg::F32(0.5), Arg::F64(-0.25)];
    let mut launch = Launch { grid: [5, 6, 7], threads: 64, shared_bytes: 100 << 10 };
    // SAFETY: the fake kernel writes nine floats.
    unsafe { driver.launch(module, "fill", launch, &args) }.unwrap();
    let numbers = [3.0, (1_u64 << 40) as f32, 0.5, -0.25, 5.0, 6.0, 7.0, 64.0, 102_400.0];
    let mut got = [0.0_f32; 9];
    driver.download(bytemuck::cast_slice_mut(&mut got), address).unwrap();
    assert_eq!(got, numbers);
    driver.free(address);
    launch.shared_bytes = 300 << 10;
    // SAFETY: as above.
    let error = unsafe { driver.launch(module, "fill", launch, &args) }.unwrap_err().to_string();
    let most =
        "launch of fill failed: a block of it needs 307200 bytes of shared memory, and on Fake GPU it can have 232448";
    assert_eq!(error, format!("{most}; use model.dtype=bf16, which needs less"));
    let bf16 = gpu.load(Unit { source: &KERNELS, element: Kind::Bf16, head_dim: 0 }).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { driver.launch(bf16, "fill", launch, &args) }.unwrap_err().to_string(), most);
    // SAFETY: more than the driver is ever handed.
    let error = unsafe { driver.launch(module, "fill", Launch { shared_bytes: 0, ..launch }, &[Arg::U32(0); 25]) };
    assert!(error.unwrap_err().to_string().contains("25 arguments, 24 at most"));
    // A thread enters its context once.
    let entered = ask(folder, "libcuda.so.1", "fake_entered");
    (0..3).for_each(|_| drop(gpu.zeros::<f32>("zeros", 4).unwrap()));
    assert_eq!(ask(folder, "libcuda.so.1", "fake_entered"), entered);
    launch.shared_bytes = 0;
    // SAFETY: there is no such kernel.
    let error = unsafe { driver.launch(module, "absent", launch, &args) }.unwrap_err().to_string();
    assert!(error.contains("cuModuleGetFunction of absent failed"), "{error}");
    assert_eq!(gpu.time_ms(&mut || Ok(())).unwrap(), Some(2.5));
}

fn fault(gpu: &Gpu, driver: &dyn Driver) {
    let module = gpu.load(Unit { source: &KERNELS, element: Kind::F32, head_dim: 0 }).unwrap();
    // SAFETY: the fake kernel takes nothing.
    unsafe { driver.launch(module, "breaks", Launch { grid: [1; 3], threads: 64, shared_bytes: 0 }, &[]) }.unwrap();
    let error = gpu.synchronize().unwrap_err().to_string();
    assert!(error.contains("cuStreamSynchronize failed: an illegal memory access was encountered"), "{error}");
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
}

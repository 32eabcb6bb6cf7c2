//! g++ at run time: a text becomes a library beside the running program, named by its content, and is loaded once a process.

use super::runtime::Entry;
use crate::CudaError;
use crate::driver::{Source, Unit};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What stands above a unit in place of `device.cuh`.
const PRELUDE: Source = Source {
    file: "runtime.h",
    text: concat!(
        include_str!("../../../emulator/runtime.h"),
        "#line 1 \"device.h\"\n",
        include_str!("../../../emulator/device.h")
    ),
};

/// The runtime, of which every process loads one.
const RUNTIME: &str = concat!(
    "#line 1 \"runtime.h\"\n",
    include_str!("../../../emulator/runtime.h"),
    "#line 1 \"switch.h\"\n",
    include_str!("../../../emulator/switch.h"),
    "#line 1 \"global.h\"\n",
    include_str!("../../../emulator/global.h"),
    "#line 1 \"runtime.cpp\"\n",
    include_str!("../../../emulator/runtime.cpp")
);

/// Products are not fused unless the kernel says so, and types are looked through as CUDA allows. What a GPU's compiler would not warn
/// of does not stop us; the rest does.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-g1",
    "-shared",
    "-fPIC",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-stack-protector",
    "-fstack-clash-protection",
    "-fno-gnu-unique",
    "-fsanitize=alignment,bounds",
    "-fsanitize-undefined-trap-on-error",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-sign-compare",
    "-Wno-maybe-uninitialized",
];

/// A unit's accesses to memory call the runtime, as they would call the thread sanitizer's; its library is not wanted.
const UNIT_FLAGS: &[&str] =
    &["-O2", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-nodefaultlibs"];
const RUNTIME_FLAGS: &[&str] = &["-O3"];

/// A loaded unit.
pub struct Kernels {
    file: &'static str,
    /// Names of all files of its text, each ended by a zero, and a zero.
    files: Vec<u8>,
    entries: &'static [Entry],
}

impl Kernels {
    /// The source's name.
    pub fn file(&self) -> &'static str {
        self.file
    }

    /// Names of all files of its text, each ended by a zero, and a zero.
    pub fn files(&self) -> &[u8] {
        &self.files
    }

    pub fn find(&self, name: &str) -> Option<&'static Entry> {
        self.entries.iter().find(|entry| entry.name() == name)
    }
}

type Loaded = Arc<OnceLock<Result<Arc<Kernels>, String>>>;

/// g++ and the folder of what it has built.
pub struct Compiler {
    version: String,
    flags: Vec<&'static str>,
    folder: PathBuf,
    loaded: Mutex<HashMap<u64, Loaded>>,
}

fn unavailable(reason: String) -> CudaError {
    CudaError::NoEmulator { reason }
}

impl Compiler {
    /// The process's compiler.
    ///
    /// **Errors** [`CudaError::NoEmulator`] if there is none.
    pub fn get() -> Result<&'static Compiler, CudaError> {
        static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
        COMPILER.get_or_init(Compiler::find).as_ref().map_err(|reason| unavailable(reason.clone()))
    }

    fn find() -> Result<Compiler, String> {
        let no = |why: String| format!("it builds kernels with g++, {why}");
        let output =
            Command::new("g++").arg("--version").output().map_err(|e| no(format!("which does not start: {e}")))?;
        if !output.status.success() {
            return Err(no("which does not tell its version".into()));
        }
        let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_string();
        // Cargo has tests in a folder below the program's; what they build is the same.
        let beside = std::env::current_exe().ok().and_then(|program| {
            let folder = program.parent()?;
            Some(if folder.ends_with("deps") { folder.parent()? } else { folder }.join("emulator"))
        });
        let usable = |folder: &PathBuf| std::fs::create_dir_all(folder).is_ok() && tests_writing(folder);
        let folder = beside.into_iter().chain([std::env::temp_dir().join("ragen-emulator")]).find(usable);
        let folder = folder.ok_or_else(|| no("and there is no folder to put them in".into()))?;
        let mut flags = FLAGS.to_vec();
        flags.extend(processor_flags());
        Ok(Compiler { version, flags, folder, loaded: Mutex::default() })
    }

    /// The library of a text, built unless it is there. Several processes may build it at once: the last rename wins, and all are equal.
    fn build(&self, name: &str, text: &str, own_flags: &[&str]) -> Result<PathBuf, String> {
        let hash = hash(&(text, &self.version, &self.flags, own_flags));
        let stem = self.folder.join(format!("{name}-{hash:016x}"));
        let library = stem.with_extension("so");
        if library.exists() {
            return Ok(library);
        }
        let own = format!("{}-{:016x}", std::process::id(), hash);
        let (source, built) = (stem.with_extension(format!("{own}.cpp")), stem.with_extension(format!("{own}.so")));
        std::fs::write(&source, text).map_err(|e| format!("{}: {e}", source.display()))?;
        let output = Command::new("g++")
            .args(&self.flags)
            .args(own_flags)
            .arg(&source)
            .arg("-o")
            .arg(&built)
            .args(["-lm", "-ldl", "-lpthread", "-lc", "-lgcc"])
            .stdin(Stdio::null())
            .output();
        let _ = std::fs::remove_file(&source);
        let output = output.map_err(|e| format!("g++ does not start: {e}"))?;
        if !output.status.success() {
            let _ = std::fs::remove_file(&built);
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        std::fs::rename(&built, &library).map_err(|e| format!("{}: {e}", library.display()))?;
        Ok(library)
    }

    /// Builds and opens the runtime, whose names every unit sees.
    pub fn open_runtime(&self) -> Result<Library, CudaError> {
        let library = self.build("runtime", RUNTIME, RUNTIME_FLAGS).and_then(|path| open(&path, RTLD_GLOBAL));
        library.map_err(|log| CudaError::Compile { unit: "the emulator's runtime".into(), log })
    }

    /// The kernels of a unit; each unit is built once, whoever asks for it at the same time.
    pub fn load(&self, unit: &Unit) -> Result<Arc<Kernels>, CudaError> {
        let text = format!("{}{}", unit.text(&PRELUDE), table(unit.source.text));
        let loaded = {
            let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(hash(&text)).or_default().clone()
        };
        let name = unit.source.file.trim_end_matches(".cu");
        let kernels = loaded.get_or_init(|| {
            let library = self.build(name, &text, UNIT_FLAGS).and_then(|path| open(&path, RTLD_LOCAL))?;
            // SAFETY: the text ends with this table.
            let entries = unsafe { read_table(&library) }?;
            // Its code must stay as long as the process.
            std::mem::forget(library);
            Ok(Arc::new(Kernels { file: unit.source.file, files: files(&text), entries }))
        });
        kernels.clone().map_err(|log| CudaError::Compile { unit: unit.to_string(), log })
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn tests_writing(folder: &Path) -> bool {
    let probe = folder.join(format!("probe-{}", std::process::id()));
    let ok = std::fs::write(&probe, "").is_ok();
    let _ = std::fs::remove_file(probe);
    ok
}

/// Fused multiply-adds as one instruction, where there is one: the result is the same without, and slow.
fn processor_flags() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return &["-mavx2", "-mfma"];
    }
    &[]
}

fn open(path: &Path, scope: c_int) -> Result<Library, String> {
    // SAFETY: what we have built runs nothing when it is opened.
    unsafe { Library::open(Some(path), RTLD_NOW | scope) }.map_err(|e| e.to_string())
}

/// The names that a text's `#line` give its parts, each ended by a zero, and a zero.
fn files(text: &str) -> Vec<u8> {
    let names = text.lines().filter_map(|line| line.strip_prefix("#line 1 \"")?.strip_suffix('"'));
    let mut files: Vec<u8> = names.flat_map(|name| [name.as_bytes(), &[0]].concat()).collect();
    files.push(0);
    files
}

/// The lines after a unit's text that name its kernels: whatever stands at the beginning of a line as `KERNEL(THREADS) name(`.
fn table(source: &str) -> String {
    let mut table =
        String::from("\n#line 1 \"table of kernels\"\nextern \"C\" {\nemulator::Entry emulator_entries[] = {\n");
    for line in source.lines() {
        let Some((threads, rest)) = line.strip_prefix("KERNEL(").and_then(|rest| rest.split_once(')')) else {
            continue;
        };
        let Some((name, _)) = rest.split_once('(') else { continue };
        // Writing to a String cannot fail.
        let _ = writeln!(table, "    EMULATOR_ENTRY({}, {threads}),", name.trim());
    }
    table.push_str("    {nullptr, 0, 0, nullptr, nullptr}};\n}\n");
    table
}

/// The table of a library.
///
/// # Safety
/// It was built from a text that ends with [`table`].
unsafe fn read_table(library: &Library) -> Result<&'static [Entry], String> {
    // SAFETY: the caller's promise; the last entry has no name, and the library is never closed.
    unsafe {
        let first: *const Entry =
            library.get::<*const Entry>(b"emulator_entries\0").map_err(|e| e.to_string())?.into_raw().cast();
        let mut count = 0;
        while !(*first.add(count)).is_last() {
            count += 1;
        }
        Ok(std::slice::from_raw_parts(first, count))
    }
}

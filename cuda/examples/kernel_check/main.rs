//! Compiles every kernel for every architecture and element, and fails on a warning, a spill, a frame in local memory that the
//! manifest does not give a reason for, and where manifest and sources differ. It needs NVRTC and no GPU.
//!
//!     cargo run -p ragen-cuda --example kernel_check -- FOLDER [--write]
//!
//! FOLDER has `libnvrtc.so.*` and `libnvrtc-builtins.so.*`. With --write the tables of docs/kernels.md are made anew; otherwise they are
//! compared; the table of registers by the version that it is of, [`PAGE_VERSION`]. Without a folder --write makes the table that needs
//! no compiler.

mod page;

use page::Registers;
use ragen_cuda::CudaError;
use ragen_cuda::driver::cache::Cache;
use ragen_cuda::driver::nvrtc::{Arch, Compiled, Nvrtc};
use ragen_cuda::driver::{Kind, Unit};
use ragen_cuda::kernels::{self, Kernel, Shape};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// What is compiled for: Ampere, Hopper, Blackwell.
const ARCHS: [u32; 3] = [80, 90, 100];

/// Shared memory that a block of each can have.
const SHARED_BYTES: [usize; 3] = [163 << 10, 227 << 10, 227 << 10];

/// The version of NVRTC whose registers docs/kernels.md has.
const PAGE_VERSION: (u32, u32) = (13, 0);

/// Where the compiler's words are kept.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/kernel_check");

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kernels.md");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (flags, folders): (Vec<&String>, Vec<&String>) = arguments.iter().partition(|a| a.starts_with("--"));
    let write = match flags.as_slice() {
        [] => false,
        [flag] if *flag == "--write" => true,
        _ => return usage(),
    };
    let mut check = Check::default();
    let folder = match folders.as_slice() {
        [folder] => folder,
        [] if write => {
            check.page((0, 0), true);
            return check.end();
        }
        _ => return usage(),
    };
    let start = Instant::now();
    let nvrtc = match Nvrtc::open_in(Path::new(folder)) {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let units = units();
    check.compile(&nvrtc, &units);
    check.frames();
    check.shared_memory();
    check.page(nvrtc.version, write);
    let (major, minor) = nvrtc.version;
    println!(
        "NVRTC {major}.{minor}: {} kernels in {} units for {} architectures, {} s, {} faults",
        kernels::all().count(),
        units.len(),
        ARCHS.len(),
        start.elapsed().as_secs(),
        check.faults.len()
    );
    check.end()
}

fn usage() -> ExitCode {
    eprintln!("usage: kernel_check FOLDER [--write], or kernel_check --write");
    ExitCode::from(2)
}

/// Every source for every element and width of heads that it is written for.
fn units() -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for kernel in kernels::all() {
        for element in [Kind::Bf16, Kind::F32] {
            for &width in kernel.head_dims {
                let unit = Unit { source: kernel.source, element, head_dim: width as u32 };
                if !units.contains(&unit) {
                    units.push(unit);
                }
            }
        }
    }
    units
}

#[derive(Default)]
struct Check {
    faults: Vec<String>,
    registers: Registers,
    /// Largest frame of a kernel that has one.
    frames: BTreeMap<&'static str, u32>,
}

impl Check {
    /// Says what is wrong.
    fn end(&self) -> ExitCode {
        self.faults.iter().for_each(|fault| println!("{fault}"));
        if self.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Compiles all units, one after the other: NVRTC does no two at once in a process.
    fn compile(&mut self, nvrtc: &Nvrtc, units: &[Unit]) {
        for (unit, arch) in units.iter().flat_map(|unit| ARCHS.map(|arch| (unit, arch))) {
            match words(nvrtc, unit, arch) {
                // The first lines say enough.
                Err(error) => self.faults.push(error.to_string().lines().take(12).collect::<Vec<_>>().join("\n")),
                Ok([ptx, log]) => self.unit(unit, arch, &ptx, &log),
            }
        }
    }

    /// What the compiler said of a unit, against what the manifest says.
    fn unit(&mut self, unit: &Unit, arch: u32, ptx: &str, log: &str) {
        let mut fault = |text: String| self.faults.push(format!("{unit}, sm_{arch}: {text}"));
        for line in log.lines().filter(|line| line.to_lowercase().contains("warning") && !line.starts_with("Remark")) {
            fault(line.to_string());
        }
        let expected: Vec<&'static Kernel> = kernels::all().filter(|kernel| kernel.source == unit.source).collect();
        let found = entries(ptx);
        for (name, _) in found.iter().filter(|(name, _)| expected.iter().all(|kernel| kernel.name != *name)) {
            fault(format!("{name} is not in the manifest"));
        }
        let figures = figures(log);
        for kernel in expected {
            let name = kernel.name;
            let threads = found.iter().find(|(other, _)| *other == name).and_then(|(_, threads)| *threads);
            if threads != Some(kernel.threads) {
                let in_source = threads.map_or("none".into(), |threads| threads.to_string());
                fault(format!("{name} has {} threads in the manifest and {in_source} in the source", kernel.threads));
            }
            let Some(figure) = figures.get(name) else {
                fault(format!("the assembler says nothing of {name}"));
                continue;
            };
            if figure.spilled_bytes > 0 {
                fault(format!("{name} spills {} bytes", figure.spilled_bytes));
            }
            if figure.static_shared {
                fault(format!("{name} has shared memory that is not dynamic"));
            }
            if figure.frame_bytes > 0 {
                let largest = self.frames.entry(name).or_default();
                *largest = figure.frame_bytes.max(*largest);
                if kernel.frame.is_none() {
                    fault(format!("{name} has a frame of {} bytes and no reason for it", figure.frame_bytes));
                }
            }
            let element = if unit.element == Kind::F32 { "f32" } else { "bf16" };
            self.registers.insert((name, unit.head_dim as usize, arch, element), figure.registers);
        }
    }

    /// A reason for a frame needs a frame.
    fn frames(&mut self) {
        for kernel in kernels::all().filter(|kernel| kernel.frame.is_some() && !self.frames.contains_key(kernel.name)) {
            self.faults.push(format!("{} has a reason for a frame and no frame", kernel.name));
        }
    }

    /// What the launchers ask for at the 0.5B shape, with heads of every width, must be there.
    fn shared_memory(&mut self) {
        for kernel in kernels::all() {
            for (&width, element_bytes) in kernel.head_dims.iter().flat_map(|width| [(width, 2), (width, 4)]) {
                let mut shape = Shape::half_billion(element_bytes);
                if width > 0 {
                    shape.heads[2] = width;
                }
                let bytes = (kernel.shared_bytes)(&shape);
                for (arch, limit) in ARCHS.into_iter().zip(SHARED_BYTES).filter(|(_, limit)| bytes > *limit) {
                    let name = kernel.name;
                    self.faults.push(format!(
                        "{name} wants {bytes} bytes of shared memory at {shape:?}, sm_{arch} has {limit}"
                    ));
                }
            }
        }
    }

    /// Compares the page's tables, or makes them anew.
    fn page(&mut self, version: (u32, u32), write: bool) {
        let old = match std::fs::read_to_string(PAGE) {
            Ok(page) => page,
            Err(error) => return self.faults.push(format!("docs/kernels.md: {error}")),
        };
        let mut new = page::with_section(&old, "work", &page::work_table());
        if version == PAGE_VERSION {
            new = page::with_section(&new, "registers", &page::registers_table(&self.registers, &ARCHS));
        }
        if write {
            if let Err(error) = std::fs::write(PAGE, new) {
                self.faults.push(format!("docs/kernels.md: {error}"));
            }
        } else if new != old {
            self.faults.push("docs/kernels.md is not of these kernels; --write makes its tables anew".into());
        }
    }
}

/// PTX and log of a unit. Both are kept, so that the next check compiles only what has changed.
fn words(nvrtc: &Nvrtc, unit: &Unit, arch: u32) -> Result<[String; 2], CudaError> {
    let (cache, key) = (Cache::at(KEPT), nvrtc.key(unit, Arch(arch))?);
    let read = |ending| String::from_utf8(cache.get(key, ending)?).ok();
    if let (Some(ptx), Some(log)) = (read("ptx"), read("log")) {
        return Ok([ptx, log]);
    }
    let Compiled { ptx, log, .. } = nvrtc.compile(unit, Arch(arch))?;
    cache.put(key, "ptx", ptx.as_bytes());
    cache.put(key, "log", log.as_bytes());
    Ok([ptx, log])
}

/// Names of a unit's kernels, and the threads of their blocks.
fn entries(ptx: &str) -> Vec<(&str, Option<u32>)> {
    let entry = |rest: &'_ str| {
        let threads = rest.split('{').next()?.split_once(".maxntid ")?.1;
        threads.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    ptx.split(".entry ").skip(1).map(|rest| (rest.split('(').next().unwrap_or_default(), entry(rest))).collect()
}

/// What the assembler says of a kernel.
#[derive(Default)]
struct Figures {
    registers: u32,
    frame_bytes: u32,
    spilled_bytes: u32,
    static_shared: bool,
}

/// The assembler's words: a line that names the kernel, one with frame and spills, one with registers.
fn figures(log: &str) -> BTreeMap<&str, Figures> {
    let mut all = BTreeMap::<&str, Figures>::new();
    let mut current = "";
    // The number before these words.
    let before =
        |line: &str, words: &str| -> Option<u32> { line.split(words).next()?.split_whitespace().last()?.parse().ok() };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            current = rest.split('\'').next().unwrap_or_default();
            all.insert(
                current,
                Figures { registers: u32::MAX, frame_bytes: u32::MAX, spilled_bytes: u32::MAX, static_shared: true },
            );
        }
        let Some(figures) = all.get_mut(current) else { continue };
        if line.contains("bytes stack frame") {
            figures.frame_bytes = before(line, " bytes stack frame").unwrap_or(u32::MAX);
            let spilled =
                [" bytes spill stores", " bytes spill loads"].map(|words| before(line, words).unwrap_or(u32::MAX));
            figures.spilled_bytes = spilled[0].max(spilled[1]);
        }
        if line.contains("Used ") && line.contains(" registers") {
            figures.registers = before(line, " registers").unwrap_or(u32::MAX);
            figures.static_shared = line.contains("bytes smem");
        }
    }
    all
}

//! The tables of docs/kernels.md: what the manifest says of each kernel, and what the compiler made of it.

use ragen_cuda::kernels::{self, Kernel, Shape};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Device memory that an H200 moves in a second, as copies reach it, and what its tensor cores compute with bf16.
const BYTES_PER_S: f64 = 4.3e12;
const FLOPS_PER_S: f64 = 790e12;

/// Registers by kernel, width of heads, architecture and element (`bf16`, `f32`).
pub type Registers = BTreeMap<(&'static str, usize, u32, &'static str), u32>;

/// Bytes, operations and the time that they give, at the 0.5B shape in bf16.
pub fn work_table() -> String {
    let mut table = String::from(
        "| kernel | file | threads | shared memory, bytes (bf16, f32) | moves, MB | computes, GFLOP | at least, µs | held up by |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n",
    );
    for kernel in kernels::all() {
        let [half, full] = [2, 4].map(|element_bytes| (kernel.shared_bytes)(&Shape::half_billion(element_bytes)));
        let shared = if half == full { half.to_string() } else { format!("{half}, {full}") };
        let work = (kernel.work)(&Shape::half_billion(2));
        let (memory_s, compute_s) = (work.bytes / BYTES_PER_S, work.flops / FLOPS_PER_S);
        let bound = if memory_s >= compute_s { "memory" } else { "tensor cores" };
        let (megabytes, gigaflops, microseconds) = (work.bytes / 1e6, work.flops / 1e9, memory_s.max(compute_s) * 1e6);
        let numbers = [megabytes, gigaflops, microseconds].map(three_digits).join(" | ");
        let Kernel { name, source, threads, .. } = kernel;
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {name} | {} | {threads} | {shared} | {numbers} | {bound} |", source.file);
    }
    table
}

/// Registers of a thread for each architecture and element; of kernels of attention, for each width of heads.
pub fn registers_table(registers: &Registers, archs: &[u32]) -> String {
    let columns: Vec<(u32, &str)> = archs.iter().flat_map(|&arch| [(arch, "bf16"), (arch, "f32")]).collect();
    let heads: Vec<String> = columns.iter().map(|(arch, element)| format!("sm_{arch} {element}")).collect();
    let rule = "---: | ".repeat(columns.len());
    let mut table = format!("| kernel | heads | {} | frame |\n| --- | --- | {rule}--- |\n", heads.join(" | "));
    for kernel in kernels::all() {
        let cell = |&(arch, element): &(u32, &'static str)| {
            let of =
                |&width: &usize| registers.get(&(kernel.name, width, arch, element)).map_or("?".into(), u32::to_string);
            let all: Vec<String> = kernel.head_dims.iter().map(of).collect();
            // One number where the width of heads does not matter.
            if all.iter().all(|number| *number == all[0]) { all[0].clone() } else { all.join(" · ") }
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        let widths: Vec<String> = kernel.head_dims.iter().filter(|&&width| width > 0).map(usize::to_string).collect();
        let (widths, frame) = (widths.join(" · "), kernel.frame.unwrap_or("none"));
        let _ = writeln!(table, "| {} | {widths} | {} | {frame} |", kernel.name, cells.join(" | "));
    }
    table
}

/// A number as a reader wants it: three digits that count, nothing below a thousandth.
fn three_digits(x: f64) -> String {
    if x > 0.0 && x < 0.001 {
        return "< 0.001".into();
    }
    let decimals = (2 - x.max(0.001).log10().floor() as i32).clamp(0, 3) as usize;
    if x == 0.0 { "0".into() } else { format!("{x:.decimals$}") }
}

/// What stands between the marks of a section.
pub fn section<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!("<!-- {name} begins -->\n"))?;
    Some(rest.split_once(&format!("<!-- {name} ends -->"))?.0)
}

/// The page with another text between the marks of a section; unchanged where it has no such section.
pub fn with_section(page: &str, name: &str, text: &str) -> String {
    match section(page, name) {
        None => page.to_string(),
        Some(old) => {
            let begin = old.as_ptr() as usize - page.as_ptr() as usize;
            format!("{}{text}{}", &page[..begin], &page[begin + old.len()..])
        }
    }
}

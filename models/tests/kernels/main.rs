//! Op cases: the CPU's op against the kernel of the same name, on odd sizes, in f32 and in bf16.
//!
//! The kernels run on the emulator; with `RAGEN_KERNELS_ON=cuda` on the GPU that is there. Inputs are rounded to the kernel's element
//! first, so that both sides read the same numbers. The distance is the normalised mean square error, Σ (got − want)² / Σ want².

mod adamw;
mod attention;
mod gemm;
#[allow(dead_code)] // Other tests use the rest of it.
#[path = "../golden_data/mod.rs"]
mod golden_data;
mod head;
mod norm;
mod pointwise;
mod sampling;
mod support;

//! Op cases: the CPU's op beside the kernels of the launcher of the same name, on odd sizes, in f32 and in bf16.
//!
//! Inputs are rounded to the kernels' element first, so that both sides read the same numbers. What a case finds is a normalised mean square
//! error, Σ (got − want)² / Σ want², or how many numbers are not the same; and the kernels that had a part in it.

pub mod adamw;
pub mod attention;
mod embedding;
mod gemm;
pub mod head;
mod judge;
mod norm;
mod pointwise;
mod rope;
pub mod sampling;
mod sums;

pub use judge::{Extent, Finding, Judge};

use half::bf16;

/// The cases of an op, or of ops that belong together.
pub struct Op {
    /// Its name.
    pub name: &'static str,
    runs: [(&'static str, Run); 2],
}

/// Runs cases in one number type.
type Run = fn(&mut Judge<'_>);

impl Op {
    /// Runs its cases, as far as they belong to the judge's extent.
    pub fn run(&self, judge: &mut Judge<'_>) {
        for (element, run) in self.runs {
            judge.begin(element);
            run(judge);
        }
    }
}

macro_rules! ops {
    ($($name:ident: $module:ident::$run:ident),* $(,)?) => {
        &[$(Op {
            name: stringify!($name),
            runs: [("f32", $module::$run::<f32>), ("bf16", $module::$run::<bf16>)],
        }),*]
    };
}

/// All of them. What only one number type has, as draws, comes with f32.
pub const OPS: &[Op] = ops![
    embedding: embedding::embedding,
    gather: embedding::gather,
    rmsnorm: norm::rmsnorm,
    residual_rmsnorm: norm::residual_rmsnorm,
    rope: rope::rope,
    attention_layouts: attention::layouts,
    attention_heads: attention::shapes_of_heads,
    attention_paths: attention::paths,
    attention_neighbours: attention::neighbours,
    swiglu: pointwise::swiglu,
    bias: pointwise::bias,
    bias_bwd: sums::bias_bwd,
    head: head::head,
    head_neighbours: head::neighbours,
    value: head::value,
    uniform: sampling::uniform,
    draws: sampling::draws,
    draws_of_many: sampling::draws_of_many,
    frequencies: sampling::frequencies,
    ends: sampling::ends,
    greedy: sampling::greedy,
    refusals: sampling::refusals,
    sampled_and_scored: sampling::sampled_and_scored,
    adamw: adamw::adamw,
    products: gemm::products,
    columns: gemm::columns,
    onto: gemm::onto,
    rows: gemm::rows,
];

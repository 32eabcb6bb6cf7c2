//! Op cases: the CPU's op against the kernels of the launcher of the same name, on odd sizes, in f32 and in bf16
//! (`ragen_models::doctor::kernels`), and golden data that the kernels are held against.
//!
//! The kernels run on the emulator; with `RAGEN_KERNELS_ON=cuda` on the GPU that is there.

mod golden;
#[allow(dead_code)] // Other tests use the rest of it.
#[path = "../golden_data/mod.rs"]
mod golden_data;

use ragen_cuda::{Gpu, kernels};
use ragen_models::doctor::kernels::{Extent, Finding, Judge, OPS};
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The device to test on; `None`, after saying why, where there is no g++ to build the emulator with.
fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = || {
        if std::env::var_os("RAGEN_KERNELS_ON").is_some_and(|on| on == "cuda") {
            return Some(Gpu::open(0).expect("RAGEN_KERNELS_ON=cuda asks for a GPU"));
        }
        Gpu::for_tests()
    };
    GPU.get_or_init(open).as_ref()
}

/// What the cases of some ops find.
fn findings(gpu: &Gpu, extent: Extent, is_asked_for: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut tell = |finding| findings.push(finding);
    let mut judge = Judge::new(gpu, extent, &mut tell).expect("RAGEN_ISA is unset or names a path of this machine");
    OPS.iter().filter(|op| is_asked_for(op.name)).for_each(|op| op.run(&mut judge));
    findings
}

/// Fails with all that the op's cases find wrong.
fn holds(op: &str) {
    let Some(gpu) = gpu() else { return };
    let findings = findings(gpu, Extent::ALL, |name| name == op);
    let wrong: Vec<String> =
        findings.iter().filter(|f| f.outcome.ok() != Some(true)).map(ToString::to_string).collect();
    println!("{op}: {} comparisons", findings.len());
    assert!(!findings.is_empty() && wrong.is_empty(), "{} of {}:\n{}", wrong.len(), findings.len(), wrong.join("\n"));
}

/// A test for each op.
macro_rules! hold {
    ($($op:ident),* $(,)?) => {
        $(#[test]
        fn $op() {
            holds(stringify!($op));
        })*

        #[test]
        fn every_op_has_its_test() {
            let tested = [$(stringify!($op)),*];
            assert_eq!(OPS.iter().map(|op| op.name).collect::<Vec<_>>(), tested);
        }
    };
}

hold![
    embedding,
    gather,
    rmsnorm,
    residual_rmsnorm,
    rope,
    attention_layouts,
    attention_heads,
    attention_paths,
    attention_neighbours,
    swiglu,
    bias,
    bias_bwd,
    head,
    head_neighbours,
    value,
    uniform,
    draws,
    draws_of_many,
    frequencies,
    ends,
    greedy,
    refusals,
    sampled_and_scored,
    adamw,
    products,
    columns,
    onto,
    rows,
];

#[test]
fn small_cases_start_every_kernel_in_every_number_type() {
    let Some(gpu) = gpu() else { return };
    let findings = findings(gpu, Extent::TINY, |_| true);
    let started = |element: &str| -> BTreeSet<&str> {
        findings.iter().filter(|f| f.element == element).flat_map(|f| f.kernels.iter().copied()).collect()
    };
    let manifest: BTreeSet<&str> = kernels::all().map(|kernel| kernel.name).collect();
    assert_eq!(started("f32"), manifest);
    // What draws tokens is the same for both, except where training looks for the bits of a draw.
    let drawn_once = BTreeSet::from(["uniform", "sample_greedy"]);
    assert_eq!(started("bf16"), &manifest - &drawn_once);
}

//! The CPU: every instruction path that it has against the plain one, and the engine against its f64 twin and itself.

use super::rehearsal::{Rehearsal, TEMPERATURE};
use super::{Check, Outcome, larger, off};
use crate::engine::EngineError;
use crate::ops::head::PerTarget;
use crate::simd::Isa;
use crate::transformer::Precision;
use crate::twin;
use std::time::Instant;

/// How far values and gradients in f32 may be off from those in f64, by the largest number of a tensor.
const VALUES: f64 = 1e-5;
const GRADIENTS: f64 = 2e-5;

/// Looks at the engine on the CPU and tells every check as it comes.
pub fn check_cpu(tell: &mut dyn FnMut(Check)) {
    let rehearsal = Rehearsal::small();
    let available = Isa::available();
    tell(bf16_instruction(&available));
    for isa in [Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2].into_iter().filter(|isa| !available.contains(isa)) {
        let why = Outcome::Skipped("not on this machine".into());
        tell(Check { name: format!("instruction path {}", isa.name()), outcome: why, milliseconds: 0.0 });
    }
    for precision in [Precision::F32, Precision::Bf16] {
        check_paths(&rehearsal, &available, precision, tell);
    }
    check_twin(&rehearsal, available[0], tell);
    for precision in [Precision::F32, Precision::Bf16] {
        let engine = || rehearsal.on_cpu(available[0], 2, precision);
        let name = precision.name();
        tell(Check::run(format!("a training step twice, {name}: numbers that differ"), || {
            let (first, second) = (rehearsal.step(&mut engine())?, rehearsal.step(&mut engine())?);
            Ok::<_, EngineError>(Outcome::Off { by: first.differing(&second), bound: 0.0 })
        }));
        tell(Check::run(format!("sampled and scored log-probabilities, {name}: largest difference"), || {
            rehearsal.gap(&mut engine()).map(|by| Outcome::Off { by, bound: 0.0 })
        }));
    }
}

/// Whether the instruction for bf16 rounds as every other path does.
fn bf16_instruction(available: &[Isa]) -> Check {
    let outcome = if available.contains(&Isa::Avx512Bf16) {
        // What is listed has been compared, sum by sum.
        Outcome::Off { by: 0.0, bound: 0.0 }
    } else if has_bf16_instruction() {
        Outcome::Skipped("this machine's rounds otherwise, and is not used".into())
    } else {
        Outcome::Skipped("not on this machine".into())
    };
    Check { name: "AVX512-BF16 instruction: sums that differ".into(), outcome, milliseconds: 0.0 }
}

fn has_bf16_instruction() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// A training step on every path, on one thread and on two, against the plain path on one.
fn check_paths(rehearsal: &Rehearsal, available: &[Isa], precision: Precision, tell: &mut dyn FnMut(Check)) {
    let plain = rehearsal.step(&mut rehearsal.on_cpu(Isa::Plain, 1, precision));
    let plain = match plain {
        Ok(plain) => plain,
        Err(error) => return tell(Check::run("a training step on the plain path", || Err(error))),
    };
    for &isa in available {
        for threads in [1, 2].into_iter().filter(|&threads| isa != Isa::Plain || threads > 1) {
            let (isa_name, dtype) = (isa.name(), precision.name());
            let name =
                format!("a training step on {isa_name}, {dtype}, threads {threads}: numbers that differ from plain");
            tell(Check::run(name, || {
                let step = rehearsal.step(&mut rehearsal.on_cpu(isa, threads, precision))?;
                Ok::<_, EngineError>(Outcome::Off { by: step.differing(&plain), bound: 0.0 })
            }));
        }
    }
}

/// Values and gradients in f32 against the twin, which computes in f64.
fn check_twin(rehearsal: &Rehearsal, isa: Isa, tell: &mut dyn FnMut(Check)) {
    let start = Instant::now();
    let step = match rehearsal.step(&mut rehearsal.on_cpu(isa, 2, Precision::F32)) {
        Ok(step) => step,
        Err(error) => return tell(Check::run("a training step in f32", || Err(error))),
    };
    let Rehearsal { config, weights, tree, targets, seeds } = rehearsal;
    let data = twin::model::convert::<f64>(weights);
    let oracle = twin::model::Model { config, table: &weights.table, weights: &data };
    let acts = oracle.forward(tree);
    let temperature = f64::from(TEMPERATURE);
    let want = oracle.score(&acts, targets, temperature);
    let got = &step.values;
    let pairs = [(&got.logp, &want.logp), (&got.entropy, &want.entropy), (&got.value, &want.value)];
    let by = pairs.map(|(got, want)| off(got, want.iter().copied())).into_iter().fold(0.0, larger);
    tell(Check::off("values in f32: off from f64 by", by, VALUES, start));

    let start = Instant::now();
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let seeds = PerTarget { logp: wide(&seeds.logp), entropy: wide(&seeds.entropy), value: wide(&seeds.value) };
    let mut gradients = vec![0.0; data.len()];
    oracle.backward(tree, &acts, targets, temperature, &seeds, &mut gradients);
    let entries = weights.table.entries.iter().map(|entry| entry.range());
    let by = entries.map(|at| off(&step.gradients[at.clone()], gradients[at].iter().copied())).fold(0.0, larger);
    tell(Check::off("gradients in f32: off from f64 by", by, GRADIENTS, start));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_passes_and_says_what_it_measured() {
        let mut checks = Vec::new();
        check_cpu(&mut |check| checks.push(check));
        for check in &checks {
            println!("{check} [{:.0} ms]", check.milliseconds);
            assert_ne!(check.ok(), Some(false), "{check}");
        }
        // On each path that is there two precisions and two numbers of threads; plain on one is what they are compared with.
        let paths = checks.iter().filter(|check| check.name.contains("differ from plain")).count();
        assert_eq!(paths, 4 * Isa::available().len() - 2);
    }
}

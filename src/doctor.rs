//! `ragen doctor`: what this machine has and reaches, and whether every fast path gives what its reference gives.
//!
//! The checks of an engine are `ragen_models::doctor`'s; here come those of the machine, and the report.

use crate::{bench, plan};
use ragen_models::device::Cpu;
use ragen_models::doctor::{Check, InType, Outcome, Pace, Sizes, check_cpu, check_gpu};
use ragen_models::gpu::Gpu;
use ragen_models::simd::Isa;
use ragen_models::transformer::Precision;
use serde_json::{Value, json};
use std::time::Instant;

const GIB: f64 = (1u64 << 30) as f64;

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// The devices that were looked at, in words.
    pub devices: Vec<String>,
    /// All checks.
    pub checks: Vec<Check>,
    /// What to set, after all that was seen, where there is something to choose.
    pub advice: Option<String>,
}

impl Report {
    /// Looks at the CPU, and tells what it is and every check as it comes.
    pub fn look_at_cpu(&mut self, cpu: &Cpu, tell: &mut dyn FnMut(&str)) {
        self.begin(format!("cpu ({})", cpu.isa.name()), tell);
        self.add(available_memory(), tell);
        self.add(measure("memory read", "GB/s", 1.0, || bench::read_bandwidth(cpu)), tell);
        // In software a fused multiply-add takes many instructions.
        let least = if cpu.isa == Isa::Plain { 0.01 } else { 1.0 };
        let rate = || bench::product_rate(cpu, Precision::F32) / 1e9;
        self.add(measure("product 256×576×1536 in f32", "GFLOP/s", least, rate), tell);
        check_cpu(&mut |check| self.add(check, tell));
    }

    /// Looks at a GPU, and tells what it is and every check as it comes.
    pub fn look_at_gpu(&mut self, gpu: &Gpu, sizes: &Sizes, tell: &mut dyn FnMut(&str)) {
        self.begin(gpu.name(), tell);
        let advice = check_gpu(gpu, sizes, &mut |check| self.add(check, tell));
        tell(&format!("advice   {advice}"));
        self.advice = Some(advice);
    }

    /// Notes that there is no GPU to look at.
    pub fn without_gpu(&mut self, why: String, tell: &mut dyn FnMut(&str)) {
        self.add(Check { name: "GPU".into(), outcome: Outcome::Skipped(why), milliseconds: 0.0 }, tell);
    }

    fn begin(&mut self, device: String, tell: &mut dyn FnMut(&str)) {
        tell(&device);
        self.devices.push(device);
    }

    fn add(&mut self, check: Check, tell: &mut dyn FnMut(&str)) {
        tell(&check.to_string());
        self.checks.push(check);
    }

    /// Checks that failed.
    pub fn failed(&self) -> usize {
        self.checks.iter().filter(|check| check.ok() == Some(false)).count()
    }

    /// The JSON object of the contract.
    pub fn to_json(&self) -> Value {
        let checks: Vec<Value> = self.checks.iter().map(check_to_json).collect();
        json!({"device": self.devices.join("; "), "ok": self.failed() == 0, "checks": checks, "advice": self.advice})
    }
}

/// A check; `ok` is null when it was skipped.
fn check_to_json(check: &Check) -> Value {
    let mut object = json!({"name": check.name, "ok": check.ok(), "error": null, "milliseconds": check.milliseconds});
    match &check.outcome {
        Outcome::Off { by, bound } => {
            object["error"] = json!(by);
            object["bound"] = json!(bound);
        }
        Outcome::Measured { value, unit, least } => {
            object["value"] = json!(value);
            object["unit"] = json!(unit);
            object["least"] = json!(least);
        }
        Outcome::Ran(pace) => pace_into(pace, &mut object),
        Outcome::Untimed => object["milliseconds"] = Value::Null,
        Outcome::Kernel(types) => kernel_into(types, &mut object),
        Outcome::Skipped(why) | Outcome::Failed(why) => object["why"] = json!(why),
    }
    object
}

fn pace_into(pace: &Pace, object: &mut Value) {
    object["milliseconds"] = json!(pace.milliseconds);
    object["gb_per_s"] = json!(pace.gb_per_s());
    object["tflops_per_s"] = json!(pace.tflops_per_s());
    if let Some((share, of)) = pace.share {
        object["share"] = json!(share);
        object["of"] = json!(of);
    }
}

/// A kernel: an object for each number type, and beside them the error that comes nearest to its bound, and the time in bf16.
fn kernel_into(types: &[InType], object: &mut Value) {
    let mut nearest = f64::NEG_INFINITY;
    object["milliseconds"] = Value::Null;
    for of in types {
        let mut this = json!({"error": null, "milliseconds": null});
        if let Some(worst) = &of.worst {
            this["case"] = json!(format!("{} of {}", worst.op, worst.case));
            match &worst.outcome {
                Outcome::Off { by, bound } => {
                    this["error"] = json!(by);
                    this["bound"] = json!(bound);
                }
                Outcome::Skipped(why) | Outcome::Failed(why) => this["why"] = json!(why),
                _ => {}
            }
            if worst.outcome.badness() > nearest {
                nearest = worst.outcome.badness();
                ["error", "bound", "why"].into_iter().for_each(|key| match this.get(key) {
                    Some(value) => object[key] = value.clone(),
                    None => _ = object.as_object_mut().and_then(|object| object.remove(key)),
                });
            }
        }
        match &of.pace {
            Some(Outcome::Ran(pace)) => {
                pace_into(pace, &mut this);
                object["milliseconds"] = json!(pace.milliseconds);
            }
            Some(Outcome::Skipped(why) | Outcome::Failed(why)) => this["why_no_time"] = json!(why),
            _ => {}
        }
        object[of.element] = this;
    }
}

fn measure(name: &str, unit: &'static str, least: f64, value: impl FnOnce() -> f64) -> Check {
    let start = Instant::now();
    let outcome = Outcome::Measured { value: value(), unit, least };
    Check { name: name.into(), outcome, milliseconds: start.elapsed().as_secs_f64() * 1e3 }
}

/// Half a GiB is enough for the shipped configurations.
fn available_memory() -> Check {
    let name = "memory that is available";
    match plan::machine_bytes() {
        Some(bytes) => measure(name, "GiB", 1.0, || bytes as f64 / GIB),
        None => {
            let why = "this system does not tell".into();
            Check { name: name.into(), outcome: Outcome::Skipped(why), milliseconds: 0.0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_models::doctor::Work;
    use ragen_models::doctor::kernels::Finding;

    fn report(outcomes: Vec<Outcome>) -> Report {
        let check = |outcome| Check { name: "it".into(), outcome, milliseconds: 2.0 };
        let checks = outcomes.into_iter().map(check).collect();
        Report { devices: vec!["a".into(), "b".into()], checks, advice: None }
    }

    #[test]
    fn a_report_is_ok_when_nothing_failed() {
        let fine = Outcome::Off { by: 0.5, bound: 1.0 };
        let green = report(vec![fine.clone(), Outcome::Skipped("not here".into()), Outcome::Untimed]);
        let json = green.to_json();
        assert_eq!((green.failed(), &json["ok"], &json["device"]), (0, &json!(true), &json!("a; b")));
        let off = json!({"name": "it", "ok": true, "error": 0.5, "milliseconds": 2.0, "bound": 1.0});
        assert_eq!(json["checks"][0], off);
        let skipped = json!({"name": "it", "ok": null, "error": null, "milliseconds": 2.0, "why": "not here"});
        assert_eq!(json["checks"][1], skipped);
        assert!(json["checks"][2]["milliseconds"].is_null());

        let slow = Outcome::Measured { value: 0.5, unit: "GB/s", least: 1.0 };
        let red = report(vec![fine, slow, Outcome::Failed("broke".into())]);
        assert_eq!((red.failed(), red.to_json()["ok"].as_bool()), (2, Some(false)));
        assert_eq!(red.to_json()["checks"][1]["value"], 0.5);
    }

    #[test]
    fn a_kernel_has_an_object_for_each_type_and_the_error_nearest_to_its_bound() {
        let found = |element, outcome| {
            let worst = Finding { op: "rope", case: "3 x 4".into(), element, kernels: vec!["rope"], outcome };
            let pace = Pace { milliseconds: 0.5, work: Work { bytes: 1e9, flops: 2e9 }, share: Some((0.25, "a copy")) };
            InType { element, worst: Some(worst), pace: Some(Outcome::Ran(pace)) }
        };
        let near = found("f32", Outcome::Off { by: 1e-12, bound: 1e-10 });
        let off = found("bf16", Outcome::Off { by: 3.0, bound: 1e-5 });
        let check = &report(vec![Outcome::Kernel(vec![near.clone(), off])]).to_json()["checks"][0];
        let head = [&check["ok"], &check["error"], &check["bound"], &check["milliseconds"]];
        assert_eq!(head, [&json!(false), &json!(3.0), &json!(1e-5), &json!(0.5)]);
        let want = json!({"error": 1e-12, "bound": 1e-10, "case": "rope of 3 x 4", "milliseconds": 0.5,
            "gb_per_s": 2000.0, "tflops_per_s": 4.0, "share": 0.25, "of": "a copy"});
        assert_eq!(check["f32"], want);
        let broken = found("bf16", Outcome::Failed("it broke".into()));
        let check = &report(vec![Outcome::Kernel(vec![near, broken])]).to_json()["checks"][0];
        assert_eq!((&check["ok"], &check["why"], &check["error"]), (&json!(false), &json!("it broke"), &Value::Null));
    }
}

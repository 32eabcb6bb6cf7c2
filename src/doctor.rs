//! `ragen doctor`: what this machine has and reaches, and whether every fast path gives what its reference gives.
//!
//! The checks of an engine are `ragen_models::doctor`'s; here come those of the machine, and the report.

use crate::{bench, plan};
use ragen_models::device::Cpu;
use ragen_models::doctor::{Check, Outcome, Sizes, check_cpu, check_gpu};
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
        check_gpu(gpu, sizes, &mut |check| self.add(check, tell));
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
        json!({"device": self.devices.join("; "), "ok": self.failed() == 0, "checks": checks})
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
        Outcome::Ran(work) => {
            object["gb_per_s"] = json!(work.bytes / check.milliseconds / 1e6);
            object["tflops_per_s"] = json!(work.flops / check.milliseconds / 1e9);
        }
        Outcome::Untimed => object["milliseconds"] = Value::Null,
        Outcome::Skipped(why) | Outcome::Failed(why) => object["why"] = json!(why),
    }
    object
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

    fn report(outcomes: Vec<Outcome>) -> Report {
        let check = |outcome| Check { name: "it".into(), outcome, milliseconds: 2.0 };
        Report { devices: vec!["a".into(), "b".into()], checks: outcomes.into_iter().map(check).collect() }
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
}

//! The real binary with `--device emulator`: what runs on a GPU, command by command, tiny and with our own kernels on the CPU.

mod binary;

use binary::{Place, assert_equal_runs, files, json, says};
use ragen_models::gpu::Gpu;
use serde_json::Value;
use std::fs;

/// Two groups of three, one short turn, something to learn by entropy alone, and a checkpoint a step.
const SMALL: [&str; 25] = [
    "bandit",
    "model.path=",
    "model.n_layers=2",
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_kv_heads=1",
    "model.d_ff=24",
    "model.tied_embeddings=true",
    "env.train.groups=2",
    "env.train.group_size=3",
    "env.val.groups=2",
    "val.groups=0",
    "val.every=2",
    "val.before_train=false",
    "rollout.response_tokens=6",
    "filter.value=1.0",
    "algorithm.estimator=gae",
    "update.loss.entropy_coef=0.02",
    "optim.warmup_steps=0",
    "optim.lr=0.01",
    "optim.schedule=constant",
    "run.steps=2",
    "run.trajectories_every=1",
    "checkpoint.every=1",
    "checkpoint.keep=0",
];

const ON: [&str; 2] = ["--device", "emulator"];

/// A command on the emulator with small settings and changes to them.
fn args<'a>(head: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [head, &ON, SMALL.as_slice(), more].concat()
}

fn resume<'a>(dir: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--resume", "--run", dir, "--quiet"], more].concat()
}

/// Whether there is an emulator.
fn skipped() -> bool {
    Gpu::for_tests().is_none()
}

fn metrics(place: &Place, run: &str) -> Vec<Value> {
    let text = fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap();
    text.lines().map(|line| json(Some(line))).collect()
}

/// Every step learned something, and its first update was of the bits that were sampled.
fn assert_learned(place: &Place, run: &str, steps: usize) {
    let metrics = metrics(place, run);
    assert_eq!(metrics.len(), steps);
    for step in &metrics {
        assert!(step["update/grad_norm"].as_f64().unwrap() > 1e-6, "{step}");
        assert_eq!(step["update/first_ratio_max_error"], 0.0, "{step}");
    }
    let weights = |step: usize| {
        let folder = place.path(run).join(format!("checkpoints/step-{step:06}"));
        let kept = ["model.safetensors", "adapter_model.safetensors"].map(|name| fs::read(folder.join(name)).ok());
        kept.into_iter().flatten().next().unwrap()
    };
    assert!(steps < 2 || weights(steps - 1) != weights(steps));
}

#[test]
fn a_run_on_the_device_repeats_and_resumes_byte_for_byte() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let three = ["run.steps=3"];
    let (out, err) = place.check(0, &args(&["train", "--run", "whole", "--json"], &three));
    assert!(err.starts_with("device: emulator on the CPU\n"), "{err}");
    let result = json(out.lines().last());
    assert_eq!(result["device"], "emulator on the CPU");
    // The plan is of the device's memory, and what was held beside it are tables of a batch.
    let (planned, peak) = (result["planned_bytes"].as_u64().unwrap(), result["peak_bytes"].as_u64().unwrap());
    assert!(planned.abs_diff(peak) < 32 << 10, "{peak} of {planned}");
    assert_learned(&place, "whole", 3);
    let config = fs::read_to_string(place.path("whole/config.toml")).unwrap();
    assert!(config.contains("device = \"emulator\"") && config.contains("products = \"library\""), "{config}");

    place.check(0, &args(&["train", "--run", "again", "--quiet", "--threads", "1"], &three));
    let settings = |run: &str| place.path(run).join("config.toml");
    fs::copy(settings("whole"), settings("again")).unwrap();
    assert_equal_runs(&place.path("whole"), &place.path("again"));
    place.check(0, &args(&["train", "--run", "cut", "--quiet"], &[]));
    assert_eq!(metrics(&place, "cut").len(), 2);
    place.check(0, &resume("cut", &three));
    // The run that was to end after two steps validated there, as the other did.
    assert_equal_runs(&place.path("whole"), &place.path("cut"));
}

#[test]
fn a_run_goes_on_on_another_device() {
    if skipped() {
        return;
    }
    let place = Place::new();
    for (first, second) in [("emulator", "cpu"), ("cpu", "emulator")] {
        place.check(0, &[&["train", "--run", first, "--quiet", "--device", first], SMALL.as_slice()].concat());
        place.check(0, &resume(first, &["--device", second, "run.steps=3"]));
        assert_learned(&place, first, 3);
        let config = fs::read_to_string(place.path(first).join("config.toml")).unwrap();
        assert!(config.contains(&format!("device = \"{second}\"")), "{config}");
    }
}

#[test]
fn the_other_commands_take_the_device() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let (out, err) = place.check(0, &args(&["inspect", "--json"], &[]));
    assert!(err.starts_with("device: emulator on the CPU\n") && out.contains("memory: "), "{err}");
    let memory = json(out.lines().last())["memory_bytes"].clone();
    let bytes = |part: &str| memory[part].as_u64().unwrap();
    // Tied embeddings of 96 tokens or more, and f32 moments of what has gradients.
    assert!(bytes("gradients") > 0 && bytes("optimiser") >= 2 * bytes("gradients"), "{memory}");

    let demos = ["warmstart.demos=8", "warmstart.batch=4", "warmstart.optim.warmup_steps=0"];
    let (out, _) = place.check(0, &args(&["warmstart", "--run", "warm", "--json", "--quiet"], &demos));
    assert_eq!(json(out.lines().last())["updates"], 2);

    // Adapters on what was made there, in bf16.
    let adapters = ["model.path=warm", "model.lora.rank=2", "model.dtype=bf16", "run.products=invariant"];
    place.check(0, &args(&["train", "--run", "adapted", "--quiet"], &adapters));
    assert_learned(&place, "adapted", 2);
    assert!(place.path("adapted/checkpoints/step-000002/adapter_model.safetensors").is_file());

    let eval = ["eval", "adapted", "--json", "env.val.groups=3"];
    let (out, err) = place.check(0, &eval);
    assert_eq!(err, "device: emulator on the CPU\n", "the run's own");
    let result = json(out.lines().last());
    assert_eq!(result["device"], "emulator on the CPU");
    let episodes = result["tags"].as_object().unwrap().values().map(|tag| tag["episodes"].as_u64().unwrap());
    assert_eq!(episodes.sum::<u64>(), 3);
    place.check(0, &args(&["rollout", "--run", "a", "--quiet"], &[]));
    place.check(0, &args(&["rollout", "--run", "b", "--quiet"], &[]));
    assert_equal_runs(&place.path("a"), &place.path("b"));
    assert!(files(&place.path("a")).iter().any(|(name, _)| name == "trajectories/step-000001.jsonl"));
}

#[test]
fn a_value_model_and_a_reference_are_planned_for_trained_and_resumed() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let two = ["model.value_model=true", "update.loss.kl.coef=0.01", "run.steps=3"];
    let (out, _) = place.check(0, &args(&["train", "--run", "whole", "--quiet", "--json"], &two));
    let result = json(out.lines().last());
    let (planned, peak) = (result["planned_bytes"].as_u64().unwrap(), result["peak_bytes"].as_u64().unwrap());
    assert!(planned.abs_diff(peak) < 32 << 10, "{peak} of {planned}");
    assert_learned(&place, "whole", 3);
    place.check(0, &args(&["train", "--run", "cut", "--quiet"], &[&two[..2], &["run.steps=2"]].concat()));
    place.check(0, &resume("cut", &["run.steps=3"]));
    assert_equal_runs(&place.path("whole"), &place.path("cut"));
}

#[test]
fn what_does_not_fit_or_has_no_kernels_is_refused_before_anything_starts() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let wide = ["model.d_ff=4096", "run.memory_bytes=0"];
    let (_, err) = place.check_with(2, &[("RAGEN_EMULATOR_MIB", "1")], &args(&["train", "--run", "a"], &wide));
    says(
        &err,
        &["does not fit", "device memory of emulator on the CPU: 1 of 1 MiB are free", "gradients", "optimiser"],
    );
    let (_, err) = place.check(2, &args(&["train", "--run", "a"], &["model.d_model=320"]));
    says(&err, &["model: head_dim is 160", "at most 128", "run with --device cpu"]);
    says(
        &place.check_with(3, &[("RAGEN_EMULATOR_MIB", "much")], &args(&["eval", "sokoban"], &[])[..4]).1,
        &["RAGEN_EMULATOR_MIB=much"],
    );
    says(&place.check_with(3, &[("PATH", "")], &args(&["train"], &[])).1, &["--device emulator", "g++"]);
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0);
}

#[test]
fn memory_that_runs_out_in_a_step_is_one_error_and_the_last_checkpoint_is_whole() {
    if skipped() {
        return;
    }
    let place = Place::new();
    // Batches are planned to be short, so a row is one of its own for which memory is asked in the step.
    let short = ["model.d_ff=8192", "update.packed_tokens=8", "val.every=0"];
    let (out, _) = place.check(0, &args(&["inspect", "--json", "--quiet"], &short));
    let planned = json(out.lines().last())["memory_bytes"]["total"].as_u64().unwrap();
    let mib = (planned.div_ceil(1 << 20) + 1).to_string();
    place.check(0, &args(&["train", "--run", "whole", "--quiet"], &[&short[..], &["run.steps=3"]].concat()));
    place.check(0, &args(&["train", "--run", "cut", "--quiet"], &short));

    let go_on = resume("cut", &["run.steps=3", "run.memory_bytes=1000000000"]);
    let (out, err) = place.check_with(1, &[("RAGEN_EMULATOR_MIB", &mib)], &go_on);
    says(&err, &["bytes of device memory", "are free"]);
    assert_eq!((err.lines().count(), out.as_str()), (1, ""), "{err}");
    assert_eq!(metrics(&place, "cut").len(), 2);
    place.check(0, &resume("cut", &["run.steps=3", "run.memory_bytes=0"]));
    assert_learned(&place, "cut", 3);
    assert_equal_runs(&place.path("whole"), &place.path("cut"));
}

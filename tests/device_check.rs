//! scripts/device-check.sh with the real binary, on the CPU in place of a device.

#![cfg(unix)]

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs a part at small sizes; its exit code and the JSON file that it leaves, which it also prints.
fn check(folder: &Path, part: &str, device: &str, path: Option<&Path>) -> (Option<i32>, Value) {
    check_with(folder, part, device, path, env!("CARGO_BIN_EXE_ragen"))
}

fn check_with(folder: &Path, part: &str, device: &str, path: Option<&Path>, ragen: &str) -> (Option<i32>, Value) {
    let mut command = Command::new("bash");
    command.arg("scripts/device-check.sh").arg(part);
    command.env("RAGEN", ragen).env("OUT", folder).env("DEVICE", device).env("SMALL", "1");
    if let Some(first) = path {
        command.env("PATH", format!("{}:{}", first.display(), std::env::var("PATH").unwrap()));
    }
    let output = command.output().unwrap();
    let file = fs::read_to_string(folder.join(format!("{part}.json"))).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), file);
    (output.status.code(), serde_json::from_str(&file).unwrap_or_else(|e| panic!("{file}: {e}")))
}

#[test]
fn each_part_leaves_one_json_file_and_ragens_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (code, doctor) = check(folder, "doctor", "cpu", None);
    assert_eq!((code, &doctor["exit"], &doctor["result"]["ok"]), (Some(0), &0.into(), &true.into()));
    assert!(fs::read_to_string(folder.join("doctor.txt")).unwrap().lines().any(|line| line.starts_with("ok ")));
    let (code, bench) = check(folder, "bench", "cpu", None);
    assert!(code == Some(0) && bench["result"]["train"]["tokens_per_s"].as_f64() > Some(0.0), "{bench}");
    trains(folder, "cpu");

    // A device that is not there is said as ragen says it.
    for part in ["doctor", "bench", "train"] {
        let (code, absent) = check(folder, part, "cuda:7", None);
        assert_eq!((code, &absent["exit"], &absent["result"]), (Some(3), &3.into(), &Value::Null));
        assert!(absent["why"].as_str().unwrap().contains("--device cuda:7"), "{absent}");
    }
}

#[test]
fn each_part_runs_on_the_emulator() {
    if ragen_models::gpu::Gpu::for_tests().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (code, doctor) = check(folder, "doctor", "emulator", None);
    assert_eq!((code, &doctor["result"]["ok"]), (Some(0), &true.into()), "{doctor}");
    let (code, bench) = check(folder, "bench", "emulator", None);
    assert_eq!(code, Some(0), "{bench}");
    let bench = &bench["result"];
    assert!(bench["train"]["flops"].as_f64() > Some(0.0) && bench["train"]["mfu"].is_null(), "{bench}");
    assert_eq!(bench["step"]["first_ratio_max_error"], 0.0);
    trains(folder, "emulator");
}

/// A run, the same by a resume, and one in bf16.
fn trains(folder: &Path, device: &str) {
    let (code, train) = check(folder, "train", device, None);
    assert_eq!(code, Some(0), "{train}");
    let result = &train["result"];
    for run in ["run", "resumed", "bf16"] {
        assert_eq!(result[run]["steps"], 4, "{train}");
        assert!(result[run]["trained_tokens"].as_u64() > Some(10), "{train}");
    }
    assert_eq!((&result["resumed_equal"], &result["first_ratio_max_error"]), (&true.into(), &0.into()));
}

/// A ragen that trains as the real one does, and then changes the files of a run as `sed` says.
fn meddling(folder: &Path, run: &str, sed: &str) -> String {
    let path = folder.join("ragen");
    let ragen = env!("CARGO_BIN_EXE_ragen");
    let change = format!("case \"$*\" in *{run}*) sed -i '{sed}' {}/{run}/metrics.jsonl;; esac", folder.display());
    fs::write(&path, format!("#!/bin/sh\n{ragen} \"$@\" || exit\n{change}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn what_is_wrong_with_training_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ragen = meddling(folder, "run-resumed", "s/\"step\":4/\"step\":5/");
    let (code, train) = check_with(folder, "train", "cpu", None, &ragen);
    assert_eq!((code, &train["result"]["resumed_equal"]), (Some(1), &false.into()), "{train}");
    assert_eq!(train["why"], "a resumed run has another metrics.jsonl");
    let ragen = meddling(folder, "run-bf16", "s/first_ratio_max_error\":0.0/first_ratio_max_error\":1.5e-6/");
    let (code, train) = check_with(folder, "train", "cpu", None, &ragen);
    assert_eq!((code, &train["result"]["first_ratio_max_error"]), (Some(1), &1.5e-6.into()), "{train}");
    assert!(train["why"].as_str().unwrap().contains("off by 1.5e-06"), "{train}");
}

#[test]
fn the_sanitizer_says_what_it_found_and_when_it_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if Command::new("compute-sanitizer").arg("--version").output().is_err() {
        let (code, absent) = check(folder, "sanitize", "cpu", None);
        assert_eq!((code, &absent["result"]), (Some(0), &Value::Null));
        assert_eq!(absent["why"], "compute-sanitizer is not on this machine");
    }
    // One that finds races.
    let tools = folder.join("bin");
    fs::create_dir(&tools).unwrap();
    let tool = tools.join("compute-sanitizer");
    let script = "#!/bin/sh\necho \"==== $2 SUMMARY: \\\"some\\\" errors\"\n[ $2 != racecheck ] || exit $4\nshift 4\nexec \"$@\"\n";
    fs::write(&tool, script).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, found) = check(folder, "sanitize", "cpu", Some(&tools));
    let result = &found["result"];
    assert_eq!((code, &result["memcheck"]["exit"], &result["racecheck"]["exit"]), (Some(9), &0.into(), &9.into()));
    assert_eq!(result["synccheck"]["why"], "==== synccheck SUMMARY: \"some\" errors");
}

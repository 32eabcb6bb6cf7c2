//! scripts/device-check.sh with the real binary, on the CPU in place of a device.

#![cfg(unix)]

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs a part; its exit code and the JSON file that it leaves, which it also prints.
fn check(folder: &Path, part: &str, device: &str, path: Option<&Path>) -> (Option<i32>, Value) {
    let mut command = Command::new("bash");
    command.arg("scripts/device-check.sh").arg(part);
    command.env("RAGEN", env!("CARGO_BIN_EXE_ragen")).env("OUT", folder).env("DEVICE", device);
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
    let (code, train) = check(folder, "train", "cpu", None);
    assert_eq!((code, &train["result"]["steps"]), (Some(0), &3.into()));

    // A device that is not there is said as ragen says it.
    for part in ["doctor", "bench", "train"] {
        let (code, absent) = check(folder, part, "cuda:7", None);
        assert_eq!((code, &absent["exit"], &absent["result"]), (Some(3), &3.into(), &Value::Null));
        assert!(absent["why"].as_str().unwrap().contains("--device cuda:7"), "{absent}");
    }
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

//! The real binary in a folder of its own, and what is looked at of a run.
#![allow(dead_code, reason = "each test binary uses its part")]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder that goes with the test.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The text of a file.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ragen"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs and checks the exit code; returns what was said on standard output and error.
    pub fn check(&self, code: i32, args: &[&str]) -> (String, String) {
        self.check_with(code, &[], args)
    }

    /// The same with variables of the environment.
    pub fn check_with(&self, code: i32, variables: &[(&str, &str)], args: &[&str]) -> (String, String) {
        let output = self.command(args).envs(variables.iter().copied()).output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        (out, err)
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that an error is one message that names all of `parts`.
pub fn says(err: &str, parts: &[&str]) {
    assert_eq!(err.matches("error:").count(), 1, "{err}");
    for part in parts {
        assert!(err.contains(part), "{part:?} is not in\n{err}");
    }
}

pub fn json(line: Option<&str>) -> Value {
    serde_json::from_str(line.unwrap_or_default()).unwrap_or_else(|e| panic!("{line:?} is not JSON: {e}"))
}

/// All files below a folder but for those that differ from run to run, with their content.
pub fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("timing.jsonl") {
                found.push((path.strip_prefix(folder).unwrap().display().to_string(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

pub fn assert_equal_runs(a: &Path, b: &Path) {
    let (a, b) = (files(a), files(b));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b));
    for ((name, x), (_, y)) in a.iter().zip(&b) {
        assert!(x == y, "{name} differs");
    }
}

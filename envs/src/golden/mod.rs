//! The recorded behaviour in `tests/golden/vectors/envs` (or the folder of that layout that `RAGEN_GOLDEN` names): every
//! case of every file, started from its recorded state and fed its recorded draws. A task has a file of tests of its own.

use crate::{Env, Step};
use serde_json::Value;
use std::path::PathBuf;

mod bandit;
mod countdown;
mod frozen_lake;
mod game_2048;
mod lean;
mod metamathqa;
mod rubikscube;
mod search;
mod sokoban;
mod sudoku;
mod webshop;

/// The files that each task's tests read; `generator_stats.json` is read here.
const FILES: &[&[&str]] = &[
    &["generator_stats.json"],
    bandit::FILES,
    countdown::FILES,
    frozen_lake::FILES,
    game_2048::FILES,
    lean::FILES,
    metamathqa::FILES,
    rubikscube::FILES,
    search::FILES,
    sokoban::FILES,
    sudoku::FILES,
    webshop::FILES,
];

fn repository_golden() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden"))
}

fn folder() -> PathBuf {
    std::env::var_os("RAGEN_GOLDEN").map_or_else(repository_golden, PathBuf::from).join("vectors/envs")
}

/// Whether `PENDING` says that a later issue owes the test of `vectors/envs/<what>`.
fn is_pending(what: &str) -> bool {
    let pending = std::fs::read_to_string(repository_golden().join("PENDING")).unwrap();
    let owed = format!("vectors/envs/{what}");
    let is_pending = pending.lines().any(|line| line.split(' ').next() == Some(&owed));
    if is_pending {
        println!("pending: {owed}");
    }
    is_pending
}

#[test]
fn golden_every_file_is_tested_or_pending() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_tested = FILES.concat().contains(&name.as_str());
        assert!(is_tested || name.ends_with(".md") || is_pending(&name), "nothing tests {name}");
        assert!(!(is_tested && is_pending(&name)), "{name} is tested, so it is not pending");
    }
}

/// The entries of a file; the file must have them under that one key.
fn entries(file: &str, key: &str) -> (Value, Vec<Value>) {
    let path = folder().join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let content: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(content["format"], 1, "{file}");
    let entries = content[key].as_array().unwrap_or_else(|| panic!("{file} has no {key}")).clone();
    assert!(!entries.is_empty());
    (content, entries)
}

fn close(got: f64, want: &Value, what: &str) {
    let want = want.as_f64().unwrap_or_else(|| panic!("{what}: {want} is no number"));
    assert!((got - want).abs() < 1e-9, "{what}: {got} is not {want}");
}

/// Compares what an action did with a recorded step.
fn compare(step: &Step, env: &dyn Env, want: &Value, what: &str) {
    close(step.reward, &want["reward"], what);
    assert_eq!(env.observation(), want["observation"].as_str().unwrap(), "{what}");
    assert_eq!(step.ended(), want["done"].as_bool().unwrap(), "{what}: done");
    let info = want["info"].as_object().unwrap();
    assert_eq!(info.len(), 3, "{what}: {info:?}");
    assert_eq!(Some(step.valid), info["action_is_valid"].as_bool(), "{what}: valid");
    assert_eq!(Some(step.effective), info["action_is_effective"].as_bool(), "{what}: effective");
    assert_eq!(Some(step.success), info["success"].as_bool(), "{what}: success");
}

fn steps(episode: &Value) -> Vec<(String, Value)> {
    let name = episode["name"].as_str().unwrap();
    let numbered = episode["steps"].as_array().unwrap().iter().enumerate();
    numbered.map(|(i, step)| (format!("{name} step {i}"), step.clone())).collect()
}

#[test]
fn golden_generator_stats() {
    for case in entries("generator_stats.json", "cases").1 {
        let name = case["name"].as_str().unwrap();
        match (case.get("dim_room"), case.get("maps")) {
            (Some(_), None) => sokoban::stats(name, &case),
            (None, Some(_)) => frozen_lake::stats(name, &case),
            _ if case.get("max_tile_hist").is_some() => game_2048::stats(name, &case),
            _ => {
                let owed = format!("generator_stats.json#{name}");
                assert!(is_pending(&owed), "unknown case {owed}, and PENDING lacks it");
            }
        }
    }
}

fn band(name: &str, what: &str, got: f64, want: &Value, slack: f64) {
    let want = want.as_f64().unwrap();
    assert!((got - want).abs() <= slack, "{name}: {what} is {got:.3}, recorded {want:.3} within {slack:.3}");
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (n, sum) = values.into_iter().fold((0, 0.0), |(n, sum), value| (n + 1, sum + value));
    sum / n as f64
}

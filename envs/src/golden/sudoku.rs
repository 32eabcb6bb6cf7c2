//! Sudoku: recorded episodes. RAGEN's ways of reading triples and of ending are a setting, so all of them are played with it.

use super::{close, entries, steps};
use crate::Env;
use crate::sudoku::Sudoku;
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &["sudoku.json"];

/// The grid of an observation.
fn shown(text: &str, n: usize) -> Value {
    let rows: Vec<Vec<u8>> = text
        .lines()
        .map(|line| {
            let cells = line.split(|c: char| c.is_whitespace() || "[]*|".contains(c)).filter(|cell| !cell.is_empty());
            cells.map(|cell| if cell == "." { Some(0) } else { cell.parse().ok() }).collect::<Option<Vec<u8>>>()
        })
        .filter_map(|row| row.filter(|row| row.len() == n))
        .collect();
    json!(rows)
}

/// The numbers that fit, as an observation lists them: those instead of a refused one first.
fn fitting(text: &str) -> Value {
    let lines = text.lines().filter(|line| line.starts_with("  ("));
    let read = |line: &str| {
        let (cell, numbers) = line.trim().split_once("): ").unwrap();
        let (row, col) = cell[1..].split_once(", ").unwrap();
        let numbers: Value = serde_json::from_str(numbers).unwrap();
        json!([row.parse::<u8>().unwrap(), col.parse::<u8>().unwrap(), numbers])
    };
    lines.map(read).collect()
}

#[test]
fn golden_sudoku() {
    for episode in entries("sudoku.json", "episodes").1 {
        let name = episode["name"].as_str().unwrap();
        let mut config = episode["config"].clone();
        config["parity"] = json!(true);
        let n = config["grid_size"].as_u64().unwrap() as usize;
        let mut env = Sudoku::new(&config).unwrap();
        env.load_state(&episode["initial_state"]).unwrap();
        assert_eq!(shown(&env.observation(), n), episode["initial_grid_shown"], "{name}");
        for (what, want) in steps(&episode) {
            let action = want["action"].as_str().unwrap();
            let refusal = env.refusal(action);
            let step = env.step(action).unwrap();
            close(step.reward, &want["reward"], &what);
            assert_eq!(step.ended(), want["done"] == true, "{what}");
            let number = |key: &str| step.info.iter().find(|(name, _)| name == key).map(|(_, x)| *x);
            let info = want["info"].as_object().unwrap();
            for (key, value) in info {
                match key.as_str() {
                    "action_is_valid" => assert_eq!(step.valid, *value == true, "{what}"),
                    "action_is_effective" => assert_eq!(step.effective, *value == true, "{what}"),
                    "success" => assert_eq!(step.success, *value == true, "{what}"),
                    "correct_placement" => assert_eq!(number(key), Some(f64::from(u8::from(*value == true))), "{what}"),
                    "steps_remaining" | "cells_filled" | "cells_remaining" => close(number(key).unwrap(), value, &what),
                    "has_error" => assert_eq!(refusal.is_some(), *value == true, "{what}"),
                    "valid_numbers" => assert_eq!(json!(refusal.as_ref().unwrap().valid_numbers), *value, "{what}"),
                    other => panic!("{what}: nothing tests {other}"),
                }
            }
            assert_eq!(refusal.is_some(), info.contains_key("has_error"), "{what}");
            let listed = refusal.is_some_and(|refusal| refusal.valid_numbers.is_some());
            assert_eq!(listed, info.contains_key("valid_numbers"), "{what}");
            assert_eq!(shown(&env.observation(), n), want["grid_shown"], "{what}");
            assert_eq!(fitting(&env.observation()), want["valid_numbers_shown"], "{what}");
        }
    }
}

//! The recorded behaviour in `tests/golden/vectors/envs` (or the folder of that layout that `RAGEN_GOLDEN` names): every
//! case of the files of these tasks, started from its recorded state and fed its recorded draws.

use crate::bandit::{Bandit, TEST_ARMS, TRAIN_ARMS};
use crate::frozen_lake::{CYCLE, FrozenLake};
use crate::sokoban::{Level, Sokoban, solve};
use crate::{Env, Mode, Step, Stream};
use serde_json::{Value, json};
use std::path::PathBuf;

const FILES: [&str; 5] =
    ["bandit.json", "frozen_lake.json", "frozen_lake_transitions.json", "generator_stats.json", "sokoban.json"];

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
        let is_tested = FILES.contains(&name.as_str());
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
fn golden_sokoban() {
    for episode in entries("sokoban.json", "episodes").1 {
        let name = episode["name"].as_str().unwrap();
        let mut env = Sokoban::new(&episode["config"]).unwrap();
        env.load_state(&episode["initial_state"]).unwrap();
        assert_eq!(json!(env.level().unwrap().player()), episode["initial_state"]["player_position"], "{name}");
        assert_eq!(env.observation(), episode["initial_observation"].as_str().unwrap(), "{name}");
        let shortest = solve(env.level().unwrap(), 100).map(|plan| plan.len() as u64);
        assert_eq!(shortest, episode["shortest_solution_len"].as_u64(), "{name}");
        for (what, want) in steps(&episode) {
            let action = want["action_name"].as_str().unwrap();
            assert_eq!(env.actions().unwrap()[want["action"].as_u64().unwrap() as usize - 1], action, "{what}");
            let step = env.step(action).unwrap();
            compare(&step, &env, &want, &what);
            let level = env.level().unwrap();
            let live: String = level.cells().map(|at| level.live(at).to_string()).collect();
            assert_eq!(live, want["room_state"].as_str().unwrap(), "{what}");
        }
    }
}

#[test]
fn golden_frozen_lake() {
    for episode in entries("frozen_lake.json", "episodes").1 {
        let name = episode["name"].as_str().unwrap();
        let mut env = FrozenLake::new(&episode["config"]).unwrap();
        let mut state = episode["initial_state"].clone();
        state["noise"] = json!(Stream::new(0));
        env.load_state(&state).unwrap();
        assert_eq!(env.observation(), episode["initial_observation"].as_str().unwrap(), "{name}");
        for (what, want) in steps(&episode) {
            let id = want["action"].as_u64().unwrap() as usize;
            assert_eq!(env.actions().unwrap()[id - 1], want["action_name"].as_str().unwrap(), "{what}");
            // No draw is recorded where none decides.
            let realised = env.slip(CYCLE[id - 1], want["uniform_draw"].as_f64().unwrap_or(0.5));
            if let Some(direction) = want["realised_direction"].as_str() {
                assert_eq!(realised.name(), direction, "{what}");
            }
            let step = env.slide(realised).unwrap();
            compare(&step, &env, &want, &what);
            assert_eq!(env.state()["player"], want["player"], "{what}");
        }
    }
}

#[test]
fn golden_frozen_lake_transitions() {
    for table in entries("frozen_lake_transitions.json", "tables").1 {
        let name = table["name"].as_str().unwrap();
        let size = table["desc"].as_array().unwrap().len();
        let config = json!({"size": size, "success_rate": table["success_rate"], "is_slippery": table["is_slippery"]});
        let mut env = FrozenLake::new(&config).unwrap();
        let states = table["transitions"].as_object().unwrap();
        assert_eq!(states.len(), size * size, "{name}");
        for (state, by_direction) in states {
            let at: usize = state.parse().unwrap();
            let start = json!({"desc": table["desc"], "player": [at / size, at % size], "noise": Stream::new(0)});
            assert_eq!(by_direction.as_object().unwrap().len(), 4);
            for (direction, outcomes) in by_direction.as_object().unwrap() {
                let direction: usize = direction.parse().unwrap();
                let outcomes = outcomes.as_array().unwrap();
                // A tile that holds the player has one outcome, which any draw leads to.
                let absorbing = outcomes.len() == 1;
                let mut sum = 0.0;
                for (k, weight) in env.slip_weights().into_iter().enumerate().filter(|(_, w)| *w > 0.0 || !absorbing) {
                    let what = format!("{name} state {state} direction {direction} outcome {k}");
                    let want = &outcomes[if absorbing { 0 } else { k }];
                    let realised = CYCLE[(direction + 3 + k) % 4];
                    if weight > 0.0 {
                        assert_eq!(env.slip(CYCLE[direction], sum + weight / 2.0), realised, "{what}");
                    }
                    sum += weight;
                    env.load_state(&start).unwrap();
                    let step = env.slide(realised).unwrap();
                    if !absorbing {
                        close(weight, &want[0], &what);
                    }
                    let next = want[1].as_u64().unwrap() as usize;
                    assert_eq!(env.state()["player"], json!([next / size, next % size]), "{what}");
                    close(step.reward, &want[2], &what);
                    assert_eq!(Some(step.terminated), want[3].as_bool(), "{what}");
                }
                assert!((sum - 1.0).abs() < 1e-9);
            }
        }
    }
}

#[test]
fn golden_bandit() {
    let (content, episodes) = entries("bandit.json", "episodes");
    assert_eq!(content["arms"]["train"], json!(TRAIN_ARMS));
    assert_eq!(content["arms"]["test"], json!(TEST_ARMS));
    for episode in episodes {
        let name = episode["name"].as_str().unwrap();
        let mut env = Bandit::new(&episode["config"]).unwrap();
        let draws: Vec<f64> = episode["draws"].as_array().unwrap().iter().map(|u| u.as_f64().unwrap()).collect();
        env.deal(draws[0], draws[1], Stream::new(0));
        let (state, want) = (env.state(), &episode["initial_state"]);
        assert_eq!(state["pair_index"], want["pair_index"], "{name}");
        assert_eq!(state["action_lookup"], want["action_lookup"], "{name}");
        assert_eq!(json!(env.actions()), episode["prompt_names_arms_in_order"], "{name}");
        let prompt = env.observation();
        let at = env.actions().unwrap().iter().map(|arm| prompt.find(arm).unwrap()).collect::<Vec<_>>();
        assert!(at[0] < at[1], "{name}: {prompt}");
        let mut draws = draws[2..].iter();
        for (what, step) in steps(&episode) {
            let arm = step["action_name"].as_str().unwrap();
            assert_eq!(state["action_lookup"][step["action"].to_string()], arm, "{what}");
            let risky = want["hi_arm"] == arm;
            assert!(risky || want["lo_arm"] == arm, "{what}");
            let reward = env.payoff(risky, || *draws.next().unwrap());
            let done = env.pull(risky, reward);
            compare(&done, &env, &step, &what);
        }
        assert!(draws.next().is_none(), "{name}: a draw was left over");
    }
}

#[test]
fn golden_generator_stats() {
    for case in entries("generator_stats.json", "cases").1 {
        let name = case["name"].as_str().unwrap();
        match (case.get("dim_room"), case.get("maps")) {
            (Some(_), None) => sokoban_stats(name, &case),
            (None, Some(_)) => frozen_lake_stats(name, &case),
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

fn sokoban_stats(name: &str, case: &Value) {
    let boxes = case["num_boxes"].as_u64().unwrap() as usize;
    let config = json!({"dim_room": case["dim_room"], "num_boxes": boxes, "search_depth": case["search_depth"]});
    let mut env = Sokoban::new(&config).unwrap();
    let n = case["seeds"].as_u64().unwrap().max(300);
    let levels: Vec<Level> = (0..n)
        .map(|seed| {
            env.reset(seed, 0, Mode::Train).unwrap();
            *env.level().unwrap()
        })
        .collect();
    let mut lengths: Vec<usize> = levels.iter().filter_map(|level| Some(solve(level, 100)?.len())).collect();
    assert_eq!(lengths.len(), levels.len(), "{name}: every level has a solution");
    lengths.sort_unstable();
    let near = |a: (usize, usize), b: (usize, usize)| a.0.abs_diff(b.0) + a.1.abs_diff(b.1);
    let is_box = |level: &Level, at| level.live(at) == 4;
    let floor = levels.iter().map(|level| level.cells().filter(|at| level.fixed(*at) != 0).count() as f64);
    let beside = levels
        .iter()
        .map(|level| f64::from(level.cells().any(|at| is_box(level, at) && near(at, level.player()) == 1)));
    let on_target = levels.iter().map(|level| f64::from(level.fixed(level.player()) == 2));
    band(name, "floor tiles", mean(floor), &case["floor_tiles_mean"], 1.5);
    band(name, "player beside a box", mean(beside), &case["player_adjacent_to_box"], 0.1);
    band(name, "player on a target", mean(on_target), &case["player_on_target"], 0.05);
    band(name, "mean solution", mean(lengths.iter().map(|len| *len as f64)), &case["shortest_len_mean"], 0.6);
    band(name, "median solution", lengths[lengths.len() / 2] as f64, &case["shortest_len_median"], 1.0);
    band(name, "90 % solution", lengths[lengths.len() * 9 / 10] as f64, &case["shortest_len_p90"], 1.5);
    band(name, "longest solution", lengths[lengths.len() - 1] as f64, &case["shortest_len_max"], 5.0);
    if boxes == 1 {
        let displaced = levels.iter().map(|level| {
            let at = |wanted: &dyn Fn((usize, usize)) -> bool| level.cells().find(|at| wanted(*at)).unwrap();
            near(at(&|at| is_box(level, at)), at(&|at| level.fixed(at) == 2)) as f64
        });
        band(name, "displacement", mean(displaced), &case["displacement_mean"], 0.3);
    }
}

fn frozen_lake_stats(name: &str, case: &Value) {
    let mut env = FrozenLake::new(&json!({"size": case["size"], "p": case["p"], "is_slippery": false})).unwrap();
    let (mut holes, mut lengths) = (Vec::new(), Vec::new());
    for seed in 0..case["maps"].as_u64().unwrap() {
        env.reset(seed, 0, Mode::Train).unwrap();
        let rows = env.state()["desc"].to_string();
        holes.push(rows.matches('H').count() as f64);
        let plan = env.demonstrate(&crate::Demonstration::perfect(1000), &mut Stream::new(0)).unwrap();
        lengths.push(plan.actions.len() as f64);
    }
    band(name, "holes", mean(holes), &case["holes_mean"], 0.15 + 0.04 * case["holes_mean"].as_f64().unwrap());
    band(name, "shortest path", mean(lengths), &case["shortest_mean"], 0.35);
}

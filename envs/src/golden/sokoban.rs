//! Sokoban: recorded episodes, and how recorded levels are distributed.

use super::{band, compare, entries, mean, steps};
use crate::sokoban::{Level, Sokoban, solve};
use crate::{Env, Mode};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &["sokoban.json"];

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

pub(super) fn stats(name: &str, case: &Value) {
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

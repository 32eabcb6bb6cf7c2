//! FrozenLake: recorded episodes, the tables of transitions, and how recorded maps are distributed.

use super::{band, close, compare, entries, mean, steps};
use crate::frozen_lake::{CYCLE, FrozenLake};
use crate::{Demonstration, Env, Mode, Stream};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &["frozen_lake.json", "frozen_lake_transitions.json"];

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

pub(super) fn stats(name: &str, case: &Value) {
    let mut env = FrozenLake::new(&json!({"size": case["size"], "p": case["p"], "is_slippery": false})).unwrap();
    let (mut holes, mut lengths) = (Vec::new(), Vec::new());
    for seed in 0..case["maps"].as_u64().unwrap() {
        env.reset(seed, 0, Mode::Train).unwrap();
        let rows = env.state()["desc"].to_string();
        holes.push(rows.matches('H').count() as f64);
        let plan = env.demonstrate(&Demonstration::perfect(1000), &mut Stream::new(0)).unwrap();
        lengths.push(plan.actions.len() as f64);
    }
    band(name, "holes", mean(holes), &case["holes_mean"], 0.15 + 0.04 * case["holes_mean"].as_f64().unwrap());
    band(name, "shortest path", mean(lengths), &case["shortest_mean"], 0.35);
}

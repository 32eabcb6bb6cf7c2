//! The cube: recorded episodes, the recorded turns, and the turns of the back face as a cube does them.

use super::{entries, steps};
use crate::Env;
use crate::rubikscube::{Cube, NAMES, RubiksCube, SOURCES};
use serde_json::Value;

pub(super) const FILES: &[&str] = &["rubikscube.json", "rubikscube_b_quirk.json"];

fn sources(table: &Value) {
    for (name, want) in table.as_object().unwrap() {
        let turn = NAMES.iter().position(|known| known == name).unwrap_or_else(|| panic!("no turn {name}"));
        assert_eq!(serde_json::json!(SOURCES[turn]), *want, "{name}");
    }
}

fn shown(env: &RubiksCube) -> String {
    env.state()["stickers"].as_array().unwrap().iter().map(Value::to_string).collect()
}

#[test]
fn golden_rubikscube() {
    let (content, episodes) = entries("rubikscube.json", "episodes");
    assert_eq!(content["move_sources"].as_object().unwrap().len(), 10);
    sources(&content["move_sources"]);
    for episode in episodes {
        let mut env = RubiksCube::new(&episode["config"]).unwrap();
        env.load_state(&episode["initial_state"]).unwrap();
        for (what, want) in steps(&episode) {
            let id = want["action"].as_u64().unwrap() as usize;
            assert_eq!(env.actions().unwrap()[id - 1], want["action_name"].as_str().unwrap(), "{what}");
            let step = env.step(want["action_name"].as_str().unwrap()).unwrap();
            assert_eq!((step.reward, step.ended()), (want["reward"].as_f64().unwrap(), want["done"] == true), "{what}");
            let info = want["info"].as_object().unwrap();
            assert_eq!(info.len(), 3, "{what}");
            let flags = ["action_is_valid", "action_is_effective", "success"].map(|key| info[key] == true);
            assert_eq!(flags, [step.valid, step.effective, step.success], "{what}");
            assert_eq!(shown(&env), want["stickers"].as_str().unwrap(), "{what}");
        }
    }
}

/// RAGEN's own turns of the back face take corners apart; the recorded episodes with them are shown to part from ours
/// exactly where such a turn is made.
#[test]
fn golden_rubikscube_back_face() {
    let (content, episodes) = entries("rubikscube_b_quirk.json", "episodes");
    sources(&content["physical_B_sources"]);
    let physical = content["physical_episodes"].as_array().unwrap();
    assert_eq!(physical.len(), episodes.len());
    let mut n_apart = 0;
    for (reference, physical) in episodes.iter().zip(physical) {
        let name = physical["name"].as_str().unwrap();
        let stickers: Vec<u8> = serde_json::from_value(physical["initial_stickers"].clone()).unwrap();
        assert_eq!(physical["initial_stickers"], reference["initial_state"]["stickers"], "{name}");
        let mut cube = Cube(stickers.try_into().unwrap());
        let (mut apart, mut turned_back) = (false, false);
        let pairs = physical["steps"].as_array().unwrap().iter().zip(reference["steps"].as_array().unwrap());
        for (want, theirs) in pairs {
            let action = want["action_name"].as_str().unwrap();
            assert_eq!(theirs["action_name"], *action, "{name}");
            cube = cube.turn(NAMES.iter().position(|known| *known == action).unwrap());
            let shown: String = cube.0.iter().map(u8::to_string).collect();
            assert_eq!(shown, want["stickers"].as_str().unwrap(), "{name} {action}");
            assert_eq!(cube.is_solved(), want["solved"] == true, "{name} {action}");
            turned_back |= action.starts_with('B');
            apart |= theirs["stickers"] != *shown;
            assert!(turned_back || !apart, "{name} {action}: they part before the back face is turned");
        }
        n_apart += usize::from(apart);
    }
    assert!(n_apart >= 3, "{n_apart}");
}

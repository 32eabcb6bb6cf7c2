//! 2048: recorded episodes, each move followed by the tile that was recorded, and how long random play lasts.

use super::{band, close, entries, mean, steps};
use crate::game_2048::{Game2048, NAMES};
use crate::{Env, Mode, Stream};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &["game_2048.json"];

fn mask(game: &Game2048) -> Value {
    let text = game.observation();
    let (_, listed) = text.split_once("Valid Actions: ").unwrap();
    let listed = listed.lines().next().unwrap();
    json!([0, 1, 2, 3].map(|id| listed.contains(&format!("{id}({})", NAMES[id]))))
}

#[test]
fn golden_game_2048() {
    for episode in entries("game_2048.json", "episodes").1 {
        let name = episode["name"].as_str().unwrap();
        let mut game = Game2048::new(&episode["config"]).unwrap();
        let mut state = episode["initial_state"].clone();
        state["tiles"] = json!(Stream::new(0));
        game.load_state(&state).unwrap();
        assert_eq!(mask(&game), episode["initial_action_mask"], "{name}");
        for (what, want) in steps(&episode) {
            let id = want["action"].as_u64().unwrap() as usize;
            assert_eq!(game.actions().unwrap()[id], want["action_name"].as_str().unwrap(), "{what}");
            let spawn = &want["spawn"];
            let step = game.play(id, |_, board, _| {
                let at =
                    |key: &str| spawn[key].as_u64().unwrap_or_else(|| panic!("{what}: no tile is recorded")) as usize;
                board.put(at("row") * board.side() + at("col"), at("value").trailing_zeros() as u8);
            });
            let step = step.unwrap();
            close(step.reward, &want["reward"], &what);
            assert_eq!(step.ended(), want["done"] == true, "{what}");
            let info = want["info"].as_object().unwrap();
            let number = |key: &str| step.info.iter().find(|(name, _)| name == key).map(|(_, x)| *x);
            for (key, value) in info {
                match key.as_str() {
                    "action_is_valid" => assert_eq!(step.valid, *value == true, "{what}"),
                    "action_is_effective" => assert_eq!(step.effective, *value == true, "{what}"),
                    "success" => assert_eq!(step.success, *value == true, "{what}"),
                    "grid" => assert_eq!(game.state()["grid"], *value, "{what}"),
                    "action_mask" => assert_eq!(mask(&game), *value, "{what}"),
                    "score" | "raw_reward" | "max_tile" => close(number(key).unwrap(), value, &what),
                    other => panic!("{what}: nothing tests {other}"),
                }
            }
            assert_eq!(number("max_tile").is_some(), info.contains_key("max_tile"), "{what}");
        }
    }
}

/// Legal moves at random, as many games as were recorded.
pub(super) fn stats(name: &str, case: &Value) {
    let n = case["games"].as_u64().unwrap();
    let mut games = Vec::new();
    for seed in 0..20 * n {
        let mut game = Game2048::new(&Value::Null).unwrap();
        game.reset(seed, 0, Mode::Train).unwrap();
        let (mut draws, mut length, mut last) = (Stream::new(seed), 0, None);
        while last.as_ref().is_none_or(|step: &crate::Step| !step.ended()) {
            let step = game.step(NAMES[draws.below(4)]).unwrap();
            length += usize::from(step.valid);
            last = Some(step);
        }
        games.push((game.state()["score"].as_f64().unwrap(), length as f64));
    }
    // Four standard errors of the recorded games.
    let slack = 4.0 * case["score_std"].as_f64().unwrap() / (n as f64).sqrt();
    band(name, "the mean score", mean(games.iter().map(|game| game.0)), &case["score_mean"], slack);
    band(name, "the mean length", mean(games.iter().map(|game| game.1)), &case["length_mean"], 25.0);
}

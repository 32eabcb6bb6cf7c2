//! Bandit: recorded episodes.

use super::{compare, entries, steps};
use crate::bandit::{Bandit, TEST_ARMS, TRAIN_ARMS};
use crate::{Env, Stream};
use serde_json::json;

pub(super) const FILES: &[&str] = &["bandit.json"];

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

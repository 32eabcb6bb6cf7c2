//! Countdown: recorded points of answers, and which rows of the data set are kept.

use super::{compare, entries};
use crate::Env;
use crate::countdown::{Countdown, Problem, has_signed_sum};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &["countdown.json", "countdown_filter.json"];

fn problem(case: &Value) -> Problem {
    serde_json::from_value(json!({"nums": case["nums"], "target": case["target"]})).unwrap()
}

#[test]
fn golden_countdown() {
    let (content, cases) = entries("countdown.json", "cases");
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let mut env = Countdown::new(&content["scores"]).unwrap();
        env.pose(problem(&case));
        assert_eq!(env.observation(), case["prompt"].as_str().unwrap(), "{name}");
        let step = env.step(case["answer"].as_str().unwrap()).unwrap();
        match case["portable"].as_bool().unwrap() {
            true => compare(&step, &env, &case, name),
            // What only Python takes for an expression is none here: the points of the right numbers.
            false => assert!(step.terminated && !step.success && step.reward == 0.1, "{name}: {step:?}"),
        }
    }
}

#[test]
fn golden_countdown_filter() {
    for case in entries("countdown_filter.json", "cases").1 {
        let Problem { nums, target } = problem(&case);
        assert_eq!(Some(has_signed_sum(&nums, target)), case["has_solution"].as_bool(), "{}", case["name"]);
    }
}

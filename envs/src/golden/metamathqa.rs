//! MetaMathQA: recorded episodes, labels, and the scorers of the static question sets.

use super::{close, entries, steps};
use crate::Env;
use crate::metamathqa::{Metamathqa, Scoring, choice, extract, label, normalised, number};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &["metamathqa.json", "metamathqa_extract.json", "static_scoring.json"];

#[test]
fn golden_metamathqa() {
    for episode in entries("metamathqa.json", "episodes").1 {
        for parity in [false, true] {
            let mut env = Metamathqa::new(&json!({"parity": parity})).unwrap();
            env.load_state(&episode["initial_state"]).unwrap();
            for (what, want) in steps(&episode) {
                let step = env.step(want["action"].as_str().unwrap()).unwrap();
                close(step.reward, &want["reward"], &what);
                assert_eq!(env.observation(), want["observation"].as_str().unwrap(), "{what}");
                assert_eq!(step.ended(), want["done"].as_bool().unwrap(), "{what}");
                let got = json!({"action_is_valid": step.valid, "success": step.success});
                assert_eq!(got, want["info"], "{what}");
            }
        }
    }
}

#[test]
fn golden_metamathqa_extract() {
    for case in entries("metamathqa_extract.json", "cases").1 {
        assert_eq!(json!(label(case["response"].as_str().unwrap())), case["answer"], "{}", case["name"]);
    }
}

#[test]
fn golden_static_scoring() {
    for case in entries("static_scoring.json", "cases").1 {
        let (name, want) = (case["name"].as_str().unwrap(), &case["result"]);
        let text = |key: &str| case[key].as_str().unwrap_or_default();
        let (prediction, label) = (text("prediction"), text("label"));
        let got = match case["scorer"].as_str().unwrap() {
            "numeric" => json!({
                "is_correct": Scoring::Numeric.is_correct(prediction, label, true),
                "is_valid": number(prediction, true).is_some(),
                // The reference compares numbers only where the texts differ.
                "numeric_match": normalised(prediction) != normalised(label)
                    && number(prediction, true).is_some_and(|value| Some(value) == number(label, true)),
                "text_match": normalised(prediction) == normalised(label),
            }),
            "multiple_choice" => json!({
                "is_correct": Scoring::Choice.is_correct(prediction, label, true),
                "is_valid": choice(prediction, true).is_some(),
                "extracted_prediction": choice(prediction, true),
                "extracted_label": choice(label, true),
            }),
            "exact_match" => json!({
                "is_correct": Scoring::Exact.is_correct(prediction, label, true),
                "is_valid": !normalised(prediction).is_empty(),
                "normalized_prediction": normalised(prediction),
                "normalized_label": normalised(label),
            }),
            "extract_answer_from_text" => Value::from(extract(text("text"))),
            other => panic!("{name}: unknown scorer {other}"),
        };
        assert_eq!(&got, want, "{name}");
        corrected(name, prediction, label);
    }
}

/// The cases that the corrected rules judge otherwise.
fn corrected(name: &str, prediction: &str, label: &str) {
    match name {
        "numeric_03" => assert!(!Scoring::Numeric.is_correct(prediction, label, false), "-42 is not 42"),
        "numeric_05" | "numeric_12" | "numeric_13" => {
            assert!(Scoring::Numeric.is_correct(prediction, label, false), "{name}");
        }
        "multiple_choice_16" => assert_eq!(choice(prediction, false), Some('B')),
        "multiple_choice_18" | "multiple_choice_21" => {
            assert!(Scoring::Choice.is_correct(prediction, label, false), "{name}");
        }
        _ => {}
    }
}

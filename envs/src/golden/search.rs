//! Search: recorded episodes with recorded results, and how texts are normalised, scored, read and shown.

use super::{close, entries, steps};
use crate::Env;
use crate::search::library::{Hit, format};
use crate::search::{Search, scoring};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &[
    "search_episodes.json",
    "search_extract.json",
    "search_format.json",
    "search_normalize.json",
    "search_reward.json",
];

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap()
}

#[test]
fn golden_search_normalize() {
    for case in entries("search_normalize.json", "cases").1 {
        assert_eq!(scoring::normalise(text(&case, "text")), text(&case, "normalized"), "{}", case["name"]);
    }
}

#[test]
fn golden_search_extract() {
    for case in entries("search_extract.json", "cases").1 {
        assert_eq!(scoring::extract(text(&case, "text")), text(&case, "extracted"), "{}", case["name"]);
    }
}

#[test]
fn golden_search_format() {
    for case in entries("search_format.json", "cases").1 {
        let hit = |hit: &Value| Hit {
            id: text(hit, "id").to_owned(),
            content: text(hit, "content").to_owned(),
            score: hit["score"].as_f64().unwrap(),
        };
        let hits: Vec<Hit> = case["results"].as_array().unwrap().iter().map(hit).collect();
        let limit = |key: &str| case[key].as_u64().unwrap() as usize;
        let shown = format(&hits, limit("max_results"), limit("max_total_chars"));
        assert_eq!(shown, text(&case, "formatted"), "{}", case["name"]);
    }
}

#[test]
fn golden_search_reward() {
    for case in entries("search_reward.json", "cases").1 {
        let name = text(&case, "name");
        let env = Search::new(&case["params"]).unwrap();
        close(env.reward(text(&case, "answer"), &case["ground_truth"]), &case["reward"], name);
        let truths: Vec<String> =
            case["metadata"]["ground_truths"].as_array().unwrap().iter().map(|t| t.as_str().unwrap().into()).collect();
        let found = scoring::agreement(text(&case, "answer"), &truths);
        let want = &case["metadata"];
        assert_eq!(
            (found.best.as_str(), found.exact),
            (text(want, "best_match"), want["exact_match"] == true),
            "{name}"
        );
        for (key, value) in [("f1_score", found.f1), ("precision", found.precision), ("recall", found.recall)] {
            close(value, &want[key], &format!("{name} {key}"));
        }
    }
}

/// The documents of an observation: name and score.
fn shown(observation: &str) -> Value {
    let lines = observation.lines().filter(|line| line.starts_with("[Document "));
    let read = |line: &str| {
        let (_, rest) = line.split_once("(ID: ").unwrap();
        let (id, score) = rest.trim_end_matches(')').split_once(", Score: ").unwrap();
        json!([id, score])
    };
    lines.map(read).collect()
}

#[test]
fn golden_search_episodes() {
    for episode in entries("search_episodes.json", "episodes").1 {
        let mut config = episode["config"].clone();
        config["parity"] = json!(true);
        let start = &episode["initial_state"];
        let mut env = Search::with(&config, text(start, "question"), &start["ground_truth"], &start["retrieval"]);
        for (what, want) in steps(&episode) {
            let step = env.step(text(&want, "action")).unwrap();
            close(step.reward, &want["reward"], &what);
            assert_eq!(step.ended(), want["done"] == true, "{what}");
            assert_eq!(shown(&env.observation()), want["documents_shown"], "{what}");
            let said = |key: &str, begin: &str, end: &str| {
                let wanted = format!("{begin}{}{end}", text(&want["info"], key));
                assert!(env.observation().starts_with(&wanted), "{what}: {}", env.observation());
            };
            for (key, value) in want["info"].as_object().unwrap() {
                match key.as_str() {
                    "action_is_valid" => assert_eq!(step.valid, *value == true, "{what}"),
                    "action_is_effective" => assert_eq!(step.effective, *value == true, "{what}"),
                    "success" => assert_eq!(step.success, *value == true, "{what}"),
                    "query" => said(key, "Search results for '", "':\n"),
                    "answer" | "extracted_answer" => said(key, "Your answer: ", ". Reward: "),
                    "action_type" => {
                        let free = value == "fallback" || value == "invalid";
                        assert_eq!(free, !step.valid, "{what}");
                    }
                    "raw_action" => assert_eq!(value.as_str(), Some(text(&want, "action").trim()), "{what}"),
                    "reward_metadata" => close(step.reward, &value["reward"], &what),
                    other => panic!("{what}: nothing tests {other}"),
                }
            }
        }
    }
}

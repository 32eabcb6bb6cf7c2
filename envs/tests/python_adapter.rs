//! `envs/python/ragen_env.py`: classes with Gymnasium's `reset` and `step` conform, over pipes and over HTTP; and Gymnasium's own
//! FrozenLake and Taxi, where `RAGEN_PYTHON` (or `python3`) has the package.

use ragen_envs::{Mode, conformance, make};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn python() -> String {
    std::env::var("RAGEN_PYTHON").unwrap_or_else(|_| "python3".into())
}

fn can(code: &str, test: &str) -> bool {
    let output = Command::new(python()).args(["-c", code]).output();
    let can = output.is_ok_and(|output| output.status.success());
    let required = std::env::var("RAGEN_REQUIRE_GYMNASIUM").is_ok();
    assert!(can || !required, "{} cannot run {code:?}, which RAGEN_REQUIRE_GYMNASIUM asks for", python());
    if !can {
        eprintln!("skipped: {test} needs a python that can run {code:?} (RAGEN_PYTHON names one)");
    }
    can
}

fn folder() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/python")
}

/// A counter with the interface of Gymnasium's classes, of no package.
const COUNTER: &str = r#"
import sys
sys.path.insert(0, sys.argv.pop(1))
import ragen_env

class Count:
    def reset(self, seed=None, options=None):
        self.at = seed % 3
        print("this goes to the error output")
        return self.at, {}
    def step(self, action):
        self.at += [1, -1][action]
        return self.at, float(self.at == 5), self.at == 5, self.at < -5, {"at": self.at, "bad": float("nan"), "note": "x"}

class Counter(ragen_env.Adapter):
    instruction = "Count to five."
    actions = ["Up", "Down"]
    def make(self, settings):
        return Count()
    def save(self):
        return self.env.at
    def load(self, saved):
        self.env.at = saved

ragen_env.main(Counter)
"#;

#[test]
fn a_class_of_ones_own_conforms_over_pipes() {
    if !can("import json, http.server", "a_class_of_ones_own") {
        return;
    }
    let config = json!({"command": [python(), "-c", COUNTER, folder()]});
    assert_eq!(conformance::restores_its_state(&|| make("process", &config)), Ok(()));
    let mut env = make("process", &config).unwrap();
    env.reset(2, 0, Mode::Train).unwrap();
    let steps: Vec<_> =
        ["up", "DOWN", "sideways", "Up", "Up", "Up", "Up"].map(|action| env.step(action).unwrap()).into();
    let seen: Vec<_> = steps.iter().map(|s| (s.reward, s.valid, s.terminated, s.success)).collect();
    let (go, no) = ((0.0, true, false, false), (0.0, false, false, false));
    assert_eq!(seen, [go, go, no, go, go, (1.0, true, true, true), (0.0, false, true, true)]);
    assert_eq!(steps[0].info, [("at".into(), 3.0)], "only finite numbers");
    assert_eq!((env.observation().as_str(), env.backend().unwrap().starts_with("Counter, played by `")), ("5", true));
}

#[test]
fn a_class_of_ones_own_conforms_over_http() {
    if !can("import json, http.server", "a_class_of_ones_own") {
        return;
    }
    let mut command = Command::new(python());
    command.args(["-c", COUNTER, folder(), "--port", "0"]).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut server = command.spawn().unwrap();
    let mut errors = BufReader::new(server.stderr.take().unwrap());
    let mut url = String::new();
    errors.read_line(&mut url).unwrap();
    std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
    let config = json!({"url": url.trim()});
    let failed = std::panic::catch_unwind(|| conformance::check(&|| make("http", &config)));
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(failed.unwrap(), Vec::<String>::new());
    let gone = make("http", &json!({"url": url.trim(), "step_seconds": 1})).err().unwrap().to_string();
    assert!(gone.starts_with(&format!("environment `http` failed: {} was asked to hello: ", url.trim())), "{gone}");
}

fn example(name: &str, settings: Value) -> Value {
    json!({"command": [python(), format!("{}/examples/{name}.py", folder())], "settings": settings})
}

#[test]
fn gymnasiums_own_lake_and_taxi_are_played() {
    if !can("import gymnasium", "gymnasiums_own_lake_and_taxi") {
        return;
    }
    let mut lake = make("process", &example("frozen_lake", json!({"is_slippery": false}))).unwrap();
    lake.reset(0, 0, Mode::Train).unwrap();
    assert_eq!(lake.observation(), "[S] F F F\nF H F H\nF F F H\nH F F G");
    for action in ["Down", "Down", "Right", "Right", "Down"] {
        assert!(!lake.step(action).unwrap().ended());
    }
    let last = lake.step("Right").unwrap();
    assert!(last.success && last.terminated && last.reward == 1.0, "{last:?}");
    let taxi = example("taxi", json!({}));
    let mut env = make("process", &taxi).unwrap();
    env.reset(3, 0, Mode::Train).unwrap();
    assert!(env.observation().starts_with("Taxi: row "), "{}", env.observation());
    assert_eq!(env.step("Pickup").unwrap().reward, -10.0);
    assert_eq!(conformance::is_deterministic(&|| make("process", &taxi)), Ok(()));
    let slippery = example("frozen_lake", json!({}));
    assert_eq!(conformance::restores_its_state(&|| make("process", &slippery)), Ok(()));
}

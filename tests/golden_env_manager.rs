//! The environment manager against the published behaviour: seeds, what a turn does, metrics.

use ragen::config::{EnvSet, Tag};
use ragen::env_manager::metrics::{Metrics, add_pass_at_k, aggregate, episode_metrics};
use ragen::env_manager::{EnvManager, Episode, TagRules};
use ragen::trajectory::Outcome;
use ragen_envs::{Env, EnvError, Legend, Mode, Recap, Step};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

const FILE: &str = "vectors/env_manager.json";
const PENALTY_TOLERANCE: f64 = 1e-4;

/// Plays back one `[reward, done, info]` an action, then nothing.
struct Scripted {
    names: Option<Vec<String>>,
    script: Vec<Value>,
    next: usize,
}

impl Env for Scripted {
    fn reset(&mut self, _seed: u64, _member: u64, _mode: Mode) -> Result<(), EnvError> {
        self.next = 0;
        Ok(())
    }

    fn observation(&self) -> String {
        "state".into()
    }

    fn step(&mut self, _action: &str) -> Result<Step, EnvError> {
        let mut step = Step::default();
        let Some(line) = self.script.get(self.next) else { return Ok(step) };
        self.next += 1;
        step.reward = number(&line[0]);
        step.terminated = line[1].as_bool().unwrap();
        for (key, value) in line[2].as_object().unwrap() {
            match key.as_str() {
                "success" => step.success = number(value) != 0.0,
                "action_is_valid" => step.valid = number(value) != 0.0,
                "action_is_effective" => step.effective = number(value) != 0.0,
                // A value that is no number is what NaN says; the names of the script are few.
                _ => step.info.push((key.clone().into(), number(value))),
            }
        }
        Ok(step)
    }

    fn actions(&self) -> Option<Vec<String>> {
        self.names.clone()
    }

    fn instruction(&self) -> String {
        String::new()
    }

    fn legend(&self) -> Legend {
        Legend::default()
    }

    fn state(&self) -> Value {
        self.next.into()
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        self.next = state.as_u64().unwrap() as usize;
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        self.next as u64
    }
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Bool(on) => f64::from(u8::from(*on)),
        Value::Number(x) => x.as_f64().unwrap(),
        _ => f64::NAN,
    }
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= PENALTY_TOLERANCE * expected.abs().max(1.0)
}

fn assert_metrics(found: &Metrics, expected: &Value, name: &str) {
    let expected = expected.as_object().unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), sorted(expected.keys()), "{name}");
    for (key, value) in expected {
        assert!(close(found[key], number(value)), "{name}: {key} is {}, not {value}", found[key]);
    }
}

fn sorted<'a>(keys: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut keys: Vec<_> = keys.collect();
    keys.sort();
    keys
}

#[test]
fn golden_env_manager() {
    let root = std::env::var_os("RAGEN_GOLDEN")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden"), PathBuf::from);
    let text = std::fs::read_to_string(root.join(FILE)).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let (inputs, expected) = (&case["inputs"], &case["expected"]);
        match inputs["op"].as_str().unwrap() {
            "seeds" => check_seeds(name, inputs, expected),
            "episode" => check_episode(name, inputs, expected),
            "pass_at_k" => check_pass_at_k(name, inputs, expected),
            "aggregate" => check_aggregate(name, inputs, expected),
            op => panic!("{name}: unknown operation {op}"),
        }
    }
}

fn check_seeds(name: &str, inputs: &Value, expected: &Value) {
    let size = |key: &str| inputs[key].as_u64().unwrap() as usize;
    let set = EnvSet {
        tags: vec!["T".into()],
        groups: size("env_groups"),
        n_groups: Vec::new(),
        group_size: size("group_size"),
        seed: inputs["base_seed"].as_u64().unwrap_or(123),
        workers: 0,
    };
    let tag = Tag { r#type: "bandit".into(), max_actions: 1, ..Tag::default() };
    let mode = if inputs["mode"] == "train" { Mode::Train } else { Mode::Val };
    let mut manager = EnvManager::new(&set, &BTreeMap::from([("T".into(), tag)]), mode).unwrap();
    let mut seeds = Vec::new();
    for seed in inputs["explicit_seeds"].as_array().unwrap() {
        let broken = match seed.as_u64() {
            Some(seed) => manager.reset_at(seed),
            None => manager.reset(),
        };
        assert!(broken.unwrap().is_empty());
        seeds.push(Value::from(manager.episodes.iter().map(|e| e.seed).collect::<Vec<_>>()));
    }
    let wanted = expected.get("sane_seeds").unwrap_or(&expected["seeds"]);
    let flat = &wanted.as_array().unwrap()[0].as_array().unwrap().len();
    assert_eq!(*flat, manager.episodes.len(), "{name}");
    assert_eq!(&Value::from(seeds), wanted, "{name}");
    let groups: Vec<usize> = manager.episodes.iter().map(|e| e.group).collect();
    let members = set.group_size;
    assert_eq!(groups, (0..groups.len()).map(|i| i / members).collect::<Vec<_>>(), "{name}");
    let named: Vec<u64> = expected["group_ids"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect();
    assert_eq!(groups.iter().map(|g| *g as u64).collect::<Vec<_>>(), named, "{name}");
}

fn check_episode(name: &str, inputs: &Value, expected: &Value) {
    let tag = inputs["tag"].as_str().unwrap();
    let lookup: Option<Vec<(u64, String)>> = inputs["action_lookup"]
        .as_array()
        .map(|entries| entries.iter().map(|e| (e[0].as_u64().unwrap(), e[1].as_str().unwrap().into())).collect());
    let script = inputs["env_script"].as_array().unwrap().clone();
    let names = lookup.as_ref().map(|lookup| lookup.iter().map(|(_, name)| name.clone()).collect());
    let env = Scripted { names, script: script.clone(), next: 0 };
    let rules = TagRules {
        name: tag.into(),
        instruction: String::new(),
        legend: Legend::default(),
        max_actions: inputs["max_actions_per_traj"].as_u64().unwrap() as usize,
        single_action: false,
        max_tokens: 0,
        many_starts: false,
        waits: false,
        recap: Recap::Whole,
    };
    // What the environment never says is not in the published metrics; here it is always there.
    let unsaid: Vec<&str> = ["action_is_valid", "action_is_effective", "success"]
        .into_iter()
        .filter(|key| script.iter().all(|line| line[2].get(key).is_none()))
        .collect();
    let mut episode = Episode::new(Arc::new(rules), 0, 0, Box::new(env));
    episode.reset(0, Mode::Train).unwrap();
    let mut history = Vec::new();
    let (mut penalty, mut n_actions) = (0.0, 0);
    let turns = inputs["turns"].as_array().unwrap();
    for (turn, wanted) in turns.iter().zip(expected["turns"].as_array().unwrap()) {
        let parsed: Vec<String> =
            turn.as_array().unwrap().iter().map(|action| action.as_str().unwrap().to_string()).collect();
        let played = episode.play(&parsed, number(&inputs["format_penalty"])).unwrap();
        let executed: Vec<Value> = played
            .executed
            .iter()
            .map(|action| match &lookup {
                Some(lookup) => lookup.iter().find(|(_, name)| name == action).unwrap().0.into(),
                None => action.clone().into(),
            })
            .collect();
        penalty += played.penalty;
        n_actions += played.executed.len();
        let outcome = episode.outcome;
        let done = outcome.terminated;
        let budget_spent = outcome.truncated && !done;
        assert_eq!(Value::from(executed), wanted["executed"], "{name}");
        assert!(close(played.reward, number(&wanted["turn_reward"])), "{name}");
        assert_eq!(outcome.ended(), !wanted["active"].as_bool().unwrap(), "{name}");
        assert_eq!(episode.actions_left as u64, wanted["actions_left"].as_u64().unwrap(), "{name}");
        assert_eq!(played.invalid, wanted["invalid_flag_on_next_state"].as_bool().unwrap(), "{name}");
        assert!(close(penalty, number(&wanted["penalty_total"])), "{name}");
        assert_eq!(n_actions as u64, wanted["num_actions"].as_u64().unwrap(), "{name}");
        // The published code sets both flags for a spent budget and for an end without success.
        assert_eq!(done || budget_spent, wanted["terminated"].as_bool().unwrap(), "{name}");
        let truncated = if done { !outcome.success } else { budget_spent };
        assert_eq!(truncated, wanted["truncated"].as_bool().unwrap(), "{name}");
        let mut info = played.info.clone();
        info.retain(|key, _| !unsaid.contains(&key.as_str()));
        let wanted_info = wanted["turn_info"].as_object().unwrap();
        assert_eq!(info.keys().collect::<Vec<_>>(), sorted(wanted_info.keys()), "{name}");
        for (key, value) in wanted_info {
            let same = close(info[key], number(value)) || (info[key].is_nan() && value.is_string());
            assert!(same, "{name}: {key} is {}, not {value}", info[key]);
        }
        history.push(played);
    }
    let mut metrics = vec![episode_metrics(tag, episode.outcome, &history.iter().collect::<Vec<_>>())];
    add_pass_at_k(&[(tag, 0)], 1, &mut metrics);
    for key in unsaid.iter().filter(|key| **key != "success") {
        metrics[0].remove(&format!("{tag}/{key}"));
    }
    assert_metrics(&metrics[0], &expected["metrics"], name);
}

fn check_pass_at_k(name: &str, inputs: &Value, expected: &Value) {
    let k = inputs["group_size"].as_u64().unwrap() as usize;
    let success: Vec<bool> = inputs["success"].as_array().unwrap().iter().map(|x| x.as_bool().unwrap()).collect();
    assert_eq!(success.len(), k * inputs["env_groups"].as_u64().unwrap() as usize, "{name}");
    let key = expected["key"].as_str().unwrap();
    let tag = key.split('/').next().unwrap();
    let outcome = |success: bool| Outcome { terminated: true, success, ..Outcome::default() };
    let mut metrics: Vec<Metrics> = success.iter().map(|s| episode_metrics(tag, outcome(*s), &[])).collect();
    let episodes: Vec<_> = (0..success.len()).map(|i| (tag, i / k)).collect();
    add_pass_at_k(&episodes, k, &mut metrics);
    for (i, metrics) in metrics.iter().enumerate() {
        assert_eq!(metrics[key], number(&expected["values"][i]), "{name}");
        assert_eq!(metrics[&format!("{tag}/success")], number(&expected["success"][i]), "{name}");
    }
}

fn check_aggregate(name: &str, inputs: &Value, expected: &Value) {
    let numbers = |value: &Value| -> Metrics {
        value.as_object().unwrap().iter().map(|(key, value)| (key.clone(), number(value))).collect()
    };
    let episodes: Vec<Metrics> = inputs["env_metrics"].as_array().unwrap().iter().map(numbers).collect();
    let counts = numbers(&inputs["env_nums"]).into_iter().map(|(tag, n)| (tag, n as usize)).collect();
    let mut metrics = aggregate(&episodes, &counts);
    metrics.insert("response_length".into(), number(&inputs["response_length"]));
    assert_metrics(&metrics, &expected["metrics"], name);
}

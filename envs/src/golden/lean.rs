//! Lean: scripted answers of a server, the scripts sent, and how raw statements are split.

use super::{close, entries};
use crate::lean::Lean;
use crate::lean::reply::judge;
use crate::lean::server::request;
use crate::lean::theorem::split;
use crate::{Env, Mode};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &["lean.json", "lean_split.json"];

/// What a server's recorded answer is to a caller.
fn reply(recorded: &Value) -> Result<Value, String> {
    match recorded.as_str().and_then(|text| text.strip_prefix("exception: ")) {
        Some(fault) => Err(fault.to_owned()),
        None => Ok(recorded.clone()),
    }
}

#[test]
fn golden_lean() {
    for episode in entries("lean.json", "episodes").1 {
        let name = episode["name"].as_str().unwrap();
        let mut config = episode["config"].clone();
        config["backend"] = json!("embedded");
        let mut lean = Lean::new(&config).unwrap();
        lean.reset(0, 0, Mode::Train).unwrap();
        let mut state = lean.state();
        state["theorem"] = episode["initial_state"]["theorem"].clone();
        lean.load_state(&state).unwrap();
        for (i, want) in episode["steps"].as_array().unwrap().iter().enumerate() {
            let what = format!("{name} step {i}");
            let action = want["action"].as_str().unwrap();
            if !want["request"].is_null() {
                let timeout = episode["config"]["request_timeout"].as_f64().unwrap();
                assert_eq!(request("<unique id>", &lean.script(action), timeout), want["request"], "{what}");
            }
            let step = match want["server_reply"].is_null() {
                true => lean.step(action).unwrap(),
                false => lean.settle(action, judge(reply(&want["server_reply"]))),
            };
            close(step.reward, &want["reward"], &what);
            assert_eq!(step.ended(), want["done"].as_bool().unwrap(), "{what}: done");
            let info = &want["info"];
            assert_eq!(Some(step.valid), info["action_is_valid"].as_bool(), "{what}: valid");
            assert_eq!(Some(step.effective), info["action_is_effective"].as_bool(), "{what}: effective");
            assert_eq!(Some(step.success), info["success"].as_bool(), "{what}: success");
            let accepted = f64::from(u8::from(info["accepted"].as_bool().unwrap()));
            assert_eq!(step.info, [("accepted".into(), accepted)], "{what}");
            let last = lean.last().unwrap();
            assert_eq!(json!(last.shown(0)), info["messages"], "{what}: messages");
            assert_eq!(json!(last.messages), info["message_objects"], "{what}: message objects");
            let (state, facts) = (lean.state(), &want["observation_states"]);
            assert_eq!(state["steps"], facts["steps"], "{what}");
            assert_eq!(json!(state["tactics"].as_array().unwrap().len()), facts["accepted_tactics"], "{what}");
            let seen = lean.observation();
            let first =
                format!("Step {} of {}, {} accepted.", facts["steps"], facts["max_steps"], facts["accepted_tactics"]);
            assert!(seen.starts_with(&first), "{what}: {seen}");
            let lines = seen.lines().filter_map(|line| line.split_once(" | "));
            let lines = lines.filter(|(n, _)| n.trim().parse::<usize>().is_ok());
            let shown: Vec<&str> = lines.map(|(_, line)| line).collect();
            let wanted: Vec<&str> =
                want["transcript_shown"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert_eq!(shown, wanted, "{what}: {seen}");
            assert!(
                seen.lines()
                    .skip_while(|line| *line != "To prove:")
                    .skip(1)
                    .take(1)
                    .all(|line| line.chars().count() <= 88)
            );
        }
    }
}

#[test]
fn golden_lean_split() {
    // Where RAGEN looks at first letters alone, attributes and modifiers hide a statement.
    let hidden = ["split08", "split12"];
    for case in entries("lean_split.json", "cases").1 {
        let name = case["name"].as_str().unwrap();
        let text = case["text"].as_str().unwrap();
        let want = ["imports", "preamble", "statement"].map(|key| case[key].as_str().unwrap().to_owned());
        assert_eq!(split(text, true), want, "{name}");
        assert_eq!(split(text, false) == want, !hidden.contains(&name), "{name}");
    }
}

//! Every registered environment passes every check; a toy that is broken in one way is caught by the check for it.

use super::*;
use crate::{Turn, make, specs, tags};
use serde_json::{Value, json};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FORMATS: [&str; 5] = ["grid", "coord", "grid_coord", "compact", "compact_near"];

/// Settings under which each registered type is checked.
fn configs(env_type: &str) -> Vec<Value> {
    let formats = FORMATS.iter().map(|format| json!({"observation_format": format}));
    let with = |base: Value| {
        formats.clone().map(move |format| {
            let mut config = base.clone();
            config.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
            config
        })
    };
    match env_type {
        "alfworld" => {
            vec![Value::Null, json!({"eval_dataset": "eval_out_of_distribution", "max_steps": 7, "score": -1})]
        }
        "bandit" => vec![Value::Null, json!({"split": "test", "action_space_start": 0, "hi_arm_loscore": -1})],
        "countdown" => {
            vec![json!({"backend": "embedded"}), json!({"family": "arithmetic", "parity": true, "score": 2})]
        }
        "frozen_lake" => with(json!({"size": 4}))
            .chain([json!({"size": 2, "is_slippery": false}), json!({"size": 12, "p": 0.7, "member_noise": true})])
            .chain([json!({"action_lookup": {"1": "west"}, "action_map": {"1": 3, "2": 2, "3": 1, "4": 0}})])
            .collect(),
        "sokoban" => with(json!({"num_boxes": 1}))
            .chain(with(json!({"num_boxes": 2, "generator": "open", "dim_room": [7, 6], "max_steps": 12})))
            .chain([Value::Null, json!({"dim_x": 8, "dim_y": 9, "num_boxes": 2, "solution_moves": [3, 9]})])
            .collect(),
        // Checked where there is a program to talk to, in `bridge`.
        "http" | "process" => vec![],
        "game_2048" => vec![
            Value::Null,
            json!({"size": 2, "use_log_reward": false, "member_noise": true}),
            json!({"size": 8, "two_prob": 0.2, "observation_format": "compact", "action_lookup": {"0": "north"}}),
        ],
        "lean" => vec![
            json!({"backend": "embedded"}),
            json!({"backend": "embedded", "max_steps": 4, "theorem_idx": 3, "default_imports": ""}),
        ],
        "metamathqa" => vec![json!({"backend": "embedded"}), json!({"scoring": "lenient", "parity": true})],
        "rubikscube" => vec![
            Value::Null,
            json!({"observation_format": "compact", "max_steps": 6, "scramble_depth": 2}),
            json!({"scramble_depth": 0, "action_lookup": {"12": "back"}}),
        ],
        "sudoku" => vec![
            json!({"grid_size": 4, "render_format": "simple", "max_steps": 9}),
            json!({"grid_size": 9, "difficulty": "hard", "render_format": "compact", "parity": true}),
            json!({"grid_size": 16, "unique": false, "render_format": "with_feedback"}),
        ],
        "search" => vec![
            Value::Null,
            json!({"max_steps": 3, "max_search_results": 2, "max_total_chars": 200}),
            json!({"mock_mode": true, "incorrect_reward": -1}),
        ],
        "webshop" => vec![Value::Null, json!({"show_attrs": true, "limit_goals": 40, "num_products": 60})],
        other => panic!("say under which settings `{other}` is checked"),
    }
}

#[test]
fn every_environment_conforms() {
    for spec in specs() {
        for config in configs(spec.env_type) {
            let failed = check(&|| make(spec.env_type, &config));
            assert_eq!(failed, Vec::<String>::new(), "{} {config}", spec.env_type);
        }
    }
    for tag in tags() {
        assert_eq!(check(&|| tag.make()), Vec::<String>::new(), "{}", tag.name);
    }
}

#[test]
fn the_best_player_solves_what_can_be_solved() {
    let best = |env_type: &str, config: Value, max_turns| {
        demonstrated(&|| make(env_type, &config), &Demonstration::perfect(2), 300, max_turns, 1000).unwrap().0
    };
    assert_eq!(best("sokoban", json!({"num_boxes": 1}), 50), 1.0);
    // Open levels are made to be solved within six moves.
    assert_eq!(best("sokoban", json!({"num_boxes": 1, "generator": "open"}), 3), 1.0);
    assert_eq!(best("sokoban", json!({"num_boxes": 2, "dim_room": [8, 8], "search_depth": 10}), 50), 1.0);
    assert_eq!(best("frozen_lake", json!({"size": 4, "p": 0.8, "is_slippery": false}), 50), 1.0);
    assert_eq!(best("frozen_lake", json!({"size": 8, "p": 0.8, "success_rate": 1.0}), 50), 1.0);
    assert_eq!(best("bandit", Value::Null, 1), 1.0);
    // A shortest path over slippery ice falls in at times; the recipe's prototype measured 0.89.
    let slippery = best("frozen_lake", json!({"p": 0.8}), 50);
    assert!((0.82..0.96).contains(&slippery), "{slippery}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    StepsBeforeReset,
    DrawsFromOutside,
    RemembersEarlierResets,
    DependsOnTheThread,
    IsSlow,
    SharesState,
    LookingMoves,
    MembersStartApart,
    ForgetsItsState,
    TakesAnyValueForAState,
    FailsOnBadActions,
    TakesBadActions,
    PaysNan,
    SucceedsWithoutEnd,
    EndsAndIsCutOff,
    EffectiveButInvalid,
    FailsAfterTheEnd,
    PlaysOnAfterTheEnd,
    PlaysTooLongTurns,
}

thread_local! {
    static RESETS_HERE: Cell<u64> = const { Cell::new(0) };
}

/// A walk on a line to the cell 4, with one fault.
struct Line {
    fault: Fault,
    at: Option<i64>,
    looks: Cell<i64>,
    outside: Arc<AtomicU64>,
}

impl Line {
    fn place(&self) -> i64 {
        match self.fault {
            Fault::SharesState => self.outside.load(Ordering::Relaxed) as i64,
            _ => self.at.unwrap_or(0),
        }
    }
}

impl Env for Line {
    fn reset(&mut self, seed: u64, member: u64, _mode: Mode) -> Result<(), EnvError> {
        let start = match self.fault {
            Fault::DrawsFromOutside => self.outside.fetch_add(1, Ordering::Relaxed),
            Fault::MembersStartApart => member,
            Fault::RemembersEarlierResets if self.at.is_some() => seed.wrapping_add(1),
            Fault::DependsOnTheThread => RESETS_HERE.with(|n| u64::from(n.get() == 0)),
            _ => seed,
        };
        RESETS_HERE.with(|n| n.set(n.get() + 1));
        self.at = Some((start % 3) as i64);
        self.outside.store(self.outside.load(Ordering::Relaxed).max(start % 3), Ordering::Relaxed);
        Ok(())
    }

    fn observation(&self) -> String {
        if self.fault == Fault::LookingMoves {
            self.looks.set(self.looks.get() + 1);
        }
        format!("at {} {}", self.place(), self.looks.get())
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let broken = EnvError::State { env_type: "line", reason: "broken".to_owned() };
        let before = match self.at {
            None if self.fault == Fault::StepsBeforeReset => 0,
            None => return Err(EnvError::NotReset { env_type: "line" }),
            Some(at) => at,
        };
        let change = match action {
            "Left" => -1,
            "Right" => 1,
            _ if self.fault == Fault::FailsOnBadActions => return Err(broken),
            _ if self.fault == Fault::TakesBadActions => 1,
            _ => 0,
        };
        if self.fault == Fault::IsSlow {
            std::thread::sleep(Duration::from_millis(3));
        }
        if before == 4 && self.fault == Fault::FailsAfterTheEnd {
            return Err(broken);
        }
        let at = (before + change).clamp(0, 4);
        self.at = Some(at);
        self.outside.store(at as u64, Ordering::Relaxed);
        let done = at == 4;
        Ok(Step {
            reward: if done && self.fault == Fault::PaysNan { f64::NAN } else { f64::from(done) },
            terminated: done && self.fault != Fault::SucceedsWithoutEnd,
            truncated: done && self.fault == Fault::EndsAndIsCutOff,
            success: done,
            valid: change != 0,
            effective: at != before || (change == 0 && self.fault == Fault::EffectiveButInvalid),
            info: vec![("at".into(), at as f64)],
        })
    }

    fn actions(&self) -> Option<Vec<String>> {
        Some(vec!["Left".to_owned(), "Right".to_owned()])
    }

    fn instruction(&self) -> String {
        "Walk right.".to_owned()
    }

    fn state(&self) -> Value {
        self.at.map_or(Value::Null, |at| json!({"at": at}))
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        let at = state.get("at").and_then(Value::as_i64);
        match self.fault {
            Fault::ForgetsItsState if at.is_some() => self.at = Some(0),
            Fault::TakesAnyValueForAState => self.at = at,
            _ if at.is_some() || state.is_null() => self.at = at,
            _ => return Err(EnvError::State { env_type: "line", reason: "no place in it".to_owned() }),
        }
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        self.place() as u64
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let at = self.at.filter(|at| *at < 4 || self.fault == Fault::PlaysOnAfterTheEnd)?;
        let len = if self.fault == Fault::PlaysTooLongTurns { 9 } else { options.turn_len(draws) };
        Some(Turn { thought: format!("from {at}"), actions: vec!["Right".to_owned(); len] })
    }
}

#[test]
fn each_fault_is_caught_by_its_check() {
    let failures = |fault| {
        let outside = Arc::new(AtomicU64::new(0));
        check(&|| Ok(Box::new(Line { fault, at: None, looks: Cell::new(0), outside: outside.clone() })))
    };
    assert_eq!(failures(Fault::None), Vec::<String>::new());
    let mut caught: Vec<&str> = Vec::new();
    for (fault, name) in [
        (Fault::StepsBeforeReset, "needs reset"),
        (Fault::DrawsFromOutside, "determinism"),
        (Fault::RemembersEarlierResets, "second reset"),
        (Fault::DependsOnTheThread, "threads"),
        (Fault::SharesState, "independence"),
        (Fault::LookingMoves, "render"),
        (Fault::MembersStartApart, "group"),
        (Fault::ForgetsItsState, "state"),
        (Fault::TakesAnyValueForAState, "state"),
        (Fault::FailsOnBadActions, "edge actions"),
        (Fault::TakesBadActions, "edge actions"),
        (Fault::PaysNan, "step"),
        (Fault::SucceedsWithoutEnd, "step"),
        (Fault::EndsAndIsCutOff, "step"),
        (Fault::EffectiveButInvalid, "step"),
        (Fault::FailsAfterTheEnd, "afterlife"),
        (Fault::PlaysOnAfterTheEnd, "demonstration"),
        (Fault::PlaysTooLongTurns, "demonstration"),
    ] {
        let failures = failures(fault);
        assert!(failures.iter().any(|line| line.starts_with(&format!("{name}: "))), "{fault:?} gave {failures:?}");
        caught.push(name);
    }
    let outside = Arc::new(AtomicU64::new(0));
    let slow: Build =
        &|| Ok(Box::new(Line { fault: Fault::IsSlow, at: None, looks: Cell::new(0), outside: outside.clone() }));
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(1));
    assert!(answers_in_time(slow, long, short).unwrap_err().contains("more than 1ms"));
    assert!(answers_in_time(slow, Duration::ZERO, long).unwrap_err().starts_with("the reset to seed 0 took"));
    caught.push("time");
    assert!(CHECKS.iter().all(|(name, _)| caught.contains(name)), "every check is tried");
}

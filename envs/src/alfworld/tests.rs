//! Houses, commands, tasks and the scripted player.

use super::*;
use crate::conformance;
use house::{PLACES, THINGS};

fn started(seed: u64, mode: Mode, config: Value) -> Alfworld {
    let mut env = Alfworld::new(&config).unwrap();
    env.reset(seed, 0, mode).unwrap();
    env
}

fn goal_of(env: &Alfworld) -> Goal {
    env.episode.as_ref().unwrap().goal
}

#[test]
fn houses_are_as_large_as_said_and_no_task_is_done_at_the_start() {
    let mut kinds = [false; 6];
    for seed in 0..500 {
        let env = started(seed, Mode::Train, Value::Null);
        let Episode { house, goal, .. } = env.episode.as_ref().unwrap();
        assert!((8..=15).contains(&house.places.len()), "{} places", house.places.len());
        assert!((10..=20).contains(&house.things.len()), "{} things", house.things.len());
        assert!(!goal.is_done(house) && house.check().is_ok(), "seed {seed}");
        kinds[goal.kind as usize] = true;
    }
    assert_eq!(kinds, [true; 6]);
}

#[test]
fn the_player_does_every_chore_within_the_budget() {
    for tag in ["Alfworld", "AlfworldOOD"] {
        let build = || crate::tag(tag)?.make();
        let (success, turns) = conformance::demonstrated(&build, &Demonstration::perfect(1), 1000, 50, 50).unwrap();
        assert_eq!(success, 1.0, "{tag}");
        assert!((4.0..9.0).contains(&turns), "{tag}: {turns} turns");
    }
}

#[test]
fn the_player_finds_back_after_random_commands() {
    let options = Demonstration { noise: 0.3, full: 0.5, max_actions_per_turn: 3 };
    let build = || crate::make(TYPE, &Value::Null);
    let (success, _) = conformance::demonstrated(&build, &options, 500, 50, 50).unwrap();
    assert!(success > 0.95, "{success}");
}

/// A chore by hand, with every word that is said.
#[test]
fn an_egg_is_heated() {
    let mut env = Alfworld::new(&json!({"score": 3.0})).unwrap();
    env.reset(0, 0, Mode::Train).unwrap();
    let kind = |name: &str| PLACES.iter().position(|place| place.name == name).unwrap();
    let egg = THINGS.iter().position(|thing| thing.name == "egg").unwrap();
    let place = |name: &str, is_open| json!({"kind": kind(name), "number": 1, "is_open": is_open});
    let thing = json!({"kind": egg, "number": 1, "at": 1, "is_hot": false, "is_cool": true, "is_clean": false});
    let house = json!({"places": [place("desk", true), place("fridge", false), place("microwave", false)],
        "things": [thing], "lamp_at": 0, "lamp_is_on": false, "agent_at": null});
    let goal = json!({"kind": "heat", "thing": egg, "place": kind("desk")});
    env.load_state(&json!({"house": house, "goal": goal, "feedback": "x", "steps": 0})).unwrap();
    let said = |env: &Alfworld| env.observation().lines().next().unwrap().to_owned();
    for (action, heard) in [
        ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
        ("take egg 1 from fridge 1", "Nothing happens."),
        ("OPEN  fridge 1", "You open the fridge 1. The fridge 1 is open. In it you see a egg 1."),
        ("take egg 1 from fridge 1", "You take egg 1 from fridge 1."),
        ("examine egg 1", "This is a egg 1: cool."),
        ("heat egg 1 with microwave 1", "Nothing happens."),
        ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed."),
        ("heat egg 1 with microwave 1", "You heat egg 1 with microwave 1."),
        ("examine egg 1", "This is a egg 1: hot."),
        ("go to desk 1", "You arrive at desk 1. On the desk 1 you see a desklamp 1."),
    ] {
        let step = env.step(action).unwrap();
        assert_eq!((step.reward, step.ended(), step.valid), (0.0, false, heard != "Nothing happens."), "{action}");
        assert_eq!(said(&env), heard, "{action}");
    }
    let offered = "Admissible actions: [go to fridge 1, go to microwave 1, put egg 1 in/on desk 1, use desklamp 1, \
                   examine desk 1, examine egg 1, inventory, look]";
    assert!(env.observation().ends_with(&format!("\n\n{offered}")), "{}", env.observation());
    let step = env.step("move egg 1 to desk 1").unwrap();
    assert_eq!((step.reward, step.terminated, step.success), (3.0, true, true));
    assert_eq!(env.step("look").unwrap().reward, 0.0);
}

#[test]
fn what_is_asked_out_of_distribution_is_never_asked_in_training() {
    let ood = json!({"eval_dataset": "eval_out_of_distribution"});
    let pairs = |mode, config: &Value| -> std::collections::BTreeSet<(usize, Option<usize>)> {
        let goals = (0..3000).map(|seed| goal_of(&started(seed, mode, config.clone())));
        goals.map(|goal| (goal.thing, goal.place)).collect()
    };
    let (trained, asked) = (pairs(Mode::Train, &ood), pairs(Mode::Val, &ood));
    assert!(trained.is_disjoint(&asked) && asked.len() > 20, "{} pairs", asked.len());
    assert_eq!(pairs(Mode::Val, &Value::Null), trained);
}

#[test]
fn an_episode_is_cut_off_after_its_steps() {
    let mut env = started(1, Mode::Train, json!({"max_steps": 3}));
    let ends: Vec<(bool, bool)> =
        (0..3).map(|_| env.step("look").unwrap()).map(|s| (s.terminated, s.truncated)).collect();
    assert_eq!(ends, [(false, false), (false, false), (false, true)]);
}

#[test]
fn states_that_cannot_be_are_refused() {
    let mut env = started(1, Mode::Train, Value::Null);
    let good = env.state();
    for (path, value) in
        [("/house/agent_at", json!(99)), ("/house/things/0/kind", json!(99)), ("/goal/thing", json!(99))]
    {
        let mut bad = good.clone();
        *bad.pointer_mut(path).unwrap() = value;
        assert!(matches!(env.load_state(&bad), Err(EnvError::State { .. })), "{path}");
    }
    assert_eq!(env.state(), good);
}

#[test]
fn a_prompt_that_sums_up_tells_task_and_offers_apart() {
    let state = started(5, Mode::Train, Value::Null).observation();
    assert!(task(&state).starts_with("Your task is to: "));
    assert!(gist(&state).starts_with("You are in the middle of a room.") && !gist(&state).contains("task"));
    assert!(offers(&state).starts_with("Admissible actions: [go to "));
}

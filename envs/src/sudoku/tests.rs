//! Rules, rewards, texts and the scripted player.

use super::*;
use crate::conformance;

fn on(config: Value) -> Sudoku {
    let mut settings = json!({"grid_size": 4, "max_steps": 5});
    settings.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let mut env = Sudoku::new(&settings).unwrap();
    let solution = json!([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]);
    let initial = json!([[0, 0, 3, 4], [3, 4, 1, 2], [0, 0, 4, 3], [4, 3, 2, 1]]);
    let state = json!({"initial_grid": initial, "solution_grid": solution, "current_grid": initial, "num_steps": 0});
    env.load_state(&state).unwrap();
    env
}

#[test]
fn the_player_solves_every_puzzle() {
    for (config, n) in [
        (json!({"difficulty": "easy"}), 40),
        (json!({"difficulty": "hard"}), 20),
        (json!({"grid_size": 4, "difficulty": "hard"}), 200),
        (json!({"grid_size": 9, "difficulty": "medium", "unique": false}), 40),
    ] {
        let build = || crate::make(TYPE, &config);
        let (success, _) = conformance::demonstrated(&build, &Demonstration::perfect(1), n, 300, 81).unwrap();
        assert_eq!(success, 1.0, "{config}");
    }
}

#[test]
fn a_cell_pays_what_is_new_to_it() {
    let play = |parity: bool| -> Vec<f64> {
        let mut env = on(json!({"parity": parity, "max_steps": 50}));
        let moves = ["(1,1,2)", "(1,1,1)", "(1,1,2)", "(1,1,1)", "(1,2,2)"];
        moves.iter().map(|text| env.step(text).unwrap().reward).collect()
    };
    assert_eq!(play(false), [0.5, 0.5, 0.0, 0.0, 1.0]);
    assert_eq!(play(true), [0.5, 1.0, 0.5, 1.0, 1.0]);
}

#[test]
fn another_solution_is_one_too() {
    // The puzzle of `on` can be solved in two ways.
    let mut env = on(json!({}));
    let steps: Vec<Step> = ["(1,1,2)", "(1,2,1)", "(3,1,1)", "(3,2,2)"].map(|text| env.step(text).unwrap()).into();
    assert_eq!(steps.iter().map(|step| step.reward).collect::<Vec<_>>(), [0.5, 0.5, 0.5, 10.5]);
    assert!(steps[3].success && steps[3].terminated && !steps[2].ended());
    assert!(env.observation().ends_with("🎉 solved"));
}

#[test]
fn moves_that_cannot_be_made_count_and_end_the_episode() {
    let ends = |parity: bool| -> Vec<bool> {
        let mut env = on(json!({"parity": parity}));
        (0..6).map(|_| env.step("what?").unwrap().truncated).collect()
    };
    assert_eq!(ends(false), [false, false, false, false, true, true]);
    assert_eq!(ends(true), [false; 6]);
}

#[test]
fn what_is_shown() {
    let mut env = on(json!({"render_format": "simple"}));
    assert_eq!(env.observation(), ". . | 3 4\n3 4 | 1 2\n---------\n. . | 4 3\n4 3 | 2 1");
    env = on(json!({"render_format": "compact"}));
    assert_eq!(env.observation(), "..34\n3412\n..43\n4321\nempty 4");
    env = on(json!({"render_format": "with_feedback"}));
    env.step("(1,1,4)").unwrap();
    let line = "=".repeat(50);
    assert_eq!(
        env.observation(),
        format!(
            "{line}\nSUDOKU 4x4\n{line}\n .   .  | [3] [4]\n[3] [4] | [1] [2]\n-------------\n .   .  | [4] [3]\n[4] [3] | [2] [1]\n\n\
             Legend: [n] given, n placed, *n* in conflict, . empty\n\n✗ 4 is in the row, column or box of (1, 1); what fits:\n  (1, 1): [1, 2]\n\n\
             Numbers that fit:\n  (1, 1): [1, 2]\n  (1, 2): [1, 2]\n  (3, 1): [1, 2]\n  (3, 2): [1, 2]\n\n\
             Progress: 12/16 cells filled (12 initial, 0 placed)\nSteps: 1/5"
        )
    );
}

#[test]
fn the_player_gives_a_reason() {
    let mut env = on(json!({}));
    env.step("(1,1,1)").unwrap();
    let turn = env.demonstrate(&Demonstration::perfect(1), &mut Stream::new(1)).unwrap();
    assert_eq!(
        (turn.thought.as_str(), turn.actions[0].as_str()),
        ("row 1 col 2 only fits 2", "place 2 at row 1 col 2")
    );
}

#[test]
fn broken_states_are_refused() {
    let mut env = on(json!({}));
    let good = env.state();
    let mut bad = good.clone();
    bad["current_grid"][1][0] = json!(0);
    assert!(env.load_state(&bad).unwrap_err().to_string().contains("must hold what is given"));
    bad["current_grid"][1][0] = json!(9);
    assert!(env.load_state(&bad).unwrap_err().to_string().contains("4 rows of 4 numbers from 0 to 4"));
    assert_eq!(env.state(), good);
}

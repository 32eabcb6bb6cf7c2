//! Levels, solver, generators, texts and the scripted player.

use super::*;
use crate::conformance;
use crate::rng::hash_bytes;

/// An environment that stands before a level drawn with the default symbols.
fn drawn(rows: &[&str], config: Value) -> Sokoban {
    let code = |symbol| "#_O*XPS".find(symbol).unwrap() as u8;
    let grid = |change: &dyn Fn(u8) -> u8| -> Vec<Vec<u8>> {
        rows.iter().map(|row| row.chars().map(|symbol| change(code(symbol))).collect()).collect()
    };
    let room_fixed = grid(&|code| [0, 1, 2, 2, 1, 1, 2][code as usize]);
    let room_state = grid(&|code| code.min(5));
    let boxes = room_state.iter().flatten().filter(|code| matches!(code, 3 | 4)).count();
    let mut settings = json!({"dim_room": [rows.len(), rows[0].len()], "num_boxes": boxes});
    settings.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let mut env = Sokoban::new(&settings).unwrap();
    let state = json!(Saved { room_fixed, room_state, num_env_steps: 0, boxes_on_target: 0 });
    env.load_state(&state).unwrap();
    env
}

fn levels(config: Value, n: u64) -> Vec<Level> {
    let mut env = Sokoban::new(&config).unwrap();
    let level = |seed| {
        env.reset(seed, 0, Mode::Train).unwrap();
        *env.level().unwrap()
    };
    (0..n).map(level).collect()
}

fn plan_len(env: &Sokoban, max_moves: usize) -> Option<usize> {
    Some(solve(env.level()?, max_moves)?.len())
}

#[test]
fn the_solver_finds_the_shortest_way_or_none() {
    let around = drawn(&["######", "#_PXO#", "#____#", "######"], json!({}));
    assert_eq!(plan_len(&around, 100), Some(1));
    let far = drawn(&["#######", "#P____#", "#__X_O#", "#_____#", "#######"], json!({}));
    assert_eq!(plan_len(&far, 100), Some(4));
    assert_eq!((plan_len(&far, 4), plan_len(&far, 3)), (Some(4), None));
    let cornered = drawn(&["#####", "#X__#", "#_PO#", "#####"], json!({}));
    assert_eq!(plan_len(&cornered, 100), None);
    // Each box blocks the other's way: both must be moved in turn.
    let two = drawn(&["#######", "#P_X_O#", "#__X_O#", "#_____#", "#######"], json!({}));
    let plan = solve(two.level().unwrap(), 100).unwrap();
    let mut level = *two.level().unwrap();
    plan.iter().for_each(|direction| assert_ne!(level.play(*direction), Moved::Not));
    assert!(level.is_solved());
}

#[test]
fn open_levels_are_as_long_as_asked_and_as_in_the_recipe() {
    let lengths: Vec<usize> = levels(json!({"num_boxes": 1, "generator": "open"}), 1000)
        .iter()
        .map(|level| solve(level, 100).unwrap().len())
        .collect();
    assert!(lengths.iter().all(|len| (2..=6).contains(len)));
    let mean = lengths.iter().sum::<usize>() as f64 / 1000.0;
    assert!((mean - 4.4).abs() < 0.15, "{mean}");
    for config in [
        json!({"num_boxes": 1, "solution_moves": [5, 8]}),
        json!({"num_boxes": 2, "generator": "open", "dim_room": [7, 7], "solution_moves": [5, 8]}),
    ] {
        let within = |level: &Level| (5..=8).contains(&solve(level, 100).unwrap().len());
        assert!(levels(config, 50).iter().all(within));
    }
}

#[test]
fn no_room_starts_with_a_box_on_a_target() {
    for level in levels(json!({"num_boxes": 3, "dim_room": [7, 8]}), 30) {
        assert_eq!((level.num_boxes(), level.uncovered()), (3, 3));
        assert!(solve(&level, 100).is_some());
    }
}

#[test]
fn impossible_wishes_end_in_an_error_after_a_counted_effort() {
    for config in [
        json!({"num_boxes": 1, "generator": "open", "solution_moves": [90, 100], "dim_room": [5, 5]}),
        json!({"num_boxes": 2, "solution_moves": [99, 99]}),
        json!({"num_boxes": 1, "generator": "open", "wall_p": 1.0}),
    ] {
        let mut env = Sokoban::new(&config).unwrap();
        match env.reset(4, 0, Mode::Train) {
            Err(EnvError::Generation { env_type: "sokoban", seed: 4, attempts, .. }) => assert!(attempts > 0),
            other => panic!("{config} gave {other:?}"),
        }
        assert_eq!(env.observation(), "");
    }
}

#[test]
fn levels_are_the_same_on_every_machine() {
    let hash = |config: Value| {
        let mut env = Sokoban::new(&config).unwrap();
        hash_bytes([0, 1, 10_000, u64::MAX].into_iter().flat_map(|seed| {
            env.reset(seed, 0, Mode::Train).unwrap();
            env.state_hash().to_le_bytes()
        }))
    };
    assert_eq!(hash(json!({"num_boxes": 1})), 18_222_770_468_988_016_711);
    assert_eq!(hash(json!({"num_boxes": 1, "generator": "open"})), 4_290_326_075_406_198_167);
}

#[test]
fn the_compact_formats_list_every_box_and_target_in_one_line() {
    let env = drawn(&["######", "#P_*_#", "#_X_O#", "#____#", "######"], json!({"observation_format": "compact"}));
    let text = "######\n#P_*_#\n#_X_O#\n#____#\n######\nPlayer 1 1 Box 1 3 Box 2 2 Target 1 3 Target 2 4";
    assert_eq!(env.observation(), text);
    assert!(env.legend().symbols.contains(&("*".to_owned(), "box on a target".to_owned())));
    let mut env = drawn(&["#####", "#_X_#", "#_PO#", "#####"], json!({"observation_format": "compact_near"}));
    let near = |up: char| format!("near Up {up} Down # Left _ Right O");
    assert!(env.observation().ends_with(&format!("Player 2 2 Box 1 2 Target 2 3 {}", near('X'))));
    env.step("up").unwrap();
    assert!(env.observation().ends_with(&near('X')), "a box at the wall stays where it is");
}

#[test]
fn prompts_follow_the_effective_settings() {
    let symbols = json!({"0": "W", "1": ".", "2": "G", "3": "C", "4": "B", "5": "A", "6": "@"});
    let env = Sokoban::new(&json!({"num_boxes": 1, "grid_lookup": symbols, "grid_vocab": {"W": "brick"}})).unwrap();
    assert_eq!(
        env.legend().to_string(),
        "The meaning of each symbol is W: brick, .: empty floor, G: target, C: box on a target, B: box, A: player, \
         @: player on a target."
    );
    let env = Sokoban::new(&json!({"num_boxes": 1, "observation_format": "coord", "dim_room": [6, 9]})).unwrap();
    let legend = env.legend();
    assert!(legend.symbols.is_empty());
    assert!(legend.coordinates.unwrap().contains("row 5, column 8"));
    assert!(env.instruction().contains("6 rows and 9 columns"));
}

#[test]
fn the_player_tells_its_next_push_and_what_it_does() {
    let env = drawn(&["#######", "#P____#", "#__X_O#", "#_____#", "#######"], json!({}));
    let turn = env.demonstrate(&Demonstration::perfect(2), &mut Stream::new(0)).unwrap();
    assert_eq!(turn.thought, "push Right from 2 2 go Down Right");
    assert_eq!(turn.actions, ["Down", "Right"]);
    let cornered = drawn(&["#####", "#X__#", "#_PO#", "#####"], json!({}));
    assert_eq!(cornered.demonstrate(&Demonstration::perfect(2), &mut Stream::new(0)), None);
}

/// Shortest solutions are looked for, so every level whose solution fits is solved; rooms rarely ask for more moves.
#[test]
fn the_player_solves_every_level() {
    for tag in ["SimpleSokoban", "LargerSokoban"] {
        let build = || crate::tag(tag)?.make();
        let (success, _) = conformance::demonstrated(&build, &Demonstration::perfect(1), 500, 100, 100).unwrap();
        assert_eq!(success, 1.0, "{tag}");
    }
}

/// The prototype's demonstrations had success 0.78 and 3.6 turns.
#[test]
fn noisy_demonstrations_succeed_as_often_as_in_the_recipe() {
    let build = || crate::make("sokoban", &json!({"num_boxes": 1, "generator": "open"}));
    let options = Demonstration { noise: 0.3, full: 0.5, max_actions_per_turn: 2 };
    let (success, turns) = conformance::demonstrated(&build, &options, 3000, 5, 10).unwrap();
    assert!((success - 0.78).abs() < 0.03 && (turns - 3.6).abs() < 0.1, "{success} {turns}");
}

#[test]
fn broken_states_are_refused_with_the_reason() {
    let mut env = drawn(&["#####", "#_X_#", "#_PO#", "#####"], json!({}));
    let good = env.state();
    let refuse = |env: &mut Sokoban, path: &str, value: Value, reason: &str| {
        let mut state = good.clone();
        *state.pointer_mut(path).unwrap() = value;
        let error = env.load_state(&state).unwrap_err().to_string();
        assert!(error.contains(reason), "{path}: {error}");
        assert_eq!(env.state(), good);
    };
    refuse(&mut env, "/room_state/2/2", json!(1), "0 players");
    refuse(&mut env, "/room_state/1/2", json!(1), "0 boxes and 1 targets");
    refuse(&mut env, "/room_state/1/2", json!(3), "(1, 2) is 3 where the fixed grid has 1");
    refuse(&mut env, "/room_fixed/0/0", json!(1), "ring");
    refuse(&mut env, "/room_fixed/0", json!([0]), "same 3 to 16 rows");
    refuse(&mut env, "/boxes_on_target", json!(2), "settings ask");
    refuse(&mut env, "/num_env_steps", json!(-1), "cannot restore");
}

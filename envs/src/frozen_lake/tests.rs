//! Maps, slips, texts and the scripted player.

use super::*;
use crate::conformance;

fn on(desc: &[&str], player: Cell, config: Value) -> FrozenLake {
    let mut settings = json!({"size": desc.len(), "is_slippery": false});
    settings.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let mut env = FrozenLake::new(&settings).unwrap();
    env.load_state(&json!({"desc": desc, "player": player, "noise": Stream::new(0)})).unwrap();
    env
}

const LAKE: [&str; 4] = ["SFFF", "FFFF", "FHHG", "FFFH"];

#[test]
fn the_compact_formats_are_those_of_the_recipe() {
    let env = on(&LAKE, (1, 1), json!({"observation_format": "compact_near"}));
    let text = "____\n_P__\n_OOG\n___O\nPlayer 1 1 Goal 2 3 near Up _ Down O Left _ Right _";
    assert_eq!(env.observation(), text);
    let env = on(&LAKE, (0, 3), json!({"observation_format": "compact_near"}));
    assert!(env.observation().ends_with("near Up # Down _ Left _ Right #"));
    let env = on(&LAKE, (2, 3), json!({"observation_format": "compact"}));
    assert_eq!(env.observation(), "____\n____\n_OO*\n___O\nPlayer 2 3 Goal 2 3");
}

#[test]
fn the_player_takes_a_shortest_way_around_holes() {
    let env = on(&LAKE, (2, 0), json!({}));
    let turn = env.demonstrate(&Demonstration::perfect(9), &mut Stream::new(1)).unwrap();
    assert_eq!(turn.actions.len(), 5);
    assert_eq!(turn.thought, format!("Player 2 0 Goal 2 3 go {}", turn.actions.join(" ")));
    let walled = on(&["SHF", "HFF", "FFG"], (0, 0), json!({}));
    assert_eq!(walled.demonstrate(&Demonstration::perfect(1), &mut Stream::new(1)), None);
}

/// The prototype's demonstrations had success 0.64.
#[test]
fn noisy_demonstrations_succeed_as_often_as_in_the_recipe() {
    let build = || crate::make("frozen_lake", &json!({"p": 0.8, "is_slippery": false}));
    let options = Demonstration { noise: 0.5, full: 0.0, max_actions_per_turn: 2 };
    let (success, turns) = conformance::demonstrated(&build, &options, 4000, 5, 10).unwrap();
    assert!((success - 0.64).abs() < 0.03 && (turns - 2.75).abs() < 0.1, "{success} {turns}");
}

#[test]
fn slips_have_the_stated_frequencies_and_never_go_backwards() {
    let env = on(&LAKE, (1, 1), json!({"is_slippery": true, "success_rate": 0.6}));
    let mut draws = Stream::new(9);
    let mut counts = [0usize; 4];
    for _ in 0..20_000 {
        counts[env.slip(Direction::Right, draws.uniform()) as usize] += 1;
    }
    let share = |direction: Direction| counts[direction as usize] as f64 / 20_000.0;
    assert_eq!(counts[Direction::Left as usize], 0);
    assert!((share(Direction::Right) - 0.6).abs() < 0.02, "{counts:?}");
    assert!((share(Direction::Up) - 0.2).abs() < 0.015 && (share(Direction::Down) - 0.2).abs() < 0.015, "{counts:?}");
}

#[test]
fn members_slip_alike_unless_asked_otherwise() {
    let paths = |member_noise: bool| -> Vec<String> {
        let config = json!({"size": 8, "p": 1.0, "success_rate": 0.4, "member_noise": member_noise});
        let mut env = FrozenLake::new(&config).unwrap();
        let path = |member| {
            env.reset(1, member, Mode::Train).unwrap();
            (0..8).for_each(|i| drop(env.step(["Left", "up", "RIGHT"][i % 3]).unwrap()));
            env.state()["player"].to_string()
        };
        (0..6).map(path).collect()
    };
    assert!(paths(false).iter().all(|path| *path == paths(false)[0]));
    assert!(paths(true).iter().any(|path| *path != paths(true)[0]));
}

#[test]
fn actions_can_be_renamed_and_remapped() {
    let config = json!({"action_lookup": {"1": "north"}, "action_map": {"1": 3, "2": 1, "3": 2, "4": 0}});
    let mut env = on(&LAKE, (1, 1), config);
    assert_eq!(env.actions().unwrap(), ["north", "Down", "Right", "Left"]);
    assert!(env.step("North").unwrap().effective);
    assert_eq!(env.state()["player"], json!([0, 1]));
    assert_eq!(env.step("Up").unwrap(), Step::default());
}

#[test]
fn hardly_any_ice_still_gives_a_map() {
    for (size, p) in [(4, 1e-12), (64, 0.02), (64, 0.6)] {
        let mut env = FrozenLake::new(&json!({"size": size, "p": p})).unwrap();
        env.reset(u64::MAX, 0, Mode::Val).unwrap();
        assert!(env.demonstrate(&Demonstration::perfect(1), &mut Stream::new(0)).is_some());
    }
}

#[test]
fn maps_are_the_same_on_every_machine() {
    let mut env = FrozenLake::new(&Value::Null).unwrap();
    let hash = hash_bytes([0, 1, 10_000, u64::MAX].into_iter().flat_map(|seed| {
        env.reset(seed, 0, Mode::Train).unwrap();
        env.state_hash().to_le_bytes()
    }));
    assert_eq!(hash, 5_400_774_454_364_190_492);
}

#[test]
fn broken_states_are_refused_with_the_reason() {
    let mut env = on(&LAKE, (1, 1), json!({}));
    let good = env.state();
    for (desc, player, reason) in [
        (vec!["SFFF", "FFFF", "FHHF", "FFFH"], (0, 0), "exactly one G"),
        (vec!["SFFF", "FSFF", "FHHG", "FFFH"], (0, 0), "exactly one S"),
        (vec!["SFFF", "FFxF", "FHHG", "FFFH"], (0, 0), "byte 120"),
        (vec!["SG", "FF"], (0, 0), "4 by 4"),
        (LAKE.to_vec(), (4, 0), "4 by 4"),
    ] {
        let error = env.load_state(&json!({"desc": desc, "player": player, "noise": Stream::new(0)})).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(env.state(), good);
    }
}

/// The greatest probability of standing on the goal after at most `moves` moves, by recursion over what is left.
fn best_odds(env: &FrozenLake, lake: &Lake, moves: usize) -> f64 {
    let mut odds: Vec<f64> = lake.tiles.iter().map(|tile| f64::from(u8::from(*tile == Tile::Goal))).collect();
    let weights = env.slip_weights();
    for _ in 0..moves {
        let of = |cell: Cell| odds[cell.0 * lake.size + cell.1];
        let chance = |cell: Cell, index: usize| {
            let slips = [(index + 3) % 4, index, (index + 1) % 4].map(|way| of(lake.next(cell, CYCLE[way])));
            slips.iter().zip(weights).map(|(odds, weight)| odds * weight).sum::<f64>()
        };
        odds = lake.cells().map(|cell| (0..4).map(|index| chance(cell, index)).fold(0.0, f64::max)).collect();
    }
    odds[lake.start.0 * lake.size + lake.start.1]
}

#[test]
fn the_player_always_arrives_where_nothing_slips() {
    for config in [json!({"is_slippery": false}), json!({"success_rate": 1.0, "p": 0.8, "size": 6})] {
        let build = || crate::make("frozen_lake", &config);
        let (success, _) = conformance::demonstrated(&build, &Demonstration::perfect(1), 500, 100, 100).unwrap();
        assert_eq!(success, 1.0, "{config}");
    }
}

/// Ten moves are the budget of the shipped tags. The best play knows how many are left; the player does not.
#[test]
fn on_slippery_ice_the_player_is_within_three_points_of_the_best_play() {
    let n = 3000;
    for success_rate in [0.8, 0.6] {
        let config = json!({"success_rate": success_rate});
        let build = || crate::make("frozen_lake", &config);
        let (success, _) = conformance::demonstrated(&build, &Demonstration::perfect(1), n, 10, 10).unwrap();
        let mut env = FrozenLake::new(&config).unwrap();
        let best: f64 = (0..n)
            .map(|seed| {
                env.reset(seed, 0, Mode::Train).unwrap();
                best_odds(&env, &env.episode.as_ref().unwrap().lake, 10)
            })
            .sum();
        let best = best / n as f64;
        assert!(
            (best - success).abs() <= 0.03,
            "at {success_rate} the player reaches {success:.3}, the best {best:.3}"
        );
    }
}

//! No level of validation is ever trained on, neither in the warm start nor in training.

mod stage;

use ragen::config::Config;
use ragen::env_manager::{EnvManager, EnvManagerError, excluded_states};
use ragen::warmstart::Demonstrations;
use ragen_envs::Mode;
use stage::*;
use std::collections::BTreeSet;

/// FrozenLake so small that levels collide often.
fn small_lake() -> Config {
    let mut config = small_config();
    let mut tag = config.envs["FrozenLake"].clone();
    tag.config = serde_json::json!({"size": 3, "p": 0.8, "is_slippery": false}).as_object().unwrap().clone();
    config.envs.insert("Lake".into(), tag);
    for set in [&mut config.env.train, &mut config.env.val] {
        set.tags = vec!["Lake".into()];
    }
    (config.env.val.groups, config.env.val.group_size) = (60, 1);
    (config.env.train.groups, config.env.train.group_size) = (50, 2);
    config.rollout.response_tokens = 12;
    config.val.exclude_from_training = true;
    config
}

fn validation(config: &Config) -> BTreeSet<u64> {
    EnvManager::new(&config.env.val, &config.envs, Mode::Val).unwrap().first_states(config.val.rounds).unwrap()
}

#[test]
fn training_rejects_levels_of_validation_and_says_how_many() {
    let config = small_lake();
    let excluded = validation(&config);
    let mut plain = EnvManager::new(&config.env.train, &config.envs, Mode::Train).unwrap();
    let mut careful = EnvManager::new(&config.env.train, &config.envs, Mode::Train).unwrap();
    careful.excluded = excluded.clone();
    let (mut seen, mut collisions) = (0, 0);
    for _ in 0..10 {
        plain.reset().unwrap();
        careful.reset().unwrap();
        collisions += plain.episodes.iter().filter(|e| excluded.contains(&e.state_hash)).count();
        seen += careful.episodes.iter().filter(|e| excluded.contains(&e.state_hash)).count();
        // Members of a group still share their level, and other groups keep their seeds.
        for (a, b) in careful.episodes.chunks(2).zip(plain.episodes.chunks(2)) {
            assert_eq!((a[0].seed, a[0].state_hash), (a[1].seed, a[1].state_hash));
            assert!(a[0].seed == b[0].seed || excluded.contains(&b[0].state_hash));
        }
    }
    assert!(collisions > 0, "the test needs collisions");
    assert_eq!(seen, 0);
    assert!(careful.state.rejected >= collisions as u64 / 2);

    // A manager that goes on from the saved state plays the same levels.
    let mut resumed = EnvManager::new(&config.env.train, &config.envs, Mode::Train).unwrap();
    resumed.excluded = excluded;
    resumed.state = careful.state;
    resumed.reset().unwrap();
    careful.reset().unwrap();
    assert_eq!(resumed.state, careful.state);
    let hashes = |m: &EnvManager| m.episodes.iter().map(|e| e.state_hash).collect::<Vec<_>>();
    assert_eq!(hashes(&resumed), hashes(&careful));
}

/// With two tags the fewer levels of `val.groups` are others than those of `env.val`, and kept apart as well.
#[test]
fn levels_of_validations_in_between_are_excluded_too() {
    let mut config = small_lake();
    for set in [&mut config.env.train, &mut config.env.val] {
        set.tags = vec!["CoordFrozenLake".into(), "Lake".into()];
    }
    config.val.groups = 20;
    let excluded = excluded_states(&config).unwrap();
    let mut part = config.env.val.clone();
    part.groups = 20;
    let mut part = EnvManager::new(&part, &config.envs, Mode::Val).unwrap();
    let states = part.first_states(1).unwrap();
    assert!(states.is_subset(&excluded) && !states.is_subset(&validation(&config)));
}

#[test]
fn demonstrations_reject_levels_of_validation() {
    let config = small_lake();
    let excluded = validation(&config);
    let mut demonstrations = Demonstrations::new(&config, context(&config)).unwrap();
    let shown: Vec<_> = (0..300).map(|i| demonstrations.show(i).unwrap()).collect();
    assert_eq!(shown.iter().filter(|t| excluded.contains(&t.state_hash)).count(), 0);
    assert!(demonstrations.rejected > 0, "the test needs collisions");
    let again = Demonstrations::new(&config, context(&config)).unwrap().show(123).unwrap();
    assert_eq!(again, shown[123], "a demonstration depends on the seed and its number alone");
}

#[test]
fn a_validation_set_of_all_levels_is_refused() {
    let mut config = small_lake();
    let lake = &mut config.envs.get_mut("Lake").unwrap().config;
    lake.extend([("size".into(), 2.into()), ("p".into(), 1.into())]);
    config.env.val.groups = 400;
    let mut envs = EnvManager::new(&config.env.train, &config.envs, Mode::Train).unwrap();
    envs.excluded = validation(&config);
    let error = envs.reset().unwrap_err();
    assert!(matches!(error, EnvManagerError::NoUnseenLevel { .. }), "{error}");
    assert!(error.to_string().contains("envs.Lake") && error.to_string().contains("env.val.groups"), "{error}");
}

#[test]
fn unknown_tags_and_odd_counts_are_refused() {
    let mut config = small_lake();
    let build =
        |config: &Config| EnvManager::new(&config.env.train, &config.envs, Mode::Train).map(|m| m.episodes.len());
    config.env.train.tags = vec!["Lake".into(), "Bandit".into()];
    config.env.train.groups = 5;
    assert_eq!(build(&config).unwrap(), 10);
    config.env.train.n_groups = vec![3, 3];
    assert!(build(&config).unwrap_err().to_string().contains("n_groups"));
    config.env.train.n_groups = vec![1, 4];
    assert_eq!(build(&config).unwrap(), 10);
    config.env.train.tags[1] = "Bandits".into();
    let error = build(&config).unwrap_err().to_string();
    assert!(error.contains("`Bandits`") && error.contains("BanditTest"), "{error}");
    config.env.train.tags.clear();
    assert!(build(&config).is_err());
}

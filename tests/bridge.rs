//! Runs over environments that are other programs: those that fail or hang cost their own episodes and no more.

mod stage;

use ragen::agent_proxy::{Play, play};
use ragen::config::{Config, Tag};
use ragen::env_manager::EnvManager;
use ragen_envs::Mode;
use ragen_models::random::Key;
use serde_json::{Value, json};
use stage::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A server in the shell, so that hundreds start at once: `$1` is done with each seed, a line of shell.
const SERVER: &str = r#"
id() { i=${1#*\"id\":}; echo "${i%%,*}"; }
while read -r m; do
  n=$(id "$m")
  case $m in
    *'"hello"'*) echo "{\"id\":$n,\"protocol\":1,\"instruction\":\"Go.\",\"actions\":[\"Left\",\"Right\"]}" ;;
    *'"reset"'*) s=${m#*\"seed\":}; s=${s%%,*}; echo "{\"id\":$n,\"observation\":\"Left\"}" ;;
    *) eval "$1"; echo "{\"id\":$n,\"observation\":\"Left\",\"reward\":1,\"terminated\":true,\"truncated\":false,\"success\":true}" ;;
  esac
done"#;

fn config(groups: usize, group_size: usize, on_step: &str, step_seconds: f64) -> Config {
    let mut config = small_config();
    let settings = json!({"command": ["sh", "-c", SERVER, "server", on_step], "step_seconds": step_seconds});
    let Value::Object(settings) = settings else { unreachable!() };
    let tag = Tag { r#type: "process".into(), max_actions: 2, config: settings, ..Tag::default() };
    config.envs = BTreeMap::from([("Mine".to_string(), tag)]);
    let train = &mut config.env.train;
    (train.tags, train.groups, train.group_size, train.seed) = (vec!["Mine".into()], groups, group_size, 0);
    config
}

fn rollout(config: &Config) -> ragen::agent_proxy::Rollout {
    let mut envs = EnvManager::new(&config.env.train, &config.envs, Mode::Train).unwrap();
    let context = context(config);
    let broken = envs.reset().unwrap();
    let how = Play::new(&context, &config.rollout, config.rollout.sampling);
    play(&mut Scripted::new(&[" Left</answer>"; 4]), &mut envs, broken, how, Key::new(0)).unwrap()
}

#[test]
fn one_that_hangs_among_256_is_dropped_and_the_others_go_on() {
    let began = Instant::now();
    let rollout = rollout(&config(256, 1, "[ $s = 40 ] && sleep 100", 3.0));
    assert_eq!((rollout.trajectories.len(), rollout.dropped.len()), (255, 1));
    assert!(rollout.trajectories.iter().all(|t| t.seed != 40 && t.outcome.success));
    assert!(
        rollout.dropped[0].contains("was asked to step \"Left\": it did not answer within 3 s"),
        "{}",
        rollout.dropped[0]
    );
    assert!(began.elapsed() < Duration::from_secs(60), "nobody waited for the sleep of 100 s");
}

#[test]
fn one_in_ten_that_ends_in_its_step_is_counted() {
    let config = config(20, 2, "[ $((s % 10)) = 3 ] && exit 9", 20.0);
    let rollout = rollout(&config);
    assert_eq!((rollout.metrics["dropped"], rollout.metrics["episodes"]), (4.0, 36.0));
    let told = rollout.told_of_dropped().unwrap();
    assert!(told.starts_with("4 of 40 episodes were dropped") && told.contains("it ended (exit status: 9)"), "{told}");
}

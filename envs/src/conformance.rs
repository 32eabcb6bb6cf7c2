//! The environment contract as callable checks.
//!
//! It knows the trait [`Env`] and no task: a new environment, or a bridge to one outside, is held to the contract by
//! calling [`check`] with a function that builds it. Each check plays whole episodes with actions of its own, so that
//! an environment passes only by how it behaves.
//!
//! ```
//! let build = || ragen_envs::make("frozen_lake", &serde_json::json!({"size": 5}));
//! assert_eq!(ragen_envs::conformance::check(&build), Vec::<String>::new());
//! ```

use crate::rng::hash_bytes;
use crate::{Demonstration, Env, EnvError, Mode, Step, Stream};
use std::time::{Duration, Instant};

/// Builds a fresh environment, on any thread.
pub type Build<'a> = &'a (dyn Fn() -> Result<Box<dyn Env>, EnvError> + Sync);

/// A check: `Err` says which rule was broken and how.
pub type Check = fn(Build) -> Result<(), String>;

/// The checks by name.
pub const CHECKS: [(&str, Check); 13] = [
    ("needs reset", needs_reset),
    ("determinism", is_deterministic),
    ("second reset", resets_twice),
    ("threads", is_the_same_on_every_thread),
    ("independence", is_independent),
    ("render", renders_idempotently),
    ("group", groups_share_the_start),
    ("state", restores_its_state),
    ("edge actions", survives_edge_actions),
    ("step", steps_are_coherent),
    ("afterlife", tolerates_steps_after_the_end),
    ("demonstration", demonstrations_hold),
    ("time", |build| answers_in_time(build, RESET_LIMIT, STEP_LIMIT)),
];

/// Runs every check; returns a line for each that failed.
pub fn check(build: Build) -> Vec<String> {
    let failed = |(name, check): (&str, Check)| check(build).err().map(|why| format!("{name}: {why}"));
    CHECKS.into_iter().filter_map(failed).collect()
}

const SEEDS: [u64; 7] = [0, 1, 2, 123, 10_000, u64::MAX - 1, u64::MAX];
const MODES: [Mode; 3] = [Mode::Train, Mode::Val, Mode::Test];
/// How long a reset and a step may take at most.
const RESET_LIMIT: Duration = Duration::from_secs(60);
const STEP_LIMIT: Duration = Duration::from_secs(20);
/// Actions of one check's episode.
const LENGTH: usize = 40;

fn must(holds: bool, rule: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule()) }
}

fn said(error: EnvError) -> String {
    error.to_string()
}

fn started(build: Build, seed: u64, member: u64, mode: Mode) -> Result<Box<dyn Env>, String> {
    let mut env = build().map_err(said)?;
    env.reset(seed, member, mode).map_err(said)?;
    Ok(env)
}

/// An action that fits the present state: mostly a name, sometimes words that are none.
fn some_action(env: &dyn Env, draws: &mut Stream) -> String {
    match env.actions() {
        Some(names) if !names.is_empty() && !draws.chance(0.1) => names[draws.below(names.len())].clone(),
        _ => ["look", "1 + 2", "x"][draws.below(3)].to_owned(),
    }
}

/// All that a caller can see of an environment in its present state.
fn seen(env: &dyn Env) -> (String, Option<Vec<String>>, u64, String) {
    (env.observation(), env.actions(), env.state_hash(), env.legend().to_string())
}

/// Plays on and records all that can be seen.
fn play(env: &mut dyn Env, length: usize, draws: &mut Stream) -> Result<Vec<(String, Step, String)>, String> {
    let mut record = Vec::with_capacity(length);
    for _ in 0..length {
        let action = some_action(env, draws);
        let step = env.step(&action).map_err(said)?;
        record.push((action, step, env.observation()));
    }
    Ok(record)
}

/// A step before the first reset is [`EnvError::NotReset`]; looking at the environment is harmless.
pub fn needs_reset(build: Build) -> Result<(), String> {
    let mut env = build().map_err(said)?;
    seen(env.as_ref());
    must(env.state().is_null(), || "state() before reset must be null".to_owned())?;
    let stepped = env.step("");
    must(matches!(stepped, Err(EnvError::NotReset { .. })), || format!("a step before reset gave {stepped:?}"))?;
    let demonstrated = env.demonstrate(&Demonstration::perfect(1), &mut Stream::new(0));
    must(demonstrated.is_none(), || "demonstrated before reset".to_owned())
}

/// Equal seed, member, mode and actions give equal episodes: in two instances, and in one that was used before.
pub fn is_deterministic(build: Build) -> Result<(), String> {
    let mut used = build().map_err(said)?;
    for (seed, mode) in SEEDS.into_iter().zip(MODES.into_iter().cycle()) {
        let mut fresh = started(build, seed, 3, mode)?;
        used.reset(seed, 3, mode).map_err(said)?;
        must(seen(fresh.as_ref()) == seen(used.as_ref()), || format!("two resets with seed {seed} differ"))?;
        let records = [&mut fresh, &mut used].map(|env| play(env.as_mut(), LENGTH, &mut Stream::new(seed)));
        must(records[0] == records[1], || format!("two episodes of seed {seed} differ"))?;
        must(fresh.state() == used.state(), || format!("two episodes of seed {seed} end in different states"))?;
    }
    Ok(())
}

/// A reset in the middle of an episode leads where the first reset led.
pub fn resets_twice(build: Build) -> Result<(), String> {
    let mut env = started(build, 9, 1, Mode::Train)?;
    let first = (seen(env.as_ref()), play(env.as_mut(), LENGTH, &mut Stream::new(9))?);
    for played in [0, 3, LENGTH] {
        env.reset(9, 1, Mode::Train).map_err(said)?;
        play(env.as_mut(), played, &mut Stream::new(8))?;
        env.reset(9, 1, Mode::Train).map_err(said)?;
        let again = (seen(env.as_ref()), play(env.as_mut(), LENGTH, &mut Stream::new(9))?);
        must(first == again, || format!("reset after {played} actions it starts or goes on otherwise than at first"))?;
    }
    Ok(())
}

/// Episodes played on other threads at once are those of this thread.
pub fn is_the_same_on_every_thread(build: Build) -> Result<(), String> {
    let episode = || {
        let mut env = started(build, 31, 2, Mode::Train)?;
        Ok::<_, String>((seen(env.as_ref()), play(env.as_mut(), LENGTH, &mut Stream::new(31))?))
    };
    let here = episode()?;
    let elsewhere: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(episode)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it panicked".to_owned()))).collect()
    });
    for there in elsewhere {
        must(there? == here, || "an episode on another thread differs".to_owned())?;
    }
    Ok(())
}

/// No reset and no step takes longer than it may.
pub fn answers_in_time(build: Build, reset: Duration, step: Duration) -> Result<(), String> {
    let mut env = build().map_err(said)?;
    for seed in SEEDS {
        let began = Instant::now();
        env.reset(seed, 0, Mode::Train).map_err(said)?;
        let took = began.elapsed();
        must(took <= reset, || format!("the reset to seed {seed} took {took:?}, more than {reset:?}"))?;
        let mut draws = Stream::new(seed);
        for _ in 0..LENGTH {
            let action = some_action(env.as_ref(), &mut draws);
            let began = Instant::now();
            env.step(&action).map_err(said)?;
            let took = began.elapsed();
            must(took <= step, || format!("the action {action:?} took {took:?}, more than {step:?}"))?;
        }
    }
    Ok(())
}

/// A hash of what can be seen of a few episodes, to be compared with that of another process.
///
/// **Errors** what an environment said.
pub fn fingerprint(build: Build) -> Result<u64, String> {
    let mut text = String::new();
    for (seed, mode) in SEEDS.into_iter().zip(MODES.into_iter().cycle()) {
        let mut env = started(build, seed, 1, mode)?;
        let first = seen(env.as_ref());
        let record = play(env.as_mut(), LENGTH, &mut Stream::new(seed))?;
        text.push_str(&format!("{first:?}{record:?}{}", env.state()));
    }
    Ok(hash_bytes(text.bytes()))
}

/// Two environments share nothing: playing one does not change the other.
pub fn is_independent(build: Build) -> Result<(), String> {
    let mut alone = started(build, 5, 0, Mode::Train)?;
    let expected = play(alone.as_mut(), LENGTH, &mut Stream::new(1))?;
    let (mut one, mut other) = (started(build, 5, 0, Mode::Train)?, started(build, 6, 0, Mode::Train)?);
    let (mut draws, mut distraction) = (Stream::new(1), Stream::new(2));
    let mut record = Vec::new();
    for _ in 0..LENGTH {
        let (action, step, _) = play(one.as_mut(), 1, &mut draws)?.remove(0);
        // The other is played before the first is looked at.
        play(other.as_mut(), 1, &mut distraction)?;
        record.push((action, step, one.observation()));
    }
    must(record == expected, || "an episode changes when another environment is played beside it".to_owned())
}

/// Looking changes nothing, and every look shows the same.
pub fn renders_idempotently(build: Build) -> Result<(), String> {
    let mut env = started(build, 11, 0, Mode::Train)?;
    let mut draws = Stream::new(11);
    for _ in 0..LENGTH {
        let (before, looks) = (env.state(), [seen(env.as_ref()), seen(env.as_ref())]);
        env.demonstrate(&Demonstration::perfect(2), &mut Stream::new(0));
        must(looks[0] == looks[1] && looks[1] == seen(env.as_ref()), || "two looks at one state differ".to_owned())?;
        must(before == env.state(), || "looking changed the state".to_owned())?;
        must(!looks[0].0.is_empty(), || "the observation is empty".to_owned())?;
        play(env.as_mut(), 1, &mut draws)?;
    }
    Ok(())
}

/// Members of a group start alike.
pub fn groups_share_the_start(build: Build) -> Result<(), String> {
    for seed in SEEDS {
        let first = started(build, seed, 0, Mode::Train)?;
        for member in [1, 7, u64::MAX] {
            let other = started(build, seed, member, Mode::Train)?;
            must(seen(first.as_ref()) == seen(other.as_ref()), || {
                format!("member {member} of seed {seed} starts apart")
            })?;
        }
    }
    Ok(())
}

/// A restored state looks and goes on as if it had not been saved, in a fresh instance, after any number of steps; and
/// a value that is no state is an error that changes nothing.
pub fn restores_its_state(build: Build) -> Result<(), String> {
    for length in [0, 1, 3, 10] {
        let mut env = started(build, 17 + length as u64, 2, Mode::Train)?;
        play(env.as_mut(), length, &mut Stream::new(4))?;
        // Through text, as a checkpoint would hold it.
        let state = serde_json::from_str(&env.state().to_string()).map_err(|error| error.to_string())?;
        let mut restored = build().map_err(said)?;
        restored.load_state(&state).map_err(said)?;
        must(seen(restored.as_ref()) == seen(env.as_ref()), || {
            format!("after {length} steps it is restored otherwise")
        })?;
        let bad = restored.load_state(&serde_json::json!({"no": "state"}));
        must(matches!(bad, Err(EnvError::State { .. })), || format!("a value that is no state gave {bad:?}"))?;
        let records = [&mut env, &mut restored].map(|env| play(env.as_mut(), LENGTH, &mut Stream::new(5)));
        must(records[0] == records[1], || format!("restored after {length} steps it goes on otherwise"))?;
        must(env.state() == restored.state(), || "the states differ after going on".to_owned())?;
    }
    let mut env = started(build, 1, 0, Mode::Train)?;
    env.load_state(&serde_json::Value::Null).map_err(said)?;
    must(env.state().is_null(), || "the state of an environment not yet reset is not restored".to_owned())
}

/// Texts that no agent should send and some agent will.
pub fn edge_actions() -> Vec<String> {
    let mut actions: Vec<String> =
        ["", " ", "\n\t", "\0", "\u{7f}\u{1b}[31m", "\u{fffd}\u{fffd}", "\u{202e}pU", "🧊🧊", "1", "-1"]
            .into_iter()
            .chain([
                "99999999999999999999999999",
                "1e400",
                "NaN",
                "null",
                "{}",
                "'; --",
                "</answer>",
                "<|im_end|>",
                "||",
            ])
            .map(str::to_owned)
            .collect();
    actions.push("a".repeat(1 << 20));
    actions.push("(".repeat(100_000) + &")".repeat(100_000));
    actions
}

/// A bad action is a step, never an error; where actions have names, it is an invalid one that changes nothing.
pub fn survives_edge_actions(build: Build) -> Result<(), String> {
    let mut env = started(build, 23, 0, Mode::Train)?;
    for action in edge_actions() {
        let short: String = action.chars().take(20).collect();
        let before = env.state();
        let step = env.step(&action).map_err(|error| format!("the action {short:?} gave the error: {error}"))?;
        must(step.reward.is_finite(), || format!("the action {short:?} paid {}", step.reward))?;
        let names = env.actions();
        let is_name = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case(&action));
        if names.is_some_and(|names| !is_name(&names)) {
            must(!step.valid && before == env.state(), || format!("{short:?} is no action, but was taken for one"))?;
        }
    }
    Ok(())
}

/// Rewards and numbers are finite; success means that the task ended; no step both ends the task and hits a limit;
/// what is invalid is not effective; what was not effective leaves a discrete task's observation alone.
pub fn steps_are_coherent(build: Build) -> Result<(), String> {
    for seed in SEEDS {
        let mut env = started(build, seed, 0, Mode::Train)?;
        let mut draws = Stream::new(seed);
        for _ in 0..LENGTH {
            let before = env.observation();
            let (action, step, after) = play(env.as_mut(), 1, &mut draws)?.remove(0);
            let said = || format!("seed {seed}, action {action}: {step:?}");
            let finite = step.reward.is_finite() && step.info.iter().all(|(_, number)| number.is_finite());
            must(finite, || format!("{} has a number that is not finite", said()))?;
            must(!step.success || step.terminated, || format!("{} succeeds without an end", said()))?;
            must(!(step.terminated && step.truncated), || format!("{} both ends and is cut off", said()))?;
            must(step.valid || !step.effective, || format!("{} is effective but invalid", said()))?;
            let unchanged = step.effective || env.actions().is_none() || before == after;
            must(unchanged, || format!("{} changed the observation without effect", said()))?;
            if step.ended() {
                env.reset(seed.wrapping_add(1000), 0, Mode::Train).map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}

/// Steps after the end are tolerated, and the environment can still be looked at.
pub fn tolerates_steps_after_the_end(build: Build) -> Result<(), String> {
    for seed in SEEDS {
        let mut env = started(build, seed, 0, Mode::Train)?;
        let mut draws = Stream::new(seed);
        let mut ended = false;
        for _ in 0..500 {
            let action = some_action(env.as_ref(), &mut draws);
            let step = env.step(&action);
            let step =
                step.map_err(|error| format!("a step {} the end: {error}", if ended { "after" } else { "before" }))?;
            ended |= step.ended();
            must(step.reward.is_finite(), || format!("{step:?} is not finite"))?;
            seen(env.as_ref());
        }
    }
    Ok(())
}

/// Where there is a scripted player: it depends on the draws alone, names actions of the episode, keeps to the number
/// of moves, and says nothing once the episode is over.
pub fn demonstrations_hold(build: Build) -> Result<(), String> {
    let options = Demonstration { noise: 0.3, full: 0.5, max_actions_per_turn: 3 };
    for seed in SEEDS {
        let mut env = started(build, seed, 0, Mode::Train)?;
        let mut draws = Stream::new(seed);
        for _ in 0..LENGTH {
            let again = env.demonstrate(&options, &mut draws.clone());
            let turn = env.demonstrate(&options, &mut draws);
            must(turn == again, || format!("seed {seed}: equal draws gave {turn:?} and {again:?}"))?;
            let Some(turn) = turn else { break };
            must((1..=3).contains(&turn.actions.len()), || format!("seed {seed}: a turn of {:?}", turn.actions))?;
            must(!turn.thought.is_empty() && !turn.thought.contains('\n'), || format!("thought {:?}", turn.thought))?;
            for action in &turn.actions {
                let step = env.step(action).map_err(said)?;
                must(step.valid, || format!("seed {seed}: the player's own {action} is invalid"))?;
                if step.ended() {
                    let more = env.demonstrate(&options, &mut draws);
                    must(more.is_none(), || format!("seed {seed}: a turn after the end: {more:?}"))?;
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Lets the scripted player play the seeds `0..episodes` of training, each up to `max_turns` turns and `max_actions`
/// actions; returns the share of episodes that succeeded and the mean number of turns.
///
/// **Errors** what an environment said, which no sound one does.
pub fn demonstrated(
    build: Build,
    options: &Demonstration,
    episodes: u64,
    max_turns: usize,
    max_actions: usize,
) -> Result<(f64, f64), EnvError> {
    let mut env = build()?;
    let (mut solved, mut turns) = (0, 0);
    for seed in 0..episodes {
        env.reset(seed, 0, Mode::Train)?;
        let mut draws = Stream::derive("demonstrated", seed, "draws");
        let (mut last, mut actions) = (Step::default(), 0);
        for _ in 0..max_turns {
            let Some(turn) = env.demonstrate(options, &mut draws).filter(|_| actions < max_actions) else { break };
            turns += 1;
            for action in turn.actions.iter().take(max_actions - actions) {
                last = env.step(action)?;
                actions += 1;
            }
        }
        solved += u64::from(last.success);
    }
    Ok((solved as f64 / episodes as f64, turns as f64 / episodes as f64))
}

#[cfg(test)]
mod tests;

//! Good, slow, dying, lying and flooding programs, and what is said of each.

use crate::{Env, EnvError, Mode, conformance, make};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn python(name: &str) -> bool {
    let found = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {name} needs python3");
    }
    found
}

fn server() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bridge/servers/line.py")
}

fn config(settings: Value) -> Value {
    json!({"command": ["python3", "-S", server()], "settings": settings, "step_seconds": 0.4, "restarts": 0})
}

fn line(settings: Value) -> Box<dyn Env> {
    let mut env = make("process", &config(settings)).unwrap();
    env.reset(0, 0, Mode::Train).unwrap();
    env
}

/// What is said of a step of a program with these settings, without the part that names it.
fn said(settings: Value, action: &str) -> String {
    let mut env = line(settings);
    let Err(EnvError::Failed { env_type, reason }) = env.step(action) else { panic!("it did not fail") };
    assert_eq!(env_type, "process");
    assert_eq!(env.step("Right"), Err(EnvError::NotReset { env_type: "process" }), "the episode is over");
    let named = format!("`python3 -S {}` was asked to step ", server().display());
    reason.strip_prefix(&named).unwrap_or_else(|| panic!("{reason}")).to_owned()
}

#[test]
fn a_good_program_conforms_whether_it_keeps_states_or_is_replayed() {
    if python("a_good_program") {
        let (keeps, replayed) = (config(json!({})), config(json!({"fault": "keeps no state"})));
        assert_eq!(conformance::check(&|| make("process", &keeps)), Vec::<String>::new());
        assert_eq!(conformance::restores_its_state(&|| make("process", &replayed)), Ok(()));
    }
}

#[test]
fn what_a_program_answers_is_what_a_step_is() {
    if !python("what_a_program_answers") {
        return;
    }
    let mut env = line(json!({}));
    assert_eq!((env.observation().as_str(), env.instruction().as_str()), ("at 0", "Walk right."));
    assert_eq!(env.backend().unwrap(), format!("a line, played by `python3 -S {}`", server().display()));
    let steps: Vec<_> = (0..4).map(|_| env.step("Right").unwrap()).collect();
    assert_eq!(steps.iter().map(|step| step.reward).collect::<Vec<_>>(), [0.0, 0.0, 0.0, 1.0]);
    assert!(steps[3].success && steps[3].terminated && steps[3].effective && steps[3].valid && !steps[0].terminated);
    assert_eq!(steps[1].info, [("at".into(), 2.0)]);
    assert_eq!(env.state()["kept"], 4);
    let first = line(json!({"says": {"terminated": true, "truncated": true}})).step("Left").unwrap();
    assert!(first.terminated && !first.truncated && !first.effective);
}

#[test]
fn every_failure_says_what_was_asked_what_came_and_how_the_error_output_ends() {
    if !python("every_failure") {
        return;
    }
    let quiet = "; its error output is empty";
    for (settings, expected) in [
        (json!({"fault": "dies"}), "\"Right\": it ended (exit status: 3); its error output ends with: out of ideas"),
        (json!({"fault": "hangs"}), "\"Right\": it did not answer within 0.4 s; its error output ends with: thinking"),
        (json!({"fault": "raises"}), "\"Right\": it answered with an error: no such cell"),
        (json!({"id": 99}), "\"Right\": its answer has id 99 where the message had 3"),
        (json!({"id": "3"}), "\"Right\": its answer has id \"3\" where the message had 3"),
        (
            json!({"says": {"reward": "much"}}),
            "\"Right\": it answered `reward` = \"\\\"much\\\"\", which must be a finite number",
        ),
        (json!({"lacks": ["terminated"]}), "\"Right\": its answer lacks `terminated`, true or false"),
        (json!({"says": {"observation": 7}}), "\"Right\": it answered `observation` = \"7\", which must be a text"),
        (
            json!({"says": {"info": {"x": "y"}}}),
            "\"Right\": it answered `info` = \"{\\\"x\\\":\\\"y\\\"}\", which must be a map of finite numbers",
        ),
        (json!({"fault": "floods lines"}), "\"Right\": its answer has id 1 where the message had 3"),
    ] {
        assert_eq!(said(settings, "Right").trim_end_matches(quiet), expected);
    }
    assert!(
        said(json!({"fault": "floods"}), "Left").starts_with("\"Left\": it writes a line of more than 4194304 bytes")
    );
    assert!(said(json!({"fault": "chats"}), "Left").starts_with("\"Left\": it answered what is no JSON ("));
    // JSON has no number that is none; Python writes one all the same.
    let mut config = config(json!({}));
    config["command"] = json!([
        "sh",
        "-c",
        concat!(
            r#"read a; echo '{"id":1,"protocol":1,"instruction":""}'; read a; echo '{"id":2,"observation":"o"}'; read a; "#,
            r#"echo '{"id":3,"observation":"o","reward":NaN,"terminated":false,"truncated":false}'"#
        )
    ]);
    let mut env = make("process", &config).unwrap();
    env.reset(0, 0, Mode::Train).unwrap();
    let said_nan = env.step("x").unwrap_err().to_string();
    assert!(said_nan.contains("was asked to step \"x\": it answered what is no JSON"), "{said_nan}");
    // A message that nobody reads does not wait for ever.
    let unread = said(json!({"fault": "reads no more"}), &"a".repeat(1 << 20));
    assert!(unread.contains(" and 1048516 more bytes: it did not read the message within 0.4 s"), "{unread}");
}

#[test]
fn a_loud_program_is_heard_and_goes_on() {
    if python("a_loud_program") {
        let mut env = line(json!({"fault": "is loud"}));
        assert_eq!(env.step("Right").map(|step| step.effective), Ok(true));
    }
}

#[test]
fn what_cannot_be_started_is_an_error_when_it_is_built() {
    let failure = |config: Value| make("process", &config).err().unwrap().to_string();
    let absent = failure(json!({"command": ["/nowhere/at/all"]}));
    assert!(absent.contains("`/nowhere/at/all` was asked to hello: it cannot be started: "), "{absent}");
    let needed = failure(json!({}));
    assert!(needed.starts_with("environment `process`: command: is needed"), "{needed}");
    assert!(
        failure(json!({"command": ["true"], "step_seconds": 0})).contains("step_seconds: is 0 but must be a number")
    );
    let server = failure(json!({"command": ["true"], "url": "x"}));
    assert!(server.contains("url: unknown setting"), "{server}");
    let url = make("http", &json!({"url": "https://a"})).err().unwrap().to_string();
    assert!(url.contains("url: is \"https://a\" but must be an address such as http://127.0.0.1:8000"), "{url}");
    if python("what_cannot_be_started") {
        let mut slow = config(json!({"fault": "never says hello"}));
        slow["start_seconds"] = json!(0.2);
        assert!(failure(slow).contains("was asked to hello: it did not answer within 0.2 s"));
        let other = failure(config(json!({"fault": "another version"})));
        assert!(other.contains("`protocol` = \"2\", which must be 1, the version spoken here"), "{other}");
        let same = failure(config(json!({"fault": "same actions"})));
        assert!(same.contains("which must be null or a list of different texts, at least one"), "{same}");
    }
}

#[test]
fn a_reset_is_tried_again_with_a_new_process_and_a_step_is_not() {
    if !python("a_reset_is_tried_again") {
        return;
    }
    let mut config = config(json!({"fault": "dies at its second reset"}));
    let mut env = make("process", &config).unwrap();
    env.reset(1, 0, Mode::Train).unwrap();
    let dead = env.reset(2, 0, Mode::Train).unwrap_err().to_string();
    assert!(
        dead.contains("was asked to reset to seed 2: it ended (exit status: 7)") && dead.contains("no more levels")
    );
    // The next reset starts another one.
    env.reset(2, 0, Mode::Train).unwrap();
    assert_eq!(env.observation(), "at 2");
    config["restarts"] = json!(1);
    let mut env = make("process", &config).unwrap();
    for seed in 0..4 {
        env.reset(seed, 0, Mode::Train).unwrap();
        assert_eq!(env.observation(), format!("at {}", seed % 3));
    }
}

#[test]
fn nothing_that_was_started_is_left_when_it_hangs_or_is_dropped() {
    if !python("nothing_is_left") {
        return;
    }
    // The shell's own child keeps a pipe open: it must end with its group.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let hello = r#"echo '{"id":1,"protocol":1,"instruction":""}'; "#;
    let script = format!("sleep 100 & echo $! > {0}.new; mv {0}.new {0}; read a; {hello} sleep 100", file.display());
    let env = make("process", &json!({"command": ["sh", "-c", script]})).unwrap();
    let pid = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    // What has ended may still be a zombie of whoever inherits it.
    let alive = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(alive());
    drop(env);
    let until = Instant::now() + Duration::from_secs(5);
    while alive() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!alive());
}

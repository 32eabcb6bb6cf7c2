//! The real binary in a folder of its own: exit codes, messages, files, and what a kill leaves behind.

mod binary;

use binary::{Place, assert_equal_runs, files, json, says, text};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A small run: fresh weights of a tiny shape, three validation levels of which are played.
const SMALL: [&str; 16] = [
    "frozen_lake",
    "model.path=",
    "model.n_layers=1",
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_kv_heads=2",
    "model.d_ff=32",
    "env.train.groups=8",
    "env.train.group_size=4",
    "env.val.groups=8",
    "val.groups=4",
    "val.every=5",
    "rollout.max_turns=2",
    "run.steps=10",
    "checkpoint.every=5",
    "run.trajectories_every=1",
];

/// A small run to the end.
fn train(place: &Place, dir: &str, more: &[&str]) -> (String, String) {
    place.check(0, &[&["train", "--run", dir, "--quiet", "--json"], SMALL.as_slice(), more].concat())
}

#[test]
fn wrong_usage_is_code_2_and_starts_nothing() {
    let place = Place::new();
    let (_, err) = place.check(2, &["trian"]);
    assert!(err.contains("unrecognized subcommand 'trian'") && err.contains("'train'"), "{err}");
    let (_, err) = place.check(2, &["train", "filter.valeu=0.9", "run.steps=many", "optim.lr=-1"]);
    says(
        &err,
        &["3 problems", "filter.valeu: unknown key; did you mean filter.value", "run.steps: expected a whole number"],
    );
    says(&err, &["optim.lr: expected a number from 0 to 1, found -1"]);
    let (_, err) =
        place.check(2, &["train", "model.n_heads=7", "env.train.group_size=1", "rollout.response_tokens=600"]);
    says(&err, &["model.n_heads: 7 does not divide model.d_model", "env.train.group_size", "rollout.response_tokens"]);
    says(
        &place.check(2, &["train", "absent.toml"]).1,
        &["absent.toml", "neither a file, nor a tag (`ragen envs` lists them), nor one of sokoban"],
    );
    says(&place.check(2, &["train", "model.path=absent"]).1, &["there is no model absent"]);
    says(&place.check(2, &["eval", "absent"]).1, &["there is no model absent"]);
    says(
        &place.check(2, &["eval", "absent", "--env", "TinySokobn"]).1,
        &["env.val.tags", "the nearest is TinySokoban"],
    );
    says(&place.check(2, &["envs", "sokobn"]).1, &["there is no environment sokobn", "did you mean sokoban"]);
    says(&place.check(2, &["rollout", "--resume"]).1, &["--resume"]);
    says(&place.check(2, &["train", "--resume"]).1, &["there is no run runs/sokoban-0 to resume"]);
    says(&place.check(2, &["train", "--resume", "--run", "absent"]).1, &["absent is not a run"]);
    fs::write(place.path("bad.toml"), "a = = 1").unwrap();
    says(&place.check(2, &["train", "bad.toml"]).1, &["bad.toml is not TOML"]);
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 1, "only bad.toml is there");
}

#[test]
fn an_absent_device_is_code_3() {
    let place = Place::new();
    let (_, text) = place.check(3, &["train", "bandit", "--device", "cuda"]);
    says(&text, &["--device cuda", "no CUDA device can be used", "run with --device cpu"]);
    // What the machine lacks; or, where it lacks nothing, that training does not use it yet.
    let reasons = ["NVIDIA's driver", "cuInit", "NVRTC", "do not use it yet"];
    assert!(reasons.iter().any(|reason| text.contains(reason)), "{text}");
    says(&place.check(3, &["bench", "--device", "cuda:1"]).1, &["--device cuda:1"]);
    says(&place.check(2, &["train", "bandit", "--device", "tpu"]).1, &["run.device", "auto, cpu, cuda"]);
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0);
}

#[test]
fn a_command_says_which_device_it_took_and_a_resume_goes_on_there() {
    let place = Place::new();
    let args =
        [&["train", "--run", "a", "--threads", "2"], SMALL.as_slice(), &["run.steps=1", "val.before_train=false"]]
            .concat();
    let (_, err) = place.check(0, &[args.as_slice(), &["val.every=0"]].concat());
    let line = err.lines().find(|line| line.starts_with("device: ")).unwrap_or_else(|| panic!("{err}"));
    let config = || fs::read_to_string(place.path("a/config.toml")).unwrap();
    if line.starts_with("device: cpu (") {
        assert!(line.contains(", 2 threads); no GPU: "), "{line}");
        assert!(config().contains("device = \"cpu\""), "{}", config());
    } else {
        assert!(config().contains("device = \"cuda:0\""), "{}", config());
    }
    let resume = ["train", "--resume", "--run", "a"];
    let (_, err) = place.check(0, &[resume.as_slice(), &["--device", "cpu", "--threads", "1"]].concat());
    assert!(err.contains("device: cpu (") && err.contains(", 1 thread)\n"), "asked for, so there is no why: {err}");
    // A resume without --device takes what the run took.
    let moved = config().replace("device = \"cpu\"", "device = \"cuda:5000\"");
    fs::write(place.path("a/config.toml"), moved).unwrap();
    says(&place.check(3, &resume).1, &["--device cuda:5000", "no CUDA device can be used"]);
    let (_, err) = place.check(0, &[resume.as_slice(), &["--device", "cpu", "--quiet"]].concat());
    assert_eq!(err, "");
    let (out, err) = place.check(0, &["eval", "a", "--json", "env.val.groups=2"]);
    assert!(err.starts_with("device: cpu (") && err.lines().count() == 1, "{err}");
    assert!(json(out.lines().last())["device"].as_str().unwrap().starts_with("cpu ("), "{out}");
}

#[test]
fn the_doctor_looks_at_every_kernel_of_a_gpu() {
    let Some(_) = ragen_models::gpu::Gpu::for_tests() else { return };
    let (out, err) = Place::new().check(0, &["doctor", "--device", "emulator", "--small"]);
    let report = json(out.lines().last());
    assert_eq!((&report["ok"], err.as_str()), (&Value::Bool(true), ""));
    let checks = report["checks"].as_array().unwrap();
    let attention = checks.iter().find(|check| check["name"] == "attention_fwd").unwrap();
    assert!(attention["bf16"]["error"].as_f64().unwrap() > 0.0 && attention["f32"]["milliseconds"].is_null());
    let line = out.lines().find(|line| line.starts_with("ok       attention_fwd: ")).unwrap();
    let parts = ["f32 off by ", "bf16 off by ", "at most 1.0e-5", "no time on the emulator"];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    // A line of what it is, a line a check, the advice, and the JSON.
    assert_eq!(out.lines().count(), checks.len() + 3);
    let advice = out.lines().rev().nth(1).unwrap();
    assert_eq!(advice, format!("advice   {}", report["advice"].as_str().unwrap()));
    assert!(advice.contains("run.products"), "{advice}");
}

#[test]
fn the_doctor_finds_this_machine_well() {
    let place = Place::new();
    let (out, err) = place.check(0, &["doctor", "--device", "cpu", "--threads", "2"]);
    let report = json(out.lines().last());
    assert_eq!((&report["ok"], err.as_str()), (&Value::Bool(true), ""));
    assert!(report["device"].as_str().unwrap().starts_with("cpu ("), "{report}");
    let checks = report["checks"].as_array().unwrap();
    // A line of what it is, then a line a check, then the JSON.
    assert_eq!(out.lines().count(), checks.len() + 2);
    for (line, check) in out.lines().skip(1).zip(checks) {
        let word = if check["ok"].is_null() { "skipped" } else { "ok" };
        assert!(line.starts_with(word) && line.contains(check["name"].as_str().unwrap()), "{line}");
    }
    let of = |part: &str| checks.iter().find(|c| c["name"].as_str().unwrap().contains(part)).unwrap();
    assert!(of("memory read")["value"].as_f64().unwrap() > 1.0);
    assert_eq!(of("sampled and scored")["error"], 0.0);
    assert!(of("gradients in f32")["error"].as_f64().unwrap() > 0.0, "f32 is not f64");

    let (_, err) = place.check(3, &["doctor", "--device", "cuda:7"]);
    says(&err, &["--device cuda:7", "no CUDA device can be used", "run with --device cpu"]);
    says(&place.check(2, &["doctor", "--device", "tpu"]).1, &["run.device", "auto, cpu, cuda"]);
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0, "it leaves nothing");
}

#[test]
fn environments_are_listed_and_played_through_a_pipe() {
    let place = Place::new();
    let (out, _) = place.check(0, &["envs"]);
    for name in ["sokoban", "frozen_lake", "bandit", "CoordSokoban", "TinyFrozenLake", "available"] {
        assert!(out.contains(name), "{out}");
    }
    let (out, _) = place.check(0, &["envs", "TinySokoban"]);
    assert!(out.contains("* generator") && out.contains("\"open\"") && out.contains("  max_steps"), "{out}");
    let (out, _) = place.check(0, &["envs", "--json"]);
    assert_eq!(json(out.lines().last())["types"].as_array().unwrap().len(), ragen_envs::specs().len());

    let play = |input: &str, seed: &str| {
        let mut command = place.command(&["play", "TinyFrozenLake", "--seed", seed]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        text(&output.stdout)
    };
    let out = play("nonsense\nup || down\nquit\n", "3");
    assert!(out.contains("Actions: Left, Down, Right, Up") && out.contains("not an action here"), "{out}");
    assert!(out.contains("left after 3 actions"), "{out}");
    assert!(play("", "3").contains("no more input after 0 actions"));
    // Following the hints leads to the goal.
    let mut moves = String::new();
    for _ in 0..16 {
        let out = play(&format!("{moves}hint\n"), "5");
        if out.contains("solved after") {
            assert!(out.contains("reward 1.00"), "{out}");
            return;
        }
        let hint = out.rsplit("hint: ").next().unwrap().split(' ').next().unwrap();
        moves.push_str(&format!("{hint}\n"));
    }
    panic!("not solved by {moves:?}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let place = Place::new();
    let mut child = place.command(&["envs"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn a_run_leaves_its_files_and_ends_in_json() {
    let place = Place::new();
    let (out, err) = train(&place, "a", &["--seed", "5"]);
    assert_eq!(err, "");
    let result = json(out.lines().last());
    assert_eq!((result["run"].as_str(), result["steps"].as_u64()), (Some("a"), Some(10)));
    assert!(result["device"].is_string(), "{result}");
    for key in ["success_before", "success_after", "reward_before", "reward_after", "seconds"] {
        assert!(result[key].is_number(), "{key} in {result}");
    }
    assert!(out.contains("on unseen levels") && out.contains("tokens") && out.contains("files   a"), "{out}");
    let lines = |name: &str| {
        fs::read_to_string(place.path("a").join(name)).unwrap().lines().map(|l| json(Some(l))).collect::<Vec<_>>()
    };
    let metrics = lines("metrics.jsonl");
    assert_eq!(metrics.iter().map(|m| m["step"].as_u64().unwrap()).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    assert!(metrics.iter().all(|m| m.as_object().unwrap().keys().all(|key| !key.contains("second"))));
    let sampled: f64 = metrics.iter().map(|m| m["train/sampled_tokens"].as_f64().unwrap()).sum();
    assert_eq!(result["sampled_tokens"].as_f64(), Some(sampled));
    assert_eq!(lines("val.jsonl").iter().map(|v| v["step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 5, 10]);
    assert_eq!(lines("timing.jsonl").len(), 10);
    let trajectories = lines("trajectories/step-000010.jsonl");
    assert_eq!(trajectories.len(), 32);
    for key in ["text", "ids", "provenance", "logps", "reward", "advantage", "kept"] {
        assert!(trajectories[0].get(key).is_some(), "{key}");
    }
    let names: Vec<String> = fs::read_dir(place.path("a/checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, ["step-000010"], "checkpoint.keep is 1");

    // What it resolved gives the same run, on any number of threads, and overwrites nothing.
    let (out, _) = place.check(0, &["train", "a/config.toml", "--run", "b", "--threads", "1", "--quiet"]);
    assert!(out.contains("files   b"), "{out}");
    fs::write(place.path("b/config.toml"), fs::read(place.path("a/config.toml")).unwrap()).unwrap();
    assert_equal_runs(&place.path("a"), &place.path("b"));
    says(&place.check(2, &["train", "a", "--run", "b"]).1, &["b is there already and is not overwritten"]);
    assert_equal_runs(&place.path("a"), &place.path("b"));

    // Without --run the name counts on.
    let short = [
        &["train", "--quiet", "--seed", "5"],
        SMALL.as_slice(),
        &["run.steps=1", "optim.warmup_steps=0", "val.every=0", "val.before_train=false"],
    ]
    .concat();
    for name in ["runs/frozen_lake-5", "runs/frozen_lake-5-2", "runs/frozen_lake-5-3"] {
        assert!(place.check(0, &short).0.contains(&format!("files   {name}\n")));
    }
}

/// Starts a run and kills it as soon as `ready` holds.
fn kill_when(place: &Place, args: &[&str], ready: impl Fn() -> bool) {
    let mut child: Child = place.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !ready() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it was killed");
        assert!(started.elapsed() < Duration::from_secs(120), "the run never got there");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killed_and_resumed_is_the_same_run() {
    check_killed_and_resumed(&[]);
}

/// A row a turn, turns that do not fit, and rollouts that go on until enough groups have a spread.
#[test]
fn killed_and_resumed_is_the_same_run_with_windows_and_more_rounds() {
    // Fresh weights earn nothing, but how sure they are differs.
    let until_full = [
        "filter.metric=entropy_variance",
        "filter.strategy=top_k",
        "filter.value=0.5",
        "filter.max_rounds=3",
        "filter.full_groups=10",
        "rollout.max_turns=4",
    ];
    let limited = ["rollout.context=limited_multi_turn", "rollout.context_window=2"];
    check_killed_and_resumed(&[&until_full[..], &limited].concat());
    check_killed_and_resumed(&[&until_full[..], &["rollout.context=single_turn", "rollout.model_tokens=120"]].concat());
}

/// Values alone at first, turns that grow, what was cut off valued, a reference that is looked at, an analysis that plays for itself, and
/// the best checkpoint beside the others.
#[test]
fn killed_and_resumed_is_the_same_run_with_schedules() {
    check_killed_and_resumed(&[
        "algorithm.estimator=gae",
        "algorithm.bootstrap_truncated=true",
        "model.value_model=true",
        "model.value_warmup_steps=6",
        "model.reference=true",
        "rollout.max_turns=4",
        "rollout.curriculum.turns=1",
        "rollout.curriculum.steps=8",
        "gradient_analysis.every=3",
        "gradient_analysis.groups=4",
        "val.every=2",
        "checkpoint.keep=0",
    ]);
}

/// A run, and the same run killed in its seventh step and resumed.
fn check_killed_and_resumed(more: &[&str]) {
    let place = Place::new();
    train(&place, "whole", more);
    let lines = |name: &str| fs::read_to_string(place.path(name)).unwrap_or_default().lines().count();
    let start = [&["train", "--run", "cut", "--quiet"], SMALL.as_slice(), more].concat();
    kill_when(&place, &start, || lines("cut/metrics.jsonl") >= 7);
    assert!(place.path("cut/checkpoints/step-000005").is_dir());
    // A kill can leave half a line and half a save.
    let mut metrics = fs::OpenOptions::new().append(true).open(place.path("cut/metrics.jsonl")).unwrap();
    metrics.write_all(b"{\"step\":8,\"batch").unwrap();
    fs::create_dir(place.path("cut/checkpoints/.step-000010.partial")).unwrap();
    let (out, _) = place.check(0, &["train", "--resume", "--run", "cut", "--quiet", "--json"]);
    let result = json(out.lines().last());
    assert_eq!(result["steps"], 10);
    assert!(result["success_before"].is_number(), "the validation before step 1 is remembered: {result}");
    assert_equal_runs(&place.path("whole"), &place.path("cut"));
    // There is nothing left to do, and nothing changes.
    place.check(0, &["train", "--resume", "--run", "cut", "--quiet"]);
    assert_equal_runs(&place.path("whole"), &place.path("cut"));
}

#[test]
fn a_kill_at_any_moment_loses_no_checkpoint() {
    let place = Place::new();
    let often =
        ["checkpoint.every=1", "val.every=0", "val.before_train=false", "run.steps=40", "run.trajectories_every=0"];
    train(&place, "whole", &often);
    let start = [&["train", "--run", "cut", "--quiet"], SMALL.as_slice(), &often].concat();
    let resume = ["train", "--resume", "--run", "cut", "--quiet"];
    let step = || {
        let text = fs::read_to_string(place.path("cut/metrics.jsonl")).unwrap_or_default();
        text.lines().filter(|line| line.ends_with('}')).count()
    };
    kill_when(&place, &start, || step() >= 3);
    // Killed at odd times after some progress; the next start must always find a whole checkpoint.
    for delay_us in [100, 900, 2300] {
        let from = step();
        kill_when(&place, &resume, || step() > from + 2);
        std::thread::sleep(Duration::from_micros(delay_us));
    }
    place.check(0, &resume);
    assert_equal_runs(&place.path("whole"), &place.path("cut"));
}

#[test]
fn interrupted_saves_and_says_how_to_resume() {
    let place = Place::new();
    let long = [
        &["train", "--run", "cut", "--quiet"],
        SMALL.as_slice(),
        &["run.steps=100000", "checkpoint.every=0", "val.before_train=false", "val.every=0"],
    ]
    .concat();
    let child = place.command(&long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while !place.path("cut/metrics.jsonl").exists() {
        assert!(started.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(1));
    }
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let output = child.wait_with_output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("resume with: ragen train --resume --run cut"), "{err}");
    assert_eq!(fs::read_dir(place.path("cut/checkpoints")).unwrap().count(), 1);
}

#[test]
fn what_cannot_be_resumed_is_refused_and_left_as_it_is() {
    let place = Place::new();
    train(&place, "a", &["checkpoint.keep=0"]);
    let before = files(&place.path("a"));
    let resume = |more: &[&'static str]| [&["train", "--resume", "--run", "a"], more].concat();
    let (_, err) = place.check(2, &resume(&["model.d_model=32", "optim.lr=0.1", "checkpoint.every=7"]));
    says(&err, &["another configuration", "model.d_model: 16 here, 32 there", "optim.lr: 0.0005 here, 0.1 there"]);
    assert!(!err.contains("checkpoint.every"), "it changes no result: {err}");
    says(&place.check(2, &resume(&["run.steps=20"])).1, &["run.steps: 10 here, 20 there"]);
    says(&place.check(2, &resume(&["sokoban"])).1, &["env.train.tags", "model.n_layers"]);
    says(&place.check(2, &resume(&["--seed", "9"])).1, &["run.seed: 0 here, 9 there"]);
    assert_eq!(before, files(&place.path("a")));

    // The newest checkpoint is cut short: the one before it is taken, and that is said.
    let state = place.path("a/checkpoints/step-000010/trainer.state");
    let bytes = fs::read(&state).unwrap();
    fs::write(&state, &bytes[..bytes.len() / 2]).unwrap();
    let (_, err) = place.check(0, &resume(&["--quiet"]));
    assert!(err.contains("skipped a checkpoint that is not whole") && err.contains("step-000010"), "{err}");
    assert_eq!(before, files(&place.path("a")), "steps 6 to 10 were trained again");

    // No checkpoint is whole: one clear error.
    for step in ["step-000005", "step-000010"] {
        let weights = place.path("a/checkpoints").join(step).join("model.safetensors");
        fs::write(&weights, &fs::read(&weights).unwrap()[..100]).unwrap();
    }
    let damaged = files(&place.path("a"));
    says(&place.check(1, &resume(&[])).1, &["no whole checkpoint", "model.safetensors has 100 of"]);
    assert_eq!(damaged, files(&place.path("a")));
}

#[cfg(unix)]
#[test]
fn what_cannot_be_written_is_one_error() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    // A file in the way of the folder stops everybody; permissions do not stop root.
    fs::write(place.path("file"), "x").unwrap();
    let below = [&["train", "--run", "file/run", "--quiet"], SMALL.as_slice()].concat();
    says(&place.check(1, &below).1, &["file/run"]);
    let locked = place.path("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(locked.join("probe"), "").is_err() {
        let args = [&["train", "--run", "locked/run", "--quiet"], SMALL.as_slice()].concat();
        says(&place.check(1, &args).1, &["cannot create", "locked/run", "denied"]);
        let args = [&["train", "--run", "locked", "--quiet"], SMALL.as_slice()].concat();
        says(&place.check(1, &args).1, &["cannot write", "locked/config.toml", "denied"]);
    } else {
        // Nobody can make a folder there.
        let args = [&["train", "--run", "/sys/ragen-run", "--quiet"], SMALL.as_slice()].concat();
        says(&place.check(1, &args).1, &["cannot create /sys/ragen-run"]);
    }

    // As on a full disk: no file may grow beyond a few blocks, so a checkpoint does not fit.
    let args = [&["train", "--run", "full", "--quiet"], SMALL.as_slice(), &["run.trajectories_every=0"]].concat();
    let quoted: Vec<String> = args.iter().map(|a| format!("'{a}'")).collect();
    let script = format!("trap '' XFSZ; ulimit -f 40; exec '{}' {}", env!("CARGO_BIN_EXE_ragen"), quoted.join(" "));
    let output = Command::new("bash").args(["-c", &script]).current_dir(place.0.path()).output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    says(&err, &["cannot", "full/checkpoints"]);
    let left: Vec<_> = fs::read_dir(place.path("full/checkpoints")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().starts_with('.')), "no half checkpoint has a name: {left:?}");
}

#[test]
fn the_other_commands() {
    let place = Place::new();
    let small = |head: &[&'static str]| {
        [head, SMALL.as_slice(), &["warmstart.demos=16", "warmstart.optim.warmup_steps=0"]].concat()
    };
    let (out, _) = place.check(0, &small(&["warmstart", "--run", "warm", "--json", "--quiet"]));
    assert_eq!(json(out.lines().last())["updates"], 2);
    assert!(out.contains("ragen train frozen_lake model.path=warm/model"), "{out}");
    place.check(0, &small(&["warmstart", "--run", "again", "--quiet"]));
    assert_equal_runs(&place.path("warm"), &place.path("again"));

    let (out, _) = place.check(
        0,
        &[
            "train",
            "warm/config.toml",
            "model.path=warm",
            "run.steps=1",
            "optim.warmup_steps=0",
            "--run",
            "a",
            "--quiet",
        ],
    );
    assert!(out.contains("TinyFrozenLake success"), "{out}");
    let (out, _) = place.check(0, &["eval", "a", "--env", "TinyFrozenLake", "env.val.group_size=2", "--json"]);
    let score = &json(out.lines().last())["tags"]["TinyFrozenLake"];
    assert_eq!(score["episodes"], 16);
    for key in ["success", "reward", "format_valid", "pass_at_k"] {
        assert!(score[key].is_number(), "{key} in {score}");
    }
    assert!(place.path("a/eval.json").is_file() && place.path("a/trajectories/eval.jsonl").is_file());
    place.check(0, &["eval", "a"]);
    assert!(place.path("a/eval-2.json").is_file(), "nothing is overwritten");
    let (out, _) =
        place.check(0, &["eval", "a", "--checkpoint", "1", "env.val.groups=2", "env.val.group_size=3", "--json"]);
    assert!(out.contains("pass@2  pass@3"), "{out}");
    let score = &json(out.lines().last())["tags"]["TinyFrozenLake"];
    assert_eq!(score["pass_at"].as_object().unwrap().keys().collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!((&score["pass_at"]["1"], &score["pass_at"]["3"]), (&score["success"], &score["pass_at_k"]));
    says(
        &place.check(2, &["eval", "a", "--checkpoint", "7"]).1,
        &["a has no checkpoint 7", "step-000007 is not there"],
    );
    says(&place.check(2, &["eval", "frozen_lake", "--checkpoint", "best"]).1, &["frozen_lake is no run"]);
    says(&place.check(2, &["export", "a", "b", "--checkpoint", "bset"]).1, &["newest, best or the number of a step"]);

    let (out, _) = place.check(0, &small(&["rollout", "--run", "r", "--json"]));
    assert_eq!(json(out.lines().last())["episodes"], 32);
    assert!(place.path("r/trajectories/step-000001.jsonl").is_file() && !place.path("r/checkpoints").exists());

    let (out, _) = place.check(0, &small(&["inspect", "--json"]));
    let result = json(out.lines().last());
    assert_eq!(result["config"]["run"]["steps"], 10);
    let prompt = &result["prompts"][0];
    let (ids, mask) = (prompt["ids"].as_array().unwrap(), prompt["loss_mask"].as_array().unwrap());
    assert_eq!(ids.len(), mask.len());
    let trained = mask.iter().filter(|m| **m == 1).count();
    assert!((1..=34).contains(&trained) && mask[0] == 0, "{mask:?}");
    let memory = result["memory_bytes"].as_object().unwrap();
    let sum: u64 = memory.iter().filter(|(key, _)| *key != "total").map(|(_, bytes)| bytes.as_u64().unwrap()).sum();
    assert_eq!(memory["total"].as_u64(), Some(sum));
    assert!(out.contains("[rollout]") && out.contains("are trained on"), "{out}");
    assert!(!place.path("runs").exists(), "inspect leaves nothing");
}

/// A guard takes a run back, with a value model and a reference, and with adapters, while all that can be measured is; cut off before
/// or after, it goes the same way.
#[test]
fn a_run_that_goes_back_is_resumed_exactly() {
    let place = Place::new();
    let common = [
        "train",
        "frozen_lake",
        "--quiet",
        "env.train.groups=6",
        "env.train.group_size=4",
        "run.steps=8",
        "val.every=0",
        "val.before_train=false",
        "collapse.every=2",
        "collapse.multi_turn=true",
        "collapse.contrast=2",
        "gradient_analysis.every=3",
        "checkpoint.every=1",
        "checkpoint.keep=0",
        "guards.reward=rollback",
        "guards.reward_window=1",
        "guards.reward_share=1",
        "update.loss.kl.coef=0.01",
    ];
    let value = ["algorithm.estimator=gae", "model.value_model=true", "model.value_lr_factor=2"];
    for (name, more) in [("value", value.as_slice()), ("adapters", &["model.lora.rank=4"])] {
        place.check(0, &[&common, more, &["--run", name]].concat());
        let text = fs::read_to_string(place.path(name).join("notices.jsonl")).unwrap();
        let notices: Vec<Value> = text.lines().map(|line| json(Some(line))).collect();
        let back = notices.iter().find(|notice| notice["text"].as_str().unwrap().contains("back to the checkpoint"));
        let back = back.unwrap_or_else(|| panic!("{text}"))["step"].as_u64().unwrap();
        for from in [back - 1, back] {
            let cut = format!("{name}-{from}");
            for (file, bytes) in files(&place.path(name)) {
                let step = file.strip_prefix("checkpoints/step-").and_then(|rest| rest[..6].parse::<u64>().ok());
                if step.is_none_or(|step| step <= from) {
                    let path = place.path(&cut).join(&file);
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, bytes).unwrap();
                }
            }
            place.check(0, &["train", "--resume", "--quiet", "--run", &cut]);
            assert_equal_runs(&place.path(name), &place.path(&cut));
        }
    }
    let (_, err) = place.check(2, &["train", "guards.kl=rollback", "checkpoint.keep=1", "guards.entropy=rolback"]);
    says(&err, &["guards.entropy: expected one of off, warn, stop, rollback"]);
    let (_, err) = place.check(2, &["train", "guards.kl=rollback", "checkpoint.keep=1", "gradient_analysis.only=true"]);
    says(&err, &["guards.kl: is \"rollback\", but checkpoint.keep is 1", "gradient_analysis.only: is on"]);
}

#[test]
fn an_environment_is_held_to_the_contract() {
    let place = Place::new();
    let out = place.check(0, &["envs", "check", "TinyFrozenLake", "--json"]).0;
    let mut lines = out.lines().rev();
    let object = json(lines.next());
    assert_eq!(object, serde_json::json!({"name": "TinyFrozenLake", "checks": 14, "failed": {}}));
    assert_eq!(lines.next(), Some("TinyFrozenLake: 14 of 14 checks passed"));
    assert_eq!((lines.next(), lines.clone().count()), (Some("pass  processes"), 13));
    // A program that shows its process id is another in every process, and fails other checks with it.
    let program = "while read -r m; do n=${m#*\\\"id\\\":}; n=${n%%,*}; \
        echo \"{\\\"id\\\":$n,\\\"protocol\\\":1,\\\"instruction\\\":\\\"\\\",\\\"observation\\\":\\\"$$\\\",\
        \\\"reward\\\":0,\\\"terminated\\\":false,\\\"truncated\\\":false}\"; done";
    let (out, error) = place.check(1, &["envs", "check", "--cmd", program]);
    for line in
        ["FAIL  determinism: two resets with seed 0 differ\n", "FAIL  processes: another process sees other episodes\n"]
    {
        assert!(out.contains(line), "{out}");
    }
    says(&error, &["rules"]);
    says(&place.check(2, &["envs", "check"]).1, &["<TAG>"]);
    says(&place.check(2, &["envs", "check", "TinyFrozenLak"]).1, &["did you mean TinyFrozenLake?"]);
    says(&place.check(1, &["envs", "check", "--cmd", "exit 4"]).1, &["was asked to hello: it ended (exit status: 4)"]);
}

//! Adapters and value models under the loop: what is trained, what stays, and that a run resumes as if never stopped.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const SMALL: &str = "env.train.groups=3 env.train.group_size=4 env.val.groups=4 val.every=0 val.before_train=false \
                     checkpoint.every=2 checkpoint.keep=0 rollout.response_tokens=12 collapse.every=0 filter.value=1.0 update.mini_batches=2";

fn ragen(dir: &Path, args: &str) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ragen"));
    command.current_dir(dir).args(args.split_whitespace()).output().unwrap()
}

fn ok(dir: &Path, args: &str) -> String {
    let output = ragen(dir, args);
    assert!(output.status.success(), "ragen {args}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn metrics(dir: &Path, run: &str) -> Vec<Value> {
    let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Trains 4 steps, forgets the second half, resumes, and expects the same files.
fn resumes(dir: &Path, what: &str) {
    ok(dir, &format!("train sokoban {SMALL} run.steps=4 {what} --run whole --quiet"));
    for record in metrics(dir, "whole") {
        assert_eq!(record["update/first_ratio_max_error"], 0.0, "{record}");
        assert!(record["update/grad_norm"].as_f64().unwrap() > 0.0, "{record}");
    }
    let copied = Command::new("cp").args(["-r", "whole", "part"]).current_dir(dir).status().unwrap();
    assert!(copied.success());
    fs::remove_dir_all(dir.join("part/checkpoints/step-000004")).unwrap();
    ok(dir, "train --resume --run part --quiet");
    assert_eq!(metrics(dir, "whole"), metrics(dir, "part"));
    for entry in fs::read_dir(dir.join("whole/checkpoints/step-000004")).unwrap() {
        let name = entry.unwrap().file_name();
        let read = |run: &str| fs::read(dir.join(run).join("checkpoints/step-000004").join(&name)).unwrap();
        assert!(read("whole") == read("part"), "{name:?} differs after resuming");
    }
}

#[test]
fn adapters_are_trained_saved_resumed_and_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    resumes(
        dir.path(),
        "model.lora.rank=4 model.dtype=bf16 optim.lr=0.01 update.loss.kl.coef=0.01 algorithm.estimator=gae",
    );
    let checkpoint = dir.path().join("whole/checkpoints/step-000004");
    assert!(checkpoint.join("adapter_model.safetensors").exists() && !checkpoint.join("model.safetensors").exists());
    let config: Value = serde_json::from_slice(&fs::read(checkpoint.join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&config["r"], &config["base_model_name_or_path"]), (&Value::from(4), &Value::from("sokoban")));
    assert!(fs::metadata(checkpoint.join("value_head.safetensors")).unwrap().len() > 4 * 96);
    ok(dir.path(), "eval whole env.val.groups=4 --quiet");
    // Training goes on from a run's adapters, and only with the adapters that it holds.
    ok(dir.path(), &format!("train sokoban {SMALL} run.steps=3 model.path=whole --run next --quiet"));
    let other = ragen(dir.path(), &format!("train sokoban {SMALL} model.path=whole model.lora.rank=8 --quiet"));
    let error = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(2), "{error}");
    assert!(error.contains("model.path holds adapters of rank 4"), "{error}");
}

#[test]
fn a_value_model_of_its_own_is_trained_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    resumes(
        dir.path(),
        "model.value_model=true algorithm.estimator=gae model.value_lr_factor=10.0 update.loss.kl.coef=0.01",
    );
    let last = metrics(dir.path(), "whole").pop().unwrap();
    assert!(last["value/explained_var"].is_number() && last["batch/return_mean"].is_number(), "{last}");
    // The policy itself has no head then.
    let header = fs::read(dir.path().join("whole/checkpoints/step-000004/model.safetensors")).unwrap();
    assert!(!String::from_utf8_lossy(&header[..20_000]).contains("value_head"));
}

#[test]
fn what_cannot_be_is_refused_with_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let refused = ragen(
        dir.path(),
        "train bandit model.lora.rank=4 model.lora.targets=[\"c_attn\"] model.value_model=true model.value_head=true",
    );
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    for wanted in
        ["model.lora.targets: there is no layer \"c_attn\"", "model.lora.rank: is above 0", "model.value_model:"]
    {
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

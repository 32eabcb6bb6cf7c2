//! The scripts of `experiments/` in small, and the tables that they end with.

mod binary;

use binary::{Place, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program that makes tables; `cargo test` builds it, `cargo test --test experiments` alone does not.
fn tables() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = Path::new(env!("CARGO_BIN_EXE_ragen")).with_file_name("examples").join("experiments");
        if !path.exists() {
            let args = ["build", "--quiet", "-p", "ragen", "--example", "experiments"];
            let built =
                Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
            assert!(built.success() && path.exists(), "no {}", path.display());
        }
        path
    })
}

fn table(place: &Place, args: &[&str]) -> (bool, String, String) {
    let output = Command::new(tables()).args(args).current_dir(place.0.path()).output().unwrap();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// A run that was measured at steps 1, 2 and 4, and validated before the first step and after steps 2 and 4.
fn plant(place: &Place, name: &str, success: [f64; 3], information: [f64; 3], entropy: [f64; 3]) {
    let dir = place.path(name);
    fs::create_dir(&dir).unwrap();
    let validation = |(step, success): (u64, f64)| format!("{{\"step\":{step},\"success\":{success}}}\n");
    fs::write(dir.join("val.jsonl"), [0, 2, 4].into_iter().zip(success).map(validation).collect::<String>()).unwrap();
    let mut lines = String::new();
    for step in 1..=4u64 {
        let mut metrics = serde_json::json!({"step": step, "batch/trained_tokens": 500.0, "policy/entropy_loss": 0.1});
        if let Some(i) = [1, 2, 4].iter().position(|&measured| measured == step) {
            let of = |name: &str| format!("collapse_first_turn_sample/{name}");
            metrics[of("mi_seq_estimate")] = information[i].into();
            metrics[of("mi_upper_bound")] = 4.0.into();
            metrics[of("retrieval_accuracy")] = 0.5.into();
            metrics[of("conditional_entropy_seq_est")] = entropy[i].into();
            metrics[of("mi_zscore_ema_seq")] = information[i].into();
            metrics["collapse/regime_name"] = "diverse".into();
            metrics["train/reward"] = 1.0.into();
            metrics["batch/think_cost"] = (-0.25).into();
        }
        lines += &format!("{metrics}\n");
    }
    fs::write(dir.join("metrics.jsonl"), lines).unwrap();
}

#[test]
fn tables_have_the_values_computed_by_hand() {
    let place = Place::new();
    plant(&place, "lake-ppo-all-1", [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]);
    plant(&place, "lake-ppo-all-2", [0.4, 0.6, 0.5], [2.0, 3.0, 1.0], [1.0, 1.0, 1.0]);
    fs::write(place.path("lake-ppo-all-2/notices.jsonl"), "{\"step\":2,\"text\":\"step 2: look\"}\n").unwrap();
    let runs = ["lake-ppo-all-1", "lake-ppo-all-2"];

    let (ok, out, _) = table(&place, &[&["success"], runs.as_slice()].concat());
    let row = "| lake, ppo-all | 1, 2 | 0.100 → 0.300, 0.400 → 0.500 | 0.400 | 0.50 | 1.00 | 0.100 | 2 k |";
    assert!(ok && out.lines().count() == 3 && out.lines().last() == Some(row), "{out}");

    // Within: 1 and 0.5 (ranks 2, 3, 1 against 1, 3, 2). All: ranks of I are 1.5 3.5 5.5 3.5 5.5 1.5, of success 1 2 3 4 6 5. Ends: falling.
    let (ok, out, _) = table(&place, &[&["correlations"], runs.as_slice()].concat());
    assert!(ok && out.starts_with("lake, 2 runs, 6 pairs:\n"), "{out}");
    // Between: 2 and 3 against 0.2 and 0.6 at step 2, 3 and 1 against 0.3 and 0.5 at step 4.
    let all = 6.0 / (16.0f64 * 17.5).sqrt();
    assert!(
        out.contains(&format!("| I(X;Z) / ln N | 0.75 (0.50 to 1.00) | 0.00 (-1.00 to 1.00) | {all:.2} | -1.00 |")),
        "{out}"
    );
    assert!(out.contains("| retrieval | – (– to –) | – (– to –) | – | – |"), "{out}");
    assert!(out.contains("| H(Z given X) | -1.00 (-1.00 to -1.00) |"), "{out}");

    let (_, out, _) = table(&place, &["curve", runs[0]]);
    assert!(out.contains("| 2 | 0.75 | 0.20 | 0.100 | – | 2.00 | 4.00 | 0.50 | 2.00 | – | diverse |"), "{out}");
    // Step 1 was measured before the first update, so it goes with the validation before.
    assert!(out.contains("| 1 | 0.75 | 0.10 |") && out.lines().count() == 7, "{out}");
    let (_, out, _) = table(&place, &[&["notices"], runs.as_slice()].concat());
    assert!(out.contains("seed 1, ended after step 4:\n\n- nothing was said\n"), "{out}");
    assert!(out.contains("seed 2, ended after step 4:\n\n- step 2: look\n"), "{out}");

    for (args, says) in [
        (vec!["curve", "absent-a-1"], "cannot read absent-a-1/metrics.jsonl"),
        (vec!["curve", "absent"], "absent is not named TASK-ARM-SEED"),
        (vec!["curve"], "the folders of runs"),
        (vec!["picture", runs[0]], "there is no table \"picture\""),
    ] {
        let (ok, _, err) = table(&place, &args);
        assert!(!ok && err.contains(says), "{err}");
    }
}

/// A script of `experiments/`, two steps of a few levels and the first seed, its runs in `place`.
fn script(place: &Place, name: &str, more: &[(&str, &str)]) -> (bool, String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let small =
        [("SEEDS", "1"), ("STEPS", "2"), ("GROUPS_TRAIN", "4"), ("GROUPS_VAL", "8"), ("DEMOS", "16"), ("JOBS", "2")];
    let output = Command::new("bash")
        .arg(root.join("experiments").join(name))
        .envs([("RAGEN", Path::new(env!("CARGO_BIN_EXE_ragen"))), ("TABLES", tables()), ("OUT", place.0.path())])
        .env("THREADS", "1")
        .envs(small.iter().chain(more).copied())
        .output()
        .unwrap();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn estimators_and_correlations_in_small() {
    let place = Place::new();
    let (ok, out, err) = script(&place, "estimators.sh", &[]);
    assert!(ok, "{err}");
    let rows: Vec<&str> = out.lines().collect();
    assert_eq!(rows.len(), 2 + 8, "{out}");
    for arm in ["ppo-all", "ppo-filter", "grpo-all", "grpo-filter"] {
        for task in ["sokoban", "frozen_lake"] {
            assert!(out.contains(&format!("| {task}, {arm} | 1 | 0.")), "{out}");
        }
    }
    let kept = |run: &str| fs::read_to_string(place.path(&format!("{run}/config.toml"))).unwrap();
    assert!(kept("sokoban-ppo-filter-1").contains("value = 0.9") && kept("sokoban-grpo-all-1").contains("value = 1.0"));

    // What is there is not made again; what was cut off goes on; other settings are refused.
    fs::remove_file(place.path("sokoban-ppo-all-1.done")).unwrap();
    fs::remove_file(place.path("sokoban-grpo-all-1.done")).unwrap();
    fs::remove_dir_all(place.path("sokoban-grpo-all-1/checkpoints")).unwrap();
    let (ok, tables, err) = script(&place, "correlations.sh", &[]);
    assert!(ok && err.matches("is done").count() == 2 && err.contains("sokoban-ppo-all-1 is done"), "{err}");
    assert_eq!(tables.matches(", 4 runs, 4 pairs:").count(), 2, "{tables}");
    assert_eq!(tables.matches("| entropy of a token |").count(), 2, "{tables}");
    let (ok, again, _) = script(&place, "estimators.sh", &[]);
    assert!(ok && again == out);
    let (ok, _, err) = script(&place, "estimators.sh", &[("STEPS", "3")]);
    assert!(!ok && err.contains("was made with other settings"), "{err}");
}

#[test]
fn collapse_in_small() {
    let place = Place::new();
    let (ok, out, err) = script(&place, "collapse.sh", &[]);
    assert!(ok, "{err}");
    assert!(out.contains("| frozen_lake, cost | 1 | ") && out.contains("| frozen_lake, free | 1 | "), "{out}");
    assert!(out.contains("with and without the cost: frozen_lake, 2 runs, "), "{out}");
    assert!(out.contains("with the cost: frozen_lake, 1 runs, "), "{out}");
    assert_eq!(out.matches("| step | reward | success |").count(), 2, "{out}");
    assert_eq!(out.matches(", seed 1, ended after step ").count(), 4, "{out}");
    let config = fs::read_to_string(place.path("frozen_lake-stop-1/config.toml")).unwrap();
    assert!(config.contains("collapse = \"stop\"") && config.contains("think_cost = 0.02"), "{config}");
    let config = fs::read_to_string(place.path("frozen_lake-bare-1/config.toml")).unwrap();
    assert!(config.contains("bare = 0.2") && config.contains("demos = 16"), "{config}");
}

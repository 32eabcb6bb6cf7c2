//! Expressions, points, generated and read problems, and the player.

use super::*;
use crate::conformance;
use std::collections::BTreeSet;

#[test]
fn expressions_have_the_value_of_arithmetic_or_none() {
    for (text, value) in [
        ("1+2*3", 7.0),
        ("(1+2)*3", 9.0),
        ("8/2/2", 2.0),
        ("7-2-3", 2.0),
        ("- -3", 3.0),
        ("2*-3", -6.0),
        ("7/2", 3.5),
        ("(1\n+2)", 3.0),
        ("00+1", 1.0),
    ] {
        assert_eq!(evaluate(text), Some(value), "{text}");
    }
    for text in ["", "1+", "(1", "1)", "1 2", "2(3)", "07", "1\n+2", "1/0", "1/(2-2)", "2**3", "7%4", "x", "1.5", "−3"]
    {
        assert_eq!(evaluate(text), None, "{text}");
    }
    let deep = |n: usize| format!("{}1{}", "(".repeat(n), ")".repeat(n));
    assert_eq!((evaluate(&deep(200)), evaluate(&deep(201))), (Some(1.0), None));
    assert_eq!(evaluate(&("-".repeat(1 << 20) + "1")), Some(1.0));
}

#[test]
fn numbers_are_compared_by_value_however_long() {
    let mut env = Countdown::new(&Value::Null).unwrap();
    let mut paid = |nums: &[i64], target, answer: &str| {
        env.pose(Problem { nums: nums.to_vec(), target });
        env.step(answer).unwrap().reward
    };
    assert_eq!(paid(&[3, 5], 8, "03+5"), 0.1, "the number is right, the literal is not");
    assert_eq!(paid(&[3, 5], 8, "99999999999999999999999+5"), 0.0);
    assert_eq!(paid(&[i64::MAX, 1], i64::MAX, "9223372036854775807*1"), 1.0);
    assert_eq!(paid(&[3, 3, 5], 11, "3+3+5"), 1.0);
    assert_eq!(paid(&[3, 5, 5], 11, "3+3+5"), 0.0);
}

#[test]
fn solutions_use_products_and_quotients_where_they_must() {
    for (nums, target) in
        [(vec![6, 7], 42), (vec![8, 2, 3], 7), (vec![2, 3, 4], 20), (vec![1, 5, 5, 5], 24), (vec![9], 9)]
    {
        let answer = solve(&nums, target).unwrap();
        assert_eq!(Problem { nums, target }.judge(&answer), Verdict::Solved, "{answer}");
    }
    assert_eq!(solve(&[1, 1], 9), None);
    assert_eq!(solve(&[5, 3], 2).as_deref(), Some("5-3"));
}

#[test]
fn generated_problems_are_in_range_and_no_part_knows_another() {
    let problems = |mode, n| (0..n).map(|row| problems::generate(Family::SignedSum, row, mode)).collect::<Vec<_>>();
    let parts = [problems(Mode::Train, 20_000), problems(Mode::Val, 1000), problems(Mode::Test, 1000)];
    let hashes = parts.each_ref().map(|part| part.iter().map(Problem::hash).collect::<BTreeSet<u64>>());
    assert!(
        hashes[0].is_disjoint(&hashes[1]) && hashes[0].is_disjoint(&hashes[2]) && hashes[1].is_disjoint(&hashes[2])
    );
    assert!(hashes[0].len() > 19_000, "{}", hashes[0].len());
    for Problem { nums, target } in parts.iter().flatten() {
        assert!((3..=4).contains(&nums.len()) && nums.iter().all(|n| (1..=99).contains(n)));
        assert!((1..=999).contains(target) && has_signed_sum(nums, *target));
    }
    let hard = (0..200).map(|row| problems::generate(Family::Arithmetic, row, Mode::Train));
    let beyond = hard.filter(|problem| !has_signed_sum(&problem.nums, problem.target)).count();
    assert!(beyond > 50, "{beyond} of 200 need a product or a quotient");
}

#[test]
fn files_are_read_filtered_and_their_faults_named() {
    let dir = tempfile::tempdir().unwrap();
    let with = |name: &str, text: &str, more: Value| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut config = json!({"train_path": path});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Countdown::new(&config)
    };
    let rows =
        "{\"nums\": [3, 5, 2], \"target\": 4}\n{\"nums\": [6, 7], \"target\": 42}\n{\"nums\": [1, 2], \"target\": 3}\n";
    let mut env = with("rows.jsonl", rows, json!({"parity": true})).unwrap();
    assert!(env.backend().unwrap().starts_with("2 problems of "), "{:?}", env.backend());
    let mut shown = |seed| {
        env.reset(seed, 0, Mode::Val).unwrap();
        env.observation()
    };
    assert_eq!(shown(0), "Target: 4, nums: [3, 5, 2]");
    assert_eq!((shown(1), shown(5)), ("Target: 3, nums: [1, 2]".to_owned(), "Target: 3, nums: [1, 2]".to_owned()));
    let all = with("rows.jsonl", rows, json!({"family": "arithmetic", "max_instances": 2})).unwrap();
    assert!(all.backend().unwrap().starts_with("2 problems of "));
    let said = |result: Result<Countdown, EnvError>| result.err().unwrap().to_string();
    let missing = said(with("bad.jsonl", "{\"nums\": [1]}", json!({})));
    assert!(
        missing.contains("train_path: ") && missing.contains("bad.jsonl row 1: there is no column `target`"),
        "{missing}"
    );
    assert!(
        said(with("no.jsonl", "{\"nums\": [6, 7], \"target\": 42}", json!({}))).contains("no row with a signed sum")
    );
    let absent = json!({"train_path": "/nowhere/x.jsonl", "backend": "files"});
    assert!(said(Countdown::new(&absent)).contains("cannot read /nowhere/x.jsonl"));
    let auto = Countdown::new(&json!({"train_path": "/nowhere/x.jsonl"})).unwrap();
    assert_eq!(auto.backend().as_deref(), Some("embedded problems, generated"));
}

#[test]
fn the_player_solves_every_problem() {
    for family in ["signed_sum", "arithmetic"] {
        let build = || crate::make("countdown", &json!({"family": family}));
        let best = conformance::demonstrated(&build, &Demonstration::perfect(1), 1000, 1, 1).unwrap();
        assert_eq!(best, (1.0, 1.0), "{family}");
    }
}

/// The file was written by pyarrow, with Snappy: the three rows of the test above.
#[test]
#[cfg(feature = "parquet")]
fn parquet_files_are_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/countdown.parquet");
    let mut env = Countdown::new(&json!({"train_path": path, "family": "arithmetic", "parity": true})).unwrap();
    let mut shown = |seed| {
        env.reset(seed, 0, Mode::Train).unwrap();
        env.observation()
    };
    assert_eq!(
        [0, 1, 2].map(&mut shown),
        ["Target: 4, nums: [3, 5, 2]", "Target: 42, nums: [6, 7]", "Target: 3, nums: [1, 2]"]
    );
}

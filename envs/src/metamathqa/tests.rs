//! Generated problems checked by computing them again, read files, scoring, and the player.

use super::*;
use crate::conformance;
use crate::countdown::evaluate;
use std::collections::{BTreeMap, BTreeSet};

/// What an answer is worth, a reduced fraction included.
fn worth(text: &str) -> f64 {
    let fraction = text.strip_prefix("\\frac{").and_then(|rest| rest.strip_suffix('}')?.split_once("}{"));
    match fraction {
        Some((above, below)) => {
            let [a, b] = [above, below].map(|part| part.parse::<u64>().unwrap());
            assert!((2..=a).all(|k| a % k != 0 || b % k != 0), "{text} is not reduced");
            a as f64 / b as f64
        }
        None => text.parse().unwrap_or_else(|error| panic!("{text}: {error}")),
    }
}

/// The value of an expression in which numbers may have decimals: it is taken times a hundred, sums alone.
fn computed(expression: &str) -> f64 {
    if !expression.contains('.') {
        return evaluate(expression).unwrap_or_else(|| panic!("{expression}"));
    }
    let at = expression.find(['+', '-']).unwrap();
    let [a, b] = [&expression[..at], &expression[at + 1..]].map(|part| part.parse::<f64>().unwrap());
    if expression[at..].starts_with('+') { a + b } else { a - b }
}

#[test]
fn every_solution_computes_to_its_answer_from_numbers_of_the_question() {
    let mut kinds = BTreeMap::new();
    for row in 0..5000 {
        let Item { query, answer, solution, kind } = generate(row, Mode::Train);
        let answer = answer.unwrap();
        let mut last = f64::NAN;
        for step in solution.split(", ") {
            let (left, right) = step.split_once(" = ").unwrap();
            last = worth(right);
            assert!((computed(left) - last).abs() < 1e-9, "{query} {step}");
        }
        assert!(solution.ends_with(&format!(" = {answer}")), "{query} {solution} {answer}");
        assert!((0.0..1e5).contains(&last), "{query} {answer}");
        *kinds.entry(kind).or_insert(0) += 1;
    }
    assert_eq!(kinds.len(), 14);
    assert!(kinds.values().all(|n| *n > 200), "{kinds:?}");
}

/// Answers by hand, of one problem of each kind that is easily got wrong: what the question says, not what the steps say.
#[test]
fn answers_agree_with_what_the_questions_say() {
    let numbers = |text: &str| -> Vec<i64> {
        let words = text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        words.map(|word| word.parse().unwrap()).collect()
    };
    let mut checked = BTreeSet::new();
    for row in 0..2000 {
        let Item { query, answer, kind, .. } = generate(row, Mode::Train);
        let (n, answer) = (numbers(&query), worth(&answer.unwrap()));
        let want = match kind.as_str() {
            "consecutive" => (n[1]..n[1] + n[0]).sum::<i64>() as f64,
            "equation" => (0..1000).find(|x| n[0] * x + n[1] == n[2]).unwrap() as f64,
            "rectangle" => (n[1] * (1..1000).find(|l| 2 * (l + n[1]) == n[0]).unwrap()) as f64,
            "remainder" => (n[0] % n[1]) as f64,
            "average" => (0..=400).find(|last| n[0] + n[1] + n[2] + last == 4 * n[3]).unwrap() as f64,
            "multiples" => (n[0]..=n[1]).filter(|i| i % n[2] == 0).count() as f64,
            "probability" => n[0] as f64 / (n[0] + n[1] + n[2]) as f64,
            "percent" => n[0] as f64 * (100 - n[1]) as f64 / 100.0,
            "ages" => (n[2] - n[1] - n[0]) as f64,
            _ => continue,
        };
        assert!((want - answer).abs() < 1e-9, "{query}: {answer} is not {want}");
        checked.insert(kind);
    }
    assert_eq!(checked.len(), 9);
}

#[test]
fn no_part_knows_a_question_of_another() {
    let queries = |mode, n| (0..n).map(|row| generate(row, mode).query).collect::<BTreeSet<String>>();
    let parts = [queries(Mode::Train, 20_000), queries(Mode::Val, 1000), queries(Mode::Test, 1000)];
    assert!(parts[0].is_disjoint(&parts[1]) && parts[0].is_disjoint(&parts[2]) && parts[1].is_disjoint(&parts[2]));
    assert!(parts[0].len() > 19_000, "{}", parts[0].len());
}

#[test]
fn files_of_three_kinds_are_read_and_their_faults_named() {
    let dir = tempfile::tempdir().unwrap();
    let played = |name: &str, text: &str, scoring: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut env = Metamathqa::new(&json!({"dataset_path": path, "scoring": scoring}))?;
        env.reset(0, 0, Mode::Train)?;
        Ok::<_, EnvError>((env.observation(), env.state()["correct_answer"].clone()))
    };
    let meta = r#"[{"query": "1+1?", "response": "So.\nThe answer is: 2", "type": "GSM_Rephrased"}]"#;
    assert_eq!(played("meta.json", meta, "strict"), Ok(("1+1?".to_owned(), json!("2"))));
    let gsm = "{\"question\": \"6*7?\", \"answer\": \"6*7=42\\n#### 42\"}\n";
    assert_eq!(played("gsm.jsonl", gsm, "numeric"), Ok(("6*7?".to_owned(), json!("42"))));
    let mmlu = r#"[{"question": "Red?", "choices": ["no", "yes", "x", "y"], "answer": 1}]"#;
    assert_eq!(played("mmlu.json", mmlu, "choice"), Ok(("Red?\nA. no\nB. yes\nC. x\nD. y".to_owned(), json!("B"))));
    let missing = played("bad.json", r#"[{"query": "1+1?"}]"#, "strict").unwrap_err().to_string();
    assert!(
        missing.contains("dataset_path: ")
            && missing.contains("bad.json row 1: there is no text in a column `response`")
    );
    // The data set of RAGEN's name is found where it was downloaded to.
    std::fs::write(dir.path().join("MetaMathQA-395K.json"), meta).unwrap();
    let env = Metamathqa::new(&json!({"cache_dir": dir.path()})).unwrap();
    assert!(env.backend().unwrap().starts_with("1 questions of "));
}

#[test]
fn rewordings_of_one_question_are_in_one_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    let row = |i: usize| {
        let original = (i / 2).to_string();
        json!({"original_question": original, "query": i.to_string(), "response": "The answer is: 1"}).to_string()
            + "\n"
    };
    std::fs::write(&path, (0..2000).map(row).collect::<String>()).unwrap();
    let parts = load(&path).unwrap();
    let seen = |mode| -> BTreeSet<u64> {
        (0..2000).map(|row| parts.item(row, mode, false).unwrap().query.parse::<u64>().unwrap() / 2).collect()
    };
    let (train, val) = (seen(Mode::Train), seen(Mode::Val));
    assert!(train.is_disjoint(&val) && (20..80).contains(&val.len()), "{}", val.len());
}

#[test]
fn lenient_scoring_compares_values_and_strict_does_not() {
    for (answer, label, is_lenient) in [
        ("0.5", "\\frac{1}{2}", true),
        ("1/2", "0.5", true),
        ("50%", "0.5", true),
        ("$1,000$", "1000", true),
        ("\\boxed{7}", "7.", true),
        ("-3.0", "-3", true),
        ("3", "-3", false),
        ("1/0", "1/0.5", false),
        ("x", "7", false),
        ("", "0", false),
    ] {
        assert_eq!(Scoring::Lenient.is_correct(answer, label, false), is_lenient, "{answer} {label}");
        assert!(!Scoring::Strict.is_correct(answer, label, false), "{answer} {label}");
    }
    assert!(Scoring::Numeric.is_correct("so 1,234 it is", "1234", false));
    assert!(!Scoring::Numeric.is_correct("-42", "42", false) && Scoring::Numeric.is_correct("-42", "42", true));
    assert!(Scoring::Choice.is_correct("The answer is B", "B", false));
    assert!(!Scoring::Choice.is_correct("The answer is B", "B", true));
}

#[test]
fn a_second_try_pays_half() {
    let mut env = Metamathqa::new(&json!({"backend": "embedded"})).unwrap();
    env.reset(3, 0, Mode::Train).unwrap();
    let label = env.state()["correct_answer"].as_str().unwrap().to_owned();
    let first = env.step("no").unwrap();
    assert!(first.reward == 0.0 && !first.ended() && first.valid && first.effective);
    let second = env.step(&label).unwrap();
    assert!(second.reward == 0.5 && second.terminated && second.success);
    assert!(!env.step(&label).unwrap().valid, "nothing is paid after the end");
}

#[test]
fn the_player_solves_every_problem() {
    let build = || crate::make("metamathqa", &json!({"backend": "embedded"}));
    let best = conformance::demonstrated(&build, &Demonstration::perfect(1), 1000, 1, 1).unwrap();
    assert_eq!(best, (1.0, 1.0));
}

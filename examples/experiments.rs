//! Tables of finished runs in Markdown, from their `metrics.jsonl`, `val.jsonl` and `notices.jsonl`; `experiments/*.sh` end with it.
//!
//!     cargo run --release --example experiments -- success|curve|notices|correlations RUN...
//!
//! Runs are told apart by their folders' names, `TASK-ARM-SEED`: `success` has a row for every TASK-ARM, `correlations` a table for
//! every TASK.

use ragen::statistics::{mean, spearman};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

const FIRST_TURN: &str = "collapse_first_turn_sample";

/// How a measure is read from a step's metrics.
type Read = fn(&Value) -> Option<f64>;

/// What is set against success, each with its heading.
const MEASURES: [(&str, Read); 5] = [
    ("I(X;Z) / ln N", |m| Some(of(m, "mi_seq_estimate")? / of(m, "mi_upper_bound")?)),
    ("its moving z-score", |m| of(m, "mi_zscore_ema_seq")),
    ("retrieval", |m| of(m, "retrieval_accuracy")),
    ("H(Z given X)", |m| of(m, "conditional_entropy_seq_est")),
    ("entropy of a token", |m| m["policy/entropy_loss"].as_f64()),
];

/// A measurement of first turns.
fn of(metrics: &Value, name: &str) -> Option<f64> {
    metrics[format!("{FIRST_TURN}/{name}")].as_f64()
}

/// A run's files.
struct Run {
    task: String,
    arm: String,
    seed: String,
    metrics: Vec<Value>,
    validations: Vec<Value>,
    notices: Vec<Value>,
}

impl Run {
    fn read(path: &str) -> Result<Run, String> {
        let name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let parts = name.split_once('-').and_then(|(task, rest)| Some((task, rest.rsplit_once('-')?)));
        let (task, (arm, seed)) = parts.ok_or_else(|| format!("{path} is not named TASK-ARM-SEED"))?;
        let lines = |file: &str| -> Result<Vec<Value>, String> {
            let file = Path::new(path).join(file);
            let text = std::fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
            let parse = |line| serde_json::from_str(line).map_err(|e| format!("{}: {e}", file.display()));
            text.lines().map(parse).collect()
        };
        let (metrics, validations) = (lines("metrics.jsonl")?, lines("val.jsonl")?);
        if metrics.is_empty() || validations.len() < 2 {
            return Err(format!("{path} has no step, or no validation before and after: it is not finished"));
        }
        // It is there only if there was something to say.
        let notices = if Path::new(path).join("notices.jsonl").exists() { lines("notices.jsonl")? } else { Vec::new() };
        let (task, arm, seed) = (task.to_string(), arm.to_string(), seed.to_string());
        Ok(Run { task, arm, seed, metrics, validations, notices })
    }

    fn success(&self, validation: usize) -> f64 {
        self.validations[validation]["success"].as_f64().unwrap_or(f64::NAN)
    }

    /// The steps that were measured.
    fn measured(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.metrics.iter().filter(|metrics| of(metrics, "mi_seq_estimate").is_some())
    }

    /// Success in the validation that belongs to a step: after it, or (step 1) before it.
    fn success_at(&self, metrics: &Value) -> Option<f64> {
        let step = metrics["step"].as_u64()?;
        let at = |step: u64| self.validations.iter().find(|validation| validation["step"].as_u64() == Some(step));
        at(step).or_else(|| at(step - 1))?["success"].as_f64()
    }

    /// A measure and success of every step that has both.
    fn pairs(&self, measure: Read) -> Vec<(f64, f64)> {
        self.measured().filter_map(|metrics| Some((measure(metrics)?, self.success_at(metrics)?))).collect()
    }
}

fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    spearman(&x, &y)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.filter(|x| x.is_finite()).map_or("–".into(), |x| format!("{x:.digits$}"))
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn head(cells: &[&str]) -> String {
    format!("| {} |\n|{}\n", cells.join(" | "), " --- |".repeat(cells.len()))
}

/// Success before and after, seed by seed; means over seeds of it and of the measures at the end.
fn success(runs: &[Run]) -> String {
    let mut arms: BTreeMap<(&str, &str), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        arms.entry((&run.task, &run.arm)).or_default().push(run);
    }
    let seeds = |runs: &[&Run]| runs.iter().map(|run| run.seed.clone()).collect::<Vec<_>>().join(", ");
    let mut table = head(&[
        "arm",
        "seeds",
        "success, before → after",
        "mean after",
        "I(X;Z) / ln N",
        "H(Z given X)",
        "entropy of a token",
        "trained tokens",
    ]);
    for ((task, arm), runs) in &arms {
        let each: Vec<String> = runs
            .iter()
            .map(|run| format!("{:.3} → {:.3}", run.success(0), run.success(run.validations.len() - 1)))
            .collect();
        let after: Vec<f64> = runs.iter().map(|run| run.success(run.validations.len() - 1)).collect();
        let end = |measure: usize| {
            let last = runs.iter().filter_map(|run| run.measured().next_back().and_then(MEASURES[measure].1));
            mean(&last.collect::<Vec<_>>())
        };
        let tokens = |run: &&Run| run.metrics.iter().filter_map(|m| m["batch/trained_tokens"].as_f64()).sum::<f64>();
        table += &row(&[
            format!("{task}, {arm}"),
            seeds(runs),
            each.join(", "),
            format!("{:.3}", mean(&after)),
            format!("{:.2}", end(0)),
            format!("{:.2}", end(3)),
            format!("{:.3}", end(4)),
            format!("{:.0} k", mean(&runs.iter().map(tokens).collect::<Vec<_>>()) / 1000.0),
        ]);
    }
    table
}

/// A run's course, a row for every measured step, and what it was told.
fn curve(run: &Run) -> String {
    let mut table = format!("{}, {}, seed {}:\n\n", run.task, run.arm, run.seed);
    table += &head(&[
        "step",
        "reward",
        "success",
        "entropy of a token",
        "valid format",
        "I(X;Z)",
        "of at most",
        "retrieval",
        "H(Z given X)",
        "tokens of an episode",
        "regime",
    ]);
    for metrics in run.measured() {
        let plain = |name: &str| metrics[name].as_f64();
        let regime = metrics["collapse/regime_name"].as_str().unwrap_or("–");
        table += &row(&[
            metrics["step"].to_string(),
            number(plain("train/reward").map(|reward| reward + plain("batch/think_cost").unwrap_or(0.0)), 2),
            number(run.success_at(metrics), 2),
            number(plain("policy/entropy_loss"), 3),
            number(plain("train/format_valid"), 2),
            number(of(metrics, "mi_seq_estimate"), 2),
            number(of(metrics, "mi_upper_bound"), 2),
            number(of(metrics, "retrieval_accuracy"), 2),
            number(of(metrics, "conditional_entropy_seq_est"), 2),
            number(plain("train/response_length"), 1),
            regime.to_string(),
        ]);
    }
    table
}

/// What a run was told, and where it ended.
fn notices(run: &Run) -> String {
    let last = run.metrics.last().map_or(Value::Null, |metrics| metrics["step"].clone());
    let mut text = format!("{}, {}, seed {}, ended after step {last}:\n\n", run.task, run.arm, run.seed);
    for notice in &run.notices {
        text += &format!("- {}\n", notice["text"].as_str().unwrap_or_default());
    }
    if run.notices.is_empty() {
        text += "- nothing was said\n";
    }
    text
}

/// The mean, the least and the most of correlations.
fn spread(found: &[f64]) -> String {
    let (least, most) = (found.iter().copied().reduce(f64::min), found.iter().copied().reduce(f64::max));
    let middle = (!found.is_empty()).then(|| mean(found));
    format!("{} ({} to {})", number(middle, 2), number(least, 2), number(most, 2))
}

/// Correlations over the runs at each measured step but the first, where the policies have not been trained yet. What merely goes
/// up or down with training plays no part in them.
fn between(runs: &[&Run], measure: Read) -> Vec<f64> {
    let mut steps: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for run in runs {
        for metrics in run.measured() {
            let pair = measure(metrics).zip(run.success_at(metrics));
            steps.entry(metrics["step"].as_u64().unwrap_or(0)).or_default().extend(pair);
        }
    }
    steps.iter().filter(|(step, _)| **step > 1).filter_map(|(_, pairs)| correlation(pairs)).collect()
}

/// Rank correlations of each measure with success: within runs, between runs, over all steps of all runs, and over the runs' ends.
fn correlations(runs: &[Run]) -> String {
    let mut tasks: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        tasks.entry(&run.task).or_default().push(run);
    }
    let mut text = String::new();
    for (task, runs) in tasks {
        let all: Vec<(f64, f64)> = runs.iter().flat_map(|run| run.pairs(MEASURES[0].1)).collect();
        text += &format!("{task}, {} runs, {} pairs:\n\n", runs.len(), all.len());
        text += &head(&[
            "measure",
            "within a run, mean (least to most)",
            "between runs at a step, mean (least to most)",
            "all steps of all runs",
            "ends of runs",
        ]);
        for (name, measure) in MEASURES {
            let within: Vec<f64> = runs.iter().filter_map(|run| correlation(&run.pairs(measure))).collect();
            let all: Vec<(f64, f64)> = runs.iter().flat_map(|run| run.pairs(measure)).collect();
            let ends: Vec<(f64, f64)> = runs.iter().filter_map(|run| run.pairs(measure).pop()).collect();
            text += &row(&[
                name.to_string(),
                spread(&within),
                spread(&between(&runs, measure)),
                number(correlation(&all), 2),
                number(correlation(&ends), 2),
            ]);
        }
        text.push('\n');
    }
    text
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let runs: Result<Vec<Run>, String> = args.map(|path| Run::read(&path)).collect();
    let done = runs.and_then(|runs| match what.as_str() {
        _ if runs.is_empty() => Err("success|curve|notices|correlations, and the folders of runs".to_string()),
        "success" => Ok(success(&runs)),
        "curve" => Ok(runs.iter().map(curve).collect::<Vec<_>>().join("\n")),
        "notices" => Ok(runs.iter().map(notices).collect::<Vec<_>>().join("\n")),
        "correlations" => Ok(correlations(&runs)),
        _ => Err(format!("there is no table {what:?}; there are success, curve, notices, correlations")),
    });
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("error: {text}");
            ExitCode::FAILURE
        }
    }
}

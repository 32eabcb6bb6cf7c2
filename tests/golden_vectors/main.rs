//! Rewards, filter, advantages, losses, diagnosis and answer parsing against recorded numbers.
//!
//! The vectors hold padded rows and a mask; here a row holds its trained tokens only, so every array is reduced to them.

mod advantages;
mod cases;
mod contexts;
mod losses;
mod rows;

use cases::{Case, Matrix, for_each, trained};
use ragen::collapse::{self, CollapseConfig, Coverage, CrossScores, Pair, RunningSpread, SampleCount, Selection};
use ragen::filter::{self, FilterConfig, Measurement};
use ragen::gradient_analysis::{self, BucketMode};
use ragen::protocol::{self, AnswerFormat};
use ragen::reward::{self, RewardConfig};
use ragen_models::random::Key;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Files that this test reads, and those that other tests do.
const HERE: [&str; 11] = [
    "action_parsing.json",
    "batch_adjust.json",
    "bilevel_gae.json",
    "collapse.json",
    "context_window.json",
    "gae.json",
    "grpo.json",
    "loss_masks.json",
    "ppo_loss.json",
    "reward_normalization.json",
    "rollout_filter.json",
];
const ELSEWHERE: [&str; 2] = ["env_manager.json", "envs"];

#[test]
fn golden_every_file_is_tested_or_pending() {
    let pending = cases::pending();
    let mut names: Vec<String> = std::fs::read_dir(cases::vectors())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".md"))
        .collect();
    names.sort();
    for name in &names {
        let is_tested = HERE.contains(&name.as_str()) || ELSEWHERE.contains(&name.as_str());
        let is_pending = pending.contains(name);
        assert!(is_tested || is_pending, "nothing tests {name}");
        assert!(!(is_tested && is_pending), "{name} is tested, so it is not pending");
        if is_pending {
            println!("pending: {name}");
        }
    }
    for owed in pending.iter().filter(|owed| !owed.starts_with("envs/")) {
        let (file, op) = owed.split_once('#').unwrap_or((owed, ""));
        let path = cases::repository_golden().join("vectors").join(file);
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("PENDING names {file}: {e}"));
        let top: Value = serde_json::from_str(&text).unwrap();
        let is_there = top["cases"].as_array().unwrap().iter().any(|case| case["inputs"]["op"] == op);
        assert!(op.is_empty() || is_there, "PENDING names {owed}, which has no such operation");
    }
}

#[test]
fn golden_action_parsing() {
    for_each("action_parsing.json", |case| {
        let format = AnswerFormat {
            think: case.inputs.take("enable_think"),
            separator: case.inputs.take("action_sep"),
            max_actions_per_turn: case.inputs.take("max_actions_per_turn"),
            single_action: false,
        };
        let generated: String = case.inputs.take("generated");
        let raw = format!("{}{generated}", format.opening_tag());
        assert_eq!(raw, case.expected.take::<String>("raw_response"), "{}", case.name);
        let parsed = protocol::parse(&raw, &format);
        let name = &case.name;
        assert_eq!(parsed.format_ok, case.expected.take::<bool>("format_ok"), "{name}");
        assert_eq!(parsed.think, case.expected.find::<String>("think").unwrap_or_default(), "{name}");
        assert_eq!(parsed.answer, case.expected.find::<String>("answer").unwrap_or_default(), "{name}");
        assert_eq!(parsed.actions, case.expected.take::<Vec<String>>("actions"), "{name}");
        assert_eq!(parsed.response_text, case.expected.take::<String>("llm_response"), "{name}");
        true
    });
}

#[test]
fn golden_reward_normalization() {
    for_each("reward_normalization.json", |case| {
        let turn_rewards: Matrix = case.inputs.take("turn_rewards");
        let penalties: Vec<f64> = case.inputs.take("penalties");
        let groups: Vec<usize> = case.inputs.take("group");
        let tags: Vec<String> = case.inputs.take("tag");
        let (grouping, method): (Value, Value) = (case.inputs.take("grouping"), case.inputs.take("method"));
        let config = serde_json::from_value::<RewardConfig>(json!({"grouping": grouping, "method": method}));
        if case.expected.find::<String>("error").is_some() {
            assert!(config.is_err(), "{}", case.name);
            return true;
        }
        let scores: Vec<f64> = turn_rewards
            .iter()
            .zip(penalties)
            .map(|(rewards, penalty)| rewards.iter().sum::<f64>() + penalty)
            .collect();
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        let normalised = reward::normalise(&config.unwrap(), &scores, &groups, &tags);
        let normalised: Vec<f64> = normalised.iter().map(|normalised| normalised.score).collect();
        let want: Vec<f64> = case.expected.take("scores");
        case.all_close("scores", &normalised, &want, 1e-4);
        true
    });
}

#[test]
fn golden_gae() {
    for_each("gae.json", advantages::check_gae);
}

#[test]
fn golden_bilevel_gae() {
    for_each("bilevel_gae.json", advantages::check_bilevel);
}

#[test]
fn golden_grpo() {
    for_each("grpo.json", advantages::check_groups);
}

#[test]
fn golden_loss_masks() {
    for_each("loss_masks.json", rows::check_masks);
}

#[test]
fn golden_batch_adjust() {
    for_each("batch_adjust.json", rows::check_adjust);
}

#[test]
fn golden_context_window() {
    for_each("context_window.json", contexts::check);
}

#[test]
fn golden_ppo_loss() {
    for_each("ppo_loss.json", losses::check);
}

/// The settings of a filter case, read by the names that a configuration file uses.
fn filter_config(case: &mut Case, metric: Option<Value>) -> FilterConfig {
    let settings = json!({
        "strategy": case.inputs.take::<Value>("strategy"),
        "value": case.inputs.take::<f64>("value"),
        "kind": case.inputs.take::<Value>("filter_type"),
        "metric": metric.unwrap_or("reward_variance".into()),
        "include_zero": case.inputs.take::<Value>("include_zero"),
        "top_p_prob_mode": case.inputs.take::<Value>("top_p_prob_mode"),
        "selection_eps": case.inputs.take::<Value>("selection_eps"),
    });
    serde_json::from_value(settings).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

fn sorted(mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort();
    indices
}

fn check_select(case: &mut Case) {
    let config = filter_config(case, None);
    let scores: Vec<f64> = case.inputs.take("scores");
    let selected = filter::select(&config, &scores);
    let by_score = |mut scores: Vec<f64>| {
        scores.sort_by(f64::total_cmp);
        scores
    };
    let selected_scores = by_score(selected.iter().map(|&i| scores[i]).collect());
    let want = by_score(case.expected.take("selected_scores"));
    case.all_close("selected_scores", &selected_scores, &want, 1e-6);
    let want: Vec<usize> = case.expected.take("selected");
    if !case.expected.take::<bool>("tie") {
        assert_eq!(sorted(selected), sorted(want), "{}", case.name);
    }
}

fn check_filter(case: &mut Case) {
    let metric = case.inputs.take("metric");
    let config = filter_config(case, Some(metric));
    let groups: Vec<usize> = case.inputs.take("group");
    let trajectories = case.inputs.find("episode").unwrap_or_else(|| (0..groups.len()).collect::<Vec<usize>>());
    let mut rows: Vec<Measurement> = groups
        .iter()
        .zip(trajectories)
        .map(|(&group, trajectory)| Measurement {
            group,
            trajectory,
            reward: 0.0,
            success: false,
            n_tokens: 0,
            entropy: 0.0,
        })
        .collect();
    for (row, reward) in rows.iter_mut().zip(case.inputs.find::<Vec<f64>>("scores").unwrap_or_default()) {
        row.reward = reward;
    }
    for (row, n_tokens) in rows.iter_mut().zip(case.inputs.find::<Vec<usize>>("lengths").unwrap_or_default()) {
        row.n_tokens = n_tokens;
    }
    if let Some(entropies) = case.inputs.find::<Matrix>("entropys") {
        let mask: Matrix = case.inputs.take("mask");
        for (row, (entropies, mask)) in rows.iter_mut().zip(entropies.iter().zip(mask)) {
            let entropies = trained(&vec![entropies.clone()], &vec![mask]);
            row.entropy = entropies.iter().sum::<f64>() / entropies.len().max(1) as f64;
        }
    }
    let filtered = filter::filter(&config, &rows);
    assert_eq!(filtered.groups.len(), case.inputs.take::<usize>("num_groups"), "{}", case.name);
    assert_eq!(filtered.rows, case.expected.take::<Vec<usize>>("kept_rows"), "{}", case.name);
    let kept: Vec<usize> = filtered.groups.iter().filter(|g| g.kept).map(|g| g.group).collect();
    assert_eq!(kept, sorted(case.expected.take("kept_groups")), "{}", case.name);
    let want: Map<String, Value> = case.expected.take("metrics");
    case.same_metrics(&filtered.metrics, &want);
    if let Some(want) = case.expected.find::<Vec<f64>>("reward_std_per_kept_row") {
        let std: BTreeMap<usize, f64> = filtered.groups.iter().map(|g| (g.group, g.reward_std)).collect();
        let std: Vec<f64> = filtered.rows.iter().map(|&row| std[&rows[row].group]).collect();
        case.all_close("reward_std_per_kept_row", &std, &want, 1e-4);
    }
    case.expected.find::<bool>("derived");
}

fn check_buckets(case: &mut Case) {
    let groups: Vec<usize> = case.inputs.take("group");
    let spreads: Vec<(usize, f64)> = case.inputs.take("group_std");
    let mode: BucketMode = case.inputs.take("bucket_mode");
    let found = gradient_analysis::buckets(&spreads, mode, case.inputs.take("bucket_count"));
    let want: Map<String, Value> = case.expected.take("buckets");
    let names = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let ours = names(found.iter().map(|bucket| bucket.name.clone()).collect());
    assert_eq!(ours, names(want.keys().cloned().collect()), "{}", case.name);
    for bucket in found {
        let mut want = cases::Fields::new(
            format!("{} {}", case.name, bucket.name),
            want[&bucket.name].as_object().unwrap().clone(),
        );
        let rows: Vec<usize> = (0..groups.len()).filter(|&row| bucket.groups.contains(&groups[row])).collect();
        assert_eq!(rows, want.take::<Vec<usize>>("rows"), "{} {}", case.name, bucket.name);
        assert_eq!(bucket.groups, want.take::<Vec<usize>>("groups"), "{} {}", case.name, bucket.name);
        case.close("reward_std_mean", bucket.reward_std[0], want.take("reward_std_mean"), 1e-6);
        want.finish();
    }
}

#[test]
fn golden_rollout_filter() {
    for_each("rollout_filter.json", |case| {
        match case.op.as_str() {
            "select" => check_select(case),
            "filter" => check_filter(case),
            "buckets" => check_buckets(case),
            _ => return false,
        }
        true
    });
}

/// The detector's metrics for scores in the form of the vectors, without prefix.
fn measure(
    inputs: &mut cases::Fields,
    sums: Vec<Vec<f64>>,
    std_eps: f64,
    ema_decay: f64,
    running: &mut RunningSpread,
) -> Vec<(String, f64)> {
    let lengths: Vec<usize> = inputs.take("token_counts");
    let column_groups: Vec<i64> = inputs.take("column_groups");
    let prompts: Vec<Vec<u32>> = inputs.take("column_prompts");
    let groups: Vec<i64> = inputs.take("group");
    let own: Vec<usize> =
        groups.iter().map(|group| column_groups.iter().position(|column| column == group).unwrap()).collect();
    let input: Vec<usize> =
        prompts.iter().map(|prompt| prompts.iter().position(|other| other == prompt).unwrap()).collect();
    let config = CollapseConfig { std_eps, ema_decay, ..CollapseConfig::default() };
    let scores = CrossScores { sums: &sums.concat(), lengths: &lengths, own: &own, input: &input };
    collapse::measure("", &scores, &config, running)
}

/// The settings of a schedule or coverage case.
fn collapse_config(case: &mut Case) -> CollapseConfig {
    CollapseConfig {
        every: case.inputs.take("compute_freq"),
        first_turn: case.inputs.take("first_turn_enabled"),
        multi_turn: case.inputs.take("multi_turn_enabled"),
        ..CollapseConfig::default()
    }
}

/// Scores of a selection as if every reasoning were as likely after every prompt.
fn measure_flat(selection: &Selection) -> Vec<(String, f64)> {
    let lengths = vec![1; selection.rows.len()];
    let sums = vec![-1.0; lengths.len() * selection.columns.len()];
    let scores = CrossScores { sums: &sums, lengths: &lengths, own: &selection.own, input: &selection.input };
    collapse::measure("", &scores, &CollapseConfig::default(), &mut RunningSpread::default())
}

fn check_coverage(case: &mut Case) {
    let config = collapse_config(case);
    let is_due = config.is_due(case.inputs.take("step"));
    assert_eq!(case.inputs.take::<String>("context_window_mode"), "full");
    let groups: Vec<u32> = case.inputs.take("group");
    let turns: Vec<Vec<usize>> = case.inputs.take("turn_reasoning_lengths");
    let firsts: Vec<usize> = case.inputs.take("first_turn_reasoning_lengths");
    // Members of a group begin with one prompt; every later turn has a prompt of its own.
    let prompts: Vec<Vec<[u32; 2]>> = (0..turns.len())
        .map(|i| (0..turns[i].len()).map(|t| [groups[i], if t == 0 { 0 } else { (100 * i + t) as u32 }]).collect())
        .collect();
    let z = [9; 16];
    let episodes: Vec<Vec<Pair<'_>>> = turns
        .iter()
        .zip(&prompts)
        .map(|(turns, prompts)| turns.iter().zip(prompts).map(|(&n, x)| Pair { x, z: &z[..n] }).collect())
        .collect();
    let first_turns: Vec<Pair<'_>> = episodes.iter().map(|turns| turns[0]).collect();
    assert_eq!(first_turns.iter().map(|pair| pair.z.len()).collect::<Vec<_>>(), firsts, "{}", case.name);

    let key = Key::new(1);
    let none = Selection::default();
    let of_firsts = Selection::first_turns(&first_turns, SampleCount::All, key);
    let of_turns = Selection::trajectories(&episodes, SampleCount::All, key);
    let n_first = measure_flat(if is_due && config.first_turn { &of_firsts } else { &none }).len();
    let n_turns = measure_flat(if is_due && config.multi_turn { &of_turns } else { &none }).len();
    let check = |case: &mut Case, name: &str, has: bool| {
        if let Some(want) = case.expected.find::<bool>(name) {
            assert_eq!(has, want, "{} {name}", case.name);
        }
    };
    check(case, "has_first_turn_sample", n_first > 0);
    check(case, "has_trajectory_sample", n_turns > 0);
    assert_eq!(n_first, case.expected.take::<usize>("n_metrics_first_turn_sample"), "{}", case.name);
    let metrics: BTreeMap<String, f64> = Coverage::of(&episodes).metrics(&config).into_iter().collect();
    for (name, want) in case.expected.rest() {
        case.close(&name, metrics[&name], want.as_f64().unwrap(), 1e-12);
    }
}

#[test]
fn golden_collapse() {
    for_each("collapse.json", |case| {
        match case.op.as_str() {
            "stats" | "tokens" => {
                let sums = if case.op == "stats" {
                    case.inputs.take("cross_log_prob_sums")
                } else {
                    // [column][row][token]; the counts are read twice.
                    let logps: Vec<Vec<Vec<f64>>> = case.inputs.take("token_log_probs");
                    let counts: Vec<usize> = case.inputs.peek("token_counts");
                    let sum = |row: usize, column: &Vec<Vec<f64>>| column[row][..counts[row]].iter().sum();
                    (0..counts.len()).map(|row| logps.iter().map(|column| sum(row, column)).collect()).collect()
                };
                let std_eps = case.inputs.take("std_eps");
                let metrics = measure(&mut case.inputs, sums, std_eps, 0.9, &mut RunningSpread::default());
                let want = case.expected.rest();
                case.same_metrics(&metrics, &want);
            }
            "ema" => {
                let (std_eps, decay) = (case.inputs.take("std_eps"), case.inputs.take("ema_decay"));
                let steps: Vec<Map<String, Value>> = case.inputs.take("steps");
                let wanted: Vec<Map<String, Value>> = case.expected.take("steps");
                assert_eq!(steps.len(), wanted.len(), "{}", case.name);
                let mut running: BTreeMap<String, RunningSpread> = BTreeMap::new();
                for (i, (step, want)) in steps.into_iter().zip(wanted).enumerate() {
                    let mut step = cases::Fields::new(format!("{} step {i}", case.name), step);
                    let spread = running.entry(step.take("key")).or_default();
                    let sums = step.take("cross_log_prob_sums");
                    case.same_metrics(&measure(&mut step, sums, std_eps, decay, spread), &want);
                    step.finish();
                }
            }
            "schedule" => {
                let config = collapse_config(case);
                let steps: Vec<u64> = (0..=case.inputs.take("max_step")).filter(|&step| config.is_due(step)).collect();
                assert_eq!(steps, case.expected.take::<Vec<u64>>("steps"), "{}", case.name);
            }
            "coverage" => check_coverage(case),
            _ => return false,
        }
        true
    });
}

//! The loop learns: bandit and two doors, by GRPO and by PPO, with a table for a policy, in milliseconds.

mod stage;

use ragen::config::Config;
use ragen::estimator::Estimator;

use ragen::policy::tabular::Tabular;
use ragen::train::{Stopped, Summary, Trainer};
use ragen::warmstart::warmstart;
use ragen_envs::Mode;
use stage::*;

const WAYS: [&str; 5] = ["ĠUp", "ĠDown", "ĠLeft", "ĠRight", "</answer>"];

/// A trainer of doors whose levels are the four there are.
fn doors(config: &Config) -> Trainer {
    let mut trainer = Trainer::new(config.clone(), context(config)).unwrap();
    trainer.train_envs = Doors::default().manage(4, 32, Mode::Train);
    trainer.val_envs = Doors::default().manage(4, 64, Mode::Val);
    trainer
}

fn doors_config(estimator: Estimator) -> Config {
    let mut config = small_config();
    config.rollout.max_turns = 2;
    config.algorithm.estimator = estimator;
    config.optim.lr = 20.0;
    config.run.steps = 60;
    config
}

fn train(trainer: &mut Trainer, policy: &mut Tabular) -> (Memory<Tabular>, Summary) {
    let mut journal = Memory::new();
    let summary = trainer.run(policy, &mut journal).unwrap();
    (journal, summary)
}

#[test]
fn two_doors_are_learned_by_grpo() {
    let config = doors_config(Estimator::Grpo);
    let mut policy = Tabular::new(only(&WAYS));
    let (journal, summary) = train(&mut doors(&config), &mut policy);
    let (before, after) = (summary.before.unwrap().success(), summary.after.unwrap().success());
    assert!(before < 0.05 && after > 0.95, "{before} -> {after}");
    for metrics in &journal.metrics {
        assert_eq!(metrics["update/first_ratio_max_error"], 0.0);
        assert_eq!(metrics["update/skipped"], 0.0);
    }
}

#[test]
fn two_doors_are_learned_by_ppo() {
    let config = doors_config(Estimator::Gae);
    let mut policy = Tabular::new(only(&WAYS));
    policy.value = true;
    let (journal, summary) = train(&mut doors(&config), &mut policy);
    let (before, after) = (summary.before.unwrap().success(), summary.after.unwrap().success());
    assert!(before < 0.05 && after > 0.95, "{before} -> {after}");
    let explained = |i: usize| journal.metrics[i]["value/explained_var"];
    assert!(explained(0) < 0.1 && explained(20) > 0.3, "{} {}", explained(0), explained(20));
}

/// The warm start teaches the form with either arm; only trying them tells which pays.
#[test]
fn the_better_arm_is_learned_from_a_warm_start_that_does_not_know_it() {
    let mut config = small_config();
    config.warmstart.demos = 3200;
    config.warmstart.noise = 1.0;
    (config.warmstart.optim.lr, config.warmstart.optim.warmup_steps) = (40.0, 10);
    config.algorithm.estimator = Estimator::Grpo;
    config.rollout.max_turns = 1;
    config.optim.lr = 30.0;
    config.run.steps = 200;
    config.env.val.groups = 128;
    let mut policy = Tabular::new(vec![0.0; TOKENIZER.vocab()]);
    let mut losses = Vec::new();
    let mut report = |report: &ragen::warmstart::WarmstartReport| {
        losses.push(report.loss);
        true
    };
    warmstart(&mut policy, &config, context(&config), &mut report).unwrap();
    assert_eq!(losses.len(), 400);
    assert!((losses[0] - (TOKENIZER.vocab() as f64).ln()).abs() < 1e-4 && losses[399] < 0.6, "{losses:?}");
    let mut trainer = Trainer::new(config.clone(), context(&config)).unwrap();
    let (_, summary) = train(&mut trainer, &mut policy);
    let (before, after) = (summary.before.unwrap(), summary.after.unwrap());
    assert!(before.tags["Bandit"].format_valid > 0.85, "{:?}", before.tags);
    assert!(before.success() < 0.8 && after.success() > 0.8, "{:?} -> {:?}", before.tags, after.tags);
}

#[test]
fn two_runs_are_equal_and_a_resumed_run_is_an_uninterrupted_one() {
    let mut config = doors_config(Estimator::Grpo);
    config.run.steps = 10;
    config.checkpoint.every = 5;
    config.collapse.every = 2;
    let fresh = || Tabular::new(only(&WAYS));
    let (first, _) = train(&mut doors(&config), &mut fresh());
    let (second, _) = train(&mut doors(&config), &mut fresh());
    assert_eq!((first.lines.len(), &first.lines), (10, &second.lines));

    let (mut policy, state) = first.checkpoints[&5].clone();
    let mut trainer = doors(&config);
    trainer.resume(serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap());
    let (rest, _) = train(&mut trainer, &mut policy);
    assert_eq!(rest.lines, first.lines[5..]);

    config.run.seed = 1;
    let (other, _) = train(&mut doors(&config), &mut fresh());
    assert_ne!(first.lines, other.lines);
}

#[test]
fn an_interrupted_run_saves_and_goes_on_where_it_stopped() {
    let mut config = doors_config(Estimator::Grpo);
    config.run.steps = 6;
    let (whole, _) = train(&mut doors(&config), &mut Tabular::new(only(&WAYS)));
    let mut journal = Memory { stop_after: Some(3), ..Memory::new() };
    let mut policy = Tabular::new(only(&WAYS));
    let summary = doors(&config).run(&mut policy, &mut journal).unwrap();
    assert_eq!((summary.step, summary.stopped), (3, Some(Stopped::Interrupted)));
    let (mut policy, state) = journal.checkpoints[&3].clone();
    let mut trainer = doors(&config);
    trainer.resume(state);
    let (rest, _) = train(&mut trainer, &mut policy);
    assert_eq!([journal.lines, rest.lines].concat(), whole.lines);
}

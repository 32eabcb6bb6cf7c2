//! The loop learns: bandit and two doors, by GRPO and by PPO, with a table for a policy, in milliseconds.

mod stage;

use ragen::config::{BatchAdjust, Config, ContextMode, Window};
use ragen::estimator::{Estimator, FilterLossScaling};
use ragen::objective::correction::Correction;
use ragen::objective::{KlKind, PolicyLoss};
use ragen::policy::tabular::Tabular;
use ragen::reward::Placement;
use ragen::train::{Stopped, Summary, Trainer};
use ragen::warmstart::{Demonstrations, warmstart};
use ragen_envs::Mode;
use stage::*;
use std::num::NonZeroUsize;

const WAYS: [&str; 5] = ["ĠUp", "ĠDown", "ĠLeft", "ĠRight", "</answer>"];

/// A trainer of doors whose levels are the four there are.
fn doors(config: &Config) -> Trainer {
    doors_with(config, 32)
}

/// The same with groups of so many members.
fn doors_with(config: &Config, members: usize) -> Trainer {
    let mut trainer = Trainer::new(config.clone(), context(config)).unwrap();
    trainer.train_envs = Doors::default().manage(4, members, Mode::Train);
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

/// The turns are played as they would be; about so many of them reason about nothing but their moves.
#[test]
fn bare_demonstrations_say_only_what_they_do() {
    let mut config = ragen::settings::load(Some("frozen_lake"), &[]).unwrap();
    let mut shown = |bare: f64| -> Vec<(String, Vec<String>)> {
        config.warmstart.bare = bare;
        let mut demonstrations = Demonstrations::new(&config, context(&config)).unwrap();
        let all = (0..100).flat_map(|i| demonstrations.show(i).unwrap().turns);
        all.map(|turn| (turn.text, turn.played.executed)).collect()
    };
    let (full, half, all) = (shown(0.0), shown(0.5), shown(1.0));
    let is_bare = |turn: &&(String, Vec<String>)| turn.0.starts_with("<think> go ");
    let n_bare = |turns: &[(String, Vec<String>)]| turns.iter().filter(is_bare).count();
    assert!(full.len() > 150 && full.len() == half.len() && full.len() == all.len());
    assert!(full.iter().zip(&half).all(|(a, b)| a.1 == b.1));
    assert_eq!((n_bare(&full), n_bare(&all)), (0, all.len()));
    assert!((0.35..0.65).contains(&(n_bare(&half) as f64 / half.len() as f64)), "{}", n_bare(&half));
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

/// Ten steps, and the last five again from what was saved after the fifth.
fn check_resumed(config: &Config, members: usize, fresh: &dyn Fn() -> Tabular) -> Memory<Tabular> {
    let (whole, _) = train(&mut doors_with(config, members), &mut fresh());
    assert_eq!(whole.lines.len(), 10);
    let (mut policy, state) = whole.checkpoints[&5].clone();
    let mut trainer = doors_with(config, members);
    trainer.resume(serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap());
    let (rest, _) = train(&mut trainer, &mut policy);
    assert_eq!(rest.lines, whole.lines[5..]);
    whole
}

#[test]
fn runs_in_every_context_mode_resume_exactly() {
    for (mode, window, model_tokens) in [
        (ContextMode::Full, Window::All, 14),
        (ContextMode::LimitedMultiTurn, Window::Last(NonZeroUsize::new(2).unwrap()), 4000),
        (ContextMode::SingleTurn, Window::All, 4000),
    ] {
        for estimator in [Estimator::Grpo, Estimator::Gae] {
            let mut config = doors_config(estimator);
            (config.run.steps, config.checkpoint.every) = (10, 5);
            (config.rollout.context, config.rollout.context_window) = (mode, window);
            config.rollout.model_tokens = model_tokens;
            let fresh = || {
                let mut policy = Tabular::new(only(&WAYS));
                policy.value = estimator == Estimator::Gae;
                policy
            };
            let whole = check_resumed(&config, 32, &fresh);
            let last = &whole.metrics[9];
            assert!(last["batch/rows"] > 1.2 * last["train/episodes"], "{mode:?}: several rows an episode");
            assert_eq!(last["update/first_ratio_max_error"], 0.0);
        }
    }
}

/// More levels are played until enough groups have a spread, on seeds of their own, and the run can be resumed behind them.
#[test]
fn a_step_is_filled_with_groups_that_have_a_spread() {
    let mut config = doors_config(Estimator::Grpo);
    (config.run.steps, config.checkpoint.every, config.optim.lr) = (10, 5, 4.0);
    config.env.train.groups = 4;
    config.filter.include_zero = false;
    (config.filter.max_rounds, config.filter.full_groups) = (5, 6);
    let whole = check_resumed(&config, 3, &|| Tabular::new(only(&WAYS)));
    let rounds: Vec<f64> = whole.metrics.iter().map(|m| m["train/rollout_attempts"]).collect();
    assert!(rounds.iter().all(|n| (2.0..=5.0).contains(n)) && rounds.iter().any(|n| *n > 2.0), "{rounds:?}");
    let mut played = 0.0;
    for (metrics, line) in whole.metrics.iter().zip(&whole.lines) {
        let (_, _, trajectories): (u64, serde_json::Value, Vec<serde_json::Value>) =
            serde_json::from_str(line).unwrap();
        let n_groups = 4.0 * metrics["train/rollout_attempts"];
        assert_eq!((metrics["train/episodes"], trajectories.len() as f64), (3.0 * n_groups, 3.0 * n_groups));
        let kept: std::collections::BTreeMap<u64, u64> = trajectories
            .iter()
            .filter(|t| t["kept"] == true)
            .map(|t| (t["group"].as_u64().unwrap(), t["seed"].as_u64().unwrap()))
            .collect();
        assert_eq!(metrics["rollout/filter_kept_count"], kept.len() as f64);
        assert_eq!(metrics["batch/rows"], 3.0 * kept.len() as f64);
        assert!(kept.len() == 6 || metrics["train/rollout_attempts"] == 5.0, "full, or no more rounds");
        // Seeds count on through the rounds and the steps.
        for (group, seed) in kept {
            assert_eq!(seed as f64, 10.0 + played + group as f64);
        }
        assert!(trajectories.iter().all(|t| t["kept"] == false || t["group_reward_std"].as_f64() > Some(0.0)));
        played += n_groups;
    }
}

fn of(estimator: Estimator) -> Tabular {
    let mut policy = Tabular::new(only(&WAYS));
    policy.value = estimator.reads_values();
    policy
}

/// Each estimator by each placement of the reward that it takes.
fn credited() -> impl Iterator<Item = (Estimator, Placement)> {
    let all = Estimator::ALL.into_iter().flat_map(|e| [Placement::Trajectory, Placement::Turn].map(|p| (e, p)));
    all.filter(|pair| *pair != (Estimator::Gigpo, Placement::Turn))
}

#[test]
fn two_doors_are_learned_by_every_estimator() {
    for (estimator, placement) in credited() {
        let mut config = doors_config(estimator);
        config.reward.placement = placement;
        if estimator == Estimator::Rloo {
            // Its advantages are rewards, not standard deviations: about a quarter as large.
            config.optim.lr *= 4.0;
        }
        let mut policy = of(estimator);
        let (journal, summary) = train(&mut doors(&config), &mut policy);
        let (before, after) = (summary.before.unwrap().success(), summary.after.unwrap().success());
        assert!(before < 0.05 && after > 0.9, "{estimator:?} {placement:?}: {before} -> {after}");
        if estimator == Estimator::Gigpo {
            // 4 levels, each entered by all; behind the first door few stand at first, and alone.
            let anchors: Vec<f64> = journal.metrics.iter().map(|m| m["batch/anchors"]).collect();
            assert!(anchors.iter().all(|n| (4.0..=8.0).contains(n)) && anchors[40] == 8.0, "{anchors:?}");
            assert!(journal.metrics.iter().all(|m| m["batch/lone_anchors"] <= 4.0));
        }
    }
}

#[test]
fn two_doors_are_learned_by_every_objective() {
    for policy_loss in [PolicyLoss::Ppo, PolicyLoss::Gspo, PolicyLoss::Cispo] {
        let mut config = doors_config(Estimator::Grpo);
        config.update.loss.policy = policy_loss;
        (config.update.epochs, config.update.mini_batches, config.update.shuffle) = (2, 2, true);
        config.optim.lr = 8.0;
        let (journal, summary) = train(&mut doors(&config), &mut of(Estimator::Grpo));
        let after = summary.after.unwrap().success();
        assert!(after > 0.9, "{policy_loss:?}: {after}");
        assert!(journal.metrics.iter().any(|m| m["policy/pg_clipfrac"] > 0.0), "{policy_loss:?} never clips");
        assert!(journal.metrics.iter().all(|m| m["update/optimiser_steps"] == 4.0));
    }
}

/// The lines of ten steps, those from the sixth on as a run resumed after five wrote them, and its metrics.
fn resumed(config: &Config, forget: impl Fn(&mut ragen::train::TrainState)) -> (Memory<Tabular>, Vec<String>) {
    let (whole, _) = train(&mut doors(config), &mut of(config.algorithm.estimator));
    assert_eq!(whole.lines.len(), 10);
    let (mut policy, mut state) = whole.checkpoints[&5].clone();
    forget(&mut state);
    let mut trainer = doors(config);
    trainer.resume(serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap());
    let (rest, _) = train(&mut trainer, &mut policy);
    (whole, rest.lines)
}

fn ten_steps(estimator: Estimator) -> Config {
    let mut config = doors_config(estimator);
    (config.run.steps, config.checkpoint.every) = (10, 5);
    (config.val.every, config.val.before_train) = (0, false);
    config.optim.lr = 5.0;
    config
}

#[test]
fn five_steps_and_five_are_ten_by_every_estimator() {
    for (estimator, placement) in credited() {
        let mut config = ten_steps(estimator);
        config.reward.placement = placement;
        (config.update.epochs, config.update.mini_batches, config.update.shuffle) = (2, 3, true);
        config.filter.value = 0.9;
        config.algorithm.filter_loss_scaling = FilterLossScaling::Sqrt;
        config.algorithm.soft_reweight = estimator.compares_groups();
        config.algorithm.length_weight = true;
        let (whole, rest) = resumed(&config, |_| {});
        assert_eq!(rest, whole.lines[5..], "{estimator:?} {placement:?}");
        assert!(whole.metrics.iter().all(|m| m.values().all(|x| x.is_finite())));
    }
}

/// Cut off behind the first door, an episode that passed it is worth more; with both doors every episode ends, and nothing changes.
#[test]
fn only_episodes_that_were_cut_off_are_bootstrapped() {
    for estimator in [Estimator::Gae, Estimator::BilevelGae] {
        let run = |max_turns: usize, bootstrap: bool| {
            let mut config = ten_steps(estimator);
            (config.rollout.response_tokens, config.rollout.force_close_tag) = (1, true);
            config.rollout.max_turns = max_turns;
            config.run.steps = 3;
            config.algorithm.bootstrap_truncated = bootstrap;
            let mut policy = Tabular::new(only(&["ĠLeft", "ĠRight"]));
            policy.value = true;
            train(&mut doors(&config), &mut policy).0
        };
        let (cut, goes_on) = (run(1, false), run(1, true));
        assert_eq!(cut.lines[0], goes_on.lines[0], "values are 0 at first");
        assert!(cut.metrics[1]["train/truncated"] > 0.3);
        let of = |journal: &Memory<Tabular>| journal.metrics[1]["batch/return_mean"];
        assert!(of(&goes_on) > of(&cut) + 1e-3, "{estimator:?}: {} and {}", of(&goes_on), of(&cut));
        let ended = run(2, false);
        assert!(ended.metrics.iter().all(|metrics| metrics["train/truncated"] == 0.0));
        assert_eq!(ended.lines, run(2, true).lines);
    }
}

#[test]
fn five_steps_and_five_are_ten_with_every_option_and_adapted_coefficients() {
    for estimator in [Estimator::Gae, Estimator::Grpo] {
        let mut config = ten_steps(estimator);
        let kl = &mut config.reward.kl;
        (kl.coef, kl.target, kl.horizon) = (0.05, 0.02, 300.0);
        let kl = &mut config.update.loss.kl;
        (kl.coef, kl.kind, kl.target, kl.horizon) = (0.05, KlKind::Unbiased, 0.02, 300.0);
        (config.update.mini_batches, config.update.mini_batch) = (0, 24);
        (config.update.batch_adjust, config.update.shuffle) = (BatchAdjust::Copy, true);
        config.update.rescore = true;
        config.update.correction.kind = Correction::Tis;
        config.reward.overlong_buffer_tokens = 1;
        let (whole, rest) = resumed(&config, |_| {});
        assert_eq!(rest, whole.lines[5..], "{estimator:?}");
        let of = |key: &str| whole.metrics.iter().map(|m| m[key]).collect::<Vec<f64>>();
        // It costs less as long as it is below the target, and more above.
        for (coef, kl) in [("batch/reward_kl_coef", "batch/reward_kl"), ("policy/kl_coef", "policy/kl_loss")] {
            let (coef, kl) = (of(coef), of(kl));
            assert_eq!(coef[0], 0.05);
            assert!((0..9).all(|i| (coef[i + 1] > coef[i]) == (kl[i] > 0.02)), "{coef:?} {kl:?}");
            assert!(kl.iter().any(|kl| *kl > 0.02) && kl[0] < 0.02, "{kl:?}");
        }
        // 128 trajectories become 144, a multiple of 16 groups and of 24.
        assert_eq!((of("batch/copied")[0], of("update/optimiser_steps")[0]), (16.0, 6.0));
        assert_eq!(of("batch/sampling_ratio_max"), [1.0; 10], "it trains what it sampled");
        // The state matters: without the coefficients it would be another run.
        let (_, rest) = resumed(&config, |state| state.kl = Default::default());
        assert_ne!(rest, whole.lines[5..]);
    }
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

//! An update does not depend on how it is split, and nothing that a batch can hold makes it fall over.

mod stage;

use ragen::agent_proxy::{Play, play};
use ragen::config::Config;
use ragen::estimator::Estimator;
use ragen::objective::{LossAverage, Objective, Targets};
use ragen::policy::tabular::Tabular;
use ragen::policy::{Finish, Policy, Row, Weights};
use ragen::train::{Stopped, Trainer};
use ragen::trajectory::Trajectory;
use ragen::update::{Batch, accumulate, split_by_size, split_evenly};
use ragen::warmstart::{Demonstrations, imitate};
use ragen_envs::{Mode, Turn};
use ragen_models::random::Key;
use stage::*;

const WAYS: [&str; 5] = ["ĠUp", "ĠDown", "ĠLeft", "ĠRight", "</answer>"];

fn doors(config: &Config, stage: &Doors) -> Trainer {
    let mut trainer = Trainer::new(config.clone(), context(config)).unwrap();
    trainer.train_envs = stage.manage(4, 8, Mode::Train);
    trainer.val_envs = stage.manage(4, 8, Mode::Val);
    trainer
}

fn doors_config() -> Config {
    let mut config = small_config();
    config.rollout.max_turns = 2;
    config.algorithm.estimator = Estimator::Grpo;
    config.optim.lr = 5.0;
    config
}

#[test]
fn gradients_do_not_depend_on_micro_batches() {
    let mut config = doors_config();
    config.rollout.response_tokens = 6;
    let context = context(&config);
    let mut policy = Tabular::new(only(&WAYS));
    policy.value = true;
    let mut envs = Doors::default().manage(4, 4, Mode::Train);
    let broken = envs.reset().unwrap();
    let how = Play::new(&context, &config.rollout, config.rollout.sampling);
    let rollout = play(&mut policy, &mut envs, broken, how, Key::new(3)).unwrap();
    let rows: Vec<Row<'_>> = rollout.trajectories.iter().flat_map(Trajectory::views).collect();
    let lengths: Vec<usize> = rows.iter().map(|row| row.targets.len()).collect();
    assert!(lengths.iter().any(|n| *n != lengths[0]), "ragged: {lengths:?}");

    let n = lengths.iter().sum::<usize>() as u64;
    let key = Key::new(4);
    let advantage: Vec<f64> = (0..n).map(|i| key.normal(i)).collect();
    let ret: Vec<f64> = (0..n).map(|i| key.normal(n + i)).collect();
    let old_value = vec![0.1f32; n as usize];
    let mut old_logp = policy.score(Weights::Policy, &rows, 1.0).unwrap().logp;
    let reference_logp = old_logp.clone();
    // Off the policy, so that clips bind here and there.
    (0..n).for_each(|i| old_logp[i as usize] += 0.3 * key.normal(2 * n + i) as f32);
    config.update.loss.kl.coef = 0.1;
    config.update.loss.entropy_coef = 0.02;
    for average in [
        LossAverage::TokenMean,
        LossAverage::SeqMeanTokenMean,
        LossAverage::SeqMeanTokenSum,
        LossAverage::SeqMeanTokenSumNorm,
    ] {
        config.update.loss.average = average;
        let targets = Targets {
            lengths: &lengths,
            episodes: &[],
            old_logp: &old_logp,
            advantage: &advantage,
            weight: &[],
            ret: &ret,
            old_value: &old_value,
            reference_logp: &reference_logp,
        };
        let objective = Objective::new(&config.update.loss, targets, 64).unwrap();
        let whole = {
            let mut policy = policy.clone();
            let loss = accumulate(&mut policy, &rows, &objective, &config.update, 1.0).unwrap();
            assert!(loss.clip_fraction > 0.0 && loss.loss.is_finite());
            (policy.gradients(), loss)
        };
        assert!(whole.0.iter().any(|g| *g != 0.0));
        for (micro_batch, micro_batch_tokens) in [(1, 0), (2, 0), (4, 0), (8, 0), (0, 50)] {
            config.update.micro_batch = micro_batch;
            config.update.micro_batch_tokens = micro_batch_tokens;
            let mut policy = policy.clone();
            let loss = accumulate(&mut policy, &rows, &objective, &config.update, 1.0).unwrap();
            assert_eq!((policy.gradients(), loss), whole, "{average:?} {micro_batch}");
        }
        (config.update.micro_batch, config.update.micro_batch_tokens) = (0, 0);
    }
}

#[test]
fn rows_are_split_evenly_and_by_size() {
    assert_eq!(split_evenly(10, 4, 0), [0..3, 3..6, 6..10]);
    assert_eq!(split_evenly(8, 8, 0), vec![0..8; 1]);
    assert_eq!(split_evenly(3, 100, 2), [0..1, 1..3]);
    assert_eq!(split_evenly(1, 100, 2), vec![0..1; 1]);
    assert!(split_evenly(0, 4, 0).is_empty() && split_evenly(0, 4, 2).is_empty());
    let ids = [0; 9];
    let rows = [3, 3, 9, 1, 2, 2].map(|n| Row { ids: &ids[..n], targets: &[], kept: &[] });
    assert_eq!(split_by_size(&rows, 0, 6), [0..2, 2..3, 3..6]);
    assert_eq!(split_by_size(&rows, 2, 0), [0..2, 2..4, 4..6]);
    assert_eq!(split_by_size(&rows, 0, 0), vec![0..6; 1]);
}

#[test]
fn episodes_are_gathered_whole_and_a_copy_is_another_one() {
    let ids = [0; 6];
    let row = |targets: &'static [u32]| Row { ids: &ids, targets, kept: &[] };
    let batch = Batch {
        rows: vec![row(&[1, 2]), row(&[3]), row(&[1]), row(&[2, 3, 4])],
        episodes: vec![4, 4, 7, 9],
        picked: vec![0, 2, 2],
        old_logp: (0..7).map(|t| t as f32).collect(),
        advantage: (0..7).map(f64::from).collect(),
        horizon_tokens: 5,
        ..Batch::default()
    };
    assert_eq!((batch.episode_rows(), batch.trained_tokens()), (vec![0..2, 2..3, 3..4], 6));
    let part = batch.gather(&[0, 0, 2], &batch.episode_rows());
    assert_eq!(part.episodes, [0, 0, 1, 1, 2]);
    assert_eq!(part.rows.iter().map(|row| row.targets.len()).collect::<Vec<_>>(), [2, 1, 2, 1, 3]);
    assert_eq!(part.old_logp, [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 4.0, 5.0, 6.0]);
    assert_eq!((part.advantage.len(), part.ret.len(), part.horizon_tokens), (9, 0, 5));
}

#[test]
fn each_pass_draws_anew_what_shares_a_mini_batch() {
    let run = |shuffle: bool, seed: u64| {
        let mut config = doors_config();
        (config.update.epochs, config.update.mini_batches, config.update.shuffle) = (2, 4, shuffle);
        config.run.seed = seed;
        let mut policy = Tabular::new(only(&WAYS));
        let metrics = doors(&config, &Doors::default()).step(&mut policy, 1).unwrap().metrics;
        assert_eq!(metrics["update/optimiser_steps"], 8.0);
        metrics
    };
    assert_eq!(run(true, 1), run(true, 1));
    assert_ne!(run(true, 1)["policy/loss"], run(false, 1)["policy/loss"]);
}

/// A response that is cut costs by its length, or is not trained on; its score counts either way.
#[test]
fn cut_responses_cost_or_are_left_out() {
    let run = |change: &dyn Fn(&mut Config)| {
        let mut config = doors_config();
        change(&mut config);
        doors(&config, &Doors::default()).step(&mut Tabular::new(only(&WAYS)), 1).unwrap()
    };
    let (all, left) = (run(&|_| {}), run(&|config| config.update.skip_cut = true));
    let is_cut = |t: &Trajectory| t.turns.iter().any(|turn| turn.finish != Finish::Stop);
    let whole: Vec<&Trajectory> = left.rollout.trajectories.iter().filter(|t| !is_cut(t)).collect();
    assert!((2..30).contains(&whole.len()), "{} of 32 are whole", whole.len());
    assert_eq!(left.metrics["batch/cut"], 32.0 - whole.len() as f64);
    assert_eq!(left.trained_tokens, whole.iter().map(|t| t.n_sampled()).sum::<usize>());
    assert_eq!(left.advantages, all.advantages, "the group's statistics are those of all");
    assert_ne!(left.metrics["update/grad_norm"], all.metrics["update/grad_norm"]);

    // Both tokens of a response lie in the buffer, so each turn pays for one or two of them.
    let shaped = run(&|config| (config.reward.overlong_buffer_tokens, config.reward.overlong_penalty) = (2, 0.3));
    let tokens: usize = shaped.rollout.trajectories.iter().map(Trajectory::n_sampled).sum();
    assert!((shaped.metrics["batch/overlong_penalty"] + 0.15 * tokens as f64 / 32.0).abs() < 1e-12);
    let mean = |report: &ragen::train::StepReport| report.metrics["batch/score_mean"];
    assert!((mean(&shaped) - mean(&all) - shaped.metrics["batch/overlong_penalty"]).abs() < 1e-12);
    // The filter reads what the environment paid.
    assert_eq!(shaped.metrics["rollout/in_group_reward_mean"], all.metrics["rollout/in_group_reward_mean"]);
}

#[test]
fn a_filter_that_keeps_nothing_is_counted_and_stops_the_run() {
    let mut config = doors_config();
    config.filter.value = 0.0;
    config.filter.empty_stop_steps = 3;
    config.run.steps = 10;
    let mut policy = Tabular::new(only(&WAYS));
    let mut journal = Memory::new();
    let summary = doors(&config, &Doors::default()).run(&mut policy, &mut journal).unwrap();
    assert_eq!((summary.step, summary.stopped), (3, Some(Stopped::EmptyFilter)));
    let counted = |key: &str| journal.metrics.iter().map(|m| m[key]).collect::<Vec<_>>();
    assert_eq!(counted("rollout/empty_after_filter"), [1.0; 3]);
    assert_eq!(counted("rollout/consecutive_empty_after_filter_steps"), [1.0, 2.0, 3.0]);
    assert!(policy.is_empty(), "nothing was trained");
    // It is validated and saved all the same.
    assert_eq!(journal.validations.iter().map(|v| v.0).collect::<Vec<_>>(), [0, 3]);
    assert!(journal.checkpoints.contains_key(&3));
}

#[test]
fn equal_rewards_train_nothing_and_stay_finite() {
    let config = doors_config();
    // Always the wrong way, whatever the level: only the format penalty, the same for all.
    let mut policy = Tabular::new(only(&["ĠUp", "</answer>"]));
    let report = doors(&config, &Doors::default()).step(&mut policy, 1).unwrap();
    assert!(report.metrics.values().all(|x| x.is_finite()), "{:?}", report.metrics);
    assert_eq!(report.metrics["batch/advantage_max"], 0.0);
    assert_eq!(report.metrics["update/grad_norm"], 0.0);
    assert_eq!(report.metrics["train/success"], 0.0);
}

#[test]
fn a_gradient_that_is_not_finite_is_counted_and_changes_nothing() {
    let mut config = doors_config();
    config.update.loss.entropy_coef = f64::INFINITY;
    let mut policy = Tabular::new(only(&WAYS));
    let mut trainer = doors(&config, &Doors::default());
    let report = trainer.step(&mut policy, 1).unwrap();
    assert_eq!((report.metrics["update/skipped"], report.metrics["update/optimiser_steps"]), (1.0, 1.0));
    assert!(policy.is_empty());
    trainer.config.update.loss.entropy_coef = 0.0;
    let report = trainer.step(&mut policy, 2).unwrap();
    assert_eq!(report.metrics["update/skipped"], 0.0);
    assert!(!policy.is_empty());
}

#[test]
fn a_trajectory_without_a_sampled_token_is_no_row() {
    for estimator in [Estimator::Grpo, Estimator::Gae] {
        let mut config = doors_config();
        config.algorithm.estimator = estimator;
        config.rollout.model_tokens = 40;
        let mut policy = Tabular::new(only(&WAYS));
        policy.value = true;
        // One level of four says so much that no response fits.
        let stage = Doors { says: "x".repeat(100), says_at: Some(3), ..Doors::default() };
        let report = doors(&config, &stage).step(&mut policy, 1).unwrap();
        assert_eq!((report.metrics["batch/rows"], report.metrics["batch/empty_rows"]), (24.0, 8.0));
        assert!(report.metrics.values().all(|x| x.is_finite()));
        assert!(!policy.is_empty());
        // All of them do: no step could ever train, so the run says what to change.
        let stage = Doors { says_at: None, ..stage };
        let error = doors(&config, &stage).step(&mut policy.clone(), 1).unwrap_err().to_string();
        assert!(error.contains("rollout.model_tokens"), "{error}");
    }
}

#[test]
fn kl_to_the_reference_is_measured_from_the_first_weights() {
    let mut config = doors_config();
    config.update.loss.kl.coef = 0.01;
    config.run.steps = 3;
    let mut policy = Tabular::new(only(&WAYS));
    let mut journal = Memory::new();
    doors(&config, &Doors::default()).run(&mut policy, &mut journal).unwrap();
    let kl: Vec<f64> = journal.metrics.iter().map(|m| m["policy/kl_loss"]).collect();
    assert!(kl[0] == 0.0 && kl[1] > 0.0 && kl[2] > kl[1], "{kl:?}");
    // The first weights choose among five tokens alike.
    let logp: Vec<f64> = journal.metrics.iter().map(|m| m["rollout/ref_log_prob"]).collect();
    assert!(logp.iter().all(|logp| (logp + 5f64.ln()).abs() < 1e-6), "{logp:?}");
}

/// It changes nothing but what is measured.
#[test]
fn a_reference_may_be_kept_to_look_at() {
    let run = |reference: bool| {
        let mut config = doors_config();
        config.model.reference = reference;
        config.run.steps = 3;
        let (mut policy, mut journal) = (Tabular::new(only(&WAYS)), Memory::new());
        doors(&config, &Doors::default()).run(&mut policy, &mut journal).unwrap();
        journal.metrics
    };
    let (with, without) = (run(true), run(false));
    assert!(with[0]["policy/kl_loss"] == 0.0 && with[2]["policy/kl_loss"] > 0.0);
    for (with, without) in with.iter().zip(&without) {
        let added = ["policy/kl_loss", "rollout/ref_log_prob"];
        let mut rest = with.clone();
        rest.retain(|name, _| !added.contains(&name.as_str()));
        assert_eq!((rest.len(), &rest), (with.len() - 2, without));
    }
}

/// Two policies that play alike: one reasons about its input, the other always says the same.
#[test]
fn planted_template_collapse_is_reported() {
    let mut config = small_config();
    config.rollout.think = true;
    config.rollout.max_turns = 1;
    config.rollout.response_tokens = 12;
    config.algorithm.estimator = Estimator::Grpo;
    config.collapse.every = 1;
    config.warmstart.noise = 0.0;
    let mut demonstrations = Demonstrations::new(&config, context(&config)).unwrap();
    let shown: Vec<Trajectory> = (0..400).map(|i| demonstrations.show(i).unwrap()).collect();
    let of_a_template = |t: &Trajectory| {
        let context = context(&config);
        let mut planted = Trajectory::default();
        planted
            .last_row()
            .tokens
            .push(&t.rows[0].tokens.ids[..t.turns[0].prompt.end], ragen::trajectory::Provenance::Environment);
        let turn = Turn { thought: "go".into(), actions: t.turns[0].played.executed.clone() };
        let format = ragen::protocol::AnswerFormat {
            think: true,
            separator: "||".into(),
            max_actions_per_turn: 1,
            single_action: false,
        };
        let response = context.response(&turn, &format);
        planted.last_row().push_response(&response, &vec![0.0; response.len()], &[]);
        planted
    };
    let planted: Vec<Trajectory> = shown.iter().map(of_a_template).collect();
    let measured = [shown, planted].map(|demonstrations| {
        let mut policy = Tabular::new(vec![0.0; TOKENIZER.vocab()]);
        for _ in 0..8 {
            for batch in demonstrations.chunks(50) {
                imitate(&mut policy, batch, 0, 200.0).unwrap();
            }
        }
        let mut trainer = Trainer::new(config.clone(), context(&config)).unwrap();
        trainer.step(&mut policy, 1).unwrap().metrics
    });
    let [healthy, collapsed] = measured.map(|metrics| {
        ["mi_seq_estimate", "retrieval_accuracy"].map(|key| metrics[&format!("collapse_first_turn_sample/{key}")])
    });
    // Two inputs differ only in the order of their arms, and have one reasoning: at best half are told apart.
    assert!(healthy[0] > 1.0 && healthy[1] > 0.35, "{healthy:?}");
    assert!(collapsed[0].abs() < 0.2 && collapsed[1] < 0.2, "{collapsed:?}");
}

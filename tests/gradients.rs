//! Gradient analysis: norms that add up to the update's, noise that is told from signal, and a run that it leaves alone.

mod stage;
mod tiny_model;

use ragen::config::Config;
use ragen::context_manager::ContextManager;
use ragen::env_manager::{EnvManager, Episode, TagRules};
use ragen::estimator::Estimator;
use ragen::policy::model::Model;
use ragen::policy::tabular::Tabular;
use ragen::settings;
use ragen::train::{Stopped, Trainer};
use ragen_envs::{Env, EnvError, Legend, Mode, Recap, Step};
use ragen_models::device::Cpu;
use ragen_models::optim::AdamWSettings;
use ragen_models::random::Key;
use ragen_models::tokenizer::Tokenizer;
use serde_json::Value;
use stage::*;
use std::collections::BTreeMap;
use std::sync::Arc;

type Metrics = BTreeMap<String, f64>;

const WAYS: [&str; 5] = ["ĠUp", "ĠDown", "ĠLeft", "ĠRight", "</answer>"];

fn config() -> Config {
    let mut config = small_config();
    config.rollout.max_turns = 2;
    config.algorithm.estimator = Estimator::Grpo;
    config.optim.lr = 20.0;
    config.run.steps = 6;
    config.val.every = 0;
    config.val.before_train = false;
    config.gradient_analysis.every = 2;
    config.update.loss.entropy_coef = 0.05;
    config.update.loss.kl.coef = 0.3;
    config
}

fn run(config: &Config, envs: EnvManager) -> (Memory<Tabular>, Tabular, Option<Stopped>) {
    let mut trainer = Trainer::new(config.clone(), context(config)).unwrap();
    trainer.train_envs = envs;
    // Where the template closes an answer, every word is one.
    let says = if config.rollout.force_close_tag { &WAYS[..4] } else { &WAYS };
    let (mut policy, mut journal) = (Tabular::new(only(says)), Memory::new());
    let summary = trainer.run(&mut policy, &mut journal).unwrap();
    (journal, policy, summary.stopped)
}

fn doors() -> EnvManager {
    Doors::default().manage(4, 32, Mode::Train)
}

/// The three terms, with their angles, are the whole gradient of the update; the buckets hold all rows; micro-batches change nothing.
#[test]
fn the_terms_add_up_to_the_gradient_of_the_update() {
    let (journal, ..) = run(&config(), doors());
    for (i, metrics) in journal.metrics.iter().enumerate() {
        assert_eq!(metrics.contains_key("grad_norm/all/task"), i % 2 == 0, "steps 1, 3, 5");
    }
    // At step 3 the policy has left the reference.
    let metrics = &journal.metrics[2];
    let of = |name: &str| metrics[&format!("grad_norm/all/{name}")];
    let (task, entropy, kl) = (of("task"), of("entropy"), of("kl"));
    assert!(task > 0.0 && entropy > 0.0 && kl > 0.0);
    let cross = task * entropy * of("cosine/task_entropy")
        + task * kl * of("cosine/task_kl")
        + entropy * kl * of("cosine/entropy_kl");
    let whole = (task * task + entropy * entropy + kl * kl + 2.0 * cross).sqrt();
    assert!((whole - metrics["update/grad_norm"]).abs() < 1e-6 * whole, "{whole} {}", metrics["update/grad_norm"]);
    assert_eq!((metrics["actor/grad_norm/task"], metrics["actor/loss/policy"]), (task, of("loss/policy")));
    assert_eq!(of("per_sample/task"), task / metrics["batch/rows"]);
    assert_eq!(of("per_token/kl"), kl / metrics["batch/trained_tokens"]);
    assert!((of("loss/total") - metrics["policy/loss"]).abs() < 1e-9);

    let buckets: Vec<f64> = (1..=4).map(|i| metrics[&format!("grad_norm/bucket_{i}/sample_count")]).collect();
    assert_eq!(buckets.iter().sum::<f64>(), 128.0, "four groups are four buckets");
    let spread = |i: usize| metrics[&format!("grad_norm/bucket_{i}/reward_std_mean")];
    assert!(spread(1) <= spread(2) && spread(2) <= spread(3) && spread(3) <= spread(4) && spread(4) > 0.0);

    let mut cut = config();
    cut.update.micro_batch = 3;
    let cut = &run(&cut, doors()).0.metrics[2];
    for (name, value) in metrics.iter().filter(|(name, _)| name.starts_with("grad_norm/")) {
        assert!((value - cut[name]).abs() < 1e-5 * value.abs().max(1e-3), "{name}: {value} and {}", cut[name]);
    }
}

/// Weights, metrics and trajectories are the same with the analysis and without.
#[test]
fn an_analysis_changes_nothing_of_the_run() {
    let mut with = config();
    with.gradient_analysis.every = 1;
    with.gradient_analysis.prefilter = true;
    with.filter.value = 0.8;
    let mut without = with.clone();
    without.gradient_analysis.every = 0;
    let ((a, policy_a, _), (b, policy_b, _)) = (run(&with, doors()), run(&without, doors()));
    assert_eq!(format!("{policy_a:?}"), format!("{policy_b:?}"));
    let is_of_analysis = |name: &String| name.starts_with("grad_") || name.starts_with("actor/");
    for (a, b) in a.metrics.iter().zip(&b.metrics) {
        let rest: Metrics = a.iter().filter(|(name, _)| !is_of_analysis(name)).map(|(k, v)| (k.clone(), *v)).collect();
        assert_eq!(&rest, b);
    }
    let first = &a.metrics[0];
    let rows = |prefix: &str| first[&format!("{prefix}/all/sample_count")];
    assert!(rows("grad_norm") < rows("grad_norm_prefilter"), "the filter dropped groups");
    assert_eq!(rows("grad_norm_prefilter"), 128.0);
}

/// With groups of its own the analysis plays a rollout of its own, from the levels that the step begins with; the run does not notice.
#[test]
fn an_analysis_may_play_for_itself() {
    let mut with = config();
    with.env.train.tags = vec!["CoordSokoban".into(), "CoordFrozenLake".into()];
    (with.env.train.groups, with.env.train.n_groups, with.env.train.group_size) = (4, vec![3, 1], 8);
    (with.rollout.response_tokens, with.rollout.force_close_tag) = (1, true);
    (with.gradient_analysis.groups, with.gradient_analysis.group_size) = (8, 16);
    with.gradient_analysis.prefilter = true;
    (with.filter.value, with.filter.strategy) = (0.5, ragen::filter::Strategy::TopK);
    let run = |config: &Config| {
        let mut trainer = Trainer::new(config.clone(), context(config)).unwrap();
        let (mut policy, mut journal) = (Tabular::new(only(&WAYS)), Memory::new());
        trainer.run(&mut policy, &mut journal).unwrap();
        (journal, policy, trainer.state)
    };
    with.checkpoint.every = 3;
    let (journal, policy, state) = run(&with);
    // Resumed after step 3, the analysis of step 5 plays the same levels in the same way.
    let (mut resumed, saved) = journal.checkpoints[&3].clone();
    let mut trainer = Trainer::new(with.clone(), context(&with)).unwrap();
    trainer.resume(saved);
    let mut rest = Memory::new();
    trainer.run(&mut resumed, &mut rest).unwrap();
    assert!(rest.metrics[1].contains_key("grad_norm/all/task") && rest.lines == journal.lines[3..]);
    let first = &journal.metrics[0];
    let of = |name: &str| first[&format!("grad_analysis/{name}")];
    assert_eq!((of("uses_training_batch"), of("source_env_groups"), of("source_group_size")), (0.0, 8.0, 16.0));
    assert_eq!((of("source_batch_size"), of("adjusted_batch_size"), of("filter_kept_count")), (64.0, 64.0, 4.0));
    assert_eq!(first["grad_norm/all/sample_count"], 64.0);
    assert_eq!(
        (first["grad_norm_prefilter/all/sample_count"], first["grad_norm_prefilter/all/group_rv_count"]),
        (128.0, 8.0)
    );
    assert_eq!((first["batch/rows"], first["rollout/filter_kept_count"]), (16.0, 2.0));
    assert!(first["grad_norm/all/task"] > 0.0 && first["grad_norm/all/task"] != first["update/grad_norm"]);

    // The run is the one without an analysis, bit for bit.
    let mut without = with.clone();
    without.gradient_analysis.every = 0;
    let (plain, policy_without, state_without) = run(&without);
    // All of the table but the sequences that it has opened.
    let table = |policy: &Tabular| format!("{policy:?}").split("sequences").next().unwrap().to_string();
    assert!(table(&policy) == table(&policy_without) && state == state_without);
    let is_of_analysis = |name: &str| name.starts_with("grad_") || name.starts_with("actor/");
    for (a, b) in journal.metrics.iter().zip(&plain.metrics) {
        let rest: Metrics = a.iter().filter(|(name, _)| !is_of_analysis(name)).map(|(k, v)| (k.clone(), *v)).collect();
        assert_eq!(&rest, b);
    }

    // Training's numbers, written out, are training's batch.
    (with.gradient_analysis.groups, with.gradient_analysis.group_size) = (4, 8);
    let own = &run(&with).0.metrics[0];
    assert_eq!((own["grad_analysis/uses_training_batch"], own["grad_norm/all/sample_count"]), (1.0, 16.0));
    let error = settings::load(
        None,
        &["gradient_analysis.groups=1".into(), "env.train.tags=[\"TinyFrozenLake\", \"TinySokoban\"]".into()],
    );
    assert!(error.unwrap_err().to_string().contains("gradient_analysis.groups: 1 groups cannot serve 2 tags"));
}

/// Pays by member, whatever is done.
#[derive(Clone, Default)]
struct Lottery {
    key: u64,
}

impl Env for Lottery {
    fn reset(&mut self, seed: u64, member: u64, _: Mode) -> Result<(), EnvError> {
        self.key = 1000 * seed + member;
        Ok(())
    }

    fn observation(&self) -> String {
        "1".into()
    }

    fn step(&mut self, _: &str) -> Result<Step, EnvError> {
        let reward = Key::new(self.key).uniform(0);
        Ok(Step { reward, terminated: true, valid: true, ..Step::default() })
    }

    fn actions(&self) -> Option<Vec<String>> {
        Some(["Up", "Down", "Left", "Right"].map(String::from).to_vec())
    }

    fn instruction(&self) -> String {
        "Win.".into()
    }

    fn state(&self) -> Value {
        Value::Null
    }

    fn load_state(&mut self, _: &Value) -> Result<(), EnvError> {
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        self.key
    }
}

fn lottery() -> EnvManager {
    let rules = Arc::new(TagRules {
        name: "Lottery".into(),
        instruction: String::new(),
        legend: Legend::default(),
        max_actions: 1,
        single_action: false,
        max_tokens: 0,
        many_starts: false,
        waits: false,
        recap: Recap::Whole,
    });
    let episode = |i: usize| Episode::new(rules.clone(), i / 32, i % 32, Box::<Lottery>::default());
    EnvManager::from_episodes((0..128).map(episode).collect(), 32, 10, Mode::Train)
}

/// Where rewards have nothing to do with what was done, dealing them anew gives as much gradient; where they do, much less.
#[test]
fn noise_of_the_rewards_is_told_from_signal() {
    let share = |envs: fn() -> EnvManager| {
        let mut config = config();
        config.run.steps = 12;
        config.optim.lr = 0.0;
        config.gradient_analysis.every = 1;
        config.gradient_analysis.noise_draws = 8;
        (config.rollout.response_tokens, config.rollout.force_close_tag) = (1, true);
        let (journal, ..) = run(&config, envs());
        // Of all steps together: a table of four words has few dimensions, in which one step's gradient may happen to be small.
        let of = |metrics: &Metrics, name: &str| metrics[&format!("grad_norm/all/{name}")];
        let sum = |of: &dyn Fn(&Metrics) -> f64| journal.metrics.iter().map(of).sum::<f64>();
        sum(&|m| of(m, "noise_share") * of(m, "task").powi(2)) / sum(&|m| of(m, "task").powi(2))
    };
    let (noise, signal) = (share(lottery), share(doors));
    assert!((0.7..1.6).contains(&noise) && signal > 0.0 && signal < 0.3, "noise {noise}, signal {signal}");
}

#[test]
fn it_may_be_all_that_is_done_or_the_last_thing() {
    let mut only_analysis = config();
    only_analysis.gradient_analysis.only = true;
    let (journal, policy, stopped) = run(&only_analysis, doors());
    assert!(policy.is_empty() && stopped.is_none() && journal.metrics.len() == 6);
    assert_eq!(journal.metrics[0]["actor/skipped_for_gradient_analysis_only"], 1.0);
    assert!(!journal.metrics[0].contains_key("update/lr"));

    let mut exits = config();
    exits.gradient_analysis.exit_after = true;
    exits.checkpoint.every = 1;
    let (journal, policy, stopped) = run(&exits, doors());
    assert_eq!((stopped, journal.metrics.len()), (Some(Stopped::Analysed), 1));
    assert_eq!(journal.metrics[0]["trainer/exited_after_gradient_analysis"], 1.0);
    assert!(policy.is_empty() && journal.checkpoints.is_empty());
    // Also where the filter left nothing.
    exits.filter.strategy = ragen::filter::Strategy::TopP;
    exits.filter.value = 0.9;
    exits.filter.include_zero = false;
    exits.rollout.format_penalty = 0.0;
    let mut trainer = Trainer::new(exits.clone(), context(&exits)).unwrap();
    trainer.train_envs = doors();
    let (mut policy, mut journal) = (Tabular::new(only(&["ĠUp", "</answer>"])), Memory::new());
    assert_eq!(trainer.run(&mut policy, &mut journal).unwrap().stopped, Some(Stopped::Analysed));
    assert_eq!(journal.metrics[0]["grad_norm/empty_after_filter"], 1.0);
}

/// The small model, with a value head that the analysis must leave alone: every bit of weights and moments.
#[test]
fn the_model_is_left_in_every_bit() {
    for (estimator, coef) in [(Estimator::Grpo, 0.1), (Estimator::Gae, 0.0)] {
        let end = |every: u64| {
            let changes =
                ["env.train.groups=3", "env.train.group_size=4", "env.val.groups=4", "rollout.response_tokens=9"];
            let mut config = settings::load(Some("sokoban"), &changes.map(String::from)).unwrap();
            config.filter.value = 1.0;
            config.update.loss.entropy_coef = 0.02;
            config.update.loss.kl.coef = coef;
            config.algorithm.estimator = estimator;
            config.collapse.every = 0;
            config.val.before_train = false;
            config.val.every = 0;
            config.run.steps = 3;
            config.gradient_analysis.every = every;
            let tokenizer = Arc::new(Tokenizer::tiny());
            let shape = tiny_model::shape(tokenizer.vocab(), config.rollout.model_tokens, estimator == Estimator::Gae);
            let (params, cpu) = (tiny_model::weights(&shape, 60.0), Arc::new(Cpu::new(2).unwrap()));
            let mut policy = Model::new(cpu, shape, params, config.model.dtype, AdamWSettings::default());
            let context = ContextManager::new(&config, tokenizer, None, config.rollout.model_tokens).unwrap();
            let mut trainer = Trainer::new(config, context).unwrap();
            if coef != 0.0 {
                ragen::policy::Policy::freeze_reference(&mut policy).unwrap();
            }
            let norms: Vec<f64> = (1..=3)
                .map(|step| {
                    let metrics = trainer.step(&mut policy, step).unwrap().metrics;
                    assert!(metrics["update/grad_norm"] > 0.0);
                    metrics.get("grad_norm/all/entropy").copied().unwrap_or(0.0)
                })
                .collect();
            let optimiser = policy.optimiser().unwrap().into_owned();
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            let weights = bits(&policy.params().unwrap().data);
            (norms, weights, bits(&optimiser.m.data), bits(&optimiser.v.data), optimiser.steps)
        };
        let (with, without) = (end(1), end(0));
        assert!(with.0.iter().all(|norm| *norm > 0.0) && without.0 == [0.0; 3]);
        assert!((with.1, with.2, with.3, with.4) == (without.1, without.2, without.3, without.4), "{estimator:?}");
    }
}

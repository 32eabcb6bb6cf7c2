//! What changes over a run: the turns of its episodes, its learning rate, which checkpoint is the best. Resumed, all goes on as it was.

mod stage;
mod tiny_model;

use ragen::config::Config;
use ragen::context_manager::ContextManager;
use ragen::estimator::Estimator;
use ragen::plan::Lengths;
use ragen::policy::model::Model;
use ragen::policy::tabular::Tabular;
use ragen::policy::*;
use ragen::train::{Best, TrainState, Trainer};
use ragen_envs::Mode;
use ragen_models::device::Cpu;
use ragen_models::engine::CpuEngine;
use ragen_models::optim::{AdamWSettings, Decay};
use ragen_models::transformer::{Precision, Transformer};
use stage::*;
use std::sync::Arc;

fn config() -> Config {
    let mut config = small_config();
    config.rollout.max_turns = 2;
    config.algorithm.estimator = Estimator::Grpo;
    config.run.steps = 5;
    config.val.every = 0;
    config.val.before_train = false;
    config
}

fn trainer(config: &Config) -> Trainer {
    let mut trainer = Trainer::new(config.clone(), context(config)).unwrap();
    trainer.train_envs = Doors::default().manage(4, 8, Mode::Train);
    trainer.val_envs = Doors::default().manage(6, 2, Mode::Val);
    trainer
}

fn run<P: Policy + Clone>(config: &Config, policy: &mut P) -> Memory<P> {
    let mut journal = Memory::new();
    trainer(config).run(policy, &mut journal).unwrap();
    journal
}

/// The run from a checkpoint on, its state as a file holds it.
fn resumed<P: Policy + Clone>(config: &Config, journal: &Memory<P>, from: u64) -> Memory<P> {
    let (mut policy, state) = journal.checkpoints[&from].clone();
    let mut trainer = trainer(config);
    trainer.resume(serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap());
    let mut rest = Memory::new();
    trainer.run(&mut policy, &mut rest).unwrap();
    rest
}

/// The most turns of an episode in each step.
fn turns<P>(journal: &Memory<P>) -> Vec<usize> {
    let most = |line: &String| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let turns = |t: &serde_json::Value| t["turns"].as_array().unwrap().len();
        line[2].as_array().unwrap().iter().map(turns).max().unwrap()
    };
    journal.lines.iter().map(most).collect()
}

/// Says left or right.
fn chooser() -> Tabular {
    Tabular::new(only(&["ĠLeft", "ĠRight"]))
}

#[test]
fn turns_rise_evenly_from_the_first_step_to_the_last_of_the_curriculum() {
    let mut rollout = Config::default().rollout;
    rollout.max_turns = 8;
    (rollout.curriculum.turns, rollout.curriculum.steps) = (2, 4);
    // 2 + ⌊6 (s − 1) / 4⌋.
    assert_eq!([1, 2, 3, 4, 5, 6, u64::MAX].map(|step| rollout.max_turns_at(step)), [2, 3, 5, 6, 8, 8, 8]);
    rollout.curriculum.turns = 8;
    assert_eq!([1, 99].map(|step| rollout.max_turns_at(step)), [8, 8]);
    rollout.curriculum.turns = 0;
    assert_eq!([1, 99].map(|step| rollout.max_turns_at(step)), [8, 8], "no curriculum");
    let changes = ["rollout.max_turns=3", "rollout.curriculum.turns=4"].map(String::from);
    let error = ragen::settings::load(None, &changes).unwrap_err().to_string();
    assert!(error.contains("rollout.curriculum.turns: 4 is more than rollout.max_turns, which is 3"), "{error}");
}

/// Training begins with one turn; validation plays two at all times, as without a curriculum, and so does the memory plan.
#[test]
fn a_curriculum_grows_in_training_alone_and_resumes() {
    let mut config = config();
    (config.rollout.response_tokens, config.rollout.force_close_tag) = (1, true);
    (config.rollout.curriculum.turns, config.rollout.curriculum.steps) = (1, 3);
    config.checkpoint.every = 2;
    config.val.before_train = true;
    let journal = run(&config, &mut chooser());
    assert_eq!(turns(&journal), [1, 1, 1, 2, 2]);
    let logged: Vec<f64> = journal.metrics.iter().map(|metrics| metrics["train/max_turns"]).collect();
    assert_eq!(logged, [1.0, 1.0, 1.0, 2.0, 2.0]);
    assert_eq!(journal.metrics[0]["train/success"], 0.0, "one door is not both");
    assert!(journal.validations[0].1 > 0.0 && journal.metrics[4]["train/success"] > 0.0);
    for from in [2, 4] {
        assert_eq!(resumed(&config, &journal, from).lines, journal.lines[from as usize..]);
    }

    let mut whole = config.clone();
    whole.rollout.curriculum.turns = 0;
    let without = run(&whole, &mut chooser());
    assert_eq!(turns(&without), [2; 5]);
    assert!(!without.metrics[0].contains_key("train/max_turns"));
    assert_eq!(journal.validations[0], without.validations[0]);
    let lengths = |config: &Config| {
        let context = ContextManager::new(config, TOKENIZER.clone(), None, config.rollout.model_tokens).unwrap();
        Lengths::measure(config, &context).unwrap()
    };
    assert_eq!(lengths(&config), lengths(&whole));
}

/// Warm-up and cosine, as the update was told.
#[test]
fn the_learning_rate_follows_its_schedule_and_resumes() {
    let mut config = config();
    (config.optim.lr, config.optim.warmup_steps, config.optim.schedule) = (1.0, 2, Decay::Cosine);
    config.optim.floor = 0.1;
    config.run.steps = 6;
    config.checkpoint.every = 3;
    let journal = run(&config, &mut chooser());
    let rates: Vec<f64> = journal.metrics.iter().map(|metrics| metrics["update/lr"]).collect();
    // 0.1 + 0.9 · (1 + cos(π t / 4)) / 2 for t = 0 … 3.
    let cosine = |t: f64| 0.1 + 0.45 * (1.0 + (std::f64::consts::PI * t / 4.0).cos());
    for (rate, want) in rates.iter().zip([0.5, 1.0, cosine(0.0), cosine(1.0), cosine(2.0), cosine(3.0)]) {
        assert!((rate - want).abs() < 1e-12, "{rates:?}");
    }
    assert_eq!(resumed(&config, &journal, 3).lines, journal.lines[3..]);
}

/// Goes through the doors as planned, by update: of the six levels the ways solve as many as are counted.
#[derive(Clone)]
struct Planned {
    says: Scripted,
    plan: Vec<[&'static str; 2]>,
}

/// Two of the six levels 2, 3, 0, 1, 2, 3 open to the left and then to the right, one to the left twice, none upwards.
const TWO: [&str; 2] = ["Left", "Right"];
const ONE: [&str; 2] = ["Left", "Left"];
const NONE: [&str; 2] = ["Up", "Up"];

impl Planned {
    /// `plan[n]` after n updates.
    fn new(plan: &[[&'static str; 2]]) -> Self {
        let mut planned = Planned { says: Scripted::new(&[]), plan: plan.to_vec() };
        planned.follow();
        planned
    }

    fn follow(&mut self) {
        self.says.lines = self.plan[0].map(|way| format!(" {way}</answer>")).to_vec();
    }
}

impl Policy for Planned {
    fn max_positions(&self) -> usize {
        self.says.max_positions()
    }

    fn has_value(&self) -> bool {
        false
    }

    fn open(&mut self) -> SequenceId {
        self.says.open()
    }

    fn close(&mut self, sequence: SequenceId) {
        self.says.close(sequence);
    }

    fn generate(
        &mut self,
        requests: &[Request<'_>],
        sampling: &Sampling,
        stop: &Stop<'_>,
    ) -> Result<Vec<Response>, PolicyError> {
        self.says.generate(requests, sampling, stop)
    }

    fn score(&mut self, weights: Weights, rows: &[Row<'_>], temperature: f32) -> Result<TokenValues, PolicyError> {
        self.says.score(weights, rows, temperature)
    }

    fn freeze_reference(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }

    fn accumulate(
        &mut self,
        rows: &[Row<'_>],
        temperature: f32,
        objective: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError> {
        self.says.accumulate(rows, temperature, objective)
    }

    fn update(&mut self, _: f64) -> Result<Update, PolicyError> {
        if self.plan.len() > 1 {
            self.plan.remove(0);
            self.follow();
        }
        Ok(Update { grad_norm: 1.0, skipped: false })
    }
}

/// Saved where it went better than before, the first of equals; before the first step and without success it counts nothing.
#[test]
fn the_best_validation_is_saved_and_remembered() {
    let mut config = config();
    config.val.every = 1;
    config.val.before_train = true;
    config.checkpoint.every = 100;
    config.run.steps = 6;
    let plan = [TWO, NONE, ONE, TWO, NONE, TWO, ONE];
    let journal = run(&config, &mut Planned::new(&plan));
    let successes: Vec<f64> = journal.validations.iter().map(|(_, success)| *success).collect();
    assert_eq!(successes, [2.0, 0.0, 1.0, 2.0, 0.0, 2.0, 1.0].map(|n| n / 6.0));
    assert_eq!(journal.checkpoints.keys().collect::<Vec<_>>(), [&2, &3, &6]);
    let best = |step: u64| journal.checkpoints[&step].1.best;
    assert_eq!(best(2), Some(Best { step: 2, success: 1.0 / 6.0 }));
    assert_eq!((best(3), best(6)), (Some(Best { step: 3, success: 2.0 / 6.0 }), best(3)));
    // A run that was cut after step 2 or 3 knows what it has to surpass.
    for from in [2, 3] {
        let rest = resumed(&config, &journal, from);
        let later: Vec<&u64> = journal.checkpoints.keys().filter(|step| **step > from).collect();
        assert_eq!(rest.checkpoints.keys().collect::<Vec<_>>(), later);
        assert_eq!(rest.checkpoints[&6].1, journal.checkpoints[&6].1);
    }

    config.checkpoint.best = false;
    let without = run(&config, &mut Planned::new(&plan));
    assert_eq!(without.lines, journal.lines);
    assert_eq!(without.checkpoints.keys().collect::<Vec<_>>(), [&6]);
    config.checkpoint.best = true;
    config.checkpoint.every = 0;
    assert!(run(&config, &mut Planned::new(&plan)).checkpoints.is_empty());
}

/// What was the best stays so where a run goes back: its checkpoint is still there.
#[test]
fn going_back_forgets_no_best_checkpoint() {
    let best = |step, success| Some(Best { step, success });
    let mut state = TrainState { step: 9, best: best(7, 0.5), ..TrainState::default() };
    state.go_back(TrainState { step: 4, best: best(2, 0.25), ..TrainState::default() }, 9);
    assert_eq!((state.step, state.best), (9, best(7, 0.5)));
    assert!(!state.is_best(0.5) && state.is_best(0.75));
    assert_eq!(state.best, best(9, 0.75));
}

/// The small model with a value model of its own.
fn small_model() -> Model {
    let cpu = Arc::new(Cpu::new(2).unwrap());
    let model = |value: bool| {
        let shape = tiny_model::shape(TOKENIZER.vocab(), 256, value);
        let weights = tiny_model::weights(&shape, 60.0);
        (shape, weights)
    };
    let (shape, weights) = model(true);
    let value = Transformer::new(&cpu, shape, weights, Precision::F32);
    let value = CpuEngine::new(cpu.clone(), value, AdamWSettings::default());
    let (shape, weights) = model(false);
    Model::new(cpu, shape, weights, Precision::F32, AdamWSettings::default()).with_value_model(Box::new(value), 1.0)
}

/// Weights, moments and steps of the policy and of the value model, in bits.
fn bits(model: &Model) -> [(Vec<u32>, u64); 2] {
    let of = |all: [&[f32]; 3], steps: u64| (all.concat().iter().map(|x| x.to_bits()).collect(), steps);
    let (params, optimiser) = (model.params().unwrap(), model.optimiser().unwrap());
    let (value, of_value) = model.value_model().unwrap().unwrap();
    [
        of([&params.data, &optimiser.m.data, &optimiser.v.data], optimiser.steps),
        of([&value.data, &of_value.m.data, &of_value.v.data], of_value.steps),
    ]
}

fn with_values() -> Config {
    let mut config = config();
    config.rollout.response_tokens = 6;
    config.rollout.model_tokens = 256;
    config.algorithm.estimator = Estimator::Gae;
    config.update.loss.entropy_coef = 0.01;
    config.optim.lr = 1e-3;
    config
}

#[test]
fn the_value_model_is_trained_alone_at_first_and_the_policy_in_no_bit() {
    let mut config = with_values();
    config.model.value_warmup_steps = 2;
    let (mut trainer, mut policy) = (trainer(&config), small_model());
    let mut before = bits(&policy);
    for step in 1..=4 {
        let metrics = trainer.step(&mut policy, step).unwrap().metrics;
        let now = bits(&policy);
        let alone = step <= 2;
        assert_eq!(metrics.contains_key("value/trained_alone"), alone);
        assert!((now[0] == before[0]) == alone && now[1] != before[1], "step {step}");
        assert_eq!((now[0].1, now[1].1), (step.saturating_sub(2), step), "optimiser steps");
        assert!(metrics["update/grad_norm"] > 0.0);
        before = now;
    }
}

/// With the table: what is sampled stays the same policy's until then, and a resumed run goes on in the middle of it.
#[test]
fn a_warm_up_of_values_resumes() {
    let mut config = config();
    (config.rollout.response_tokens, config.rollout.force_close_tag) = (1, true);
    config.algorithm.estimator = Estimator::Gae;
    (config.optim.lr, config.checkpoint.every) = (5.0, 2);
    let run_with = |warmup: u64| {
        let mut config = config.clone();
        config.model.value_warmup_steps = warmup;
        let mut policy = chooser();
        policy.value = true;
        (run(&config, &mut policy), config)
    };
    let ((three, of_three), (five, _), (none, _)) = (run_with(3), run_with(5), run_with(0));
    assert_eq!(three.lines[..3], five.lines[..3]);
    assert_ne!(three.lines[4], five.lines[4], "the policy has moved in step 4");
    let seen = |journal: &Memory<Tabular>| journal.metrics[1]["policy/ppo_kl"];
    assert_eq!((seen(&three), journal_success(&three, 1)), (0.0, journal_success(&five, 1)));
    assert_ne!(none.lines[1], three.lines[1]);
    // Values are learned meanwhile.
    let errors: Vec<f64> = five.metrics.iter().map(|metrics| metrics["value/vf_loss"]).collect();
    assert!(errors[4] < 0.7 * errors[0], "{errors:?}");
    for from in [2, 4] {
        assert_eq!(resumed(&of_three, &three, from).lines, three.lines[from as usize..]);
    }
}

fn journal_success<P>(journal: &Memory<P>, step: usize) -> f64 {
    journal.metrics[step]["train/success"]
}

/// Whether and how often a run validates reaches no bit of it: weights, moments, values, what is sampled.
#[test]
fn validation_touches_neither_weights_nor_random_state() {
    let config = with_values();
    let end = |validates: bool| {
        let (mut trainer, mut policy) = (trainer(&config), small_model());
        let metrics: Vec<_> = (1..=3)
            .map(|step| {
                if validates {
                    let before = bits(&policy);
                    let first = trainer.validate(&mut policy, true).unwrap();
                    assert!(bits(&policy) == before && first == trainer.validate(&mut policy, true).unwrap());
                }
                trainer.step(&mut policy, step).unwrap().metrics
            })
            .collect();
        (metrics, bits(&policy), trainer.train_envs.state)
    };
    assert!(end(true) == end(false));
}

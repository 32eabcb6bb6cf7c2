//! What a run is told about itself: the collapse detector on planted policies and on the small model.

mod stage;
mod tiny_model;

use ragen::collapse::Regime;
use ragen::config::Config;
use ragen::guards::{Action, Guard};
use ragen::policy::model::Model;
use ragen::policy::*;
use ragen::train::{Stopped, Trainer};
use ragen_envs::Mode;
use ragen_models::device::Cpu;
use ragen_models::optim::AdamWSettings;
use ragen_models::random::Key;
use ragen_models::transformer::Precision;
use stage::*;
use std::sync::Arc;

/// Reasons with one word and opens the left door. After a prompt of level n it says the n-th word of its own with a planted
/// probability, else the word that it says everywhere.
#[derive(Clone)]
struct Reasoner {
    /// Probability of the word of its own, at the step that comes next.
    own: Vec<f64>,
    sequences: Vec<Vec<u32>>,
    /// Calls of `score`, and rows of them.
    scored: (usize, usize),
}

const WORDS: [&str; 4] = ["ĠUp", "ĠDown", "ĠLeft", "ĠRight"];
const EVERYWHERE: &str = "Ġgo";
/// ln of a probability that is none.
const NEVER: f64 = -60.0;

fn id(token: &str) -> u32 {
    TOKENIZER.id(token).unwrap_or_else(|| panic!("no token {token}"))
}

impl Reasoner {
    fn new(own: &[f64]) -> Self {
        Reasoner { own: own.to_vec(), sequences: Vec::new(), scored: (0, 0) }
    }

    /// The level of the last observation: "level passed".
    fn level(&self, ids: &[u32]) -> usize {
        let user = ids.iter().rposition(|&i| i == id("<user>")).unwrap();
        let text = TOKENIZER.decode(&ids[user + 1..user + 2]);
        text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is no level"))
    }

    fn logp(&self, x: &[u32], word: u32) -> f64 {
        let own = self.own[0];
        let ln = |p: f64| if p > 0.0 { p.ln() } else { NEVER };
        match word {
            word if word == id(WORDS[self.level(x)]) => ln(own),
            word if word == id(EVERYWHERE) => ln(1.0 - own),
            _ => NEVER,
        }
    }
}

impl Policy for Reasoner {
    fn max_positions(&self) -> usize {
        usize::MAX
    }

    fn has_value(&self) -> bool {
        false
    }

    fn open(&mut self) -> SequenceId {
        self.sequences.push(Vec::new());
        SequenceId(self.sequences.len() - 1)
    }

    fn close(&mut self, _: SequenceId) {}

    fn generate(&mut self, requests: &[Request<'_>], _: &Sampling, _: &Stop<'_>) -> Result<Vec<Response>, PolicyError> {
        let mut responses = Vec::new();
        for request in requests {
            let mut sequence = self.sequences[request.sequence.0].clone();
            sequence.extend_from_slice(request.prompt);
            let says_own = request.key.uniform(sequence.len() as u64) < self.own[0];
            let word = if says_own { id(WORDS[self.level(&sequence)]) } else { id(EVERYWHERE) };
            let mut ids = vec![word];
            ids.extend(TOKENIZER.encode("</think><answer> Left</answer>"));
            sequence.extend(&ids);
            self.sequences[request.sequence.0] = sequence;
            let mut logps = vec![0.0; ids.len()];
            logps[0] = self.logp(request.prompt, word) as f32;
            responses.push(Response { logps, ids, kept: Vec::new(), finish: Finish::Stop });
        }
        Ok(responses)
    }

    fn score(&mut self, _: Weights, rows: &[Row<'_>], _: f32) -> Result<TokenValues, PolicyError> {
        self.scored = (self.scored.0 + 1, self.scored.1 + rows.len());
        let logp = |row: &Row<'_>, t: u32| self.logp(&row.ids[..t as usize], row.ids[t as usize]) as f32;
        let logp: Vec<f32> = rows.iter().flat_map(|row| row.targets.iter().map(move |&t| logp(row, t))).collect();
        Ok(TokenValues { entropy: vec![0.5; logp.len()], logp, value: Vec::new() })
    }

    fn freeze_reference(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }

    fn accumulate(
        &mut self,
        rows: &[Row<'_>],
        _: f32,
        objective: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError> {
        let n = rows.iter().map(|row| row.targets.len()).sum();
        let values = TokenValues { logp: vec![0.0; n], entropy: vec![0.5; n], value: Vec::new() };
        objective(&values);
        Ok(values)
    }

    /// The next step has the next probability.
    fn update(&mut self, _: f64) -> Result<Update, PolicyError> {
        if self.own.len() > 1 {
            self.own.remove(0);
        }
        Ok(Update { grad_norm: 1.0, skipped: false })
    }
}

fn config() -> Config {
    let mut config = small_config();
    config.rollout.think = true;
    config.rollout.response_tokens = 8;
    config.rollout.max_turns = 2;
    config.algorithm.estimator = ragen::estimator::Estimator::Grpo;
    config.collapse.every = 1;
    config.collapse.multi_turn = true;
    config.collapse.num_samples = ragen::collapse::SampleCount::All;
    config.val.before_train = false;
    config.val.every = 0;
    config.run.steps = 1;
    config
}

fn doors(config: &Config) -> Trainer {
    let mut trainer = Trainer::new(config.clone(), context(config)).unwrap();
    trainer.train_envs = Doors::default().manage(4, 32, Mode::Train);
    trainer
}

fn run(config: &Config, policy: &mut Reasoner) -> Memory<Reasoner> {
    let mut journal = Memory::new();
    doors(config).run(policy, &mut journal).unwrap();
    journal
}

#[test]
fn distinct_reasoning_is_at_the_bound_and_a_template_at_zero() {
    for (own, information, retrieval) in [(1.0, 4f64.ln(), 1.0), (0.0, 0.0, 0.25)] {
        let metrics = &run(&config(), &mut Reasoner::new(&[own])).metrics[0];
        let of = |name: &str| metrics[&format!("collapse_first_turn_sample/{name}")];
        assert!((of("mi_seq_estimate") - information).abs() < 1e-6, "{own}: {}", of("mi_seq_estimate"));
        assert!((of("mi_estimate") - information).abs() < 1e-6, "one token a reasoning");
        assert_eq!((of("mi_upper_bound"), of("retrieval_chance_level")), (4f64.ln(), 0.25));
        assert_eq!(of("retrieval_accuracy"), retrieval);
        assert!(of("conditional_entropy_est").abs() < 1e-6);
        assert_eq!(metrics["collapse/first_turn_num_prompts"], 4.0);
        assert_eq!(metrics["collapse/valid_thinking_rate"], 1.0);
        assert_eq!(metrics["collapse/too_long"], 0.0);
        let regime = Regime::numbered(metrics["collapse/regime"]).unwrap();
        assert_eq!(regime, if own > 0.5 { Regime::Compressed } else { Regime::LowEntropyCollapse });
    }
}

/// Half of the reasonings name their level, half are the template. By hand: a reasoning of its own gives ln 4 and is retrieved; the
/// template gives 0 and goes to the first prompt. H(Z|X) is ln 2 for both.
#[test]
fn a_planted_mixture_has_the_values_computed_by_hand() {
    let mut journal = run(&config(), &mut Reasoner::new(&[0.5]));
    let line: serde_json::Value = serde_json::from_str(&journal.lines[0]).unwrap();
    let (mut own, mut template_first, n) = (0.0, 0.0, line[2].as_array().unwrap().len() as f64);
    // The first prompt is that of the first group.
    for trajectory in line[2].as_array().unwrap() {
        let says_template = trajectory["turns"][0]["response"].as_str().unwrap().starts_with("<think> go</think>");
        own += f64::from(u8::from(!says_template));
        template_first += f64::from(u8::from(says_template && trajectory["group"] == 0));
    }
    assert!(n == 128.0 && own > 40.0 && own < 90.0 && template_first > 5.0);
    let metrics = journal.metrics.remove(0);
    let of = |name: &str| metrics[&format!("collapse_first_turn_sample/{name}")];
    let close = |name: &str, want: f64| assert!((of(name) - want).abs() < 1e-6, "{name}: {}, not {want}", of(name));
    close("mi_seq_estimate", own / n * 4f64.ln());
    close("conditional_entropy_seq_est", 2f64.ln());
    close("reasoning_entropy_seq_est", 2f64.ln() + own / n * 4f64.ln());
    close("retrieval_accuracy", (own + template_first) / n);
    // Marginals are −ln 8 for one kind and −ln 2 for the other: a spread of ln 4 between two points.
    let spread = (own / n * (1.0 - own / n)).sqrt() * 4f64.ln();
    close("marginal_std_seq", spread);
    close("mi_zscore_seq", own / n * 4f64.ln() / (spread + 1e-3));
}

/// A contrast of 1 cannot tell more than ln 2, where the exact form, which is the default, tells ln 4.
#[test]
fn contrast_bounds_what_can_be_told_and_the_exact_form_is_the_default() {
    let exact = config();
    assert_eq!(exact.collapse.contrast, 0);
    let of = |config: &Config, own: f64| {
        let mut policy = Reasoner::new(&[own]);
        let metrics = run(config, &mut policy).metrics.remove(0);
        (metrics, policy.scored.1)
    };
    let mut one = exact.clone();
    one.collapse.contrast = 1;
    one.collapse.multi_turn = false;
    let (metrics, _) = of(&one, 1.0);
    let get = |name: &str| metrics[&format!("collapse_first_turn_sample/{name}")];
    assert!((get("mi_seq_estimate") - 2f64.ln()).abs() < 1e-6 && get("mi_upper_bound") == 2f64.ln());
    assert_eq!((get("retrieval_accuracy"), get("retrieval_chance_level")), (1.0, 0.5));
    // A template is at chance, not found by the place of its prompt.
    let (metrics, _) = of(&one, 0.0);
    let accuracy = metrics["collapse_first_turn_sample/retrieval_accuracy"];
    assert!((0.3..0.7).contains(&accuracy), "{accuracy}");
    // Below the exact value in the mixture as well; with three others it is exact.
    let (mixed, _) = of(&one, 0.5);
    let mut all = exact.clone();
    all.collapse.multi_turn = false;
    let (whole, _) = of(&all, 0.5);
    let information = |m: &std::collections::BTreeMap<String, f64>| m["collapse_first_turn_sample/mi_seq_estimate"];
    assert!(information(&mixed) < information(&whole) - 0.2);
    one.collapse.contrast = 3;
    assert_eq!(of(&one, 0.5).0, whole);
}

/// Equal prompts and equal pairs are scored once, whatever was drawn.
#[test]
fn turns_of_trajectories_are_measured_and_nothing_is_scored_twice() {
    let mut config = config();
    config.collapse.first_turn = false;
    let mut policy = Reasoner::new(&[1.0]);
    let metrics = run(&config, &mut policy).metrics.remove(0);
    let of = |name: &str| metrics[&format!("collapse_trajectory_sample/{name}")];
    let prompts = metrics["collapse/trajectory_num_prompts"];
    // Four levels; a second turn follows where the first door opens to the left.
    assert!(prompts > 4.0 && prompts <= 6.0, "{prompts}");
    assert!(of("mi_seq_estimate") > 1.0 && of("mi_seq_estimate") < of("mi_upper_bound") - 1.0, "prompts repeat");
    assert!(!metrics.keys().any(|key| key.starts_with("collapse_first_turn_sample/")));
    assert!(metrics.contains_key("collapse/regime"));
    let n_pairs = metrics["collapse/valid_thinking_rate"] * 192.0;
    assert!((policy.scored.1 as f64) <= n_pairs * prompts, "{} rows", policy.scored.1);
}

#[test]
fn a_run_that_turns_into_a_template_is_named_at_the_step_and_told_once() {
    let mut config = config();
    config.run.steps = 12;
    config.checkpoint.every = 6;
    let own: Vec<f64> = (0..12).map(|i| if i < 4 { 0.95 } else { 0.1 }).collect();
    let mut policy = Reasoner::new(&own);
    let journal = run(&config, &mut policy);
    let regimes: Vec<f64> = journal.metrics.iter().map(|metrics| metrics["collapse/regime"]).collect();
    let template = Regime::TemplateCollapse.number();
    assert_eq!(regimes.iter().position(|regime| *regime == template), Some(4), "{regimes:?}");
    assert!(regimes[..4].iter().all(|regime| *regime == 0.0) && regimes[4..].iter().all(|regime| *regime == template));
    let [(5, text)] = &journal.notices[..] else { panic!("{:?}", journal.notices) };
    assert!(text.starts_with("step 5: template collapse"), "{text}");

    // Resumed after it was said, it is not said again, and the averages go on.
    let (mut policy, state) = journal.checkpoints[&6].clone();
    let mut trainer = doors(&config);
    trainer.resume(serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap());
    let mut rest = Memory::new();
    trainer.run(&mut policy, &mut rest).unwrap();
    assert_eq!(rest.lines, journal.lines[6..]);
    assert!(rest.notices.is_empty());
}

/// The detector says it, the guard acts: before the update of the step that is named.
#[test]
fn a_guard_stops_or_takes_back_a_run_that_turns_into_a_template() {
    let mut config = config();
    config.run.steps = 12;
    config.checkpoint.every = 2;
    config.checkpoint.keep = 0;
    let own: Vec<f64> = (0..12).map(|i| if i < 4 { 0.95 } else { 0.1 }).collect();
    let mut run = |action: Action| {
        config.guards.collapse = action;
        let mut journal = Memory::new();
        let summary = doors(&config).run(&mut Reasoner::new(&own), &mut journal).unwrap();
        (summary, journal)
    };
    let (warned, _) = run(Action::Warn);
    assert_eq!((warned.step, warned.stopped), (12, None));

    let (summary, journal) = run(Action::Stop);
    assert_eq!((summary.step, summary.stopped), (5, Some(Stopped::Guard(Guard::Collapse))));
    let last = journal.metrics.last().unwrap();
    assert!(last["early_stopped/reasoning_collapse"] == 1.0 && last["guards/collapse_streak"] == 1.0);
    assert!(!last.contains_key("update/lr") && journal.metrics[3].contains_key("update/lr"), "not trained on");
    assert!(journal.checkpoints.contains_key(&5));
    let texts: Vec<&str> = journal.notices.iter().map(|(_, text)| text.as_str()).collect();
    let [told, stopped] = texts[..] else { panic!("{texts:?}") };
    assert!(told.starts_with("step 5: template collapse, the reasoning") && stopped.ends_with("(guards.collapse)"));

    // Gone back to step 4, whose probability is of the policy that was saved then, and so into the same a step later.
    let (summary, journal) = run(Action::Rollback);
    assert_eq!(summary.stopped, Some(Stopped::Guard(Guard::Collapse)));
    let back: Vec<u64> = journal
        .notices
        .iter()
        .filter(|(_, text)| text.contains("back to the checkpoint of step 4"))
        .map(|n| n.0)
        .collect();
    assert_eq!(back.first(), Some(&5), "{:?}", journal.notices);
    assert_eq!(summary.step, 5 + config.guards.max_rollbacks, "{:?}", journal.notices);
}

#[test]
fn without_thinking_it_says_so_once() {
    let mut config = config();
    config.rollout.think = false;
    config.run.steps = 3;
    config.rollout.response_tokens = 2;
    let mut policy = tabular::Tabular::new(only(&["ĠLeft", "ĠRight", "</answer>"]));
    let mut journal = Memory::new();
    doors(&config).run(&mut policy, &mut journal).unwrap();
    assert_eq!(journal.notices.len(), 1, "{:?}", journal.notices);
    assert!(journal.notices[0].1.contains("rollout.think is off"));
    assert_eq!(journal.metrics[2]["collapse/valid_thinking_rate"], 0.0);
    assert!(!journal.metrics[0].contains_key("collapse/regime"));
}

/// The small model computes each prompt once, however many reasonings follow it, and what prompts share once as well; the bits are
/// those of every row alone.
#[test]
fn a_prompt_is_computed_once_and_changes_no_bit() {
    let shape = tiny_model::shape(TOKENIZER.vocab(), 256, false);
    let (weights, cpu) = (tiny_model::weights(&shape, 60.0), Arc::new(Cpu::new(2).unwrap()));
    let mut policy = Model::new(cpu, shape, weights, Precision::F32, AdamWSettings::default());
    let key = Key::new(4);
    let random = |n: usize, from: u64| (0..n as u64).map(|i| 1 + key.below(from + i, 300) as u32).collect::<Vec<u32>>();
    let common = random(40, 0);
    let prompts: Vec<Vec<u32>> = (0..5).map(|i| [common.clone(), random(20, 1000 * (i + 1))].concat()).collect();
    let reasonings: Vec<Vec<u32>> = (0..6).map(|i| random(3 + i, 10_000 * (i as u64 + 1))).collect();
    let mut rows = Vec::new();
    for x in &prompts {
        for z in &reasonings {
            rows.push(([x.as_slice(), z].concat(), (60..60 + z.len() as u32).collect::<Vec<u32>>()));
        }
    }
    let rows: Vec<Row<'_>> = rows.iter().map(|(ids, targets)| Row { ids, targets, kept: &[] }).collect();
    let n_reasoning: usize = reasonings.iter().map(Vec::len).sum();
    assert_eq!(policy.tokens_to_score(&rows).unwrap(), 40 + 5 * 20 + 5 * n_reasoning);
    let bits = |values: TokenValues| values.logp.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let together = bits(policy.score(Weights::Policy, &rows, 1.0).unwrap());
    let alone: Vec<u32> =
        rows.iter().flat_map(|row| bits(policy.score(Weights::Policy, &[*row], 1.0).unwrap())).collect();
    assert_eq!(together, alone);
    policy.share_prefix = false;
    assert_eq!(bits(policy.score(Weights::Policy, &rows, 1.0).unwrap()), together);
    assert_eq!(policy.tokens_to_score(&rows).unwrap(), 30 * 60 + 5 * n_reasoning);
}

/// A policy of doors that learns, and a trainer of it.
fn learner(config: &Config) -> (tabular::Tabular, Trainer) {
    let mut trainer = doors(config);
    trainer.val_envs = Doors::default().manage(4, 16, Mode::Val);
    (tabular::Tabular::new(only(&["ĠUp", "ĠDown", "ĠLeft", "ĠRight", "</answer>"])), trainer)
}

fn learning() -> Config {
    let mut config = config();
    config.rollout.think = false;
    config.rollout.response_tokens = 2;
    config.collapse.every = 0;
    config.optim.lr = 20.0;
    config.run.steps = 12;
    config.checkpoint.every = 2;
    config.checkpoint.keep = 0;
    config.val.every = 5;
    config
}

/// The entropy of two doors falls below 0.3 nats by itself: a floor there stops the run, which is validated and saved all the same.
#[test]
fn a_guard_stops_the_run_at_its_step_and_the_run_is_saved_and_validated() {
    let mut config = learning();
    config.guards.entropy = Action::Stop;
    config.guards.entropy_floor = 0.3;
    config.run.steps = 60;
    config.checkpoint.every = 50;
    config.val.every = 50;
    let (mut policy, mut trainer) = learner(&config);
    let mut journal = Memory::new();
    let summary = trainer.run(&mut policy, &mut journal).unwrap();
    assert_eq!(summary.stopped, Some(Stopped::Guard(Guard::Entropy)));
    let low = |metrics: &&std::collections::BTreeMap<String, f64>| metrics["policy/entropy_loss"] < 0.3;
    let first = journal.metrics.iter().position(|metrics| low(&metrics)).unwrap();
    assert_eq!(journal.metrics.len(), first + 3, "three steps in a row");
    assert_eq!(summary.step as usize, first + 3);
    assert_eq!(journal.metrics[first + 2]["early_stopped/entropy_floor"], 1.0);
    assert_eq!(journal.metrics[first + 2]["guards/entropy_streak"], 3.0);
    assert!(journal.checkpoints.contains_key(&summary.step) && journal.checkpoints.len() == 1);
    assert_eq!(journal.validations.last().unwrap().0, summary.step);
    assert!(summary.after.is_some() && journal.notices.len() == 1);

    config.guards.entropy = Action::Warn;
    config.run.steps = first as u64 + 8;
    let (mut policy, mut trainer) = learner(&config);
    let mut warned = Memory::new();
    assert_eq!(trainer.run(&mut policy, &mut warned).unwrap().stopped, None);
    assert_eq!(warned.notices, journal.notices, "once, at the same step, in the same words");
    assert_eq!(warned.lines[..first + 2], journal.lines[..first + 2]);
}

/// Rolled back, a run has the weights of the checkpoint before the streak, goes on with other random numbers, and stops when it may
/// not go back again; all of it twice the same, and resumed from any checkpoint as well.
#[test]
fn a_guard_takes_the_run_back_and_resume_goes_the_same_way() {
    let mut config = learning();
    config.guards.entropy = Action::Rollback;
    config.guards.entropy_floor = 1.2;
    config.run.steps = 30;
    let run = || {
        let (mut policy, mut trainer) = learner(&config);
        let mut journal = Memory::new();
        let summary = trainer.run(&mut policy, &mut journal).unwrap();
        (summary, journal, policy)
    };
    let (summary, journal, _) = run();
    assert_eq!(summary.stopped, Some(Stopped::Guard(Guard::Entropy)), "{:?}", journal.notices);
    let back: Vec<&(u64, String)> = journal.notices.iter().filter(|(_, text)| text.contains("back to the")).collect();
    let [(first, text), (second, _)] = back[..] else { panic!("{:?}", journal.notices) };
    let since = first - 2;
    let target = (since - 1) / 2 * 2;
    assert!(text.contains(&format!("checkpoint of step {target},")), "{text}");
    // The checkpoint that is made where it went back is the one it went back to, but for the count.
    let ((then, before), (now, after)) = (&journal.checkpoints[&target], &journal.checkpoints[first]);
    assert_eq!(format!("{then:?}"), format!("{now:?}"));
    assert_eq!((after.step, after.guards.rollbacks, after.envs), (*first, 1, before.envs));
    // The same levels, played otherwise.
    let step = |n: u64| serde_json::from_str::<serde_json::Value>(&journal.lines[n as usize - 1]).unwrap();
    let (once, again) = (step(target + 1), step(first + 1));
    let seeds =
        |line: &serde_json::Value| line[2].as_array().unwrap().iter().map(|t| t["seed"].clone()).collect::<Vec<_>>();
    let said =
        |line: &serde_json::Value| line[2].as_array().unwrap().iter().map(|t| t["ids"].clone()).collect::<Vec<_>>();
    assert!(seeds(&once) == seeds(&again) && said(&once) != said(&again));
    assert_eq!(journal.metrics[*first as usize]["guards/rollbacks"], 1.0);
    assert!(journal.notices.last().unwrap().1.contains("max_rollbacks") && second > first);
    assert!(journal.checkpoints.contains_key(&summary.step));
    // A validation that was due on the way was made.
    assert!(journal.validations.iter().any(|(step, _)| *step == 5));

    let (_, other, _) = run();
    assert_eq!((&other.lines, &other.notices), (&journal.lines, &journal.notices));
    for from in journal.checkpoints.keys().filter(|step| **step < summary.step) {
        let (mut policy, state) = journal.checkpoints[from].clone();
        let (_, mut trainer) = learner(&config);
        trainer.resume(serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap());
        let mut rest = Memory::new();
        rest.checkpoints = journal.checkpoints.range(..=from).map(|(step, saved)| (*step, saved.clone())).collect();
        trainer.run(&mut policy, &mut rest).unwrap();
        assert_eq!(rest.lines, journal.lines[*from as usize..], "resumed from {from}");
    }
}

/// What the divergence costs, in the loss and in the reward, goes back with the weights that it was measured on.
#[test]
fn going_back_takes_the_adapted_coefficients_along() {
    let mut config = learning();
    config.guards.entropy = Action::Rollback;
    config.guards.entropy_floor = 1.2;
    config.guards.max_rollbacks = 1;
    config.run.steps = 30;
    let kl = &mut config.reward.kl;
    (kl.coef, kl.target, kl.horizon) = (0.05, 0.02, 300.0);
    let kl = &mut config.update.loss.kl;
    (kl.coef, kl.target, kl.horizon) = (0.05, 0.02, 300.0);
    let (mut policy, mut trainer) = learner(&config);
    let mut journal = Memory::new();
    trainer.run(&mut policy, &mut journal).unwrap();
    let (step, text) = journal.notices.iter().find(|(_, text)| text.contains("back to the checkpoint")).unwrap();
    let target = (1..*step).rev().find(|n| text.contains(&format!("checkpoint of step {n},"))).unwrap();
    assert!(target < step - 2, "steps lie between: {text}");
    let of = |key: &str, step: u64| journal.metrics[step as usize - 1][key];
    for key in ["policy/kl_coef", "batch/reward_kl_coef"] {
        let (then, before, after) = (of(key, target + 1), of(key, *step), of(key, step + 1));
        assert!(then != before && before != 0.05, "{key} was adapted in between: {then} {before}");
        assert_eq!(then, after, "{key}");
    }
    assert_eq!(journal.checkpoints[step].1.kl, journal.checkpoints[&target].1.kl);
    assert!(journal.checkpoints[&target].1.kl.loss.is_some() && target > 0);
}

#[test]
fn without_a_checkpoint_to_go_back_to_the_run_stops() {
    let mut config = learning();
    config.guards.entropy = Action::Rollback;
    config.guards.entropy_floor = 5.0;
    let (mut policy, mut trainer) = learner(&config);
    let mut journal = Memory::new();
    let summary = trainer.run(&mut policy, &mut journal).unwrap();
    assert_eq!((summary.step, summary.stopped), (3, Some(Stopped::Guard(Guard::Entropy))));
    assert!(journal.notices[1].1.contains("no checkpoint from before step 1"), "{:?}", journal.notices);
}

/// Says the same token over and over; its rewards never differ either.
#[test]
fn a_policy_that_repeats_itself_is_stopped_before_it_is_trained() {
    let mut config = learning();
    config.guards.degenerate = Action::Stop;
    config.rollout.response_tokens = 12;
    let (_, mut trainer) = learner(&config);
    let mut policy = tabular::Tabular::new(only(&["ĠUp"]));
    let mut journal = Memory::new();
    let summary = trainer.run(&mut policy, &mut journal).unwrap();
    assert_eq!((summary.step, summary.stopped), (3, Some(Stopped::Guard(Guard::Degenerate))));
    assert_eq!(journal.metrics[0]["guards/degenerate_share"], 1.0);
    assert!(journal.metrics[1].contains_key("update/lr") && !journal.metrics[2].contains_key("update/lr"));
    assert_eq!(journal.metrics[2]["early_stopped/degenerate_output"], 1.0);
    assert!(journal.checkpoints.contains_key(&3) && journal.validations.last().unwrap().0 == 3);
}

/// No level is ever solved: the fifth validation on the way stops the run, which is saved.
#[test]
fn validations_without_success_stop_the_run() {
    let mut config = learning();
    config.optim.lr = 0.0;
    config.val.every = 2;
    config.val.before_train = true;
    config.run.steps = 40;
    config.checkpoint.every = 100;
    let (_, mut trainer) = learner(&config);
    let mut policy = tabular::Tabular::new(only(&["ĠUp", "</answer>"]));
    let mut journal = Memory::new();
    let summary = trainer.run(&mut policy, &mut journal).unwrap();
    assert_eq!((summary.step, summary.stopped), (10, Some(Stopped::Guard(Guard::Success))));
    assert_eq!(journal.validations.len(), 6);
    assert!(summary.after.is_some() && journal.checkpoints.contains_key(&10));
    let after = summary.after.unwrap();
    assert_eq!(after.metrics["early_stopped/low_validation_success"], 1.0);
}

//! What the tests of the loop play with: a policy that says its lines, a toy of two turns, a journal in memory.
#![allow(dead_code, reason = "each test binary uses its part")]

use ragen::config::{Config, PromptStyle};
use ragen::context_manager::ContextManager;
use ragen::env_manager::{EnvManager, Episode, TagRules};
use ragen::eval::Evaluation;
use ragen::policy::*;
use ragen::train::{Journal, StepReport, TrainError, TrainState};
use ragen_envs::{Env, EnvError, Legend, Mode, Recap, Step};
use ragen_models::tokenizer::Tokenizer;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

pub static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::tiny()));

/// A context manager of the tiny tokenizer for this configuration.
pub fn context(config: &Config) -> ContextManager {
    ContextManager::new(config, TOKENIZER.clone(), None, usize::MAX).unwrap()
}

/// Compact prompts without thinking that end with the opening tag: two tokens make a response.
pub fn small_config() -> Config {
    let mut config = Config::default();
    config.env.train.tags = vec!["Bandit".into()];
    config.env.val.tags = vec!["Bandit".into()];
    (config.env.train.groups, config.env.train.group_size) = (16, 16);
    (config.env.val.groups, config.env.val.group_size) = (16, 1);
    config.rollout.prompt = PromptStyle::Compact;
    config.rollout.think = false;
    config.rollout.max_actions_per_turn = 1;
    config.rollout.response_tokens = 2;
    config.update.loss.entropy_coef = 0.0;
    config.update.mini_batches = 1;
    config.val.temperature = 1.0;
    config.val.exclude_from_training = false;
    config.collapse.every = 0;
    config
}

/// Logits 0 for these tokens and -inf for all others.
pub fn only(tokens: &[&str]) -> Vec<f64> {
    let mut prior = vec![f64::NEG_INFINITY; TOKENIZER.vocab()];
    for token in tokens {
        prior[TOKENIZER.id(token).unwrap_or_else(|| panic!("no token {token}")) as usize] = 0.0;
    }
    prior
}

/// Says the n-th line in the n-th turn of every sequence, as the tokenizer's ids, tags recognised.
///
/// Stops where a sampler would: at a stop token and at the limits. Every log-probability is −1.
#[derive(Clone)]
pub struct Scripted {
    pub lines: Vec<String>,
    /// Encodes the lines.
    pub tokenizer: Arc<Tokenizer>,
    /// Lines go by call of `generate` instead of by sequence.
    pub by_call: bool,
    pub calls: usize,
    pub max_positions: usize,
    pub kept: Vec<KeptSet>,
    /// Tokens and turns so far.
    pub sequences: Slots<(usize, usize)>,
}

impl Scripted {
    pub fn new(lines: &[&str]) -> Self {
        let lines = lines.iter().map(|line| line.to_string()).collect();
        let tokenizer = TOKENIZER.clone();
        Scripted {
            lines,
            tokenizer,
            by_call: false,
            calls: 0,
            max_positions: usize::MAX,
            kept: vec![],
            sequences: Slots::default(),
        }
    }

    /// Sequences that are open.
    pub fn n_open(&self) -> usize {
        self.sequences.n_open()
    }
}

impl Policy for Scripted {
    fn max_positions(&self) -> usize {
        self.max_positions
    }

    fn has_value(&self) -> bool {
        false
    }

    fn open(&mut self) -> SequenceId {
        self.sequences.open((0, 0))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.close(sequence).expect("closed once");
    }

    fn generate(
        &mut self,
        requests: &[Request<'_>],
        _: &Sampling,
        stop: &Stop<'_>,
    ) -> Result<Vec<Response>, PolicyError> {
        let mut responses = Vec::new();
        for request in requests {
            let (tokens, turn) = self.sequences.get_mut(request.sequence)?;
            *tokens += request.prompt.len();
            let mut response = Response { ids: vec![], logps: vec![], kept: vec![], finish: Finish::Length };
            let line = if self.by_call { self.calls } else { *turn };
            for id in self.tokenizer.encode(&self.lines[line]).into_iter().take(request.max_new_tokens) {
                if *tokens == self.max_positions {
                    response.finish = Finish::Context;
                    break;
                }
                *tokens += 1;
                response.ids.push(id);
                response.logps.push(-1.0);
                if stop.ends(&response.ids) {
                    response.finish = Finish::Stop;
                    break;
                }
            }
            if !self.kept.is_empty() {
                response.kept = self.kept.iter().cycle().take(response.ids.len()).cloned().collect();
            }
            *turn += 1;
            responses.push(response);
        }
        self.calls += 1;
        Ok(responses)
    }

    fn score(&mut self, _: Weights, rows: &[Row<'_>], _: f32) -> Result<TokenValues, PolicyError> {
        let n = rows.iter().map(|row| row.targets.len()).sum();
        Ok(TokenValues { logp: vec![-1.0; n], entropy: vec![0.5; n], value: vec![] })
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
        let values = self.score(Weights::Policy, rows, temperature)?;
        objective(&values);
        Ok(values)
    }

    fn update(&mut self, _: f64) -> Result<Update, PolicyError> {
        Ok(Update { grad_norm: 0.0, skipped: false })
    }
}

/// Two doors one behind the other. The seed decides which way each opens; each that is passed pays a half, a wrong
/// way ends the episode.
///
/// `says` is put into every observation, or those of level `says_at` only; `breaks_at` makes a member's n-th step an
/// error; `waits` lets the levels be played side by side.
#[derive(Clone, Default)]
pub struct Doors {
    pub says: String,
    pub says_at: Option<u64>,
    pub breaks_at: Option<(u64, usize)>,
    pub seed: u64,
    pub member: u64,
    pub steps: usize,
    pub passed: usize,
    pub waits: bool,
}

impl Doors {
    /// An environment manager of doors only.
    pub fn manage(&self, n_groups: usize, group_size: usize, mode: Mode) -> EnvManager {
        let rules = Arc::new(TagRules {
            name: "Doors".into(),
            instruction: self.instruction(),
            legend: Legend::default(),
            max_actions: 4,
            single_action: false,
            max_tokens: 0,
            many_starts: false,
            waits: self.waits,
            recap: Recap::Whole,
        });
        let episode = |i| Episode::new(rules.clone(), i / group_size, i % group_size, Box::new(self.clone()));
        EnvManager::from_episodes((0..n_groups * group_size).map(episode).collect(), group_size, 10, mode)
    }

    fn way(&self) -> &'static str {
        let signs = ["Left", "Right"];
        signs[(self.seed >> self.passed & 1) as usize]
    }
}

impl Env for Doors {
    fn reset(&mut self, seed: u64, member: u64, _: Mode) -> Result<(), EnvError> {
        (self.seed, self.member, self.steps, self.passed) = (seed % 4, member, 0, 0);
        Ok(())
    }

    fn observation(&self) -> String {
        let says = if self.says_at.is_none_or(|seed| seed == self.seed) { self.says.as_str() } else { "" };
        format!("{says}{} {}", self.seed, self.passed)
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        self.steps += 1;
        if self.breaks_at == Some((self.member, self.steps)) {
            return Err(EnvError::NotReset { env_type: "doors" });
        }
        let opens = action == self.way();
        self.passed += usize::from(opens);
        let success = self.passed == 2;
        Ok(Step {
            reward: if opens { 0.5 } else { 0.0 },
            terminated: success || !opens,
            success,
            valid: true,
            effective: opens,
            ..Step::default()
        })
    }

    fn actions(&self) -> Option<Vec<String>> {
        Some(["Left", "Right"].map(String::from).to_vec())
    }

    fn instruction(&self) -> String {
        "Pass both doors.".into()
    }

    fn state(&self) -> Value {
        Value::Null
    }

    fn load_state(&mut self, _: &Value) -> Result<(), EnvError> {
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        self.seed * 3 + self.passed as u64
    }
}

/// Keeps what a run tells.
pub struct Memory<P> {
    pub lines: Vec<String>,
    pub metrics: Vec<BTreeMap<String, f64>>,
    pub notices: Vec<(u64, String)>,
    pub validations: Vec<(u64, f64)>,
    pub checkpoints: BTreeMap<u64, (P, TrainState)>,
    pub stop_after: Option<u64>,
}

impl<P> Memory<P> {
    pub fn new() -> Self {
        Memory {
            lines: Vec::new(),
            metrics: Vec::new(),
            notices: Vec::new(),
            validations: Vec::new(),
            checkpoints: BTreeMap::new(),
            stop_after: None,
        }
    }
}

impl<P: Clone> Journal<P> for Memory<P> {
    fn step(&mut self, report: &StepReport, context: &ContextManager) -> Result<(), TrainError> {
        let trajectories: Vec<Value> = report.trajectories(context).collect();
        self.lines.push(serde_json::to_string(&(report.step, &report.metrics, trajectories)).unwrap());
        self.metrics.push(report.metrics.clone());
        Ok(())
    }

    fn notice(&mut self, step: u64, text: &str) -> Result<(), TrainError> {
        self.notices.push((step, text.into()));
        Ok(())
    }

    fn validation(&mut self, step: u64, evaluation: &Evaluation) -> Result<(), TrainError> {
        self.validations.push((step, evaluation.success()));
        Ok(())
    }

    fn checkpoint(&mut self, step: u64, policy: &P, state: &TrainState) -> Result<(), TrainError> {
        self.checkpoints.insert(step, (policy.clone(), state.clone()));
        Ok(())
    }

    fn go_back(&mut self, policy: &mut P, before: u64) -> Result<Option<TrainState>, TrainError> {
        let Some((saved, state)) = self.checkpoints.range(..before).next_back().map(|(_, saved)| saved) else {
            return Ok(None);
        };
        *policy = saved.clone();
        Ok(Some(state.clone()))
    }

    fn is_interrupted(&self) -> bool {
        self.stop_after.is_some_and(|n| self.metrics.len() as u64 >= n)
    }
}

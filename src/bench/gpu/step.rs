//! A whole step as RAGEN has it: groups of episodes over several turns, sampled by the policy that training uses, then trained on.
//!
//! The environment is synthetic: what it says are random tokens, no response is read, and every response has its full length. All else
//! is what `ragen train` does: the policy, its cache, shared prompts, micro-batches, one optimiser step.

use super::cost::{self, Cost};
use super::{Bench, EngineError, percent, short};
use crate::bench::engine::tokens;
use crate::config;
use crate::objective::{Objective, Targets};
use crate::policy::model::Model;
use crate::policy::{Policy, PolicyError, Request, Row, Sampling, SequenceId, Stop};
use crate::update;
use ragen_models::engine::Engine;
use ragen_models::random::Key;
use ragen_models::transformer::Config;
use serde_json::{Value, json};
use std::time::Instant;

/// The episodes of a step; lengths are in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episodes {
    /// Groups.
    pub groups: usize,
    /// Members of a group, which share its first prompt.
    pub members: usize,
    /// Turns of an episode.
    pub turns: usize,
    /// The first prompt.
    pub prompt: usize,
    /// A response.
    pub response: usize,
    /// What the environment says to it.
    pub observation: usize,
}

impl Episodes {
    /// Tokens of an episode.
    pub fn row_tokens(&self) -> usize {
        self.prompt + self.turns * self.response + (self.turns - 1) * self.observation
    }

    /// The same with as few turns, then as short ones, as `positions` tokens hold.
    pub fn within(mut self, positions: usize) -> Episodes {
        while self.turns > 1 && self.row_tokens() > positions {
            self.turns -= 1;
        }
        while self.row_tokens() > positions && self.prompt + self.response > 2 {
            (self.prompt, self.response) = (self.prompt.div_ceil(2), self.response.div_ceil(2));
        }
        self
    }

    fn episodes(&self) -> usize {
        self.groups * self.members
    }

    /// Of the update: a group's prompt is computed once.
    pub fn cost(&self, config: &Config) -> Cost {
        let (n, own) = (self.episodes(), self.row_tokens() - self.prompt);
        let pairs = self.groups * cost::pairs(0, self.prompt) + n * cost::pairs(self.prompt, own);
        cost::train(config, self.groups * self.prompt + n * own, n * self.turns * self.response, pairs)
    }
}

/// Episodes that were played: their tokens, which of them were sampled, and with what log-probabilities.
#[derive(Default)]
struct Played {
    rows: Vec<Vec<u32>>,
    targets: Vec<Vec<u32>>,
    logps: Vec<Vec<f32>>,
}

/// Plays all episodes side by side.
fn play(policy: &mut dyn Policy, of: &Episodes, vocab: usize) -> Result<Played, PolicyError> {
    let n = of.episodes();
    let prompts = tokens(8, of.groups, of.prompt, vocab);
    let mut played = Played { rows: vec![Vec::new(); n], targets: vec![Vec::new(); n], logps: vec![Vec::new(); n] };
    let sequences: Vec<SequenceId> = (0..n).map(|_| policy.open()).collect();
    for turn in 0..of.turns {
        let said = tokens(9 + turn as u64, n, of.observation, vocab);
        let said = |i: usize| if turn == 0 { &prompts[i / of.members] } else { &said[i] };
        let requests: Vec<Request<'_>> = (0..n)
            .map(|i| Request {
                sequence: sequences[i],
                prompt: said(i),
                key: Key::new(7).with(i as u64).with(turn as u64),
                max_new_tokens: of.response,
            })
            .collect();
        let responses = policy.generate(&requests, &Sampling::default(), &Stop::default())?;
        for (i, response) in responses.into_iter().enumerate() {
            played.rows[i].extend(said(i));
            let start = played.rows[i].len() as u32;
            played.targets[i].extend(start..start + response.ids.len() as u32);
            played.rows[i].extend(response.ids);
            played.logps[i].extend(response.logps);
        }
    }
    sequences.into_iter().for_each(|sequence| policy.close(sequence));
    Ok(played)
}

/// One optimiser step on what was played, with advantages of both signs; returns the largest distance of a ratio from 1.
fn train(policy: &mut dyn Policy, played: &Played, packed_tokens: usize) -> Result<f64, PolicyError> {
    let rows: Vec<Row<'_>> =
        played.rows.iter().zip(&played.targets).map(|(ids, targets)| Row { ids, targets, kept: &[] }).collect();
    let lengths: Vec<usize> = rows.iter().map(|row| row.targets.len()).collect();
    let sign = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
    let advantage: Vec<f64> = lengths.iter().enumerate().flat_map(|(i, &n)| vec![sign(i); n]).collect();
    let old_logp = played.logps.concat();
    let targets = Targets { lengths: &lengths, old_logp: &old_logp, advantage: &advantage, ..Targets::default() };
    let config = config::Update { packed_tokens, micro_batch_tokens: 0, ..config::Update::default() };
    let objective = Objective::new(&config.loss, targets, lengths.iter().copied().max().unwrap_or(1))
        .map_err(|error| PolicyError::Invalid(error.to_string()))?;
    let loss = update::accumulate(policy, &rows, &objective, &config, Sampling::default().temperature)?;
    policy.update(1e-6)?;
    Ok(loss.max_ratio_error)
}

impl Bench<'_> {
    /// A whole step, the second of two.
    pub(super) fn step(&mut self, engine: Box<dyn Engine>, dtype: &str) -> Result<Value, EngineError> {
        let (of, packed) = (self.sizes.step, self.sizes.train.0 * self.sizes.train.1);
        let mut policy = Model::over(engine);
        let (mut seconds, mut worst) = (None, 0.0);
        for _ in 0..if self.timed { 2 } else { 1 } {
            let start = Instant::now();
            let played = play(&mut policy, &of, self.config.vocab).map_err(engine_error)?;
            let rollout = start.elapsed().as_secs_f64();
            worst = train(&mut policy, &played, packed).map_err(engine_error)?;
            self.gpu.synchronize()?;
            seconds = self.timed.then(|| (start.elapsed().as_secs_f64(), rollout));
        }
        let sampled = of.episodes() * of.turns * of.response;
        let total = seconds.map(|(total, _)| total);
        let rollout = seconds.map(|(_, rollout)| rollout);
        let rate = rollout.map(|s| sampled as f64 / s);
        let flops = of.cost(self.config).flops;
        let mfu = seconds.zip(self.ceilings.bf16).map(|((total, rollout), most)| flops / (total - rollout) / most);
        self.say(format!(
            "{dtype} a step of {} × {} episodes of {} turns (synthetic environment, {} tokens an episode): {} s, {} of them rollout \
             ({} tokens/s), update at MFU {}; ratios off by {worst:.1e}",
            of.groups,
            of.members,
            of.turns,
            of.row_tokens(),
            short(total),
            short(rollout),
            short(rate),
            percent(mfu)
        ));
        Ok(json!({
            "groups": of.groups, "members": of.members, "turns": of.turns, "prompt": of.prompt, "response": of.response,
            "observation": of.observation, "synthetic": true, "sampled_tokens": sampled, "seconds": total,
            "rollout_seconds": rollout, "sampled_tokens_per_s": rate, "first_ratio_max_error": worst,
        }))
    }
}

/// What the engine said; all else that a policy refuses cannot be, since the step is made for the model.
fn engine_error(error: PolicyError) -> EngineError {
    match error {
        PolicyError::Engine(error) => error,
        other => panic!("a step made for the model: {other}"),
    }
}

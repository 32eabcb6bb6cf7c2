//! The warm start: supervised training on a scripted player's noisy demonstrations.
//!
//! A demonstration is a trajectory like any other, laid out by the same context manager token for token; only its
//! responses are written by the player, whose reasoning depends on the state. The policy is trained by the same trait:
//! the loss is the mean negative log-probability of the response tokens of a batch. All of it is a function of the seed.

use crate::config::{Config, EnvSet, Warmstart};
use crate::context_manager::{ContextError, ContextManager, Conversation};
use crate::env_manager::{EnvManager, EnvManagerError, Episode, another_level, excluded_states};
use crate::policy::{Finish, Policy, PolicyError, Row, TokenSeeds, TokenValues};
use crate::protocol::parse;
use crate::trajectory::{Trajectory, Turn};
use crate::update::split_by_size;
use ragen_envs::{Demonstration, EnvError, Mode, Stream};
use ragen_models::random::Key;
use serde::Serialize;
use std::collections::BTreeSet;

/// Why there is no warm start.
#[derive(Debug, thiserror::Error)]
pub enum WarmstartError {
    /// The environments do not fit together.
    #[error(transparent)]
    Envs(#[from] EnvManagerError),
    /// Prompts cannot be laid out.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The policy refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An environment broke.
    #[error("envs.{tag} broke while it was demonstrated: {source}")]
    Env {
        /// The tag.
        tag: String,
        /// What it said.
        source: EnvError,
    },
    /// Nobody can show how it is done.
    #[error(
        "envs.{tag}: its scripted player showed nothing on {levels} levels in a row; environments without one cannot be warm started"
    )]
    NoPlayer {
        /// The tag.
        tag: String,
        /// How many were tried.
        levels: u64,
    },
}

/// Levels tried for one demonstration before giving up.
const ATTEMPTS: u64 = 1000;

/// The demonstrations of a run, one by one: the i-th depends on the seed and i alone.
pub struct Demonstrations {
    context: ContextManager,
    /// An environment of each tag.
    episodes: Vec<Episode>,
    excluded: BTreeSet<u64>,
    settings: Warmstart,
    max_turns: usize,
    max_actions_per_turn: usize,
    format_penalty: f64,
    key: Key,
    /// Levels rejected so far because validation starts there.
    pub rejected: u64,
}

impl Demonstrations {
    /// The demonstrations on the tags of `env.train`, none on a level that starts like one of `env.val`.
    pub fn new(config: &Config, context: ContextManager) -> Result<Self, WarmstartError> {
        let tags = config.env.train.tags.clone();
        let one_each = EnvSet { groups: tags.len(), tags, n_groups: Vec::new(), group_size: 1, seed: 0, workers: 0 };
        let episodes = EnvManager::new(&one_each, &config.envs, Mode::Train)?.episodes;
        Ok(Demonstrations {
            context,
            episodes,
            excluded: excluded_states(config)?,
            settings: config.warmstart.clone(),
            max_turns: config.rollout.max_turns,
            max_actions_per_turn: config.rollout.max_actions_per_turn,
            format_penalty: config.rollout.format_penalty,
            key: Key::new(config.run.seed).named("demonstration"),
            rejected: 0,
        })
    }

    /// The `i`-th demonstration; tags take turns.
    pub fn show(&mut self, i: u64) -> Result<Trajectory, WarmstartError> {
        let which = (i % self.episodes.len() as u64) as usize;
        let tag = self.episodes[which].rules.name.clone();
        let seed = self.key.with(i).bits(0);
        for attempt in 0..ATTEMPTS {
            let level = if attempt == 0 { seed } else { another_level(seed, attempt) };
            let reset = self.episodes[which].reset(level, Mode::Train);
            reset.map_err(|source| WarmstartError::Env { tag: tag.clone(), source })?;
            let episode = &self.episodes[which];
            if episode.rules.many_starts && self.excluded.contains(&episode.state_hash) {
                self.rejected += 1;
                continue;
            }
            let mut draws = Stream::new(self.key.with(i).bits(1));
            let mut bare = Stream::new(self.key.with(i).bits(2));
            let shown = self.play(which, &mut draws, &mut bare)?;
            if !shown.turns.is_empty() {
                return Ok(shown);
            }
        }
        Err(WarmstartError::NoPlayer { tag, levels: ATTEMPTS })
    }

    /// Plays the scripted player's turns until the episode ends, the player knows no way on, or the context is full. `bare` draws
    /// which turns say only what they do.
    fn play(&mut self, which: usize, draws: &mut Stream, bare: &mut Stream) -> Result<Trajectory, WarmstartError> {
        let context = &self.context;
        let episode = &mut self.episodes[which];
        let mut trajectory = Trajectory {
            tag: episode.rules.name.clone(),
            seed: episode.seed,
            state_hash: episode.state_hash,
            ..Trajectory::default()
        };
        let options = Demonstration {
            noise: self.settings.noise,
            full: self.settings.full,
            max_actions_per_turn: self.max_actions_per_turn,
        };
        let format = context.answer_format(&episode.rules);
        let mut conversation = Conversation::default();
        for _ in 1..=self.max_turns {
            let Some(mut shown) = episode.env().demonstrate(&options, draws) else { break };
            if bare.chance(self.settings.bare) {
                shown.thought = format!("go {}", shown.actions.join(" "));
            }
            let prompt = context.prompt(&mut conversation, episode, &trajectory)?;
            let response = context.response(&shown, &format);
            let start = if prompt.starts_row { 0 } else { trajectory.last_row().tokens.len() };
            if response.len() > context.response_tokens || !context.has_room(start + prompt.tokens.len()) {
                break;
            }
            let (observation, state_hash) = (episode.observation(), episode.env().state_hash());
            let read = trajectory.push_prompt(&prompt.tokens, prompt.starts_row);
            let row = trajectory.last_row();
            let place = row.push_response(&response, &vec![0.0; response.len()], &[]);
            let reasoning = context.reasoning(&row.tokens.ids, &place);
            let text = context.response_text(&episode.rules, &response, Finish::Stop);
            let parsed = parse(&text, &format);
            let played = episode.play(&parsed.actions, self.format_penalty);
            let played = played.map_err(|source| WarmstartError::Env { tag: episode.rules.name.clone(), source })?;
            trajectory.turns.push(Turn {
                observation,
                state_hash,
                row: trajectory.rows.len() - 1,
                shown_from: prompt.shown_from,
                prompt: read,
                reasoning,
                response: place,
                text,
                finish: Finish::Stop,
                format_ok: parsed.format_ok,
                played,
            });
            if episode.outcome.ended() {
                break;
            }
        }
        trajectory.outcome = episode.outcome;
        trajectory.outcome.truncated |= !trajectory.outcome.terminated;
        Ok(trajectory)
    }
}

/// What one optimiser step did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WarmstartReport {
    /// Which, counted from 1.
    pub step: u64,
    /// Of how many.
    pub steps: u64,
    /// Mean negative log-probability of its response tokens, before the step.
    pub loss: f64,
    /// Tokens read.
    pub tokens: usize,
    /// Tokens trained on.
    pub trained_tokens: usize,
    /// Share of its demonstrations that ended well.
    pub success: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
}

/// Trains a policy on one pass of demonstrations; `report` hears of every optimiser step and says whether to go on.
pub fn warmstart(
    policy: &mut dyn Policy,
    config: &Config,
    context: ContextManager,
    report: &mut dyn FnMut(&WarmstartReport) -> bool,
) -> Result<(), WarmstartError> {
    let mut demonstrations = Demonstrations::new(config, context)?;
    let (n_demos, batch) = (config.warmstart.demos as u64, config.warmstart.batch.max(1));
    let steps = n_demos.div_ceil(batch as u64);
    let schedule = config.warmstart.optim.schedule(steps);
    for step in 1..=steps {
        let first = (step - 1) * batch as u64;
        let shown: Vec<Trajectory> =
            (first..n_demos.min(first + batch as u64)).map(|i| demonstrations.show(i)).collect::<Result<_, _>>()?;
        let lr = schedule.lr(step - 1);
        let (loss, grad_norm) = imitate(policy, &shown, config.update.micro_batch_tokens, lr)?;
        let n_successes = shown.iter().filter(|t| t.outcome.success).count();
        let done = WarmstartReport {
            step,
            steps,
            loss,
            tokens: shown.iter().map(Trajectory::n_tokens).sum(),
            trained_tokens: shown.iter().map(Trajectory::n_sampled).sum(),
            success: n_successes as f64 / shown.len() as f64,
            grad_norm,
            lr,
        };
        if !report(&done) {
            break;
        }
    }
    Ok(())
}

/// One optimiser step towards the trajectories' own responses; returns the loss and the gradient norm.
pub fn imitate(
    policy: &mut dyn Policy,
    shown: &[Trajectory],
    micro_batch_tokens: usize,
    lr: f64,
) -> Result<(f64, f64), PolicyError> {
    let rows: Vec<Row<'_>> = shown.iter().flat_map(Trajectory::views).collect();
    let weight = 1.0 / rows.iter().map(|row| row.targets.len()).sum::<usize>().max(1) as f64;
    let mut loss = 0.0;
    let mut objective = |now: &TokenValues| {
        loss -= now.logp.iter().map(|logp| f64::from(*logp)).sum::<f64>() * weight;
        TokenSeeds { logp: vec![-weight as f32; now.logp.len()], ..TokenSeeds::default() }
    };
    for micro in split_by_size(&rows, 0, micro_batch_tokens) {
        policy.accumulate(&rows[micro], 1.0, &mut objective)?;
    }
    let step = policy.update(lr)?;
    Ok((loss, step.grad_norm))
}

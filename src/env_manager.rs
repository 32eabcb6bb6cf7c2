//! The environment state manager: which levels a rollout plays, and what a response does to an episode.
//!
//! The members of a group share a seed. Training seeds move on by the number of groups a rollout and never repeat;
//! validation seeds stay. A training level that starts like a validation level is replaced by another one. This module
//! hands out text and takes parsed actions; it does not know tokens.
//!
//! **Deviations** from the published code, which sets `terminated` and `truncated` together when the action budget is
//! spent and when a task ends badly: here they are kept apart, with success a third (decision D9).

use crate::config::{Config, EnvSet, Tag};
use crate::trajectory::{Outcome, Played};
use ragen_envs::{Env, EnvError, Legend, Mode, Recap};
use ragen_models::random::Key;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub mod metrics;
mod side_by_side;

pub(crate) use side_by_side::side_by_side;

/// What is wrong with the environments of a run.
#[derive(Debug, thiserror::Error)]
pub enum EnvManagerError {
    /// A tag that no `[envs]` entry describes.
    #[error("{key}.tags names `{tag}`, which [envs] does not have; there are {known}")]
    UnknownTag {
        /// `env.train` or `env.val`.
        key: &'static str,
        /// The tag.
        tag: String,
        /// The tags there are, joined by commas.
        known: String,
    },
    /// Numbers that do not fit together.
    #[error("{key}: {problem}")]
    Invalid {
        /// `env.train` or `env.val`.
        key: &'static str,
        /// What does not fit, and what would.
        problem: String,
    },
    /// The environment cannot be built.
    #[error("envs.{tag}: {source}")]
    Env {
        /// The tag.
        tag: String,
        /// What its type says.
        source: EnvError,
    },
    /// Validation has nearly all levels there are.
    #[error(
        "envs.{tag}: {attempts} levels in a row start like a validation level; lower env.val.groups, or set \
         val.exclude_from_training = false if training on them is meant"
    )]
    NoUnseenLevel {
        /// The tag.
        tag: String,
        /// How many were tried.
        attempts: u64,
    },
}

/// Levels tried for one group before giving up.
const ATTEMPTS: u64 = 1000;

/// What all episodes of a tag have in common.
#[derive(Clone, Debug)]
pub struct TagRules {
    /// The tag's name.
    pub name: String,
    /// Task text of the system message.
    pub instruction: String,
    /// How to read an observation.
    pub legend: Legend,
    /// Actions of an episode at most.
    pub max_actions: usize,
    /// The whole answer is one action.
    pub single_action: bool,
    /// The response length that the prompt announces, in tokens; 0 is none of its own.
    pub max_tokens: usize,
    /// Whether there are so many starts that those of validation can be kept out of training.
    pub many_starts: bool,
    /// Whether a step may wait for something outside, so that episodes are played side by side.
    pub waits: bool,
    /// How earlier turns are told where a prompt sums them up.
    pub recap: Recap,
}

/// One environment in play.
pub struct Episode {
    /// What it shares with the others of its tag.
    pub rules: Arc<TagRules>,
    /// The group, counted over all tags.
    pub group: usize,
    /// The member within the group.
    pub member: usize,
    /// The seed that it was reset with.
    pub seed: u64,
    /// Hash of its first state.
    pub state_hash: u64,
    /// Actions that may still be executed.
    pub actions_left: usize,
    /// Why it ended; both limits and ends of the task.
    pub outcome: Outcome,
    env: Box<dyn Env>,
}

impl Episode {
    /// An episode that has yet to be reset.
    pub fn new(rules: Arc<TagRules>, group: usize, member: usize, env: Box<dyn Env>) -> Self {
        let actions_left = rules.max_actions;
        Episode { rules, group, member, seed: 0, state_hash: 0, actions_left, outcome: Outcome::default(), env }
    }

    /// Starts over at a seed.
    pub fn reset(&mut self, seed: u64, mode: Mode) -> Result<(), EnvError> {
        self.seed = seed;
        self.actions_left = self.rules.max_actions;
        self.outcome = Outcome::default();
        self.env.reset(seed, self.member as u64, mode)?;
        self.state_hash = self.env.state_hash();
        Ok(())
    }

    /// What the environment shows now.
    pub fn observation(&self) -> String {
        self.env.observation()
    }

    /// The names of its actions; `None` where an action is free text.
    pub fn actions(&self) -> Option<Vec<String>> {
        self.env.actions()
    }

    /// The environment, to look at.
    pub fn env(&self) -> &dyn Env {
        &*self.env
    }

    /// Plays the actions that a response named.
    ///
    /// Names are matched in any case and unknown ones dropped; what is left runs up to the budget or the end of the task.
    /// `format_penalty` is charged once if any was dropped or none is left.
    pub fn play(&mut self, parsed: &[String], format_penalty: f64) -> Result<Played, EnvError> {
        let names = self.env.actions();
        let known = |action: &String| match &names {
            None => Some(action.clone()),
            Some(names) => names.iter().find(|name| name.to_lowercase() == action.to_lowercase()).cloned(),
        };
        let valid: Vec<String> = parsed.iter().filter_map(known).collect();
        let mut played = Played {
            parsed: parsed.to_vec(),
            actions_left: self.actions_left,
            invalid: valid.is_empty(),
            has_unknown: valid.len() != parsed.len(),
            ..Played::default()
        };
        if played.invalid || played.has_unknown {
            played.penalty = format_penalty;
        }
        let mut raw_reward = 0.0;
        for action in valid.into_iter().take(self.actions_left) {
            let step = self.env.step(&action)?;
            played.executed.push(action);
            played.reward += step.reward;
            let flag = |on: bool| if on { 1.0 } else { 0.0 };
            played.info.insert("action_is_valid".into(), flag(step.valid));
            played.info.insert("action_is_effective".into(), flag(step.effective));
            played.info.insert("success".into(), flag(step.success));
            raw_reward += step.info.iter().filter(|(name, _)| *name == "raw_reward").map(|(_, x)| x).sum::<f64>();
            played.info.extend(step.info.iter().map(|(name, x)| (name.to_string(), *x)));
            if step.ended() {
                self.outcome.terminated = step.terminated;
                self.outcome.truncated = !step.terminated;
                self.outcome.success = step.success;
                break;
            }
        }
        played.info.insert("raw_reward".into(), raw_reward);
        if played.invalid {
            played.info.insert("manager_invalid_action".into(), 1.0);
        }
        self.actions_left -= played.executed.len();
        if !self.outcome.ended() && self.actions_left == 0 {
            self.outcome.truncated = true;
        }
        Ok(played)
    }
}

/// What the next training rollout depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvManagerState {
    /// Groups played so far; the next rollout's seeds begin at the base seed plus this.
    pub counter: u64,
    /// Levels rejected so far because validation starts there.
    pub rejected: u64,
}

/// The episodes of a rollout and the seeds they are reset with.
pub struct EnvManager {
    /// The episodes, members of a group next to each other and groups tag by tag.
    pub episodes: Vec<Episode>,
    /// First states that no training level may have.
    pub excluded: BTreeSet<u64>,
    /// What to go on from.
    pub state: EnvManagerState,
    /// Episodes whose environment waits for something outside that are played at once at most. Changes no result.
    pub workers: usize,
    base_seed: u64,
    n_groups: usize,
    group_size: usize,
    mode: Mode,
}

impl EnvManager {
    /// Builds the environments of a set.
    ///
    /// **Errors** [`EnvManagerError`] for unknown tags, numbers that do not fit, and settings that the environment
    /// refuses.
    pub fn new(set: &EnvSet, tags: &BTreeMap<String, Tag>, mode: Mode) -> Result<Self, EnvManagerError> {
        let key = if mode == Mode::Train { "env.train" } else { "env.val" };
        let counts = split_groups(set).map_err(|problem| EnvManagerError::Invalid { key, problem })?;
        let mut episodes = Vec::with_capacity(set.groups * set.group_size);
        let mut group = 0;
        for (name, count) in set.tags.iter().zip(&counts) {
            let tag = tags.get(name).ok_or_else(|| EnvManagerError::UnknownTag {
                key,
                tag: name.clone(),
                known: tags.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
            })?;
            let rules = Arc::new(tag_rules(name, tag)?);
            for _ in 0..*count {
                for member in 0..set.group_size {
                    episodes.push(Episode::new(rules.clone(), group, member, build(name, tag)?));
                }
                group += 1;
            }
        }
        let mut manager = Self::from_episodes(episodes, set.group_size, set.seed, mode);
        if set.workers > 0 {
            manager.workers = set.workers;
        }
        Ok(manager)
    }

    /// A manager of episodes that were built elsewhere: groups in order, `group_size` members each.
    pub fn from_episodes(episodes: Vec<Episode>, group_size: usize, base_seed: u64, mode: Mode) -> Self {
        EnvManager {
            n_groups: episodes.len() / group_size.max(1),
            episodes,
            excluded: BTreeSet::new(),
            state: EnvManagerState::default(),
            workers: side_by_side::workers(),
            base_seed,
            group_size,
            mode,
        }
    }

    /// Groups of a rollout.
    pub fn n_groups(&self) -> usize {
        self.n_groups
    }

    /// Members of a group.
    pub fn group_size(&self) -> usize {
        self.group_size
    }

    /// Starts the next rollout: training moves on to new seeds, validation begins again.
    ///
    /// Returns the episodes whose environment is broken, by index, with what it said.
    pub fn reset(&mut self) -> Result<Vec<(usize, EnvError)>, EnvManagerError> {
        let offset = if self.mode == Mode::Train { self.state.counter } else { 0 };
        self.reset_at(self.base_seed.wrapping_add(offset))
    }

    /// Starts the `round`-th of several validation rollouts, each on seeds of its own.
    pub fn reset_round(&mut self, round: u64) -> Result<Vec<(usize, EnvError)>, EnvManagerError> {
        self.reset_at(self.base_seed.wrapping_add(round.wrapping_mul(self.n_groups as u64)))
    }

    /// Starts a rollout with group g at `seed` + g. Training goes on behind these seeds.
    pub fn reset_at(&mut self, seed: u64) -> Result<Vec<(usize, EnvError)>, EnvManagerError> {
        if self.mode == Mode::Train {
            self.state.counter = seed.wrapping_sub(self.base_seed).wrapping_add(self.n_groups as u64);
        }
        let seeds = self.choose_levels(seed)?;
        let mode = self.mode;
        let items: Vec<(usize, &mut Episode)> = self.episodes.iter_mut().enumerate().collect();
        let group_size = self.group_size.max(1);
        let reset = |(index, episode): (usize, &mut Episode)| {
            seeds.get(index / group_size).and_then(|seed| episode.reset(*seed, mode).err()).map(|error| (index, error))
        };
        let done = side_by_side(items, self.workers, |(_, episode)| episode.rules.waits, reset);
        Ok(done.into_iter().flatten().collect())
    }

    /// The seed of each group: `seed` + g, or the first of its successors whose level does not start like one of `excluded`.
    fn choose_levels(&mut self, seed: u64) -> Result<Vec<u64>, EnvManagerError> {
        let (mode, excluded) = (self.mode, &self.excluded);
        let firsts: Vec<(u64, &mut Episode)> = (0..self.n_groups as u64)
            .map(|group| seed.wrapping_add(group))
            .zip(self.episodes.iter_mut().step_by(self.group_size.max(1)))
            .collect();
        let choose = |(seed, episode): (u64, &mut Episode)| choose_level(episode, seed, mode, excluded);
        let chosen = side_by_side(firsts, self.workers, |(_, episode)| episode.rules.waits, choose);
        let mut seeds = Vec::with_capacity(chosen.len());
        for level in chosen {
            let (seed, rejected) = level?;
            self.state.rejected += rejected;
            seeds.push(seed);
        }
        Ok(seeds)
    }

    /// The first states of all levels of so many validation rounds.
    pub fn first_states(&mut self, rounds: u64) -> Result<BTreeSet<u64>, EnvManagerError> {
        let mut states = BTreeSet::new();
        for round in 0..rounds.max(1) {
            self.reset_round(round)?;
            let many = self.episodes.iter().filter(|episode| episode.rules.many_starts);
            states.extend(many.map(|episode| episode.state_hash));
        }
        Ok(states)
    }
}

/// A level for a group by its first episode, and how many were rejected before it.
fn choose_level(
    episode: &mut Episode,
    seed: u64,
    mode: Mode,
    excluded: &BTreeSet<u64>,
) -> Result<(u64, u64), EnvManagerError> {
    if excluded.is_empty() || !episode.rules.many_starts {
        return Ok((seed, 0));
    }
    let mut candidate = seed;
    for attempt in 0..ATTEMPTS {
        // A broken environment shows itself when the group is reset.
        if episode.reset(candidate, mode).is_err() || !excluded.contains(&episode.state_hash) {
            return Ok((candidate, attempt));
        }
        candidate = another_level(seed, attempt);
    }
    Err(EnvManagerError::NoUnseenLevel { tag: episode.rules.name.clone(), attempts: ATTEMPTS })
}

/// The levels of `[env.val]`, and those of validations between the first and the last step if `val.groups` has fewer.
pub fn validation_sets(config: &Config) -> (EnvSet, Option<EnvSet>) {
    let part = EnvSet { groups: config.val.groups, n_groups: Vec::new(), ..config.env.val.clone() };
    (config.env.val.clone(), (config.val.groups > 0).then_some(part))
}

/// The first states that no trained level may have; none unless `val.exclude_from_training`.
pub fn excluded_states(config: &Config) -> Result<BTreeSet<u64>, EnvManagerError> {
    let mut states = BTreeSet::new();
    if config.val.exclude_from_training {
        let (all, part) = validation_sets(config);
        for set in [Some(all), part].into_iter().flatten() {
            states.extend(EnvManager::new(&set, &config.envs, Mode::Val)?.first_states(config.val.rounds)?);
        }
    }
    Ok(states)
}

/// The seed tried after the `attempt`-th level of `seed` was rejected.
pub fn another_level(seed: u64, attempt: u64) -> u64 {
    Key::new(seed).named("another level").bits(attempt)
}

/// Builds one environment of a tag.
pub fn build(name: &str, tag: &Tag) -> Result<Box<dyn Env>, EnvManagerError> {
    ragen_envs::make(&tag.r#type, &tag.config.clone().into())
        .map_err(|source| EnvManagerError::Env { tag: name.into(), source })
}

/// What the episodes of a tag have in common.
pub fn tag_rules(name: &str, tag: &Tag) -> Result<TagRules, EnvManagerError> {
    let env = build(name, tag)?;
    let spec = ragen_envs::spec(&tag.r#type).map_err(|source| EnvManagerError::Env { tag: name.into(), source })?;
    Ok(TagRules {
        name: name.into(),
        instruction: if tag.instruction.is_empty() { env.instruction() } else { tag.instruction.clone() },
        legend: env.legend(),
        max_actions: tag.max_actions,
        single_action: tag.single_action,
        max_tokens: tag.max_tokens,
        many_starts: env.many_starts().unwrap_or(spec.many_starts),
        waits: spec.waits,
        recap: spec.recap,
    })
}

/// The groups of each tag scaled to `target` in all: floors of the exact shares, and what is left one by one to the largest
/// fractions, among equal ones to the larger number, then to the first.
pub fn scale_groups(base: &[usize], target: usize) -> Vec<usize> {
    let sum = base.iter().sum::<usize>().max(1);
    let mut scaled: Vec<usize> = base.iter().map(|n| n * target / sum).collect();
    let left = if base.iter().all(|n| *n == 0) { 0 } else { target - scaled.iter().sum::<usize>() };
    let mut order: Vec<usize> = (0..base.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse((base[i] * target % sum, base[i], base.len() - i)));
    order.iter().take(left).for_each(|&i| scaled[i] += 1);
    scaled
}

/// Groups of each tag: those given, or an even split with the remainder to the first tags.
fn split_groups(set: &EnvSet) -> Result<Vec<usize>, String> {
    let n_tags = set.tags.len();
    if n_tags == 0 || set.groups == 0 || set.group_size == 0 {
        return Err("tags, groups and group_size must not be empty".into());
    }
    if set.n_groups.is_empty() {
        return Ok((0..n_tags).map(|i| set.groups / n_tags + usize::from(i < set.groups % n_tags)).collect());
    }
    let sum: usize = set.n_groups.iter().sum();
    match set.n_groups.len() == n_tags && sum == set.groups {
        true => Ok(set.n_groups.clone()),
        false => Err(format!(
            "n_groups has {} entries with sum {sum}; it needs one for each of {n_tags} tags with sum groups = {}",
            set.n_groups.len(),
            set.groups
        )),
    }
}

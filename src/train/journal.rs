//! What a run tells about itself, and to whom.

use super::state::{Stopped, TrainState};
use crate::agent_proxy::{Rollout, RolloutError};
use crate::context_manager::ContextManager;
use crate::env_manager::EnvManagerError;
use crate::env_manager::metrics::Metrics;
use crate::eval::Evaluation;
use crate::filter::Group;
use crate::guards::Alarm;
use crate::policy::PolicyError;
use crate::trajectory::Trajectory;
use crate::update::UpdateError;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The environments do not fit together.
    #[error(transparent)]
    Envs(#[from] EnvManagerError),
    /// A rollout could not be played.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// The policy refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An update could not be made.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// What the run left could not be written.
    #[error("{0}")]
    Journal(Box<dyn std::error::Error + Send + Sync>),
}

/// Where a run leaves what it did: a run directory, a terminal, a test.
pub trait Journal<P> {
    /// A training step is done.
    fn step(&mut self, report: &StepReport, context: &ContextManager) -> Result<(), TrainError>;

    /// Somebody should know this of step `step`.
    fn notice(&mut self, step: u64, text: &str) -> Result<(), TrainError>;

    /// The policy was validated after `step` steps.
    fn validation(&mut self, step: u64, evaluation: &Evaluation) -> Result<(), TrainError>;

    /// A checkpoint is due.
    fn checkpoint(&mut self, step: u64, policy: &P, state: &TrainState) -> Result<(), TrainError>;

    /// Takes the policy back to the newest checkpoint of a step before `before`; its state, or none if there is no such checkpoint.
    fn go_back(&mut self, policy: &mut P, before: u64) -> Result<Option<TrainState>, TrainError>;

    /// Whether the run is to stop after this step.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Wall-clock seconds by phase; no part of the metrics, because they differ from run to run.
#[derive(Clone, Debug)]
pub struct Seconds {
    /// Phases in order.
    pub phases: Vec<(&'static str, f64)>,
    last: Instant,
}

impl Seconds {
    /// Starts the clock.
    pub fn start() -> Self {
        Seconds { phases: Vec::new(), last: Instant::now() }
    }

    /// Ends a phase, or one more part of it.
    pub fn lap(&mut self, phase: &'static str) {
        let now = Instant::now();
        let seconds = (now - self.last).as_secs_f64();
        match self.phases.iter_mut().find(|(name, _)| *name == phase) {
            Some((_, sum)) => *sum += seconds,
            None => self.phases.push((phase, seconds)),
        }
        self.last = now;
    }

    /// Seconds of all phases.
    pub fn total(&self) -> f64 {
        self.phases.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// One training step.
#[derive(Debug)]
pub struct StepReport {
    /// Which, counted from 1.
    pub step: u64,
    /// Metrics, keys `area/name`.
    pub metrics: Metrics,
    /// What somebody should know, in words.
    pub notices: Vec<String>,
    /// A guard that intervenes.
    pub alarm: Option<Alarm>,
    /// The run ends here, before anything of this step is trained.
    pub exits: bool,
    /// Seconds by phase.
    pub seconds: Seconds,
    /// Tokens trained on, counted once whatever the number of passes.
    pub trained_tokens: usize,
    /// Mean advantage of each trained trajectory, with its index in the rollout.
    pub advantages: Vec<(usize, f64)>,
    /// The groups as the filter saw them, by ascending id.
    pub groups: Vec<Group>,
    /// What was played.
    pub rollout: Rollout,
}

impl StepReport {
    /// Tokens sampled.
    pub fn sampled_tokens(&self) -> usize {
        self.rollout.trajectories.iter().map(Trajectory::n_sampled).sum()
    }

    /// The filter's decision on a group.
    fn group(&self, id: usize) -> Option<&Group> {
        self.groups.binary_search_by_key(&id, |group| group.group).ok().map(|at| &self.groups[at])
    }

    /// The groups as one JSON object: the reward of every member, how they spread, what the filter made of them.
    pub fn groups_json(&self) -> Map<String, Value> {
        let first = |id: usize| self.rollout.trajectories.iter().find(|t| t.group == id);
        let of = |group: &Group| {
            let t = first(group.group);
            json!({
                "group": group.group,
                "tag": t.map(|t| &t.tag),
                "seed": t.map(|t| t.seed),
                "rewards": group.rewards,
                "reward_std": group.reward_std,
                "score": group.score,
                "kept": group.kept,
            })
        };
        Map::from_iter([("groups".into(), self.groups.iter().map(of).collect())])
    }

    /// The trajectories as JSON objects, with advantage and filter decision.
    pub fn trajectories<'a>(&'a self, context: &'a ContextManager) -> impl Iterator<Item = Value> + 'a {
        self.rollout.trajectories.iter().enumerate().map(|(i, t)| {
            let at = self.advantages.binary_search_by_key(&i, |(index, _)| *index);
            let advantage = at.ok().map(|at| self.advantages[at].1);
            let mut added = Map::new();
            added.insert("score".into(), json!(t.score()));
            added.insert("advantage".into(), json!(advantage));
            let group = self.group(t.group);
            added.insert("kept".into(), json!(group.is_some_and(|group| group.kept)));
            added.insert("group_score".into(), json!(group.map(|group| group.score)));
            added.insert("group_reward_std".into(), json!(group.map(|group| group.reward_std)));
            t.to_json(&|ids| context.tokenizer.decode(ids), added)
        })
    }
}

/// What a run did in all.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Steps done, those before a resume included.
    pub step: u64,
    /// Validation before the first step.
    pub before: Option<Evaluation>,
    /// Validation after the last.
    pub after: Option<Evaluation>,
    /// Tokens sampled for training.
    pub sampled_tokens: usize,
    /// Tokens trained on, counted once.
    pub trained_tokens: usize,
    /// Seconds by phase, summed over steps.
    pub seconds: Vec<(&'static str, f64)>,
    /// Why it ended early.
    pub stopped: Option<Stopped>,
}

impl Summary {
    /// Takes in a step.
    pub fn add(&mut self, report: &StepReport) {
        self.step = report.step;
        self.sampled_tokens += report.sampled_tokens();
        self.trained_tokens += report.trained_tokens;
        for &(phase, seconds) in &report.seconds.phases {
            match self.seconds.iter_mut().find(|(name, _)| *name == phase) {
                Some((_, sum)) => *sum += seconds,
                None => self.seconds.push((phase, seconds)),
            }
        }
    }
}

//! The training loop: rollout, diagnosis, filter, advantages, update, validation, checkpoint.
//!
//! It reads from top to bottom as one step of StarPO. It never sees a tensor, and files only through a [`Journal`].

use crate::agent_proxy::{Play, Rollout};
use crate::config::Config;
use crate::context_manager::ContextManager;
use crate::env_manager::metrics::Metrics;
use crate::env_manager::{EnvManager, EnvManagerError, EnvManagerState, excluded_states, validation_sets};
use crate::eval::{Evaluation, evaluate};
use crate::filter::Filtered;
use crate::guards::{Action, Alarm};
use crate::policy::Policy;
use crate::update::{Pace, update};
use ragen_envs::Mode;
use ragen_models::random::Key;

mod batch;
mod diagnosis;
mod gather;
mod gradients;
mod journal;
mod state;

use gather::{gather, own_envs};
use gradients::Subject;
pub use journal::{Journal, Seconds, StepReport, Summary, TrainError};
pub use state::{Best, Stopped, TrainState};

/// Everything a run needs beside the policy.
pub struct Trainer {
    /// The configuration.
    pub config: Config,
    /// Lays out prompts.
    pub context: ContextManager,
    /// The levels trained on.
    pub train_envs: EnvManager,
    /// The levels validated on before the first and after the last step.
    pub val_envs: EnvManager,
    /// Those of validations in between, where they are others.
    val_part: Option<EnvManager>,
    /// What a resumed run goes on from.
    pub state: TrainState,
}

/// What a step came to, beside its metrics.
#[derive(Clone, Copy, Default)]
struct Course {
    stopped: Option<Stopped>,
    went_back: bool,
    /// Its validation had more success than all before it.
    is_best: bool,
}

impl Trainer {
    /// A run from its first step; `state` may then be replaced by a saved one.
    ///
    /// **Errors** if the environments do not fit together.
    pub fn new(config: Config, context: ContextManager) -> Result<Self, EnvManagerError> {
        let (all, part) = validation_sets(&config);
        let mut train_envs = EnvManager::new(&config.env.train, &config.envs, Mode::Train)?;
        train_envs.excluded = excluded_states(&config)?;
        let val_envs = EnvManager::new(&all, &config.envs, Mode::Val)?;
        let val_part = part.map(|part| EnvManager::new(&part, &config.envs, Mode::Val)).transpose()?;
        Ok(Trainer { config, context, train_envs, val_envs, val_part, state: TrainState::default() })
    }

    /// Goes on from a saved state.
    pub fn resume(&mut self, state: TrainState) {
        self.train_envs.state = state.envs;
        self.state = state;
    }

    /// Trains to the configured number of steps, or until the journal or the filter says to stop.
    ///
    /// At step 0 the present weights become the reference, if one is needed; whoever resumes a run freezes it before.
    pub fn run<P: Policy>(&mut self, policy: &mut P, journal: &mut dyn Journal<P>) -> Result<Summary, TrainError> {
        let mut summary = Summary { step: self.state.step, ..Summary::default() };
        if self.state.step == 0 {
            if self.config.needs_reference() {
                policy.freeze_reference()?;
            }
            if self.config.val.before_train {
                let evaluation = self.validate(policy, true)?;
                journal.validation(0, &evaluation)?;
                summary.before = Some(evaluation);
            }
        }
        while self.state.step < self.config.run.steps && summary.stopped.is_none() {
            let step = self.state.step + 1;
            let report = self.step(policy, step)?;
            summary.add(&report);
            journal.step(&report, &self.context)?;
            for notice in &report.notices {
                journal.notice(step, notice)?;
            }
            if report.exits {
                summary.stopped = Some(Stopped::Analysed);
                break;
            }
            self.state.step = step;
            let mut course = Course { stopped: self.state.why_stop(&self.config), ..Course::default() };
            if let Some(alarm) = &report.alarm {
                course = self.heed(alarm, policy, journal)?;
            }
            summary.after = self.validate_if_due(&mut course, policy, journal)?;
            let interrupted = journal.is_interrupted().then_some(Stopped::Interrupted);
            summary.stopped = course.stopped.or(interrupted);
            if interrupted.is_some() || self.saves(&course) {
                self.state.envs = self.train_envs.state;
                journal.checkpoint(step, policy, &self.state)?;
            }
        }
        Ok(summary)
    }

    /// Whether the present step is the last. An interrupted run goes on later, so for that it is not.
    fn is_last(&self, course: &Course) -> bool {
        self.state.step == self.config.run.steps || course.stopped.is_some()
    }

    /// Whether a checkpoint is due. A stop never skips it, and one is due where the run went back, so that it is not gone back behind
    /// again.
    fn saves(&self, course: &Course) -> bool {
        let every = self.config.checkpoint.every;
        let is_due = self.is_last(course) || course.is_best || self.state.step.is_multiple_of(every.max(1));
        course.went_back || (every > 0 && is_due)
    }

    /// Validates if that is due, which a stop never skips; the evaluation, if it was the last one.
    fn validate_if_due<P: Policy>(
        &mut self,
        course: &mut Course,
        policy: &mut P,
        journal: &mut dyn Journal<P>,
    ) -> Result<Option<Evaluation>, TrainError> {
        let (step, is_last, val) = (self.state.step, self.is_last(course), &self.config.val);
        let is_due = val.every > 0 && step.is_multiple_of(val.every);
        if !(is_due || is_last && (val.every > 0 || val.before_train)) {
            return Ok(None);
        }
        let mut evaluation = self.validate(policy, is_last)?;
        let success = evaluation.tags.iter().map(|(tag, score)| (tag.as_str(), score.success));
        let alarm = self.state.guards.after_validation(step, success, &self.config.guards);
        let alarm = alarm.filter(|_| !is_last);
        if let Some(Alarm { guard, action: Action::Stop, .. }) = alarm {
            evaluation.metrics.insert(format!("early_stopped/{}", guard.name()), 1.0);
        }
        journal.validation(step, &evaluation)?;
        // Where the run goes back after it, the weights that were validated are gone.
        let goes_back = alarm.as_ref().is_some_and(|alarm| alarm.action == Action::Rollback);
        if self.config.checkpoint.best && self.config.checkpoint.every > 0 && !goes_back {
            course.is_best = self.state.is_best(evaluation.success());
        }
        if let Some(alarm) = alarm {
            journal.notice(step, &alarm.text)?;
            if alarm.action.intervenes() {
                *course = Course { is_best: course.is_best, ..self.heed(&alarm, policy, journal)? };
            }
        }
        Ok(self.is_last(course).then_some(evaluation))
    }

    /// Does what a guard asks for: a reason to stop, or that the run went back.
    fn heed<P: Policy>(
        &mut self,
        alarm: &Alarm,
        policy: &mut P,
        journal: &mut dyn Journal<P>,
    ) -> Result<Course, TrainError> {
        let step = self.state.step;
        let stop = Course { stopped: Some(Stopped::Guard(alarm.guard)), ..Course::default() };
        if alarm.action == Action::Stop {
            return Ok(stop);
        }
        if self.state.guards.rollbacks >= self.config.guards.max_rollbacks {
            journal
                .notice(step, &format!("step {step}: it went back guards.max_rollbacks times already, so it stops"))?;
            return Ok(stop);
        }
        let Some(state) = journal.go_back(policy, alarm.since)? else {
            let since = alarm.since;
            journal
                .notice(step, &format!("step {step}: there is no checkpoint from before step {since}, so it stops"))?;
            return Ok(stop);
        };
        journal
            .notice(step, &format!("step {step}: back to the checkpoint of step {}, and on from there", state.step))?;
        self.train_envs.state = state.envs;
        self.state.go_back(state, step);
        Ok(Course { went_back: true, ..Course::default() })
    }

    /// One training step.
    pub fn step(&mut self, policy: &mut dyn Policy, step: u64) -> Result<StepReport, TrainError> {
        let mut config = self.config.clone();
        self.state.kl.enter(&mut config);
        let config = &config;
        let key = |purpose: &str| Key::new(config.run.seed).named(purpose).with(step);
        let (mut seconds, mut metrics, mut notices) = (Seconds::start(), Metrics::new(), Vec::new());

        let (context, envs) = (&self.context, &mut self.train_envs);
        let first = envs.state;
        let (rollout, filtered) = gather(policy, context, envs, config, (step, key("rollout")), &mut seconds)?;
        self.describe(step, &rollout, &filtered, &mut metrics);
        notices.extend(rollout.told_of_dropped().map(|text| format!("step {step}: {text}")));

        if config.collapse.is_due(step) {
            let at = (step, key("collapse"));
            let found = diagnosis::collapse(policy, context, &rollout, config, &mut self.state.collapse, at)?;
            metrics.extend(found.0);
            notices.extend(found.1);
            seconds.lap("collapse");
        }

        let mut alarms = self.state.watch_rollout(step, &rollout, &filtered, config, &mut metrics);
        // Rewards that no longer differ, or responses that say nothing, are not trained on if that is to be stopped.
        let is_halted = alarms.iter().any(|alarm| alarm.action.intervenes());
        let mut prepared = match is_halted {
            true => batch::Prepared::default(),
            false => batch::prepare(policy, &rollout.trajectories, &filtered, config, key("update"))?,
        };
        metrics.append(&mut prepared.metrics);
        seconds.lap("score");

        if !is_halted {
            self.state.count_empty(prepared.batch.picked.is_empty(), config, &mut metrics);
        }
        let is_analysed = config.gradient_analysis.is_due(step) && !is_halted;
        if is_analysed {
            let of = Subject { batch: &prepared.batch, trajectories: &rollout.trajectories, filtered: &filtered };
            metrics.extend(self.analyse(policy, of, config, (step, key("gradient analysis")), first)?);
            seconds.lap("gradients");
        }
        let exits = is_analysed && config.gradient_analysis.exit_after;
        let only = config.gradient_analysis.only;
        metrics.extend(only.then(|| ("actor/skipped_for_gradient_analysis_only".into(), 1.0)));
        metrics.extend(exits.then(|| ("trainer/exited_after_gradient_analysis".into(), 1.0)));
        if !prepared.batch.picked.is_empty() && !only && !exits {
            self.train(policy, &prepared, config, (step, key("update")), &mut metrics)?;
        }
        alarms.extend(self.state.watch_update(step, config, &mut metrics));
        notices.extend(alarms.iter().map(|alarm| alarm.text.clone()));
        // Going back comes before stopping.
        let alarm = alarms.into_iter().filter(|alarm| alarm.action.intervenes()).max_by_key(|alarm| alarm.action);
        seconds.lap("update");
        let trained_tokens = prepared.batch.trained_tokens();
        let (advantages, groups) = (prepared.advantages, filtered.groups);
        Ok(StepReport { step, metrics, notices, alarm, exits, seconds, trained_tokens, advantages, groups, rollout })
    }

    /// What was played, and what the filter made of it, as `train/…` and `rollout/…` metrics.
    fn describe(&self, step: u64, rollout: &Rollout, filtered: &Filtered, metrics: &mut Metrics) {
        metrics.extend(rollout.metrics.iter().map(|(key, value)| (format!("train/{key}"), *value)));
        metrics.insert("train/rejected_levels".into(), self.train_envs.state.rejected as f64);
        metrics.insert("train/rollout_attempts".into(), rollout.rounds as f64);
        if self.config.rollout.curriculum.turns > 0 {
            metrics.insert("train/max_turns".into(), self.config.rollout.max_turns_at(step) as f64);
        }
        metrics.extend(filtered.metrics.iter().cloned());
    }

    /// The gradient analysis of the step's batch, or of a rollout of its own from the levels at `first`.
    fn analyse(
        &self,
        policy: &mut dyn Policy,
        of_step: Subject<'_>,
        config: &Config,
        (step, key): (u64, Key),
        first: EnvManagerState,
    ) -> Result<Metrics, TrainError> {
        let Some((mut envs, config)) = own_envs(config, &self.train_envs, first)? else {
            let found = gradients::analyse_both(policy, of_step, config, key)?;
            return Ok(gradients::described(found, of_step, config, true));
        };
        let at = (step, key.named("rollout"));
        let (rollout, filtered) = gather(policy, &self.context, &mut envs, &config, at, &mut Seconds::start())?;
        let prepared = batch::prepare(policy, &rollout.trajectories, &filtered, &config, key)?;
        let own = Subject { batch: &prepared.batch, trajectories: &rollout.trajectories, filtered: &filtered };
        let found = gradients::analyse_both(policy, own, &config, key)?;
        Ok(gradients::described(found, own, &config, false))
    }

    /// Updates the policy, and what the divergence costs from now on.
    fn train(
        &mut self,
        policy: &mut dyn Policy,
        prepared: &batch::Prepared<'_>,
        config: &Config,
        (step, key): (u64, Key),
        metrics: &mut Metrics,
    ) -> Result<(), TrainError> {
        let (batch, temperature) = (&prepared.batch, config.rollout.sampling.temperature);
        let lr = config.optim.schedule(config.run.steps).lr(step - 1);
        let pace = Pace { lr, values_alone: step <= config.model.value_warmup_steps };
        metrics.extend(update(policy, batch, &config.update, temperature, pace, key)?);
        match pace.values_alone {
            true => drop(metrics.insert("value/trained_alone".into(), 1.0)),
            // Where the policy stands still its divergence tells nothing.
            false => {
                let of_loss = metrics.get("policy/kl_loss").copied();
                self.state.kl.adapt(config, prepared.kl, of_loss, batch.picked.len());
            }
        }
        if config.update.loss.kl.coef != 0.0 {
            metrics.insert("policy/kl_coef".into(), config.update.loss.kl.coef);
        }
        Ok(())
    }

    /// Plays the validation levels, all of them or those of validations in between.
    pub fn validate(&mut self, policy: &mut dyn Policy, all: bool) -> Result<Evaluation, TrainError> {
        let how = Play::new(&self.context, &self.config.rollout, self.config.val.sampling());
        let envs = self.val_part.as_mut().filter(|_| !all).unwrap_or(&mut self.val_envs);
        Ok(evaluate(policy, envs, how, self.config.val.rounds, self.config.run.seed)?)
    }
}

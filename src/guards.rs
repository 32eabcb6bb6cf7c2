//! Guards: signs that a run has gone wrong, watched step by step, and what is done about them.
//!
//! Each guard has a streak: steps (or validations) in a row that looked bad. When it is long enough the guard fires, and does what its
//! key says: warn once, stop the run, or go back to the last checkpoint from before the streak. This module counts and decides; it
//! neither measures nor acts. Everything that it remembers is part of a checkpoint.

use crate::collapse::Regime;
use crate::statistics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a guard does when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing.
    Off,
    /// Says so, once a streak.
    Warn,
    /// Says so and ends the run, which is saved.
    Stop,
    /// Says so and goes back to the last good checkpoint.
    Rollback,
}

impl Action {
    /// Whether the run does not simply go on.
    pub fn intervenes(self) -> bool {
        matches!(self, Action::Stop | Action::Rollback)
    }
}

/// `[guards]`: what is watched, from when on it is bad, and what is done then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardsConfig {
    /// Steps in a row after which `degenerate`, `entropy` and `kl` fire.
    pub patience: u64,
    /// Responses that repeat one token.
    pub degenerate: Action,
    /// Bad: a larger share of responses than this, of at least 8 tokens each, is at least half one token in a row.
    pub degenerate_share: f64,
    /// The policy has no entropy left.
    pub entropy: Action,
    /// Bad: less entropy than this, in nats a token.
    pub entropy_floor: f64,
    /// The policy has moved too far.
    pub kl: Action,
    /// Bad: more divergence than this from the policy that sampled, or from the reference if there is one, in nats a token.
    pub kl_ceiling: f64,
    /// The rewards within groups no longer differ.
    pub reward: Action,
    /// Steps that the beginning is the mean of, and steps that must all be bad.
    pub reward_window: usize,
    /// Bad: less spread than this share of the beginning's.
    pub reward_share: f64,
    /// No validation level is solved.
    pub success: Action,
    /// Validations in a row after which it fires.
    pub success_patience: u64,
    /// Bad: less success than this.
    pub success_floor: f64,
    /// The reasoning is a template or nearly constant, as the collapse detector names it; the detector itself warns.
    pub collapse: Action,
    /// Times that a run goes back; then it stops.
    pub max_rollbacks: u64,
}

impl Default for GuardsConfig {
    fn default() -> Self {
        GuardsConfig {
            patience: 3,
            degenerate: Action::Warn,
            degenerate_share: 0.5,
            entropy: Action::Warn,
            entropy_floor: 0.005,
            kl: Action::Warn,
            kl_ceiling: 0.5,
            reward: Action::Stop,
            reward_window: 10,
            reward_share: 0.1,
            success: Action::Stop,
            success_patience: 5,
            success_floor: 0.01,
            collapse: Action::Warn,
            max_rollbacks: 2,
        }
    }
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// Responses that repeat one token.
    Degenerate,
    /// Entropy.
    Entropy,
    /// Divergence.
    Kl,
    /// Spread of the rewards within groups.
    Reward,
    /// Success in validation.
    Success,
    /// Reasoning that lost its input.
    Collapse,
}

impl Guard {
    /// All there are.
    pub const ALL: [Guard; 6] =
        [Guard::Degenerate, Guard::Entropy, Guard::Kl, Guard::Reward, Guard::Success, Guard::Collapse];

    /// Its action.
    pub fn action(self, config: &GuardsConfig) -> Action {
        match self {
            Guard::Degenerate => config.degenerate,
            Guard::Entropy => config.entropy,
            Guard::Kl => config.kl,
            Guard::Reward => config.reward,
            Guard::Success => config.success,
            Guard::Collapse => config.collapse,
        }
    }

    /// Its key in `[guards]`.
    pub fn key(self) -> &'static str {
        match self {
            Guard::Degenerate => "degenerate",
            Guard::Entropy => "entropy",
            Guard::Kl => "kl",
            Guard::Reward => "reward",
            Guard::Success => "success",
            Guard::Collapse => "collapse",
        }
    }

    /// Its name in `early_stopped/…`, RAGEN's where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Guard::Degenerate => "degenerate_output",
            Guard::Entropy => "entropy_floor",
            Guard::Kl => "kl_ceiling",
            Guard::Reward => "reward_variance_collapse",
            Guard::Success => "low_validation_success",
            Guard::Collapse => "reasoning_collapse",
        }
    }
}

/// A guard that fires.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// Which.
    pub guard: Guard,
    /// What is to be done.
    pub action: Action,
    /// The first step of the streak: a checkpoint of an earlier step is good.
    pub since: u64,
    /// What was seen, in words.
    pub text: String,
}

/// Bad steps in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streak {
    /// How many.
    pub n: u64,
    /// Step of the first.
    pub since: u64,
}

impl Streak {
    fn count(&mut self, is_bad: bool, step: u64) -> u64 {
        *self = match (is_bad, self.n) {
            (false, _) => Streak::default(),
            (true, 0) => Streak { n: 1, since: step },
            (true, n) => Streak { n: n + 1, since: self.since },
        };
        self.n
    }
}

/// What the guards remember; part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardsState {
    /// By guard.
    pub streaks: BTreeMap<Guard, Streak>,
    /// By tag.
    pub success: BTreeMap<String, Streak>,
    /// Spreads that the beginning is the mean of.
    pub first_spreads: Vec<f64>,
    /// Times that the run went back.
    pub rollbacks: u64,
}

/// Share of responses of at least 8 tokens that are at least half one token in a row; 0 for none.
pub fn degenerate_share<'a>(responses: impl Iterator<Item = &'a [u32]>) -> f64 {
    let (mut n, mut found) = (0u64, 0u64);
    for response in responses {
        n += 1;
        let longest = response.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(0);
        found += u64::from(response.len() >= 8 && 2 * longest >= response.len());
    }
    found as f64 / n.max(1) as f64
}

impl GuardsState {
    /// The streaks under the metrics' names.
    pub fn metrics(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        let streaks =
            self.streaks.iter().map(|(guard, streak)| (format!("guards/{}_streak", guard.key()), streak.n as f64));
        streaks.chain([("guards/rollbacks".to_string(), self.rollbacks as f64)])
    }

    /// Counts a measurement of a guard; an alarm when its streak is long enough.
    fn watch(
        &mut self,
        guard: Guard,
        is_bad: bool,
        (patience, step): (u64, u64),
        config: &GuardsConfig,
        text: impl FnOnce(u64) -> String,
    ) -> Option<Alarm> {
        let action = guard.action(config);
        if action == Action::Off {
            return None;
        }
        let streak = self.streaks.entry(guard).or_default();
        let n = streak.count(is_bad, step);
        let fires = if action == Action::Warn { n == patience } else { n >= patience };
        (fires && n > 0).then(|| Alarm { guard, action, since: streak.since, text: text(n) })
    }

    /// Looks at what was played: the share of degenerate responses, and the mean spread of the rewards within groups, which is `None`
    /// on a step with nothing to train on.
    pub fn after_rollout(
        &mut self,
        step: u64,
        degenerate: f64,
        spread: Option<f64>,
        config: &GuardsConfig,
    ) -> Vec<Alarm> {
        let at = (config.patience, step);
        let text = |n| {
            format!(
                "step {step}: {:.0} % of the responses repeat one token, for {n} steps now (guards.degenerate); read trajectories/",
                100.0 * degenerate
            )
        };
        let found = self.watch(Guard::Degenerate, degenerate > config.degenerate_share, at, config, text);
        let mut alarms: Vec<Alarm> = found.into_iter().collect();
        let window = config.reward_window.max(1);
        if let Some(spread) = spread {
            if self.first_spreads.len() < window {
                self.first_spreads.push(spread);
            } else {
                let start = statistics::mean(&self.first_spreads);
                let text = |n| {
                    format!(
                        "step {step}: rewards within a group differ by {spread:.3}, {start:.3} at the start, for {n} steps now \
                         (guards.reward): all members of a group do equally well, so there is little left to learn from"
                    )
                };
                let is_bad = start > 0.0 && spread < config.reward_share * start;
                alarms.extend(self.watch(Guard::Reward, is_bad, (window as u64, step), config, text));
            }
        }
        alarms
    }

    /// Looks at the regime that the collapse detector named, which goes by moving averages, so one measurement is enough. There is no
    /// alarm for a mere warning: the detector gives it.
    pub fn after_measurement(&mut self, step: u64, regime: Regime, config: &GuardsConfig) -> Option<Alarm> {
        let text = |_| format!("step {step}: {} (guards.collapse)", regime.name());
        let alarm = self.watch(Guard::Collapse, regime.is_collapse(), (1, step), config, text);
        alarm.filter(|alarm| alarm.action.intervenes())
    }

    /// Looks at what an update did: entropy and divergence, in nats a token; what was not measured is `None`.
    pub fn after_update(
        &mut self,
        step: u64,
        entropy: Option<f64>,
        divergence: Option<f64>,
        config: &GuardsConfig,
    ) -> Vec<Alarm> {
        let at = (config.patience, step);
        let mut alarms = Vec::new();
        if let Some(entropy) = entropy {
            let text = |n| {
                format!(
                    "step {step}: entropy is {entropy:.4} nats a token, for {n} steps now (guards.entropy): the policy no longer tries \
                     anything; look at update.loss.entropy_coef, optim.lr and update.loss.kl"
                )
            };
            alarms.extend(self.watch(Guard::Entropy, entropy < config.entropy_floor, at, config, text));
        }
        if let Some(divergence) = divergence {
            let text = |n| {
                format!(
                    "step {step}: divergence is {divergence:.3} nats a token, for {n} steps now (guards.kl): the policy moves too fast; \
                     look at optim.lr, optim.clip_norm and update.loss.clip_high"
                )
            };
            // What is no number is no small divergence.
            let is_bad = divergence.is_nan() || divergence > config.kl_ceiling;
            alarms.extend(self.watch(Guard::Kl, is_bad, at, config, text));
        }
        alarms
    }

    /// Looks at a validation during training: success by tag.
    pub fn after_validation<'a>(
        &mut self,
        step: u64,
        success: impl Iterator<Item = (&'a str, f64)>,
        config: &GuardsConfig,
    ) -> Option<Alarm> {
        let (action, patience) = (config.success, config.success_patience);
        let mut alarm = None;
        for (tag, success) in success.filter(|_| action != Action::Off) {
            let streak = self.success.entry(tag.to_string()).or_default();
            let n = streak.count(success < config.success_floor, step);
            let fires = if action == Action::Warn { n == patience } else { n >= patience };
            if fires && n > 0 && alarm.is_none() {
                let text = format!(
                    "step {step}: {tag} was solved in {:.1} % of its validation levels, below {:.1} % for {n} validations now \
                     (guards.success); a warm start or easier levels give it something to learn from",
                    100.0 * success,
                    100.0 * config.success_floor
                );
                alarm = Some(Alarm { guard: Guard::Success, action, since: streak.since, text });
            }
        }
        alarm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (GuardsState, GuardsConfig) {
        (GuardsState::default(), GuardsConfig::default())
    }

    fn saved(state: &GuardsState) -> GuardsState {
        serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
    }

    #[test]
    fn a_response_of_one_token_is_degenerate_and_a_short_or_mixed_one_is_not() {
        let long = [7; 9];
        let half = [1, 2, 3, 4, 5, 5, 5, 5];
        let less = [1, 2, 3, 4, 6, 5, 5, 5];
        let share = |responses: &[&[u32]]| degenerate_share(responses.iter().copied());
        assert_eq!(share(&[&long, &half, &less, &[7; 7]]), 0.5);
        assert_eq!((share(&[]), share(&[&[]])), (0.0, 0.0));
    }

    #[test]
    fn a_warning_comes_once_a_streak_and_an_intervention_until_it_is_heard() {
        let (mut state, mut config) = state();
        let mut steps = Vec::new();
        for (step, share) in (1..).zip([0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.0, 0.9, 0.9, 0.9]) {
            state = saved(&state);
            let alarms = state.after_rollout(step, share, None, &config);
            steps.extend(alarms.iter().map(|alarm| (step, alarm.since, alarm.action)));
        }
        assert_eq!(steps, [(6, 4, Action::Warn), (11, 9, Action::Warn)]);
        config.degenerate = Action::Rollback;
        assert_eq!(state.after_rollout(12, 0.9, None, &config)[0].action, Action::Rollback);
        config.degenerate = Action::Off;
        assert!(state.after_rollout(13, 0.9, None, &config).is_empty());
        assert_eq!(state.metrics().next(), Some(("guards/degenerate_streak".into(), 4.0)));
    }

    #[test]
    fn entropy_and_divergence_fire_beyond_their_bounds_only() {
        let (mut state, config) = state();
        for step in 1..=5 {
            assert!(state.after_update(step, Some(0.005), Some(0.5), &config).is_empty(), "the bounds are still good");
        }
        for step in 6..=7 {
            assert!(state.after_update(step, Some(0.004), Some(f64::NAN), &config).is_empty());
        }
        // A step that measured nothing neither counts nor breaks the streak.
        assert!(state.after_update(8, None, None, &config).is_empty());
        let alarms = state.after_update(9, Some(0.004), Some(0.6), &config);
        let found: Vec<_> = alarms.iter().map(|alarm| (alarm.guard, alarm.since)).collect();
        assert_eq!(found, [(Guard::Entropy, 6), (Guard::Kl, 6)]);
        assert!(
            alarms[0].text.starts_with("step 9: entropy is 0.0040") && alarms[1].text.contains("0.600"),
            "{alarms:?}"
        );
    }

    /// The beginning is the mean of ten steps; ten later ones in a row must be below a tenth of it; empty steps do not count.
    #[test]
    fn rewards_without_spread_stop_the_run_after_a_window() {
        let (mut state, config) = state();
        for step in 1..=10 {
            assert!(state.after_rollout(step, 0.0, Some(if step == 1 { 11.0 } else { 1.0 }), &config).is_empty());
        }
        for step in 11..=40 {
            let spread = if step == 25 { 0.21 } else { 0.19 };
            let empty = step % 2 == 0;
            state = saved(&state);
            let alarms = state.after_rollout(step, 0.0, (!empty).then_some(spread), &config);
            let Some(alarm) = alarms.first() else {
                assert!(step < 45);
                continue;
            };
            panic!("step {step}: {alarm:?}");
        }
        // 27, 29 … 39 were seven.
        let fired: Vec<u64> =
            (41..=44).filter(|&step| !state.after_rollout(step, 0.0, Some(0.19), &config).is_empty()).collect();
        assert_eq!(fired, [43, 44]);
        assert_eq!(state.streaks[&Guard::Reward].since, 27);

        let mut flat = GuardsState::default();
        assert!(
            (1..=60).all(|step| flat.after_rollout(step, 0.0, Some(0.0), &config).is_empty()),
            "it began with none"
        );
    }

    #[test]
    fn a_collapse_is_acted_on_at_once_and_warned_of_by_the_detector_alone() {
        let (mut state, mut config) = state();
        assert_eq!(state.after_measurement(5, Regime::TemplateCollapse, &config), None);
        assert_eq!(state.streaks[&Guard::Collapse], Streak { n: 1, since: 5 });
        config.collapse = Action::Stop;
        let alarm = saved(&state).after_measurement(10, Regime::LowEntropyCollapse, &config).unwrap();
        assert_eq!((alarm.guard, alarm.action, alarm.since), (Guard::Collapse, Action::Stop, 5));
        assert_eq!(alarm.text, "step 10: low-entropy collapse (guards.collapse)");
        assert_eq!(state.after_measurement(10, Regime::Compressed, &config), None);
        assert_eq!(state.streaks[&Guard::Collapse].n, 0);
        config.collapse = Action::Off;
        assert_eq!(state.after_measurement(15, Regime::TemplateCollapse, &config), None);
    }

    #[test]
    fn a_tag_that_is_never_solved_stops_the_run_after_five_validations() {
        let (mut state, config) = state();
        let mut validate = |step, a, b| {
            state = saved(&state);
            state
                .after_validation(step, [("a", a), ("b", b)].into_iter(), &config)
                .map(|alarm| (alarm.since, alarm.text))
        };
        for step in [10, 20, 30, 40] {
            assert_eq!(validate(step, 0.0, if step == 30 { 0.01 } else { 0.0 }), None);
        }
        let (since, text) = validate(50, 0.009, 0.0).unwrap();
        assert!(since == 10 && text.contains("a was solved in 0.9 %"), "{text}");
        assert_eq!(validate(60, 0.5, 0.0), None, "b was solved at step 30");
    }

    #[test]
    fn settings_are_read_by_name() {
        let config: GuardsConfig = serde_json::from_str(r#"{"kl": "rollback", "entropy": "off"}"#).unwrap();
        assert_eq!((config.kl, config.entropy, config.reward), (Action::Rollback, Action::Off, Action::Stop));
        assert!(serde_json::from_str::<GuardsConfig>(r#"{"kl": "pause"}"#).is_err());
    }
}

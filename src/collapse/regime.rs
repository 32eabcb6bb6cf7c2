//! The name of what the measurements show: does the reasoning still depend on its input, and how much does it still vary?
//!
//! Two questions give RAGEN-2's four regimes. Both are answered by moving averages over the measurements, against what this run
//! began with: a healthy run sharpens, so its H(Z|X) falls by itself, and no threshold fits every model and task.
//!
//! **Rule** with i = I(X;Z) / ln N (per sequence), r = (retrieval − chance) / (1 − chance), h = H(Z|X) in nats a reasoning; "at the
//! start" is the mean of the first `start` measurements, everything else a moving average:
//! - the input is lost if i and r are both below `information` times what they were at the start, or both below `floor`;
//! - the reasoning is thin if h is below `entropy` times what it was at the start, or below 0.05.
//!
//! | | not thin | thin |
//! | --- | --- | --- |
//! | input not lost | diverse | compressed |
//! | input lost | template collapse | low-entropy collapse |

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// H(Z|X) below this is none, whatever it was at the start, in nats a reasoning.
const NO_ENTROPY: f64 = 0.05;

/// `[collapse.regime]`: when the reasoning is called collapsed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegimeConfig {
    /// Measurements that the run's beginning is the mean of.
    pub start: u64,
    /// How much of the moving averages is kept a measurement.
    pub decay: f64,
    /// The input is lost below this share of I(X;Z) and of retrieval at the start.
    pub information: f64,
    /// The reasoning is thin below this share of H(Z|X) at the start.
    pub entropy: f64,
    /// The input is lost where I(X;Z), as a share of its bound, and retrieval above chance are below this, whatever the start was.
    pub floor: f64,
}

impl Default for RegimeConfig {
    fn default() -> Self {
        RegimeConfig { start: 2, decay: 0.5, information: 0.7, entropy: 0.2, floor: 0.1 }
    }
}

/// What kind of reasoning the policy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// It depends on the input and varies.
    Diverse,
    /// It depends on the input and hardly varies: a solution without detours.
    Compressed,
    /// It varies and could stand under any input.
    TemplateCollapse,
    /// It is nearly the same everywhere.
    LowEntropyCollapse,
}

impl Regime {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Regime::Diverse => "diverse",
            Regime::Compressed => "compressed",
            Regime::TemplateCollapse => "template collapse",
            Regime::LowEntropyCollapse => "low-entropy collapse",
        }
    }

    /// Its number in `collapse/regime`: 0 to 3 in the order above.
    pub fn number(self) -> f64 {
        f64::from(self as u8)
    }

    /// The regime with this number.
    pub fn numbered(number: f64) -> Option<Regime> {
        let all = [Regime::Diverse, Regime::Compressed, Regime::TemplateCollapse, Regime::LowEntropyCollapse];
        all.into_iter().find(|regime| regime.number() == number)
    }

    /// Whether the input is lost.
    pub fn is_collapse(self) -> bool {
        matches!(self, Regime::TemplateCollapse | Regime::LowEntropyCollapse)
    }
}

/// What the rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// I(X;Z) as a share of its bound ln N.
    pub information: f64,
    /// Retrieval accuracy above chance, as a share of what there is above chance.
    pub retrieval: f64,
    /// H(Z|X) in nats a reasoning.
    pub entropy: f64,
}

impl Levels {
    /// From the metrics of [`crate::collapse::measure()`] with this prefix; `None` if there are none, or one is no number.
    pub fn read(metrics: &[(String, f64)], prefix: &str) -> Option<Levels> {
        let find = |name: &str| {
            let named = |metric: &&(String, f64)| metric.0.strip_prefix(prefix) == Some(name);
            metrics.iter().find(named).map(|metric| metric.1)
        };
        let (accuracy, chance) = (find("retrieval_accuracy")?, find("retrieval_chance_level")?);
        let levels = Levels {
            information: find("mi_seq_estimate")? / find("mi_upper_bound")?,
            retrieval: if chance < 1.0 { (accuracy - chance) / (1.0 - chance) } else { 0.0 },
            entropy: find("conditional_entropy_seq_est")?,
        };
        [levels.information, levels.retrieval, levels.entropy].iter().all(|x| x.is_finite()).then_some(levels)
    }

    /// `self` · a + `other` · (1 − a).
    fn blend(self, a: f64, other: Levels) -> Levels {
        let of = |x: f64, y: f64| a * x + (1.0 - a) * y;
        Levels {
            information: of(self.information, other.information),
            retrieval: of(self.retrieval, other.retrieval),
            entropy: of(self.entropy, other.entropy),
        }
    }
}

/// A run's regime so far; part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegimeState {
    /// Measurements so far.
    pub n: u64,
    /// Mean of the first ones.
    pub start: Levels,
    /// Moving average.
    pub now: Levels,
    /// The collapses that were warned of.
    pub warned: BTreeSet<Regime>,
}

impl RegimeState {
    /// Takes in a measurement of step `step`; returns the regime, and a warning when the run is first found collapsed so.
    pub fn observe(&mut self, levels: Levels, step: u64, config: &RegimeConfig) -> (Regime, Option<String>) {
        self.now = if self.n == 0 { levels } else { self.now.blend(config.decay, levels) };
        if self.n < config.start.max(1) {
            self.start = self.start.blend(self.n as f64 / (self.n + 1) as f64, levels);
        }
        self.n += 1;
        let regime = self.name(config);
        let is_news = regime.is_collapse() && self.warned.insert(regime);
        (regime, is_news.then(|| self.warning(regime, step)))
    }

    fn name(&self, config: &RegimeConfig) -> Regime {
        let RegimeState { start, now, .. } = self;
        let fell = |now: f64, start: f64| now < config.information * start;
        let is_lost = (fell(now.information, start.information) && fell(now.retrieval, start.retrieval))
            || (now.information < config.floor && now.retrieval < config.floor);
        let is_thin = now.entropy < config.entropy * start.entropy || now.entropy < NO_ENTROPY;
        match (is_lost, is_thin) {
            (false, false) => Regime::Diverse,
            (false, true) => Regime::Compressed,
            (true, false) => Regime::TemplateCollapse,
            (true, true) => Regime::LowEntropyCollapse,
        }
    }

    fn warning(&self, regime: Regime, step: u64) -> String {
        let RegimeState { start, now, .. } = self;
        format!(
            "step {step}: {}, the reasoning no longer tells what it was asked: I(X;Z) is {:.2} of its bound ({:.2} at the start), \
             retrieval above chance {:.2} ({:.2}), H(Z|X) {:.2} nats ({:.2}); read the reasoning in trajectories/, and look at \
             rollout/in_group_reward_std (groups without spread teach nothing: filter.value, filter.include_zero) and update.loss.kl",
            regime.name(),
            now.information,
            start.information,
            now.retrieval,
            start.retrieval,
            now.entropy,
            start.entropy,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_models::random::Key;

    /// Steps, I(X;Z) of ln 16, H(Z|X) and retrieval; the regimes they are named and the steps that are warned of.
    fn run(curve: &[(u64, f64, f64, f64)]) -> (Vec<Regime>, Vec<(u64, String)>) {
        let (mut state, config) = (RegimeState::default(), RegimeConfig::default());
        let (mut regimes, mut warnings) = (Vec::new(), Vec::new());
        for &(step, information, entropy, accuracy) in curve {
            let retrieval = (accuracy - 1.0 / 16.0) / (1.0 - 1.0 / 16.0);
            let levels = Levels { information: information / 16f64.ln(), retrieval, entropy };
            // What is saved and read again goes on the same.
            state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
            let (regime, warning) = state.observe(levels, step, &config);
            regimes.push(regime);
            warnings.extend(warning.map(|text| (step, text)));
        }
        (regimes, warnings)
    }

    /// A measured run whose reward rises while each reasoning token costs: I(X;Z) and retrieval fall, and only much later H(Z|X).
    #[test]
    fn a_run_that_collapses_into_a_template_is_named_while_it_does_and_warned_of_once() {
        let (regimes, warnings) = run(&[
            (1, 2.44, 3.01, 0.88),
            (10, 2.37, 2.11, 0.88),
            (20, 1.48, 1.88, 0.50),
            (30, 1.10, 1.40, 0.40),
            (35, 0.87, 0.98, 0.31),
            (40, 1.10, 0.85, 0.25),
        ]);
        use Regime::{Diverse, TemplateCollapse};
        assert_eq!(regimes, [Diverse, Diverse, Diverse, TemplateCollapse, TemplateCollapse, TemplateCollapse]);
        let [(30, text)] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(text.starts_with("step 30: template collapse") && text.contains("trajectories/"), "{text}");
    }

    /// It goes on until nothing varies: that is another collapse, and said once more.
    #[test]
    fn a_template_that_freezes_is_low_entropy_collapse() {
        let mut curve = vec![(1, 2.7, 3.0, 1.0), (5, 2.7, 3.0, 1.0)];
        curve.extend((2..8).map(|i| (5 * i, 0.02, 2.5, 0.06)));
        curve.extend((8..16).map(|i| (5 * i, 0.0, 0.01, 0.0625)));
        let (regimes, warnings) = run(&curve);
        assert_eq!(regimes.last(), Some(&Regime::LowEntropyCollapse));
        assert_eq!(warnings.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [10, 50]);
    }

    /// Measured healthy runs: I(X;Z) at its bound or rising to it, H(Z|X) falling to a third; also with noise of 0.2 nats.
    #[test]
    fn healthy_runs_are_not_flagged() {
        let lakes = [(2.77, 2.45, 1.0), (2.77, 1.29, 1.0), (2.77, 1.31, 1.0), (2.77, 1.12, 1.0), (2.77, 0.71, 1.0)];
        let boxes = [(2.25, 2.72, 0.82), (2.14, 2.63, 0.80), (2.46, 2.0, 0.9), (2.68, 1.33, 1.0), (2.77, 1.24, 1.0)];
        for seed in 0..200 {
            let key = Key::new(seed);
            for levels in [&lakes, &boxes] {
                let curve: Vec<_> = (0..20u64)
                    .map(|i| {
                        let (information, entropy, accuracy) = levels[i as usize * levels.len() / 20];
                        let noise = 0.2 * key.normal(2 * i);
                        (
                            5 * i,
                            information + noise.min(0.0),
                            entropy,
                            accuracy + (0.1 * key.normal(2 * i + 1)).min(0.0),
                        )
                    })
                    .collect();
                let (regimes, warnings) = run(&curve);
                assert!(
                    warnings.is_empty() && !regimes.iter().any(|r| r.is_collapse()),
                    "{seed} {regimes:?} {warnings:?}"
                );
            }
        }
    }

    /// One bad measurement is none; a policy that never looked at its input is told from the first.
    #[test]
    fn one_outlier_is_no_collapse_and_a_bad_start_is_one() {
        let mut curve: Vec<(u64, f64, f64, f64)> = (0..8).map(|i| (5 * i, 2.7, 2.0, 1.0)).collect();
        (curve[4].1, curve[4].3) = (1.2, 0.45);
        assert_eq!(run(&curve).0, [Regime::Diverse; 8]);
        let (regimes, warnings) = run(&[(1, 0.01, 5.0, 0.06), (5, -0.02, 5.0, 0.07)]);
        assert_eq!((regimes, warnings.len()), (vec![Regime::TemplateCollapse; 2], 1));
    }

    #[test]
    fn levels_are_read_from_metrics_and_numbers_are_names() {
        let metric = |name: &str, value: f64| (format!("p/{name}"), value);
        let mut metrics = vec![
            metric("retrieval_accuracy", 0.75),
            metric("retrieval_chance_level", 0.5),
            metric("mi_seq_estimate", 1.0),
            metric("mi_upper_bound", 2.0),
            metric("conditional_entropy_seq_est", 3.0),
        ];
        let levels = Levels { information: 0.5, retrieval: 0.5, entropy: 3.0 };
        assert_eq!(Levels::read(&metrics, "p/"), Some(levels));
        assert_eq!((Levels::read(&metrics, "q/"), Levels::read(&metrics[1..], "p/")), (None, None));
        metrics[2].1 = f64::NAN;
        assert_eq!(Levels::read(&metrics, "p/"), None, "a broken measurement does not enter the averages");
        for regime in [Regime::Diverse, Regime::Compressed, Regime::TemplateCollapse, Regime::LowEntropyCollapse] {
            assert_eq!(Regime::numbered(regime.number()), Some(regime));
        }
        assert_eq!(Regime::numbered(7.0), None);
    }
}

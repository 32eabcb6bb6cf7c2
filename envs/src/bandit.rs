//! Bandit: one pull at one of two arms whose names hint at how they pay.
//!
//! It knows names and payoffs, and nothing of other tasks.
//!
//! # Description
//! Two arms bear the names of occupations, a steady one and a daring one. The steady arm always pays a little; the
//! daring arm pays much, seldom. An agent that reasons by association picks the steady name; one that learns from
//! payoffs finds that the daring one pays more on average.
//!
//! # Action Space
//! The two arms by name, in any case. Their ids, in the order of [`Env::actions`], start at `action_space_start`.
//! Anything else is invalid: reward 0, and the episode goes on.
//!
//! # Observation Space
//! Before the pull a sentence that names both arms in id order; after it `NAME: REWARD points`.
//!
//! # Starting State
//! The pair and the order of its names follow from the seed alone, so a group shares them.
//!
//! # Rewards
//! Safe arm: `lo_arm_score`. Risky arm: `hi_arm_hiscore` with probability `hi_arm_hiscore_prob`, else `hi_arm_loscore`.
//! The payoff's random stream follows from the seed and the member.
//!
//! # Episode End
//! Terminated by the first pull; never truncated. A later pull is tolerated, and pays again.
//!
//! # Information
//! `success`: the risky arm was pulled, whatever it paid. No further numbers.
//!
//! # Arguments
//! [`SETTINGS`].
//!
//! **Deviations** from the reference: there every member of a group saw another pair, since a counter was added to the
//! seed; and an unknown action was an assertion failure.

use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const TYPE: &str = "bandit";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "split", default: "\"train\"", meaning: "which pairs of names are used: train (12) or test (8)" },
    Setting { name: "action_space_start", default: "1", meaning: "id of the first arm in saved states" },
    Setting { name: "lo_arm_score", default: "0.1", meaning: "what the safe arm pays" },
    Setting { name: "hi_arm_loscore", default: "0.0", meaning: "what the risky arm pays mostly" },
    Setting { name: "hi_arm_hiscore", default: "1.0", meaning: "what the risky arm pays at times" },
    Setting { name: "hi_arm_hiscore_prob", default: "0.25", meaning: "how often, 0 to 1" },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "choose between a safe and a risky arm by their names, in one pull",
    many_starts: false,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || ["train", "test"].map(tag).into(),
    unavailable: || None,
    build: |config| Ok(Box::new(Bandit::new(config)?)),
};

fn tag(split: &str) -> Tag {
    let name = if split == "train" { "Bandit" } else { "BanditTest" };
    Tag::new(name, TYPE, 1, 100, json!({"split": split}))
}

/// (safe, risky) names of the split `train`.
pub(crate) const TRAIN_ARMS: [(&str, &str); 12] = [
    ("Teacher", "Trader"),
    ("Nurse", "StartupFounder"),
    ("Librarian", "Investor"),
    ("Accountant", "StockBroker"),
    ("Engineer", "RealEstateAgent"),
    ("Pharmacist", "Musician"),
    ("Clerk", "Freelancer"),
    ("Technician", "Youtuber"),
    ("Planner", "Artist"),
    ("Postman", "Pilot"),
    ("Banker", "VentureCapitalist"),
    ("Gardener", "Cryptominer"),
];

/// (safe, risky) names of the split `test`.
pub(crate) const TEST_ARMS: [(&str, &str); 8] = [
    ("Receptionist", "Explorer"),
    ("Archivist", "Filmmaker"),
    ("Bookkeeper", "Consultant"),
    ("SocialWorker", "Photographer"),
    ("Mechanic", "GameDesigner"),
    ("Secretary", "Entrepreneur"),
    ("Cashier", "DataScientist"),
    ("CivilServant", "StartupAccelerator"),
];

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Bandit {
    arms: &'static [(&'static str, &'static str)],
    first_id: usize,
    safe_score: f64,
    risky_low: f64,
    risky_high: f64,
    risky_high_p: f64,
    episode: Option<Episode>,
}

#[derive(Clone, Debug)]
struct Episode {
    pair_index: usize,
    risky_first: bool,
    payoff: Stream,
    /// What the last pull showed; `None` before it.
    pulled: Option<Pulled>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Pulled {
    risky: bool,
    reward: f64,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    pair_index: usize,
    action_lookup: BTreeMap<String, String>,
    payoff: Stream,
    pulled: Option<Pulled>,
}

impl Bandit {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        let any = f64::NEG_INFINITY..=f64::INFINITY;
        let bandit = Bandit {
            arms: [&TRAIN_ARMS[..], &TEST_ARMS[..]][reader.choice("split", &["train", "test"])],
            first_id: reader.integer("action_space_start", 0..=1_000_000),
            safe_score: reader.number("lo_arm_score", any.clone()),
            risky_low: reader.number("hi_arm_loscore", any.clone()),
            risky_high: reader.number("hi_arm_hiscore", any),
            risky_high_p: reader.number("hi_arm_hiscore_prob", 0.0..=1.0),
            episode: None,
        };
        reader.finish(bandit)
    }

    /// Starts an episode from the two draws of the layout, each in [0, 1).
    pub(crate) fn deal(&mut self, pair_draw: f64, order_draw: f64, payoff: Stream) {
        let pair_index = (pair_draw * self.arms.len() as f64) as usize;
        self.episode = Some(Episode { pair_index, risky_first: order_draw >= 0.5, payoff, pulled: None });
    }

    /// Names in id order.
    fn names(&self, episode: &Episode) -> [&'static str; 2] {
        let (safe, risky) = self.arms[episode.pair_index];
        if episode.risky_first { [risky, safe] } else { [safe, risky] }
    }

    /// What an arm pays; `draw` is called for the risky arm only.
    pub(crate) fn payoff(&self, risky: bool, draw: impl FnOnce() -> f64) -> f64 {
        match risky {
            false => self.safe_score,
            true if draw() < self.risky_high_p => self.risky_high,
            true => self.risky_low,
        }
    }

    /// Writes a pull into the episode and says what it did.
    pub(crate) fn pull(&mut self, risky: bool, reward: f64) -> Step {
        if let Some(episode) = &mut self.episode {
            episode.pulled = Some(Pulled { risky, reward });
        }
        Step { reward, terminated: true, success: risky, valid: true, effective: true, ..Step::default() }
    }
}

impl Env for Bandit {
    fn reset(&mut self, seed: u64, member: u64, _mode: Mode) -> Result<(), EnvError> {
        let mut layout = Stream::derive(TYPE, seed, "layout");
        let (pair_draw, order_draw) = (layout.uniform(), layout.uniform());
        self.deal(pair_draw, order_draw, Stream::derive(TYPE, seed, "payoff").branch(member));
        Ok(())
    }

    fn observation(&self) -> String {
        let Some(episode) = &self.episode else { return String::new() };
        let names = self.names(episode);
        match episode.pulled {
            None => format!("Two arms: {} and {}. Which one do you pull? Answer with its name.", names[0], names[1]),
            Some(pulled) => {
                format!("{}: {:?} points", names[usize::from(pulled.risky != episode.risky_first)], pulled.reward)
            }
        }
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let episode = self.episode.as_ref().ok_or(EnvError::NotReset { env_type: TYPE })?;
        let arm = self.names(episode).iter().position(|name| name.eq_ignore_ascii_case(action));
        let Some(arm) = arm else {
            let pulled = episode.pulled;
            let success = pulled.is_some_and(|pulled| pulled.risky);
            return Ok(Step { terminated: pulled.is_some(), success, ..Step::default() });
        };
        let risky = (arm == 0) == episode.risky_first;
        let mut stream = episode.payoff;
        let reward = self.payoff(risky, || stream.uniform());
        if let Some(episode) = &mut self.episode {
            episode.payoff = stream;
        }
        Ok(self.pull(risky, reward))
    }

    fn actions(&self) -> Option<Vec<String>> {
        let names = self.episode.as_ref().map(|episode| self.names(episode).map(str::to_owned).to_vec());
        Some(names.unwrap_or_default())
    }

    fn instruction(&self) -> String {
        "You play a game with two arms, each named after an occupation. You may pull one arm, once. Each arm has its own \
         way of paying, and its name hints at it. Choose the arm that you expect to pay more on average."
            .to_owned()
    }

    fn state(&self) -> Value {
        let Some(episode) = &self.episode else { return Value::Null };
        let ids = self.first_id..;
        let action_lookup = ids.zip(self.names(episode)).map(|(id, name)| (id.to_string(), name.to_owned())).collect();
        let Episode { pair_index, payoff, pulled, .. } = *episode;
        json!(Saved { pair_index, action_lookup, payoff, pulled })
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let saved: Saved = Saved::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        let (safe, risky) = *self
            .arms
            .get(saved.pair_index)
            .ok_or_else(|| wrong(format!("pair_index {} of {} pairs", saved.pair_index, self.arms.len())))?;
        let name = |id: usize| saved.action_lookup.get(&id.to_string()).map(String::as_str);
        let risky_first = match (name(self.first_id), name(self.first_id + 1)) {
            (Some(a), Some(b)) if (a, b) == (safe, risky) => false,
            (Some(a), Some(b)) if (a, b) == (risky, safe) => true,
            _ => return Err(wrong(format!("action_lookup must name {safe} and {risky} from id {}", self.first_id))),
        };
        let Saved { pair_index, payoff, pulled, .. } = saved;
        self.episode = Some(Episode { pair_index, risky_first, payoff, pulled });
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(episode) = &self.episode else { return 0 };
        hash_bytes(format!("{TYPE} {:?} {:?}", self.names(episode), episode.pulled).bytes())
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let episode = self.episode.as_ref().filter(|episode| episode.pulled.is_none())?;
        let names = self.names(episode);
        let best = usize::from(!episode.risky_first);
        let arm = if draws.chance(options.noise) { draws.below(2) } else { best };
        Some(Turn { thought: format!("pull {}", names[arm]), actions: vec![names[arm].to_owned()] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(seed: u64, member: u64) -> Bandit {
        let mut bandit = Bandit::new(&Value::Null).unwrap();
        bandit.reset(seed, member, Mode::Train).unwrap();
        bandit
    }

    #[test]
    fn a_group_shares_pair_and_order_but_not_the_payoff() {
        let mut differs = false;
        for seed in 0..40 {
            let mut members: Vec<Bandit> = (0..8).map(|member| started(seed, member)).collect();
            assert!(members.iter().all(|member| member.observation() == members[0].observation()));
            let risky = members[0].arms[members[0].episode.as_ref().unwrap().pair_index].1;
            let paid: Vec<f64> = members.iter_mut().map(|member| member.step(risky).unwrap().reward).collect();
            differs |= paid.iter().any(|reward| *reward != paid[0]);
        }
        assert!(differs);
    }

    #[test]
    fn the_risky_arm_pays_more_on_average() {
        let n = 20_000;
        let paid: f64 = (0..n)
            .map(|seed| {
                let mut bandit = started(seed, 0);
                let risky = bandit.arms[bandit.episode.as_ref().unwrap().pair_index].1;
                bandit.step(&risky.to_uppercase()).unwrap().reward
            })
            .sum();
        assert!((paid / n as f64 - 0.25).abs() < 0.01, "{}", paid / n as f64);
    }

    #[test]
    fn the_player_knows_the_better_arm() {
        for split in ["train", "test"] {
            let build = || crate::make(TYPE, &json!({"split": split}));
            let informed = crate::conformance::demonstrated(&build, &Demonstration::perfect(1), 1000, 1, 1).unwrap();
            assert_eq!(informed, (1.0, 1.0), "{split}");
        }
    }

    #[test]
    fn an_unknown_arm_is_invalid_and_ends_nothing() {
        let mut bandit = started(3, 0);
        let before = bandit.observation();
        assert_eq!(bandit.step("Nobody").unwrap(), Step::default());
        assert_eq!(bandit.observation(), before);
    }
}

//! Layers that any environment can be put under: limits, another reward, a window of what was seen.
//!
//! A layer knows the environment below it as an [`Env`] and nothing of its task. The setting `wrappers`, which every type has,
//! lists them from the inside out, each a map of one key: `[{ time_limit = 20 }, { reward = { scale = 0.1 } }]`.

use crate::settings::{Problem, nearest, suggest};
use crate::{Demonstration, Env, EnvError, Legend, Mode, Setting, Step, Stream, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The layers there are.
pub const WRAPPERS: &[Setting] = &[
    Setting {
        name: "time_limit",
        default: "null",
        meaning: "valid actions of an episode at most; then it is truncated",
    },
    Setting {
        name: "action_budget",
        default: "null",
        meaning: "actions that changed something, at most; then it is truncated",
    },
    Setting {
        name: "reward",
        default: r#"{"scale": 1.0, "offset": 0.0, "min": null, "max": null, "step_cost": 0.0}"#,
        meaning: "a step pays scale × reward + offset, kept from min to max, less step_cost",
    },
    Setting {
        name: "history",
        default: "null",
        meaning: "so many earlier states are shown above the present one, with what was done in each",
    },
];

/// Takes `wrappers` out of a map of settings.
pub(crate) fn split(config: &Value) -> (Value, Option<Value>) {
    let mut own = config.clone();
    let wrappers = own.as_object_mut().and_then(|map| map.shift_remove("wrappers"));
    (own, wrappers)
}

/// Puts the layers of `wrappers` around an environment.
///
/// **Errors** [`EnvError::Config`] that names each wrong key by its place in the list.
pub(crate) fn wrap(env_type: &str, env: Box<dyn Env>, wrappers: &Value) -> Result<Box<dyn Env>, EnvError> {
    let mut problems = Vec::new();
    let mut env = env;
    match wrappers.as_array() {
        None => problems.push(problem("wrappers", format!("is {wrappers} but must be a list of maps of one key each"))),
        Some(list) => {
            for (i, layer) in list.iter().enumerate() {
                match Rule::read(layer, &format!("wrappers[{i}]")) {
                    Ok(rule) => env = Box::new(Layer { inner: env, rule, kept: Kept::default() }),
                    Err(found) => problems.push(found),
                }
            }
        }
    }
    if problems.is_empty() { Ok(env) } else { Err(EnvError::Config { env_type: env_type.to_owned(), problems }) }
}

fn problem(key: &str, message: String) -> Problem {
    Problem { key: key.to_owned(), message }
}

#[derive(Clone, Debug)]
enum Rule {
    TimeLimit(u64),
    ActionBudget(u64),
    Reward(Reward),
    History(usize),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Reward {
    scale: f64,
    offset: f64,
    min: Option<f64>,
    max: Option<f64>,
    step_cost: f64,
}

impl Default for Reward {
    fn default() -> Self {
        Reward { scale: 1.0, offset: 0.0, min: None, max: None, step_cost: 0.0 }
    }
}

impl Rule {
    fn read(layer: &Value, at: &str) -> Result<Self, Problem> {
        let only = layer.as_object().filter(|map| map.len() == 1).and_then(|map| map.iter().next());
        let Some((name, value)) = only else {
            return Err(problem(
                at,
                format!("is {layer} but must be a map of one key, such as {{\"time_limit\": 20}}"),
            ));
        };
        let key = format!("{at}.{name}");
        let count = || {
            let number = value.as_u64().filter(|n| (1..=1_000_000).contains(n));
            number.ok_or_else(|| problem(&key, format!("is {value} but must be a whole number from 1 to 1000000")))
        };
        match name.as_str() {
            "time_limit" => Ok(Rule::TimeLimit(count()?)),
            "action_budget" => Ok(Rule::ActionBudget(count()?)),
            "history" => Ok(Rule::History(count()? as usize)),
            "reward" => {
                let reward = Reward::deserialize(value).map_err(|error| problem(&key, error.to_string()))?;
                match (reward.min, reward.max) {
                    (Some(min), Some(max)) if min > max => Err(problem(&key, format!("has min {min} above max {max}"))),
                    _ => Ok(Rule::Reward(reward)),
                }
            }
            _ => {
                let names = || WRAPPERS.iter().map(|setting| setting.name);
                let known = names().collect::<Vec<_>>().join(", ");
                let hint = suggest(&nearest(name, names()));
                Err(problem(&key, format!("unknown wrapper{hint}; there are {known}")))
            }
        }
    }
}

/// What a layer remembers of an episode.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Actions that count for a limit.
    counted: u64,
    /// The task has ended.
    ended: bool,
    /// Earlier states, each with what was done in it; the last so many.
    earlier: Vec<(String, String)>,
}

struct Layer {
    inner: Box<dyn Env>,
    rule: Rule,
    kept: Kept,
}

impl Layer {
    /// Whether a limit of this layer has cut the episode off.
    fn is_over(&self) -> bool {
        match self.rule {
            Rule::TimeLimit(most) | Rule::ActionBudget(most) => self.kept.counted >= most && !self.kept.ended,
            _ => false,
        }
    }
}

impl Env for Layer {
    fn reset(&mut self, seed: u64, member: u64, mode: Mode) -> Result<(), EnvError> {
        self.kept = Kept::default();
        self.inner.reset(seed, member, mode)
    }

    fn observation(&self) -> String {
        let now = self.inner.observation();
        if self.kept.earlier.is_empty() {
            return now;
        }
        let told = |(state, action): &(String, String)| format!("Earlier:\n{state}\nDone: {action}\n");
        let earlier: String = self.kept.earlier.iter().map(told).collect();
        format!("{earlier}Now:\n{now}")
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        if self.is_over() {
            return Ok(Step { truncated: true, ..Step::default() });
        }
        let before = matches!(self.rule, Rule::History(_)).then(|| self.inner.observation());
        let mut step = self.inner.step(action)?;
        let was_ended = self.kept.ended;
        self.kept.ended |= step.ended();
        match &self.rule {
            Rule::TimeLimit(_) => self.kept.counted += u64::from(step.valid && !was_ended),
            Rule::ActionBudget(_) => self.kept.counted += u64::from(step.effective && !was_ended),
            Rule::Reward(Reward { scale, offset, min, max, step_cost }) => {
                let paid = scale * step.reward + offset;
                let paid = max.map_or(paid, |max| paid.min(max));
                step.reward = min.map_or(paid, |min| paid.max(min)) - step_cost;
            }
            Rule::History(most) => {
                if let (Some(before), true) = (before, step.effective) {
                    self.kept.earlier.push((before, action.chars().take(200).collect()));
                    let cut = self.kept.earlier.len().saturating_sub(*most);
                    self.kept.earlier.drain(..cut);
                }
            }
        }
        step.truncated |= self.is_over();
        Ok(step)
    }

    fn actions(&self) -> Option<Vec<String>> {
        self.inner.actions()
    }

    fn instruction(&self) -> String {
        self.inner.instruction()
    }

    fn legend(&self) -> Legend {
        self.inner.legend()
    }

    fn backend(&self) -> Option<String> {
        self.inner.backend()
    }

    fn many_starts(&self) -> Option<bool> {
        self.inner.many_starts()
    }

    fn state(&self) -> Value {
        match self.inner.state() {
            Value::Null => Value::Null,
            inner => json!({"inner": inner, "layer": self.kept}),
        }
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.kept = Kept::default();
            return self.inner.load_state(state);
        }
        let wrong = |reason: String| EnvError::State { env_type: "wrappers", reason };
        let empty = Map::new();
        let map = state.as_object().unwrap_or(&empty);
        let (Some(inner), Some(kept)) = (map.get("inner"), map.get("layer")) else {
            return Err(wrong("it needs `inner` and `layer`".to_owned()));
        };
        let kept = Kept::deserialize(kept).map_err(|error| wrong(error.to_string()))?;
        self.inner.load_state(inner)?;
        self.kept = kept;
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        self.inner.state_hash()
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        if self.is_over() { None } else { self.inner.demonstrate(options, draws) }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, EnvError, Mode, conformance, make};
    use serde_json::{Value, json};

    fn lake(wrappers: Value) -> Result<Box<dyn Env>, EnvError> {
        make("frozen_lake", &json!({"size": 4, "is_slippery": false, "wrappers": wrappers}))
    }

    /// Steps over the lake of seed 3, which does not end soon, going up and down.
    fn walk(wrappers: Value, n: usize) -> (Vec<crate::Step>, String) {
        let mut env = lake(wrappers).unwrap();
        env.reset(3, 0, Mode::Train).unwrap();
        let steps = (0..n).map(|i| env.step(["Up", "nonsense", "Down"][i % 3]).unwrap()).collect();
        (steps, env.observation())
    }

    #[test]
    fn every_layer_conforms_alone_and_with_others() {
        for wrappers in [
            json!([]),
            json!([{"time_limit": 5}]),
            json!([{"action_budget": 3}]),
            json!([{"reward": {"scale": 0.5, "step_cost": 0.1, "max": 0.2}}]),
            json!([{"history": 2}]),
            json!([{"history": 1}, {"time_limit": 7}, {"reward": {"min": 0}}, {"action_budget": 4}]),
        ] {
            assert_eq!(conformance::check(&|| lake(wrappers.clone())), Vec::<String>::new(), "{wrappers}");
        }
    }

    #[test]
    fn limits_cut_off_after_so_many_actions() {
        let cut = |wrappers: Value| walk(wrappers, 9).0.iter().position(|step| step.truncated);
        // Up, nonsense, Down, Up: the fourth is the third valid one.
        assert_eq!(cut(json!([{"time_limit": 3}])), Some(3));
        assert_eq!(cut(json!([])), None);
        let effective: Vec<bool> = walk(json!([]), 9).0.iter().map(|step| step.effective).collect();
        let second = (0..9).filter(|i| effective[*i]).nth(1).unwrap();
        assert_eq!(cut(json!([{"action_budget": 2}])), Some(second), "{effective:?}");
        let (steps, _) = walk(json!([{"time_limit": 1}]), 3);
        assert!(steps[0].valid && steps[2].truncated && !steps[2].valid && !steps[2].effective);
    }

    #[test]
    fn rewards_are_scaled_moved_kept_within_and_charged() {
        let paid = |reward: Value| walk(json!([{"reward": reward}]), 1).0[0].reward;
        assert_eq!(paid(json!({})), 0.0);
        assert_eq!(paid(json!({"scale": 3, "offset": 2})), 2.0);
        assert_eq!(paid(json!({"offset": 2, "max": 0.5, "step_cost": 0.25})), 0.25);
        assert_eq!(paid(json!({"offset": -2, "min": -1})), -1.0);
    }

    #[test]
    fn history_shows_the_last_states_and_what_was_done() {
        let (_, plain) = walk(json!([]), 6);
        let (_, seen) = walk(json!([{"history": 1}]), 6);
        assert!(seen.starts_with("Earlier:\n") && seen.ends_with(&format!("Now:\n{plain}")), "{seen}");
        assert_eq!(seen.matches("Done: ").count(), 1);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let said = |wrappers: Value| lake(wrappers).err().unwrap().to_string();
        let wrong = said(json!([{"time_limit": 0}, {"time_limt": 3}, {"reward": {"scal": 1}}, {"a": 1, "b": 2}]));
        for part in [
            "wrappers[0].time_limit: is 0 but must be a whole number from 1 to 1000000",
            "wrappers[1].time_limt: unknown wrapper (did you mean `time_limit`?); there are time_limit, action_budget,",
            "wrappers[2].reward: unknown field `scal`",
            "wrappers[3]: is {\"a\":1,\"b\":2} but must be a map of one key",
        ] {
            assert!(wrong.contains(part), "{wrong} lacks {part}");
        }
        assert!(said(json!(3)).contains("wrappers: is 3 but must be a list"));
        assert!(said(json!([{"reward": {"min": 1, "max": 0}}])).contains("has min 1 above max 0"));
    }
}

//! A trajectory: one episode as token ids with provenance, and what the environment said turn by turn (decision D2).
//!
//! The ids are made once, while the episode is played. The trained ids are exactly the sampled ones, with the
//! log-probabilities they were drawn with; text is only a view of them. This module does not know where ids or rewards
//! come from.

use crate::policy::{Finish, KeptSet, Row};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where a token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// Control tokens and fixed words around the turns.
    Template,
    /// What the environment says.
    Environment,
    /// Drawn by the policy: the loss mask.
    Sampled,
}

impl Provenance {
    /// One letter: `t`, `e` or `s`.
    pub fn letter(self) -> char {
        match self {
            Provenance::Template => 't',
            Provenance::Environment => 'e',
            Provenance::Sampled => 's',
        }
    }
}

/// Token ids, each with its provenance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The ids.
    pub ids: Vec<u32>,
    /// Where each comes from, as many as `ids`.
    pub provenance: Vec<Provenance>,
}

impl Tokens {
    /// Appends ids of one provenance.
    pub fn push(&mut self, ids: &[u32], provenance: Provenance) {
        self.ids.extend_from_slice(ids);
        self.provenance.resize(self.ids.len(), provenance);
    }

    /// Appends all of `other`.
    pub fn extend(&mut self, other: &Tokens) {
        self.ids.extend_from_slice(&other.ids);
        self.provenance.extend_from_slice(&other.provenance);
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// What the environment made of one response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    /// The actions that the response named, in order.
    pub parsed: Vec<String>,
    /// Those that were executed, by the environment's own names.
    pub executed: Vec<String>,
    /// Actions left in the episode's budget before this turn.
    pub actions_left: usize,
    /// Sum of the executed actions' rewards.
    pub reward: f64,
    /// What the format cost; 0 or negative.
    pub penalty: f64,
    /// The response named no known action.
    pub invalid: bool,
    /// The response named an action that there is not.
    pub has_unknown: bool,
    /// Numbers that the environment gave, a later action's winning; `raw_reward` is summed and always there.
    pub info: BTreeMap<String, f64>,
}

/// One prompt and one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// What the environment showed.
    pub observation: String,
    /// The prompt's place in the trajectory's ids.
    pub prompt: Range<usize>,
    /// The sampled ids' place.
    pub response: Range<usize>,
    /// Place of the reasoning: what stands between the thinking tags. `None` if they are not both there or nothing is.
    pub reasoning: Option<Range<usize>>,
    /// The response as text, with the opening tag that the prompt may have ended with.
    pub text: String,
    /// Why sampling ended.
    pub finish: Finish,
    /// The response has the required form.
    pub format_ok: bool,
    /// What the environment made of it.
    pub played: Played,
}

/// Why an episode ended, and how well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The task ended.
    pub terminated: bool,
    /// A limit ended the episode: actions, turns, context, or the environment's own.
    pub truncated: bool,
    /// The task ended well.
    pub success: bool,
    /// It was the context that was full.
    pub context_full: bool,
}

impl Outcome {
    /// Whether the episode is over.
    pub fn ended(&self) -> bool {
        self.terminated || self.truncated
    }
}

/// One episode from reset to end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    /// The environment's tag.
    pub tag: String,
    /// The group, counted over all tags of the rollout.
    pub group: usize,
    /// The member within the group.
    pub member: usize,
    /// The seed of the group's level.
    pub seed: u64,
    /// Hash of the first state.
    pub state_hash: u64,
    /// All tokens of the episode.
    pub tokens: Tokens,
    /// Indices of the sampled tokens in `tokens`, ascending: the loss mask.
    pub targets: Vec<u32>,
    /// Log-probability of each target under the distribution it was drawn from.
    pub logps: Vec<f32>,
    /// The kept set of each target; empty when nothing was filtered.
    pub kept: Vec<KeptSet>,
    /// The turns.
    pub turns: Vec<Turn>,
    /// Why it ended, and how well.
    pub outcome: Outcome,
}

impl Trajectory {
    /// Sum of the turns' rewards.
    pub fn reward(&self) -> f64 {
        self.turns.iter().map(|turn| turn.played.reward).sum()
    }

    /// Sum of the turns' format penalties; 0 or negative.
    pub fn penalty(&self) -> f64 {
        self.turns.iter().map(|turn| turn.played.penalty).sum()
    }

    /// What is trained on before normalisation: reward and penalty.
    pub fn score(&self) -> f64 {
        self.reward() + self.penalty()
    }

    /// Actions executed.
    pub fn n_actions(&self) -> usize {
        self.turns.iter().map(|turn| turn.played.executed.len()).sum()
    }

    /// The row to score or train on.
    pub fn row(&self) -> Row<'_> {
        Row { ids: &self.tokens.ids, targets: &self.targets, kept: &self.kept }
    }

    /// Appends what was sampled for one prompt and returns its place.
    pub fn push_response(&mut self, ids: &[u32], logps: &[f32], kept: &[KeptSet]) -> Range<usize> {
        let start = self.tokens.len();
        self.tokens.push(ids, Provenance::Sampled);
        if !kept.is_empty() || !self.kept.is_empty() {
            // A target without a kept set was drawn from the whole vocabulary.
            self.kept.resize(self.targets.len(), None);
            self.kept.extend_from_slice(kept);
            self.kept.resize(self.targets.len() + ids.len(), None);
        }
        self.targets.extend((start..start + ids.len()).map(|i| i as u32));
        self.logps.extend_from_slice(logps);
        start..start + ids.len()
    }

    /// The trajectory as one JSON object, with whatever the trainer adds about it.
    pub fn to_json(&self, text: &str, added: Map<String, Value>) -> Value {
        let turns: Vec<Value> = self.turns.iter().map(Turn::to_json).collect();
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.into(), value);
        put("tag", json!(self.tag));
        put("group", json!(self.group));
        put("member", json!(self.member));
        put("seed", json!(self.seed));
        put("state_hash", json!(format!("{:016x}", self.state_hash)));
        put("reward", json!(self.reward()));
        put("penalty", json!(self.penalty()));
        put("success", json!(self.outcome.success));
        put("terminated", json!(self.outcome.terminated));
        put("truncated", json!(self.outcome.truncated));
        put("turns", json!(turns));
        put("text", json!(text));
        put("ids", json!(self.tokens.ids));
        put("provenance", json!(self.tokens.provenance.iter().map(|p| p.letter()).collect::<String>()));
        put("logps", json!(self.logps));
        object.extend(added);
        Value::Object(object)
    }
}

impl Turn {
    /// The response has the required form and named no unknown action.
    pub fn is_valid(&self) -> bool {
        self.format_ok && !self.played.invalid && !self.played.has_unknown
    }

    fn to_json(&self) -> Value {
        let finish = match self.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Context => "context",
        };
        json!({
            "observation": self.observation,
            "response": self.text,
            "prompt_tokens": [self.prompt.start, self.prompt.end],
            "response_tokens": [self.response.start, self.response.end],
            "finish": finish,
            "format_ok": self.format_ok,
            "actions_left": self.played.actions_left,
            "parsed": self.played.parsed,
            "executed": self.played.executed,
            "reward": self.played.reward,
            "penalty": self.played.penalty,
            "info": self.played.info,
        })
    }
}

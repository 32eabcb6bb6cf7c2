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
    /// An earlier response that is shown again. The policy drew it, but not in this row and, where a template shows it, perhaps not so.
    History,
}

impl Provenance {
    /// One letter: `t`, `e`, `s` or `h`.
    pub fn letter(self) -> char {
        match self {
            Provenance::Template => 't',
            Provenance::Environment => 'e',
            Provenance::Sampled => 's',
            Provenance::History => 'h',
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
    /// Hash of the environment's state then.
    pub state_hash: u64,
    /// The row that it was played in.
    pub row: usize,
    /// The first turn that the policy saw when it responded, counted from 0; those before were left out.
    pub shown_from: usize,
    /// The prompt's place in the row's ids.
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

/// A token sequence that the policy read and continued, and what is trained in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenRow {
    /// All its tokens.
    pub tokens: Tokens,
    /// Indices of the sampled tokens in `tokens`, ascending: the loss mask.
    pub targets: Vec<u32>,
    /// Log-probability of each target under the distribution it was drawn from.
    pub logps: Vec<f32>,
    /// The kept set of each target; empty when nothing was filtered.
    pub kept: Vec<KeptSet>,
}

impl TokenRow {
    /// The row to score or train on.
    pub fn view(&self) -> Row<'_> {
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

    fn to_json(&self, decode: &dyn Fn(&[u32]) -> String) -> Map<String, Value> {
        let provenance: String = self.tokens.provenance.iter().map(|p| p.letter()).collect();
        let mut object = Map::new();
        object.insert("text".into(), json!(decode(&self.tokens.ids)));
        object.insert("ids".into(), json!(self.tokens.ids));
        object.insert("provenance".into(), json!(provenance));
        object.insert("logps".into(), json!(self.logps));
        object
    }
}

/// One episode from reset to end.
///
/// It is one row as long as every prompt goes on where the last response ended. Where the template shows history otherwise,
/// where turns no longer fit, and in the windowed context modes with every turn, a new row begins; an episode still has one
/// score, and counts once wherever episodes are counted.
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
    /// Its rows, in order.
    pub rows: Vec<TokenRow>,
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

    /// The rows to score or train on.
    pub fn views(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(TokenRow::view)
    }

    /// Tokens sampled in all.
    pub fn n_sampled(&self) -> usize {
        self.rows.iter().map(|row| row.targets.len()).sum()
    }

    /// Tokens of all rows.
    pub fn n_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len()).sum()
    }

    /// The row that is played in; the first one, if there is none yet.
    pub fn last_row(&mut self) -> &mut TokenRow {
        if self.rows.is_empty() {
            self.rows.push(TokenRow::default());
        }
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// Appends a prompt, in a row of its own if it begins one, and returns its place in the row.
    pub fn push_prompt(&mut self, tokens: &Tokens, starts_row: bool) -> Range<usize> {
        if starts_row {
            self.rows.push(TokenRow::default());
        }
        let row = self.last_row();
        let start = row.tokens.len();
        row.tokens.extend(tokens);
        start..row.tokens.len()
    }

    /// The trajectory as one JSON object, with whatever the trainer adds about it; `decode` makes text of ids.
    ///
    /// `text`, `ids`, `provenance` and `logps` are those of its row; with several rows they stand in `rows`, one object each,
    /// and each turn names its `row`.
    pub fn to_json(&self, decode: &dyn Fn(&[u32]) -> String, added: Map<String, Value>) -> Value {
        let mut turns: Vec<Value> = self.turns.iter().map(Turn::to_json).collect();
        if self.rows.len() > 1 {
            turns.iter_mut().zip(&self.turns).for_each(|(json, turn)| json["row"] = turn.row.into());
        }
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
        match &self.rows[..] {
            [row] => object.extend(row.to_json(decode)),
            rows => drop(put("rows", rows.iter().map(|row| Value::Object(row.to_json(decode))).collect())),
        }
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
            "shown_from": self.shown_from,
            "state_hash": format!("{:016x}", self.state_hash),
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

//! What prompts say, piece by piece; how the pieces become tokens is the layout's.

use super::ContextManager;
use super::messages::Told;
use crate::config::{ContextMode, PromptStyle};
use crate::env_manager::Episode;
use crate::protocol::{ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN, parse};
use crate::trajectory::Turn;
use ragen_envs::{Brief, Recap};

/// A piece of a prompt's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Words of our own.
    Words(String),
    /// What an environment says.
    Environment(String),
    /// A tag as the policy writes it.
    Tag(&'static str),
    /// What the policy said earlier, as text and as ids.
    Said { text: String, ids: Vec<u32> },
}

impl Piece {
    pub fn text(&self) -> &str {
        match self {
            Piece::Words(text) | Piece::Environment(text) | Piece::Said { text, .. } => text,
            Piece::Tag(tag) => tag,
        }
    }
}

/// All pieces as one text.
pub(super) fn text_of(pieces: &[Piece]) -> String {
    pieces.iter().map(Piece::text).collect()
}

fn words(text: impl Into<String>) -> Piece {
    Piece::Words(text.into())
}

impl ContextManager {
    /// Instruction, legend, action names, budgets.
    pub(super) fn system_message(&self, episode: &Episode) -> Vec<Piece> {
        let rules = &episode.rules;
        let mut pieces = vec![
            words("You act step by step in a task.\n"),
            Piece::Environment(rules.instruction.clone()),
            words("\n"),
        ];
        let legend = rules.legend.to_string();
        if !legend.is_empty() {
            pieces.extend([Piece::Environment(legend), words("\n")]);
        }
        if let Some(names) = episode.actions() {
            pieces.extend([words("Actions: "), Piece::Environment(names.join(", ")), words("\n")]);
        }
        let (turn, budget) = (self.max_actions_per_turn, rules.max_actions);
        pieces.push(words(match rules.single_action {
            true => format!("One action a turn, {budget} in all.\n"),
            false => format!("At most {turn} actions a turn, separated by {}, and {budget} in all.\n", self.separator),
        }));
        pieces
    }

    /// What the turn before earned.
    pub(super) fn reward_of_last(&self, last: &Turn) -> Piece {
        words(format!("Reward of the last turn: {:?}\n\n", last.played.reward + 0.0))
    }

    /// Turn, state, notice, budget, form; `turn` counts from 1.
    pub(super) fn block(&self, episode: &Episode, turn: usize, has_notice: bool) -> Vec<Piece> {
        let mut pieces = vec![words(format!("Turn {turn}\n"))];
        pieces.extend(self.state(episode));
        if has_notice {
            pieces.push(words("\nThe last response named no action that can be taken; the state is unchanged."));
        }
        pieces.push(words(format!("\nActions left: {}\nRespond in the form ", episode.actions_left)));
        if self.think {
            pieces.extend([Piece::Tag(THINK_OPEN), words("reasoning"), Piece::Tag(THINK_CLOSE), words(" ")]);
        }
        let announced = episode.rules.max_tokens;
        let length = if announced > 0 { announced } else { self.response_tokens };
        pieces.extend([Piece::Tag(ANSWER_OPEN), words("actions"), Piece::Tag(ANSWER_CLOSE)]);
        if self.stops_by_text()
            && let Some(names) = episode.actions()
        {
            // A language model takes a form more readily from an example than from a description.
            let names: Vec<&str> = names.iter().take(self.max_actions_per_turn).map(String::as_str).collect();
            let example = names.join(&format!(" {} ", self.separator));
            pieces.extend([words(", for example "), Piece::Tag(ANSWER_OPEN), Piece::Environment(example)]);
            pieces.extend([Piece::Tag(ANSWER_CLOSE), words(",")]);
        }
        pieces.push(words(format!(" with at most {length} tokens.\n")));
        pieces
    }

    /// The present state. Where earlier turns are told in brief, so is what every state would repeat.
    pub(super) fn state(&self, episode: &Episode) -> Vec<Piece> {
        let state = episode.observation();
        match episode.rules.recap {
            Recap::Brief(brief) if self.mode == ContextMode::SingleTurn => {
                let mut pieces = vec![Piece::Environment((brief.gist)(&state))];
                let offers = (brief.offers)(&state);
                if !offers.is_empty() {
                    pieces.extend([words("\n"), Piece::Environment(offers)]);
                }
                pieces
            }
            _ => vec![Piece::Environment(state)],
        }
    }

    /// The finished turns from `first` on, summed up as the environment's type has it.
    pub(super) fn summary(&self, told: &Told<'_>, first: usize) -> Vec<Piece> {
        match told.rules.recap {
            Recap::Whole => self.whole_summary(told, first),
            Recap::Brief(brief) => self.brief_summary(told, first, &brief),
        }
    }

    /// Of each turn state, response and reward; nothing if no turn is left to tell.
    fn whole_summary(&self, told: &Told<'_>, first: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (now, is_full) = (told.now(), self.style == PromptStyle::Full);
        if first < now && is_full {
            pieces.push(words(format!("Turns done: {now}. The last {}:\n\n", now - first)));
        }
        for (i, turn) in told.trajectory.turns.iter().enumerate().skip(first) {
            let state = Piece::Environment(turn.observation.clone());
            let said = self.said(told, i);
            match is_full {
                true => {
                    let reward = format!("\nReward: {:?}\n\n", turn.played.reward + 0.0);
                    let number = format!("Turn {}\n", i + 1);
                    pieces.extend([words(number), state, words("\nYour response: "), said, words(reward)]);
                }
                false => pieces.extend([state, words("\n"), said, words("\n")]),
            }
        }
        pieces
    }

    /// The task, then of each turn a few words on its state and what it named to do.
    fn brief_summary(&self, told: &Told<'_>, first: usize, brief: &Brief) -> Vec<Piece> {
        let turns = &told.trajectory.turns;
        let mut pieces = Vec::new();
        let task = (brief.task)(told.first_state());
        if !task.is_empty() {
            pieces.extend([words("Task: "), Piece::Environment(task), words("\n")]);
        }
        if first < turns.len() {
            let (steps, told) = (told.trajectory.n_actions(), turns.len() - first);
            pieces.push(words(format!("Steps taken: {steps}. The last {told} turns:\n")));
        }
        for turn in &turns[first..] {
            let action = parse(&turn.text, &self.answer_format(told.rules)).answer;
            let ids = self.tokenizer.encode_plain(&action);
            let state = Piece::Environment(brief.earlier(&turn.observation));
            pieces.extend([words("- "), state, words(" -> "), Piece::Said { text: action, ids }, words("\n")]);
        }
        if !pieces.is_empty() {
            pieces.push(words("\n"));
        }
        pieces
    }
}

//! What prompts say, piece by piece; how the pieces become tokens is the layout's.

use crate::context_manager::ContextManager;
use crate::env_manager::Episode;
use crate::protocol::{ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN};
use crate::trajectory::Turn;

/// A piece of a prompt's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Words of our own.
    Words(String),
    /// What an environment says.
    Environment(String),
    /// A tag as the policy writes it.
    Tag(&'static str),
}

impl Piece {
    pub fn text(&self) -> &str {
        match self {
            Piece::Words(text) | Piece::Environment(text) => text,
            Piece::Tag(tag) => tag,
        }
    }
}

/// All pieces as one text without blanks around it.
pub(super) fn text_of(pieces: &[Piece]) -> String {
    pieces.iter().map(Piece::text).collect::<String>().trim().to_string()
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

    /// Reward of the last turn, turn, state, notice, budget, form; `turn` counts from 1.
    pub(super) fn user_message(&self, episode: &Episode, turn: usize, last: Option<&Turn>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Some(last) = last {
            pieces.push(words(format!("Reward of the last turn: {:?}\n\n", last.played.reward + 0.0)));
        }
        pieces.extend([words(format!("Turn {turn}\n")), Piece::Environment(episode.observation())]);
        if last.is_some_and(|last| last.played.invalid) {
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
}

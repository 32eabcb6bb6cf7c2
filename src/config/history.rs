//! What of an episode's earlier turns a prompt shows.

use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;

/// Which part of the history the policy sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextMode {
    /// All turns, as one row as long as they fit.
    Full,
    /// The last `context_window` turns as a conversation; a row a turn.
    LimitedMultiTurn,
    /// One user message that sums up the turns before the present one, as far as `context_window` reaches; a row a turn.
    SingleTurn,
}

/// How many turns a prompt shows, the present one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WindowText", into = "WindowText")]
pub enum Window {
    /// All.
    All,
    /// The last so many.
    Last(NonZeroUsize),
}

const WINDOW: &str = "expected a whole number of at least 1, or \"all\"";

/// A window as a file has it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WindowText {
    Turns(usize),
    Word(String),
}

impl TryFrom<WindowText> for Window {
    type Error = &'static str;

    fn try_from(text: WindowText) -> Result<Self, Self::Error> {
        match text {
            WindowText::Word(word) if word == "all" => Ok(Window::All),
            WindowText::Turns(n) => NonZeroUsize::new(n).map(Window::Last).ok_or(WINDOW),
            WindowText::Word(_) => Err(WINDOW),
        }
    }
}

impl From<Window> for WindowText {
    fn from(window: Window) -> Self {
        match window {
            Window::All => WindowText::Word("all".into()),
            Window::Last(n) => WindowText::Turns(n.get()),
        }
    }
}

/// What happens where the turns that a prompt would show leave no room for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// The earliest are left out, whole turns, until there is room; the episode ends if the present one alone is too long.
    Drop,
    /// The episode ends.
    End,
}

/// What a later prompt of an episode shows of the earlier turns, for a model that brings a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// What was read and sampled, id by id, where the template shows it so; otherwise a new row as the template shows it.
    Auto,
    /// What was read and sampled, id by id, whatever the template would show.
    Append,
    /// A new row every turn, as the template shows it.
    Template,
}

//! What a later prompt tells of the turns before it, where it sums them up in one message.
//!
//! It is a property of an environment type, because only the type knows what of its states is worth repeating. The words
//! around it are the trainer's.

/// How earlier turns are told in one message; RAGEN calls it a memory formatter.
#[derive(Clone, Copy, Debug, Default)]
pub enum Recap {
    /// Of each turn the state, the whole response and the reward.
    #[default]
    Whole,
    /// The task once, then of each turn a few words on its state and what was done.
    Brief(Brief),
}

/// What is told of wordy states, as functions of a state's text.
#[derive(Clone, Copy, Debug)]
pub struct Brief {
    /// The task, found in the first state; empty if it stands elsewhere.
    pub task: fn(&str) -> String,
    /// A state without what is told apart: the task, and what can be done in it.
    pub gist: fn(&str) -> String,
    /// What can be done in a state, told of the present one only; empty if it does not say.
    pub offers: fn(&str) -> String,
    /// Characters of an earlier state's gist at most.
    pub max_chars: usize,
}

impl Brief {
    /// The gist of an earlier state, cut where it is too long.
    pub fn earlier(&self, state: &str) -> String {
        (self.gist)(state).chars().take(self.max_chars).collect()
    }
}

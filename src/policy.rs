//! The policy, as the RL side sees it: token ids in, host numbers out, one seed a trained token back (decision D5).
//!
//! Nothing above this trait sees a tensor. A tabular policy implements it in a few lines, so that the whole RL side is
//! tested in milliseconds; the model's implementation lies over `ragen-models`.

pub mod model;
mod slots;
pub mod tabular;

use ragen_models::engine::EngineError;
use ragen_models::random::Key;
pub use ragen_models::sampler::Sampling;
pub use slots::Slots;

/// A growing token sequence whose computed state the policy keeps (for a model: its KV cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceId(pub usize);

/// The ids that a token could be drawn from, ascending; `None` is the whole vocabulary.
pub type KeptSet = Option<Vec<u32>>;

/// What to append to a sequence before sampling goes on.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The sequence to continue.
    pub sequence: SequenceId,
    /// Tokens to append; never sampled, hence never trained.
    pub prompt: &'a [u32],
    /// Random stream of this turn; the token at sequence position p is drawn with `key.uniform(p)`.
    pub key: Key,
    /// At most this many tokens are sampled.
    pub max_new_tokens: usize,
}

/// Whether the ids sampled so far, the newest last, say something that ends a response.
pub type Says<'a> = &'a (dyn Fn(&[u32]) -> bool + 'a);

/// What ends a response.
#[derive(Clone, Copy, Default)]
pub struct Stop<'a> {
    /// Tokens.
    pub ids: &'a [u32],
    /// What it says.
    pub says: Option<Says<'a>>,
}

impl Stop<'_> {
    /// Whether a response that holds these ids so far has ended.
    pub fn ends(&self, response: &[u32]) -> bool {
        response.last().is_some_and(|id| self.ids.contains(id)) || self.says.is_some_and(|says| says(response))
    }
}

/// Why sampling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The response came to its end; the token that ended it is its last.
    Stop,
    /// `max_new_tokens` were sampled.
    Length,
    /// The model's context is full.
    Context,
}

/// What was sampled for a request.
#[derive(Clone, Debug)]
pub struct Response {
    /// The sampled ids, the stop token included.
    pub ids: Vec<u32>,
    /// Log-probability of each under the distribution that it was drawn from.
    pub logps: Vec<f32>,
    /// The kept set of each token; empty when nothing was filtered.
    pub kept: Vec<KeptSet>,
    /// Why it ended.
    pub finish: Finish,
}

/// One row to score or train on: a token sequence and the tokens in it that count.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The whole sequence.
    pub ids: &'a [u32],
    /// Indices into `ids` of the tokens that count, ascending, each ≥ 1; token t is predicted from `ids[..t]`.
    pub targets: &'a [u32],
    /// The kept set of each target; empty when nothing was filtered.
    pub kept: &'a [KeptSet],
}

/// Numbers per target token, rows in order and targets in order within a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenValues {
    /// Log-probability of the token (over its kept set).
    pub logp: Vec<f32>,
    /// Entropy in nats of the distribution it was drawn from (over the whole vocabulary, at the given temperature).
    pub entropy: Vec<f32>,
    /// The value head's estimate for the prefix before the token; empty without a value head.
    pub value: Vec<f32>,
}

/// The derivative of the loss with respect to each of [`TokenValues`]; an empty vector is all zeros.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenSeeds {
    /// dL/dlogp.
    pub logp: Vec<f32>,
    /// dL/dentropy.
    pub entropy: Vec<f32>,
    /// dL/dvalue.
    pub value: Vec<f32>,
}

/// Which weights to score with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// The weights being trained.
    Policy,
    /// The frozen copy for KL terms.
    Reference,
}

/// What an optimiser step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// The norm was not finite, so nothing was changed.
    pub skipped: bool,
}

/// What can go wrong inside a policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The request cannot be served as it stands.
    #[error("{0}")]
    Invalid(String),
    /// The policy asked for has no such part.
    #[error("the policy has no {0}")]
    Missing(&'static str),
    /// The model or its device failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A distribution over token sequences that can be sampled, scored and trained.
pub trait Policy {
    /// Longest sequence in tokens.
    fn max_positions(&self) -> usize;

    /// Whether [`TokenValues::value`] is filled.
    fn has_value(&self) -> bool;

    /// A new, empty sequence.
    fn open(&mut self) -> SequenceId;

    /// Forgets a sequence and frees what it held.
    fn close(&mut self, sequence: SequenceId);

    /// Appends each request's prompt and samples until `stop`, its token limit, or a full context.
    ///
    /// A request's result does not depend on the other requests. Empty sequences that get equal prompts share the
    /// prompt's computation.
    fn generate(
        &mut self,
        requests: &[Request<'_>],
        sampling: &Sampling,
        stop: &Stop<'_>,
    ) -> Result<Vec<Response>, PolicyError>;

    /// Scores rows without keeping anything.
    fn score(&mut self, weights: Weights, rows: &[Row<'_>], temperature: f32) -> Result<TokenValues, PolicyError>;

    /// Tokens that are computed for some rows at once: fewer than they have where they share a prompt.
    fn packed_tokens(&self, rows: &[Row<'_>]) -> usize {
        rows.iter().map(|row| row.ids.len()).sum()
    }

    /// Keeps a frozen copy of the present weights as the reference.
    ///
    /// **Errors** [`PolicyError::Engine`].
    fn freeze_reference(&mut self) -> Result<(), PolicyError>;

    /// Forward over one micro-batch, then `objective` turns its values into seeds, then backward ADDS to the gradients.
    fn accumulate(
        &mut self,
        rows: &[Row<'_>],
        temperature: f32,
        objective: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError>;

    /// Takes the gradients gathered since the last update, which are then zeroed: one number for each that is trained by the policy's
    /// loss, always in the same order between two updates.
    ///
    /// **Errors** [`PolicyError::Missing`] if the policy has none to show, [`PolicyError::Engine`].
    fn take_gradients(&mut self) -> Result<Vec<f32>, PolicyError> {
        Err(PolicyError::Missing("gradients to take apart"))
    }

    /// One optimiser step at learning rate `lr` on the gradients gathered, which are then zeroed.
    ///
    /// Cached sequences become stale and must have been closed.
    fn update(&mut self, lr: f64) -> Result<Update, PolicyError>;

    /// As [`Policy::update`] of the value model alone; the policy's gradients are forgotten, its weights and moments left alone.
    ///
    /// **Errors** [`PolicyError::Missing`] if the values are not a model of their own, [`PolicyError::Engine`].
    fn update_values(&mut self, lr: f64) -> Result<Update, PolicyError> {
        let _ = lr;
        Err(PolicyError::Missing("value model of its own, which model.value_warmup_steps trains"))
    }
}

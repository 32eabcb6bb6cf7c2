//! A model that is sampled, scored and trained, whatever device it lies on: the one interface of the CPU's and the GPU's transformer.
//!
//! It speaks of packed token trees, targets and seeds (decision D5), and of sequences in a cache; all numbers that cross it are a
//! few a token. What has the size of the weights comes out only for files.

mod cpu;
mod gpu;
mod room;

pub use cpu::CpuEngine;
pub use gpu::GpuEngine;
pub use room::{Room, measure};

use crate::config::Config;
use crate::kv_cache::CacheId;
use crate::lora::Lora;
use crate::ops::head::{PerTarget, Target};
use crate::optim::{AdamW, Step};
use crate::params::Params;
use crate::sampler::{Draw, Outcome, SampleError, Sampling};
use crate::token_tree::TokenTree;
use crate::transformer::Append;
use ragen_cuda::CudaError;
use std::borrow::Cow;

/// What can go wrong in an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A row of logits is no distribution.
    #[error("cannot sample: {0}")]
    Sample(#[from] SampleError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// A model, what trains it, and a cache of its sequences.
pub trait Engine {
    /// The model's shape.
    fn config(&self) -> &Config;

    /// The longest context, in tokens.
    fn positions(&self) -> usize;

    /// Which adapters the model has.
    fn lora(&self) -> Option<&Lora>;

    /// Whether blocks are computed again in the backward instead of kept; the bits are the same.
    fn set_recompute(&mut self, recompute: bool);

    /// Log-probability, entropy and value of every target, at a temperature > 0. With `keep` a [`Engine::backward`] may follow.
    ///
    /// **Errors** [`EngineError::Device`].
    fn score(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
        keep: bool,
    ) -> Result<PerTarget<f32>, EngineError>;

    /// The same of the base below the adapters.
    ///
    /// **Errors** [`EngineError::Device`].
    fn score_base(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
    ) -> Result<PerTarget<f32>, EngineError>;

    /// The value of every target alone; all zeros without a value head.
    ///
    /// **Errors** [`EngineError::Device`].
    fn estimate(&mut self, tree: &TokenTree, targets: &[Target], keep: bool) -> Result<Vec<f32>, EngineError>;

    /// Adds the gradient of the objective whose derivatives with respect to the targets' values are `seeds`, for the last batch kept.
    ///
    /// **Errors** [`EngineError::Device`].
    fn backward(
        &mut self,
        tree: &TokenTree,
        targets: &[Target],
        temperature: f32,
        seeds: &PerTarget<f32>,
    ) -> Result<(), EngineError>;

    /// One optimiser step on the gradients gathered, which are then zeroed.
    ///
    /// **Errors** [`EngineError::Device`].
    fn update(&mut self, lr: f64) -> Result<Step, EngineError>;

    /// A new, empty sequence.
    fn open(&mut self) -> CacheId;

    /// Makes the empty sequence `id` a continuation of `source`, sharing all that it holds.
    fn share(&mut self, id: CacheId, source: CacheId);

    /// Forgets a sequence.
    fn close(&mut self, id: CacheId);

    /// Tokens that a sequence holds.
    fn held(&self, id: CacheId) -> usize;

    /// Bytes of all keys and values that were ever needed at once.
    fn cache_bytes(&self) -> usize;

    /// Appends tokens to sequences; then [`Engine::draw`] may draw after each one's last token, whose row is its place in `appends`.
    ///
    /// **Errors** [`EngineError::Device`].
    fn extend(&mut self, appends: &[Append<'_>]) -> Result<(), EngineError>;

    /// Draws tokens after sequences that the last [`Engine::extend`] appended to.
    ///
    /// **Errors** [`EngineError`].
    fn draw(&mut self, draws: &[Draw], sampling: &Sampling) -> Result<Vec<Outcome>, EngineError>;

    /// The weights; with adapters, the frozen ones.
    ///
    /// **Errors** [`EngineError::Device`].
    fn params(&self) -> Result<Cow<'_, Params>, EngineError>;

    /// What is trained: the adapters if there are any, else the weights.
    ///
    /// **Errors** [`EngineError::Device`].
    fn trained(&self) -> Result<Cow<'_, Params>, EngineError>;

    /// Replaces what is trained.
    ///
    /// **Errors** [`EngineError::Device`].
    fn set_trained(&mut self, params: Params) -> Result<(), EngineError>;

    /// The gradients gathered since the last update, over the table of what is trained.
    ///
    /// **Errors** [`EngineError::Device`].
    fn gradients(&mut self) -> Result<Cow<'_, [f32]>, EngineError>;

    /// Forgets the gradients gathered since the last update.
    ///
    /// **Errors** [`EngineError::Device`].
    fn zero_gradients(&mut self) -> Result<(), EngineError>;

    /// The optimiser, its moments and its count of steps.
    ///
    /// **Errors** [`EngineError::Device`].
    fn optimiser(&self) -> Result<Cow<'_, AdamW>, EngineError>;

    /// Takes up an optimiser where a checkpoint left it.
    ///
    /// **Errors** [`EngineError::Device`].
    fn set_optimiser(&mut self, optimiser: AdamW) -> Result<(), EngineError>;

    /// A model of the same shape with these weights, that is only scored.
    ///
    /// **Errors** [`EngineError::Device`].
    fn frozen(&self, params: Params) -> Result<Box<dyn Engine>, EngineError>;
}

/// Appends that are computed together, and how many of their sequences are then complete.
struct Piece<'a> {
    appends: Vec<Append<'a>>,
    /// Of a sequence that goes on in the next piece, the last row so far is of no use.
    ended: usize,
}

/// Cuts appends into pieces of at most `limit` tokens; a sequence may go on in the next piece, and then stands last in this one.
fn pieces<'a>(appends: &[Append<'a>], limit: usize) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let (mut piece, mut room): (Vec<Append<'a>>, usize) = (Vec::new(), limit);
    for (i, append) in appends.iter().enumerate() {
        let mut rest = append.tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(room));
            piece.push(Append { id: append.id, tokens: now });
            room -= now.len();
            rest = later;
            if room == 0 || (rest.is_empty() && i + 1 == appends.len()) {
                let ended = piece.len() - usize::from(!rest.is_empty());
                pieces.push(Piece { appends: std::mem::take(&mut piece), ended });
                room = limit;
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::KvCache;
    use crate::ops::attention::Heads;
    use crate::simd::Isa;

    #[test]
    fn pieces_hold_every_token_once_and_say_who_is_complete() {
        let mut cache = KvCache::new(Isa::Plain, 1, Heads { n_heads: 1, n_kv_heads: 1, head_dim: 1 });
        let tokens: [&[u32]; 3] = [&[1, 2, 3], &[4, 5, 6, 7, 8], &[9]];
        let ids = tokens.map(|_| cache.open());
        let appends: Vec<Append<'_>> = ids.iter().zip(tokens).map(|(&id, tokens)| Append { id, tokens }).collect();
        for limit in 1..=10 {
            let pieces = pieces(&appends, limit);
            let mut joined = vec![Vec::new(); 3];
            for piece in &pieces {
                assert!(piece.appends.iter().map(|append| append.tokens.len()).sum::<usize>() <= limit);
                for append in &piece.appends {
                    let at = ids.iter().position(|id| *id == append.id).unwrap();
                    joined[at].extend_from_slice(append.tokens);
                }
            }
            assert_eq!(joined, tokens.map(<[u32]>::to_vec), "limit {limit}");
            assert_eq!(pieces.iter().map(|piece| piece.ended).sum::<usize>(), 3, "limit {limit}");
        }
        let two = pieces(&appends, 4);
        assert_eq!(
            two.iter().map(|piece| (piece.appends.len(), piece.ended)).collect::<Vec<_>>(),
            [(2, 1), (1, 1), (1, 1)]
        );
    }
}

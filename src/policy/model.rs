//! The policy over `ragen-models`: KV cache, transformer, head, optimiser.
//!
//! Sampling and training run the same kernels, so the log-probability of a sampled token and the one that training computes for it
//! are equal in every bit (decision D3); prompts that members of a group share are computed once.

use super::{
    Finish, Policy, PolicyError, Request, Response, Row, Sampling, SequenceId, Slots, Stop, TokenSeeds, TokenValues,
    Update, Weights,
};
use ragen_models::device::Cpu;
use ragen_models::engine::{CpuEngine, Engine, EngineError};
use ragen_models::kv_cache::CacheId;
use ragen_models::lora::Lora;
use ragen_models::ops::attention::PAGE;
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::{Params, Table};
use ragen_models::sampler::Draw;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Append, Config, Precision, Transformer};
use std::borrow::Cow;
use std::sync::Arc;

/// Rows share a prefix of at least this many tokens, or none.
const SHORTEST_PREFIX: usize = 16;

/// A sequence: what the cache holds of it, and what it does not hold yet.
struct Sequence {
    cache: CacheId,
    /// Tokens that were appended but not computed: at most the last sampled one.
    pending: Vec<u32>,
}

/// A value model of its own, beside the policy.
struct ValueModel {
    engine: Box<dyn Engine>,
    /// Its learning rate is the policy's times this.
    lr_factor: f64,
}

/// Weights and the optimiser that moves them.
pub type Learner<'a> = (Cow<'a, Params>, Cow<'a, AdamW>);

/// A transformer that is sampled, scored and trained.
pub struct Model {
    engine: Box<dyn Engine>,
    value: Option<ValueModel>,
    reference: Option<Box<dyn Engine>>,
    sequences: Slots<Sequence>,
    /// Compute the common prefix of neighbouring rows once, forward and backward. Changes gradients by rounding only.
    pub share_prefix: bool,
}

impl Model {
    /// A policy on the CPU from a model's shape and weights, all of which are trained, with products of this precision.
    pub fn new(cpu: Arc<Cpu>, config: Config, params: Params, precision: Precision, optimiser: AdamWSettings) -> Self {
        let model = Transformer::new(&cpu, config, params, precision);
        Model::over(Box::new(CpuEngine::new(cpu, model, optimiser)))
    }

    /// A policy over a model, with or without adapters, on any device.
    pub fn over(engine: Box<dyn Engine>) -> Self {
        Model { engine, value: None, sequences: Slots::default(), reference: None, share_prefix: true }
    }

    /// The same policy with a value model of its own, trained at `lr_factor` times the policy's learning rate.
    ///
    /// **Panics** when `engine` has no value head or reads another vocabulary.
    pub fn with_value_model(mut self, engine: Box<dyn Engine>, lr_factor: f64) -> Self {
        let config = engine.config();
        assert!(config.value_head && config.vocab == self.config().vocab, "a value model gives values");
        self.value = Some(ValueModel { engine, lr_factor });
        self
    }

    /// Whether blocks are computed again in the backward instead of kept; the bits are the same.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.engine.set_recompute(recompute);
        self.value.iter_mut().for_each(|value| value.engine.set_recompute(recompute));
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        self.engine.config()
    }

    /// Which adapters the model has.
    pub fn lora(&self) -> Option<&Lora> {
        self.engine.lora()
    }

    /// Number of weights; with adapters, of the frozen ones.
    pub fn parameters(&self) -> usize {
        let value_head = self.lora().is_none() && self.config().value_head;
        Table::len_of(&Config { value_head, ..self.config().clone() })
    }

    /// The weights; with adapters, the frozen ones.
    ///
    /// **Errors** [`EngineError`].
    pub fn params(&self) -> Result<Cow<'_, Params>, EngineError> {
        self.engine.params()
    }

    /// What is trained: the adapters if there are any, else the weights.
    ///
    /// **Errors** [`EngineError`].
    pub fn trained(&self) -> Result<Cow<'_, Params>, EngineError> {
        self.engine.trained()
    }

    /// Names, shapes and offsets of what is trained.
    pub fn trained_table(&self) -> Arc<Table> {
        match self.lora() {
            Some(lora) => Arc::new(lora.table(self.config())),
            None => self.table(),
        }
    }

    /// Names, shapes and offsets of the weights; with adapters, of the frozen ones.
    pub fn table(&self) -> Arc<Table> {
        let value_head = self.lora().is_none() && self.config().value_head;
        Arc::new(Table::new(&Config { value_head, ..self.config().clone() }))
    }

    /// Names, shapes and offsets of the value model's weights, if there is one.
    pub fn value_table(&self) -> Option<Arc<Table>> {
        self.value.as_ref().map(|value| Arc::new(Table::new(value.engine.config())))
    }

    /// The gradients gathered since the last update, over the table of what is trained.
    ///
    /// **Errors** [`EngineError`].
    pub fn gradients(&mut self) -> Result<Cow<'_, [f32]>, EngineError> {
        self.engine.gradients()
    }

    /// The optimiser, its moments and its count of steps.
    ///
    /// **Errors** [`EngineError`].
    pub fn optimiser(&self) -> Result<Cow<'_, AdamW>, EngineError> {
        self.engine.optimiser()
    }

    /// The weights of the frozen reference, if there are any of its own.
    ///
    /// **Errors** [`EngineError`].
    pub fn reference(&self) -> Result<Option<Cow<'_, Params>>, EngineError> {
        self.reference.as_ref().map(|reference| reference.params()).transpose()
    }

    /// Whether rows can be scored under a reference: a frozen copy, or the base below the adapters.
    pub fn has_reference(&self) -> bool {
        self.reference.is_some() || self.lora().is_some()
    }

    /// The value model's weights and optimiser, if it has one of its own.
    ///
    /// **Errors** [`EngineError`].
    pub fn value_model(&self) -> Result<Option<Learner<'_>>, EngineError> {
        self.value.as_ref().map(|value| Ok((value.engine.params()?, value.engine.optimiser()?))).transpose()
    }

    /// Replaces what is trained; sequences must have been closed.
    ///
    /// **Errors** [`EngineError`].
    pub fn set_trained(&mut self, params: Params) -> Result<(), EngineError> {
        self.engine.set_trained(params)
    }

    /// Takes up the optimiser and the reference where a checkpoint left them.
    ///
    /// **Errors** [`EngineError`].
    pub fn restore(&mut self, optimiser: AdamW, reference: Option<Params>) -> Result<(), EngineError> {
        self.engine.set_optimiser(optimiser)?;
        self.reference = reference.map(|params| self.engine.frozen(params)).transpose()?;
        Ok(())
    }

    /// Takes up the value model's weights and optimiser where a checkpoint left them; nothing without a value model.
    ///
    /// **Errors** [`EngineError`].
    pub fn restore_value_model(&mut self, params: Params, optimiser: AdamW) -> Result<(), EngineError> {
        if let Some(value) = &mut self.value {
            value.engine.set_optimiser(optimiser)?;
            value.engine.set_trained(params)?;
        }
        Ok(())
    }

    /// Bytes that the KV cache has needed so far.
    pub fn cache_bytes(&self) -> usize {
        self.engine.cache_bytes()
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), PolicyError> {
        match ids.iter().find(|&&id| id as usize >= self.config().vocab) {
            None => Ok(()),
            Some(id) => Err(PolicyError::Invalid(format!(
                "token {id} is outside the model's vocabulary of {}: tokenizer and model do not belong together",
                self.config().vocab
            ))),
        }
    }

    /// Appends every request's tokens, and returns the row of logits that each ends with.
    ///
    /// Empty sequences with equal tokens are computed once: the first one's pages are shared by the others. So are whole
    /// pages that neighbours begin with, such as a system prompt.
    fn prefill(&mut self, tokens: &[(CacheId, Vec<u32>)]) -> Result<Vec<usize>, EngineError> {
        let mut firsts: Vec<usize> = Vec::new();
        let mut rows = Vec::with_capacity(tokens.len());
        for (i, (id, ids)) in tokens.iter().enumerate() {
            let twin = match self.engine.held(*id) {
                0 => firsts.iter().position(|&f| tokens[f].1 == *ids && self.engine.held(tokens[f].0) == 0),
                _ => None,
            };
            rows.push(twin.unwrap_or(firsts.len()));
            if twin.is_none() {
                firsts.push(i);
            }
        }
        let shared = self.share_beginnings(tokens, &firsts)?;
        let append = |(&f, &shared): (&usize, &usize)| Append { id: tokens[f].0, tokens: &tokens[f].1[shared..] };
        let appends: Vec<Append<'_>> = firsts.iter().zip(&shared).map(append).collect();
        self.engine.extend(&appends)?;
        for (i, &row) in rows.iter().enumerate() {
            if firsts[row] != i {
                self.engine.share(tokens[i].0, tokens[firsts[row]].0);
            }
        }
        Ok(rows)
    }

    /// Computes what neighbouring empty sequences begin with, in whole pages, for the first of them, and shares it with the
    /// others; returns how many tokens each then holds.
    fn share_beginnings(
        &mut self,
        tokens: &[(CacheId, Vec<u32>)],
        firsts: &[usize],
    ) -> Result<Vec<usize>, EngineError> {
        let mut held = vec![0; firsts.len()];
        let mut start = 0;
        while start < firsts.len() {
            let (id, ids) = &tokens[firsts[start]];
            let mut end = start + 1;
            // At least one token is left to each, whose logits are wanted.
            let mut pages = if self.engine.held(*id) == 0 { ids.len().saturating_sub(1) / PAGE } else { 0 };
            while end < firsts.len() && pages > 0 && self.engine.held(tokens[firsts[end]].0) == 0 {
                let other = &tokens[firsts[end]].1;
                let common = ids.iter().zip(other).take_while(|(a, b)| a == b).count();
                let fewer = pages.min(common.min(other.len().saturating_sub(1)) / PAGE);
                if fewer == 0 {
                    break;
                }
                (pages, end) = (fewer, end + 1);
            }
            if end > start + 1 {
                self.engine.extend(&[Append { id: *id, tokens: &ids[..pages * PAGE] }])?;
                held[start..end].fill(pages * PAGE);
                for &other in &firsts[start + 1..end] {
                    self.engine.share(tokens[other].0, *id);
                }
            }
            start = end;
        }
        Ok(held)
    }

    /// Packs rows into a tree and their targets into packed rows. Rows to train on share one prefix with their neighbours; rows to
    /// score, whose bits do not depend on it, share all they have.
    fn pack(&self, rows: &[Row<'_>], trains: bool) -> Result<(TokenTree, Vec<Target>), PolicyError> {
        for row in rows {
            self.check_ids(row.ids)?;
            if row.ids.len() > self.max_positions() {
                return Err(PolicyError::Invalid(format!(
                    "a row of {} tokens is longer than the model's {} positions",
                    row.ids.len(),
                    self.max_positions()
                )));
            }
        }
        let mut packed = Packing { tree: TokenTree::new(), targets: Vec::new() };
        match self.share_prefix {
            true => packed.add(rows, &mut Vec::new(), if trains { 1 } else { usize::MAX }),
            false => rows.iter().for_each(|row| packed.add_row(row, &mut Vec::new())),
        }
        Ok((packed.tree, packed.targets))
    }

    /// Tokens that are computed to score some rows.
    ///
    /// **Errors** [`PolicyError::Invalid`] if a row is no row of this model's.
    pub fn tokens_to_score(&self, rows: &[Row<'_>]) -> Result<usize, PolicyError> {
        Ok(self.pack(rows, false)?.0.rows())
    }
}

/// Rows on their way into a tree.
struct Packing {
    tree: TokenTree,
    targets: Vec<Target>,
}

impl Packing {
    /// Adds rows that begin with the segments of `path`, down to `levels` levels of shared segments more.
    fn add(&mut self, rows: &[Row<'_>], path: &mut Vec<usize>, levels: usize) {
        let held = self.held(path);
        let mut start = 0;
        while start < rows.len() {
            let (n, shared) = if levels > 0 { shared_prefix(&rows[start..], held) } else { (1, held) };
            let run = &rows[start..start + n];
            if n == 1 {
                self.add_row(&run[0], path);
            } else {
                path.push(self.tree.push(path.last().copied(), &run[0].ids[held..shared]));
                self.add(run, path, levels - 1);
                path.pop();
            }
            start += n;
        }
    }

    /// Adds what a row has beyond the segments of `path`, and its targets.
    fn add_row(&mut self, row: &Row<'_>, path: &mut Vec<usize>) {
        let held = self.held(path);
        path.push(self.tree.push(path.last().copied(), &row.ids[held..]));
        for (i, &t) in row.targets.iter().enumerate() {
            let (t, before) = (t as usize, t as usize - 1);
            let holds = |segment: &&usize| self.tree.segments[**segment].position <= before;
            // The last segment that begins there or earlier; an empty one holds nothing and lies behind.
            let segment = path.iter().rev().find(holds).map(|&segment| &self.tree.segments[segment]);
            let packed = segment.map_or(0, |segment| segment.start + before - segment.position);
            self.targets.push(Target { row: packed, token: row.ids[t], kept: row.kept.get(i).cloned().flatten() });
        }
        path.pop();
    }

    /// Tokens of a path.
    fn held(&self, path: &[usize]) -> usize {
        path.last().map_or(0, |&last| self.tree.segments[last].position + self.tree.segments[last].len)
    }
}

/// How many of the first rows share how long a prefix: as many as have at least [`SHORTEST_PREFIX`] tokens in common beyond the
/// first `held`, which all share.
fn shared_prefix(rows: &[Row<'_>], held: usize) -> (usize, usize) {
    let mut shared = rows[0].ids.len();
    let mut count = 1;
    for row in &rows[1..] {
        let common = held + rows[0].ids[held..shared].iter().zip(&row.ids[held..]).take_while(|(a, b)| a == b).count();
        if common < held + SHORTEST_PREFIX {
            break;
        }
        shared = common;
        count += 1;
    }
    if count == 1 { (1, held) } else { (count, shared) }
}

fn values(of: PerTarget<f32>) -> TokenValues {
    TokenValues { logp: of.logp, entropy: of.entropy, value: of.value }
}

impl Policy for Model {
    fn max_positions(&self) -> usize {
        self.engine.positions()
    }

    fn has_value(&self) -> bool {
        self.config().value_head || self.value.is_some()
    }

    fn open(&mut self) -> SequenceId {
        self.sequences.open(Sequence { cache: self.engine.open(), pending: Vec::new() })
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(open) = self.sequences.close(sequence) {
            self.engine.close(open.cache);
        }
    }

    fn generate(
        &mut self,
        requests: &[Request<'_>],
        sampling: &Sampling,
        stop: &Stop<'_>,
    ) -> Result<Vec<Response>, PolicyError> {
        let limit = self.max_positions();
        let mut responses: Vec<Response> = Vec::with_capacity(requests.len());
        let mut lengths = Vec::with_capacity(requests.len());
        let mut first: Vec<(CacheId, Vec<u32>)> = Vec::new();
        let mut active: Vec<usize> = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            self.check_ids(request.prompt)?;
            let sequence = self.sequences.get(request.sequence)?;
            let tokens = [sequence.pending.as_slice(), request.prompt].concat();
            let length = self.engine.held(sequence.cache) + tokens.len();
            if tokens.is_empty() {
                return Err(PolicyError::Invalid("an empty sequence needs a prompt before it can be sampled".into()));
            }
            let fits = length < limit && request.max_new_tokens > 0;
            let finish = if length < limit { Finish::Length } else { Finish::Context };
            responses.push(Response { ids: Vec::new(), logps: Vec::new(), kept: Vec::new(), finish });
            lengths.push(length);
            if fits {
                first.push((sequence.cache, tokens));
                active.push(i);
            }
        }
        let mut rows = if first.is_empty() { Vec::new() } else { self.prefill(&first)? };
        while !active.is_empty() {
            let draws: Vec<Draw> = active
                .iter()
                .zip(&rows)
                .map(|(&i, &row)| Draw { row, key: requests[i].key, position: lengths[i] as u64 })
                .collect();
            let outcomes = self.engine.draw(&draws, sampling)?;
            let mut appends: Vec<(CacheId, [u32; 1])> = Vec::with_capacity(active.len());
            let mut still = Vec::with_capacity(active.len());
            for (&i, outcome) in active.iter().zip(outcomes) {
                let response = &mut responses[i];
                let id = outcome.drawn.id;
                response.ids.push(id);
                response.logps.push(outcome.drawn.logp);
                if sampling.filters() {
                    response.kept.push(outcome.kept);
                }
                lengths[i] += 1;
                let finish = if stop.ends(&response.ids) {
                    Some(Finish::Stop)
                } else if response.ids.len() >= requests[i].max_new_tokens {
                    Some(Finish::Length)
                } else if lengths[i] >= limit {
                    Some(Finish::Context)
                } else {
                    None
                };
                let sequence = self.sequences.get_mut(requests[i].sequence)?;
                match finish {
                    Some(finish) => {
                        response.finish = finish;
                        sequence.pending = vec![id];
                    }
                    None => {
                        appends.push((sequence.cache, [id]));
                        still.push(i);
                    }
                }
            }
            active = still;
            rows = (0..active.len()).collect();
            if !active.is_empty() {
                let appends: Vec<Append<'_>> = appends.iter().map(|(id, t)| Append { id: *id, tokens: t }).collect();
                self.engine.extend(&appends)?;
            }
        }
        Ok(responses)
    }

    fn score(&mut self, weights: Weights, rows: &[Row<'_>], temperature: f32) -> Result<TokenValues, PolicyError> {
        let (tree, targets) = self.pack(rows, false)?;
        let mut found = values(match (weights, &mut self.reference) {
            (Weights::Policy, _) => self.engine.score(&tree, &targets, temperature, false)?,
            (Weights::Reference, Some(reference)) => reference.score(&tree, &targets, temperature, false)?,
            (Weights::Reference, None) if self.engine.lora().is_some() => {
                self.engine.score_base(&tree, &targets, temperature)?
            }
            (Weights::Reference, None) => return Err(PolicyError::Missing("reference")),
        });
        if let (Weights::Policy, Some(value)) = (weights, &mut self.value) {
            found.value = value.engine.estimate(&tree, &targets, false)?;
        }
        Ok(found)
    }

    fn packed_tokens(&self, rows: &[Row<'_>]) -> usize {
        let (mut start, mut tokens) = (0, 0);
        while start < rows.len() {
            let (n, shared) = if self.share_prefix { shared_prefix(&rows[start..], 0) } else { (1, 0) };
            let own: usize = rows[start..start + n].iter().map(|row| row.ids.len() - shared).sum();
            tokens += shared + own;
            start += n;
        }
        tokens
    }

    fn freeze_reference(&mut self) -> Result<(), PolicyError> {
        // The base below adapters is frozen as it is.
        if self.lora().is_none() {
            self.reference = Some(self.engine.frozen(self.engine.params()?.into_owned())?);
        }
        Ok(())
    }

    fn accumulate(
        &mut self,
        rows: &[Row<'_>],
        temperature: f32,
        objective: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError> {
        let (tree, targets) = self.pack(rows, true)?;
        let mut found = values(self.engine.score(&tree, &targets, temperature, true)?);
        if let Some(value) = &mut self.value {
            found.value = value.engine.estimate(&tree, &targets, true)?;
        }
        let TokenSeeds { logp, entropy, value } = objective(&found);
        let mut seeds = PerTarget { logp, entropy, value };
        if let Some(other) = &mut self.value {
            let own = PerTarget { value: std::mem::take(&mut seeds.value), ..PerTarget::default() };
            // An objective without a value loss has nothing to tell it.
            if !own.value.is_empty() {
                other.engine.backward(&tree, &targets, temperature, &own)?;
            }
        }
        self.engine.backward(&tree, &targets, temperature, &seeds)?;
        Ok(found)
    }

    fn take_gradients(&mut self) -> Result<Vec<f32>, PolicyError> {
        let taken = self.engine.gradients()?.into_owned();
        self.engine.zero_gradients()?;
        if let Some(value) = &mut self.value {
            value.engine.zero_gradients()?;
        }
        Ok(taken)
    }

    fn update(&mut self, lr: f64) -> Result<Update, PolicyError> {
        // What the cache holds belongs to the old weights; its pages are kept for the next rollout.
        let step = self.engine.update(lr)?;
        let mut skipped = step.skipped;
        if let Some(value) = &mut self.value {
            skipped |= value.engine.update(lr * value.lr_factor)?.skipped;
        }
        Ok(Update { grad_norm: step.grad_norm, skipped })
    }

    fn update_values(&mut self, lr: f64) -> Result<Update, PolicyError> {
        let Some(value) = &mut self.value else {
            return Err(PolicyError::Missing("value model of its own, which model.value_warmup_steps trains"));
        };
        self.engine.zero_gradients()?;
        let step = value.engine.update(lr * value.lr_factor)?;
        Ok(Update { grad_norm: step.grad_norm, skipped: step.skipped })
    }
}

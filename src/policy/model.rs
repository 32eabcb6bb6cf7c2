//! The policy over `ragen-models`: KV cache, transformer, head, optimiser.
//!
//! Sampling and training run the same kernels, so the log-probability of a sampled token and the one that training computes for it
//! are equal in every bit (decision D3); prompts that members of a group share are computed once.

use super::{
    Finish, Policy, PolicyError, Request, Response, Row, Sampling, SequenceId, Stop, TokenSeeds, TokenValues, Update,
    Weights,
};
use ragen_models::device::Cpu;
use ragen_models::kv_cache::{CacheId, KvCache};
use ragen_models::memory::PREFILL_TOKENS;
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::{AdamW, AdamWSettings};
use ragen_models::params::Params;
use ragen_models::sampler::{Drawn, SampleError, Scratch};
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Append, Config, Gradients, Precision, Transformer};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows share a prefix of at least this many tokens, or none.
const SHORTEST_PREFIX: usize = 16;

/// A sequence: what the cache holds of it, and what it does not hold yet.
struct Sequence {
    cache: CacheId,
    /// Tokens that were appended but not computed: at most the last sampled one.
    pending: Vec<u32>,
}

/// A transformer and what trains it.
struct Learner {
    model: Transformer,
    gradients: Gradients,
    optimiser: AdamW,
    activations: Activations,
}

impl Learner {
    fn new(model: Transformer, optimiser: AdamWSettings) -> Self {
        Learner {
            gradients: Gradients::zeros(&model),
            optimiser: AdamW::new(optimiser, model.trained().table.clone()),
            activations: Activations::default(),
            model,
        }
    }

    fn backward(&mut self, cpu: &Cpu, tree: &TokenTree, targets: &[Target], temperature: f32, seeds: &PerTarget<f32>) {
        let Learner { model, gradients, activations, .. } = self;
        model.backward(cpu, tree, activations, targets, temperature, seeds, gradients);
    }

    /// One optimiser step on the gradients gathered, which are then zeroed.
    fn update(&mut self, cpu: &Cpu, lr: f64) -> Update {
        let Learner { model, gradients, optimiser, .. } = self;
        let step = model.update(cpu, |params| optimiser.step(cpu, params, gradients.total(), lr));
        gradients.zero();
        Update { grad_norm: step.grad_norm, skipped: step.skipped }
    }
}

/// A value model of its own, beside the policy.
struct ValueModel {
    learner: Learner,
    /// Its learning rate is the policy's times this.
    lr_factor: f64,
}

/// A transformer that is sampled, scored and trained.
pub struct Model {
    cpu: Arc<Cpu>,
    policy: Learner,
    value: Option<ValueModel>,
    reference: Option<Transformer>,
    cache: KvCache,
    sequences: Vec<Option<Sequence>>,
    free: Vec<usize>,
    /// Compute the common prefix of neighbouring rows once, forward and backward. Changes gradients by rounding only.
    pub share_prefix: bool,
}

impl Model {
    /// A policy from a model's shape and weights, all of which are trained, with products of this precision.
    pub fn new(cpu: Arc<Cpu>, config: Config, params: Params, precision: Precision, optimiser: AdamWSettings) -> Self {
        let model = Transformer::new(&cpu, config, params, precision);
        Model::over(cpu, model, optimiser)
    }

    /// A policy over a transformer, with or without adapters.
    pub fn over(cpu: Arc<Cpu>, model: Transformer, optimiser: AdamWSettings) -> Self {
        Model {
            cache: model.new_cache(&cpu),
            policy: Learner::new(model, optimiser),
            value: None,
            sequences: Vec::new(),
            free: Vec::new(),
            reference: None,
            share_prefix: true,
            cpu,
        }
    }

    /// The same policy with a value model of its own, trained at `lr_factor` times the policy's learning rate.
    ///
    /// **Panics** when `model` has no value head or reads another vocabulary.
    pub fn with_value_model(mut self, model: Transformer, lr_factor: f64) -> Self {
        assert!(model.config.value_head && model.config.vocab == self.config().vocab, "a value model gives values");
        let learner = Learner::new(model, self.policy.optimiser.settings);
        self.value = Some(ValueModel { learner, lr_factor });
        self
    }

    /// Whether blocks are computed again in the backward instead of kept; the bits are the same.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.policy.activations.recompute = recompute;
        self.value.iter_mut().for_each(|value| value.learner.activations.recompute = recompute);
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.policy.model.config
    }

    /// The transformer.
    pub fn model(&self) -> &Transformer {
        &self.policy.model
    }

    /// The weights; with adapters, the frozen ones.
    pub fn params(&self) -> &Params {
        self.policy.model.params()
    }

    /// What is trained: the adapters if there are any, else the weights.
    pub fn trained(&self) -> &Params {
        self.policy.model.trained()
    }

    /// The gradients gathered since the last update, over the table of what is trained.
    pub fn gradients(&mut self) -> &[f32] {
        &self.policy.gradients.total().data
    }

    /// The optimiser, its moments and its count of steps.
    pub fn optimiser(&self) -> &AdamW {
        &self.policy.optimiser
    }

    /// The weights of the frozen reference, if there are any of its own.
    pub fn reference(&self) -> Option<&Params> {
        self.reference.as_ref().map(Transformer::params)
    }

    /// Whether rows can be scored under a reference: a frozen copy, or the base below the adapters.
    pub fn has_reference(&self) -> bool {
        self.reference.is_some() || self.policy.model.lora().is_some()
    }

    /// The value model's weights and optimiser, if it has one of its own.
    pub fn value_model(&self) -> Option<(&Params, &AdamW)> {
        self.value.as_ref().map(|value| (value.learner.model.params(), &value.learner.optimiser))
    }

    /// Takes up the optimiser and the reference where a checkpoint left them.
    pub fn restore(&mut self, optimiser: AdamW, reference: Option<Params>) {
        self.policy.optimiser = optimiser;
        self.reference = reference.map(|params| self.frozen(params));
    }

    /// Takes up the value model's weights and optimiser where a checkpoint left them; nothing without a value model.
    pub fn restore_value_model(&mut self, params: Params, optimiser: AdamW) {
        if let Some(value) = &mut self.value {
            value.learner.optimiser = optimiser;
            value.learner.model.update(&self.cpu, |own| *own = params);
        }
    }

    /// A model like the policy's with other weights.
    fn frozen(&self, params: Params) -> Transformer {
        let model = &self.policy.model;
        Transformer::new(&self.cpu, self.config().clone(), params, model.precision()).with_context(model.positions())
    }

    /// Bytes that the KV cache has needed so far.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, PolicyError> {
        let found = self.sequences.get(id.0).and_then(Option::as_ref);
        found.ok_or_else(|| PolicyError::Invalid(format!("sequence {} is not open", id.0)))
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), PolicyError> {
        match ids.iter().find(|&&id| id as usize >= self.policy.model.config.vocab) {
            None => Ok(()),
            Some(id) => Err(PolicyError::Invalid(format!(
                "token {id} is outside the model's vocabulary of {}: tokenizer and model do not belong together",
                self.policy.model.config.vocab
            ))),
        }
    }

    /// Appends every request's tokens, and returns the row of logits that each ends with.
    ///
    /// Empty sequences with equal tokens are computed once: the first one's pages are shared by the others.
    fn prefill(&mut self, tokens: &[(CacheId, Vec<u32>)], logits: &mut Vec<f32>) -> Vec<usize> {
        let mut firsts: Vec<usize> = Vec::new();
        let mut rows = Vec::with_capacity(tokens.len());
        for (i, (id, ids)) in tokens.iter().enumerate() {
            let twin = match self.cache.len(*id) {
                0 => firsts.iter().position(|&f| tokens[f].1 == *ids && self.cache.len(tokens[f].0) == 0),
                _ => None,
            };
            rows.push(twin.unwrap_or(firsts.len()));
            if twin.is_none() {
                firsts.push(i);
            }
        }
        let appends: Vec<Append<'_>> =
            firsts.iter().map(|&f| Append { id: tokens[f].0, tokens: &tokens[f].1 }).collect();
        self.extend_in_pieces(&appends, logits);
        for (i, &row) in rows.iter().enumerate() {
            if firsts[row] != i {
                self.cache.share(tokens[i].0, tokens[firsts[row]].0);
            }
        }
        rows
    }

    /// Appends to sequences, a bounded number of tokens at once, and collects the row of logits that each ends with.
    fn extend_in_pieces(&mut self, appends: &[Append<'_>], logits: &mut Vec<f32>) {
        if appends.iter().map(|append| append.tokens.len()).sum::<usize>() <= PREFILL_TOKENS {
            return self.policy.model.extend(&self.cpu, &mut self.cache, appends, logits);
        }
        logits.clear();
        let mut some = Vec::new();
        let (mut piece, mut room): (Vec<Append<'_>>, usize) = (Vec::new(), PREFILL_TOKENS);
        for (i, append) in appends.iter().enumerate() {
            let mut rest = append.tokens;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(room));
                piece.push(Append { id: append.id, tokens: now });
                room -= now.len();
                rest = later;
                if room == 0 || (rest.is_empty() && i + 1 == appends.len()) {
                    self.policy.model.extend(&self.cpu, &mut self.cache, &piece, &mut some);
                    // Of a sequence that goes on in the next piece, the last row so far is of no use.
                    let ended = piece.len() - usize::from(!rest.is_empty());
                    logits.extend_from_slice(&some[..ended * self.policy.model.config.vocab]);
                    piece.clear();
                    room = PREFILL_TOKENS;
                }
            }
        }
    }

    /// Draws one token a sequence from its row of logits.
    fn draw(&self, draws: &[Draw], logits: &[f32], sampling: &Sampling) -> Result<Vec<Outcome>, SampleError> {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let vocab = self.policy.model.config.vocab;
        let outcomes: Vec<Mutex<Option<Result<Outcome, SampleError>>>> =
            draws.iter().map(|_| Mutex::new(None)).collect();
        self.cpu.pool.split(draws.len(), 8, 1, &|range| {
            SCRATCH.with_borrow_mut(|scratch| {
                for i in range {
                    let row = &logits[draws[i].row * vocab..][..vocab];
                    let outcome = sampling
                        .draw(self.cpu.isa, row, draws[i].uniform, scratch)
                        .map(|drawn| Outcome { drawn, kept: scratch.kept().map(<[u32]>::to_vec) });
                    *outcomes[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                }
            });
        });
        let filled = outcomes.into_iter().filter_map(|o| o.into_inner().unwrap_or_else(PoisonError::into_inner));
        filled.collect()
    }

    /// Packs rows into a tree and their targets into packed rows.
    fn pack(&self, rows: &[Row<'_>]) -> Result<(TokenTree, Vec<Target>), PolicyError> {
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
        let mut tree = TokenTree::new();
        let mut targets = Vec::new();
        let mut start = 0;
        while start < rows.len() {
            let (end, shared) = if self.share_prefix { shared_prefix(&rows[start..]) } else { (1, 0) };
            let parent = (shared > 0).then(|| tree.push(None, &rows[start].ids[..shared]));
            let parent_start = parent.map_or(0, |p| tree.segments[p].start);
            for row in &rows[start..start + end] {
                let segment = tree.push(parent, &row.ids[shared..]);
                let own = tree.segments[segment].start;
                for (i, &t) in row.targets.iter().enumerate() {
                    let t = t as usize;
                    let before = t - 1;
                    let packed = if before < shared { parent_start + before } else { own + before - shared };
                    targets.push(Target { row: packed, token: row.ids[t], kept: row.kept.get(i).cloned().flatten() });
                }
            }
            start += end;
        }
        Ok((tree, targets))
    }
}

/// How many of the first rows share how long a prefix: as many as have at least [`SHORTEST_PREFIX`] tokens in common.
fn shared_prefix(rows: &[Row<'_>]) -> (usize, usize) {
    let mut shared = rows[0].ids.len();
    let mut count = 1;
    for row in &rows[1..] {
        let common = rows[0].ids[..shared].iter().zip(row.ids).take_while(|(a, b)| a == b).count();
        if common < SHORTEST_PREFIX {
            break;
        }
        shared = common;
        count += 1;
    }
    if count == 1 { (1, 0) } else { (count, shared) }
}

/// Where a token is drawn from, and with which uniform number.
struct Draw {
    row: usize,
    uniform: f64,
}

struct Outcome {
    drawn: Drawn,
    kept: Option<Vec<u32>>,
}

fn values(of: PerTarget<f32>) -> TokenValues {
    TokenValues { logp: of.logp, entropy: of.entropy, value: of.value }
}

impl Policy for Model {
    fn max_positions(&self) -> usize {
        self.policy.model.positions()
    }

    fn has_value(&self) -> bool {
        self.config().value_head || self.value.is_some()
    }

    fn open(&mut self) -> SequenceId {
        let sequence = Some(Sequence { cache: self.cache.open(), pending: Vec::new() });
        match self.free.pop() {
            Some(id) => {
                self.sequences[id] = sequence;
                SequenceId(id)
            }
            None => {
                self.sequences.push(sequence);
                SequenceId(self.sequences.len() - 1)
            }
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(open) = self.sequences.get_mut(sequence.0).and_then(Option::take) {
            self.cache.close(open.cache);
            self.free.push(sequence.0);
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
            let sequence = self.sequence(request.sequence)?;
            let tokens = [sequence.pending.as_slice(), request.prompt].concat();
            let length = self.cache.len(sequence.cache) + tokens.len();
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
        let mut logits = Vec::new();
        let mut rows = self.prefill(&first, &mut logits);
        while !active.is_empty() {
            let draws: Vec<Draw> = active
                .iter()
                .zip(&rows)
                .map(|(&i, &row)| Draw { row, uniform: requests[i].key.uniform(lengths[i] as u64) })
                .collect();
            let outcomes = self
                .draw(&draws, &logits, sampling)
                .map_err(|e| PolicyError::Invalid(format!("cannot sample: {e}")))?;
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
                let Some(sequence) = self.sequences[requests[i].sequence.0].as_mut() else { continue };
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
                self.policy.model.extend(&self.cpu, &mut self.cache, &appends, &mut logits);
            }
        }
        Ok(responses)
    }

    fn score(&mut self, weights: Weights, rows: &[Row<'_>], temperature: f32) -> Result<TokenValues, PolicyError> {
        let (tree, targets) = self.pack(rows)?;
        let cpu = &self.cpu;
        let Learner { model, activations, .. } = &mut self.policy;
        let mut of = |model: &Transformer| {
            model.forward(cpu, &tree, activations, false);
            values(model.values(cpu, activations, &targets, temperature))
        };
        let mut found = match (weights, &self.reference) {
            (Weights::Policy, _) => of(model),
            (Weights::Reference, Some(reference)) => of(reference),
            (Weights::Reference, None) if model.lora().is_some() => model.without_adapters(of),
            (Weights::Reference, None) => return Err(PolicyError::Missing("reference")),
        };
        if let (Weights::Policy, Some(value)) = (weights, &mut self.value) {
            let Learner { model, activations, .. } = &mut value.learner;
            model.forward(cpu, &tree, activations, false);
            found.value = model.value_estimates(cpu, activations, &targets);
        }
        Ok(found)
    }

    fn packed_tokens(&self, rows: &[Row<'_>]) -> usize {
        let (mut start, mut tokens) = (0, 0);
        while start < rows.len() {
            let (n, shared) = if self.share_prefix { shared_prefix(&rows[start..]) } else { (1, 0) };
            let own: usize = rows[start..start + n].iter().map(|row| row.ids.len() - shared).sum();
            tokens += shared + own;
            start += n;
        }
        tokens
    }

    fn freeze_reference(&mut self) {
        // The base below adapters is frozen as it is.
        if self.policy.model.lora().is_none() {
            self.reference = Some(self.frozen(self.params().clone()));
        }
    }

    fn accumulate(
        &mut self,
        rows: &[Row<'_>],
        temperature: f32,
        objective: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError> {
        let (tree, targets) = self.pack(rows)?;
        let cpu = &self.cpu;
        let Learner { model, activations, .. } = &mut self.policy;
        model.forward(cpu, &tree, activations, true);
        let mut found = values(model.values(cpu, activations, &targets, temperature));
        if let Some(value) = &mut self.value {
            let Learner { model, activations, .. } = &mut value.learner;
            model.forward(cpu, &tree, activations, true);
            found.value = model.value_estimates(cpu, activations, &targets);
        }
        let TokenSeeds { logp, entropy, value } = objective(&found);
        let mut seeds = PerTarget { logp, entropy, value };
        if let Some(other) = &mut self.value {
            let own = PerTarget { value: std::mem::take(&mut seeds.value), ..PerTarget::default() };
            other.learner.backward(cpu, &tree, &targets, temperature, &own);
        }
        self.policy.backward(cpu, &tree, &targets, temperature, &seeds);
        Ok(found)
    }

    fn update(&mut self, lr: f64) -> Result<Update, PolicyError> {
        // What the cache holds belongs to the old weights; its pages are kept for the next rollout.
        let mut step = self.policy.update(&self.cpu, lr);
        if let Some(value) = &mut self.value {
            step.skipped |= value.learner.update(&self.cpu, lr * value.lr_factor).skipped;
        }
        Ok(step)
    }
}

//! The memory plan: how many tokens a micro-batch packs, whether blocks are computed again, and how many episodes are played at once, so
//! that everything fits before anything is loaded.
//!
//! None of these choices changes what a token's log-probability is; the packed tokens of a micro-batch decide where prompts are
//! shared and so how gradients round, hence they are written into the resolved configuration. Bytes of the CPU's memory are estimated by
//! [`ragen_models::memory`]; a GPU's buffers are made on a machine that only counts ([`ragen_models::engine::measure`]).

use crate::agent_proxy::{PLACES, Play, RolloutError, play};
use crate::config::{Config, EnvSet, Recompute};
use crate::context_manager::ContextManager;
use crate::env_manager::EnvManager;
use crate::policy::{
    Finish, Policy, PolicyError, Request, Response, Row, Sampling, SequenceId, Stop, TokenSeeds, TokenValues, Update,
    Weights,
};
use ragen_envs::Mode;
use ragen_models::config::Config as Shape;
use ragen_models::engine;
use ragen_models::gpu::{CudaError, Gpu};
use ragen_models::lora::Lora;
use ragen_models::memory::{Memory, Work, estimate, page_bytes};
use ragen_models::ops::attention::PAGE;
use ragen_models::random::Key;

/// Fewest episodes at once before blocks are rather computed again.
const FEW_PLACES: usize = 16;
/// Beyond this, more packed tokens or more episodes at once gain no speed worth their memory.
const AMPLE_BYTES: usize = 1 << 30;
/// Packed tokens that fill the products of a model for which [`AMPLE_BYTES`] is little.
const AMPLE_TOKENS: usize = 2048;

/// Lengths in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// The longest first prompt; 0 where an episode has several rows, of which only the first begins with it.
    pub first: usize,
    /// The longest row, every response as long as it may be.
    pub row: usize,
    /// The most rows of an episode.
    pub rows: usize,
}

impl Lengths {
    /// Plays a few episodes of each tag with a policy that says nothing, at length.
    ///
    /// **Errors** as a rollout: environments that are broken, prompts that do not fit.
    pub fn measure(config: &Config, context: &ContextManager) -> Result<Lengths, RolloutError> {
        let mut lengths = Lengths { rows: 1, ..Lengths::default() };
        let validates = config.val.every > 0 || config.val.before_train;
        let sets = [(&config.env.train, Mode::Train), (&config.env.val, Mode::Val)];
        for (set, mode) in sets.into_iter().take(if validates { 2 } else { 1 }) {
            let few = EnvSet { groups: 2 * set.tags.len(), group_size: 1, n_groups: Vec::new(), ..set.clone() };
            let mut envs = EnvManager::new(&few, &config.envs, mode)?;
            let broken = envs.reset()?;
            let how = Play::new(context, &config.rollout, config.rollout.sampling);
            let mut mumbler = Mumbler { id: context.filler(), max_positions: context.context_tokens, open: Vec::new() };
            for trajectory in play(&mut mumbler, &mut envs, broken, how, Key::new(0))?.trajectories {
                let first = trajectory.turns.first().map_or(trajectory.n_tokens(), |turn| turn.prompt.len());
                let row = trajectory.rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
                lengths.first = lengths.first.max(first);
                lengths.row = lengths.row.max(row);
                let rows = if context.splits_rows() { trajectory.turns.len() } else { trajectory.rows.len() };
                lengths.rows = lengths.rows.max(rows);
            }
        }
        if lengths.rows > 1 {
            // Members of a group share the prompt of the row that they play at once, and later rows differ.
            lengths.first = 0;
        }
        Ok(lengths)
    }
}

/// A policy that answers with one token, over and over, and cannot be trained.
struct Mumbler {
    id: u32,
    max_positions: usize,
    /// Length of each sequence.
    open: Vec<usize>,
}

impl Policy for Mumbler {
    fn max_positions(&self) -> usize {
        self.max_positions
    }

    fn has_value(&self) -> bool {
        false
    }

    fn open(&mut self) -> SequenceId {
        self.open.push(0);
        SequenceId(self.open.len() - 1)
    }

    fn close(&mut self, _: SequenceId) {}

    fn generate(&mut self, requests: &[Request<'_>], _: &Sampling, _: &Stop<'_>) -> Result<Vec<Response>, PolicyError> {
        let answer = |request: &Request<'_>| {
            let length = &mut self.open[request.sequence.0];
            *length += request.prompt.len();
            let n = request.max_new_tokens.min(self.max_positions.saturating_sub(*length));
            *length += n;
            let finish = if n < request.max_new_tokens { Finish::Context } else { Finish::Length };
            Response { ids: vec![self.id; n], logps: vec![0.0; n], kept: Vec::new(), finish }
        };
        Ok(requests.iter().map(answer).collect())
    }

    fn score(&mut self, _: Weights, _: &[Row<'_>], _: f32) -> Result<TokenValues, PolicyError> {
        Err(PolicyError::Missing("scores"))
    }

    fn freeze_reference(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }

    fn accumulate(
        &mut self,
        _: &[Row<'_>],
        _: f32,
        _: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError> {
        Err(PolicyError::Missing("gradients"))
    }

    fn update(&mut self, _: f64) -> Result<Update, PolicyError> {
        Err(PolicyError::Missing("weights"))
    }
}

/// One byte in so many of a GPU's memory is left alone: for the kernels' code, and what lies between buffers.
const KEPT_BACK: usize = 64;

/// The machine that a run is planned for.
#[derive(Clone)]
pub enum Machine {
    /// The CPU with so many threads.
    Cpu {
        /// Of its pool.
        threads: usize,
    },
    /// A GPU.
    Gpu {
        /// Which.
        gpu: Gpu,
        /// The longest context, in tokens.
        positions: usize,
    },
}

impl Machine {
    /// Bytes that a run may take: as many as it was given (0 for no limit of its own), or what is there.
    ///
    /// **Errors** of the device.
    pub fn budget_bytes(&self, given: usize) -> Result<usize, CudaError> {
        match self {
            _ if given > 0 => Ok(given),
            Machine::Cpu { .. } => Ok(machine_bytes().unwrap_or(usize::MAX)),
            Machine::Gpu { gpu, .. } => gpu.memory().map(|(free, total)| free.saturating_sub(total / KEPT_BACK)),
        }
    }

    /// What the memory is, where [`Machine::budget_bytes`] comes from.
    fn memory(&self) -> String {
        match self {
            Machine::Cpu { .. } => "run.memory_bytes, or what the machine has".into(),
            Machine::Gpu { gpu, .. } => {
                let numbers = gpu.memory().map_or(String::new(), |(free, total)| {
                    format!(
                        ": {} of {} MiB are free, {} are left alone",
                        free >> 20,
                        total >> 20,
                        (total / KEPT_BACK) >> 20
                    )
                });
                format!("run.memory_bytes, or device memory of {}{numbers}", gpu.name())
            }
        }
    }

    fn measure(&self, config: &Config, shape: &Shape, work: &Work) -> Memory {
        match self {
            Machine::Cpu { .. } => estimate(shape, work),
            Machine::Gpu { gpu, positions } => {
                let sampling = [config.rollout.sampling, config.val.sampling()];
                engine::measure(gpu, config.run.products.into(), shape, *positions, work, &sampling)
            }
        }
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[error(
    "the run does not fit into {budget_mib} MiB ({memory}): at least {needed_mib} MiB are needed, \
     for {parts}; take a smaller model, model.lora.rank > 0, model.dtype=bf16, a smaller rollout.model_tokens, or more memory"
)]
pub struct PlanError {
    budget_mib: usize,
    memory: String,
    needed_mib: usize,
    parts: String,
}

/// What was chosen, and what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What is done with the model.
    pub work: Work,
    /// Bytes of it.
    pub memory: Memory,
    /// Tokens of the longest row that is expected.
    pub row_tokens: usize,
    /// Packed tokens of the largest batch that would come if there were memory for any.
    pub most_tokens: usize,
    /// Episodes that are played at once.
    pub places: usize,
    /// Bytes that it had to fit into.
    pub budget_bytes: usize,
}

impl Plan {
    /// A plan for a run with a model of this shape; without `trains`, for playing alone.
    ///
    /// **Errors** [`PlanError`] with the numbers when nothing fits.
    pub fn new(
        config: &Config,
        shape: &Shape,
        lora: Option<Lora>,
        lengths: Lengths,
        trains: bool,
        machine: &Machine,
        budget_bytes: usize,
    ) -> Result<Plan, PlanError> {
        let rollout = &config.rollout;
        let row_tokens = lengths.row.max(1);
        let sets = sets(config);
        let episodes = sets.iter().map(|(groups, size)| groups * size).max().unwrap_or(1);
        let threads = if let Machine::Cpu { threads } = machine { *threads } else { 0 };
        // A GPU has the memory, and is faster the more there is to do at once.
        let large = matches!(machine, Machine::Gpu { .. });
        let least = row_tokens.min(config.update.micro_batch_tokens).max(1);
        // The collapse detector scores more than a step's own rows; a GPU's buffers are made for that too.
        let all = match config.collapse.every {
            1.. if large => usize::MAX,
            _ => episode_tokens(config, lengths.rows, row_tokens),
        };
        let most = config.update.micro_batch_tokens.min(all).max(least);
        let plan = |packed_tokens: usize, recompute: bool, places: usize| {
            let pages = sets.iter().map(|set| pages(*set, places, lengths.first, row_tokens)).max().unwrap_or(0);
            let work = Work {
                precision: config.model.dtype,
                lora: lora.clone(),
                value_model: config.model.value_model && trains,
                reference: config.needs_reference() && lora.is_none() && trains,
                trains,
                gradients_held: if trains { gradients_held(config) } else { 0 },
                packed_tokens,
                recompute,
                pages,
                sequences: places,
                threads,
            };
            Plan {
                memory: machine.measure(config, shape, &work),
                work,
                row_tokens,
                most_tokens: most,
                places,
                budget_bytes,
            }
        };
        let places = match rollout.places {
            0 if large => episodes.max(1),
            0 => places(shape, &sets, episodes.clamp(1, PLACES), lengths.first, row_tokens),
            given => given,
        };
        let tokens = match config.update.packed_tokens {
            _ if !trains => vec![0],
            0 => token_counts(least, most, |n| large || plan(n, false, 1).memory.activations <= AMPLE_BYTES),
            given => vec![given],
        };
        let recompute: &[bool] = match config.update.recompute {
            Recompute::Auto => &[false, true],
            Recompute::None => &[false],
            Recompute::Layer => &[true],
        };
        let fewest = if rollout.places == 0 { [places.min(FEW_PLACES), 1] } else { [places; 2] };
        let mut smallest = None;
        for fewest in fewest {
            for &recompute in recompute {
                for places in halves(places, fewest) {
                    for &tokens in &tokens {
                        let plan = plan(tokens, recompute, places);
                        if plan.memory.total() <= budget_bytes {
                            return Ok(plan);
                        }
                        smallest = Some(plan);
                    }
                }
            }
        }
        let needed = smallest.map(|plan| plan.memory).unwrap_or_default();
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let parts = needed.parts().map(|(name, bytes)| format!("{name} {}", mib(bytes))).join(", ");
        let memory = machine.memory();
        Err(PlanError { budget_mib: budget_bytes >> 20, memory, needed_mib: mib(needed.total()), parts })
    }

    /// Writes the one choice that reaches a result into the configuration: packed tokens, where fewer fit than were asked for.
    pub fn settle(&self, config: &mut Config) {
        if self.work.packed_tokens < self.most_tokens {
            config.update.packed_tokens = self.work.packed_tokens;
        }
    }

    /// One line for people: what was chosen and what it takes.
    pub fn line(&self) -> String {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let parts = self.memory.parts().map(|(name, bytes)| format!("{name} {}", mib(bytes))).join(", ");
        let chosen = match (self.work.trains, self.work.recompute) {
            (false, _) => String::new(),
            (true, recompute) => format!(
                "; {} packed tokens a micro-batch, blocks {}",
                self.work.packed_tokens,
                if recompute { "computed again" } else { "kept" }
            ),
        };
        let budget = match self.budget_bytes {
            usize::MAX => String::new(),
            bytes => format!(" of {}", bytes >> 20),
        };
        format!(
            "memory: {} MiB{budget} planned ({parts}); {} episodes at once{chosen}",
            mib(self.memory.total()),
            self.places
        )
    }
}

/// Tokens of all rows of a step.
fn episode_tokens(config: &Config, rows: usize, row_tokens: usize) -> usize {
    let train = (config.env.train.groups, config.env.train.group_size);
    let analysed = if config.gradient_analysis.every > 0 { config.gradient_analysis.source(train) } else { train };
    (train.0 * train.1).max(analysed.0 * analysed.1).saturating_mul(rows.max(1)).saturating_mul(row_tokens)
}

/// Gradients of the policy that the gradient analysis holds at once. They lie in the memory of the host, also where the model is on a GPU.
fn gradients_held(config: &Config) -> usize {
    let loss = &config.update.loss;
    config.gradient_analysis.gradients_held(loss.entropy_coef != 0.0, loss.kl.coef != 0.0)
}

/// Groups and members of what is played: training, a gradient analysis of its own, and validation where there is any.
fn sets(config: &Config) -> Vec<(usize, usize)> {
    let (train, val) = (&config.env.train, &config.env.val);
    let of_training = (train.groups, train.group_size);
    let mut sets = vec![of_training];
    let analysis = &config.gradient_analysis;
    if analysis.every > 0 && analysis.source(of_training) != of_training {
        sets.push(analysis.source(of_training));
    }
    if config.val.every > 0 || config.val.before_train {
        sets.push((val.groups, val.group_size));
    }
    sets
}

/// Pages of the first `places` episodes of a set, each grown to its whole row; members share the full pages of their prompt.
fn pages((groups, size): (usize, usize), places: usize, first: usize, row: usize) -> usize {
    let places = places.min(groups * size);
    let shared = if size > 1 { first.min(row) / PAGE } else { 0 };
    places * (row.div_ceil(PAGE) - shared) + places.div_ceil(size) * shared
}

/// As many places as are asked for, or as take [`AMPLE_BYTES`]; at least a few.
fn places(shape: &Shape, sets: &[(usize, usize)], most: usize, first: usize, row: usize) -> usize {
    let bytes = |n: usize| sets.iter().map(|set| pages(*set, n, first, row)).max().unwrap_or(0) * page_bytes(shape);
    (1..=most).rev().find(|&n| bytes(n) <= AMPLE_BYTES || n <= FEW_PLACES).unwrap_or(1)
}

/// Packed tokens to try, most first: all that are asked for where that is ample, else steps down to the fewest.
fn token_counts(least: usize, most: usize, is_ample: impl Fn(usize) -> bool) -> Vec<usize> {
    let first = if is_ample(most) { most } else { most.min(AMPLE_TOKENS).max(least) };
    let mut counts: Vec<usize> =
        std::iter::successors(Some(first), |n| Some(n / 2)).take_while(|n| *n > least).collect();
    counts.retain(|n| *n == first || *n >= 256);
    counts.push(least);
    counts
}

/// `from`, half of it and so on, `to` last.
fn halves(from: usize, to: usize) -> Vec<usize> {
    let mut all: Vec<usize> = std::iter::successors(Some(from), |n| Some(n / 2)).take_while(|n| *n > to).collect();
    all.push(to);
    all
}

/// Bytes that this process may still take: what the machine has available, or a container's limit. `None` where it cannot be known.
pub fn machine_bytes() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = line.trim().trim_end_matches("kB").trim().parse::<usize>().ok()? * 1024;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let limit = number("/sys/fs/cgroup/memory.max")
        .map(|max| max.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    Some(limit.map_or(available, |limit| limit.min(available)))
}

/// The most memory that this process has had in use at once, mapped files included, in bytes. `None` where it cannot be known.
pub fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<usize>().ok()? * 1024)
}

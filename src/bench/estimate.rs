//! What a GPU should take on paper, before anything has run on one: the real forward, backward, optimiser step, prefill and decode step of a
//! model walk a machine that only counts, and what they launch, multiply and move is turned into time by stated assumptions.
//!
//! Launches, products, copies and waits are counted; what a kernel moves and computes is the manifest's word at the shape of the walk.
//! Kernels that the head and the layers share are taken as if all their launches had the layers' rows.

mod page;

pub use page::page;

use super::gpu::cost::{self, Cost};
use super::gpu::{Episodes, Sizes, kernel_shape};
use ragen_models::engine::{Engine, EngineError, GpuEngine};
use ragen_models::gpu::{Bf16, Counts, Gpu, GpuTransformer, KernelShape, Learns, Ledger, Products, Work, all_kernels};
use ragen_models::kv_cache::CacheId;
use ragen_models::ops::head::{PerTarget, Target};
use ragen_models::optim::AdamWSettings;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Append, Config};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is assumed of a machine, and of how much of it kernels reach.
#[derive(Clone, Copy, Debug)]
pub struct Assumed {
    /// Bytes a second that a long copy moves.
    pub bandwidth: f64,
    /// Operations a second of a large product in bf16.
    pub rate: f64,
    /// Share of `bandwidth` that kernels and small products reach.
    pub of_bandwidth: f64,
    /// Share of `rate` that the products of a layer and of the head reach.
    pub of_rate: f64,
    /// The same of attention over a batch, which uses the instructions of Ampere.
    pub attention_of_rate: f64,
    /// Seconds that a kernel or product takes at least.
    pub shortest: f64,
    /// Seconds of the host for a launch that is no replay.
    pub launch: f64,
    /// Seconds of the host for a replay, an upload, a download, a copy.
    pub call: f64,
    /// Seconds that the device stands still when the host reads what it made.
    pub wait: f64,
}

impl Assumed {
    /// An H200 as others report it.
    pub const H200: Assumed = Assumed {
        bandwidth: 4.3e12,
        rate: 790e12,
        of_bandwidth: 0.8,
        of_rate: 0.75,
        attention_of_rate: 0.125,
        shortest: 2e-6,
        launch: 4e-6,
        call: 5e-6,
        wait: 10e-6,
    };

    /// The same machine, used fully and with a host that costs nothing.
    pub fn at_best(self) -> Assumed {
        let (shortest, launch, call, wait) = (0.0, 0.0, 0.0, 0.0);
        Assumed { of_bandwidth: 1.0, of_rate: 1.0, attention_of_rate: 1.0, shortest, launch, call, wait, ..self }
    }
}

/// Something that was walked on the counting machine.
#[derive(Clone, Debug)]
pub struct Walk {
    counts: Counts,
    /// Rows of the layers, and keys that a row sees, on average.
    rows: f64,
    keys: f64,
    /// Rows of logits that the head's kernels saw, a pass.
    targets: f64,
    /// Sequences that attention_decode and sampling work on.
    sequences: f64,
}

/// What time goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Matrix products of the library.
    Products,
    /// Attention over a batch or a cache.
    Attention,
    /// Norms, RoPE, SwiGLU, biases, embeddings, and their gradients.
    Elementwise,
    /// Log-probabilities and sampling: all that reads logits.
    Logits,
    /// AdamW, the gradients' norm, zeroing.
    Optimiser,
    /// Copies within the device.
    Copies,
}

impl Part {
    fn of(kernel: &str) -> Part {
        match kernel {
            _ if kernel.starts_with("attention") || kernel == "kv_append" => Part::Attention,
            _ if kernel.starts_with("sample") || kernel.starts_with("head") || kernel == "uniform" => Part::Logits,
            "norm_pieces" | "norm_total" | "adamw_step" => Part::Optimiser,
            _ => Part::Elementwise,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Products => "products",
            Part::Attention => "attention",
            Part::Elementwise => "norms, RoPE, SwiGLU, biases, embedding",
            Part::Logits => "reading logits",
            Part::Optimiser => "AdamW and zeroing",
            Part::Copies => "copies",
        }
    }
}

/// Seconds of walks.
#[derive(Clone, Debug, Default)]
pub struct Seconds {
    /// Of the device, by part.
    pub parts: BTreeMap<Part, f64>,
    /// By which the host is slower than the device.
    pub behind: f64,
    /// Of the device while the host reads what it made.
    pub waits: f64,
}

impl Seconds {
    /// Of the device alone.
    pub fn device(&self) -> f64 {
        self.parts.values().sum()
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.device() + self.behind + self.waits
    }
}

/// Walks and how often each is gone.
pub type Walks = Vec<(Walk, f64)>;

/// Seconds of walks on a machine as assumed.
pub fn seconds(walks: &Walks, c: &Config, on: &Assumed) -> Seconds {
    let mut sum = Seconds::default();
    for (walk, times) in walks {
        let Seconds { parts, behind, waits } = walk.seconds(c, on);
        parts.into_iter().for_each(|(part, seconds)| *sum.parts.entry(part).or_default() += times * seconds);
        sum.behind += times * behind;
        sum.waits += times * waits;
    }
    sum
}

impl Walk {
    /// The shape at which the manifest is asked for a kernel's work, and by how much a launch here is larger.
    fn shape(&self, c: &Config, kernel: &str) -> (KernelShape, f64) {
        let whole = |x: f64| (x.round() as usize).max(1);
        let sequence = whole(2.0 * self.keys - 1.0);
        let layers = KernelShape { rows: whole(self.rows), ..kernel_shape(c, 1, sequence) };
        let launches = self.counts.launches.get(kernel).copied().unwrap_or(0).max(1) as f64;
        match kernel {
            // A token for each sequence, and the keys of all of them.
            "attention_decode" | "attention_merge" => (kernel_shape(c, whole(self.sequences), whole(self.keys)), 1.0),
            // The manifest has chunks of 512 rows here; the walk goes over all targets as often as the head is computed.
            "head_fwd" => (layers, 2.0 * self.targets / launches / layers.rows.min(512) as f64),
            "head_bwd" => (layers, self.targets / launches / layers.rows.min(512) as f64),
            // And 64 rows here.
            _ if kernel.starts_with("sample") || kernel == "uniform" => (layers, self.sequences / 64.0),
            _ => (layers, 1.0),
        }
    }

    /// What a launch of this kernel moves and computes.
    fn work(&self, c: &Config, kernel: &str) -> Cost {
        let known = all_kernels().find(|known| known.name == kernel);
        let (shape, times) = self.shape(c, kernel);
        let Work { bytes, flops } = known.map_or(Work::default(), |known| (known.work)(&shape));
        Cost { bytes: bytes * times, flops: flops * times }
    }

    /// Seconds on a machine as assumed.
    pub fn seconds(&self, c: &Config, on: &Assumed) -> Seconds {
        let mut parts: BTreeMap<Part, f64> = BTreeMap::new();
        let mut add = |part: Part, seconds: f64| *parts.entry(part).or_default() += seconds;
        let time = |cost: Cost, of_rate: f64| {
            (cost.bytes / on.bandwidth / on.of_bandwidth).max(cost.flops / on.rate / of_rate).max(on.shortest)
        };
        for (kernel, &launches) in &self.counts.launches {
            let of_rate = if Part::of(kernel) == Part::Attention { on.attention_of_rate } else { 1.0 };
            add(Part::of(kernel), launches as f64 * time(self.work(c, kernel), of_rate));
        }
        for (product, &calls) in &self.counts.products {
            let cost = Cost { bytes: product.bytes(), flops: product.flops() };
            add(Part::Products, calls as f64 * time(cost, on.of_rate));
        }
        let moved =
            |bytes: u64, times: u64| (bytes as f64 / on.bandwidth / on.of_bandwidth).max(times as f64 * on.shortest);
        add(Part::Copies, moved(2 * self.counts.copies.bytes, self.counts.copies.times));
        add(Part::Optimiser, moved(self.counts.zeros.bytes, self.counts.zeros.times));
        let Counts { uploads, downloads, copies, zeros, replays, .. } = &self.counts;
        // A walk replays all of its layers or none of them; what a replay starts costs the host nothing.
        let (launches, moves) = if *replays > 0 { (0, 0) } else { (self.launches(), copies.times + zeros.times) };
        let calls = moves + uploads.times + downloads.times + replays;
        let host = launches as f64 * on.launch + calls as f64 * on.call;
        let device: f64 = parts.values().sum();
        Seconds { behind: (host - device).max(0.0), waits: downloads.times as f64 * on.wait, parts }
    }

    /// Kernels and products that were started.
    pub fn launches(&self) -> u64 {
        self.counts.kernel_launches() + self.counts.product_calls()
    }

    /// Whether its launches are replayed.
    pub fn is_replayed(&self) -> bool {
        self.counts.replays > 0
    }
}

/// A model on the counting machine.
pub struct Walker {
    sizes: Sizes,
    ledger: Arc<Ledger>,
    engine: GpuEngine<Bf16>,
}

impl Walker {
    /// A model of this shape in bf16, that is trained and sampled at these sizes.
    ///
    /// **Errors** none but those of a programming error.
    pub fn new(config: Config, sizes: Sizes) -> Result<Walker, EngineError> {
        let (gpu, ledger) = Gpu::counting();
        let (room, positions) = (sizes.room(&config), config.max_positions);
        let model = GpuTransformer::<Bf16>::empty(gpu, Products::Library, config, positions, Learns::Weights)?;
        let engine = GpuEngine::new(model, room, AdamWSettings::default())?;
        Ok(Walker { sizes, ledger, engine })
    }

    /// Most bytes that were held so far.
    pub fn most_bytes(&self) -> usize {
        self.ledger.most().bytes
    }

    /// What `work` does, after it has been done once to make its buffers.
    fn walk(
        &mut self,
        work: &mut dyn FnMut(&mut GpuEngine<Bf16>) -> Result<(), EngineError>,
    ) -> Result<Counts, EngineError> {
        work(&mut self.engine)?;
        let before = self.ledger.counts();
        work(&mut self.engine)?;
        Ok(&self.ledger.counts() - &before)
    }

    /// Forward and backward over rows that share a prompt of `prompt` tokens by groups of `members`, with `own` tokens of their own of which
    /// `targets` are trained; and the optimiser's step.
    ///
    /// **Errors** none but those of a programming error.
    pub fn train(
        &mut self,
        groups: usize,
        members: usize,
        [prompt, own, targets]: [usize; 3],
    ) -> Result<(Walk, Walk), EngineError> {
        let mut tree = TokenTree::new();
        let mut of = Vec::new();
        let mut pairs = 0;
        for _ in 0..groups {
            let parent = (prompt > 0).then(|| tree.push(None, &vec![0; prompt]));
            pairs += cost::pairs(0, prompt) + members * cost::pairs(prompt, own);
            for _ in 0..members {
                let segment = tree.push(parent, &vec![0; own]);
                let rows = tree.segments[segment].rows();
                of.extend(rows.take(targets).map(|row| Target { row, token: 0, kept: None }));
            }
        }
        let seeds = PerTarget { logp: vec![1.0; of.len()], ..Default::default() };
        let (rows, targets) = (tree.rows() as f64, of.len() as f64);
        let pass = self.walk(&mut |engine| {
            engine.score(&tree, &of, 1.0, true)?;
            engine.backward(&tree, &of, 1.0, &seeds)
        })?;
        let step = self.walk(&mut |engine| engine.update(1e-6).map(|_| ()))?;
        let keys = pairs as f64 / rows;
        let walk = |counts| Walk { counts, rows, keys, targets, sequences: 0.0 };
        Ok((walk(pass), walk(step)))
    }

    /// Appends `new` tokens to `batch` sequences that hold `len` tokens each.
    ///
    /// **Errors** none but those of a programming error.
    pub fn prefill(&mut self, batch: usize, len: usize, new: usize) -> Result<Walk, EngineError> {
        let counts = self.grow(batch, len, new, false)?;
        // Many tokens are appended in several passes.
        let passes = (counts.launches["kv_append"] as usize / self.engine.config().n_layers) as f64;
        let (rows, keys) = ((batch * new) as f64 / passes, cost::pairs(len, new) as f64 / new as f64);
        Ok(Walk { counts, rows, keys, targets: 0.0, sequences: batch as f64 })
    }

    /// A step of decoding `batch` sequences that hold `len` tokens each: the draw and the step of the layers.
    ///
    /// **Errors** none but those of a programming error.
    pub fn decode(&mut self, batch: usize, len: usize) -> Result<[Walk; 2], EngineError> {
        let draw = self.grow(batch, len, 1, true)?;
        let step = self.grow(batch, len, 1, false)?;
        let (rows, sequences) = (batch as f64, batch as f64);
        let walk = |counts| Walk { counts, rows, keys: len as f64 + 1.0, targets: 0.0, sequences };
        Ok([walk(draw), walk(step)])
    }

    /// What it takes to append `new` tokens to sequences of `len` tokens, or with `draws` to draw a token after each of them.
    fn grow(&mut self, batch: usize, len: usize, new: usize, draws: bool) -> Result<Counts, EngineError> {
        let Walker { engine, ledger, .. } = self;
        let (mut before, mut after) = (Counts::default(), Counts::default());
        // A shape of decoding is recorded when it comes again, and replayed from there on.
        for _ in 0..4 {
            let prompts = vec![vec![0; len]; batch];
            let ids = super::gpu::prefill(engine, if len > 0 { &prompts } else { &[] })?;
            let ids: Vec<CacheId> = if len > 0 { ids } else { (0..batch).map(|_| engine.open()).collect() };
            let tokens = vec![0; new];
            let appends: Vec<Append<'_>> = ids.iter().map(|&id| Append { id, tokens: &tokens }).collect();
            before = ledger.counts();
            match draws {
                true => super::gpu::draw(engine, batch, len).map(|_| ())?,
                false => engine.extend(&appends)?,
            }
            after = ledger.counts();
            ids.into_iter().for_each(|id| engine.close(id));
        }
        Ok(&after - &before)
    }
}

/// A training step of the bench.
///
/// **Errors** none but those of a programming error.
pub fn train(walker: &mut Walker) -> Result<Walks, EngineError> {
    let (rows, len) = walker.sizes.train;
    let (pass, step) = walker.train(rows, 1, [0, len, len - 1])?;
    Ok(vec![(pass, 1.0), (step, 1.0)])
}

/// A step of decoding of the bench, in the middle of what it times.
///
/// **Errors** none but those of a programming error.
pub fn decode(walker: &mut Walker, batch: usize) -> Result<Walks, EngineError> {
    let (len, new) = walker.sizes.decode;
    Ok(walker.decode(batch, len + new / 2)?.map(|walk| (walk, 1.0)).into())
}

/// A whole step as RAGEN has it: (rollout, update).
///
/// **Errors** none but those of a programming error.
pub fn step(walker: &mut Walker) -> Result<(Walks, Walks), EngineError> {
    let of @ Episodes { groups, members, turns, prompt, response, observation } = walker.sizes.step;
    let n = groups * members;
    let mut rollout = vec![(walker.prefill(groups, 0, prompt)?, 1.0)];
    let mut held = prompt;
    for turn in 0..turns {
        if turn > 0 {
            rollout.push((walker.prefill(n, held - 1, observation + 1)?, 1.0));
            held += observation;
        }
        let middle = walker.decode(n, held + response / 2)?;
        rollout.extend(middle.map(|walk| (walk, response as f64)));
        held += response;
    }
    // Whole groups as far as they fit into a micro-batch, else a part of one.
    let own = of.row_tokens() - prompt;
    let fit = ((walker.sizes.train.0 * walker.sizes.train.1 - prompt) / own).clamp(1, members);
    let (pass, update) = walker.train(1, fit, [prompt, own, turns * response])?;
    Ok((rollout, vec![(pass, n as f64 / fit as f64), (update, 1.0)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_models::config::Rope;

    fn tiny() -> (Config, Walker) {
        let (d_model, n_layers, head_dim) = (32, 2, 16);
        let shape = crate::bench::half_billion();
        let shape = Config { d_model, n_layers, n_heads: 2, n_kv_heads: 1, head_dim, d_ff: 48, vocab: 96, ..shape };
        let config = Config { max_positions: 128, rope: Rope::plain(100.0), ..shape };
        (config.clone(), Walker::new(config, Sizes::tiny()).unwrap())
    }

    #[test]
    fn a_training_step_multiplies_what_its_cost_says_and_the_logits_once_more() {
        let (c, mut walker) = tiny();
        let walks = train(&mut walker).unwrap();
        let (rows, len) = walker.sizes.train;
        let (tokens, targets) = (rows * len, rows * (len - 1));
        let flops: f64 = walks.iter().map(|(walk, _)| walk.counts.product_flops()).sum();
        let wanted = cost::train(&c, tokens, targets, 0).flops;
        assert_eq!(flops, wanted + 2.0 * cost::head_weights(&c) as f64 * targets as f64);
        // All rows, at the keys that a row sees on average.
        assert_eq!((walks[0].0.rows, walks[0].0.keys), (tokens as f64, (len + 1) as f64 / 2.0));
        // The kernels' work is that of the manifest at this shape: all gradients, read once.
        let norm = walks[1].0.work(&c, "norm_pieces");
        assert_eq!(norm.bytes, 4.0 * ragen_models::params::Table::len_of(&c) as f64);
        // The chunks of the head are what they are: every logit is read twice, for its maximum and its sum, in each of two passes.
        let head = walks[0].0.work(&c, "head_fwd").bytes * walks[0].0.counts.launches["head_fwd"] as f64;
        let logits = (targets * c.vocab) as f64;
        assert!((head / (16.0 * logits) - 1.0).abs() < 0.1, "{head} of {logits} logits");
    }

    #[test]
    fn a_step_of_decoding_reads_what_its_cost_says() {
        let (c, mut walker) = tiny();
        let walks = decode(&mut walker, 3).unwrap();
        let (len, new) = walker.sizes.decode;
        let weights: f64 = walks.iter().map(|(walk, _)| walk.counts.product_flops()).sum();
        assert_eq!(weights % cost::forward(&c, 1, 1, 0).flops, 0.0, "a whole number of rows, at least those asked for");
        assert!(weights >= cost::forward(&c, 3, 3, 0).flops);
        let read = walks[1].0.work(&c, "attention_decode").bytes * c.n_layers as f64;
        let seen = 2.0 * 3.0 * (len + new / 2 + 1) as f64 * (c.n_layers * 2 * c.n_kv_heads * c.head_dim) as f64;
        assert!(read >= seen && read < 1.2 * seen, "{read} {seen}");
    }

    #[test]
    fn a_prefill_in_several_passes_has_each_row_once() {
        let (c, _) = tiny();
        let sizes = Sizes { batches: vec![40], decode: (118, 2), ..Sizes::tiny() };
        let mut walker = Walker::new(c.clone(), sizes).unwrap();
        for (new, passes) in [(2, 1), (118, 2)] {
            let walk = walker.prefill(40, 0, new).unwrap();
            assert_eq!(walk.counts.launches["kv_append"], passes * c.n_layers as u64);
            assert_eq!((walk.rows * passes as f64, walk.keys), ((40 * new) as f64, (new + 1) as f64 / 2.0));
        }
    }

    #[test]
    fn time_is_that_of_the_slower_of_bytes_operations_and_host() {
        let (c, mut walker) = tiny();
        let walks = train(&mut walker).unwrap();
        let on = |f: &dyn Fn(&mut Assumed)| {
            let mut on = Assumed::H200.at_best();
            f(&mut on);
            seconds(&walks, &c, &on)
        };
        let (best, all) = (on(&|_| {}), on(&|on| *on = Assumed::H200));
        assert!(best.total() == best.device() && all.total() > best.total());
        let half = on(&|on| (on.bandwidth, on.rate) = (on.bandwidth / 2.0, on.rate / 2.0));
        assert!((half.total() / best.total() - 2.0).abs() < 1e-9);
        let slow_host = on(&|on| on.launch = 1.0);
        let launches: u64 = walks.iter().map(|(walk, _)| walk.launches()).sum();
        assert!((slow_host.total() - launches as f64).abs() < 1e-6, "{slow_host:?}");
        let downloads: u64 = walks.iter().map(|(walk, _)| walk.counts.downloads.times).sum();
        assert!(downloads > 1 && on(&|on| on.wait = 1.0).waits == downloads as f64);
    }
}

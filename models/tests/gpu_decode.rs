//! Decoding on the (emulated) GPU: a sequence's bits are its own, whatever else is in the batch, and whether steps are replayed; what a
//! step launches and moves.

#[allow(dead_code, reason = "other tests use the rest")]
mod tiny_models;

use half::bf16;
use ragen_cuda::Gpu;
use ragen_cuda::gemm::Products;
use ragen_models::gpu::{Decoding, GpuCache, GpuTransformer, Precision};
use ragen_models::kv_cache::CacheId;
use ragen_models::lora::{Lora, Module};
use ragen_models::ops::head::PerTarget;
use ragen_models::optim::AdamWSettings;
use ragen_models::random::Key;
use ragen_models::sampler::{Draw, Sampling};
use ragen_models::transformer::Append;
use tiny_models::*;

fn model<E: Precision>(gpu: &Gpu, kind: usize) -> GpuTransformer<E> {
    let config = config(kind);
    let weights = weights(&config);
    GpuTransformer::new(gpu.clone(), Products::Invariant, config, &weights).unwrap()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The bits of the logits after appending to sequences, a row a sequence.
fn extend<E: Precision>(
    model: &GpuTransformer<E>,
    cache: &mut GpuCache<E>,
    space: &mut Decoding<E>,
    tokens: &[(CacheId, &[u32])],
) -> Vec<Vec<u32>> {
    let appends: Vec<Append<'_>> = tokens.iter().map(|&(id, tokens)| Append { id, tokens }).collect();
    model.extend(cache, space, &appends, 0).unwrap();
    let logits = model.next_logits(space).unwrap();
    assert!(logits.len() == tokens.len() * model.config.vocab && logits.iter().all(|x| x.is_finite()));
    logits.chunks_exact(model.config.vocab).map(bits).collect()
}

/// Twenty prompts of different lengths, over several pages and key blocks, and a token after each.
fn prompts(vocab: usize) -> Vec<(Vec<u32>, u32)> {
    (0..20).map(|i| (ids(i, 1 + (i as usize * 37) % 101, vocab), (7 * i as u32 + 3) % vocab as u32)).collect()
}

fn alone_and_among_others<E: Precision>(kind: usize) {
    let Some(gpu) = Gpu::for_tests() else { return };
    let (model, prompts) = (model::<E>(&gpu, kind), prompts(config(kind).vocab));
    let alone = |(prompt, next): &(Vec<u32>, u32)| {
        let (mut cache, mut space) =
            (GpuCache::new(&model, 4).unwrap(), Decoding::new(&model, prompt.len(), 1).unwrap());
        let id = cache.open();
        let after = extend(&model, &mut cache, &mut space, &[(id, prompt)]);
        [after, extend(&model, &mut cache, &mut space, &[(id, &[*next])])].concat()
    };
    let want: Vec<Vec<Vec<u32>>> = prompts.iter().map(alone).collect();

    let rows = prompts.iter().map(|(prompt, _)| prompt.len()).sum();
    let (mut cache, mut space) = (GpuCache::new(&model, 120).unwrap(), Decoding::new(&model, rows, 20).unwrap());
    let first: Vec<(CacheId, &[u32])> = prompts.iter().map(|(prompt, _)| (cache.open(), prompt.as_slice())).collect();
    let after = extend(&model, &mut cache, &mut space, &first);
    assert!(after.iter().zip(&want).all(|(got, want)| *got == want[0]), "kind {kind}: prefilled together");
    for n in 1..=20 {
        let forks: Vec<CacheId> = first[..n]
            .iter()
            .map(|&(source, _)| {
                let id = cache.open();
                cache.share(id, source);
                id
            })
            .collect();
        let next: Vec<[u32; 1]> = prompts.iter().map(|&(_, next)| [next]).collect();
        let tokens: Vec<(CacheId, &[u32])> = forks.iter().zip(&next).map(|(&id, next)| (id, &next[..])).collect();
        let got = extend(&model, &mut cache, &mut space, &tokens);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(*got == want[1], "kind {kind}: sequence {i} of {n}");
        }
        forks.into_iter().for_each(|id| cache.close(id));
    }
}

/// Groups of heads and biases, norms of heads, a sliding window.
#[test]
fn a_batch_of_any_size_gives_each_sequence_the_bits_it_has_alone() {
    for kind in [0, 1, 3] {
        alone_and_among_others::<f32>(kind);
        alone_and_among_others::<bf16>(kind);
    }
}

/// Sixteen steps in which sequences end at different times and others come, each prefilled when it does: the bits of all logits.
fn rollout<E: Precision>(model: &GpuTransformer<E>, cache: &mut GpuCache<E>, space: &mut Decoding<E>) -> Vec<Vec<u32>> {
    let vocab = model.config.vocab;
    let mut bits: Vec<Vec<u32>> = Vec::new();
    let mut active: Vec<(CacheId, u64, u64)> = Vec::new();
    for step in 0..16u64 {
        active.retain(|&(id, _, end)| {
            let stays = end > step;
            if !stays {
                cache.close(id);
            }
            stays
        });
        for i in 0..step % 3 {
            let (id, seed) = (cache.open(), 10 * step + i);
            let prompt = ids(seed, 1 + (7 * seed as usize) % 60, vocab);
            bits.extend(extend(model, cache, space, &[(id, &prompt)]));
            active.push((id, seed, step + 2 + seed % 5));
        }
        let next: Vec<[u32; 1]> =
            active.iter().map(|&(_, seed, _)| [Key::new(seed).below(step, vocab) as u32]).collect();
        let tokens: Vec<(CacheId, &[u32])> = active.iter().zip(&next).map(|(a, next)| (a.0, &next[..])).collect();
        bits.extend(extend(model, cache, space, &tokens));
    }
    active.into_iter().for_each(|(id, ..)| cache.close(id));
    assert!(cache.is_empty());
    bits
}

/// The rollout as it is, and twice with recordings, which are then there.
fn replayed<E: Precision>(
    what: &str,
    model: &GpuTransformer<E>,
    cache: &mut GpuCache<E>,
    space: &mut Decoding<E>,
) -> Vec<Vec<u32>> {
    space.set_replay(false);
    let direct = rollout(model, cache, space);
    space.set_replay(true);
    for _ in 0..2 {
        assert!(rollout(model, cache, space) == direct, "{what}");
    }
    assert!(space.recorded() >= 3, "{what}: {} shapes are recorded", space.recorded());
    direct
}

fn replays_reach_no_bit<E: Precision>(kind: usize) {
    let Some(gpu) = Gpu::for_tests() else { return };
    let mut model = model::<E>(&gpu, kind);
    let (mut cache, mut space) = (GpuCache::new(&model, 40).unwrap(), Decoding::new(&model, 64, 10).unwrap());
    let before = replayed("at first", &model, &mut cache, &mut space);

    // An update changes the weights where they lie.
    let tree = branching(model.config.vocab, [9, 5, 3, 4, 7]);
    let targets = targets(&tree, model.config.vocab);
    let seeds = PerTarget { value: Vec::new(), ..seeds(targets.len(), false) };
    let mut acts = ragen_models::gpu::Activations::new(&model, tree.rows(), 40, false).unwrap();
    model.train(AdamWSettings { eps: 1e-4, ..AdamWSettings::default() }).unwrap();
    model.forward(&tree, &mut acts).unwrap();
    model.backward(&mut acts, &targets, 1.0, &seeds).unwrap();
    assert!(!model.update(1e-2).unwrap().skipped);
    let recorded = space.recorded();
    let after = rollout(&model, &mut cache, &mut space);
    assert!(after != before && space.recorded() == recorded, "the same recordings, over other weights");
    space.set_replay(false);
    assert!(rollout(&model, &mut cache, &mut space) == after, "after an update");
    space.set_replay(true);

    // Another table of RoPE, with other numbers where its scaling goes by the context; another cache.
    let model = model.with_context(200).unwrap();
    rollout(&model, &mut cache, &mut space);
    let mut cache = GpuCache::new(&model, 50).unwrap();
    assert!(replayed("in another cache", &model, &mut cache, &mut space) == after);
}

#[test]
fn replayed_steps_give_the_bits_of_direct_ones() {
    replays_reach_no_bit::<f32>(1);
    replays_reach_no_bit::<bf16>(0);
}

#[test]
fn adapters_that_go_off_and_on_have_recordings_of_their_own() {
    let Some(gpu) = Gpu::for_tests() else { return };
    let config = ragen_models::config::Config { value_head: false, ..config(0) };
    let lora = Lora { rank: 5, alpha: 6.0, targets: Module::ALL.to_vec() };
    let mut adapters = lora.initial(&config, 9);
    adapters.data.iter_mut().enumerate().for_each(|(i, x)| *x += 0.1 * Key::new(31).normal(i as u64) as f32);
    let (base, by) = (weights(&config), Products::Invariant);
    let mut model = GpuTransformer::<f32>::with_adapters(gpu, by, config, &base, lora, &adapters).unwrap();
    let (mut cache, mut space) = (GpuCache::new(&model, 40).unwrap(), Decoding::new(&model, 64, 10).unwrap());
    let on = replayed("on", &model, &mut cache, &mut space);
    let off = model.without_adapters(|model| rollout(model, &mut cache, &mut space));
    assert!(off != on);
    assert!(model.without_adapters(|model| replayed("off", model, &mut cache, &mut space)) == off);
    assert!(replayed("on again", &model, &mut cache, &mut space) == on);
}

/// Launches, copies among them, and products of a decode step besides its blocks, and of each block. docs/gpu.md estimates by them.
const OF_A_STEP: u64 = 3;
const OF_A_BLOCK: [(usize, u64); 3] = [(0, 12), (1, 14), (2, 11)];

#[test]
fn a_decode_step_allocates_nothing_and_is_one_upload_and_one_replay() {
    for (kind, of_a_block) in OF_A_BLOCK {
        let (gpu, ledger) = Gpu::counting();
        let config = config(kind);
        let layers = config.n_layers as u64;
        let model = GpuTransformer::<bf16>::new(gpu, Products::Library, config.clone(), &weights(&config)).unwrap();
        let (mut cache, mut space) = (GpuCache::new(&model, 20).unwrap(), Decoding::new(&model, 64, 10).unwrap());
        let sequences: Vec<CacheId> = (0..5).map(|_| cache.open()).collect();
        let appends: Vec<Append<'_>> = sequences.iter().map(|&id| Append { id, tokens: &[3] }).collect();
        let draws: Vec<Draw> = (0..5).map(|row| Draw { row, key: Key::new(row as u64), position: 7 }).collect();
        for filtered in [false, true] {
            let sampling = Sampling { top_p: if filtered { 0.9 } else { 1.0 }, ..Sampling::default() };
            let mut step = || {
                model.extend(&mut cache, &mut space, &appends, 0).unwrap();
                let between = ledger.counts();
                model.draw(&mut space, &sampling, &draws).unwrap();
                between
            };
            step();
            step();
            let before = ledger.counts();
            let between = step();
            let (extended, drawn) = (&between - &before, &ledger.counts() - &between);
            let launches = extended.kernel_launches() + extended.product_calls() + extended.copies.times;
            assert_eq!(launches, OF_A_STEP + layers * of_a_block, "kind {kind}: {:?}", extended.launches);
            assert_eq!((extended.replays, extended.uploads.times, extended.downloads.times), (1, 1, 0));
            // Ids, positions and ends of eight rows; a slot, a tile and a page for each.
            assert_eq!(extended.uploads.bytes, 4 * 8 * (3 + 1 + 5 + 1));
            assert_eq!(drawn.kernel_launches(), if filtered { 6 } else { 3 });
            assert_eq!((drawn.uploads.times, drawn.uploads.bytes), (1, 5 * 20));
            // Nothing was kept here, since nothing is drawn.
            assert_eq!((drawn.downloads.times, drawn.downloads.bytes), (1, 5 * 16));
            assert_eq!(extended.allocations + drawn.allocations, 0);
        }
    }
}

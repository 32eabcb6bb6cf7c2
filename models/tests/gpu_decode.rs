//! Decoding on the (emulated) GPU: a sequence's bits are its own, whatever else is in the batch.

#[allow(dead_code, reason = "other tests use the rest")]
mod tiny_models;

use half::bf16;
use ragen_cuda::Gpu;
use ragen_cuda::gemm::Products;
use ragen_models::gpu::{Decoding, GpuCache, GpuTransformer, Precision};
use ragen_models::kv_cache::CacheId;
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

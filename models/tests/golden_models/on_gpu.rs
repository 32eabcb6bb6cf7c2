//! The GPU's path, on the emulator.

use super::*;
use ragen_models::gpu::{self, Gpu, GpuTransformer, Products};
use ragen_models::random::Key;
use ragen_models::sampler::{Draw, Sampling};

/// A model on the emulated GPU.
struct OnGpu<E> {
    model: GpuTransformer<E>,
}

impl<E: gpu::Precision> OnGpu<E> {
    fn forward(&self, rows: &[Vec<u32>]) -> (TokenTree, gpu::Activations<E>) {
        let tree = TokenTree::from_rows(rows);
        // The head in chunks of 7, and blocks that are computed again: both must make no difference.
        let mut acts = gpu::Activations::new(&self.model, tree.rows(), 7, true).unwrap();
        self.model.forward(&tree, &mut acts).unwrap();
        (tree, acts)
    }
}

impl<E: gpu::Precision> Engine for OnGpu<E> {
    // As for the CPU in bf16; here activations and their gradients are stored rounded, too.
    const SLACK: f64 = if size_of::<E>() == 4 { 1.0 } else { 6000.0 };

    fn load(of: &Loaded, params: &Params) -> Self {
        let gpu = Gpu::for_tests().expect("whoever loads a model has asked for the emulator");
        let (by, config) = (Products::Invariant, of.config.clone());
        let model = match &of.lora {
            None => GpuTransformer::new(gpu, by, config, params),
            Some((lora, _)) => GpuTransformer::with_adapters(gpu, by, config, &of.weights, lora.clone(), params),
        };
        OnGpu { model: model.unwrap() }
    }

    fn logits(&mut self, rows: &[Vec<u32>]) -> Vec<f64> {
        let (tree, mut acts) = self.forward(rows);
        widen(&self.model.logits(&mut acts, &(0..tree.rows()).collect::<Vec<_>>()).unwrap())
    }

    fn score(&mut self, rows: &[Vec<u32>], targets: &[Target]) -> PerTarget<f64> {
        let values = self.model.values(&mut self.forward(rows).1, targets, 1.0).unwrap();
        PerTarget { logp: widen(&values.logp), entropy: widen(&values.entropy), value: widen(&values.value) }
    }

    fn gradients(&mut self, rows: &[Vec<u32>], targets: &[Target], seeds: &PerTarget<f64>) -> Vec<f64> {
        let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect();
        let seeds =
            PerTarget { logp: narrow(&seeds.logp), entropy: narrow(&seeds.entropy), value: narrow(&seeds.value) };
        self.model.train(AdamWSettings::default()).unwrap();
        let mut acts = self.forward(rows).1;
        self.model.backward(&mut acts, targets, 1.0, &seeds).unwrap();
        widen(&self.model.gradients().unwrap().unwrap())
    }

    fn greedy(&mut self, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f64>) {
        let model = &self.model;
        let mut cache = gpu::GpuCache::new(model, (prompt.len() + n).div_ceil(32)).unwrap();
        let mut space = gpu::Decoding::new(model, prompt.len(), 1).unwrap();
        let (id, mut tokens) = (cache.open(), prompt.to_vec());
        let (mut chosen, mut logps) = (Vec::new(), Vec::new());
        for _ in 0..n {
            model.extend(&mut cache, &mut space, &[Append { id, tokens: &tokens }], 0).unwrap();
            let draws = [Draw { row: 0, key: Key::new(0), position: 0 }];
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            let best = model.draw(&mut space, &greedy, &draws).unwrap()[0].drawn.id;
            let logits = model.next_logits(&space).unwrap();
            logps.push(f64::from(row_stats(Isa::available()[0], &logits, 1.0).logp(logits[best as usize])));
            chosen.push(best);
            tokens = vec![best];
        }
        (chosen, logps)
    }
}

#[test]
fn golden_gpu_models() {
    if Gpu::for_tests().is_none() {
        return;
    }
    for name in MODELS.into_iter().chain(["llama_lora"]) {
        let dir = golden(&format!("models/{name}"));
        let (golden, model) = (read_json(&dir.join("golden.json")), Loaded::read(&dir));
        check_rows::<OnGpu<f32>>(&golden, &model, &dir);
        check_rows::<OnGpu<half::bf16>>(&golden, &model, &dir);
        check_greedy::<OnGpu<f32>>(&golden, &model);
        // Ten steps each would take long under the emulator: those of one model with most of what there is.
        if name == "qwen3" {
            check_training::<OnGpu<f32>>(&golden, &model);
        }
    }
}

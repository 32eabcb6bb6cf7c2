//! Adapters: gradients against the twin's, the bits of sampling and training, merging, and peft's layout on disk.

use ragen_models::config::Config;
use ragen_models::device::Cpu;
use ragen_models::lora::{Lora, Module};
use ragen_models::ops::head::{PerTarget, Target, row_stats};
use ragen_models::params::{Params, Table};
use ragen_models::peft::{self, Description};
use ragen_models::random::Key;
use ragen_models::simd::Isa;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Append, Gradients, Precision, Transformer};
use ragen_models::twin;
use std::sync::Arc;

fn config() -> Config {
    let json = r#"{"model_type": "qwen2", "vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "intermediate_size": 80, "rms_norm_eps": 1e-6, "hidden_act": "silu", "value_head": true,
        "tie_word_embeddings": true, "max_position_embeddings": 128, "rope_theta": 10000.0}"#;
    Config::from_hf_json(json).unwrap()
}

/// Frozen weights without a value head.
fn base(config: &Config) -> Params {
    Transformer::initial(&Config { value_head: false, ..config.clone() }, 3)
}

fn lora(targets: &[Module]) -> Lora {
    Lora { rank: 5, alpha: 12.0, targets: targets.to_vec() }
}

/// Adapters whose B is not zero any more.
fn trained(config: &Config, lora: &Lora) -> Params {
    let mut params = lora.initial(config, 9);
    for (i, x) in params.data.iter_mut().enumerate() {
        *x += 0.1 * Key::new(31).normal(i as u64) as f32;
    }
    params
}

fn rows(n: usize) -> Vec<Vec<u32>> {
    let row = |r: u64| (0..5 + r * 7).map(|i| Key::new(r).below(i, 61) as u32).collect();
    (0..n as u64).map(row).collect()
}

fn targets(tree: &TokenTree) -> Vec<Target> {
    let rows = tree.segments.iter().flat_map(|s| s.rows().skip(1));
    rows.map(|row| Target { row: row - 1, token: tree.ids[row], kept: None }).collect()
}

fn seeds(n: usize) -> PerTarget<f32> {
    let draw = |k: u64| (0..n).map(|i| Key::new(k).normal(i as u64) as f32).collect();
    PerTarget { logp: draw(21), entropy: draw(22), value: draw(23) }
}

/// The model as its adapters' merged weights, with the value head in its place.
fn merged(config: &Config, base: &Params, lora: &Lora, adapters: &Params) -> Params {
    let mut params = Params::zeros(Arc::new(Table::new(config)));
    params.data[..base.data.len()].copy_from_slice(&base.data);
    lora.merge(config, &mut params, adapters);
    for name in ["value_head.weight", "value_head.bias"] {
        params.get_mut(name).copy_from_slice(adapters.get(name));
    }
    params
}

#[test]
fn gradients_of_adapters_follow_from_the_twins_gradient_of_the_merged_weight() {
    let config = config();
    let tree = TokenTree::from_rows(&rows(4));
    let targets = targets(&tree);
    let seeds = seeds(targets.len());
    for lora in [lora(&Module::ALL), lora(&[Module::K, Module::Down])] {
        let (base, adapters) = (base(&config), trained(&config, &lora));
        let whole = merged(&config, &base, &lora, &adapters);
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let data = twin::model::convert::<f64>(&whole);
        let oracle = twin::model::Model { config: &config, table: &whole.table, weights: &data };
        let acts = oracle.forward(&tree);
        let mut dw = vec![0.0; data.len()];
        let wide_seeds =
            PerTarget { logp: wide(&seeds.logp), entropy: wide(&seeds.entropy), value: wide(&seeds.value) };
        oracle.backward(&tree, &acts, &targets, 1.0, &wide_seeds, &mut dw);
        // dB = (α / r)·dW·Aᵀ and dA = (α / r)·Bᵀ·dW.
        let mut want = vec![0.0; adapters.data.len()];
        let scale = 12.0 / 5.0;
        for entry in &adapters.table.entries {
            let want = &mut want[entry.range()];
            let Some(path) = entry.name.strip_suffix(".lora_A.weight") else {
                if entry.name.starts_with("value_head") {
                    want.copy_from_slice(&dw[whole.table.find(&entry.name).unwrap().range()]);
                }
                continue;
            };
            let weight = whole.table.find(&format!("{path}.weight")).unwrap();
            let (dw, b) = (&dw[weight.range()], wide(adapters.get(&format!("{path}.lora_B.weight"))));
            let (out, input) = (weight.shape[0], weight.shape[1]);
            for (r, j) in (0..5).flat_map(|r| (0..input).map(move |j| (r, j))) {
                want[r * input + j] = scale * (0..out).map(|o| b[o * 5 + r] * dw[o * input + j]).sum::<f64>();
            }
        }
        for entry in adapters.table.entries.iter().filter(|e| e.name.ends_with("lora_B.weight")) {
            let path = entry.name.strip_suffix(".lora_B.weight").unwrap();
            let weight = whole.table.find(&format!("{path}.weight")).unwrap();
            let (dw, a) = (&dw[weight.range()], wide(adapters.get(&format!("{path}.lora_A.weight"))));
            let (out, input) = (weight.shape[0], weight.shape[1]);
            let want = &mut want[entry.range()];
            for (o, r) in (0..out).flat_map(|o| (0..5).map(move |r| (o, r))) {
                want[o * 5 + r] = scale * (0..input).map(|j| dw[o * input + j] * a[r * input + j]).sum::<f64>();
            }
        }

        let mut bits: Option<Vec<u32>> = None;
        for (isa, recompute) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
            let cpu = Cpu::with(isa, 2);
            let model = Transformer::with_adapters(
                &cpu,
                config.clone(),
                base.clone(),
                Precision::F32,
                lora.clone(),
                adapters.clone(),
            );
            let mut acts = Activations::default();
            acts.recompute = recompute;
            model.forward(&cpu, &tree, &mut acts, true);
            let mut grads = Gradients::zeros(&model);
            model.backward(&cpu, &tree, &mut acts, &targets, 1.0, &seeds, &mut grads);
            let grads = grads.total();
            assert_eq!(grads.table, adapters.table, "gradients are those of the adapters alone");
            for entry in &adapters.table.entries {
                let (got, want) = (&grads.data[entry.range()], &want[entry.range()]);
                let largest = want.iter().fold(1e-6f64, |m, x| m.max(x.abs()));
                for (i, (g, w)) in got.iter().zip(want).enumerate() {
                    let off = (f64::from(*g) - w).abs();
                    assert!(off <= 3e-5 * largest, "{}[{i}] = {g}, not {w}", entry.name);
                }
            }
            let now: Vec<u32> = grads.data.iter().map(|x| x.to_bits()).collect();
            assert!(*bits.get_or_insert_with(|| now.clone()) == now, "{isa:?}, recompute {recompute}");
        }
    }
}

#[test]
fn adapters_keep_the_bits_of_sampling_and_training_and_start_as_the_base() {
    let (config, lora) = (config(), lora(&Module::ALL));
    let row = &rows(6)[5];
    for isa in Isa::available() {
        let cpu = Cpu::with(isa, 2);
        let logps = |model: &Transformer| -> Vec<u32> {
            let tree = TokenTree::from_rows(&[row]);
            let mut acts = Activations::default();
            model.forward(&cpu, &tree, &mut acts, false);
            model.values(&cpu, &acts, &targets(&tree), 1.0).logp.iter().map(|x| x.to_bits()).collect()
        };
        let with = |adapters: &Params| {
            Transformer::with_adapters(
                &cpu,
                config.clone(),
                base(&config),
                Precision::F32,
                lora.clone(),
                adapters.clone(),
            )
        };
        let alone =
            Transformer::new(&cpu, Config { value_head: false, ..config.clone() }, base(&config), Precision::F32);
        assert_eq!(logps(&with(&lora.initial(&config, 9))), logps(&alone), "B is zero");
        let mut model = with(&trained(&config, &lora));
        let expected = logps(&model);
        assert_ne!(expected, logps(&alone));
        assert_eq!(model.without_adapters(logps), logps(&alone), "the reference is the base");
        assert_eq!(logps(&model), expected);

        let mut cache = model.new_cache(&cpu);
        let id = cache.open();
        let mut logits = Vec::new();
        for (t, want) in expected.iter().enumerate() {
            model.extend(&cpu, &mut cache, &[Append { id, tokens: &row[t..t + 1] }], &mut logits);
            let got = row_stats(isa, &logits, 1.0).logp(logits[row[t + 1] as usize]).to_bits();
            assert_eq!(got, *want, "{isa:?}, token {t}");
        }
    }
}

#[test]
fn merged_equals_unmerged() {
    let (config, lora) = (config(), lora(&Module::ALL));
    let cpu = Cpu::new(2).unwrap();
    let adapters = trained(&config, &lora);
    let model =
        Transformer::with_adapters(&cpu, config.clone(), base(&config), Precision::F32, lora.clone(), adapters.clone());
    let plain = Config { value_head: false, ..config.clone() };
    let whole = Transformer::new(&cpu, plain, model.merged(), Precision::F32);
    let tree = TokenTree::from_rows(&rows(5));
    let mut acts = Activations::default();
    let all: Vec<usize> = (0..tree.rows()).collect();
    let mut logits = |model: &Transformer| {
        model.forward(&cpu, &tree, &mut acts, false);
        model.logits(&cpu, &acts, &all)
    };
    for (i, (a, b)) in logits(&model).iter().zip(logits(&whole)).enumerate() {
        assert!((a - b).abs() <= 2e-5 * b.abs().max(1.0), "logit {i}: {a} with adapters, {b} merged");
    }
}

#[test]
fn adapters_survive_the_disk_and_unknown_ones_are_refused_by_name() {
    let (config, dir) = (config(), tempfile::tempdir().unwrap());
    let of = Description { lora: lora(&[Module::Q, Module::Up]), base: "models/base".into() };
    let params = trained(&config, &of.lora);
    peft::save(dir.path(), &of, &params).unwrap();
    let files =
        || ["adapter_config.json", "adapter_model.safetensors", "value_head.safetensors"].map(|f| dir.path().join(f));
    let bytes = files().map(|f| std::fs::read(f).unwrap());
    assert_eq!(peft::describe(dir.path()).unwrap(), of);
    let back = peft::load(dir.path(), &config, &of.lora).unwrap();
    assert_eq!(back.data, params.data);
    peft::save(dir.path(), &of, &back).unwrap();
    assert!(files().map(|f| std::fs::read(f).unwrap()) == bytes, "save, load, save gives equal bytes");

    let path = dir.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let cases = [
        ("\"LORA\"", "\"IA3\"", "peft_type is \"IA3\""),
        ("\"none\"", "\"all\"", "bias is \"all\""),
        ("\"r\": 5", "\"r\": 0", "r is 0"),
        ("\"q_proj\"", "\"c_attn\"", "target_modules has \"c_attn\""),
        ("\"inference_mode\": true", "\"use_dora\": true", "use_dora is true"),
        ("\"inference_mode\": true", "\"rank_pattern\": {\"q_proj\": 3}", "rank_pattern is {\"q_proj\":3}"),
    ];
    for (from, to, wanted) in cases {
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let error = peft::describe(dir.path()).unwrap_err().to_string();
        assert!(error.contains("adapter_config.json") && error.contains(wanted), "{error}");
    }
    let wider = Lora { rank: 6, ..of.lora.clone() };
    let error = peft::load(dir.path(), &config, &wider).unwrap_err().to_string();
    assert!(error.contains("up_proj.lora_A.weight has shape [5, 48], but [6, 48]"), "{error}");
    let more = Lora { targets: vec![Module::Q, Module::O, Module::Up], ..of.lora.clone() };
    let error = peft::load(dir.path(), &config, &more).unwrap_err().to_string();
    assert!(error.contains("has no tensor base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"), "{error}");
    let whole = std::fs::read(dir.path().join("adapter_model.safetensors")).unwrap();
    for cut in [0, 7, 8, 100, whole.len() - 1] {
        std::fs::write(dir.path().join("adapter_model.safetensors"), &whole[..cut]).unwrap();
        assert!(peft::load(dir.path(), &config, &of.lora).is_err(), "cut at {cut}");
    }
}

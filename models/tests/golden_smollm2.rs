//! A real language model, SmolLM2-135M-Instruct, against PyTorch's numbers: conversations, greedy tokens, log-probabilities,
//! gradients. The weights are an asset; one test loads them once for all checks.

mod assets;
#[allow(dead_code)] // Other tests use the rest of it.
mod golden_data;

use golden_data::*;
use ragen_models::chat_template::{Assistant, Chat, Message};
use ragen_models::device::Cpu;
use ragen_models::gguf;
use ragen_models::ops::head::row_stats;
use ragen_models::token_tree::TokenTree;
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::{Activations, Append, Gradients, Precision, Transformer};
use ragen_models::twin::model::{PerTarget, Target};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Greedy {
    #[serde(rename = "source")]
    _source: Value,
    cases: Vec<GreedyCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GreedyCase {
    name: String,
    messages: Vec<Message>,
    text: String,
    prompt_ids: Vec<u32>,
    last_position_top5: Top,
    greedy_ids: Vec<u32>,
    greedy_logps: Vec<f64>,
    greedy_margins: Vec<f64>,
    greedy_text: String,
    #[serde(rename = "noise_f32_vs_f64")]
    _noise: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Top {
    ids: Vec<u32>,
    logits: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScoringAndGradient {
    #[serde(rename = "source")]
    _source: Value,
    scoring: Scoring,
    gradient: Gradient,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scoring {
    text: String,
    ids: Vec<u32>,
    logps: Vec<f64>,
    mean_logp: f64,
    #[serde(rename = "noise_f32_vs_f64")]
    _noise: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gradient {
    sequences: Vec<Vec<u32>>,
    loss: f64,
    global_norm: f64,
    norms: BTreeMap<String, f64>,
    samples: BTreeMap<String, Samples>,
    #[serde(rename = "norm_rel_noise")]
    _norm_noise: Value,
    #[serde(rename = "element_noise_rel_to_max")]
    _element_noise: Value,
    #[serde(rename = "noise_f32_vs_f64")]
    _noise: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Samples {
    flat_index: Vec<usize>,
    grad: Vec<f64>,
    max_abs: f64,
}

/// The two most likely tokens of a row, the likelier first; a tie goes to the lower id.
fn best_two(logits: &[f32]) -> [usize; 2] {
    let mut best = [usize::MAX; 2];
    for j in 0..logits.len() {
        if best[0] == usize::MAX || logits[j] > logits[best[0]] {
            best = [j, best[0]];
        } else if best[1] == usize::MAX || logits[j] > logits[best[1]] {
            best[1] = j;
        }
    }
    best
}

/// The ids of the prompts, by the template in the file.
fn check_prompts(file: &gguf::Gguf, tokenizer: &Tokenizer, cases: &[GreedyCase]) {
    let stop_ids: Vec<u32> = file.eos().unwrap().into_iter().collect();
    let template = file.chat_template().unwrap().unwrap();
    let chat = Chat::from_parts("smollm2", template, file.bos().unwrap(), &stop_ids, tokenizer).unwrap();
    for case in cases {
        let encoded = chat.template.encode(tokenizer, &case.messages, true, &Map::new(), Assistant::Plain).unwrap();
        assert_eq!(encoded.text, case.text, "{}", case.name);
        assert_eq!(encoded.ids, case.prompt_ids, "{}", case.name);
        assert_eq!(tokenizer.decode(&case.greedy_ids), case.greedy_text, "{}", case.name);
    }
}

/// All prompts are continued together: a row does not depend on its neighbours.
fn check_greedy(cpu: &Cpu, model: &Transformer, cases: &[GreedyCase]) {
    let mut cache = model.new_cache(cpu);
    let sequences: Vec<_> = cases.iter().map(|_| cache.open()).collect();
    let mut next: Vec<Vec<u32>> = cases.iter().map(|case| case.prompt_ids.clone()).collect();
    let (mut logits, vocab) = (Vec::new(), model.config.vocab);
    let steps = cases[0].greedy_ids.len();
    for step in 0..steps {
        let appends: Vec<Append> = sequences.iter().zip(&next).map(|(&id, tokens)| Append { id, tokens }).collect();
        model.extend(cpu, &mut cache, &appends, &mut logits);
        for (i, (case, row)) in cases.iter().zip(logits.chunks_exact(vocab)).enumerate() {
            let what = |part: &str| format!("{}: {part} of token {step}", case.name);
            assert_eq!(case.greedy_ids.len(), steps);
            if step == 0 {
                let got: Vec<f64> = case.last_position_top5.ids.iter().map(|&id| f64::from(row[id as usize])).collect();
                assert_all_close(&what("logits"), &got, &case.last_position_top5.logits, 5e-4);
            }
            let [best, second] = best_two(row);
            assert_eq!(best as u32, case.greedy_ids[step], "{}", what("id"));
            let logp = f64::from(row_stats(cpu.isa, row, 1.0).logp(row[best]));
            assert_close(&what("logp"), logp, case.greedy_logps[step], 1e-4);
            let margin = f64::from(row[best]) - f64::from(row[second]);
            assert_close(&what("margin"), margin, case.greedy_margins[step], 2.0 * 5e-4);
            next[i] = vec![best as u32];
        }
    }
}

/// Next-token targets of rows that are packed one after another.
fn targets(rows: &[Vec<u32>]) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut start = 0;
    for row in rows {
        targets.extend((1..row.len()).map(|t| Target { row: start + t - 1, token: row[t], kept: None }));
        start += row.len();
    }
    targets
}

fn check_scoring(cpu: &Cpu, model: &Transformer, tokenizer: &Tokenizer, scoring: &Scoring) {
    assert_eq!(tokenizer.encode_plain(&scoring.text)[..scoring.ids.len()], scoring.ids);
    let rows = [scoring.ids.clone()];
    let (tree, mut acts) = (TokenTree::from_rows(&rows), Activations::default());
    model.forward(cpu, &tree, &mut acts, false);
    let logps: Vec<f64> = model.values(cpu, &acts, &targets(&rows), 1.0).logp.iter().map(|&x| f64::from(x)).collect();
    assert_all_close("logp", &logps, &scoring.logps, 1e-4);
    assert_close("mean logp", logps.iter().sum::<f64>() / logps.len() as f64, scoring.mean_logp, 1e-5);
}

fn check_gradient(cpu: &Cpu, model: &Transformer, golden: &Gradient) {
    let targets = targets(&golden.sequences);
    let (tree, mut acts) = (TokenTree::from_rows(&golden.sequences), Activations::default());
    model.forward(cpu, &tree, &mut acts, true);
    let n = targets.len() as f64;
    let logps = model.values(cpu, &acts, &targets, 1.0).logp;
    let loss = -logps.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    assert_close("loss", loss, golden.loss, 1e-5);
    let seeds = PerTarget { logp: vec![(-1.0 / n) as f32; targets.len()], ..PerTarget::default() };
    let mut grads = Gradients::zeros(model);
    model.backward(cpu, &tree, &mut acts, &targets, 1.0, &seeds, &mut grads);
    let grads = grads.total();
    assert_eq!(golden.norms.len(), grads.table.entries.len());
    let mut square = 0.0;
    for (name, &wanted) in &golden.norms {
        let grad = grads.get(name);
        let sum: f64 = grad.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
        square += sum;
        assert_close(&format!("gradient norm of {name}"), sum.sqrt(), wanted, 2e-4 * wanted);
    }
    for (name, samples) in &golden.samples {
        let grad = grads.get(name);
        let got: Vec<f64> = samples.flat_index.iter().map(|&i| f64::from(grad[i])).collect();
        assert_all_close(&format!("gradient of {name}"), &got, &samples.grad, 4e-4 * samples.max_abs);
    }
    assert_close("global norm", square.sqrt(), golden.global_norm, 1e-5 * golden.global_norm);
}

#[test]
fn golden_smollm2() {
    let known = ["gguf.json", "greedy.json", "scoring_and_gradient.json"]; // The first is checked in golden_gguf.rs.
    assert_eq!(names_in("smollm2"), known);
    let Some(path) = assets::find(assets::SMOLLM2) else { return };
    let greedy: Greedy = read_json(&golden("smollm2/greedy.json"));
    let rest: ScoringAndGradient = read_json(&golden("smollm2/scoring_and_gradient.json"));
    let file = gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_json(file.tokenizer_json().unwrap()).unwrap();
    check_prompts(&file, &tokenizer, &greedy.cases);
    let cpu = Cpu::new(2).unwrap();
    let loaded = file.load().unwrap();
    let model = Transformer::new(&cpu, loaded.config, loaded.params, Precision::F32);
    check_scoring(&cpu, &model, &tokenizer, &rest.scoring);
    check_greedy(&cpu, &model, &greedy.cases);
    check_gradient(&cpu, &model, &rest.gradient);
}

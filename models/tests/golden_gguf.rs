//! GGUF files against the numbers of gguf-py and PyTorch: blocks bit for bit, weights, logits.

mod assets;
#[allow(dead_code)] // Other tests use the rest of it.
mod golden_data;

use golden_data::*;
use ragen_models::config::Config;
use ragen_models::device::Cpu;
use ragen_models::gguf::{self, blocks::TensorType};
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Precision, Transformer};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GgufModel {
    name: String,
    family: String,
    rows: Vec<Vec<u32>>,
    config: Value,
    tensor_types: BTreeMap<String, String>,
    tokenizer: String,
    pre_tokenizer_name: String,
    hf_weights: BTreeMap<String, WeightSum>,
    /// How far the reference was from a second, float64 program.
    #[serde(rename = "noise_f32_vs_f64")]
    _noise: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightSum {
    sum: f64,
    sq_sum: f64,
    first: Vec<f32>,
}

#[test]
fn golden_gguf_models() {
    for name in names_in("gguf_models") {
        let dir = golden(&format!("gguf_models/{name}"));
        let golden: GgufModel = read_json(&dir.join("golden.json"));
        assert_eq!(golden.name, name);
        let file = gguf::open(&dir.join("model.gguf")).unwrap();
        let types = file.container().tensors.iter().map(|(name, info)| (name.clone(), format!("{:?}", info.kind)));
        assert_eq!(types.collect::<BTreeMap<_, _>>(), golden.tensor_types, "{name}");

        let model = file.load().unwrap();
        assert_eq!(model.config, Config::from_hf_json(&golden.config.to_string()).unwrap(), "{name}");
        assert_eq!(golden.config["model_type"], golden.family, "{name}");
        let mut sums = golden.hf_weights;
        for entry in &model.params.table.entries {
            let x = model.params.get(&entry.name);
            let what = |part: &str| format!("{name}: {part} of {}", entry.name);
            let wanted = sums.remove(&entry.name).unwrap_or_else(|| panic!("no {}", what("checksum")));
            assert_eq!(x[..wanted.first.len()], wanted.first, "{}", what("first values"));
            let wide = || x.iter().map(|&x| f64::from(x));
            let abs_sum: f64 = wide().map(f64::abs).sum();
            assert_close(&what("sum"), wide().sum(), wanted.sum, 1e-9 * abs_sum);
            assert_close(&what("square sum"), wide().map(|x| x * x).sum(), wanted.sq_sum, 1e-9 * wanted.sq_sum);
        }
        assert!(sums.is_empty(), "{name}: no parameters {:?}", sums.keys());

        let cpu = Cpu::new(2).unwrap();
        let (tree, mut acts) = (TokenTree::from_rows(&golden.rows), Activations::default());
        let vocab = model.config.vocab;
        let model = Transformer::new(&cpu, model.config, model.params, Precision::F32);
        model.forward(&cpu, &tree, &mut acts, false);
        let logits = model.logits(&cpu, &acts, &(0..tree.rows()).collect::<Vec<_>>());
        let logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
        let mut numbers = Tensors::read(&dir.join("golden.safetensors"));
        let mut start = 0;
        for (i, row) in golden.rows.iter().enumerate() {
            let own = &logits[start * vocab..][..row.len() * vocab];
            assert_all_close(&format!("{name}: row{i}.logits"), own, &numbers.take(&format!("row{i}.logits")), 5e-5);
            start += row.len();
        }
        numbers.finish();

        assert!(["tiny_gpt2", "tiny_qwen"].contains(&golden.tokenizer.as_str()), "{name}: {}", golden.tokenizer);
        let pre = &file.container().metadata["tokenizer.ggml.pre"];
        let gguf::container::Value::Text(at) = pre else { panic!("{pre:?}") };
        let bytes = std::fs::read(dir.join("model.gguf")).unwrap();
        assert_eq!(&bytes[at.clone()], golden.pre_tokenizer_name.as_bytes());
        // Its text is checked with the other tokenizers.
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocks {
    source: Value,
    blocks: Vec<Block>,
    synthetic: Vec<Synthetic>,
    tensors: BTreeMap<String, TensorSum>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    tensor: String,
    #[serde(rename = "type")]
    kind: String,
    row: usize,
    first_block: usize,
    raw_hex: String,
    values: Vec<f32>,
    values_f32_le_hex: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Synthetic {
    #[serde(rename = "type")]
    kind: String,
    block_elements: usize,
    block_bytes: usize,
    raw_hex: String,
    values: Vec<f32>,
    values_f32_le_hex: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorSum {
    hf_name: String,
    #[serde(rename = "type")]
    kind: String,
    shape: Vec<usize>,
    sum: f64,
    sq_sum: f64,
    first: Vec<f32>,
    last: Vec<f32>,
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn kind_of(name: &str) -> TensorType {
    let kind = TensorType::ALL.into_iter().find(|kind| format!("{kind:?}") == name);
    kind.unwrap_or_else(|| panic!("no type {name}"))
}

/// Raw bytes against the exact bytes of their values.
fn check_blocks(kind: &str, raw_hex: &str, values: &[f32], values_hex: &str) {
    let mut got = vec![0.0; values.len()];
    kind_of(kind).dequantise(&bytes_of(raw_hex), &mut got);
    assert_eq!(got, values, "{kind}");
    let bytes: Vec<u8> = got.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(bytes, bytes_of(values_hex), "{kind}, bit for bit");
}

#[test]
fn golden_gguf_blocks() {
    let golden: Blocks = read_json(&golden("smollm2/gguf.json"));
    let mut kinds = std::collections::BTreeSet::from(["F32".to_string()]);
    for case in &golden.synthetic {
        assert_eq!(kind_of(&case.kind).block_elements(), case.block_elements, "{}", case.kind);
        assert_eq!(kind_of(&case.kind).block_bytes(), case.block_bytes, "{}", case.kind);
        check_blocks(&case.kind, &case.raw_hex, &case.values, &case.values_f32_le_hex);
        kinds.insert(case.kind.clone());
    }
    let all: std::collections::BTreeSet<_> = TensorType::ALL.iter().map(|kind| format!("{kind:?}")).collect();
    assert_eq!(kinds, all, "every type has a case");
    for case in &golden.blocks {
        check_blocks(&case.kind, &case.raw_hex, &case.values, &case.values_f32_le_hex);
    }
}

#[test]
fn golden_gguf_smollm2_file() {
    let Some(path) = assets::find(assets::SMOLLM2) else { return };
    let golden: Blocks = read_json(&golden("smollm2/gguf.json"));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(golden.source["bytes"], bytes.len());
    let file = gguf::open(&path).unwrap();
    for case in &golden.blocks {
        let info = &file.container().tensors[&case.tensor];
        assert_eq!(format!("{:?}", info.kind), case.kind, "{}", case.tensor);
        let raw = bytes_of(&case.raw_hex);
        let row_bytes = info.kind.bytes(*info.shape.last().unwrap()).unwrap();
        let at = info.at.start + case.row * row_bytes + case.first_block * info.kind.block_bytes();
        assert_eq!(bytes[at..at + raw.len()], raw, "{} row {}", case.tensor, case.row);
    }
    let model = file.load().unwrap();
    assert_eq!(golden.tensors.len(), 164, "sums of a part of the 272 tensors");
    for (name, wanted) in &golden.tensors {
        let entry = model.params.table.find(&wanted.hf_name).unwrap_or_else(|| panic!("no {}", wanted.hf_name));
        assert_eq!(entry.shape, wanted.shape, "{name}");
        assert_eq!(format!("{:?}", file.container().tensors[name].kind), wanted.kind, "{name}");
        let x = &model.params.data[entry.range()];
        let wide = || x.iter().map(|&x| f64::from(x));
        let abs_sum: f64 = wide().map(f64::abs).sum();
        assert_close(&format!("{name}: sum"), wide().sum(), wanted.sum, 1e-9 * abs_sum);
        let squares = wide().map(|x| x * x).sum();
        assert_close(&format!("{name}: square sum"), squares, wanted.sq_sum, 1e-9 * wanted.sq_sum);
        assert_eq!(x[..wanted.first.len()], wanted.first, "{name}");
        assert_eq!(x[x.len() - wanted.last.len()..], wanted.last, "{name}");
    }
}

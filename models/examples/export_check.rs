//! Writes checkpoints as this crate saves them, each with the logits that it computes from them, for
//! `tests/python/check_export.py` to load elsewhere and compare.
//!
//!     cargo run -p ragen-models --example export_check -- DIR
//!
//! Every folder in DIR has a checkpoint in Hugging Face layout and `check.json` (`rows`, `logits`, and what may be between
//! them); with adapters, they lie in the folder `adapter` in it. The models are the tiny ones of the golden data, and
//! SmolLM2 where the assets are.

use ragen_models::device::Cpu;
use ragen_models::token_tree::TokenTree;
use ragen_models::transformer::{Activations, Precision, Transformer};
use ragen_models::weights::Checkpoint;
use ragen_models::{gguf, peft, weights};
use serde_json::json;
use std::error::Error;
use std::path::{Path, PathBuf};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let dir = PathBuf::from(std::env::args_os().nth(1).ok_or("the folder to write to is missing")?);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let golden = std::env::var_os("RAGEN_GOLDEN").map_or(repository.join("tests/golden"), PathBuf::from).join("golden");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(golden.join("models"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    folders.sort();
    for from in &folders {
        let to = dir.join(from.file_name().unwrap_or_default());
        // A value head is no part of the model that others load.
        let model = weights::load(from)?.without_value_head();
        let rows = some_rows(model.config.vocab);
        write(&to, model, Some(from), rows, 5e-5)?;
    }
    for entry in std::fs::read_dir(golden.join("gguf_models"))? {
        let entry = entry?;
        let to = dir.join(format!("gguf_{}", entry.file_name().to_string_lossy()));
        let model = gguf::open(&entry.path().join("model.gguf"))?.load()?;
        let rows = some_rows(model.config.vocab);
        write(&to, model, None, rows, 5e-5)?;
    }
    let assets = std::env::var_os("RAGEN_ASSETS").map_or(repository.join("assets"), PathBuf::from);
    let smollm2 = assets.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if smollm2.exists() {
        // A text, since on ids at random the two f32 programs are further from each other than on anything meant.
        let text = std::fs::read_to_string(golden.join("smollm2/scoring_and_gradient.json"))?;
        let scoring: serde_json::Value = serde_json::from_str(&text)?;
        let ids: Vec<u32> = serde_json::from_value(scoring["scoring"]["ids"].clone())?;
        write(&dir.join("smollm2"), gguf::open(&smollm2)?.load()?, None, vec![ids[..7].to_vec(), ids], 5e-4)?;
    }
    Ok(())
}

/// Rows of ids, long enough for sliding windows and for positions that scaled RoPE treats differently.
fn some_rows(vocab: usize) -> Vec<Vec<u32>> {
    let row = |len: usize| (0..len).map(|t| ((t * t * 31 + 17 * t + len) % vocab) as u32).collect();
    [1, 7, 40].map(row).to_vec()
}

/// Saves a model, and what it says of some rows of ids; `adapters` may hold low-rank adapters for it.
fn write(to: &Path, model: Checkpoint, adapters: Option<&Path>, rows: Vec<Vec<u32>>, tolerance: f64) -> Outcome {
    let Checkpoint { config, params } = model;
    weights::save(to, &config, &params)?;
    let vocab = config.vocab;
    let cpu = Cpu::new(0)?;
    let transformer = match adapters.filter(|from| from.join(peft::CONFIG).exists()) {
        None => Transformer::new(&cpu, config, params, Precision::F32),
        Some(from) => {
            let description = peft::describe(from)?;
            let lora = peft::load(from, &config, &description.lora)?;
            peft::save(&to.join("adapter"), &description, &lora)?;
            Transformer::with_adapters(&cpu, config, params, Precision::F32, description.lora, lora)
        }
    };
    let (tree, mut acts) = (TokenTree::from_rows(&rows), Activations::default());
    transformer.forward(&cpu, &tree, &mut acts, false);
    let packed = transformer.logits(&cpu, &acts, &(0..tree.rows()).collect::<Vec<_>>());
    // A large vocabulary is compared at the last position of each row only.
    let mut logits = Vec::new();
    let mut end = 0;
    for row in &rows {
        let start = if vocab > 1000 { end + row.len() - 1 } else { end };
        end += row.len();
        logits.push(packed[start * vocab..end * vocab].chunks_exact(vocab).collect::<Vec<_>>());
    }
    let check = json!({"rows": rows, "logits": logits, "tolerance": tolerance});
    Ok(std::fs::write(to.join("check.json"), check.to_string())?)
}

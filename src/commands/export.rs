//! `ragen export`: a model, or what a run has trained, as other programs load it.

use super::open::{Loaded, Source};
use super::{Common, Failure, print, table, thousands};
use ragen::run::Which;
use ragen_models::peft;
use ragen_models::weights::{SaveOptions, Stored};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// What to export, and in which form.
#[derive(clap::Args, Debug)]
pub struct Export {
    /// A model folder, a GGUF file, a run, or the name of a shipped model.
    #[arg(value_name = "MODEL_OR_RUN")]
    from: String,
    /// The folder to write, which must be new or empty.
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Which checkpoint of a run: newest, best (by validation), or the number of its step.
    #[arg(long, value_name = "WHICH")]
    checkpoint: Option<Which>,
    /// Keep adapters apart, in the layout of peft, instead of merging them into the weights.
    #[arg(long)]
    adapters: bool,
    /// Keep the value head, which other programs do not know.
    #[arg(long)]
    value_head: bool,
    /// Format of the weights: f32, or bf16 for half the bytes.
    #[arg(long, value_name = "FORMAT", default_value = "f32")]
    dtype: String,
    /// Bytes of one weight file at most.
    #[arg(long, value_name = "N", default_value_t = 2 << 30)]
    shard_bytes: u64,
}

/// The command.
pub fn run(common: &Common, what: &Export) -> Result<(), Failure> {
    let stored = match what.dtype.as_str() {
        "f32" => Stored::F32,
        "bf16" => Stored::Bf16,
        other => return Err(Failure::Usage(format!("--dtype {other} is neither f32 nor bf16"))),
    };
    let (to, options) = (what.to.as_path(), SaveOptions { stored, shard_bytes: what.shard_bytes });
    check_target(to)?;
    let source = Source::open_at(&what.from, what.checkpoint)?;
    let (companions, tokenizer) = (source.companions.clone(), source.tokenizer.clone());
    let failed = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
    let parameters;
    if what.adapters {
        let (lora, params) =
            source.load_adapters()?.ok_or_else(|| Failure::Usage(format!("--adapters: {} has none", what.from)))?;
        parameters = params.data.len();
        peft::save(to, &peft::Description { lora, base: source.base }, &params).map_err(|e| failed(&e))?;
        companions.save_text(to, &tokenizer).map_err(|e| failed(&e))?;
    } else {
        let Loaded { checkpoint, adapters } = source.load()?;
        let mut checkpoint = if what.value_head { checkpoint } else { checkpoint.without_value_head() };
        if let Some((lora, params)) = adapters {
            lora.merge(&checkpoint.config, &mut checkpoint.params, &params);
        }
        parameters = checkpoint.params.data.len();
        companions.save(to, &checkpoint.config, &checkpoint.params, &tokenizer, options).map_err(|e| failed(&e))?;
    }
    let files = written(to)?;
    if !common.quiet {
        let mut rows = vec![vec!["parameters".to_string(), thousands(parameters)]];
        rows.extend(
            files.iter().map(|(name, bytes)| vec![name.clone(), format!("{} bytes", thousands(*bytes as usize))]),
        );
        print(&table(&rows))?;
    }
    if common.json {
        let names: Vec<&String> = files.iter().map(|(name, _)| name).collect();
        print(&format!("{}\n", json!({"from": what.from, "dir": to, "parameters": parameters, "files": names})))?;
    }
    Ok(())
}

/// Nothing is overwritten.
fn check_target(to: &Path) -> Result<(), Failure> {
    match fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Usage(format!("{} is not empty; name a new folder", to.display()))),
        Err(_) if to.exists() => Err(Failure::Usage(format!("{} is no folder", to.display()))),
        Err(_) => Ok(()),
    }
}

/// Names and lengths of the files in a folder, by name.
fn written(folder: &Path) -> Result<Vec<(String, u64)>, Failure> {
    let read = |e: std::io::Error| Failure::Run(format!("cannot read {}: {e}", folder.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let entry = entry.map_err(read)?;
        files.push((entry.file_name().to_string_lossy().into_owned(), entry.metadata().map_err(read)?.len()));
    }
    files.sort();
    Ok(files)
}

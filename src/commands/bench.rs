//! `ragen bench [CONFIG]`: how fast the engine is here, for a standard shape, that of a configuration's `[model]`, the language model at
//! `model.path`, or random weights of a known language model's shape.

use super::{Common, Configured, Failure, open, print, with_common};
use ragen::bench::{self, gpu};
use ragen::config::Config;
use ragen::settings;
use ragen_models::device::{Cpu, Device, Taken};
use ragen_models::gpu::{Gpu, check};
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::Config as Shape;
use ragen_models::weights::Checkpoint;
use std::sync::Arc;

/// The shape of a language model that has a name.
fn known(name: &str) -> Option<Shape> {
    match name {
        "smollm2" => Some(bench::smollm2()),
        "0.5b" => Some(bench::half_billion()),
        _ => None,
    }
}

/// What is measured.
enum Subject {
    /// A small model of this shape.
    Small(Shape),
    /// A language model.
    Language(Checkpoint),
}

impl Subject {
    /// Random weights of a language model's shape.
    fn of_shape(config: Shape) -> Subject {
        Subject::Language(Checkpoint { params: bench::weights(&config), config })
    }
}

/// The command.
pub fn run(common: &Common, what: &Configured) -> Result<(), Failure> {
    if what.ragen_config.is_some() {
        return Err(Failure::Usage(
            "--ragen-config says nothing of a shape: bench takes CONFIG or model.path=DIR".into(),
        ));
    }
    let (name, changes) = what.split();
    let known = name.and_then(known);
    let mut config = settings::load(name.filter(|_| known.is_none()), &with_common(changes, common))?;
    let device = open::take_device(&mut config, common.quiet)?;
    // A configuration may name a model as well; then its shape is asked for, as it always was.
    let asked = name.is_none() && changes.iter().any(|change| change.starts_with("model.path="));
    let (name, subject) = match (known, name) {
        (Some(shape), Some(name)) => (name.to_string(), Subject::of_shape(shape)),
        (None, Some(name)) => (name.to_string(), Subject::Small(open::fresh_shape(&config, &Tokenizer::tiny())?)),
        (_, None) if asked && !config.model.path.is_empty() => {
            (config.model.path.clone(), Subject::Language(open::Source::open(&config.model.path)?.load()?.checkpoint))
        }
        // A real GPU would hardly notice a small model.
        (_, None) if matches!(device.device, Device::Cuda(_)) => {
            ("0.5b".into(), Subject::of_shape(bench::half_billion()))
        }
        (_, None) => ("small".into(), Subject::Small(bench::small())),
    };
    let mut closed = Ok(());
    let mut tell = |line: &str| {
        if !common.quiet && closed.is_ok() {
            closed = print(&format!("{line}\n"));
        }
    };
    let result = match &device {
        Taken { gpu: Some(gpu), device, .. } => on_gpu(gpu, *device, &name, subject, &mut tell)?,
        Taken { .. } => on_cpu(&config, &name, subject, &mut tell)?,
    };
    closed?;
    print(&format!("{result}\n"))?;
    let broken = result["broken"].as_array().map_or(0, Vec::len);
    if broken > 0 { Err(Failure::Run(format!("{broken} parts could not be measured: see \"broken\""))) } else { Ok(()) }
}

fn on_cpu(
    config: &Config,
    name: &str,
    subject: Subject,
    tell: &mut dyn FnMut(&str),
) -> Result<serde_json::Value, Failure> {
    let cpu = Arc::new(Cpu::new(config.run.threads).map_err(Failure::Usage)?);
    Ok(match subject {
        Subject::Small(shape) => bench::run(&cpu, name, &shape, tell),
        Subject::Language(Checkpoint { config, params }) => bench::language::run(&cpu, name, &config, params, tell),
    })
}

fn on_gpu(
    gpu: &Gpu,
    device: Device,
    name: &str,
    subject: Subject,
    tell: &mut dyn FnMut(&str),
) -> Result<serde_json::Value, Failure> {
    let Checkpoint { config, params } = match subject {
        Subject::Small(config) => Checkpoint { params: bench::weights(&config), config },
        Subject::Language(checkpoint) => checkpoint,
    };
    check(&config).map_err(|why| Failure::Usage(format!("{name}: {why}; run with --device cpu")))?;
    let sizes = match device {
        Device::Emulator => gpu::Sizes::tiny(),
        _ => gpu::Sizes::device(gpu.memory().map_err(|e| Failure::Run(e.to_string()))?.0),
    };
    gpu::run(gpu, name, &config, &params, &sizes, tell).map_err(|e| Failure::Run(e.to_string()))
}

//! `ragen bench [CONFIG]`: how fast the engine is here, for a standard small shape, that of a configuration's `[model]`, the language
//! model at `model.path`, or random weights of SmolLM2-135M's shape (`smollm2`).

use super::{Common, Configured, Failure, open, print, with_common};
use ragen::bench;
use ragen::settings;
use ragen_models::device::Cpu;
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::Transformer;
use ragen_models::weights::Checkpoint;
use std::sync::Arc;

/// The name of the standard language model.
const SMOLLM2: &str = "smollm2";

/// The command.
pub fn run(common: &Common, what: &Configured) -> Result<(), Failure> {
    let (name, changes) = what.split();
    let standard = (name == Some(SMOLLM2)).then(bench::smollm2);
    let name = name.filter(|name| *name != SMOLLM2);
    let mut config = settings::load(name, &with_common(changes, common))?;
    open::take_device(&mut config, common.quiet)?;
    let mut closed = Ok(());
    let mut tell = |line: &str| {
        if !common.quiet && closed.is_ok() {
            closed = print(&format!("{line}\n"));
        }
    };
    // A configuration may name a model as well; then its shape is asked for, as it always was.
    let asked = name.is_none() && changes.iter().any(|change| change.starts_with("model.path="));
    if standard.is_some() || (asked && !config.model.path.is_empty()) {
        let (name, checkpoint) = match standard {
            Some(config) => (SMOLLM2.to_string(), Checkpoint { params: Transformer::initial(&config, 1), config }),
            None => (config.model.path.clone(), open::Source::open(&config.model.path)?.load()?.checkpoint),
        };
        let cpu = Arc::new(Cpu::new(config.run.threads).map_err(Failure::Usage)?);
        let result = bench::language::run(&cpu, &name, &checkpoint.config, checkpoint.params, &mut tell);
        closed?;
        return print(&format!("{result}\n"));
    }
    let (name, shape) = match name {
        None => ("small", bench::small()),
        Some(name) => (name, open::fresh_shape(&config, &Tokenizer::tiny())?),
    };
    let cpu = Cpu::new(config.run.threads).map_err(Failure::Usage)?;
    let result = bench::run(&cpu, name, &shape, &mut tell);
    closed?;
    print(&format!("{result}\n"))
}

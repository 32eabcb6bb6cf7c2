//! `ragen bench [CONFIG]`: how fast the engine is here, for a standard small shape or that of a configuration's `[model]`.

use super::{Common, Configured, Failure, open, print, with_common};
use ragen::bench;
use ragen::settings;
use ragen_models::device::Cpu;
use ragen_models::tokenizer::Tokenizer;

/// The command.
pub fn run(common: &Common, what: &Configured) -> Result<(), Failure> {
    let (name, changes) = what.split();
    let config = settings::load(name, &with_common(changes, common))?;
    open::check_device(&config)?;
    let (name, shape) = match name {
        None => ("small", bench::small()),
        Some(name) => (name, open::fresh_shape(&config, &Tokenizer::tiny())?),
    };
    let cpu = Cpu::new(config.run.threads).map_err(Failure::Usage)?;
    let mut closed = Ok(());
    let mut tell = |line: &str| {
        if !common.quiet && closed.is_ok() {
            closed = print(&format!("{line}\n"));
        }
    };
    let result = bench::run(&cpu, name, &shape, &mut tell);
    closed?;
    print(&format!("{result}\n"))
}

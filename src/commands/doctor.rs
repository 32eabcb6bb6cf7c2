//! `ragen doctor`: what this machine has, and every fast path against its reference.

use super::{Common, Failure, print, with_common};
use clap::Args;
use ragen::doctor::Report;
use ragen::settings;
use ragen_models::device::{Cpu, Device, Taken};
use ragen_models::doctor::Sizes;

/// How to look.
#[derive(Args, Debug)]
pub struct Options {
    /// Small shapes on a GPU, not those of a model of 0.5 billion parameters: for tools that slow it down
    #[arg(long)]
    pub small: bool,
}

/// The command. `cpu` and `cuda` are looked at alone; `auto` is both, as far as they are there.
pub fn run(common: &Common, options: &Options) -> Result<(), Failure> {
    let run = settings::load(None, &with_common(&[], common))?.run;
    let mut closed = Ok(());
    let mut tell = |line: &str| {
        if !common.quiet && closed.is_ok() {
            closed = print(&format!("{line}\n"));
        }
    };
    let mut report = Report::default();
    let sizes = if options.small { Sizes::tiny() } else { Sizes::device() };
    let device = Device::parse(&run.device).map_err(Failure::Usage)?;
    if matches!(device, Device::Auto | Device::Cpu) {
        report.look_at_cpu(&Cpu::new(run.threads).map_err(Failure::Usage)?, &mut tell);
    }
    match device.take() {
        Ok(Taken { gpu: Some(gpu), .. }) => report.look_at_gpu(&gpu, &sizes, &mut tell),
        Ok(Taken { no_gpu: Some(error), .. }) => report.without_gpu(error.to_string(), &mut tell),
        Ok(_) => {}
        Err(error) => return Err(Failure::Device(format!("--device {}: {error}", run.device))),
    }
    closed?;
    print(&format!("{}\n", report.to_json()))?;
    verdict(&report)
}

/// A check that failed is a failure of the command.
fn verdict(report: &Report) -> Result<(), Failure> {
    match report.failed() {
        0 => Ok(()),
        n => Err(Failure::Run(format!("{n} of {} checks failed", report.checks.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_models::doctor::{Check, Outcome};

    #[test]
    fn it_exits_with_1_when_a_check_failed_and_not_when_one_was_skipped() {
        let check = |outcome| Check { name: "it".into(), outcome, milliseconds: 0.0 };
        let report = |outcome| Report { checks: vec![check(Outcome::Untimed), check(outcome)], ..Report::default() };
        let failure = verdict(&report(Outcome::Off { by: 1.0, bound: 0.0 })).unwrap_err();
        assert_eq!((failure.code(), failure.text().unwrap().as_str()), (1, "error: 1 of 2 checks failed"));
        assert!(verdict(&report(Outcome::Skipped("not here".into()))).is_ok());
    }
}

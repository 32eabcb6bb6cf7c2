//! The commands: each reads its options, calls the library and says what came of it.
//!
//! What they share: the common options, the way from a failure to an exit code, and writing to standard output.

use clap::Args;
use ragen::config::Config;
use ragen::from_ragen::{self, FromRagenError, Translated};
use ragen::run::RunError;
use ragen::settings::{self, SettingsError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub mod bench;
pub mod doctor;
mod engines;
pub mod envs;
pub mod eval;
pub mod export;
pub mod inspect;
pub mod open;
pub mod play;
pub mod rollout;
pub mod train;
pub mod warmstart;

/// Options that every command takes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// The run's directory [default: runs/<name>-<seed>, then -2, -3 ...]
    #[arg(long, value_name = "DIR", global = true)]
    pub run: Option<PathBuf>,
    /// Go on from the run's newest checkpoint
    #[arg(long, global = true)]
    pub resume: bool,
    /// Where to compute: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", global = true)]
    pub device: Option<String>,
    /// Worker threads; results do not depend on it [default: one per core]
    #[arg(long, value_name = "N", global = true)]
    pub threads: Option<usize>,
    /// Root of all random numbers
    #[arg(long, value_name = "N", global = true)]
    pub seed: Option<u64>,
    /// Say nothing but the result
    #[arg(long, global = true)]
    pub quiet: bool,
    /// End with one JSON object on the last line of standard output
    #[arg(long, global = true)]
    pub json: bool,
}

/// A configuration with changes.
#[derive(Args, Debug, Default)]
pub struct Configured {
    /// A shipped configuration (sokoban, frozen_lake, bandit and so on), a tag that `ragen envs` lists, or a TOML file, then
    /// changes to it such as filter.value=0.9
    #[arg(value_name = "CONFIG] [KEY=VALUE")]
    pub what: Vec<String>,
    /// RAGEN's YAML in place of CONFIG: files with commas between them, later ones win; KEY=VALUE may then be RAGEN's keys too,
    /// written as Hydra does (docs/from-ragen.md)
    #[arg(long, value_name = "FILES")]
    pub ragen_config: Option<String>,
}

impl Configured {
    /// The name or file, if one is given, and the changes.
    pub fn split(&self) -> (Option<&str>, &[String]) {
        match self.what.split_first() {
            _ if self.ragen_config.is_some() => (None, &self.what),
            Some((first, rest)) if !first.contains('=') || Path::new(first).exists() => (Some(first), rest),
            _ => (None, &self.what),
        }
    }

    /// Whether a configuration is named, not only changes.
    pub fn is_named(&self) -> bool {
        self.ragen_config.is_some() || self.split().0.is_some()
    }

    /// What names it, as on the command line.
    pub fn name(&self) -> String {
        match &self.ragen_config {
            Some(files) => format!("--ragen-config {files}"),
            None => self.split().0.unwrap_or(settings::SHIPPED[0].0).to_string(),
        }
    }

    /// Resolves it; the common options win over the changes.
    pub fn load(&self, common: &Common) -> Result<Config, Failure> {
        let (config, changes) = self.split();
        let changes = with_common(changes, common);
        match &self.ragen_config {
            Some(files) => Ok(load_ragen(files, &changes, common.quiet)?.config),
            None => Ok(settings::load(config, &changes)?),
        }
    }
}

/// Translates RAGEN's configuration, and says what it came to unless asked to be quiet.
pub fn load_ragen(files: &str, changes: &[String], quiet: bool) -> Result<Translated, Failure> {
    if let Some(first) = changes.iter().find(|text| !text.contains('=') && !text.starts_with('~')) {
        let text = format!("{first} is not KEY=VALUE, and --ragen-config takes the place of a CONFIG");
        return Err(Failure::Usage(text));
    }
    let translated = from_ragen::load(files, changes)?;
    if !quiet {
        translated.lines().iter().for_each(|line| eprintln!("note: {line}"));
    }
    Ok(translated)
}

/// The changes and, after them, those that the common options stand for.
pub fn with_common(changes: &[String], common: &Common) -> Vec<String> {
    let mut changes = changes.to_vec();
    changes.extend(common.seed.map(|n| format!("run.seed={n}")));
    changes.extend(common.threads.map(|n| format!("run.threads={n}")));
    changes.extend(common.device.as_ref().map(|name| format!("run.device={name}")));
    changes
}

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// It failed on the way.
    Run(String),
    /// It was asked for something that cannot be.
    Usage(String),
    /// The device asked for is absent.
    Device(String),
    /// It was asked to stop; what there was is saved.
    Interrupted(String),
    /// Nobody reads the answer any more.
    Closed,
}

impl Failure {
    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Run(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Device(_) => 3,
            Failure::Interrupted(_) => 130,
            Failure::Closed => 0,
        }
    }

    /// What to say about it.
    pub fn text(&self) -> Option<String> {
        match self {
            Failure::Run(text) | Failure::Usage(text) | Failure::Device(text) => Some(format!("error: {text}")),
            Failure::Interrupted(text) => Some(text.clone()),
            Failure::Closed => None,
        }
    }
}

/// Makes errors of the library failures of one kind.
macro_rules! failures {
    ($kind:ident: $($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Failure::$kind(error.to_string())
            }
        })+
    };
}

failures!(Usage: SettingsError, FromRagenError, ragen::context_manager::ContextError, ragen::env_manager::EnvManagerError);
failures!(Run: ragen::train::TrainError, ragen::agent_proxy::RolloutError, ragen::policy::PolicyError, ragen_envs::EnvError);

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Exists(_) | RunError::NotARun(_) | RunError::Absent { .. } => Failure::Usage(error.to_string()),
            _ => Failure::Run(error.to_string()),
        }
    }
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Run(format!("cannot write to standard output: {e}")),
    })
}

/// Set once the process was asked to stop (Ctrl-C, SIGTERM); asked a second time, it stops at once.
pub fn interruption() -> Arc<AtomicBool> {
    let asked = Arc::new(AtomicBool::new(false));
    let flag = asked.clone();
    let installed = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("\nstopping after this step; once more stops at once");
    });
    if let Err(error) = installed {
        eprintln!("warning: Ctrl-C will not save: {error}");
    }
    asked
}

/// Lines of cells in columns: the first to the left, the others to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[i] - cell.chars().count());
            line.push_str(&if i == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A whole number with its thousands apart: 1,234,567.
pub fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_told_from_changes() {
        let split = |what: &[&str]| {
            let what = what.iter().map(|s| s.to_string()).collect();
            let configured = Configured { what, ..Configured::default() };
            let (config, changes) = configured.split();
            (config.map(str::to_string), changes.len())
        };
        assert_eq!(split(&[]), (None, 0));
        assert_eq!(split(&["a=1"]), (None, 1));
        assert_eq!(split(&["sokoban", "a=1", "b=2"]), (Some("sokoban".into()), 2));
    }

    #[test]
    fn columns_and_thousands() {
        let row = |cells: [&str; 2]| cells.map(str::to_string).to_vec();
        assert_eq!(table(&[row(["success", "0.5"]), row(["n", "12.5"])]), "success   0.5\nn        12.5\n");
        assert_eq!(
            [thousands(0), thousands(999), thousands(1000), thousands(1234567)],
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}

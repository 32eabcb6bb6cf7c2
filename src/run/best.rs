//! Which checkpoint of a run is meant, and which of them stay.

use super::files::{Ctx, write_atomic};
use super::{RunDir, RunError, STATE, Saved, load, remove};
use serde_json::{Value, json};
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;

/// The file in a run that names its best checkpoint.
const BEST: &str = "best.json";

/// A checkpoint of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest that is whole.
    Newest,
    /// The one whose validation had the most success.
    Best,
    /// That of a step.
    Step(u64),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "newest" => Ok(Which::Newest),
            "best" => Ok(Which::Best),
            step => step.parse().map(Which::Step).map_err(|_| "expected newest, best or the number of a step".into()),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Newest => f.write_str("newest"),
            Which::Best => f.write_str("best"),
            Which::Step(step) => step.fmt(f),
        }
    }
}

/// Which checkpoints stay when another one is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The newest so many; 0 for all.
    pub newest: usize,
    /// The best one, by its step.
    pub best: Option<u64>,
}

impl RunDir {
    /// Remembers that the checkpoint of this step is the best, or that there is none.
    pub fn mark_best(&self, step: Option<u64>) -> Result<(), RunError> {
        let path = self.path().join(BEST);
        match step {
            Some(step) => write_atomic(&path, format!("{}\n", json!({"step": step})).as_bytes()),
            None => remove(&path),
        }
    }

    /// The step of the best checkpoint, if there is one.
    pub fn best_step(&self) -> Result<Option<u64>, RunError> {
        let path = self.path().join(BEST);
        let bytes = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.ctx("read", &path)?,
        };
        let step = serde_json::from_slice::<Value>(&bytes).ok().and_then(|value| value["step"].as_u64());
        step.map(Some).ok_or(RunError::Broken { path, why: "names no step".into() })
    }

    /// A whole checkpoint.
    ///
    /// **Errors** [`RunError::Absent`] if the run has none of this kind, [`RunError::Broken`] if it is not whole.
    pub fn checkpoint(&self, which: Which) -> Result<Saved, RunError> {
        let absent = |why: &str| RunError::Absent { run: self.path().into(), which, why: why.into() };
        let step = match which {
            Which::Newest => return self.newest_checkpoint(),
            Which::Step(step) => step,
            Which::Best => self.best_step()?.ok_or_else(|| {
                absent(
                    "none was saved after a validation (checkpoint.best, checkpoint.every and val.every decide that)",
                )
            })?,
        };
        let Some((_, path)) = self.steps()?.into_iter().find(|(of, _)| *of == step) else {
            return Err(absent(&format!("checkpoints/step-{step:06} is not there")));
        };
        let (found, state) = load(&path)?;
        if found != step {
            return Err(RunError::Broken { path, why: format!("{STATE} is of step {found}") });
        }
        Ok(Saved { step, path, state, skipped: Vec::new() })
    }

    /// Removes the checkpoints that do not stay.
    pub(super) fn prune(&self, retention: Retention) -> Result<(), RunError> {
        let steps = self.steps()?;
        let surplus = if retention.newest == 0 { 0 } else { steps.len().saturating_sub(retention.newest) };
        for (_, path) in steps[..surplus].iter().filter(|(step, _)| Some(*step) != retention.best) {
            remove(path)?;
        }
        Ok(())
    }
}

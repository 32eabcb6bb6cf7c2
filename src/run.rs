//! The run directory: everything that a run leaves behind, and what it can be resumed from (decision D10).
//!
//! ```text
//! config.toml  metrics.jsonl  timing.jsonl  val.jsonl  notices.jsonl
//! trajectories/step-000010.jsonl
//! checkpoints/step-000100/     a model directory, and trainer.state
//! best.json                    the step of the best checkpoint
//! ```
//!
//! This module knows files, not what is in them: a metric is a JSON object with a `step`, a checkpoint is whatever was
//! written into its folder plus a [`TrainerState`]. A kill at any moment leaves the last whole checkpoint loadable,
//! because a checkpoint appears under its name in one rename, with the length and hash of each of its files inside.

use ragen_models::named_buffers;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

mod best;
mod files;

pub use best::{Retention, Which};
use files::{Ctx, append_line, hash, hash_reader, sync_dir, write_atomic};

/// Why the run directory cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A new run was asked for where something is already.
    #[error("{} is there already and is not overwritten; --resume continues a run, another --run starts one", .0.display())]
    Exists(PathBuf),
    /// A run was to be resumed that is none.
    #[error("{} is not a run: it has no config.toml", .0.display())]
    NotARun(PathBuf),
    /// Nothing to resume from.
    #[error("{} has no whole checkpoint{}", path.display(), list(broken))]
    NoCheckpoint {
        /// The run.
        path: PathBuf,
        /// The checkpoints that are there, with what is wrong with each.
        broken: Vec<String>,
    },
    /// A checkpoint that the run does not have.
    #[error("{} has no checkpoint {which}: {why}", run.display())]
    Absent {
        /// The run.
        run: PathBuf,
        /// Which was asked for.
        which: Which,
        /// Why it is not there.
        why: String,
    },
    /// A checkpoint that is not whole.
    #[error("{}: {why}", path.display())]
    Broken {
        /// The checkpoint, or a file of it.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Whoever writes the checkpoint's model failed.
    #[error("cannot save the model: {0}")]
    Model(String),
}

fn list(broken: &[String]) -> String {
    broken.iter().map(|line| format!("\n  {line}")).collect()
}

/// The files that grow by one JSON object at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// One object a step, without wall-clock values: equal runs are equal files.
    Metrics,
    /// Seconds and rates by phase, apart because they differ from run to run.
    Timing,
    /// One object a validation.
    Val,
    /// One object for each thing that somebody should know.
    Notices,
    /// One object a step: the rewards of every group, how they spread, and whether the filter kept it.
    Groups,
}

impl Log {
    const ALL: [Log; 5] = [Log::Metrics, Log::Timing, Log::Val, Log::Notices, Log::Groups];

    /// Its file name.
    pub fn file_name(self) -> &'static str {
        match self {
            Log::Metrics => "metrics.jsonl",
            Log::Timing => "timing.jsonl",
            Log::Val => "val.jsonl",
            Log::Notices => "notices.jsonl",
            Log::Groups => "groups.jsonl",
        }
    }
}

/// What training goes on from, beside the model's own files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainerState {
    /// Counters, environment state, schedules: anything small.
    pub value: Value,
    /// The optimiser's buffers, by name.
    pub buffers: Vec<(String, Vec<f32>)>,
}

impl TrainerState {
    /// Takes out the buffer called `name`, if there is one of `len` elements.
    pub fn take(&mut self, name: &str, len: usize) -> Option<Vec<f32>> {
        let (_, data) = self.buffers.iter_mut().find(|(n, data)| n == name && data.len() == len)?;
        Some(std::mem::take(data))
    }
}

/// A [`TrainerState`] that is about to be saved; its buffers are as large as the model and stay where they are.
#[derive(Clone, Debug, Default)]
pub struct StateToSave<'a> {
    /// Counters, environment state, schedules: anything small.
    pub value: Value,
    /// The optimiser's buffers, each with a name of its own.
    pub buffers: Vec<(&'a str, Cow<'a, [f32]>)>,
}

/// A file of a checkpoint, as `trainer.state` remembers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Seal {
    bytes: u64,
    hash: String,
}

/// The text of `trainer.state`.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// Version of this layout.
    format: u32,
    step: u64,
    /// The other files of the folder.
    files: BTreeMap<String, Seal>,
    /// Hash of the buffers.
    buffers: String,
    value: Value,
}

const FORMAT: u32 = 1;
const STATE: &str = "trainer.state";

/// A whole checkpoint.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The step after which it was written.
    pub step: u64,
    /// Its folder: a model directory.
    pub path: PathBuf,
    /// What training goes on from.
    pub state: TrainerState,
    /// Newer checkpoints that are not whole, with what is wrong with each.
    pub skipped: Vec<String>,
}

/// A run's directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the directory of a new run and writes its `config.toml`.
    ///
    /// Without `path` it is `runs/<name>-<seed>`, or the first of `-2`, `-3` … that is free.
    ///
    /// **Errors** [`RunError::Exists`] if `path` is there and not an empty directory.
    pub fn create(path: Option<&Path>, name: &str, seed: u64, config: &str) -> Result<RunDir, RunError> {
        let path = match path {
            Some(path) => {
                match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
                    Ok(true) => {}
                    Ok(false) => return Err(RunError::Exists(path.into())),
                    Err(_) if path.is_file() => return Err(RunError::Exists(path.into())),
                    Err(_) => fs::create_dir_all(path).ctx("create", path)?,
                }
                path.to_path_buf()
            }
            None => first_free(name, seed)?,
        };
        write_atomic(&path.join("config.toml"), config.as_bytes())?;
        Ok(RunDir { path })
    }

    /// Opens the directory of a run that exists, and clears away what a kill left half done.
    ///
    /// **Errors** [`RunError::NotARun`] without a `config.toml`.
    pub fn open(path: &Path) -> Result<RunDir, RunError> {
        if !path.join("config.toml").is_file() {
            return Err(RunError::NotARun(path.into()));
        }
        let run = RunDir { path: path.to_path_buf() };
        for folder in [run.path.clone(), run.checkpoints(), run.path.join("trajectories")] {
            for (name, entry) in entries(&folder)? {
                if name.starts_with('.') && name.ends_with(PARTIAL) {
                    remove(&entry)?;
                }
            }
        }
        Ok(run)
    }

    /// The newest of `runs/<name>-<seed>`, `-2`, `-3` …, if there is any.
    pub fn newest(name: &str, seed: u64) -> Option<PathBuf> {
        candidates(name, seed).take_while(|path| path.exists()).last()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of `config.toml`.
    pub fn config(&self) -> Result<String, RunError> {
        let path = self.path.join("config.toml");
        fs::read_to_string(&path).ctx("read", &path)
    }

    /// Replaces `config.toml`.
    pub fn write_config(&self, config: &str) -> Result<(), RunError> {
        write_atomic(&self.path.join("config.toml"), config.as_bytes())
    }

    /// Adds one object to a log; `step` comes first in it.
    pub fn append(&self, log: Log, step: u64, record: &Map<String, Value>) -> Result<(), RunError> {
        let mut object = Map::from_iter([("step".to_string(), Value::from(step))]);
        object.extend(record.iter().map(|(k, v)| (k.clone(), v.clone())));
        append_line(&self.path.join(log.file_name()), &Value::Object(object).to_string())
    }

    /// The objects of a log so far; none if it was never written.
    pub fn read(&self, log: Log) -> Result<Vec<Value>, RunError> {
        let path = self.path.join(log.file_name());
        let bytes = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes.ctx("read", &path)?,
        };
        let line = |line: &[u8]| serde_json::from_slice(line).map_err(|e| e.to_string());
        let lines: Result<Vec<Value>, String> =
            bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(line).collect();
        lines.map_err(|why| RunError::Broken { path, why })
    }

    /// Writes the trajectories of a step, one JSON object a line.
    pub fn write_trajectories(
        &self,
        step: u64,
        trajectories: impl IntoIterator<Item = Value>,
    ) -> Result<PathBuf, RunError> {
        self.write_lines(&format!("trajectories/step-{step:06}.jsonl"), trajectories)
    }

    /// Writes a file of JSON objects, one a line, below the run directory.
    pub fn write_lines(&self, name: &str, objects: impl IntoIterator<Item = Value>) -> Result<PathBuf, RunError> {
        let mut text = String::new();
        for object in objects {
            text.push_str(&object.to_string());
            text.push('\n');
        }
        self.write_text(name, &text)
    }

    /// Writes a text file below the run directory.
    pub fn write_text(&self, name: &str, text: &str) -> Result<PathBuf, RunError> {
        let path = self.path.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).ctx("create", folder)?;
        }
        write_atomic(&path, text.as_bytes())?;
        Ok(path)
    }

    /// Saves a checkpoint: `write_model` fills the folder it is given, then `state` is put beside it.
    ///
    /// Everything that belongs to this step must be in the logs already: resuming goes on at `step` + 1. Afterwards
    /// only the checkpoints that `retention` names stay.
    pub fn save<E: std::fmt::Display>(
        &self,
        step: u64,
        retention: Retention,
        state: &StateToSave<'_>,
        write_model: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, RunError> {
        for log in Log::ALL {
            let path = self.path.join(log.file_name());
            if path.exists() {
                File::open(&path).and_then(|f| f.sync_all()).ctx("flush", &path)?;
            }
        }
        let checkpoints = self.checkpoints();
        fs::create_dir_all(&checkpoints).ctx("create", &checkpoints)?;
        let partial = checkpoints.join(format!(".step-{step:06}{PARTIAL}"));
        let path = checkpoints.join(format!("step-{step:06}"));
        remove(&partial)?;
        fs::create_dir(&partial).ctx("create", &partial)?;
        write_model(&partial).map_err(|e| RunError::Model(e.to_string()))?;

        let buffers: Vec<(&str, &[f32])> = state.buffers.iter().map(|(name, data)| (*name, &**data)).collect();
        let mut files = BTreeMap::new();
        for (name, file) in entries(&partial)? {
            files.insert(name, seal(&file)?);
            File::open(&file).and_then(|f| f.sync_all()).ctx("flush", &file)?;
        }
        let note = Note {
            format: FORMAT,
            step,
            files,
            buffers: hash_buffers(buffers.iter().copied()),
            value: state.value.clone(),
        };
        let note = serde_json::to_string(&note).map_err(|e| RunError::Model(e.to_string()))?;
        let path_of_state = partial.join(STATE);
        ragen_models::atomic_file::write(&path_of_state, |file| named_buffers::write(file, &note, &buffers))
            .ctx("write", &path_of_state)?;
        sync_dir(&partial)?;
        if path.exists() {
            // Left by the run before it was resumed from an older step.
            let old = checkpoints.join(format!(".step-{step:06}.old{PARTIAL}"));
            fs::rename(&path, &old).ctx("replace", &path)?;
            fs::rename(&partial, &path).ctx("create", &path)?;
            remove(&old)?;
        } else {
            fs::rename(&partial, &path).ctx("create", &path)?;
        }
        sync_dir(&checkpoints)?;
        self.mark_best(retention.best)?;
        self.prune(retention)?;
        Ok(path)
    }

    /// The newest whole checkpoint; newer ones that are not whole are listed in [`Saved::skipped`].
    ///
    /// **Errors** [`RunError::NoCheckpoint`] if none is whole.
    pub fn newest_checkpoint(&self) -> Result<Saved, RunError> {
        self.newest_checkpoint_before(u64::MAX)
    }

    /// As [`RunDir::newest_checkpoint`], of a step before `before`.
    ///
    /// **Errors** [`RunError::NoCheckpoint`] if none is whole.
    pub fn newest_checkpoint_before(&self, before: u64) -> Result<Saved, RunError> {
        let mut skipped = Vec::new();
        for (step, path) in self.steps()?.into_iter().rev().filter(|(step, _)| *step < before) {
            match load(&path) {
                Ok((found, state)) if found == step => return Ok(Saved { step, path, state, skipped }),
                Ok((found, _)) => skipped.push(format!("{}: {STATE} is of step {found}", path.display())),
                Err(e) => skipped.push(e.to_string()),
            }
        }
        Err(RunError::NoCheckpoint { path: self.path.clone(), broken: skipped })
    }

    /// Forgets what was logged after `step`, so that a resumed run writes it again.
    pub fn rewind(&self, step: u64) -> Result<(), RunError> {
        for log in Log::ALL {
            let path = self.path.join(log.file_name());
            let bytes = match fs::read(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                bytes => bytes.ctx("read", &path)?,
            };
            let mut kept = 0;
            for line in bytes.split_inclusive(|&b| b == b'\n') {
                let of = serde_json::from_slice::<Value>(line).ok().and_then(|v| v.get("step")?.as_u64());
                if !line.ends_with(b"\n") || of.is_none_or(|of| of > step) {
                    break; // A kill can cut the last line; steps only rise.
                }
                kept += line.len();
            }
            if kept < bytes.len() {
                write_atomic(&path, &bytes[..kept])?;
            }
        }
        for (name, path) in entries(&self.path.join("trajectories"))? {
            if step_of(name.trim_end_matches(".jsonl")).is_some_and(|of| of > step) {
                remove(&path)?;
            }
        }
        for (of, path) in self.steps()? {
            if of > step {
                remove(&path)?;
            }
        }
        Ok(())
    }

    fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The checkpoints by ascending step, whole or not.
    fn steps(&self) -> Result<Vec<(u64, PathBuf)>, RunError> {
        let entries = entries(&self.checkpoints())?;
        let mut steps: Vec<_> = entries.into_iter().filter_map(|(name, path)| Some((step_of(&name)?, path))).collect();
        steps.sort();
        Ok(steps)
    }
}

/// Ends the names of files and folders that are being written or removed; they begin with a dot.
const PARTIAL: &str = ".partial";

/// Whether a directory holds a run.
pub fn is_run(path: &Path) -> bool {
    path.join("config.toml").is_file()
}

/// Reads a checkpoint: the step after which it was written, and its state.
///
/// **Errors** [`RunError::Broken`] unless each file is there with the length and hash it was saved with.
pub fn load(path: &Path) -> Result<(u64, TrainerState), RunError> {
    let broken = |why: String| RunError::Broken { path: path.into(), why };
    let state_path = path.join(STATE);
    if !state_path.is_file() {
        return Err(broken(format!("half written: there is no {STATE}")));
    }
    let (note, buffers) =
        named_buffers::load(&state_path).map_err(|e| broken(format!("half written: {STATE} is {e}")))?;
    let note: Note = serde_json::from_str(&note).map_err(|e| broken(format!("{STATE} cannot be read: {e}")))?;
    if note.format != FORMAT {
        return Err(broken(format!("{STATE} has layout {}, this version reads {FORMAT}", note.format)));
    }
    if note.buffers != hash_buffers(buffers.iter().map(|(name, data)| (name.as_str(), data.as_slice()))) {
        return Err(broken(format!("{STATE} is damaged: its hash differs")));
    }
    for (name, sealed) in &note.files {
        let file = path.join(name);
        if !file.is_file() {
            return Err(broken(format!("half written: there is no {name}")));
        }
        let found = seal(&file)?;
        if found.bytes != sealed.bytes {
            return Err(broken(format!("half written: {name} has {} of {} bytes", found.bytes, sealed.bytes)));
        }
        if found != *sealed {
            return Err(broken(format!("{name} is not the file that was saved: its hash differs")));
        }
    }
    Ok((note.step, TrainerState { value: note.value, buffers }))
}

fn seal(path: &Path) -> Result<Seal, RunError> {
    let file = File::open(path).ctx("read", path)?;
    let bytes = file.metadata().ctx("read", path)?.len();
    let state = hash_reader(bytes, file).ctx("read", path)?;
    Ok(Seal { bytes, hash: format!("{state:016x}") })
}

fn hash_buffers<'a>(buffers: impl Iterator<Item = (&'a str, &'a [f32])>) -> String {
    let mut sorted: Vec<_> = buffers.collect();
    sorted.sort_by(|a, b| a.0.cmp(b.0));
    let mut state = 0;
    for (name, data) in sorted {
        state = hash(state, name.as_bytes());
        let mut bytes = [0; 4096];
        for chunk in data.chunks(1024) {
            for (to, x) in bytes.chunks_exact_mut(4).zip(chunk) {
                to.copy_from_slice(&x.to_le_bytes());
            }
            state = hash(state, &bytes[..4 * chunk.len()]);
        }
    }
    format!("{state:016x}")
}

/// The number in `step-000123`.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

fn candidates(name: &str, seed: u64) -> impl Iterator<Item = PathBuf> {
    let base = format!("runs/{name}-{seed}");
    (1..).map(move |n| PathBuf::from(if n == 1 { base.clone() } else { format!("{base}-{n}") }))
}

/// Makes the first candidate that does not exist; `create_dir` decides, so two runs started at once never share one.
fn first_free(name: &str, seed: u64) -> Result<PathBuf, RunError> {
    fs::create_dir_all("runs").ctx("create", Path::new("runs"))?;
    for path in candidates(name, seed) {
        match fs::create_dir(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.ctx("create", &path).map(|()| path),
        }
    }
    unreachable!("the candidates never end")
}

/// Names and paths in a folder, sorted; none if it does not exist.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, RunError> {
    let found = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.ctx("read", folder)?,
    };
    let mut entries = Vec::new();
    for entry in found {
        let path = entry.ctx("read", folder)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        entries.push((name, path));
    }
    entries.sort();
    Ok(entries)
}

/// Removes a file or folder, if it is there. A folder first loses its name, so that no half of it is ever seen.
fn remove(path: &Path) -> Result<(), RunError> {
    let done = if path.is_dir() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = path.with_file_name(format!(".{}.gone{PARTIAL}", name.trim_start_matches('.')));
        fs::rename(path, &hidden).and_then(|()| fs::remove_dir_all(&hidden))
    } else {
        fs::remove_file(path)
    };
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.ctx("remove", path),
    }
}

#[cfg(test)]
mod tests;

//! Writing that a kill or a full disk cannot leave half done, and hashing.

use super::RunError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Puts what was tried and on what to an error of the file system.
pub(super) trait Ctx<T> {
    fn ctx(self, action: &'static str, path: &Path) -> Result<T, RunError>;
}

impl<T> Ctx<T> for io::Result<T> {
    fn ctx(self, action: &'static str, path: &Path) -> Result<T, RunError> {
        self.map_err(|source| RunError::Io { action, path: path.to_path_buf(), source })
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, RunError> {
    fs::read(path).ctx("read", path)
}

/// Writes a file that is either the old one or the new one, whole.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    ragen_models::atomic_file::write(path, |file| file.write_all(bytes)).ctx("write", path)
}

/// Adds a line in one write, or takes back what a full disk let through of it.
pub(super) fn append_line(path: &Path, line: &str) -> Result<(), RunError> {
    let append = || {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let before = file.metadata()?.len();
        let written = file.write_all(format!("{line}\n").as_bytes());
        if written.is_err() {
            let _ = file.set_len(before);
        }
        written
    };
    append().ctx("write", path)
}

/// Flushes a directory, so that the names in it are on the disk.
pub(super) fn sync_dir(path: &Path) -> Result<(), RunError> {
    // A relative path of one part has the parent "".
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match File::open(path).and_then(|dir| dir.sync_all()) {
        // Some file systems have no such operation; their renames are as durable as they can be.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        done => done.ctx("flush", path),
    }
}

/// A 64-bit hash of `bytes`, chained from `state`; it finds damage, it does not resist an attacker.
pub(super) fn hash(state: u64, bytes: &[u8]) -> u64 {
    let mix = |state: u64, word: u64| {
        let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    };
    let mut words = bytes.chunks_exact(8);
    let mut state = mix(state, bytes.len() as u64 | 1 << 63);
    for word in &mut words {
        let mut buffer = [0; 8];
        buffer.copy_from_slice(word);
        state = mix(state, u64::from_le_bytes(buffer));
    }
    words.remainder().iter().fold(state, |state, &byte| mix(state, u64::from(byte) + 1))
}

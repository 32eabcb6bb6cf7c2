//! Writing that a kill or a full disk cannot leave half done, and hashing.

use super::RunError;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
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
    let state = mix(state, bytes.len() as u64 | 1 << 63);
    let words = bytes.chunks_exact(8);
    words.remainder().iter().fold(absorb(state, bytes), |state, &byte| mix(state, u64::from(byte) + 1))
}

/// [`hash`] from state 0 of the `len` bytes that `reader` gives, which need not fit into memory.
pub(super) fn hash_reader(len: u64, mut reader: impl Read) -> io::Result<u64> {
    let mut state = mix(0, len | 1 << 63);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match reader.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        state = absorb(state, &buffer[..filled]);
        if filled < buffer.len() {
            let rest = &buffer[filled / 8 * 8..filled];
            return Ok(rest.iter().fold(state, |state, &byte| mix(state, u64::from(byte) + 1)));
        }
    }
}

/// The whole words of `bytes`.
fn absorb(state: u64, bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).fold(state, |state, word| {
        let mut buffer = [0; 8];
        buffer.copy_from_slice(word);
        mix(state, u64::from_le_bytes(buffer))
    })
}

fn mix(state: u64, word: u64) -> u64 {
    let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_hashes_as_its_bytes_do() {
        for len in [0, 1, 7, 8, 9, (1 << 16) - 1, 1 << 16, (1 << 16) + 13] {
            let bytes: Vec<u8> = (0..len).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
            assert_eq!(hash_reader(u64::from(len), &bytes[..]).unwrap(), hash(0, &bytes), "{len} bytes");
        }
    }
}

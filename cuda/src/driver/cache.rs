//! Compiled kernels on disk, so that only the first start after a change compiles.

use std::fs;
use std::path::{Path, PathBuf};

/// First bytes of an entry, before the hash of the rest.
const MAGIC: &[u8; 16] = b"ragen kernels 1\n";

/// A folder of files named by the hash of what they were made from. It is only ever a shortcut: what cannot be read or is damaged
/// is not there, what cannot be written is not kept.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's: `$RAGEN_CACHE`, or else `ragen/kernels` in `$XDG_CACHE_HOME` or `~/.cache`.
    pub fn of_user() -> Cache {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("RAGEN_CACHE").or_else(|| {
            let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
            Some(base.join("ragen").join("kernels"))
        });
        Cache { folder }
    }

    /// A given folder.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()) }
    }

    /// Where the entry of a key lies; `None` without a folder.
    pub fn path(&self, key: u128, ending: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key:032x}.{ending}")))
    }

    /// What was put under the key, if it is there and whole.
    pub fn get(&self, key: u128, ending: &str) -> Option<Vec<u8>> {
        let entry = fs::read(self.path(key, ending)?).ok()?;
        let (magic, rest) = entry.split_first_chunk::<16>()?;
        let (sum, data) = rest.split_first_chunk::<16>()?;
        (magic == MAGIC && u128::from_le_bytes(*sum) == content_hash([data])).then(|| data.to_vec())
    }

    /// Keeps data under the key; an entry appears whole or not at all.
    pub fn put(&self, key: u128, ending: &str, data: &[u8]) {
        if let Some(path) = self.path(key, ending) {
            let sum = content_hash([data]).to_le_bytes();
            // A full disk or a read-only home costs the next start its time and nothing else.
            let _ = write_whole(&path, &[MAGIC.as_slice(), &sum, data].concat());
        }
    }
}

fn write_whole(path: &Path, data: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let part = path.with_extension(format!("part-{}-{:?}", std::process::id(), std::thread::current().id()));
    fs::write(&part, data).and_then(|()| fs::rename(&part, path)).inspect_err(|_| drop(fs::remove_file(&part)))
}

/// 128 bits that stand for the parts, each with its length, so that moving a boundary changes them.
///
/// **Source** the FNV-1a hash of Fowler, Noll and Vo, with its constants for 128 bits.
pub fn content_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u128 {
    let add =
        |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013B);
    parts.into_iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, part| {
        let length = (part.len() as u64).to_le_bytes();
        part.iter().chain(&length).fold(hash, add)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_whole_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("deep").join("er"));
        assert_eq!(cache.get(7, "cubin"), None);
        cache.put(7, "cubin", b"kernels");
        assert_eq!(cache.get(7, "cubin").unwrap(), b"kernels");
        assert_eq!((cache.get(8, "cubin"), cache.get(7, "so")), (None, None));

        let path = cache.path(7, "cubin").unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(cache.get(7, "cubin"), None, "a changed byte at {at} was not seen");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(cache.get(7, "cubin"), None, "an entry cut at {at} was not seen");
        }
        cache.put(7, "cubin", b"again");
        assert_eq!(cache.get(7, "cubin").unwrap(), b"again");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no part stays behind");
    }

    #[test]
    fn a_folder_that_cannot_be_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let cache = Cache::at(folder.path().join("file").join("below"));
        cache.put(1, "cubin", b"kernels");
        assert_eq!(cache.get(1, "cubin"), None);
        let none = Cache { folder: None };
        none.put(1, "cubin", b"kernels");
        assert_eq!(none.get(1, "cubin"), None);
    }

    #[test]
    fn the_hash_is_fnv_and_sees_boundaries() {
        // The empty part is its length alone: eight zero bytes.
        let plain = |bytes: &[u8]| {
            bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
                (hash ^ u128::from(*byte)).wrapping_mul((1 << 88) + 0x13B)
            })
        };
        assert_eq!(content_hash([b"".as_slice()]), plain(&[0; 8]));
        // Published test vector of FNV-1a: the letter a.
        assert_eq!(plain(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_ne!(content_hash([b"ab".as_slice(), b"c"]), content_hash([b"a".as_slice(), b"bc"]));
    }
}

//! Where the golden data lie, and how a test reads them so that nothing in them is passed over.

#[allow(dead_code, reason = "each test uses its part")]
pub mod cases;

use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder of this repository.
fn repository_golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// The folder with `golden/` and `vectors/`: `RAGEN_GOLDEN`, else the repository's tests/golden.
fn root() -> PathBuf {
    std::env::var_os("RAGEN_GOLDEN").map_or_else(repository_golden, PathBuf::from)
}

/// A path below the folder `golden/`.
pub fn golden(path: &str) -> PathBuf {
    root().join("golden").join(path)
}

/// Names of what lies in a folder below `golden/`, sorted.
pub fn names_in(path: &str) -> Vec<String> {
    let dir = golden(path);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What later issues owe: the paths in tests/golden/PENDING (`file[#operation] issue-title` a line).
pub fn pending() -> Vec<String> {
    let text = std::fs::read_to_string(repository_golden().join("PENDING")).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(String::from).collect()
}

/// Reads JSON into a type that names every key.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The F32 tensors of a file; each is taken once, and [`Tensors::finish`] fails if one is left.
pub struct Tensors {
    path: PathBuf,
    tensors: BTreeMap<String, Vec<f64>>,
}

impl Tensors {
    /// Reads a safetensors file.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let numbers = |data: &[u8]| {
            data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
        };
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(name, tensor)| {
                assert_eq!(tensor.dtype(), Dtype::F32, "{} {name}", path.display());
                (name, numbers(tensor.data()))
            })
            .collect();
        Tensors { path: path.to_path_buf(), tensors }
    }

    /// The elements of the tensor called `name`, if it is there.
    pub fn find(&mut self, name: &str) -> Option<Vec<f64>> {
        self.tensors.remove(name)
    }

    /// The elements of the tensor called `name`.
    pub fn take(&mut self, name: &str) -> Vec<f64> {
        self.find(name).unwrap_or_else(|| panic!("{} has no {name}", self.path.display()))
    }

    /// Fails if a tensor was not looked at.
    pub fn finish(self) {
        let left: Vec<_> = self.tensors.keys().collect();
        assert!(left.is_empty(), "{}: nothing tests {left:?}", self.path.display());
    }
}

/// Fails unless |got − want| ≤ allowed.
#[track_caller]
pub fn assert_close(what: &str, got: f64, want: f64, allowed: f64) {
    assert!((got - want).abs() <= allowed, "{what}: {got}, not {want}; off by {:e} of {allowed:e}", (got - want).abs());
}

/// [`assert_close`] element by element.
#[track_caller]
pub fn assert_all_close(what: &str, got: &[f64], want: &[f64], allowed: f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        assert_close(&format!("{what}[{i}]"), got, want, allowed);
    }
}

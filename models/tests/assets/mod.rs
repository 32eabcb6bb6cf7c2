//! Large files that are fetched once and not kept here.

use std::path::{Path, PathBuf};

/// SmolLM2-135M-Instruct, quantised.
#[allow(dead_code)] // Not every test needs it.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// An asset below `RAGEN_ASSETS`, else below `<workspace>/assets`; `None` if it is not there, which is said.
///
/// **Panics** if it is not there and `RAGEN_REQUIRE_ASSETS=1`.
pub fn find(name: &str) -> Option<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = if package.join("models").is_dir() { package.to_path_buf() } else { package.join("..") };
    let folder = std::env::var_os("RAGEN_ASSETS").map_or_else(|| workspace.join("assets"), PathBuf::from);
    let path = folder.join(name);
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var_os("RAGEN_REQUIRE_ASSETS").is_none_or(|v| v != "1"), "{} is required", path.display());
    println!("skipped: there is no {}; scripts/fetch-assets.sh fetches it", path.display());
    None
}

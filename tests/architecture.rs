//! ARCHITECTURE.md's table of floors against the code's `crate::` paths.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// (crate folder, module) to its floor and its place on the floor, as the document says.
fn floors() -> BTreeMap<(String, String), (usize, usize)> {
    let text = fs::read_to_string("ARCHITECTURE.md").unwrap();
    let mut floors = BTreeMap::new();
    for line in text.lines().filter(|l| l.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (Ok(floor), [_, package, modules]) = (cells[0].parse::<usize>(), cells.as_slice()) else { continue };
        for (place, module) in modules.split('·').map(str::trim).enumerate() {
            let old = floors.insert((package.to_string(), module.to_string()), (floor, place));
            assert!(old.is_none(), "{module} stands on two floors");
        }
    }
    floors
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Modules named by `crate::module` paths of a file, `crate::{a, b::c}` included.
fn used(text: &str) -> Vec<String> {
    let name = |s: &str| s.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    let mut modules = Vec::new();
    for rest in text.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => modules.extend(list.split('}').next().unwrap().split(',').map(|m| name(m.trim()))),
            None => modules.push(name(rest)),
        }
    }
    modules.retain(|m| !m.is_empty());
    modules
}

#[test]
fn every_module_uses_only_what_stands_below_it() {
    let floors = floors();
    let mut seen = 0;
    for (package, root) in [("cuda", "cuda/src"), ("models", "models/src"), ("src", "src")] {
        for file in sources(Path::new(root)) {
            let inside = file.strip_prefix(root).unwrap();
            let module = inside.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
            if ["lib", "main", "commands", "progress"].contains(&module.as_str()) {
                continue;
            }
            let own = floors.get(&(package.into(), module.clone()));
            let own = own.unwrap_or_else(|| panic!("ARCHITECTURE.md has no floor for {package}'s {module}"));
            let text = fs::read_to_string(&file).unwrap();
            // What a comment mentions is not used.
            let code: String =
                text.lines().filter(|l| !l.trim_start().starts_with("//")).map(|l| format!("{l}\n")).collect();
            for other in used(&code) {
                let Some(below) = floors.get(&(package.to_string(), other.clone())) else { continue };
                seen += usize::from(other != module);
                assert!(other == module || below < own, "{} ({own:?}) uses {other} ({below:?})", file.display());
            }
        }
    }
    assert!(seen > 60, "only {seen} uses were found: the search is broken");
}

#[test]
fn crates_depend_downwards_only() {
    let depends = |manifest: &str, on: &str| fs::read_to_string(manifest).unwrap().contains(on);
    for (manifest, forbidden) in [
        ("cuda/Cargo.toml", ["ragen-models", "ragen-envs"]),
        ("envs/Cargo.toml", ["ragen-models", "ragen-cuda"]),
        ("models/Cargo.toml", ["ragen-envs", "name = \"ragen\""]),
    ] {
        for name in forbidden {
            assert!(!depends(manifest, name), "{manifest} must not depend on {name}");
        }
    }
    assert!(depends("models/Cargo.toml", "ragen-cuda"));
}

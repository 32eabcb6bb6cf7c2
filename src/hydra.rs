//! A configuration as Hydra composes it: YAML files with lists of defaults, changes on the command line, interpolation.
//!
//! It knows how values come together and where each was written; it has never heard of what a key means.

use std::fs;
use std::path::{Path, PathBuf};
use yaml::{Node, Origin, Value};

pub mod grammar;
pub mod yaml;

/// References inside one another.
const MOST_REFERENCES: usize = 32;

/// Why files do not come together.
#[derive(Debug, thiserror::Error)]
pub enum HydraError {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(String, std::io::Error),
    /// A place in a file is wrong.
    #[error("{0}: {1}")]
    Place(Origin, String),
}

/// Files put together, later ones over earlier ones.
#[derive(Debug)]
pub struct Composed {
    /// The whole, a map.
    pub root: Node,
    /// The files in the order in which they were laid over one another.
    pub files: Vec<String>,
    /// What somebody should know.
    pub notices: Vec<String>,
}

/// Composes files in order. Each brings the files of its `defaults` list first, or where the list says `_self_` after it; they
/// are looked for in the folder of the first file. A file counts once, where it is first named. Those of `built_in` are not
/// read: what they hold is known otherwise. `prepare` sees each file's tree before it is laid over the others.
///
/// **Errors** [`HydraError`] with the place.
pub fn compose(
    paths: &[PathBuf],
    built_in: &[&str],
    prepare: &mut dyn FnMut(&mut Node),
) -> Result<Composed, HydraError> {
    let folder = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("")).to_path_buf();
    let root = Node { value: Value::Map(Vec::new()), origin: Origin::of_override("") };
    let composed = Composed { root, files: Vec::new(), notices: Vec::new() };
    let mut composer = Composer { folder, built_in, prepare, seen: Vec::new(), composed };
    paths.iter().try_for_each(|path| composer.add(path))?;
    Ok(composer.composed)
}

struct Composer<'a> {
    folder: PathBuf,
    built_in: &'a [&'a str],
    prepare: &'a mut dyn FnMut(&mut Node),
    seen: Vec<PathBuf>,
    composed: Composed,
}

impl Composer<'_> {
    fn add(&mut self, path: &Path) -> Result<(), HydraError> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|e| HydraError::Read(name.clone(), e))?;
        let identity = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if self.seen.contains(&identity) {
            return Ok(());
        }
        self.seen.push(identity);
        let mut own = yaml::parse(&name, &text).map_err(|e| HydraError::Place(e.origin, e.text))?;
        let defaults = own.remove("defaults");
        (self.prepare)(&mut own);
        let mut own = Some(own);
        for entry in entries(defaults)? {
            match entry {
                Entry::Own => self.lay(&name, own.take()),
                Entry::File(wanted, origin) => self.add_default(&wanted, origin)?,
            }
        }
        self.lay(&name, own.take());
        Ok(())
    }

    fn lay(&mut self, name: &str, own: Option<Node>) {
        if let Some(own) = own {
            self.composed.root.merge(own);
            self.composed.files.push(name.into());
        }
    }

    fn add_default(&mut self, wanted: &str, origin: Origin) -> Result<(), HydraError> {
        let name = wanted.trim_start_matches('/').trim_end_matches(".yaml");
        let path = self.folder.join(format!("{name}.yaml"));
        if self.built_in.contains(&name) {
            if path.exists() {
                let path = path.display();
                self.composed.notices.push(format!("{path} is not read: what {name} of veRL sets is built in"));
            }
            return Ok(());
        }
        if !path.exists() {
            let path = path.display();
            let text = format!("defaults name {wanted:?}, but there is no {path}: put it there, or take the entry out");
            return Err(HydraError::Place(origin, text));
        }
        self.add(&path)
    }
}

/// One line of a list of defaults.
enum Entry {
    /// The file's own keys.
    Own,
    File(String, Origin),
}

fn entries(defaults: Option<Node>) -> Result<Vec<Entry>, HydraError> {
    let list = match defaults {
        None | Some(Node { value: Value::Null, .. }) => return Ok(Vec::new()),
        Some(Node { value: Value::List(list), .. }) => list,
        Some(node) => return Err(HydraError::Place(node.origin, "defaults is not a list of files".into())),
    };
    let read = |node: Node| match node.value {
        Value::Text(name) if name == "_self_" => Ok(Entry::Own),
        Value::Text(name) if !name.contains(['@', ' ']) => Ok(Entry::File(name, node.origin)),
        value => Err(HydraError::Place(
            node.origin,
            format!(
                "defaults have {value}; only names of files are read here, no groups or packages: write out its keys"
            ),
        )),
    };
    list.into_iter().map(read).collect()
}

/// Puts a change into effect.
///
/// **Errors** What stands in the way.
pub fn apply(root: &mut Node, path: &str, value: Option<Node>) -> Result<(), String> {
    let Some(value) = value else {
        root.remove(path);
        return Ok(());
    };
    let mut node = root;
    for name in path.split('.') {
        if matches!(node.value, Value::Null) {
            node.value = Value::Map(Vec::new());
        }
        if !matches!(node.value, Value::Map(_)) {
            return Err(format!("sets a key below {}, which is a value ({})", node.value, node.origin));
        }
        let Value::Map(map) = &mut node.value else { return Ok(()) };
        let at = map.iter().position(|(key, _)| key == name).unwrap_or_else(|| {
            map.push((name.into(), Node { value: Value::Null, origin: value.origin.clone() }));
            map.len() - 1
        });
        node = &mut map[at].1;
    }
    node.merge(value);
    Ok(())
}

/// A value with its references (`${a.b}`) written out; `find` knows what they name.
///
/// **Errors** Which reference cannot be followed, and why.
pub fn resolve(node: &Node, find: &dyn Fn(&str) -> Option<Node>) -> Result<Node, String> {
    follow(node, find, 0)
}

fn follow(node: &Node, find: &dyn Fn(&str) -> Option<Node>, depth: usize) -> Result<Node, String> {
    let value = match &node.value {
        Value::List(list) => Value::List(list.iter().map(|node| follow(node, find, depth)).collect::<Result<_, _>>()?),
        Value::Map(map) => {
            let entry = |(name, node): &(String, Node)| Ok((name.clone(), follow(node, find, depth)?));
            Value::Map(map.iter().map(entry).collect::<Result<_, String>>()?)
        }
        Value::Text(text) if text.contains("${") => follow_text(text, find, depth)?,
        value => value.clone(),
    };
    Ok(Node { value, origin: node.origin.clone() })
}

fn follow_text(text: &str, find: &dyn Fn(&str) -> Option<Node>, depth: usize) -> Result<Value, String> {
    if depth >= MOST_REFERENCES {
        return Err(format!("refers to itself, or through more than {MOST_REFERENCES} others ({text})"));
    }
    let (mut whole, mut rest) = (String::new(), text);
    while let Some(start) = rest.find("${") {
        let end = rest[start..].find('}').ok_or_else(|| format!("has a reference without end in {text:?}"))? + start;
        let name = rest[start + 2..end].trim();
        if let Some((resolver, _)) = name.split_once(':') {
            return Err(format!(
                "calls the resolver {resolver} in {text:?}, which is not read here; write the value itself"
            ));
        }
        if name.starts_with('.') {
            return Err(format!(
                "has a reference relative to its place in {text:?}; write it from the top, as in ${{a.b}}"
            ));
        }
        let found = find(name).ok_or_else(|| format!("refers to {name}, which is not there"))?;
        let found = follow(&found, find, depth + 1)?.value;
        if start == 0 && end + 1 == text.len() {
            return Ok(found);
        }
        whole.push_str(&rest[..start]);
        match found {
            Value::Text(found) => whole.push_str(&found),
            other => whole.push_str(&other.to_string()),
        }
        rest = &rest[end + 1..];
    }
    Ok(Value::Text(whole + rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Composes files of a folder; gives the tree and the files' names in order.
    fn composed(files: &[(&str, &str)], wanted: &[&str]) -> Result<(String, Vec<String>, Vec<String>), String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let paths: Vec<PathBuf> = wanted.iter().map(|name| folder.path().join(name)).collect();
        let prefix = format!("{}/", folder.path().display());
        let short = |text: String| text.replace(&prefix, "");
        let composed = compose(&paths, &["ppo_trainer"], &mut |_| ()).map_err(|e| short(e.to_string()))?;
        let all = |texts: Vec<String>| texts.into_iter().map(short).collect();
        Ok((composed.root.value.to_string(), all(composed.files), all(composed.notices)))
    }

    #[test]
    fn later_files_win_and_a_file_counts_once() {
        let base = ("base.yaml", "defaults:\n  - ppo_trainer\n  - envs\na: 1\nb: 1\nc: 1");
        let files =
            [base, ("envs.yaml", "a: 0\ne: 0"), ("run.yaml", "defaults: [base]\nb: 2"), ("mine.yaml", "c: 3\nb: 3")];
        let (tree, order, notices) = composed(&files, &["base.yaml", "envs.yaml", "mine.yaml", "run.yaml"]).unwrap();
        assert_eq!((tree.as_str(), notices.len()), ("{a: 1, e: 0, b: 2, c: 3}", 0));
        assert_eq!(order, ["envs.yaml", "base.yaml", "mine.yaml", "run.yaml"]);
        // The last alone brings the others.
        assert_eq!(composed(&files, &["run.yaml"]).unwrap().0, "{a: 1, e: 0, b: 2, c: 1}");
    }

    #[test]
    fn self_says_where_a_file_stands_among_its_defaults() {
        let files = [("a.yaml", "defaults:\n  - _self_\n  - b\nx: 1\ny: 1"), ("b.yaml", "defaults: [a]\nx: 2")];
        assert_eq!(composed(&files, &["a.yaml"]).unwrap().0, "{x: 2, y: 1}");
        assert_eq!(composed(&files, &["b.yaml"]).unwrap().0, "{x: 2, y: 1}");
    }

    #[test]
    fn defaults_that_cannot_be_followed_are_named_with_their_place() {
        let said = |text: &str| composed(&[("a.yaml", text)], &["a.yaml"]).unwrap_err();
        let absent = "a.yaml:3: defaults name \"base\", but there is no base.yaml: put it there, or take the entry out";
        assert_eq!(said("defaults:\n  - ppo_trainer\n  - base"), absent);
        assert!(said("defaults:\n  - model: big").starts_with("a.yaml:2: defaults have {model: \"big\"}; only names"));
        assert!(said("defaults: base").contains("is not a list"));
        let files = [("a.yaml", "defaults: [ppo_trainer]"), ("ppo_trainer.yaml", "a: 1")];
        let notices = composed(&files, &["a.yaml"]).unwrap().2;
        assert_eq!(notices, ["ppo_trainer.yaml is not read: what ppo_trainer of veRL sets is built in"]);
        assert!(composed(&[], &["a.yaml"]).unwrap_err().starts_with("cannot read a.yaml"));
    }

    #[test]
    fn changes_set_add_and_take_away() {
        let mut root = yaml::parse("a", "a: {b: 1, c: {d: 2}}\ne: null").unwrap();
        for text in ["a.b=5", "+a.x.y=[1]", "++a.c.d=3", "~a.b", "e.f=1", "a.c={g:4}", "~a.no"] {
            let change = grammar::parse(text).unwrap();
            apply(&mut root, &change.path, change.value).unwrap();
        }
        assert_eq!(root.value.to_string(), "{a: {c: {d: 3, g: 4}, x: {y: [1]}}, e: {f: 1}}");
        let change = grammar::parse("a.c.d.z=1").unwrap();
        assert_eq!(
            apply(&mut root, &change.path, change.value).unwrap_err(),
            "sets a key below 3, which is a value (++a.c.d=3)"
        );
    }

    #[test]
    fn references_are_followed() {
        let root =
            yaml::parse("a", "a: ${b.c}\nb: {c: 1e-6, d: x}\ne: ${b.d}-${b.c}/z\nf: [1, '${a}']\ng: ${b}").unwrap();
        let get =
            |path: &str| resolve(root.get(path).unwrap(), &|path| root.get(path).cloned()).map(|n| n.value.to_string());
        assert_eq!(get("a").unwrap(), "1e-6");
        assert_eq!(get("e").unwrap(), "\"x-1e-6/z\"");
        assert_eq!(get("f").unwrap(), "[1, 1e-6]");
        assert_eq!(get("g").unwrap(), "{c: 1e-6, d: \"x\"}");
        let wrong = |text: &str| {
            let root = yaml::parse("a", text).unwrap();
            resolve(root.get("a").unwrap(), &|path| root.get(path).cloned()).unwrap_err()
        };
        assert_eq!(wrong("a: ${no.where}"), "refers to no.where, which is not there");
        assert!(wrong("a: x-${oc.env:MODEL}").starts_with("calls the resolver oc.env in \"x-${oc.env:MODEL}\""));
        assert!(wrong("a: ${.b}").contains("relative to its place"));
        assert!(wrong("a: ${b}\nb: ${a}").starts_with("refers to itself"));
        assert!(wrong("a: x${b").contains("without end"));
    }
}

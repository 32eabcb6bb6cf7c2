//! YAML into a tree whose every value knows where it was written.
//!
//! Plain scalars are read as OmegaConf reads them: `yes`, `on` and `True` are truths, `1e-6` is a number. Anchors are
//! followed; tags, merge keys and several documents in a file are refused.

use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Values that one file may come to, anchors written out.
const MOST_NODES: usize = 100_000;
/// Maps and lists inside one another.
const MOST_DEPTH: usize = 64;

/// Where something was written: a line of a file, or an override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file's name, or the text of the override.
    pub source: Arc<str>,
    /// The line, from 1; 0 for an override.
    pub line: usize,
}

impl Origin {
    /// An override on the command line.
    pub fn of_override(text: &str) -> Self {
        Origin { source: text.into(), line: 0 }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.source),
            line => write!(f, "{}:{line}", self.source),
        }
    }
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it is.
    pub value: Value,
    /// Where it was written.
    pub origin: Origin,
}

/// What a value may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// True or false.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// Any other number.
    Number(f64),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<Node>),
    /// Values by name, in the order written.
    Map(Vec<(String, Node)>),
}

impl fmt::Display for Value {
    /// As it would be written on a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |parts: Vec<String>| parts.join(", ");
        match self {
            Value::Null => write!(f, "null"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Whole(n) => write!(f, "{n}"),
            Value::Number(x) => write!(f, "{x:?}"),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::List(list) => write!(f, "[{}]", join(list.iter().map(|node| node.value.to_string()).collect())),
            Value::Map(map) => {
                write!(f, "{{{}}}", join(map.iter().map(|(name, node)| format!("{name}: {}", node.value)).collect()))
            }
        }
    }
}

impl Node {
    /// The value at a dotted path below a map.
    pub fn get(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, name| match &node.value {
            Value::Map(map) => map.iter().find(|(key, _)| key == name).map(|(_, node)| node),
            _ => None,
        })
    }

    /// Lays another value over this one: maps merge, anything else replaces.
    pub fn merge(&mut self, over: Node) {
        match (&mut self.value, over) {
            (Value::Map(under), Node { value: Value::Map(over), .. }) => {
                for (name, node) in over {
                    match under.iter_mut().find(|(key, _)| *key == name) {
                        Some((_, old)) => old.merge(node),
                        None => under.push((name, node)),
                    }
                }
            }
            (_, over) => *self = over,
        }
    }

    /// Takes the value at a dotted path away.
    pub fn remove(&mut self, path: &str) -> Option<Node> {
        let Value::Map(map) = &mut self.value else { return None };
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let at = map.iter().position(|(key, _)| key == name)?;
        match rest {
            None => Some(map.remove(at).1),
            Some(rest) => map[at].1.remove(rest),
        }
    }

    /// Values in it, itself and those inside counted.
    fn size(&self) -> usize {
        let (mut open, mut n) = (vec![self], 0);
        while let Some(node) = open.pop() {
            n += 1;
            match &node.value {
                Value::List(list) => open.extend(list),
                Value::Map(map) => open.extend(map.iter().map(|(_, node)| node)),
                _ => {}
            }
        }
        n
    }

    /// Every value that is no map (or an empty one) with its dotted path.
    pub fn leaves(&self) -> Vec<(String, &Node)> {
        let mut found = Vec::new();
        let mut open = vec![(String::new(), self)];
        while let Some((path, node)) = open.pop() {
            match &node.value {
                Value::Map(map) if !map.is_empty() => {
                    let below = |name: &str| if path.is_empty() { name.into() } else { format!("{path}.{name}") };
                    open.extend(map.iter().rev().map(|(name, node)| (below(name), node)));
                }
                _ if path.is_empty() => {}
                _ => found.push((path, node)),
            }
        }
        found
    }
}

/// Why a text is no configuration: the place, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// File and line.
    pub origin: Origin,
    /// What is wrong.
    pub text: String,
}

/// Reads one file's text; an empty one is an empty map.
///
/// **Errors** [`YamlError`] for what is not YAML and for the parts of YAML that are not read.
pub fn parse(source: &str, text: &str) -> Result<Node, YamlError> {
    let mut tree = Tree { source: source.into(), open: Vec::new(), anchors: BTreeMap::new(), nodes: 0, root: None };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| YamlError {
            origin: tree.at(e.marker().line()),
            text: format!("is not YAML: {}", e.info()),
        })?;
        let line = span.start.line();
        tree.take(event, line).map_err(|text| YamlError { origin: tree.at(line), text })?;
    }
    let origin = tree.at(1);
    match tree.root {
        None | Some(Node { value: Value::Null, .. }) => Ok(Node { value: Value::Map(Vec::new()), origin }),
        Some(root @ Node { value: Value::Map(_), .. }) => Ok(root),
        Some(root) => Err(YamlError { origin: root.origin, text: "is not a map of keys to values".into() }),
    }
}

/// A map or list that is not at its end yet.
struct Open {
    node: Node,
    anchor: usize,
    /// The key whose value comes next.
    key: Option<String>,
}

struct Tree {
    source: Arc<str>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

impl Tree {
    fn at(&self, line: usize) -> Origin {
        Origin { source: self.source.clone(), line }
    }

    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), String> {
        match event {
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, Some(tag))
            | Event::MappingStart(_, Some(tag)) => {
                return Err(format!("has the tag {}{}; tags are not read", tag.handle, tag.suffix));
            }
            Event::Scalar(text, style, anchor, None) => {
                if let Some(Open { key: key @ None, node: Node { value: Value::Map(map), .. }, .. }) =
                    self.open.last_mut()
                {
                    if text == "<<" {
                        return Err("has a merge key (<<); write the keys out".into());
                    }
                    if map.iter().any(|(name, _)| *name == text) {
                        return Err(format!("has the key {text} twice"));
                    }
                    *key = Some(text.into_owned());
                    return Ok(());
                }
                let value = if style == ScalarStyle::Plain { plain(&text) } else { Value::Text(text.into_owned()) };
                let node = Node { value, origin: self.at(line) };
                self.close(node, anchor)?;
            }
            Event::Alias(id) => {
                let node = self.anchors.get(&id).cloned().ok_or("names an anchor that is not closed yet")?;
                self.nodes += node.size();
                self.close(node, 0)?;
            }
            Event::SequenceStart(anchor, None) => self.start(Value::List(Vec::new()), anchor, line)?,
            Event::MappingStart(anchor, None) => self.start(Value::Map(Vec::new()), anchor, line)?,
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(Open { node, anchor, .. }) = self.open.pop() {
                    self.close(node, anchor)?;
                }
            }
            Event::DocumentStart(_) if self.root.is_some() => return Err("begins a second document".into()),
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, value: Value, anchor: usize, line: usize) -> Result<(), String> {
        if let Some(Open { key: None, node: Node { value: Value::Map(_), .. }, .. }) = self.open.last() {
            return Err("has a key that is no text".into());
        }
        if self.open.len() >= MOST_DEPTH {
            return Err(format!("is nested more than {MOST_DEPTH} deep"));
        }
        let node = Node { value, origin: self.at(line) };
        self.open.push(Open { node, anchor, key: None });
        Ok(())
    }

    /// Puts a whole value where it belongs.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            return Err(format!("comes to more than {MOST_NODES} values"));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open { node: Node { value: Value::List(list), .. }, .. }) => list.push(node),
            Some(Open { node: Node { value: Value::Map(map), .. }, key, .. }) => {
                map.push((key.take().ok_or("has a key that is no text")?, node));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// What a scalar without quotes means.
fn plain(text: &str) -> Value {
    let spelled = |word: &str| {
        let title = word[..1].to_uppercase() + &word[1..];
        text == word || text == word.to_uppercase() || text == title
    };
    if text.is_empty() || text == "~" || spelled("null") {
        return Value::Null;
    }
    if ["yes", "on", "true"].into_iter().any(spelled) {
        return Value::Flag(true);
    }
    if ["no", "off", "false"].into_iter().any(spelled) {
        return Value::Flag(false);
    }
    let bare = text.trim_start_matches(['+', '-']);
    match bare.strip_prefix('.') {
        Some("inf" | "Inf" | "INF") => {
            Value::Number(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY })
        }
        Some("nan" | "NaN" | "NAN") => Value::Number(f64::NAN),
        _ => number(text).unwrap_or_else(|| Value::Text(text.into())),
    }
}

/// A number as YAML and Hydra write it: `10_000`, `-0.1`, `1e-6`.
pub fn number(text: &str) -> Option<Value> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let starts = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '_' | 'e' | 'E' | '+' | '-');
    if !starts || !digits.chars().all(is_number) || !digits.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    // Python reads a leading zero as octal; nobody means that here.
    if digits.len() > 1 && digits.starts_with('0') && digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let text = text.replace('_', "");
    text.parse().map(Value::Whole).or_else(|_| text.parse().map(Value::Number)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        parse("a.yaml", text).unwrap().value.to_string()
    }

    #[test]
    fn scalars_are_those_of_omegaconf() {
        let text = "[True, yes, OFF, null, ~, '1', \"off\", 7, -0.1, 1e-6, 1_000, 0123, v1, top_p, .5, 1.]";
        let expected =
            r#"[true, true, false, null, null, "1", "off", 7, -0.1, 1e-6, 1000, "0123", "v1", "top_p", 0.5, 1.0]"#;
        assert_eq!(shown(&format!("a: {text}")), format!("{{a: {expected}}}"));
        assert_eq!(shown("a: |\n  two\n  lines\nb:\n"), "{a: \"two\\nlines\\n\", b: null}");
        assert_eq!(shown("a: {0: W, 1: .}"), "{a: {0: \"W\", 1: \".\"}}");
        assert_eq!(shown("a: &x [1, 2]\nb: *x"), "{a: [1, 2], b: [1, 2]}");
        assert_eq!(shown(""), "{}");
    }

    #[test]
    fn a_value_knows_its_line() {
        let root = parse("dir/a.yaml", "a:\n  b: 1\n\n  c: [x,\n    y]\n").unwrap();
        assert_eq!(root.get("a.b").unwrap().origin.to_string(), "dir/a.yaml:2");
        let Value::List(list) = &root.get("a.c").unwrap().value else { panic!() };
        assert_eq!(list[1].origin.to_string(), "dir/a.yaml:5");
        let leaves: Vec<String> = root.leaves().into_iter().map(|(path, _)| path).collect();
        assert_eq!(leaves, ["a.b", "a.c"]);
    }

    #[test]
    fn what_is_not_read_is_named_with_its_line() {
        let said = |text: &str| parse("a.yaml", text).map_err(|e| format!("{}: {}", e.origin, e.text)).unwrap_err();
        assert_eq!(said("a: 1\nb: 2\na: 3"), "a.yaml:3: has the key a twice");
        assert_eq!(
            said("a: 1\nb: !!python/name:x 2"),
            "a.yaml:2: has the tag tag:yaml.org,2002:python/name:x; tags are not read"
        );
        assert_eq!(said("a: &x {k: 1}\nb:\n  <<: *x"), "a.yaml:3: has a merge key (<<); write the keys out");
        assert_eq!(said("- 1"), "a.yaml:1: is not a map of keys to values");
        assert_eq!(said("a: 1\n---\nb: 1"), "a.yaml:2: begins a second document");
        assert_eq!(said("[a]: 1"), "a.yaml:1: has a key that is no text");
        assert!(said("a: 1\nb: [1, 2").starts_with("a.yaml:"), "{}", said("a: 1\nb: [1, 2"));
        assert!(said(&format!("a: {}1{}", "[".repeat(80), "]".repeat(80))).contains("64 deep"));
        // Ten anchors that each name the one before ten times.
        let mut bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_string();
        for i in 1..10 {
            let before = format!("*a{},", i - 1).repeat(10);
            bomb.push_str(&format!("a{i}: &a{i} [{before}]\n"));
        }
        assert!(said(&bomb).contains("more than 100000 values"), "{}", said(&bomb));
        // A list that goes one deeper a line.
        let mut shaft = "a0: &a0 [1]\n".to_string();
        (1..5000).for_each(|i| shaft.push_str(&format!("a{i}: &a{i} [*a{}]\n", i - 1)));
        assert!(said(&shaft).contains("more than 100000 values"), "{}", said(&shaft));
    }

    #[test]
    fn maps_merge_and_lists_replace() {
        let mut under = parse("a", "a: {b: 1, c: [1, 2]}\nd: {e: 1}").unwrap();
        under.merge(parse("b", "a: {c: [3], f: 2}\nd: null").unwrap());
        assert_eq!(under.value.to_string(), "{a: {b: 1, c: [3], f: 2}, d: null}");
        assert_eq!(under.remove("a.c").unwrap().origin.to_string(), "b:1");
        assert!(under.remove("a.c").is_none() && under.get("a.c").is_none());
    }
}

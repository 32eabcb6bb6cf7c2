//! Hydra's way of writing a change on the command line: `a.b=c`, `+a.b=c`, `++a.b=c`, `~a.b`.

use super::yaml::{Node, Origin, Value, number};

/// Lists and maps inside one another.
const MOST_DEPTH: usize = 64;

/// A change to a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Dotted path of the key.
    pub path: String,
    /// The new value; `None` takes the key away.
    pub value: Option<Node>,
    /// It began with `+`, `++` or `~`.
    pub is_marked: bool,
    /// As it was written.
    pub text: String,
}

/// Reads one change.
///
/// **Errors** What is wrong with it, and what would be right.
pub fn parse(text: &str) -> Result<Override, String> {
    let origin = Origin::of_override(text);
    let (mark, rest) =
        ["++", "+", "~"].iter().find_map(|mark| Some((*mark, text.strip_prefix(mark)?))).unwrap_or(("", text));
    let (path, value) = rest.split_once('=').map_or((rest, None), |(path, value)| (path, Some(value)));
    let is_name = |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || "[]{}'\"".contains(c));
    if path.contains('[') || path.split('.').next_back().is_some_and(|part| part.parse::<usize>().is_ok()) {
        return Err("sets one element of a list; give the whole list, as in a.b=[1,2]".into());
    }
    if path.contains('@') {
        return Err("names a package of Hydra; give each key that it stands for".into());
    }
    if !path.split('.').all(is_name) {
        return Err("is not KEY=VALUE with a dotted key, such as trainer.total_training_steps=100".into());
    }
    let value = match (mark, value) {
        ("~", _) => None,
        (_, None) => return Err("has no value; KEY=VALUE sets one, ~KEY takes a key away".into()),
        (_, Some(value)) => Some(Reader { rest: value, origin: &origin }.whole()?),
    };
    Ok(Override { path: path.into(), value, is_marked: !mark.is_empty(), text: text.into() })
}

/// Reads a value from its text.
struct Reader<'a> {
    rest: &'a str,
    origin: &'a Origin,
}

impl<'a> Reader<'a> {
    fn node(&self, value: Value) -> Node {
        Node { value, origin: self.origin.clone() }
    }

    fn whole(mut self) -> Result<Node, String> {
        if self.rest.trim().is_empty() {
            return Ok(self.node(Value::Text(String::new())));
        }
        let value = self.value(0)?;
        match self.skip_blanks().chars().next() {
            None => Ok(value),
            Some(',') => {
                Err("lists several values, which is a sweep of Hydra; give one, or a list as in a.b=[x,y]".into())
            }
            Some(_) => Err(format!("has {:?} after its value; quote a text that holds it", self.rest)),
        }
    }

    fn skip_blanks(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        self.rest
    }

    /// Goes past a character if it comes next.
    fn past(&mut self, c: char) -> bool {
        let rest = self.skip_blanks().strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Result<Node, String> {
        if depth > MOST_DEPTH {
            return Err(format!("is nested more than {MOST_DEPTH} deep"));
        }
        let value = if self.past('[') {
            Value::List(self.until(']', |reader| reader.value(depth + 1))?)
        } else if self.past('{') {
            Value::Map(self.until('}', |reader| reader.entry(depth + 1))?)
        } else if self.rest.starts_with(['\'', '"']) {
            Value::Text(self.quoted()?)
        } else {
            let text = self.bare(&[',', ']', '}'])?;
            primitive(&text)
        };
        Ok(self.node(value))
    }

    fn entry(&mut self, depth: usize) -> Result<(String, Node), String> {
        self.skip_blanks();
        let name = if self.rest.starts_with(['\'', '"']) { self.quoted()? } else { self.bare(&[':', ',', '}'])? };
        if !self.past(':') {
            return Err(format!("has the key {name} without a value, expected {name}:VALUE"));
        }
        Ok((name, self.value(depth)?))
    }

    /// Reads parts with commas between them up to an end.
    fn until<T>(&mut self, end: char, mut part: impl FnMut(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let mut parts = Vec::new();
        if self.past(end) {
            return Ok(parts);
        }
        loop {
            parts.push(part(self)?);
            if self.past(end) {
                return Ok(parts);
            }
            if !self.past(',') {
                return Err(format!("lacks a closing {end:?}"));
            }
        }
    }

    /// A text in quotes; a backslash takes the meaning from a quote or a backslash.
    fn quoted(&mut self) -> Result<String, String> {
        let mut chars = self.rest.char_indices();
        let quote = chars.next().map_or('"', |(_, c)| c);
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' if chars.as_str().starts_with([quote, '\\']) => text.extend(chars.next().map(|(_, c)| c)),
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                c => text.push(c),
            }
        }
        Err(format!("lacks a closing {quote}"))
    }

    /// A text without quotes up to one of `ends`, which inside `${…}` and after a backslash are ordinary.
    fn bare(&mut self, ends: &[char]) -> Result<String, String> {
        let (mut text, mut depth) = (String::new(), 0);
        let mut chars = self.rest.char_indices().peekable();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                '$' if chars.peek().is_some_and(|(_, c)| *c == '{') => {
                    depth += 1;
                    text.push_str("${");
                    chars.next();
                }
                '}' if depth > 0 => {
                    depth -= 1;
                    text.push('}');
                }
                '(' if depth == 0 && text.chars().all(|c| c.is_ascii_lowercase()) && !text.is_empty() => {
                    return Err(format!("calls {text}(…), a function of Hydra; give the value"));
                }
                c if depth == 0 && ends.contains(&c) => {
                    end = at;
                    break;
                }
                c => text.push(c),
            }
        }
        self.rest = &self.rest[end..];
        let text = text.trim().to_string();
        if text.is_empty() { Err("lacks a value".into()) } else { Ok(text) }
    }
}

/// What a text without quotes means.
fn primitive(text: &str) -> Value {
    match text.to_ascii_lowercase().as_str() {
        "null" => Value::Null,
        "true" => Value::Flag(true),
        "false" => Value::Flag(false),
        "inf" | "+inf" => Value::Number(f64::INFINITY),
        "-inf" => Value::Number(f64::NEG_INFINITY),
        "nan" => Value::Number(f64::NAN),
        _ => number(text).unwrap_or_else(|| Value::Text(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_hydra_reads_them() {
        let value = |text: &str| parse(&format!("a.b={text}")).unwrap().value.unwrap().value.to_string();
        for (text, expected) in [
            ("top_p", "\"top_p\""),
            ("0.9", "0.9"),
            ("1e-6", "1e-6"),
            ("True", "true"),
            ("NULL", "null"),
            ("-1", "-1"),
            ("", "\"\""),
            ("'0,1'", "\"0,1\""),
            ("\"it's\"", "\"it's\""),
            (r"'it\'s'", "\"it's\""),
            ("[Bandit,BanditTest]", "[\"Bandit\", \"BanditTest\"]"),
            ("[ 8 , null, 'x,y' ]", "[8, null, \"x,y\"]"),
            ("['console','wandb']", "[\"console\", \"wandb\"]"),
            ("[]", "[]"),
            ("{}", "{}"),
            ("{split:test,n:[1,2]}", "{split: \"test\", n: [1, 2]}"),
            ("{0:W, '1': .}", "{0: \"W\", 1: \".\"}"),
            ("||", "\"||\""),
            ("Qwen/Qwen2.5-3B-Instruct", "\"Qwen/Qwen2.5-3B-Instruct\""),
            ("a b  c", "\"a b  c\""),
            (r"a\,b", "\"a,b\""),
            ("${trainer.x}-y", "\"${trainer.x}-y\""),
            ("[${a.b},1]", "[\"${a.b}\", 1]"),
            ("x=y", "\"x=y\""),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn marks_and_paths() {
        let read = |text: &str| {
            let read = parse(text).unwrap();
            (read.path, read.value.map(|node| node.value), read.is_marked)
        };
        assert_eq!(read("seed.val=5"), ("seed.val".into(), Some(Value::Whole(5)), false));
        assert_eq!(read("+seed.val=5"), ("seed.val".into(), Some(Value::Whole(5)), true));
        assert_eq!(read("++seed.val=5"), ("seed.val".into(), Some(Value::Whole(5)), true));
        assert_eq!(read("~seed.val"), ("seed.val".into(), None, true));
        assert_eq!(read("~seed.val=5"), ("seed.val".into(), None, true));
        assert_eq!(parse("a.b=[1]").unwrap().value.unwrap().origin.to_string(), "a.b=[1]");
    }

    #[test]
    fn what_cannot_be_read_says_what_would_be_right() {
        for (text, expected) in [
            ("a.b", "has no value"),
            ("=1", "is not KEY=VALUE"),
            ("a..b=1", "is not KEY=VALUE"),
            ("a.b=1,2", "sweep"),
            ("a.b=choice(1,2)", "calls choice(…)"),
            ("a.b=[1,2", "lacks a closing ']'"),
            ("a.b=[1,,2]", "lacks a value"),
            ("a.b='x", "lacks a closing '"),
            ("a.b={x}", "the key x without a value"),
            ("a.b='x' y", "after its value"),
            ("a.b[0]=1", "one element of a list"),
            ("a.b.0=1", "one element of a list"),
            ("actor@x=y", "package of Hydra"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(parse(&format!("a={}", "[".repeat(100_000))).unwrap_err().contains("64 deep"));
    }
}

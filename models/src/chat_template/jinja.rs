//! The template engine as model files expect it: what `transformers` gives a template, and nothing else.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::Map;

/// The date that `strftime_now` tells: a rendering must not depend on the day it is made (decision D8). It is the date
/// that Llama 3 templates fall back to.
pub const DATE: &str = "26 Jul 2024";

/// Instructions of one rendering at most, so that a template that never ends is an error. A long conversation needs some
/// tens of thousands.
const FUEL: u64 = 5_000_000;
/// Calls within calls.
const DEPTH: usize = 100;
const NAME: &str = "chat_template";

/// An engine with one template.
pub fn engine(source: &str) -> Result<Environment<'static>, Error> {
    let mut engine = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    engine.set_syntax(syntax);
    engine.set_auto_escape_callback(|_| AutoEscape::None);
    engine.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    engine.set_fuel(Some(FUEL));
    engine.set_recursion_limit(DEPTH);
    engine.add_filter("tojson", to_json);
    engine.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    engine.add_function("strftime_now", strftime);
    engine.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(engine)
}

/// Runs the template.
pub fn render(engine: &Environment<'static>, context: &Map<String, serde_json::Value>) -> Result<String, Error> {
    engine.get_template(NAME)?.render(Value::from(minijinja::value::Serde(context)))
}

/// `{% generation %} … {% endgeneration %}` marks what an assistant writes; it is read as a block that is always shown.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        text.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let inner = tag[2..end].trim_end_matches("%}").trim_matches(['-', '+']).trim();
        let word = match inner {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        text.push_str(&word.map_or_else(|| tag[..end].to_string(), |word| tag[..end].replace(inner, word)));
        rest = &tag[end..];
    }
    text + rest
}

/// As Python's `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    let _: Option<Value> = kwargs.get("separators")?;
    let sort: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let tree = serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let mut text = String::new();
    write_json(&tree, indent, 0, sort == Some(true), &mut text);
    Ok(text)
}

fn write_json(value: &serde_json::Value, indent: Option<usize>, depth: usize, sort: bool, out: &mut String) {
    use serde_json::Value::{Array, Object};
    let items: Vec<(Option<&String>, &serde_json::Value)> = match value {
        Array(list) => list.iter().map(|value| (None, value)).collect(),
        Object(object) => object.iter().map(|(key, value)| (Some(key), value)).collect(),
        other => return out.push_str(&other.to_string()),
    };
    let (open, close) = if matches!(value, Array(_)) { ('[', ']') } else { ('{', '}') };
    let mut items = items;
    if sort {
        items.sort_by_key(|(key, _)| *key);
    }
    let line = |depth: usize| indent.map_or(String::new(), |n| format!("\n{}", " ".repeat(n.min(16) * depth)));
    out.push(open);
    for (i, (key, value)) in items.iter().enumerate() {
        out.push_str(match (i, indent) {
            (0, _) => "",
            (_, None) => ", ",
            (_, Some(_)) => ",",
        });
        out.push_str(&line(depth + 1));
        if let Some(key) = key {
            out.push_str(&format!("{}: ", serde_json::Value::from(key.as_str())));
        }
        write_json(value, indent, depth + 1, sort, out);
    }
    if !items.is_empty() {
        out.push_str(&line(depth));
    }
    out.push(close);
}

/// Writes [`DATE`] in a format of `strftime`.
fn strftime(format: String) -> Result<String, Error> {
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let directive = chars.next().unwrap_or(' ');
        text.push_str(match directive {
            'Y' => "2024",
            'y' => "24",
            'm' => "07",
            'B' => "July",
            'b' => "Jul",
            'd' => "26",
            'e' => "26",
            'j' => "208",
            'A' => "Friday",
            'a' => "Fri",
            'H' | 'M' | 'S' => "00",
            '%' => "%",
            '-' => match chars.next() {
                Some('d') => "26",
                Some('m') => "7",
                _ => return Err(unknown_directive(&format)),
            },
            _ => return Err(unknown_directive(&format)),
        });
    }
    Ok(text)
}

fn unknown_directive(format: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know the format {format:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(source: &str, context: serde_json::Value) -> Result<String, String> {
        let serde_json::Value::Object(context) = context else { panic!("an object") };
        let engine = engine(source).map_err(|e| e.to_string())?;
        render(&engine, &context).map_err(|e| e.to_string())
    }

    #[test]
    fn json_is_python_s() {
        let x = serde_json::json!({"x": {"b": [1, 2.5, "é\n"], "a": null, "e": {}, "t": true}});
        assert_eq!(
            run("{{ x | tojson }}", x.clone()).unwrap(),
            r#"{"b": [1, 2.5, "é\n"], "a": null, "e": {}, "t": true}"#
        );
        assert_eq!(
            run("{{ x | tojson(indent=2) }}", x).unwrap(),
            "{\n  \"b\": [\n    1,\n    2.5,\n    \"é\\n\"\n  ],\n  \"a\": null,\n  \"e\": {},\n  \"t\": true\n}"
        );
    }

    #[test]
    fn the_clock_stands_still() {
        let day =
            run("{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M %A %-m') }}", serde_json::json!({}));
        assert_eq!(day.unwrap(), format!("{DATE}|2024-07-26 00:00 Friday 7"));
        assert!(run("{{ strftime_now('%Q') }}", serde_json::json!({})).unwrap_err().contains("%Q"));
    }

    #[test]
    fn python_s_methods_loop_controls_and_generation_tags() {
        let source = "{% for i in xs[::-1] %}\n{% if i == 2 %}\n{% continue %}\n{% endif %}\n\
                      {{- ' a,b '.strip().split(',')[-1] ~ i -}}\n{% endfor %}\n{%- generation %}g{% endgeneration -%}\n!";
        assert_eq!(run(source, serde_json::json!({"xs": [1, 2, 3]})).unwrap(), "b3b1g!");
    }

    #[test]
    fn a_template_without_end_is_an_error() {
        let source = "{% macro f(n) %}{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{% endmacro %}\
                      {{ f(1) }}";
        assert!(run(source, serde_json::json!({})).unwrap_err().contains("fuel"));
        let source = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}";
        assert!(run(source, serde_json::json!({})).is_err());
    }
}

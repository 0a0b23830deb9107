//! Values as YAML, in the subset that documents of platforms need: block style, and texts in double quotes as in JSON.

use std::fmt::Write;

use serde_json::Value;

/// Returns an object as a document.
pub(crate) fn text(value: &Value) -> String {
    let mut out = String::new();
    block(&mut out, value, 0, "");
    out
}

/// Returns objects as a stream of documents.
pub(crate) fn stream(values: &[Value]) -> String {
    let texts: Vec<String> = values.iter().map(text).collect();
    texts.join("---\n")
}

/// Writes a value at an indentation; the first line begins after `lead`, which has been written.
fn block(out: &mut String, value: &Value, indent: usize, lead: &str) {
    let pad = " ".repeat(indent);
    let mut lead = Some(lead).filter(|lead| !lead.is_empty());
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let pad = if lead.take().is_some() {
                    ""
                } else {
                    pad.as_str()
                };
                // Writing to a text cannot fail.
                let _ = write!(out, "{pad}{}:", name(key));
                nested(out, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(out, "{pad}-");
                match item {
                    Value::Object(map) if !map.is_empty() => {
                        out.push(' ');
                        block(out, item, indent + 2, "-");
                    }
                    _ => nested(out, item, indent),
                }
            }
        }
        scalar => {
            let _ = writeln!(out, "{pad}{scalar}");
        }
    }
}

/// Writes the value of a key or an item after its name.
fn nested(out: &mut String, value: &Value, indent: usize) {
    let is_block = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    match is_block {
        true => {
            out.push('\n');
            block(out, value, indent + 2, "");
        }
        // The texts of JSON are texts of YAML.
        false => {
            let _ = writeln!(out, " {value}");
        }
    }
}

/// Returns a key, in quotes unless it has letters, digits and a few other signs only.
fn name(key: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_.-$".contains(letter);
    let begins = key.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '$');
    let is_word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&key.to_ascii_lowercase().as_str());
    match begins && !is_word && key.chars().all(is_plain) {
        true => key.to_owned(),
        false => Value::from(key).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_nested_by_indentation() {
        let value = json!({
            "a": 1,
            "b": { "c": ["x", { "d": true, "e": [1, 2] }], "yes": {} },
            "f g": "two\nlines: \"#\"",
        });
        let expected = "a: 1\nb:\n  c:\n    - \"x\"\n    - d: true\n      e:\n        - 1\n        - 2\n  \"yes\": {}\n\
                        \"f g\": \"two\\nlines: \\\"#\\\"\"\n";
        assert_eq!(text(&value), expected);
    }
}

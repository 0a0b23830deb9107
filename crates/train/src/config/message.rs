//! Translates serde's error messages into the terms of a run file.

/// A parsed serde message. Its forms are those of `serde::de::Error`'s provided methods.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SerdeMessage<'a> {
    /// An unknown key, and the known keys of the section.
    UnknownKey { key: &'a str, known: Vec<&'a str> },
    /// An unknown word, and the known words.
    UnknownWord { word: &'a str, known: Vec<&'a str> },
    /// A required key that is missing.
    Missing { key: &'a str },
    /// A value of the wrong type or out of range.
    Wrong { found: &'a str, expected: String },
    /// Anything else.
    Other(&'a str),
}

impl<'a> SerdeMessage<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let text = text.trim();
        if let Some((key, rest)) = quoted_after(text, "unknown field `") {
            let known = quoted_words(rest);
            return Self::UnknownKey { key, known };
        }
        if let Some((word, rest)) = quoted_after(text, "unknown variant `") {
            let known = quoted_words(rest);
            return Self::UnknownWord { word, known };
        }
        if let Some((key, _)) = quoted_after(text, "missing field `") {
            return Self::Missing { key };
        }
        let wrong = ["invalid type: ", "invalid value: ", "invalid length "]
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix))
            .and_then(|rest| rest.rsplit_once(", expected "));
        match wrong {
            Some((found, expected)) => Self::Wrong {
                found: found_in_words(found),
                expected: expected_in_words(expected),
            },
            None => Self::Other(text),
        }
    }
}

/// Splits at the last backquote before `, expected` or `, there are no`.
fn quoted_after<'a>(text: &'a str, prefix: &str) -> Option<(&'a str, &'a str)> {
    let rest = text.strip_prefix(prefix)?;
    let end = ["`, expected ", "`, there are no "]
        .iter()
        .find_map(|end| rest.rfind(end))
        .or_else(|| rest.rfind('`'))?;
    Some((&rest[..end], &rest[end + 1..]))
}

fn quoted_words(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn found_in_words(found: &str) -> &str {
    match found {
        "map" => "a table",
        "sequence" => "a list",
        other => other,
    }
}

fn expected_in_words(expected: &str) -> String {
    let whole = |max: &str| format!("a whole number of 0 to {max}");
    match expected {
        "u8" => whole("255"),
        "u16" => whole("65535"),
        "u32" => whole("4294967295"),
        "u64" | "usize" => whole("9223372036854775807"),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list in [ ]".to_owned(),
        "path string" => "a path in quotes".to_owned(),
        "a string" => "text in quotes".to_owned(),
        "variant identifier" => "a word in quotes".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_serde_messages_are_parsed() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read into")]
        struct Some {
            number: u32,
            word: Word,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Word {
            One,
            Two,
        }
        let check = |text: &str, expected: SerdeMessage<'_>| {
            let error = toml::from_str::<Some>(text).unwrap_err();
            assert_eq!(SerdeMessage::parse(error.message()), expected, "{text}");
        };
        let known = vec!["number", "word"];
        check("nu = 1", SerdeMessage::UnknownKey { key: "nu", known });
        let known = vec!["one", "two"];
        let word = "three";
        check("word = 'three'", SerdeMessage::UnknownWord { word, known });
        check("number = 1", SerdeMessage::Missing { key: "word" });
        let wrong = |found, expected: &str| SerdeMessage::Wrong {
            found,
            expected: expected.to_owned(),
        };
        let range = "a whole number of 0 to 4294967295";
        check("number = -1", wrong("integer `-1`", range));
        check("number = 'x, y'", wrong("string \"x, y\"", range));
        assert_eq!(SerdeMessage::parse("odd"), SerdeMessage::Other("odd"));
    }
}

//! [`csv_field`]: a text as a field of CSV.

/// Returns a text as a field of CSV, in quotation marks where it needs them (RFC 4180).
#[must_use]
pub fn csv_field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_with_marks_of_the_format_are_quoted() {
        for (text, field) in [
            ("a b", "a b"),
            ("a,b", "\"a,b\""),
            ("a\"b\n", "\"a\"\"b\n\""),
        ] {
            assert_eq!(csv_field(text), field);
        }
    }
}

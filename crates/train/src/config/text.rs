//! ConfigText texts of values: parses one as TOML and records the position of each key and value.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// The largest size of a run file in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 256 * 1024;

/// A text written by the user: the run file or one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigText {
    /// The name of the file, or `--set`, `environment` or `flag`.
    pub(super) name: String,
    /// The text.
    pub(super) text: String,
    /// Whether it is an argument or a variable rather than the file.
    pub(super) is_argument: bool,
}

/// The byte ranges of a key and its value in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceSpan {
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
    /// Whether the value is a section.
    pub(super) is_table: bool,
}

/// A parsed run file.
pub(super) struct ParsedRunFile {
    pub(super) table: toml::Table,
    pub(super) spans: BTreeMap<String, SourceSpan>,
}

/// A syntax error.
pub(super) struct SyntaxError {
    pub(super) message: String,
    pub(super) span: Range<usize>,
}

/// Parses a run file.
pub(super) fn parse(text: &str) -> Result<ParsedRunFile, Vec<SyntaxError>> {
    let error = |error: toml::de::Error| SyntaxError {
        message: error.message().trim().to_owned(),
        span: error.span().unwrap_or(0..0),
    };
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let errors: Vec<SyntaxError> = errors.into_iter().map(error).collect();
        return Err(first_of_each_line(text, errors));
    }
    // The second parse also rejects invalid values, such as integers of more than 64 bits.
    let table = toml::from_str(text).map_err(|cause| vec![error(cause)])?;
    let mut spans = BTreeMap::new();
    collect(root.get_ref(), "", &mut spans);
    Ok(ParsedRunFile { table, spans })
}

/// Keeps the first error of each line; the following ones are mostly consequences of it.
fn first_of_each_line(text: &str, errors: Vec<SyntaxError>) -> Vec<SyntaxError> {
    let mut last_end = 0;
    let mut kept: Vec<SyntaxError> = Vec::new();
    for error in errors {
        let start = error.span.start.min(text.len());
        if kept.is_empty() || start > last_end {
            let rest = text.as_bytes()[start..]
                .iter()
                .position(|&byte| byte == b'\n');
            last_end = rest.map_or(text.len(), |rest| start + rest);
            kept.push(error);
        }
    }
    kept
}

fn collect(table: &DeTable<'_>, prefix: &str, spans: &mut BTreeMap<String, SourceSpan>) {
    for (key, value) in table {
        let path = join(prefix, key.get_ref());
        let span = SourceSpan {
            key: key.span(),
            value: value.span(),
            is_table: matches!(value.get_ref(), DeValue::Table(_)),
        };
        if let DeValue::Table(inner) = value.get_ref() {
            collect(inner, &path, spans);
        }
        spans.insert(path, span);
    }
}

/// Returns the dotted path of a key under a prefix; a key that is not bare is quoted.
pub(super) fn join(prefix: &str, key: &str) -> String {
    let key = if is_bare(key) {
        key.to_owned()
    } else {
        format!("{key:?}")
    };
    if prefix.is_empty() {
        key
    } else {
        format!("{prefix}.{key}")
    }
}

/// Returns whether a key needs no quotes in TOML.
pub(super) fn is_bare(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// Parses the value of an argument as TOML, or else takes it as a string.
pub(super) fn parse_value(text: &str) -> toml::Value {
    let document = format!("value = {text}\n");
    toml::from_str::<toml::Table>(&document)
        .ok()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

//! Lines and fields of comma-separated values, parsed in place.

use std::borrow::Cow;

/// The end of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnd {
    /// The line has `bytes` bytes including its line end, and `fields` fields.
    Whole { bytes: usize, fields: usize },
    /// The line does not end in these bytes; `is_quoted` if a quote is still open.
    Open { is_quoted: bool, fields: usize },
}

/// Finds the end of the first line of `bytes`. A line end inside quotes does not count.
pub(super) fn line(bytes: &[u8]) -> LineEnd {
    let (mut is_quoted, mut fields) = (false, 1);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => fields += 1,
            b'\n' if !is_quoted => {
                let bytes = at + 1;
                return LineEnd::Whole { bytes, fields };
            }
            _ => {}
        }
    }
    LineEnd::Open { is_quoted, fields }
}

/// Returns a line without its line end.
pub(super) fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the fields of a line without its line end.
pub(super) fn fields(line: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let bytes = rest?;
        let mut is_quoted = false;
        let comma = bytes.iter().position(|&byte| {
            is_quoted ^= byte == b'"';
            byte == b',' && !is_quoted
        });
        let (field, after) = match comma {
            Some(comma) => (&bytes[..comma], Some(&bytes[comma + 1..])),
            None => (bytes, None),
        };
        rest = after;
        Some(unquoted(field.trim_ascii()))
    })
}

fn unquoted(field: &[u8]) -> Cow<'_, [u8]> {
    let inner = field
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    let Some(inner) = inner else {
        return Cow::Borrowed(field);
    };
    if !inner.contains(&b'"') {
        return Cow::Borrowed(inner);
    }
    let mut text = Vec::with_capacity(inner.len());
    let mut is_second = false;
    for &byte in inner {
        // Two quotes stand for one.
        let is_quote = byte == b'"';
        if !(is_quote && is_second) {
            text.push(byte);
        }
        is_second = is_quote && !is_second;
    }
    Cow::Owned(text)
}

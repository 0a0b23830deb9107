//! Lines and fields of comma-separated values, in place.

use std::borrow::Cow;

/// Where a line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It has so many bytes with its line end, and so many fields.
    Whole { bytes: usize, fields: usize },
    /// It does not end in these bytes; whether a quote is open.
    Open { is_quoted: bool, fields: usize },
}

/// The first line of `bytes`: where it ends. A line end in quotes is none.
pub(super) fn line(bytes: &[u8]) -> End {
    let (mut is_quoted, mut fields) = (false, 1);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => fields += 1,
            b'\n' if !is_quoted => {
                let bytes = at + 1;
                return End::Whole { bytes, fields };
            }
            _ => {}
        }
    }
    End::Open { is_quoted, fields }
}

/// A line without its end.
pub(super) fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The fields of a line without its end.
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
        // Of two quotes one is meant.
        let is_quote = byte == b'"';
        if !(is_quote && is_second) {
            text.push(byte);
        }
        is_second = is_quote && !is_second;
    }
    Cow::Owned(text)
}

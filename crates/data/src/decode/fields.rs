//! The values of a record's fields, of the kinds that decoders need.

use super::error::DecodeError;
use crate::format::{Record, Value};

/// Returns the value of a required field.
pub(super) fn field<'r, 'a>(
    record: &'r Record<'a>,
    name: &str,
) -> Result<&'r Value<'a>, DecodeError> {
    record.get(name).ok_or_else(|| {
        let names = record.fields.iter().map(|(name, _)| name.to_string());
        DecodeError::MissingField {
            field: name.to_owned(),
            present: names.take(20).collect(),
        }
    })
}

/// Returns the byte string in a field.
pub(super) fn one_of<'r>(record: &'r Record<'_>, name: &str) -> Result<&'r [u8], DecodeError> {
    match field(record, name)? {
        Value::Bytes(bytes) => Ok(bytes),
        other => Err(of_kind(name, other.kind(), "bytes")),
    }
}

/// Returns the error for a field of another kind.
pub(super) fn of_kind(field: &str, found: String, expected: &'static str) -> DecodeError {
    DecodeError::Kind {
        field: field.to_owned(),
        found,
        expected,
    }
}

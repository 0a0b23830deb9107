//! `tf.train.Example` in the wire format of protocol buffers, parsed in place.
//!
//! Lists may be packed or not, in several parts, with unknown fields. If a field occurs twice, the last one counts. Only
//! numbers that are stored unpacked are copied.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ronde_core::protobuf::read_varint;

use super::super::{FieldSelection, NumberType, Record, Value};

/// The reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExampleError {
    #[error("invalid tf.train.Example: a number is cut off")]
    NumberCutOff,
    #[error("invalid tf.train.Example: a number is incomplete")]
    NumberIncomplete,
    #[error("invalid tf.train.Example: a field of {bytes} bytes, but {left} remain")]
    FieldCutOff { bytes: u64, left: usize },
    #[error("invalid tf.train.Example: wire type {wire}")]
    WireType { wire: u64 },
    #[error("invalid tf.train.Example: a field with number 0")]
    FieldZero,
    #[error("invalid tf.train.Example: the name of a feature is not UTF-8")]
    Name,
    #[error("tf.train.SequenceExample is not supported")]
    Sequence,
    #[error("its bytes are damaged: wrong CRC-32C")]
    Checksum,
}

/// A field of a message.
enum WireField<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

/// An iterator over the fields of a message.
struct WireFields<'a> {
    bytes: &'a [u8],
}

impl<'a> WireFields<'a> {
    fn varint(&mut self) -> Result<u64, ExampleError> {
        let value = read_varint(&mut self.bytes);
        value.ok_or(ExampleError::NumberCutOff)
    }

    fn take(&mut self, bytes: u64) -> Result<&'a [u8], ExampleError> {
        if bytes > self.bytes.len() as u64 {
            let left = self.bytes.len();
            return Err(ExampleError::FieldCutOff { bytes, left });
        }
        let (taken, rest) = self.bytes.split_at(bytes as usize);
        self.bytes = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(u64, WireField<'a>)>, ExampleError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => WireField::Varint(self.varint()?),
            1 => self.take(8).map(|_| WireField::Fixed64)?,
            2 => {
                let length = self.varint()?;
                WireField::Bytes(self.take(length)?)
            }
            5 => {
                let bytes = self.take(4)?.first_chunk().copied();
                WireField::Fixed32(bytes.unwrap_or_default())
            }
            wire => return Err(ExampleError::WireType { wire }),
        };
        match tag >> 3 {
            0 => Err(ExampleError::FieldZero),
            number => Ok(Some((number, field))),
        }
    }
}

/// The kinds of lists, by their field numbers in `tf.train.Feature`.
const BYTES_LIST: u64 = 1;
const FLOAT_LIST: u64 = 2;
const INT64_LIST: u64 = 3;

/// An empty message.
const EMPTY: &[u8] = &[];

/// The field of a `tf.train.SequenceExample` that an example does not have.
const FEATURE_LISTS: u64 = 2;

/// Calls `each` with name and message of every feature.
fn features<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), ExampleError>,
) -> Result<(), ExampleError> {
    let mut example = WireFields { bytes };
    while let Some((number, field)) = example.next()? {
        let bytes = match (number, field) {
            (1, WireField::Bytes(bytes)) => bytes,
            (FEATURE_LISTS, WireField::Bytes(_)) => {
                return Err(ExampleError::Sequence);
            }
            _ => continue,
        };
        let mut all = WireFields { bytes };
        while let Some((number, field)) = all.next()? {
            let (1, WireField::Bytes(bytes)) = (number, field) else {
                continue;
            };
            let (mut name, mut feature): (&[u8], &[u8]) = (&[], &[]);
            let mut entry = WireFields { bytes };
            while let Some((number, field)) = entry.next()? {
                match (number, field) {
                    (1, WireField::Bytes(bytes)) => name = bytes,
                    (2, WireField::Bytes(bytes)) => feature = bytes,
                    _ => {}
                }
            }
            each(name, feature)?;
        }
    }
    Ok(())
}

/// Calls `each` with each item of a feature's list and returns the kind of the list. If existing are several kinds, the
/// last one counts.
fn list<'a>(
    feature: &'a [u8],
    mut each: impl FnMut(u64, WireField<'a>) -> Result<(), ExampleError>,
) -> Result<Option<u64>, ExampleError> {
    let mut kind = None;
    let mut parts = WireFields { bytes: feature };
    while let Some((number, field)) = parts.next()? {
        let (BYTES_LIST..=INT64_LIST, WireField::Bytes(bytes)) = (number, field) else {
            continue;
        };
        kind = Some(number);
        let mut list = WireFields { bytes };
        while let Some((inner, field)) = list.next()? {
            if inner == 1 {
                each(number, field)?;
            }
        }
    }
    Ok(kind)
}

/// Checks an example without keeping it. Cost: one pass over everything but the contents of byte strings.
pub(super) fn check(bytes: &[u8]) -> Result<(), ExampleError> {
    features(bytes, |name, feature| {
        text(name)?;
        list(feature, |kind, field| match (kind, field) {
            (INT64_LIST, WireField::Bytes(packed)) => {
                let mut packed = WireFields { bytes: packed };
                while !packed.bytes.is_empty() {
                    packed.varint()?;
                }
                Ok(())
            }
            (FLOAT_LIST, WireField::Bytes(packed)) => floats(packed).map(drop),
            _ => Ok(()),
        })?;
        Ok(())
    })
}

fn text(name: &[u8]) -> Result<&str, ExampleError> {
    std::str::from_utf8(name).map_err(|_| ExampleError::Name)
}

fn floats(packed: &[u8]) -> Result<&[u8], ExampleError> {
    match packed.len() % 4 {
        0 => Ok(packed),
        _ => Err(ExampleError::NumberIncomplete),
    }
}

/// Returns the requested features of an example, in the order requested.
pub(super) fn record<'a>(
    bytes: &'a [u8],
    wanted: &FieldSelection,
) -> Result<Record<'a>, ExampleError> {
    let fields = match wanted {
        FieldSelection::All => all(bytes)?,
        FieldSelection::Fields(wanted) => {
            let mut found = vec![None; wanted.names().len()];
            features(bytes, |name, feature| {
                let name = text(name)?;
                if let Some(position) = wanted.position(name)
                    && let Some(value) = value(feature)?
                {
                    found[position] = Some((Cow::Borrowed(name), value));
                }
                Ok(())
            })?;
            found.into_iter().flatten().collect()
        }
    };
    Ok(Record { fields })
}

/// Returns all features of an example.
fn all(bytes: &[u8]) -> Result<Vec<(Cow<'_, str>, Value<'_>)>, ExampleError> {
    let mut found: Vec<(Cow<'_, str>, Value<'_>)> = Vec::new();
    let mut positions: HashMap<&str, usize> = HashMap::new();
    features(bytes, |name, feature| {
        let name = text(name)?;
        let Some(value) = value(feature)? else {
            return Ok(());
        };
        match positions.entry(name) {
            Entry::Occupied(existing) => found[*existing.get()].1 = value,
            Entry::Vacant(new) => {
                new.insert(found.len());
                found.push((Cow::Borrowed(name), value));
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the value of a feature, or `None` if no list is set.
fn value(feature: &[u8]) -> Result<Option<Value<'_>>, ExampleError> {
    let mut texts: Vec<Cow<'_, [u8]>> = Vec::new();
    let mut numbers: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    let mut of = 0;
    let kind = list(feature, |kind, field| {
        if of != kind {
            (texts, numbers) = (Vec::new(), Cow::Borrowed(EMPTY));
            of = kind;
        }
        match (kind, field) {
            (BYTES_LIST, WireField::Bytes(bytes)) => texts.push(Cow::Borrowed(bytes)),
            (FLOAT_LIST, WireField::Bytes(packed)) if numbers.is_empty() => {
                numbers = Cow::Borrowed(floats(packed)?);
            }
            (FLOAT_LIST, WireField::Bytes(packed)) => {
                numbers.to_mut().extend_from_slice(floats(packed)?);
            }
            (FLOAT_LIST, WireField::Fixed32(bytes)) => numbers.to_mut().extend_from_slice(&bytes),
            (INT64_LIST, WireField::Varint(number)) => {
                numbers.to_mut().extend_from_slice(&number.to_le_bytes());
            }
            (INT64_LIST, WireField::Bytes(bytes)) => {
                let mut packed = WireFields { bytes };
                while !packed.bytes.is_empty() {
                    let number = packed.varint()?;
                    numbers.to_mut().extend_from_slice(&number.to_le_bytes());
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let Some(kind) = kind else { return Ok(None) };
    if of != kind {
        (texts, numbers) = (Vec::new(), Cow::Borrowed(EMPTY));
    }
    Ok(Some(match kind {
        BYTES_LIST if texts.len() == 1 => Value::Bytes(texts.swap_remove(0)),
        BYTES_LIST => Value::List(texts),
        FLOAT_LIST => Value::Numbers {
            dtype: NumberType::F32,
            bytes: numbers,
        },
        _ => Value::Numbers {
            dtype: NumberType::I64,
            bytes: numbers,
        },
    }))
}

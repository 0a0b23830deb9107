//! Conversion of numbers to features: numeric fields, numbers as text, raw bytes, tokens.

use std::borrow::Cow;

use super::error::DecodeError;
use super::fields::{field, of_kind, one_of};
use super::schema::{Fields, RawFeatures, TokenFeatures};
use crate::dataset::CLASSES_MAX;
use crate::error::DataError;
use crate::format::{NumberType, Record, Value};

/// Checks a divisor, and returns it unless it is 1.
pub(crate) fn check_divisor(key: &str, scale: Option<f32>) -> Result<Option<f32>, DataError> {
    match scale {
        Some(scale) if !scale.is_normal() => Err(DataError::schema(
            key,
            format!("invalid divisor {scale}: expected a finite number other than 0"),
        )),
        other => Ok(other.filter(|&scale| scale != 1.0)),
    }
}

/// The numbers of some fields, concatenated.
#[derive(Debug)]
pub(super) struct NumberDecoder {
    names: Vec<String>,
    scale: Option<f32>,
}

impl NumberDecoder {
    /// Creates the conversion. `part` is its key in the run file.
    pub(super) fn new(part: &str, fields: &Fields, scale: Option<f32>) -> Result<Self, DataError> {
        Ok(Self {
            names: fields.names(&format!("{part}.field"))?,
            scale: check_divisor(&format!("{part}.scale"), scale)?,
        })
    }

    pub(super) fn fields(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Returns the divisor; `None` if the numbers are not divided.
    pub(super) fn scale(&self) -> Option<f32> {
        self.scale
    }

    /// Fills `out` with the numbers, which must all be finite.
    pub(super) fn decode(&self, record: &Record<'_>, out: &mut [f32]) -> Result<(), DecodeError> {
        let (elements, mut filled) = (out.len(), 0);
        // With many columns, each is usually right after the previous one.
        let mut position = 0;
        for name in &self.names {
            let value = match record.fields.get(position) {
                Some((existing, value)) if existing == name => value,
                _ => {
                    let found = record
                        .fields
                        .iter()
                        .position(|(existing, _)| existing == name);
                    position = found.unwrap_or(record.fields.len());
                    field(record, name)?
                }
            };
            position += 1;
            let many = || DecodeError::TooManyNumbers { elements };
            let rest = &mut out[filled..];
            filled += match value {
                Value::Numbers { dtype, bytes } => {
                    let count = bytes.len() / dtype.bytes();
                    let into = rest.get_mut(..count).ok_or_else(many)?;
                    convert(*dtype, bytes, into);
                    count
                }
                Value::Bytes(text) => {
                    *rest.first_mut().ok_or_else(many)? = parse(name, text)?;
                    1
                }
                Value::List(texts) => {
                    let into = rest.get_mut(..texts.len()).ok_or_else(many)?;
                    for (out, text) in into.iter_mut().zip(texts) {
                        *out = parse(name, text)?;
                    }
                    texts.len()
                }
            };
        }
        if filled != elements {
            let numbers = filled;
            return Err(DecodeError::TooFewNumbers { numbers, elements });
        }
        finish(out, self.scale)
    }
}

fn parse(name: &str, text: &[u8]) -> Result<f32, DecodeError> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|number: &f32| number.is_finite());
    number.ok_or_else(|| DecodeError::NumberText {
        field: name.to_owned(),
        text: String::from_utf8_lossy(&text[..text.len().min(32)]).into(),
    })
}

/// Divides the numbers and refuses any that is not finite.
fn finish(out: &mut [f32], scale: Option<f32>) -> Result<(), DecodeError> {
    if let Some(scale) = scale {
        out.iter_mut().for_each(|value| *value /= scale);
    }
    // The sum of zeros is zero; a number that is not finite makes it NaN.
    let is_finite = out.iter().fold(0.0, |sum, value| sum + value * 0.0) == 0.0;
    match is_finite {
        true => Ok(()),
        false => {
            let position = out.iter().position(|value| !value.is_finite());
            let position = position.unwrap_or_default();
            Err(DecodeError::NotFinite { position })
        }
    }
}

/// Converts numbers of any type to features. `out` has as many elements as `bytes` has numbers.
pub(super) fn convert(dtype: NumberType, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
        let (numbers, _) = bytes.as_chunks::<N>();
        for (out, &bytes) in out.iter_mut().zip(numbers) {
            *out = number(bytes);
        }
    }
    match dtype {
        NumberType::Bool => each(bytes, out, |[b]| f32::from(u8::from(b != 0))),
        NumberType::U8 => each(bytes, out, |[b]| f32::from(b)),
        NumberType::I8 => each(bytes, out, |[b]| f32::from(b as i8)),
        NumberType::U16 => each(bytes, out, |b| f32::from(u16::from_le_bytes(b))),
        NumberType::I16 => each(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
        NumberType::U32 => each(bytes, out, |b| u32::from_le_bytes(b) as f32),
        NumberType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        NumberType::U64 => each(bytes, out, |b| u64::from_le_bytes(b) as f32),
        NumberType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        NumberType::F16 => each(bytes, out, |b| half::f16::from_le_bytes(b).to_f32()),
        NumberType::Bf16 => each(bytes, out, |b| half::bf16::from_le_bytes(b).to_f32()),
        NumberType::F32 => each(bytes, out, f32::from_le_bytes),
        NumberType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
    }
}

/// Bytes that are read as numbers.
#[derive(Debug)]
pub(super) struct RawDecoder {
    pub(super) field: String,
    dtype: Option<NumberType>,
    scale: Option<f32>,
}

impl RawDecoder {
    pub(super) fn new(features: &RawFeatures) -> Result<Self, DataError> {
        Ok(Self {
            field: features.field.clone(),
            dtype: features.dtype,
            scale: check_divisor("features.scale", features.scale)?,
        })
    }

    /// Returns the divisor; `None` if the numbers are not divided.
    pub(super) fn scale(&self) -> Option<f32> {
        self.scale
    }

    pub(super) fn decode(&self, record: &Record<'_>, out: &mut [f32]) -> Result<(), DecodeError> {
        let bytes = one_of(record, &self.field)?;
        let (dtype, bytes) = match self.dtype {
            Some(dtype) => (dtype, Cow::Borrowed(bytes)),
            None => crate::format::npy::numbers(bytes)?,
        };
        let expected = out.len() * dtype.bytes();
        if bytes.len() != expected {
            return Err(DecodeError::RawBytes {
                field: self.field.clone(),
                bytes: bytes.len(),
                numbers: out.len(),
                dtype: dtype.name(),
                expected,
            });
        }
        convert(dtype, &bytes, out);
        finish(out, self.scale)
    }
}

/// Tokens; the target of each is the next one.
#[derive(Debug)]
pub(super) struct TokenDecoder {
    pub(super) field: String,
    context: usize,
    vocabulary: u32,
}

impl TokenDecoder {
    pub(super) fn new(features: &TokenFeatures) -> Result<Self, DataError> {
        // Every token number below the limit is exact as f32.
        let vocabulary = features.required_vocabulary()?;
        if !(1..=CLASSES_MAX).contains(&vocabulary) {
            let problem =
                format!("invalid vocabulary of {vocabulary} tokens: expected 1 to {CLASSES_MAX}");
            return Err(DataError::schema("features.vocabulary", problem));
        }
        Ok(Self {
            field: features.field.clone(),
            context: features.context,
            vocabulary,
        })
    }

    pub(super) fn decode(
        &self,
        record: &Record<'_>,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DecodeError> {
        let (dtype, bytes) = match field(record, &self.field)? {
            Value::Numbers { dtype, bytes } => (dtype, bytes),
            other => return Err(of_kind(&self.field, other.kind(), "numbers")),
        };
        let count = bytes.len() / dtype.bytes();
        if count != self.context + 1 {
            return Err(DecodeError::TokenCount {
                field: self.field.clone(),
                tokens: count,
                context: self.context,
            });
        }
        let mut before = None;
        for at in 0..count {
            let token = dtype.integer(bytes, at);
            let token = token
                .and_then(|token| u32::try_from(token).ok())
                .filter(|&token| token < self.vocabulary)
                .ok_or_else(|| DecodeError::Token {
                    token: dtype.float(bytes, at).unwrap_or_default(),
                    position: at,
                    vocabulary: self.vocabulary,
                })?;
            if let Some(before) = before {
                (out[at - 1], targets[at - 1]) = (before as f32, token);
            }
            before = Some(token);
        }
        Ok(())
    }
}

//! Writing records as TensorFlow does: equal records produce equal bytes.

use super::super::{NumberType, Record, Value};
use super::frames::masked_sum;

/// Appends a framed record to `out`.
pub fn frame(out: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_sum(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&masked_sum(data).to_le_bytes());
}

/// Encodes a record as `tf.train.Example` with its features sorted by name. Numbers become `int64` or `float`, the only
/// types of the format: doubles lose precision.
#[must_use]
pub fn example(record: &Record<'_>) -> Vec<u8> {
    let mut fields: Vec<_> = record.fields.iter().collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    let mut features = Vec::new();
    for (name, value) in fields {
        let mut entry = Vec::new();
        bytes_field(&mut entry, 1, name.as_bytes());
        bytes_field(&mut entry, 2, &feature(value));
        bytes_field(&mut features, 1, &entry);
    }
    let mut example = Vec::new();
    bytes_field(&mut example, 1, &features);
    example
}

fn feature(value: &Value<'_>) -> Vec<u8> {
    let (mut list, mut feature) = (Vec::new(), Vec::new());
    let kind = match value {
        Value::Bytes(bytes) => {
            bytes_field(&mut list, 1, bytes);
            1
        }
        Value::List(texts) => {
            for text in texts {
                bytes_field(&mut list, 1, text);
            }
            1
        }
        Value::Numbers { dtype, bytes } if dtype.is_float() => {
            let mut packed = Vec::new();
            each(*dtype, bytes, |number| {
                packed.extend_from_slice(&(number as f32).to_le_bytes());
            });
            bytes_field(&mut list, 1, &packed);
            2
        }
        Value::Numbers { dtype, bytes } => {
            let mut packed = Vec::new();
            for index in 0..bytes.len() / dtype.bytes() {
                varint(
                    &mut packed,
                    dtype.integer(bytes, index).unwrap_or_default() as u64,
                );
            }
            bytes_field(&mut list, 1, &packed);
            3
        }
    };
    bytes_field(&mut feature, kind, &list);
    feature
}

fn each(dtype: NumberType, bytes: &[u8], mut number: impl FnMut(f64)) {
    for index in 0..bytes.len() / dtype.bytes() {
        number(dtype.float(bytes, index).unwrap_or_default());
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes_field(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

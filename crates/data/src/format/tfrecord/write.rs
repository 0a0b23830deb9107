//! Writing records as TensorFlow does: equal records produce equal bytes.

use ronde_core::protobuf::{ProtoMessage, push_varint};

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
    let mut features = ProtoMessage::default();
    for (name, value) in fields {
        let entry = ProtoMessage::default().bytes(1, name.as_bytes());
        features = features.message(1, &entry.message(2, &feature(value)));
    }
    ProtoMessage::default().message(1, &features).into_bytes()
}

fn feature(value: &Value<'_>) -> ProtoMessage {
    let list = ProtoMessage::default();
    let (kind, list) = match value {
        Value::Bytes(bytes) => (1, list.bytes(1, bytes)),
        Value::List(texts) => (1, texts.iter().fold(list, |list, text| list.bytes(1, text))),
        Value::Numbers { dtype, bytes } if dtype.is_float() => {
            let mut packed = Vec::new();
            each(*dtype, bytes, |number| {
                packed.extend_from_slice(&(number as f32).to_le_bytes());
            });
            (2, list.bytes(1, &packed))
        }
        Value::Numbers { dtype, bytes } => {
            let mut packed = Vec::new();
            for index in 0..bytes.len() / dtype.bytes() {
                let number = dtype.integer(bytes, index).unwrap_or_default();
                push_varint(&mut packed, number as u64);
            }
            (3, list.bytes(1, &packed))
        }
    };
    ProtoMessage::default().message(kind, &list)
}

fn each(dtype: NumberType, bytes: &[u8], mut number: impl FnMut(f64)) {
    for index in 0..bytes.len() / dtype.bytes() {
        number(dtype.float(bytes, index).unwrap_or_default());
    }
}

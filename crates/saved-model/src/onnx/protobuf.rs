//! The part of protobuf's wire format that ONNX files need: <https://protobuf.dev/programming-guides/encoding>.

use std::io::{self, Write};

/// The wire types of fields.
const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

/// An encoded message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3 | VARINT);
        self.varint(value);
        self
    }

    pub(super) fn float(mut self, field: u64, value: f32) -> Self {
        self.varint(field << 3 | FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn text(self, field: u64, text: &str) -> Self {
        self.delimited(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u64, message: &Self) -> Self {
        self.delimited(field, &message.0)
    }

    fn delimited(mut self, field: u64, bytes: &[u8]) -> Self {
        self.prefix(field, bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// Writes the key and the length of a field whose `length` bytes follow elsewhere.
    fn prefix(&mut self, field: u64, length: u64) {
        self.varint(field << 3 | LENGTH_DELIMITED);
        self.varint(length);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A message in parts, so that large fields are not copied.
#[derive(Debug, Default)]
pub(super) struct LongMessage<'a> {
    parts: Vec<MessagePart<'a>>,
}

#[derive(Debug)]
enum MessagePart<'a> {
    Encoded(Message),
    Floats(&'a [f32]),
}

impl<'a> LongMessage<'a> {
    /// Appends encoded fields.
    pub(super) fn push(&mut self, fields: Message) {
        self.parts.push(MessagePart::Encoded(fields));
    }

    /// Appends a field that is a message: `start`, then a field of floats in little-endian bytes.
    pub(super) fn push_floats(
        &mut self,
        field: u64,
        mut start: Message,
        floats_field: u64,
        floats: &'a [f32],
    ) {
        let bytes = size_of_val(floats) as u64;
        start.prefix(floats_field, bytes);
        let mut key = Message::default();
        key.prefix(field, start.0.len() as u64 + bytes);
        self.push(key);
        self.push(start);
        self.parts.push(MessagePart::Floats(floats));
    }

    pub(super) fn length(&self) -> u64 {
        let lengths = self.parts.iter().map(|part| match part {
            MessagePart::Encoded(message) => message.0.len(),
            MessagePart::Floats(floats) => size_of_val(*floats),
        });
        lengths.map(|length| length as u64).sum()
    }

    /// Writes the message as a field of another one.
    pub(super) fn write(&self, field: u64, to: &mut dyn Write) -> io::Result<()> {
        let mut key = Message::default();
        key.prefix(field, self.length());
        to.write_all(key.bytes())?;
        for part in &self.parts {
            to.write_all(match part {
                MessagePart::Encoded(message) => message.bytes(),
                MessagePart::Floats(floats) => bytemuck::cast_slice(floats),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_in_the_specification() {
        let message = Message::default().number(1, 150).text(2, "testing");
        assert_eq!(message.bytes(), b"\x08\x96\x01\x12\x07testing");
        let outer = Message::default().message(3, &Message::default().number(1, 150));
        assert_eq!(outer.bytes(), b"\x1a\x03\x08\x96\x01");
        let mut long = LongMessage::default();
        long.push_floats(5, Message::default().number(1, 2), 9, &[1.0, 2.0]);
        let mut written = Vec::new();
        long.write(7, &mut written).unwrap();
        assert_eq!(long.length() as usize + 2, written.len());
        assert_eq!(written[..7], *b"\x3a\x0e\x2a\x0c\x08\x02\x4a");
        assert_eq!(written[8..12], 1.0_f32.to_le_bytes());
    }
}

//! [`LongMessage`]: messages of protobuf with large fields, which are not copied.

use std::io::{self, Write};

use ronde_core::protobuf::ProtoMessage;

/// A message in parts, so that large fields are not copied.
#[derive(Debug, Default)]
pub(super) struct LongMessage<'a> {
    parts: Vec<MessagePart<'a>>,
}

#[derive(Debug)]
enum MessagePart<'a> {
    Encoded(ProtoMessage),
    Floats(&'a [f32]),
}

impl<'a> LongMessage<'a> {
    /// Appends encoded fields.
    pub(super) fn push(&mut self, fields: ProtoMessage) {
        self.parts.push(MessagePart::Encoded(fields));
    }

    /// Appends a field that is a message: `start`, then a field of floats in little-endian bytes.
    pub(super) fn push_floats(
        &mut self,
        field: u64,
        mut start: ProtoMessage,
        floats_field: u64,
        floats: &'a [f32],
    ) {
        let bytes = size_of_val(floats) as u64;
        start.prefix(floats_field, bytes);
        let mut key = ProtoMessage::default();
        key.prefix(field, start.as_bytes().len() as u64 + bytes);
        self.push(key);
        self.push(start);
        self.parts.push(MessagePart::Floats(floats));
    }

    pub(super) fn length(&self) -> u64 {
        let lengths = self.parts.iter().map(|part| match part {
            MessagePart::Encoded(message) => message.as_bytes().len(),
            MessagePart::Floats(floats) => size_of_val(*floats),
        });
        lengths.map(|length| length as u64).sum()
    }

    /// Writes the message as a field of another one.
    pub(super) fn write(&self, field: u64, to: &mut dyn Write) -> io::Result<()> {
        let mut key = ProtoMessage::default();
        key.prefix(field, self.length());
        to.write_all(key.as_bytes())?;
        for part in &self.parts {
            to.write_all(match part {
                MessagePart::Encoded(message) => message.as_bytes(),
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
    fn large_fields_follow_their_lengths() {
        let mut long = LongMessage::default();
        long.push_floats(5, ProtoMessage::default().number(1, 2), 9, &[1.0, 2.0]);
        let mut written = Vec::new();
        long.write(7, &mut written).unwrap();
        assert_eq!(long.length() as usize + 2, written.len());
        assert_eq!(written[..7], *b"\x3a\x0e\x2a\x0c\x08\x02\x4a");
        assert_eq!(written[8..12], 1.0_f32.to_le_bytes());
    }
}

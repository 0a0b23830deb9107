//! [`ProtoMessage`]: the part of protobuf's wire format that files of other programs need.
//!
//! Source: <https://protobuf.dev/programming-guides/encoding>.

/// The wire types of fields.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

/// A message that is being encoded, field by field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    /// Returns the encoded fields.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the encoded fields.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Adds an integer, a boolean or an enumeration.
    #[must_use]
    pub fn number(mut self, field: u64, value: u64) -> Self {
        self.key(field, VARINT);
        push_varint(&mut self.0, value);
        self
    }

    /// Adds a `float`.
    #[must_use]
    pub fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a `double`.
    #[must_use]
    pub fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, FIXED_64);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a `string`, `bytes`, or packed numbers.
    #[must_use]
    pub fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.prefix(field, value.len() as u64);
        self.0.extend(value);
        self
    }

    /// Adds a `string`.
    #[must_use]
    pub fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a message.
    #[must_use]
    pub fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    /// Adds the key and the length of a field whose `length` bytes follow elsewhere.
    pub fn prefix(&mut self, field: u64, length: u64) {
        self.key(field, LENGTH_DELIMITED);
        push_varint(&mut self.0, length);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        push_varint(&mut self.0, field << 3 | wire_type);
    }
}

/// Appends a number in groups of seven bits, the lowest first.
pub fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number that [`push_varint`] has written from the front of `bytes`; `None` if it is cut off or has more than 64 bits.
#[must_use]
pub fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate().take(10) {
        if at == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_in_the_specification() {
        let message = ProtoMessage::default().number(1, 150).text(2, "testing");
        assert_eq!(message.as_bytes(), b"\x08\x96\x01\x12\x07testing");
        let outer = ProtoMessage::default().message(3, &ProtoMessage::default().number(1, 150));
        assert_eq!(outer.as_bytes(), b"\x1a\x03\x08\x96\x01");
        let fixed = ProtoMessage::default().float(1, 1.0).double(2, -2.0);
        assert_eq!(fixed.as_bytes(), b"\x0d\0\0\x80\x3f\x11\0\0\0\0\0\0\0\xc0");
    }

    #[test]
    fn numbers_are_read_as_written_and_longer_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            bytes.push(7);
            let mut rest = &bytes[..];
            assert_eq!(read_varint(&mut rest), Some(value));
            assert_eq!(rest, [7]);
            let mut cut = &bytes[..bytes.len() - 2];
            assert_eq!(read_varint(&mut cut), None);
        }
        let mut long = &[[0xff; 9].as_slice(), &[2]].concat()[..];
        assert_eq!(read_varint(&mut long), None);
    }
}

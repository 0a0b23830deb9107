//! [`ByteReader`]: reads little-endian numbers and texts from the front of bytes that another process sent.

/// The bytes that are not read yet.
#[derive(Debug, Clone, Copy)]
pub struct ByteReader<'a>(&'a [u8]);

/// The reason that bytes cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ByteProblem {
    /// There are fewer bytes than the message needs.
    #[error("it ends too early")]
    EndsEarly,
    /// There are more bytes than the message has.
    #[error("{0} bytes too many")]
    TooMany(usize),
    /// A text is not UTF-8.
    #[error("a text that is not UTF-8")]
    NotText,
}

impl From<ByteProblem> for String {
    fn from(problem: ByteProblem) -> Self {
        problem.to_string()
    }
}

impl<'a> ByteReader<'a> {
    /// Reads these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next `count` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], ByteProblem> {
        let split = self.0.split_at_checked(count);
        let (taken, rest) = split.ok_or(ByteProblem::EndsEarly)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Returns the next `N` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ByteProblem> {
        let split = self.0.split_first_chunk::<N>();
        let (taken, rest) = split.ok_or(ByteProblem::EndsEarly)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Returns the next number of 32 bits.
    ///
    /// # Errors
    /// There are fewer than four bytes.
    pub fn u32(&mut self) -> Result<u32, ByteProblem> {
        self.array().map(u32::from_le_bytes)
    }

    /// Returns the next number of 64 bits.
    ///
    /// # Errors
    /// There are fewer than eight bytes.
    pub fn u64(&mut self) -> Result<u64, ByteProblem> {
        self.array().map(u64::from_le_bytes)
    }

    /// Returns the next text: its length in 32 bits, then UTF-8.
    ///
    /// # Errors
    /// There are fewer bytes, or they are not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, ByteProblem> {
        let count = self.u32()? as usize;
        std::str::from_utf8(self.bytes(count)?).map_err(|_| ByteProblem::NotText)
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// There are some.
    pub fn end(self) -> Result<(), ByteProblem> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(ByteProblem::TooMany(left)),
        }
    }
}

/// Appends a text as [`ByteReader::text`] reads it.
pub fn write_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Decodes a little-endian number of up to eight bytes.
#[must_use]
pub fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_more() {
        let mut bytes = 7_u32.to_le_bytes().to_vec();
        bytes.extend(9_u64.to_le_bytes());
        write_text(&mut bytes, "füge an");
        let read = |bytes: &[u8]| -> Result<_, ByteProblem> {
            let mut reader = ByteReader::new(bytes);
            let all = (reader.u32()?, reader.u64()?, reader.text()?.to_owned());
            reader.end().map(|()| all)
        };
        assert_eq!(read(&bytes), Ok((7, 9, "füge an".to_owned())));
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Err(ByteProblem::EndsEarly));
        }
        let last = bytes.len() - 4;
        bytes[last] = 0xff;
        assert_eq!(read(&bytes), Err(ByteProblem::NotText));
        assert_eq!(number(&[1, 2]), 0x201);
    }
}

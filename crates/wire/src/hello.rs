//! [`HelloFormat`]: the start of the first message of a connection, the same for all protocols between processes.

/// Size of magic, version and length, in bytes.
pub const PREFIX_BYTES: usize = 16;

/// A kind of first message: eight bytes that name the protocol, its version, the length of the body; then the body.
/// Little-endian.
#[derive(Debug, Clone, Copy)]
pub struct HelloFormat {
    /// The name of the protocol.
    pub magic: [u8; 8],
    /// The version of the protocol.
    pub version: u32,
    /// The maximum size of the body in bytes.
    pub bytes_max: usize,
}

/// The reason that bytes are not a first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloProblem {
    /// They belong to another protocol.
    #[error("it does not use this protocol of ronde")]
    Foreign,
    /// The peer uses another version.
    #[error("it uses version {theirs} of the protocol, expected {expected}")]
    Version {
        /// The version of the peer.
        theirs: u32,
        /// The version of this process.
        expected: u32,
    },
    /// The body is too long.
    #[error("a first message of {bytes} bytes, limit {limit}")]
    TooLong {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

impl HelloFormat {
    /// Returns a first message. The caller checks the length of the body.
    #[must_use]
    pub fn encode(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(PREFIX_BYTES + body.len());
        out.extend(self.magic);
        out.extend(self.version.to_le_bytes());
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
        out
    }

    /// Returns whether bytes begin like a first message.
    #[must_use]
    pub fn begins(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(&self.magic)
    }

    /// Returns the length of the body after a prefix.
    ///
    /// # Errors
    /// It is not the prefix of such a message.
    pub fn body_bytes(&self, prefix: &[u8; PREFIX_BYTES]) -> Result<usize, HelloProblem> {
        if !self.begins(prefix) {
            return Err(HelloProblem::Foreign);
        }
        let number = |at: usize| prefix[at..].first_chunk().copied().map(u32::from_le_bytes);
        let (theirs, expected) = (number(8).unwrap_or_default(), self.version);
        let (bytes, limit) = (number(12).unwrap_or_default() as usize, self.bytes_max);
        // No version has longer ones, so this is not a process of ronde.
        if bytes > limit {
            return Err(HelloProblem::TooLong { bytes, limit });
        }
        match theirs == expected {
            true => Ok(bytes),
            false => Err(HelloProblem::Version { theirs, expected }),
        }
    }

    /// Returns how many bytes are missing for a complete first message, as far as is known; 0 if it is complete.
    ///
    /// # Errors
    /// The bytes are not the start of such a message.
    pub fn missing(&self, bytes: &[u8]) -> Result<usize, HelloProblem> {
        match bytes.first_chunk() {
            Some(prefix) => {
                let end = PREFIX_BYTES + self.body_bytes(prefix)?;
                Ok(end.saturating_sub(bytes.len()))
            }
            None if self.magic.starts_with(&bytes[..bytes.len().min(8)]) => {
                Ok(PREFIX_BYTES - bytes.len())
            }
            None => Err(HelloProblem::Foreign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: HelloFormat = HelloFormat {
        magic: *b"rondetst",
        version: 3,
        bytes_max: 5,
    };

    #[test]
    fn a_first_message_is_complete_when_its_body_is() {
        let bytes = FORMAT.encode(b"hello");
        assert!(FORMAT.begins(&bytes));
        for end in 0..PREFIX_BYTES {
            assert_eq!(FORMAT.missing(&bytes[..end]), Ok(PREFIX_BYTES - end));
        }
        for end in PREFIX_BYTES..=bytes.len() {
            assert_eq!(FORMAT.missing(&bytes[..end]), Ok(bytes.len() - end));
        }
    }

    #[test]
    fn other_protocols_versions_and_lengths_are_refused() {
        let mut bytes = FORMAT.encode(b"hello");
        bytes[12] = 6;
        let too_long = HelloProblem::TooLong { bytes: 6, limit: 5 };
        assert_eq!(FORMAT.missing(&bytes), Err(too_long));
        bytes[8] = 9;
        assert_eq!(FORMAT.missing(&bytes), Err(too_long));
        bytes[12] = 5;
        let version = HelloProblem::Version {
            theirs: 9,
            expected: 3,
        };
        assert_eq!(FORMAT.missing(&bytes), Err(version));
        bytes[7] = b'x';
        assert_eq!(FORMAT.missing(&bytes), Err(HelloProblem::Foreign));
        for end in 8..PREFIX_BYTES {
            assert_eq!(FORMAT.missing(&bytes[..end]), Err(HelloProblem::Foreign));
        }
        assert_eq!(FORMAT.missing(b"GET / HT"), Err(HelloProblem::Foreign));
    }
}

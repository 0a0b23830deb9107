//! [`Stamp`]: what tells that an object was replaced, without reading it.

use std::fmt;

/// 16 bytes that are others whenever an object is replaced. Of a bucket they come from the ETag; of a web server without
/// one from time and length; of a file from its time in nanoseconds, its length and its inode.
///
/// The same object has the same stamp in a listing, when it is opened, and in every process. Equal stamps of different
/// objects mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp([u8; 16]);

impl Stamp {
    /// The stamp that `what` makes, told apart from others by `kind`.
    #[must_use]
    pub fn of(kind: &str, what: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ronde-store 1 stamp");
        hasher.update(kind.as_bytes()).update(&[0]).update(what);
        let mut bytes = [0; 16];
        hasher.finalize_xof().fill(&mut bytes);
        Self(bytes)
    }

    /// Its bytes, to be kept somewhere.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The stamp that had these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stamp({self})")
    }
}

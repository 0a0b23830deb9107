//! [`Stamp`]: an identifier that changes when an object is replaced, available without reading it.

use std::fmt;

/// 16 bytes that change whenever an object is replaced. For a bucket they are derived from the
/// ETag; for a web server without ETags from time and length; for a file from its modification time
/// in nanoseconds, its length and its inode.
///
/// An object has the same stamp in a listing, when it is opened, and in every process. Stamps of
/// different objects must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp([u8; 16]);

impl Stamp {
    /// Returns the stamp of `what`; `kind` separates the kinds of sources.
    #[must_use]
    pub fn of(kind: &str, what: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ronde-store 1 stamp");
        hasher.update(kind.as_bytes()).update(&[0]).update(what);
        let mut bytes = [0; 16];
        hasher.finalize_xof().fill(&mut bytes);
        Self(bytes)
    }

    /// Returns its bytes, for storage.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the stamp with these bytes.
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

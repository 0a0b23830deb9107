//! The encrypted form of an object: a header, then chunks that are each sealed under the object's own key.
//!
//! ```text
//! "rondeaes" | version 1 (u32 LE) | key id (8) | salt (32) | chunk 0 | chunk 1 | ..
//! chunk = AES-256-GCM(plain bytes, at most 256 KiB) | tag (16)
//! key   = HKDF-SHA256(master key, salt, header and name)
//! nonce = chunk number; associated data = name, chunk number, whether it is the last
//! ```
//!
//! An object always has a last chunk, which is empty only when the object is. The salt is random
//! for each object, so a key seals one object only and nonces never repeat.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::rand;

use crate::error::StoreError;
use crate::key;
use crate::key::MasterKey;
use crate::name::ObjectName;

/// The number of plain bytes of every chunk but the last.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// The number of bytes that sealing adds to a chunk.
pub(crate) const TAG_BYTES: usize = 16;
/// The length of the header in bytes.
pub(crate) const HEADER_BYTES: usize = 52;

const MAGIC: &[u8; 8] = b"rondeaes";
const VERSION: u32 = 1;

/// Encryption and decryption of the chunks of one object.
pub(crate) struct Sealing {
    key: LessSafeKey,
    name: ObjectName,
}

impl Sealing {
    /// Returns the key of a new object and the header that must be written first.
    pub(crate) fn new(
        master: &MasterKey,
        name: &ObjectName,
    ) -> Result<(Self, [u8; HEADER_BYTES]), StoreError> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..20].copy_from_slice(&master.id());
        rand::fill(&mut header[20..]).map_err(|_| StoreError::Key {
            problem: "the system has no random numbers".to_owned(),
        })?;
        Ok((Self::with_header(master, name, &header), header))
    }

    /// Returns the key of an existing object.
    pub(crate) fn open(
        master: &MasterKey,
        name: &ObjectName,
        header: &[u8; HEADER_BYTES],
        location: &str,
    ) -> Result<Self, StoreError> {
        let damaged = |problem: String| StoreError::Damaged {
            location: location.to_owned(),
            problem,
        };
        if &header[..8] != MAGIC {
            return Err(damaged(
                "it does not start with the header of an encrypted object".to_owned(),
            ));
        }
        if header[8..12] != VERSION.to_le_bytes() {
            return Err(damaged(format!(
                "its encryption format is not version {VERSION}, the only one that this version of ronde reads"
            )));
        }
        let mine = master.id();
        if header[12..20] != mine {
            return Err(StoreError::OtherKey {
                location: location.to_owned(),
                theirs: key::hex(&header[12..20]),
                mine: key::hex(&mine),
            });
        }
        Ok(Self::with_header(master, name, header))
    }

    fn with_header(master: &MasterKey, name: &ObjectName, header: &[u8; HEADER_BYTES]) -> Self {
        let purpose = b"ronde-store 1 object";
        let secret = master.derive(
            &header[20..],
            &[purpose, &header[..20], name.as_str().as_bytes()],
        );
        let key = UnboundKey::new(&AES_256_GCM, &*secret).expect("the key has 32 bytes");
        Self {
            key: LessSafeKey::new(key),
            name: name.clone(),
        }
    }

    /// Seals `chunk` in place; it grows by the tag.
    pub(crate) fn seal(
        &self,
        index: u64,
        is_last: bool,
        chunk: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        self.key
            .seal_in_place_append_tag(nonce(index), self.associated(index, is_last), chunk)
            .map_err(|_| StoreError::Key {
                problem: format!("cannot encrypt chunk {index} of {}", self.name),
            })
    }

    /// Opens `chunk` in place and returns the plain bytes; `None` when any byte of it was changed.
    pub(crate) fn open_chunk<'a>(
        &self,
        index: u64,
        is_last: bool,
        chunk: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        self.key
            .open_in_place(nonce(index), self.associated(index, is_last), chunk)
            .ok()
    }

    fn associated(&self, index: u64, is_last: bool) -> Aad<Vec<u8>> {
        let mut data = self.name.as_str().as_bytes().to_vec();
        data.push(0);
        data.extend(index.to_le_bytes());
        data.push(u8::from(is_last));
        Aad::from(data)
    }
}

fn nonce(index: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&index.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Returns the numbers of chunks and plain bytes of an object of `sealed` bytes; `None` when no
/// object has that length.
pub(crate) fn lengths(sealed: u64) -> Option<(u64, u64)> {
    let sealed_chunk = (CHUNK_BYTES + TAG_BYTES) as u64;
    let body = sealed.checked_sub(HEADER_BYTES as u64)?;
    let chunks = body.div_ceil(sealed_chunk);
    let last = body.checked_sub(chunks.checked_sub(1)? * sealed_chunk)?;
    let is_possible = last > TAG_BYTES as u64 || (last == TAG_BYTES as u64 && chunks == 1);
    is_possible.then_some((chunks, body - chunks * TAG_BYTES as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_that_sealing_makes() {
        for plain in [0_u64, 1, 100, 262_143, 262_144, 262_145, 524_288, 524_289] {
            let chunks = plain.div_ceil(CHUNK_BYTES as u64).max(1);
            let sealed = HEADER_BYTES as u64 + plain + chunks * TAG_BYTES as u64;
            assert_eq!(lengths(sealed), Some((chunks, plain)), "{plain}");
        }
        let full = (HEADER_BYTES + CHUNK_BYTES + TAG_BYTES) as u64;
        for impossible in [0, 51, 52, 67, full + 1, full + 16] {
            assert_eq!(lengths(impossible), None, "{impossible}");
        }
    }
}

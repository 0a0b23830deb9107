//! The footer of a Parquet file: its bytes, and whether it belongs to an encrypted file.

use ronde_core::protobuf::read_varint;
use ronde_store::StoredObject;

use crate::error::DataError;

const MAGIC: &[u8; 4] = b"PAR1";
const MAGIC_ENCRYPTED: &[u8; 4] = b"PARE";
/// Size of the footer's length and the magic number.
const TAIL_BYTES: u64 = 8;
/// Size of the first read, which usually contains the footer.
const FIRST_READ: u64 = 64 << 10;
/// The largest size of a footer, in bytes.
const FOOTER_MAX: u64 = 256 << 20;
const ENCRYPTED: &str = "encrypted Parquet files are not supported";

/// Reads the bytes of a file's footer.
pub(super) fn footer(file: &dyn StoredObject) -> Result<Vec<u8>, DataError> {
    let refused = |problem: &str| DataError::format(file.location(), problem);
    let mut tail = vec![0; file.bytes().min(FIRST_READ) as usize];
    file.read_at(file.bytes() - tail.len() as u64, &mut tail)?;
    let (before, last) = tail
        .split_last_chunk::<{ TAIL_BYTES as usize }>()
        .ok_or_else(|| refused("too short for a Parquet file"))?;
    let &[a, b, c, d, ref magic @ ..] = last;
    match magic {
        magic if magic == MAGIC => {}
        magic if magic == MAGIC_ENCRYPTED => return Err(refused(ENCRYPTED)),
        _ => {
            return Err(refused(
                "no Parquet magic number at the end of the file; it may be cut off",
            ));
        }
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    if length > FOOTER_MAX || length + TAIL_BYTES > file.bytes() {
        let problem = format!("invalid footer length of {length} bytes");
        return Err(refused(&problem));
    }
    let footer = match (before.len() as u64).checked_sub(length) {
        Some(start) => before[start as usize..].to_vec(),
        None => {
            let mut footer = vec![0; length as usize];
            file.read_at(file.bytes() - TAIL_BYTES - length, &mut footer)?;
            footer
        }
    };
    match names_encryption(&footer) {
        Some(true) => Err(refused(ENCRYPTED)),
        _ => Ok(footer),
    }
}

/// The field of `FileMetaData` with the encryption algorithm, which encrypted files with a readable footer have.
const ENCRYPTION_ALGORITHM: i64 = 8;
/// The largest depth of structures in a footer.
const DEPTH_MAX: u32 = 32;

/// Returns whether a footer names an encryption algorithm; `None` if it is damaged.
fn names_encryption(footer: &[u8]) -> Option<bool> {
    let mut reader = Compact(footer);
    let mut last = 0;
    while let Some((field, kind)) = reader.field(last)? {
        if field == ENCRYPTION_ALGORITHM {
            return Some(true);
        }
        reader.skip(kind, DEPTH_MAX)?;
        last = field;
    }
    Some(false)
}

/// A reader of Thrift's compact protocol that can only skip values.
///
/// Source: Apache Thrift, `doc/specs/thrift-compact-protocol.md`.
struct Compact<'a>(&'a [u8]);

impl Compact<'_> {
    fn take(&mut self, bytes: u64) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn varint(&mut self) -> Option<u64> {
        read_varint(&mut self.0)
    }

    /// Reads the header of a field: its number and type; `None` at the end of the structure.
    fn field(&mut self, last: i64) -> Option<Option<(i64, u8)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        let field = match byte >> 4 {
            0 => {
                let zigzag = self.varint()?;
                (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
            }
            delta => last.checked_add(i64::from(delta))?,
        };
        Some(Some((field, byte & 0x0f)))
    }

    /// Skips a value. Booleans of fields are part of the field's type.
    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => drop(self.take(8)?),
            8 => {
                let bytes = self.varint()?;
                self.take(bytes)?;
            }
            9 | 10 => {
                let header = self.byte()?;
                let count = match header >> 4 {
                    15 => self.varint()?,
                    count => u64::from(count),
                };
                for _ in 0..count {
                    match header & 0x0f {
                        1 | 2 => drop(self.byte()?),
                        kind => self.skip(kind, depth)?,
                    }
                }
            }
            12 => {
                let mut last = 0;
                while let Some((field, kind)) = self.field(last)? {
                    self.skip(kind, depth)?;
                    last = field;
                }
            }
            // Maps and the newer types do not occur in footers.
            _ => return None,
        }
        Some(())
    }
}

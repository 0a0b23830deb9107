//! The directory of a zip archive as numpy writes it: stored and deflated members, zip64.
//!
//! Only the offsets of the members are needed, within a limit of memory and with few reads of a remote file. The crate `zip` 9
//! costs 12 CPU seconds of a build for that, and `rc-zip` brings a library of character encodings.

use std::io::Read;

use ronde_store::StoredObject;

use super::super::RECORD_BYTES_MAX;

const END: [u8; 4] = *b"PK\x05\x06";
const END_64_LOCATOR: [u8; 4] = *b"PK\x06\x07";
const END_64: [u8; 4] = *b"PK\x06\x06";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
/// Size of the end record, and of the longest comment after it.
const END_BYTES: u64 = 22;
const COMMENT_MAX: u64 = 65_535;
/// The largest size of a directory, in bytes.
const DIRECTORY_MAX: u64 = 16 << 20;

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ZipMember {
    pub(super) name: String,
    pub(super) is_deflated: bool,
    pub(super) packed_bytes: u64,
    pub(super) bytes: u64,
    pub(super) crc: u32,
    /// Offset of its contents.
    pub(super) start: u64,
}

/// The reason why the directory cannot be read.
pub(super) enum ZipError {
    Store(ronde_store::StoreError),
    Problem(String),
}

impl From<ronde_store::StoreError> for ZipError {
    fn from(error: ronde_store::StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<&str> for ZipError {
    fn from(problem: &str) -> Self {
        Self::Problem(problem.to_owned())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    let two = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u64::from(u16::from_le_bytes(*two)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    let four = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u64::from(u32::from_le_bytes(*four)))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*eight))
}

fn read(file: &dyn StoredObject, start: u64, bytes: u64) -> Result<Vec<u8>, ZipError> {
    let end = start.checked_add(bytes).filter(|&end| end <= file.bytes());
    end.ok_or("the archive is damaged: an offset is past its end")?;
    let mut contents = vec![0; bytes as usize];
    file.read_at(start, &mut contents)?;
    Ok(contents)
}

/// Returns all members of an archive.
pub(super) fn members(file: &dyn StoredObject) -> Result<Vec<ZipMember>, ZipError> {
    let (start, bytes, count) = directory(file)?;
    if bytes > DIRECTORY_MAX {
        return Err("the archive's directory is too large".into());
    }
    let directory = read(file, start, bytes)?;
    let mut rest = &directory[..];
    let mut members = Vec::new();
    for _ in 0..count {
        let (member, length) = entry(rest).ok_or("the archive's directory is damaged")?;
        rest = &rest[length..];
        let local = read(file, member.start, 30)?;
        let (Some(name), Some(extra)) = (u16_at(&local, 26), u16_at(&local, 28)) else {
            return Err("the archive is damaged: a member has no header".into());
        };
        if !local.starts_with(&LOCAL) {
            return Err("the archive is damaged: a member has no header".into());
        }
        let start = member.start + 30 + name + extra;
        let end = start.checked_add(member.packed_bytes);
        if end.is_none_or(|end| end > file.bytes()) {
            return Err("the archive is damaged: a member exceeds it".into());
        }
        members.push(ZipMember { start, ..member });
    }
    Ok(members)
}

/// Returns offset and length of the directory, and the number of its entries.
fn directory(file: &dyn StoredObject) -> Result<(u64, u64, u64), ZipError> {
    let tail_bytes = file.bytes().min(END_BYTES + COMMENT_MAX);
    let tail_start = file.bytes() - tail_bytes;
    let tail = read(file, tail_start, tail_bytes)?;
    let at = tail
        .windows(4)
        .rposition(|four| four == END)
        .ok_or("not a zip archive, or the file is cut off")?;
    let numbers = || {
        let end = tail[at..].first_chunk::<{ END_BYTES as usize }>()?;
        Some((u32_at(end, 16)?, u32_at(end, 12)?, u16_at(end, 10)?))
    };
    let cut_off = "the archive's end record is damaged";
    let (start, bytes, count) = numbers().ok_or(cut_off)?;
    if start < u64::from(u32::MAX) && bytes < u64::from(u32::MAX) && count < 0xffff {
        return Ok((start, bytes, count));
    }
    let locator_at = (tail_start + at as u64).checked_sub(20).ok_or(cut_off)?;
    let locator = read(file, locator_at, 20)?;
    let end_at = u64_at(&locator, 8).filter(|_| locator.starts_with(&END_64_LOCATOR));
    let end = read(file, end_at.ok_or(cut_off)?, 56)?;
    let numbers = || Some((u64_at(&end, 48)?, u64_at(&end, 40)?, u64_at(&end, 32)?));
    numbers()
        .filter(|_| end.starts_with(&END_64))
        .ok_or_else(|| cut_off.into())
}

/// Parses the first member of a directory, with the offset of its local header as `start`, and the length of its entry.
fn entry(directory: &[u8]) -> Option<(ZipMember, usize)> {
    let bytes = directory.strip_prefix(&ENTRY).map(|_| directory)?;
    let flags = u16_at(bytes, 8)?;
    let method = u16_at(bytes, 10)?;
    let lengths = [u16_at(bytes, 28)?, u16_at(bytes, 30)?, u16_at(bytes, 32)?].map(|n| n as usize);
    let name = bytes.get(46..46 + lengths[0])?;
    let extra = bytes.get(46 + lengths[0]..46 + lengths[0] + lengths[1])?;
    let length = 46 + lengths.iter().sum::<usize>();
    let sizes = [u32_at(bytes, 24)?, u32_at(bytes, 20)?, u32_at(bytes, 42)?];
    let [size, packed, start] = zip64(extra, sizes)?;
    // Encryption and other compression methods are not supported.
    let is_known = flags & 1 == 0 && matches!(method, 0 | 8) && (method == 8 || size == packed);
    (is_known && length <= directory.len()).then(|| {
        let member = ZipMember {
            name: String::from_utf8_lossy(name).into_owned(),
            is_deflated: method == 8,
            packed_bytes: packed,
            bytes: size,
            crc: u32_at(bytes, 16).unwrap_or_default() as u32,
            start,
        };
        (member, length)
    })
}

/// Reads the numbers that do not fit 32 bits from an extra field, in this order.
fn zip64(mut extra: &[u8], mut sizes: [u64; 3]) -> Option<[u64; 3]> {
    while extra.len() >= 4 {
        let (kind, length) = (u16_at(extra, 0)?, u16_at(extra, 2)? as usize);
        let field = extra.get(4..4 + length)?;
        if kind == 1 {
            let mut at = 0;
            for size in sizes
                .iter_mut()
                .filter(|size| **size == u64::from(u32::MAX))
            {
                *size = u64_at(field, at)?;
                at += 8;
            }
        }
        extra = &extra[4 + length..];
    }
    Some(sizes)
}

/// Unpacks the contents of a member and verifies their checksum.
pub(super) fn contents(member: &ZipMember, packed: &[u8]) -> Result<Vec<u8>, String> {
    if member.bytes > RECORD_BYTES_MAX {
        return Err(format!(
            "array {:?} is too large to be unpacked",
            member.name
        ));
    }
    let mut contents = Vec::new();
    match member.is_deflated {
        true => {
            let mut decoder = flate2::bufread::DeflateDecoder::new(packed).take(member.bytes + 1);
            let unpacked = decoder.read_to_end(&mut contents);
            unpacked.map_err(|error| format!("cannot unpack array {:?}: {error}", member.name))?;
        }
        false => contents.extend_from_slice(packed),
    }
    let mut sum = flate2::Crc::new();
    sum.update(&contents);
    match contents.len() as u64 == member.bytes && sum.sum() == member.crc {
        true => Ok(contents),
        false => Err(wrong_crc(member)),
    }
}

/// Returns the message for an array whose bytes do not match their checksum.
pub(super) fn wrong_crc(member: &ZipMember) -> String {
    format!("array {:?} is damaged: wrong CRC-32", member.name)
}

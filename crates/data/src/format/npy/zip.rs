//! The members of a zip archive as numpy writes it: stored and deflated ones, zip64.
//!
//! Only the offsets of the members are needed, within a limit of memory and with few reads of a remote file.

use std::io::{self, Read};

use rawzip::{CompressionMethod, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipLocator};
use ronde_store::{StoreError, StoredObject};

use super::super::RECORD_BYTES_MAX;
use super::error::NpyError;

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
    Store(StoreError),
    Problem(&'static str),
}

impl ZipError {
    /// Returns the error of the store behind `error`, or `problem`.
    fn new(error: rawzip::Error, problem: &'static str) -> Self {
        let problem = match error.kind() {
            rawzip::ErrorKind::MissingEndOfCentralDirectory => {
                "not a zip archive, or the file is cut off"
            }
            _ => problem,
        };
        match error.into_kind() {
            rawzip::ErrorKind::IO(error) => {
                error.downcast().map_or(Self::Problem(problem), Self::Store)
            }
            _ => Self::Problem(problem),
        }
    }
}

/// A stored object as rawzip reads it.
struct ArchiveBytes<'a>(&'a dyn StoredObject);

impl ReaderAt for ArchiveBytes<'_> {
    fn read_at(&self, into: &mut [u8], start: u64) -> io::Result<usize> {
        let rest = self.0.bytes().saturating_sub(start);
        let bytes = into.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let read = self.0.read_at(start, &mut into[..bytes]);
        read.map(|()| bytes).map_err(io::Error::other)
    }
}

/// Returns all members of an archive.
pub(super) fn members(file: &dyn StoredObject) -> Result<Vec<ZipMember>, ZipError> {
    let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    let archive = ZipLocator::new()
        .locate_in_reader(ArchiveBytes(file), &mut buffer, file.bytes())
        .map_err(|(_, error)| ZipError::new(error, "the archive's end record is damaged"))?;
    let directory_bytes = archive
        .eocd_offset()
        .saturating_sub(archive.directory_offset());
    if directory_bytes > DIRECTORY_MAX {
        return Err(ZipError::Problem("the archive's directory is too large"));
    }
    let damaged = "the archive's directory is damaged";
    let mut entries = archive.entries(&mut buffer);
    let mut members = Vec::new();
    while let Some(entry) = entries
        .next_entry()
        .map_err(|error| ZipError::new(error, damaged))?
    {
        let (bytes, packed_bytes) = (entry.uncompressed_size_hint(), entry.compressed_size_hint());
        let is_deflated = entry.compression_method() == CompressionMethod::DEFLATE;
        let is_stored =
            entry.compression_method() == CompressionMethod::STORE && bytes == packed_bytes;
        // Encryption and other compression methods are not supported.
        if entry.flags().is_encrypted() || !(is_deflated || is_stored) {
            return Err(ZipError::Problem(damaged));
        }
        let local = archive.get_entry(entry.wayfinder()).map_err(|error| {
            ZipError::new(error, "the archive is damaged: a member has no header")
        })?;
        let (start, end) = local.compressed_data_range();
        if end > file.bytes() {
            return Err(ZipError::Problem(
                "the archive is damaged: a member exceeds it",
            ));
        }
        members.push(ZipMember {
            name: String::from_utf8_lossy(entry.file_path().as_ref()).into_owned(),
            is_deflated,
            packed_bytes,
            bytes,
            crc: entry.crc32(),
            start,
        });
    }
    match members.len() as u64 == archive.entries_hint() {
        true => Ok(members),
        false => Err(ZipError::Problem(damaged)),
    }
}

/// Unpacks the contents of a member and verifies their checksum.
pub(super) fn contents(member: &ZipMember, packed: &[u8]) -> Result<Vec<u8>, NpyError> {
    if member.bytes > RECORD_BYTES_MAX {
        return Err(NpyError::TooLarge {
            name: member.name.clone(),
            bytes: member.bytes,
        });
    }
    let mut contents = Vec::new();
    match member.is_deflated {
        true => {
            let mut decoder = flate2::bufread::DeflateDecoder::new(packed).take(member.bytes + 1);
            let unpacked = decoder.read_to_end(&mut contents);
            unpacked.map_err(|error| NpyError::Unpack {
                name: member.name.clone(),
                cause: error.to_string(),
            })?;
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

/// Returns the error for an array whose bytes do not match their checksum.
pub(super) fn wrong_crc(member: &ZipMember) -> NpyError {
    NpyError::Checksum {
        name: member.name.clone(),
    }
}

//! [`ZipWriter`]: an archive without compression, whose files start at multiples of 64 bytes.

use std::io::{self, Write};

use crc_fast::{CrcAlgorithm, checksum};

/// Sizes and offsets are numbers of 32 bits.
pub(super) const ARCHIVE_BYTES_MAX: u64 = (1 << 32) - (1 << 24);

/// The number of tensors that an archive may have; the format counts all files in 16 bits.
pub(super) const FILES_MAX: usize = 65_000;

/// The alignment of files, as in PyTorch, so that they can be mapped.
const ALIGNMENT: usize = 64;
/// The version of the format that a reader needs.
const VERSION: u16 = 20;
/// The first day of the format's calendar, so that equal contents are equal files.
const DATE: u16 = 1 << 5 | 1;

struct ZipEntry {
    name: String,
    crc: u32,
    size: u32,
    offset: u32,
}

/// An archive that is being written.
pub(super) struct ZipWriter<'a> {
    to: &'a mut dyn Write,
    written: u64,
    entries: Vec<ZipEntry>,
}

impl<'a> ZipWriter<'a> {
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        Self {
            to,
            written: 0,
            entries: Vec::new(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    /// Returns the position as a number of 32 bits.
    fn position(&self) -> io::Result<u32> {
        u32::try_from(self.written).map_err(|_| io::Error::other("the archive has more than 4 GiB"))
    }

    /// Adds a file.
    pub(super) fn add(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        let size = u32::try_from(contents.len())
            .map_err(|_| io::Error::other("a file of the archive has more than 4 GiB"))?;
        let entry = ZipEntry {
            name: name.to_owned(),
            crc: checksum(CrcAlgorithm::Crc32IsoHdlc, contents) as u32,
            size,
            offset: self.position()?,
        };
        let padding = padding(self.written as usize + 30 + name.len());
        let mut header = b"PK\x03\x04".to_vec();
        header.extend(entry.fields(padding.len() as u16));
        header.extend(name.as_bytes());
        header.extend(padding);
        self.write(&header)?;
        self.write(contents)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Writes the directory of the archive.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let start = self.position()?;
        let entries = std::mem::take(&mut self.entries);
        for entry in &entries {
            let mut record = b"PK\x01\x02".to_vec();
            record.extend(VERSION.to_le_bytes());
            record.extend(entry.fields(0));
            // The length of a comment, the disk, and the attributes of the file.
            record.extend([0; 10]);
            record.extend(entry.offset.to_le_bytes());
            record.extend(entry.name.as_bytes());
            self.write(&record)?;
        }
        let length = self.position()? - start;
        let count = (entries.len() as u16).to_le_bytes();
        let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
        end.extend([count, count].concat());
        end.extend(length.to_le_bytes());
        end.extend(start.to_le_bytes());
        end.extend([0; 2]);
        self.write(&end)
    }
}

impl ZipEntry {
    /// The fields that the file's header and the directory share, from the version to the length of the extra field.
    fn fields(&self, extra: u16) -> Vec<u8> {
        let mut fields = Vec::new();
        // Version, flags, no compression, time, date.
        for number in [VERSION, 0, 0, 0, DATE] {
            fields.extend(number.to_le_bytes());
        }
        for number in [self.crc, self.size, self.size] {
            fields.extend(number.to_le_bytes());
        }
        fields.extend((self.name.len() as u16).to_le_bytes());
        fields.extend(extra.to_le_bytes());
        fields
    }
}

/// Returns an extra field after `end` bytes, after which a multiple of the alignment follows.
fn padding(end: usize) -> Vec<u8> {
    let length = (end + 4).next_multiple_of(ALIGNMENT) - end - 4;
    let mut field = b"FB".to_vec();
    field.extend((length as u16).to_le_bytes());
    field.extend(std::iter::repeat_n(b'Z', length));
    field
}

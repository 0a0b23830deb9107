//! [`ZipWriter`]: an archive without compression, whose files start at multiples of 64 bytes.

use std::io::{self, Write};

use rawzip::extra_fields::ExtraFieldId;
use rawzip::{Header, ZipArchiveWriter};

/// The alignment of files, as in PyTorch, so that they can be mapped.
const ALIGNMENT: u64 = 64;
/// The extra field with which PyTorch fills the space before a file: "FB".
const PADDING: ExtraFieldId = ExtraFieldId::new(u16::from_le_bytes(*b"FB"));
/// Lengths of the header of a file and of the header of an extra field.
const HEADERS_BYTES: u64 = 30 + 4;

/// An archive that is being written. Equal contents are equal files.
pub(super) struct ZipWriter<'a>(ZipArchiveWriter<&'a mut dyn Write>);

impl<'a> ZipWriter<'a> {
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        Self(ZipArchiveWriter::new(to))
    }

    /// Adds a file.
    pub(super) fn add(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        let end = self.0.stream_offset() + HEADERS_BYTES + name.len() as u64;
        let padding = vec![b'Z'; (end.next_multiple_of(ALIGNMENT) - end) as usize];
        let file = self.0.new_file(name);
        let file = file.extra_field(PADDING, &padding, Header::LOCAL);
        let (mut file, config) = file.and_then(|file| file.start()).map_err(failed)?;
        let mut writer = config.wrap(&mut file);
        writer.write_all(contents)?;
        let (_, descriptor) = writer.finish().map_err(failed)?;
        file.finish(descriptor).map_err(failed)?;
        Ok(())
    }

    /// Writes the directory of the archive.
    pub(super) fn finish(self) -> io::Result<()> {
        self.0.finish().map(|_| ()).map_err(failed)
    }
}

fn failed(error: rawzip::Error) -> io::Error {
    match error.into_kind() {
        rawzip::ErrorKind::IO(error) => error,
        kind => io::Error::other(kind.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_starts_at_a_multiple_of_64_bytes() {
        let written = || {
            let mut bytes = Vec::new();
            let mut zip = ZipWriter::new(&mut bytes);
            for length in 0..130_u8 {
                let name = "n".repeat(usize::from(length) + 1);
                zip.add(&name, &vec![length; length.into()]).unwrap();
            }
            zip.finish().unwrap();
            bytes
        };
        let bytes = written();
        let archive = rawzip::ZipArchive::from_slice(&bytes).unwrap();
        let entries: Vec<_> = archive.entries().map(Result::unwrap).collect();
        assert_eq!(entries.len(), 130);
        for (length, entry) in (0_u8..).zip(entries) {
            let file = archive.get_entry(entry.wayfinder()).unwrap();
            assert_eq!(file.compressed_data_range().0 % ALIGNMENT, 0);
            assert_eq!(file.data(), vec![length; length.into()]);
        }
        assert_eq!(bytes, written());
    }
}

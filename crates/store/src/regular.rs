//! [`open_regular`] and [`read_regular`]: open regular files only, because reading a FIFO or a device may never end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// The path is not a regular file, or cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    check(&std::fs::metadata(path)?)?;
    // The path may be replaced after the check; without this flag, opening a FIFO waits for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata))
}

/// Reads a regular file of at most `bytes_max` bytes; checks its size before reading.
///
/// # Errors
/// The path is not a regular file, cannot be read, or the file is too long.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open_regular(path)?;
    let too_long = |bytes| {
        let problem = format!("the file has {bytes} bytes; the limit is {bytes_max} bytes");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, problem))
    };
    if metadata.len() > bytes_max {
        return too_long(metadata.len());
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    // Files of some file systems, such as /proc, report a length of 0.
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return too_long(bytes.len() as u64);
    }
    Ok(bytes)
}

/// Returns an error if a path is not a regular file.
pub(crate) fn check(metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let (error_kind, found) = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => (io::ErrorKind::IsADirectory, "a folder"),
        _ if kind.is_fifo() => (io::ErrorKind::InvalidInput, "a FIFO"),
        _ if kind.is_char_device() || kind.is_block_device() => {
            (io::ErrorKind::InvalidInput, "a device")
        }
        _ => (io::ErrorKind::InvalidInput, "a special file"),
    };
    Err(io::Error::new(
        error_kind,
        format!("it is not a regular file but {found}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"12345").unwrap();
        assert_eq!(read_regular(&file, 5).unwrap(), b"12345");
        let error = read_regular(&file, 4).unwrap_err().to_string();
        assert_eq!(error, "the file has 5 bytes; the limit is 4 bytes");
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, found) in [
            (fifo.as_path(), "a FIFO"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = read_regular(path, 100).unwrap_err().to_string();
            assert_eq!(error, format!("it is not a regular file but {found}"));
        }
        let error = read_regular(folder.path(), 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}

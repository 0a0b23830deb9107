//! [`PageFile`]: one page on disk, protected by checksums.
//!
//! ```text
//! "rondepg1" | key of the page (16) | bytes (u64 LE) | checksum of the preceding fields and the table (u64 LE)
//! table: a checksum (u64 LE) for each 64 KiB of the data | data
//! ```
//!
//! Checksums are XXH3-64, seeded with the key, so that a page under the name of another one is detected, too. A block of
//! 64 KiB is checked when it is first read after the file was opened. Sealed pages are objects of `ronde_store::Encrypted`
//! instead, which verifies everything it decrypts.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use ronde_store::{StoreError, StoredObject};
use twox_hash::XxHash3_64;

/// The number of bytes with one checksum.
const BLOCK: usize = 64 << 10;
const MAGIC: [u8; 8] = *b"rondepg1";
const HEADER: usize = 40;

/// The identity of a page: object, stamp, page size and encryption key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PageKey(pub(super) [u8; 16]);

impl fmt::Display for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl PageKey {
    fn seed(&self) -> u64 {
        let mut seed = [0; 8];
        seed.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(seed)
    }
}

/// The reason why a page cannot be read.
#[derive(Debug)]
pub(super) enum PageError {
    /// The page does not exist.
    Absent,
    /// The file cannot be opened.
    Disk(io::Error),
    /// The contents differ from the written ones.
    Damaged {
        /// The kind of damage.
        problem: String,
        /// The inode of the damaged file, because another file may have replaced it.
        inode: Option<u64>,
    },
}

fn damaged(inode: Option<u64>, problem: impl fmt::Display) -> PageError {
    PageError::Damaged {
        problem: problem.to_string(),
        inode,
    }
}

fn not_opened(error: io::Error) -> PageError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => PageError::Absent,
        _ => PageError::Disk(error),
    }
}

/// Returns the header of a page with this data.
pub(super) fn header(key: &PageKey, data: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEADER + data.len().div_ceil(BLOCK) * 8);
    head.extend(MAGIC);
    head.extend(key.0);
    head.extend((data.len() as u64).to_le_bytes());
    head.extend([0; 8]);
    for block in data.chunks(BLOCK) {
        head.extend(checksum(key, block).to_le_bytes());
    }
    let sum = header_checksum(key, &head);
    head[HEADER - 8..HEADER].copy_from_slice(&sum.to_le_bytes());
    head
}

fn checksum(key: &PageKey, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(key.seed(), bytes)
}

/// Returns the checksum of a header, without the bytes of the checksum itself.
fn header_checksum(key: &PageKey, head: &[u8]) -> u64 {
    let parts = [&head[..HEADER - 8], &head[HEADER..]].concat();
    checksum(key, &parts)
}

/// An open page. It stays readable if it is evicted.
pub(super) enum PageFile {
    /// Not encrypted.
    Plain(PlainPage),
    /// Encrypted.
    Sealed(Box<dyn StoredObject>),
}

/// An open page that is not encrypted.
pub(super) struct PlainPage {
    pub(super) file: File,
    inode: u64,
    key: PageKey,
    table: Vec<u64>,
    /// One bit per block, set once it was checked.
    checked: Vec<AtomicU64>,
    data_at: u64,
    bytes: u64,
}

impl PageFile {
    /// Opens the page at `path`, which must have `bytes` bytes of data.
    pub(super) fn open(path: &Path, key: PageKey, bytes: u64) -> Result<Self, PageError> {
        let file = File::open(path).map_err(not_opened)?;
        let metadata = file.metadata().map_err(PageError::Disk)?;
        let inode = Some(metadata.ino());
        let blocks = bytes.div_ceil(BLOCK as u64) as usize;
        let mut head = vec![0; HEADER + blocks * 8];
        let data_at = head.len() as u64;
        let length = metadata.len();
        if length != data_at + bytes {
            let problem = format!("expected {} bytes, found {length}", data_at + bytes);
            return Err(damaged(inode, problem));
        }
        file.read_exact_at(&mut head, 0)
            .map_err(|error| damaged(inode, error))?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let is_good = head[..8] == MAGIC
            && head[8..24] == key.0
            && word(24) == bytes
            && word(32) == header_checksum(&key, &head);
        if !is_good {
            return Err(damaged(inode, "its header is damaged"));
        }
        Ok(Self::Plain(PlainPage {
            file,
            inode: metadata.ino(),
            key,
            table: (0..blocks).map(|block| word(HEADER + block * 8)).collect(),
            checked: (0..blocks.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
            data_at,
            bytes,
        }))
    }

    /// Returns a page that is an object of an encrypted store.
    pub(super) fn sealed(
        opened: Result<Box<dyn StoredObject>, StoreError>,
        bytes: u64,
    ) -> Result<Self, PageError> {
        match opened {
            Err(error) if error.is_not_found() => Err(PageError::Absent),
            Err(StoreError::Disk { source, .. }) => Err(not_opened(source)),
            Err(error) => Err(damaged(None, error)),
            Ok(object) if object.bytes() != bytes => Err(damaged(None, "its length is wrong")),
            Ok(object) => Ok(Self::Sealed(object)),
        }
    }

    /// Fills `into` from byte `start` of the page; the range must be inside the page.
    pub(super) fn read(&self, start: u64, into: &mut [u8]) -> Result<(), PageError> {
        match self {
            Self::Plain(plain) => plain.read(start, into),
            Self::Sealed(object) => object
                .read_at(start, into)
                .map_err(|error| damaged(None, error)),
        }
    }
}

impl PlainPage {
    fn is_checked(&self, block: usize) -> bool {
        self.checked[block / 64].load(Ordering::Acquire) >> (block % 64) & 1 == 1
    }

    fn mark(&self, block: usize) {
        self.checked[block / 64].fetch_or(1 << (block % 64), Ordering::AcqRel);
    }

    fn block(&self, block: usize) -> std::ops::Range<u64> {
        let start = (block * BLOCK) as u64;
        start..(start + BLOCK as u64).min(self.bytes)
    }

    fn read(&self, start: u64, into: &mut [u8]) -> Result<(), PageError> {
        let end = start + into.len() as u64;
        let mut at = start;
        while at < end {
            let first = (at / BLOCK as u64) as usize;
            let is_checked = self.is_checked(first);
            let mut last = first;
            while self.block(last).end < end && self.is_checked(last + 1) == is_checked {
                last += 1;
            }
            let to = self.block(last).end.min(end);
            let part = &mut into[(at - start) as usize..(to - start) as usize];
            match is_checked {
                true => self.fetch(at, part)?,
                false => self.check(at, part)?,
            }
            at = to;
        }
        Ok(())
    }

    fn fetch(&self, at: u64, into: &mut [u8]) -> Result<(), PageError> {
        self.file
            .read_exact_at(into, self.data_at + at)
            .map_err(|error| damaged(Some(self.inode), error))
    }

    fn wrong(&self, block: &std::ops::Range<u64>) -> PageError {
        let (start, end) = (block.start, block.end);
        let problem = format!("bytes {start} to {end} do not match their checksum");
        damaged(Some(self.inode), problem)
    }

    /// Reads and checks blocks that were not checked yet; whole blocks are read directly into the destination.
    fn check(&self, start: u64, into: &mut [u8]) -> Result<(), PageError> {
        let end = start + into.len() as u64;
        let mut at = start;
        while at < end {
            let number = (at / BLOCK as u64) as usize;
            let block = self.block(number);
            let to = block.end.min(end);
            let part = &mut into[(at - start) as usize..(to - start) as usize];
            let is_good = |bytes: &[u8]| checksum(&self.key, bytes) == self.table[number];
            if at == block.start && to == block.end {
                self.fetch(at, part)?;
                if !is_good(part) {
                    return Err(self.wrong(&block));
                }
            } else {
                let mut whole = vec![0; (block.end - block.start) as usize];
                self.fetch(block.start, &mut whole)?;
                if !is_good(&whole) {
                    return Err(self.wrong(&block));
                }
                let (from, to) = ((at - block.start) as usize, (to - block.start) as usize);
                part.copy_from_slice(&whole[from..to]);
            }
            self.mark(number);
            at = to;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PageKey = PageKey([7; 16]);

    fn data(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
    }

    fn read_all(path: &Path, data: &[u8]) -> Result<Vec<u8>, PageError> {
        let page = PageFile::open(path, KEY, data.len() as u64)?;
        let mut into = vec![0; data.len()];
        page.read(0, &mut into).map(|()| into)
    }

    #[test]
    fn every_changed_byte_of_a_page_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let data = data(3_000);
        let whole = [header(&KEY, &data), data.clone()].concat();
        std::fs::write(&path, &whole).unwrap();
        assert!(read_all(&path, &data).unwrap() == data);
        let file = File::options().write(true).open(&path).unwrap();
        for at in 0..whole.len() {
            file.write_all_at(&[whole[at] ^ 1 << (at % 8)], at as u64)
                .unwrap();
            let read = read_all(&path, &data);
            assert!(matches!(read, Err(PageError::Damaged { .. })), "byte {at}");
            file.write_all_at(&whole[at..=at], at as u64).unwrap();
        }
        assert!(read_all(&path, &data).unwrap() == data);
        for bytes in (0..whole.len()).rev() {
            file.set_len(bytes as u64).unwrap();
            let read = read_all(&path, &data);
            assert!(
                matches!(read, Err(PageError::Damaged { .. })),
                "cut at {bytes}"
            );
        }
        std::fs::write(&path, [&*whole, b"x"].concat()).unwrap();
        assert!(matches!(
            read_all(&path, &data),
            Err(PageError::Damaged { .. })
        ));
        std::fs::write(&path, &whole).unwrap();
        let other = PageFile::open(&path, PageKey([8; 16]), data.len() as u64);
        assert!(matches!(other, Err(PageError::Damaged { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read_all(&path, &data), Err(PageError::Absent)));
    }

    #[test]
    fn any_range_can_be_read_and_only_the_blocks_read_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let data = data(5 * BLOCK + 100);
        let mut whole = [header(&KEY, &data), data.clone()].concat();
        let length = whole.len();
        // The last byte of the third block.
        whole[length - 100 - 2 * BLOCK - 1] ^= 1;
        std::fs::write(&path, &whole).unwrap();
        let page = PageFile::open(&path, KEY, data.len() as u64).unwrap();
        let check = |start: usize, bytes: usize, is_good: bool| {
            let mut into = vec![0; bytes];
            let read = page.read(start as u64, &mut into);
            assert_eq!(read.is_ok(), is_good, "{start} {bytes}");
            assert!(
                !is_good || into == data[start..start + bytes],
                "{start} {bytes}"
            );
        };
        for _ in 0..2 {
            check(0, 1, true);
            check(BLOCK - 1, 2, true);
            check(10, 2 * BLOCK - 10, true);
            check(3 * BLOCK, 2 * BLOCK + 100, true);
            check(5 * BLOCK + 99, 1, true);
            check(5 * BLOCK, 0, true);
            check(2 * BLOCK, 1, false);
            check(0, 3 * BLOCK, false);
            check(3 * BLOCK - 1, 2, false);
        }
    }
}

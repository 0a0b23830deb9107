//! [`TarMembers`]: the files in a tar archive and the offsets of their data; nothing is unpacked.
//!
//! Supports ustar, GNU long names and pax headers, and verifies the checksums of headers. Reads on after an end mark, as `tar
//! --ignore-zeros` does, so that archives that were joined with `cat` are one; other bytes after an end mark are an
//! error.
//!
//! The crate `tar` 0.4 does not serve: its archive reads names of any length into memory, takes a missing end mark for the
//! end, and expands sparse files; its headers cut sizes of more than 64 bits, and its pax records end at a line feed in a value.

use std::io::{self, Read};
use std::ops::Range;

use crate::format::window::ReadWindow;

pub(super) const BLOCK: usize = 512;
/// The largest size of a name, or of a pax header, in bytes.
const NAME_BYTES_MAX: u64 = 64 << 10;
/// Bytes that are skipped at once.
const STEP: u64 = 1 << 20;

/// A file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TarMember {
    pub(super) name: String,
    /// Offset of its first header.
    pub(super) start: u64,
    pub(super) data: Range<u64>,
    /// The reason why its data cannot be used.
    pub(super) unsupported: Option<&'static str>,
    /// The offset of the end mark before it, if it is the first file of another archive.
    pub(super) after_mark: Option<u64>,
}

const HARD_LINK: &str =
    "is a hard link, which is not supported: write the archive with `tar --hard-dereference`";
const SPARSE: &str =
    "is a sparse file, which is not supported: write the archive without `tar --sparse`";

/// The reason why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TarProblem {
    #[error("a header is damaged; the rest of the file is unreadable")]
    Header,
    #[error("a pax header is damaged")]
    Pax,
    #[error("sparse files are not supported")]
    Sparse,
    #[error("a name or header of {bytes} bytes; the limit is {NAME_BYTES_MAX}")]
    NameLength { bytes: u64 },
    #[error("invalid member size of {bytes} bytes")]
    MemberSize { bytes: u64 },
    #[error("the archive has no end mark; it may be cut off")]
    NoEndMark,
    #[error("the file ends inside a header")]
    HeaderCutOff,
    #[error("the file ends inside a block")]
    BlockCutOff,
    #[error("the file ends {bytes} bytes before the end of a member")]
    MemberCutOff { bytes: u64 },
    #[error(
        "{bytes} bytes after the end of the archive, from byte {offset}, are not another archive"
    )]
    AfterEnd { bytes: u64, offset: u64 },
    #[error(transparent)]
    Stream(io::Error),
}

/// An error that ends the reading of an archive.
#[derive(Debug)]
pub(super) struct TarError {
    pub(super) offset: u64,
    pub(super) problem: TarProblem,
    /// Whether it is inside a file rather than where a file would start.
    pub(super) is_inside: bool,
}

/// An iterator over the files of an archive. The data of each must be skipped before the next call.
pub(super) struct TarMembers<R> {
    window: ReadWindow<R>,
    /// The offset of the last end mark, after which no file was found yet.
    mark: Option<u64>,
}

/// The type of an entry.
enum EntryKind {
    File,
    HardLink,
    LongName,
    /// The long name of a link's target.
    LongLink,
    Pax,
    /// Folders, links, devices, global headers.
    Other,
}

struct TarHeader {
    kind: EntryKind,
    size: u64,
    name: String,
}

impl<R: Read> TarMembers<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            window: ReadWindow::new(reader),
            mark: None,
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.window.position()
    }

    fn broken(&self, is_inside: bool, problem: TarProblem) -> TarError {
        TarError {
            offset: self.window.position(),
            problem,
            is_inside,
        }
    }

    fn look(&mut self, bytes: usize) -> Result<&[u8], TarError> {
        let offset = self.window.position();
        self.window.look(bytes).map_err(|error| TarError {
            offset,
            problem: TarProblem::Stream(error),
            is_inside: true,
        })
    }

    /// Returns the offset of the end mark, if only the end of the stream, or bytes that are not an archive, follow it.
    pub(super) fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// Skips the zeros of an end mark. Returns whether the stream ends there.
    fn skip_mark(&mut self) -> Result<bool, TarError> {
        let mut zeros = 0;
        loop {
            let buffered = self.look(BLOCK)?;
            let block = &buffered[..buffered.len().min(BLOCK)];
            let (bytes, is_zero) = (block.len(), block.iter().all(|&byte| byte == 0));
            // A few zeros alone are a header that is cut off.
            if bytes == 0 || !is_zero || (zeros == 0 && bytes < BLOCK) {
                break;
            }
            zeros += 1;
            self.mark.get_or_insert(self.window.position());
            self.window.advance(bytes);
        }
        let is_end = zeros > 0 && self.look(1)?.is_empty();
        Ok(is_end)
    }

    /// Reads the header of an entry. `is_inside` states whether it belongs to an entry that has started.
    fn header(&mut self, is_inside: bool) -> Result<TarHeader, TarError> {
        let buffered = self.look(BLOCK)?;
        let bytes = buffered.len();
        let header = match buffered.first_chunk::<BLOCK>() {
            Some(block) => TarHeader::read(block),
            None => Err(match bytes {
                0 => TarProblem::NoEndMark,
                _ => TarProblem::HeaderCutOff,
            }),
        };
        match header {
            Ok(header) => {
                self.window.advance(BLOCK);
                Ok(header)
            }
            Err(problem) => Err(match self.mark {
                Some(mark) => self.no_archive(mark),
                None => self.broken(is_inside || bytes > 0, problem),
            }),
        }
    }

    /// Returns the error for bytes after an end mark that are not an archive. Reads them, to count them.
    fn no_archive(&mut self, mark: u64) -> TarError {
        let offset = self.window.position();
        loop {
            let bytes = match self.look(STEP as usize) {
                Ok(buffered) => buffered.len(),
                Err(error) => return error,
            };
            if bytes == 0 {
                break;
            }
            self.window.advance(bytes);
        }
        let bytes = self.window.position() - offset;
        TarError {
            offset: mark,
            problem: TarProblem::AfterEnd { bytes, offset },
            is_inside: false,
        }
    }

    /// Returns the next file, its data not yet skipped; `None` at the end of the stream, after an end mark.
    pub(super) fn next(&mut self) -> Result<Option<TarMember>, TarError> {
        let (mut start, mut long_name, mut long_size) = (self.position(), None, None);
        let (mut is_sparse, mut after_mark) = (false, None);
        loop {
            let is_inside = self.position() > start;
            if !is_inside {
                if self.skip_mark()? {
                    return Ok(None);
                }
                start = self.position();
            }
            let header = self.header(is_inside)?;
            after_mark = after_mark.or(self.mark.take());
            match header.kind {
                EntryKind::LongName => {
                    let name = self.small(header.size)?;
                    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                    long_name = Some(String::from_utf8_lossy(name).into_owned());
                }
                EntryKind::Pax => {
                    let records = self.small(header.size)?;
                    let fields = pax(&records).map_err(|problem| self.broken(true, problem))?;
                    long_name = fields.sparse_name.or(fields.path).or(long_name);
                    long_size = fields.size.or(long_size);
                    is_sparse |= fields.is_sparse;
                }
                EntryKind::LongLink => drop(self.small(header.size)?),
                EntryKind::File | EntryKind::HardLink => {
                    let size = long_size.unwrap_or(header.size);
                    let begin = self.position();
                    let end = begin.checked_add(size).filter(|&end| end < u64::MAX / 2);
                    let end = end
                        .ok_or_else(|| self.broken(true, TarProblem::MemberSize { bytes: size }))?;
                    return Ok(Some(TarMember {
                        name: long_name.unwrap_or(header.name),
                        start,
                        data: begin..end,
                        unsupported: match header.kind {
                            EntryKind::HardLink => Some(HARD_LINK),
                            _ => is_sparse.then_some(SPARSE),
                        },
                        after_mark,
                    }));
                }
                EntryKind::Other => {
                    self.skip(header.size, |_| {})?;
                    (start, long_name, long_size) = (self.position(), None, None);
                    is_sparse = false;
                }
            }
        }
    }

    /// Skips the data of a file and its padding, and passes the data to `each`.
    pub(super) fn skip(&mut self, bytes: u64, mut each: impl FnMut(&[u8])) -> Result<(), TarError> {
        let mut left = bytes;
        while left > 0 {
            let step = left.min(STEP);
            let buffered = self.look(step as usize)?;
            let buffered = &buffered[..buffered.len().min(step as usize)];
            each(buffered);
            let count = buffered.len();
            self.window.advance(count);
            left -= count as u64;
            if (count as u64) < step {
                return Err(self.broken(true, TarProblem::MemberCutOff { bytes: left }));
            }
        }
        let fill = (bytes.wrapping_neg() % BLOCK as u64) as usize;
        let buffered = self.look(fill)?.len().min(fill);
        self.window.advance(buffered);
        match buffered == fill {
            true => Ok(()),
            false => Err(self.broken(true, TarProblem::BlockCutOff)),
        }
    }

    /// Returns the data of a small entry.
    fn small(&mut self, bytes: u64) -> Result<Vec<u8>, TarError> {
        if bytes > NAME_BYTES_MAX {
            return Err(self.broken(true, TarProblem::NameLength { bytes }));
        }
        let mut contents = Vec::new();
        self.skip(bytes, |part| contents.extend_from_slice(part))?;
        Ok(contents)
    }
}

impl TarHeader {
    fn read(block: &[u8; BLOCK]) -> Result<Self, TarProblem> {
        let damaged = || TarProblem::Header;
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        let own: u64 = block[148..156].iter().map(|&byte| u64::from(byte)).sum();
        if octal(&block[148..156]) != Some(sum - own + 8 * u64::from(b' ')) {
            return Err(damaged());
        }
        let size = match block[124] & 0x80 {
            0 => octal(&block[124..136]).ok_or_else(damaged)?,
            // Binary if the highest bit is set.
            _ => block[125..136]
                .iter()
                .try_fold(u64::from(block[124] & 0x7f), |size, &byte| {
                    size.checked_mul(256).map(|size| size | u64::from(byte))
                })
                .ok_or_else(damaged)?,
        };
        let kind = match block[156] {
            b'0' | 0 | b'7' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'L' => EntryKind::LongName,
            b'K' => EntryKind::LongLink,
            b'x' => EntryKind::Pax,
            b'S' => return Err(TarProblem::Sparse),
            _ => EntryKind::Other,
        };
        let text = |bytes: &[u8]| {
            let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let (name, prefix) = (text(&block[..100]), text(&block[345..500]));
        let has_prefix = &block[257..263] == b"ustar\0" && !prefix.is_empty();
        Ok(Self {
            kind,
            size,
            name: if has_prefix {
                format!("{prefix}/{name}")
            } else {
                name
            },
        })
    }
}

/// Parses an octal number padded with blanks or zeros.
fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches(|sign| sign == ' ' || sign == '\0');
    match digits.is_empty() {
        true => Some(0),
        false => u64::from_str_radix(digits, 8).ok(),
    }
}

/// The fields of a pax header that matter for reading.
#[derive(Default)]
struct PaxFields {
    path: Option<String>,
    size: Option<u64>,
    is_sparse: bool,
    /// The path of a sparse file, whose `path` is made up.
    sparse_name: Option<String>,
}

/// Parses a pax header, which consists of lines of `length key=value`.
fn pax(mut records: &[u8]) -> Result<PaxFields, TarProblem> {
    let damaged = || TarProblem::Pax;
    let mut fields = PaxFields::default();
    while !records.is_empty() {
        let space = records
            .iter()
            .position(|&byte| byte == b' ')
            .ok_or_else(damaged)?;
        let length = std::str::from_utf8(&records[..space]).ok();
        let length: usize = length
            .and_then(|text| text.parse().ok())
            .ok_or_else(damaged)?;
        let record = records.get(space + 1..length).ok_or_else(damaged)?;
        let record = record.strip_suffix(b"\n").ok_or_else(damaged)?;
        if let Some(value) = record.strip_prefix(b"path=") {
            fields.path = Some(String::from_utf8_lossy(value).into_owned());
        } else if let Some(value) = record.strip_prefix(b"size=") {
            let text = std::str::from_utf8(value).ok();
            fields.size = Some(
                text.and_then(|text| text.parse().ok())
                    .ok_or_else(damaged)?,
            );
        } else if let Some(field) = record.strip_prefix(b"GNU.sparse.") {
            fields.is_sparse = true;
            if let Some(name) = field.strip_prefix(b"name=") {
                fields.sparse_name = Some(String::from_utf8_lossy(name).into_owned());
            }
        }
        records = &records[length..];
    }
    Ok(fields)
}

/// Returns key and field from a member's name; `None` for a member that belongs to no record.
pub(super) fn split(name: &str) -> Option<(&str, &str)> {
    let file = name.rfind('/').map_or(0, |at| at + 1);
    let dot = file + name[file..].find('.')?;
    let is_named = dot > file && dot + 1 < name.len();
    is_named.then(|| (&name[..dot], &name[dot + 1..]))
}

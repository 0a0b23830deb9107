//! An archive as lines of text, for output in which Ray and the program write other lines.
//!
//! Each line is written at once, so another line may be between two of them, but not within one.

use std::io::{Error, ErrorKind, Result, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The prefix of an archive's lines.
const LINE: &str = "archive: ";
/// The line after the last one.
const END: &str = "archive ends";
/// The bytes of a line: the text of one fits into the smallest buffer of a pipe that is written at once.
const LINE_BYTES: usize = 3 * 128;

/// Writes bytes as lines of text (base64, RFC 4648); [`TextArchiveWriter::finish`] ends them.
pub(crate) struct TextArchiveWriter<'a> {
    out: &'a mut dyn Write,
    pending: Vec<u8>,
}

impl<'a> TextArchiveWriter<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            pending: Vec::with_capacity(LINE_BYTES),
        }
    }

    fn write_line(&mut self) -> Result<()> {
        let line = format!("{LINE}{}\n", STANDARD.encode(&self.pending));
        self.pending.clear();
        self.out.write_all(line.as_bytes())?;
        self.out.flush()
    }

    /// Writes the last lines.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(crate) fn finish(mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.write_line()?;
        }
        self.out.write_all(format!("{END}\n").as_bytes())?;
        self.out.flush()
    }
}

impl Write for TextArchiveWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let taken = bytes.len().min(LINE_BYTES - self.pending.len());
        self.pending.extend_from_slice(&bytes[..taken]);
        if self.pending.len() == LINE_BYTES {
            self.write_line()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Reads the bytes from the lines of an output.
///
/// # Errors
/// A line is damaged, or the end is missing.
pub(crate) fn read(output: &str) -> Result<Vec<u8>> {
    let invalid = |problem: String| Error::new(ErrorKind::InvalidData, problem);
    let mut bytes = Vec::new();
    for line in output.lines() {
        if line == END {
            return Ok(bytes);
        }
        if let Some(text) = line.strip_prefix(LINE) {
            let decoded = STANDARD.decode(text);
            bytes.extend(decoded.map_err(|error| invalid(format!("a line is damaged: {error}")))?);
        }
    }
    Err(invalid("its end is missing".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_others_do_not_matter_and_a_missing_end_is_found() {
        for len in [0, 1, LINE_BYTES, 5 * LINE_BYTES + 7] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let mut text = Vec::new();
            let mut writer = TextArchiveWriter::new(&mut text);
            writer.write_all(&bytes).unwrap();
            writer.finish().unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.lines().all(|line| line.len() <= 4096));
            let between = text.replace('\n', "\nRunning entrypoint for job x\n");
            for output in [&text, &between] {
                assert_eq!(read(output).unwrap(), bytes);
            }
            let cut = text.strip_suffix(&format!("{END}\n")).unwrap();
            assert!(read(cut).is_err());
        }
        assert!(read(&format!("{LINE}A\n{END}\n")).is_err());
    }
}

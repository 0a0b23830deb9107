//! The output of a process on another host with its position in the file, so that a reader whose connection is lost can
//! continue.

use std::io::Write;

use crate::log_reader::LogPosition;

/// The word with which the line before each part of the output begins.
const MARK: &str = "ronde-output";
/// The maximum length of such a line.
const LINE_BYTES_MAX: usize = 256;

/// Writes a part of the output: a line with its position and its length, and the bytes.
pub(crate) fn write_frame(
    out: &mut dyn Write,
    position: LogPosition,
    bytes: &[u8],
) -> std::io::Result<()> {
    writeln!(out, "{MARK} {position} {}", bytes.len())?;
    out.write_all(bytes)?;
    out.flush()
}

/// Reads what [`write_frame`] has written, passes the bytes on, and knows the position behind them.
pub(crate) struct OutputFrameReader<'a> {
    out: &'a mut dyn Write,
    line: Vec<u8>,
    /// The bytes of the part that have not arrived.
    missing: u64,
    position: Option<LogPosition>,
    is_new: bool,
}

impl<'a> OutputFrameReader<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            line: Vec::new(),
            missing: 0,
            position: None,
            is_new: false,
        }
    }

    /// Begins to read what another connection sends. Returns the position from which it must continue.
    pub(crate) fn restart(&mut self) -> Option<LogPosition> {
        self.line.clear();
        self.missing = 0;
        self.position
    }

    /// Returns whether bytes were passed on since the last call.
    pub(crate) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Reads a line before a part. Lines that the shell of the host prints are ignored.
    fn read_line(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        let mut words = line.split_whitespace();
        if let (Some(MARK), Some(position), Some(length)) =
            (words.next(), words.next(), words.next())
            && let (Ok(position), Ok(length)) = (position.parse(), length.parse())
        {
            (self.position, self.missing) = (Some(position), length);
        }
    }
}

impl Write for OutputFrameReader<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.missing == 0 {
                let end = rest.iter().position(|byte| *byte == b'\n');
                let (line, after) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
                if self.line.len() < LINE_BYTES_MAX {
                    self.line.extend_from_slice(line);
                }
                if end.is_some() {
                    self.read_line();
                }
                rest = after;
                continue;
            }
            let length = rest
                .len()
                .min(usize::try_from(self.missing).unwrap_or(usize::MAX));
            let (part, after) = rest.split_at(length);
            self.out.write_all(part)?;
            self.missing -= length as u64;
            if let Some(position) = &mut self.position {
                position.offset += length as u64;
            }
            self.is_new = true;
            rest = after;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_continues_after_a_connection_that_was_lost_anywhere() {
        let at = |offset: u64| format!("7:1:{offset}").parse::<LogPosition>().unwrap();
        let mut sent = b"Welcome to this host\n".to_vec();
        write_frame(&mut sent, at(0), b"one\ntwo\n").unwrap();
        write_frame(&mut sent, at(8), b"three\n").unwrap();
        for cut in 0..=sent.len() {
            let mut out = Vec::new();
            let mut reader = OutputFrameReader::new(&mut out);
            // In parts, as from a network.
            for part in sent[..cut].chunks(5) {
                reader.write_all(part).unwrap();
            }
            let done = reader.restart().map_or(0, |position| position.offset);
            let mut again = Vec::new();
            let rest = usize::try_from(done).unwrap();
            write_frame(&mut again, at(done), &b"one\ntwo\nthree\n"[rest..]).unwrap();
            reader.write_all(&again).unwrap();
            assert_eq!(out, b"one\ntwo\nthree\n", "cut after {cut} bytes");
        }
    }
}

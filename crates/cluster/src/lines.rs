//! [`LineCutter`]: splits the output of a process into lines of bounded length.

/// The maximum length of an output line of a rank that is delivered in one piece, in bytes.
pub const LINE_BYTES_MAX: usize = 16 << 10;

/// The unfinished line of one stream.
#[derive(Default)]
pub(crate) struct LineCutter {
    held: Vec<u8>,
    /// Whether a carriage return ended the previous line, so that a following line feed belongs to
    /// it.
    returned: bool,
}

impl LineCutter {
    /// Consumes bytes and emits complete lines. A line ends at `\n`, `\r\n` or, as in progress
    /// bars, `\r`; a line of more than [`LINE_BYTES_MAX`] bytes is emitted in pieces.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut emit: impl FnMut(&str)) {
        for &byte in bytes {
            match byte {
                b'\n' if self.returned => self.returned = false,
                b'\n' | b'\r' => {
                    self.returned = byte == b'\r';
                    // A carriage return at the start of a line only moves the cursor.
                    if byte == b'\n' || !self.held.is_empty() {
                        emit(&String::from_utf8_lossy(&self.held));
                        self.held.clear();
                    } else {
                        self.returned = false;
                    }
                }
                _ => {
                    self.returned = false;
                    self.held.push(byte);
                    if self.held.len() >= LINE_BYTES_MAX {
                        self.emit_piece(&mut emit);
                    }
                }
            }
        }
    }

    /// Emits the held bytes except for an incomplete character at their end.
    fn emit_piece(&mut self, emit: &mut impl FnMut(&str)) {
        let end = match std::str::from_utf8(&self.held) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.held.len(),
        };
        emit(&String::from_utf8_lossy(&self.held[..end]));
        self.held.drain(..end);
    }

    /// Emits a last line without a line ending.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(&str)) {
        if !self.held.is_empty() {
            emit(&String::from_utf8_lossy(&self.held));
            self.held.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines do not depend on how the bytes are split.
    fn check(bytes: &[u8], expected: &[&str]) {
        for piece in [1, 2, 3, bytes.len().max(1)] {
            let (mut cutter, mut lines) = (LineCutter::default(), Vec::new());
            for part in bytes.chunks(piece) {
                cutter.feed(part, |line| lines.push(line.to_owned()));
            }
            cutter.finish(|line| lines.push(line.to_owned()));
            assert_eq!(lines, expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn lines_end_at_line_feeds_and_carriage_returns() {
        check(b"", &[]);
        check(b"one\ntwo\n", &["one", "two"]);
        check(b"one\n\ntwo", &["one", "", "two"]);
        check(b"one\r\ntwo\r\n", &["one", "two"]);
        check(b"\r 1%\r 2%\r\ndone\n", &[" 1%", " 2%", "done"]);
        check("d\u{e9}j\u{e0} vu\n".as_bytes(), &["d\u{e9}j\u{e0} vu"]);
        check(b"a\xffb\n\xe2\x82", &["a\u{fffd}b", "\u{fffd}"]);
    }

    #[test]
    fn long_lines_are_split_between_characters() {
        let text = "\u{20ac}".repeat(20_000);
        let (mut cutter, mut pieces) = (LineCutter::default(), Vec::new());
        cutter.feed(text.as_bytes(), |piece| pieces.push(piece.to_owned()));
        cutter.finish(|piece| pieces.push(piece.to_owned()));
        assert!(pieces.iter().all(|p| p.len() <= LINE_BYTES_MAX));
        assert_eq!(pieces.concat(), text);
        assert_eq!(pieces.len(), 4);
    }
}

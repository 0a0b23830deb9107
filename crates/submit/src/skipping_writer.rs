//! [`SkippingWriter`]: leaves out the beginning of an output that was shown before.

use std::io::Write;

/// Passes on an output after its first bytes.
pub(crate) struct SkippingWriter<'a> {
    out: &'a mut dyn Write,
    skipped: u64,
    seen: u64,
}

impl<'a> SkippingWriter<'a> {
    /// Leaves out the first `skipped` bytes.
    pub(crate) fn new(out: &'a mut dyn Write, skipped: u64) -> Self {
        Self {
            out,
            skipped,
            seen: 0,
        }
    }

    /// Returns the number of bytes that the output has had so far, with those that were left out.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }
}

impl Write for SkippingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = self.skipped.saturating_sub(self.seen);
        let begin = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        self.out.write_all(&bytes[begin..])?;
        self.seen += bytes.len() as u64;
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
    fn only_what_was_not_shown_is_passed_on() {
        let mut out = Vec::new();
        let mut rest = SkippingWriter::new(&mut out, 5);
        for part in ["abc", "", "defg", "h"] {
            rest.write_all(part.as_bytes()).unwrap();
        }
        assert_eq!(rest.seen(), 8);
        assert_eq!(out, b"fgh");
    }
}

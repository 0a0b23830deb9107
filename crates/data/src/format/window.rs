//! [`ReadWindow`]: a look-ahead buffer over a stream.

use std::io::{self, Read};

/// Bytes of one read.
const CHUNK: usize = 1 << 20;

/// A look-ahead buffer over a stream, which its user advances.
///
/// Memory: the bytes that were requested at once and exist, and a chunk of 1 MiB.
pub(crate) struct ReadWindow<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    /// Offset of `buffer[start]` in the stream.
    position: u64,
    has_ended: bool,
}

impl<R: Read> ReadWindow<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            start: 0,
            position: 0,
            has_ended: false,
        }
    }

    /// Returns the offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next bytes: at least `bytes`, unless the stream ends before.
    pub(crate) fn look(&mut self, bytes: usize) -> io::Result<&[u8]> {
        while self.buffer.len() - self.start < bytes && !self.has_ended {
            self.more()?;
        }
        Ok(&self.buffer[self.start..])
    }

    /// Reads one more chunk; returns `false` at the end of the stream.
    pub(crate) fn more(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let kept = self.buffer.len();
        self.buffer.resize(kept + CHUNK, 0);
        let mut filled = kept;
        while filled < self.buffer.len() {
            match self.reader.read(&mut self.buffer[filled..]) {
                Ok(0) => {
                    self.has_ended = true;
                    break;
                }
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.buffer.truncate(kept);
                    return Err(error);
                }
            }
        }
        self.buffer.truncate(filled);
        Ok(filled > kept)
    }

    /// Returns the buffered bytes.
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Skips `bytes` buffered bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.buffer.len() - self.start);
        self.start += bytes;
        self.position += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_stream_is_returned_for_any_request_sizes() {
        let stream: Vec<u8> = (0..3 * CHUNK + 17).map(|n| (n % 251) as u8).collect();
        let mut window = ReadWindow::new(&stream[..]);
        let mut whole = Vec::new();
        for needed in [1, 7, CHUNK + 5, 0, 2 * CHUNK, 100].into_iter().cycle() {
            let buffered = window.look(needed).unwrap();
            let take = needed.min(buffered.len());
            whole.extend_from_slice(&buffered[..take]);
            let is_short = take < needed;
            window.advance(take);
            assert_eq!(window.position(), whole.len() as u64);
            if is_short {
                break;
            }
        }
        assert_eq!(whole, stream);
    }
}

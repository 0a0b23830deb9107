//! [`LineStream`]: messages as lines of JSON over a connection.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::WireError;
use crate::wire_stream::WireStream;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// The interval between two reports of a wait for a line.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A connection of lines.
#[derive(Debug)]
pub struct LineStream {
    stream: WireStream,
    /// Bytes after the lines that were returned.
    received: Vec<u8>,
}

impl LineStream {
    /// Sends and receives lines over a connection.
    #[must_use]
    pub fn new(stream: WireStream) -> Self {
        Self {
            stream,
            received: Vec::new(),
        }
    }

    /// Returns the connection, and the bytes that were received after the last line.
    #[must_use]
    pub fn into_parts(self) -> (WireStream, Vec<u8>) {
        (self.stream, self.received)
    }

    /// Returns the connection.
    #[must_use]
    pub fn stream(&self) -> &WireStream {
        &self.stream
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`WireError::Late`] after `end`; those of the connection.
    pub fn send(&mut self, message: &impl Serialize, end: Instant) -> Result<(), WireError> {
        let mut line = serde_json::to_vec(message).map_err(WireError::Message)?;
        line.push(b'\n');
        Ok(self.stream.write_all(&line, end)?)
    }

    /// Returns the next line, of at most `limit` bytes, without its end. Calls `waiting` now and then before it arrives.
    ///
    /// # Errors
    /// [`WireError::Late`] after `end`, [`WireError::Closed`], [`WireError::TooLong`]; those of the connection.
    pub fn next_line(
        &mut self,
        limit: usize,
        end: Instant,
        waiting: &mut dyn FnMut(),
    ) -> Result<Vec<u8>, WireError> {
        let mut piece = [0; READ_BYTES];
        loop {
            let end_of_line = self.received.iter().position(|byte| *byte == b'\n');
            if end_of_line.unwrap_or(self.received.len()) > limit {
                return Err(WireError::TooLong { limit });
            }
            if let Some(at) = end_of_line {
                let rest = self.received.split_off(at + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.truncate(at);
                return Ok(line);
            }
            let until = end.min(ronde_clock::deadline(LOOK_EVERY));
            match self.stream.read(&mut piece, until).map_err(WireError::from) {
                Ok(0) => return Err(WireError::Closed),
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(WireError::Late) if !ronde_clock::left(end).is_zero() => waiting(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the next message, in a line of at most `limit` bytes.
    ///
    /// # Errors
    /// As for [`LineStream::next_line`]; [`WireError::Message`] for another message.
    pub fn next<M: DeserializeOwned>(
        &mut self,
        limit: usize,
        end: Instant,
        waiting: &mut dyn FnMut(),
    ) -> Result<M, WireError> {
        let line = self.next_line(limit, end, waiting)?;
        serde_json::from_slice(&line).map_err(WireError::Message)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    fn lines(sent: &[u8]) -> LineStream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        dialled.write_all(sent).unwrap();
        LineStream::new(WireStream::Plain(listener.accept().unwrap().0))
    }

    #[test]
    fn lines_are_cut_apart_and_their_length_is_limited() {
        let end = ronde_clock::deadline(Duration::from_secs(60));
        let mut stream = lines(b"\"one\"\n\"two\"\nrest\nand");
        assert_eq!(stream.next::<String>(10, end, &mut || {}).unwrap(), "one");
        assert_eq!(stream.next_line(10, end, &mut || {}).unwrap(), b"\"two\"");
        let error = stream.next::<String>(10, end, &mut || {}).unwrap_err();
        assert!(matches!(error, WireError::Message(_)), "{error}");
        let error = stream.next_line(10, end, &mut || {}).unwrap_err();
        assert!(matches!(error, WireError::Closed), "{error}");
        let (_, rest) = stream.into_parts();
        assert_eq!(rest, b"and");
        for long in [&b"12345678901"[..], b"12345678901\n"] {
            let error = lines(long).next_line(10, end, &mut || {});
            assert!(matches!(error, Err(WireError::TooLong { limit: 10 })));
        }
    }

    #[test]
    fn a_line_that_does_not_end_is_waited_for_until_the_deadline() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        dialled.write_all(b"half").unwrap();
        let mut stream = LineStream::new(WireStream::Plain(listener.accept().unwrap().0));
        let mut waits = 0;
        let end = ronde_clock::deadline(LOOK_EVERY * 3 / 2);
        let error = stream.next_line(10, end, &mut || waits += 1).unwrap_err();
        assert!(matches!(error, WireError::Late), "{error}");
        assert_eq!(waits, 1);
        drop(dialled);
    }
}

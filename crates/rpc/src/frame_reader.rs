//! [`FrameReader`]: bytes of one connection in, frames out. Values are read where they stay.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use ronde_peer_memory::PeerMemory;

use crate::frame::{ADDRESS_BYTES, FrameBody, HEADER_BYTES, RpcFrameError, RpcFrameHeader};
use crate::values::{CallValues, ValuePool};

/// Bytes read ahead, for short frames.
const STAGING_BYTES: usize = 32 << 10;
/// Memory that is taken for values before any of them arrived, in elements; more follows what arrives.
const FIRST_VALUES: usize = 1 << 20;

/// Reads frames from a connection.
pub(crate) struct FrameReader {
    staging: Vec<u8>,
    at: usize,
    end: usize,
    sequence: u32,
    message_bytes_max: usize,
    pool: Arc<ValuePool>,
    partial: Option<PartialFrame>,
    /// Where lent values are read.
    memory: Option<PeerMemory>,
    /// Frames with lent values that were read since the last [`FrameReader::take_read_lent`].
    read_lent: u64,
}

/// A frame whose header was read.
struct PartialFrame {
    header: RpcFrameHeader,
    head: Vec<u8>,
    values: Vec<f32>,
    /// Bytes of the values that were received.
    received: usize,
}

impl FrameReader {
    pub(crate) fn new(message_bytes_max: usize, pool: Arc<ValuePool>) -> Self {
        Self {
            staging: vec![0; STAGING_BYTES],
            at: 0,
            end: 0,
            sequence: 0,
            message_bytes_max,
            pool,
            partial: None,
            memory: None,
            read_lent: 0,
        }
    }

    /// Allows frames whose values are in the peer's memory.
    pub(crate) fn read_lent_from(&mut self, memory: PeerMemory) {
        self.memory = Some(memory);
    }

    /// Returns how many frames with lent values were read since the last call.
    pub(crate) fn take_read_lent(&mut self) -> u64 {
        std::mem::take(&mut self.read_lent)
    }

    /// Reads until a frame is complete; `None` if `read` would block before.
    ///
    /// # Errors
    /// Those of `read`; `InvalidData` for bytes that are not the next frame; `UnexpectedEof` at the end of the stream.
    pub(crate) fn next(
        &mut self,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Option<FrameBody>> {
        loop {
            if self.advance()? {
                let partial = self.partial.take();
                return partial.map(|partial| self.finished(partial)).transpose();
            }
            let direct = self.partial.as_mut().and_then(PartialFrame::rest_of_values);
            let outcome = match direct {
                // The staged bytes were used before.
                Some(rest) => read(rest).map(|count| (count, 0)),
                None => {
                    self.make_room();
                    read(&mut self.staging[self.end..]).map(|count| (0, count))
                }
            };
            match outcome {
                Ok((0, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((values, staged)) => {
                    self.end += staged;
                    if let Some(partial) = &mut self.partial {
                        partial.received += values;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns how many bytes of the values of the current frame were received, if they are incomplete.
    pub(crate) fn received_values(&self) -> Option<usize> {
        let partial = self.partial.as_ref()?;
        (partial.received > 0).then_some(partial.received)
    }

    /// Returns whether no frame has begun.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.partial.is_none() && self.at == self.end
    }

    fn make_room(&mut self) {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        } else if self.end == self.staging.len() {
            self.staging.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
        }
    }

    /// Uses staged bytes. Returns whether the current frame is complete.
    fn advance(&mut self) -> io::Result<bool> {
        if self.partial.is_none() {
            let staged = &self.staging[self.at..self.end];
            let Some(bytes) = staged.first_chunk::<HEADER_BYTES>() else {
                return Ok(false);
            };
            let header = RpcFrameHeader::decode(bytes, self.message_bytes_max).map_err(invalid)?;
            if header.sequence != self.sequence {
                let (got, expected) = (header.sequence, self.sequence);
                return Err(invalid(format!(
                    "frame {got} arrived in place of {expected}"
                )));
            }
            self.sequence = self.sequence.wrapping_add(1);
            self.at += HEADER_BYTES;
            let values = header.value_count as usize;
            self.partial = Some(PartialFrame {
                header,
                head: Vec::with_capacity((header.head_bytes as usize).min(STAGING_BYTES)),
                values: match values {
                    0 => Vec::new(),
                    _ => self.pool.take(values, FIRST_VALUES),
                },
                received: 0,
            });
        }
        let partial = self.partial.as_mut().expect("it was set above");
        self.at += partial.take(&self.staging[self.at..self.end]);
        Ok(partial.is_complete())
    }

    fn finished(&mut self, mut partial: PartialFrame) -> io::Result<FrameBody> {
        let len = partial.header.value_count as usize;
        if partial.header.is_lent {
            let memory = self
                .memory
                .as_ref()
                .ok_or_else(|| invalid("values in its memory, which it does not lend"))?;
            partial.read_lent_values(memory)?;
            self.read_lent += 1;
        }
        Ok(FrameBody {
            kind: partial.header.kind,
            call: partial.header.call,
            head: partial.head,
            values: match len {
                0 => CallValues::none(),
                _ => CallValues::received(partial.values, len, &self.pool),
            },
        })
    }
}

impl PartialFrame {
    fn is_complete(&self) -> bool {
        let has_values = self.header.is_lent || self.received == self.value_bytes();
        self.head.len() == self.header.head_bytes as usize && has_values
    }

    /// Removes the address from the head, and copies the values from there. Memory grows with what could be read.
    fn read_lent_values(&mut self, memory: &PeerMemory) -> io::Result<()> {
        let address = self.head.split_off(self.head.len() - ADDRESS_BYTES);
        let address = address.first_chunk().copied().map(u64::from_le_bytes);
        let address = address.ok_or_else(|| invalid(RpcFrameError::NoAddress))?;
        self.header.is_lent = false;
        self.header.head_bytes = self.head.len() as u32;
        loop {
            let from = address.saturating_add(self.received as u64);
            let Some(rest) = self.rest_of_values() else {
                return Ok(());
            };
            let count = rest.len();
            memory.read(from, rest)?;
            self.received += count;
        }
    }

    fn value_bytes(&self) -> usize {
        4 * self.header.value_count as usize
    }

    /// Takes the head and values from the start of `bytes`, and returns how many bytes were taken.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let head = (self.header.head_bytes as usize - self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..head]);
        let mut taken = head;
        while self.head.len() == self.header.head_bytes as usize
            && taken < bytes.len()
            && self.received < self.value_bytes()
        {
            let Some(rest) = self.rest_of_values() else {
                break;
            };
            let count = rest.len().min(bytes.len() - taken);
            rest[..count].copy_from_slice(&bytes[taken..taken + count]);
            self.received += count;
            taken += count;
        }
        taken
    }

    /// Returns the memory for the next bytes of the values, once the head is complete. Grows with what has arrived.
    fn rest_of_values(&mut self) -> Option<&mut [u8]> {
        let total = self.value_bytes();
        let is_early = self.head.len() < self.header.head_bytes as usize;
        if is_early || self.header.is_lent || self.received == total {
            return None;
        }
        if self.received == 4 * self.values.len() {
            let more = (2 * self.values.len()).max(FIRST_VALUES);
            self.values.resize(more.min(total / 4), 0.0);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.values);
        let end = bytes.len().min(total);
        Some(&mut bytes[self.received..end])
    }
}

fn invalid(cause: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<FrameBody> {
        let body = |call, head: usize, values: usize| FrameBody {
            kind: crate::frame::RpcFrameKind::Call,
            call,
            head: (0..head).map(|byte| byte as u8).collect(),
            values: (0..values)
                .map(|value| value as f32)
                .collect::<Vec<_>>()
                .into(),
        };
        vec![
            body(1, 0, 0),
            body(2, 10, 3),
            body(3, 70_000, 0),
            body(4, 5, 100_000),
            body(5, 0, 1),
            body(6, 3, (FIRST_VALUES << 1) + 5),
        ]
    }

    fn bytes_of(frames: &[FrameBody]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (sequence, frame) in frames.iter().enumerate() {
            bytes.extend(frame.header(sequence as u32).encode());
            bytes.extend(&frame.head);
            bytes.extend(frame.values.as_bytes());
        }
        bytes
    }

    fn read_all(mut bytes: &[u8], piece: usize) -> (Vec<FrameBody>, io::Error) {
        let mut reader = FrameReader::new(1 << 30, Arc::default());
        let mut frames = Vec::new();
        let mut blocks = false;
        loop {
            let outcome = reader.next(&mut |into| {
                blocks = !blocks;
                if blocks {
                    return Err(ErrorKind::WouldBlock.into());
                }
                let count = piece.min(into.len()).min(bytes.len());
                into[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                Ok(count)
            });
            match outcome {
                Ok(frame) => frames.extend(frame),
                Err(error) => return (frames, error),
            }
        }
    }

    #[test]
    fn frames_in_pieces_of_any_size_are_read() {
        let sent = frames();
        for piece in [100, 32, 4_096, 1 << 20, usize::MAX] {
            let (received, end) = read_all(&bytes_of(&sent), piece);
            assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
            assert_eq!(received.len(), sent.len());
            for (sent, received) in sent.iter().zip(&received) {
                assert_eq!((sent.call, &sent.head), (received.call, &received.head));
                assert!(sent.values[..] == received.values[..], "{}", sent.call);
            }
        }
    }

    #[test]
    fn repeated_lost_and_reordered_frames_end_the_connection() {
        let all = frames();
        let one = |index: usize| {
            let mut bytes = all[index].header(index as u32).encode().to_vec();
            bytes.extend(&all[index].head);
            bytes.extend(all[index].values.as_bytes());
            bytes
        };
        for order in [vec![0, 0], vec![0, 2], vec![1, 0], vec![0, 1, 0]] {
            let bytes: Vec<u8> = order.iter().flat_map(|&index| one(index)).collect();
            let (received, end) = read_all(&bytes, usize::MAX);
            assert_eq!(end.kind(), ErrorKind::InvalidData, "{order:?}: {end}");
            assert!(received.len() < order.len());
        }
    }

    #[test]
    fn a_lying_length_takes_only_the_memory_of_what_arrived() {
        let mut header = frames()[3].header(0);
        header.value_count = 1 << 27;
        let mut reader = FrameReader::new(1 << 30, Arc::default());
        let bytes = header.encode();
        let mut sent = false;
        let outcome = reader.next(&mut |into| {
            if std::mem::replace(&mut sent, true) {
                return Err(ErrorKind::WouldBlock.into());
            }
            into[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        assert!(outcome.unwrap().is_none());
        let partial = reader.partial.as_ref().unwrap();
        assert!(partial.values.len() <= FIRST_VALUES);
    }
}

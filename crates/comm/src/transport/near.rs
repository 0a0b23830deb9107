//! [`NearStreams`]: bytes for members of the same host go through rings of shared memory, those for all others over
//! another transport. That one stays between all members: it wakes who sleeps before an empty or a full
//! ring, and its end is the end of the peer.

mod introduce;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use super::{Interest, Transport, Waker};
use crate::shared::{RingReader, RingWriter};
pub(crate) use introduce::introduce;

/// The streams below are looked at in every so many waits that do not block, while rings alone are waited
/// for.
const LOOK_BELOW: u32 = 16;

/// Bytes that are written at once: then they can be read.
const PIECE_BYTES: usize = 16 << 10;

/// How the stream below has ended, if it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    Open,
    Finished,
    Lost(ErrorKind),
}

/// A member whose memory this one shares.
#[derive(Debug)]
struct NearPeer {
    out: RingWriter,
    into: RingReader,
    end: StreamEnd,
}

impl NearPeer {
    fn new(out: RingWriter, into: RingReader) -> Self {
        let end = StreamEnd::Open;
        Self { out, into, end }
    }

    /// What of `wanted` is possible; with `sleeps`, this member is woken once more is.
    fn possible(&self, wanted: Interest, sleeps: bool) -> Interest {
        let is_open = self.end == StreamEnd::Open;
        Interest {
            read: wanted.read && (self.into.has_bytes(sleeps && is_open) || !is_open),
            write: wanted.write
                && (self.out.has_room(sleeps && is_open) || matches!(self.end, StreamEnd::Lost(_))),
        }
    }

    fn get_up(&self) {
        self.into.get_up();
        self.out.get_up();
    }
}

/// Streams to all other members, those of this host through shared memory.
#[derive(Debug)]
pub(crate) struct NearStreams {
    below: Box<dyn Transport>,
    /// By group rank.
    neighbours: Vec<Option<NearPeer>>,
    /// Waits since the streams below were looked at.
    unlooked: u32,
}

impl NearStreams {
    fn new(below: Box<dyn Transport>, neighbours: Vec<Option<NearPeer>>) -> Self {
        Self {
            below,
            neighbours,
            unlooked: 0,
        }
    }

    /// What of `wanted` is possible by the rings, by peer.
    fn by_rings(&self, wanted: &[Interest], sleeps: bool) -> Vec<Interest> {
        let each = self.neighbours.iter().zip(wanted);
        each.map(|(neighbour, &wanted)| match neighbour {
            Some(neighbour) => neighbour.possible(wanted, sleeps),
            None => Interest::default(),
        })
        .collect()
    }

    /// What is wanted of the streams below.
    fn of_below(&self, wanted: &[Interest]) -> Vec<Interest> {
        let each = self.neighbours.iter().zip(wanted);
        each.map(|(neighbour, &wanted)| match neighbour {
            Some(neighbour) => Interest {
                read: any(wanted) && neighbour.end == StreamEnd::Open,
                write: false,
            },
            None => wanted,
        })
        .collect()
    }

    /// Waits for the streams below, and takes what neighbours have said there; what is possible with the
    /// others.
    fn wait_below(
        &mut self,
        wanted: &[Interest],
        limit: Option<Duration>,
    ) -> io::Result<Vec<Interest>> {
        self.unlooked = 0;
        let mut possible = self.of_below(wanted);
        self.below.wait(&mut possible, limit)?;
        for (peer, neighbour) in self.neighbours.iter_mut().enumerate() {
            if let Some(neighbour) = neighbour
                && std::mem::take(&mut possible[peer]).read
            {
                neighbour.end = hear(&mut *self.below, peer);
            }
        }
        Ok(possible)
    }

    fn wake(&mut self, peer: usize) {
        // With no room for it the peer has not heard the calls before, and will.
        let _called = self.below.write(peer, &[1], &[]);
    }
}

/// Takes what a neighbour has said to wake this member: nothing but that.
fn hear(below: &mut dyn Transport, peer: usize) -> StreamEnd {
    let mut calls = [0; 64];
    loop {
        match below.read(peer, &mut calls) {
            Ok(0) => return StreamEnd::Finished,
            Ok(count) if count < calls.len() => return StreamEnd::Open,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return StreamEnd::Open,
            Err(error) => return StreamEnd::Lost(error.kind()),
        }
    }
}

fn any(interest: Interest) -> bool {
    interest.read || interest.write
}

fn union(one: &[Interest], other: &[Interest]) -> Vec<Interest> {
    let pairs = one.iter().zip(other);
    pairs
        .map(|(one, other)| Interest {
            read: one.read || other.read,
            write: one.write || other.write,
        })
        .collect()
}

impl Transport for NearStreams {
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        let Some(neighbour) = &mut self.neighbours[peer] else {
            return self.below.read(peer, into);
        };
        // How it ended was found out before the ring is looked at: nothing is written after that.
        let end = neighbour.end;
        match (neighbour.into.read(into)?, end) {
            ((0, _), _) if into.is_empty() => Ok(0),
            ((0, _), StreamEnd::Open) => Err(ErrorKind::WouldBlock.into()),
            ((0, _), StreamEnd::Finished) => Ok(0),
            ((0, _), StreamEnd::Lost(kind)) => Err(kind.into()),
            ((count, must_wake), _) => {
                if must_wake {
                    self.wake(peer);
                }
                Ok(count)
            }
        }
    }

    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let Some(neighbour) = &self.neighbours[peer] else {
            return self.below.write(peer, head, body);
        };
        if let StreamEnd::Lost(kind) = neighbour.end {
            return Err(kind.into());
        }
        let (len, mut count) = (head.len() + body.len(), 0);
        // The reader begins with the first piece while the others are copied.
        while count < len {
            let Some(neighbour) = &mut self.neighbours[peer] else {
                break;
            };
            let head = &head[count.min(head.len())..];
            let body = &body[count.saturating_sub(len - body.len())..];
            let room = PIECE_BYTES.saturating_sub(head.len()).min(body.len());
            let (written, must_wake) = neighbour.out.write(head, &body[..room])?;
            if must_wake {
                self.wake(peer);
            }
            count += written;
            if written < head.len() + room {
                break;
            }
        }
        if count == 0 && len > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(count)
    }

    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()> {
        let wanted = interest.to_vec();
        let sleeps = limit != Some(Duration::ZERO);
        let far = |near: &Option<NearPeer>, wanted: &Interest| near.is_none() && any(*wanted);
        let is_far = self.neighbours.iter().zip(&wanted).any(|(n, w)| far(n, w));
        let mut possible = self.by_rings(&wanted, sleeps);
        let is_ready = possible.iter().copied().any(any);
        self.unlooked += 1;
        if is_far || !is_ready && sleeps || self.unlooked >= LOOK_BELOW {
            let limit = if is_ready {
                Some(Duration::ZERO)
            } else {
                limit
            };
            let below = self.wait_below(&wanted, limit)?;
            possible = union(&below, &self.by_rings(&wanted, false));
        }
        if sleeps {
            self.neighbours.iter().flatten().for_each(NearPeer::get_up);
        }
        interest.copy_from_slice(&possible);
        Ok(())
    }

    fn finish(&mut self, peer: usize) {
        self.below.finish(peer);
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.below.waker()
    }

    fn unanswered(&self) -> Vec<usize> {
        self.below.unanswered()
    }
}

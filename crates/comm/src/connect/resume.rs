//! Resumption: members that have kept the stream between them exchange the hellos of a new generation on it.
//!
//! A stream carries frames, one after another, and each begins with its length. So the frames that an earlier generation has left
//! in it can be skipped, up to the hello, and no agreement on where a generation ends is needed. A hello of an older
//! generation is skipped too: its sender has left that generation before it began. If the stream is lost, both members
//! see its end and make a new connection.
//!
//! A hello of a newer generation is kept for the next attempt. The certificate of a kept stream is compared with the member that
//! the new generation expects. A stream without an answer within the deadline is not tried again. The cost that grows with the
//! square of the number of members is then one short frame for each pair and generation, and the mappings of shared memory;
//! everything else that members exchange while they join takes `log n` messages each.

use std::cmp::Ordering;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ronde_core::CollectiveError;
use ronde_wire::PREFIX_BYTES;

use super::pool::KeptStream;
use super::{ConnectionOutcome, ended_generation};
use crate::frame::{FrameHeader, HEADER_BYTES};
use crate::hello::{HELLO, JoinHello};
use crate::transport::{Interest, PeerStream, Transport, Waker};

/// Maximum number of bytes that are read at once to skip them.
const SKIP_BYTES: usize = 64 << 10;
/// Interval between checks for peers that acknowledge nothing: a new connection may work earlier than theirs.
const STALL_CHECK: Duration = Duration::from_secs(5);

/// The streams on which hellos are exchanged.
pub(super) struct Resumption {
    /// Has the streams that are not resumed yet.
    transport: Box<dyn Transport>,
    streams: Vec<Option<Resuming>>,
    /// Receives the bytes that are skipped.
    scratch: Vec<u8>,
}

/// Ends a [`Resumption`] from another thread.
#[derive(Clone)]
pub(super) struct ResumptionStop {
    is_requested: Arc<AtomicBool>,
    waker: Arc<dyn Waker>,
}

impl ResumptionStop {
    pub(super) fn request(&self) {
        self.is_requested.store(true, SeqCst);
        self.waker.wake();
    }
}

/// A stream that waits for its peer's hello.
pub(super) struct Resuming {
    /// The bytes still to be sent, the hello last.
    unsent: Vec<u8>,
    sent: usize,
    unread: Vec<u8>,
    skipped: u64,
    /// The peer's hello was accepted.
    is_accepted: bool,
}

/// The next bytes of a stream that waits for a hello.
enum StreamStart {
    /// Their kind is not known before that many bytes have arrived.
    Incomplete(usize),
    /// A frame of an earlier generation, whose header was removed and whose payload is skipped.
    Skipped,
    Hello(JoinHello),
}

impl Resumption {
    /// Takes a transport over kept streams, and the state of each by group rank.
    pub(super) fn new(
        transport: Box<dyn Transport>,
        streams: Vec<Option<Resuming>>,
    ) -> (Self, ResumptionStop) {
        let stop = ResumptionStop {
            is_requested: Arc::default(),
            waker: transport.waker(),
        };
        let resumption = Self {
            transport,
            streams,
            scratch: vec![0; SKIP_BYTES],
        };
        (resumption, stop)
    }

    /// Exchanges hellos on all streams and sends the outcome of each. Until all have one, or stopped. Returns the streams
    /// without an outcome by group rank.
    pub(super) fn run(
        mut self,
        mine: &JoinHello,
        outcomes: &mpsc::Sender<ConnectionOutcome>,
        stop: &ResumptionStop,
    ) -> Vec<(usize, KeptStream)> {
        let mut next_check = ronde_clock::deadline(STALL_CHECK);
        let mut possible = self.interest();
        possible.iter_mut().for_each(|events| events.read = true);
        while self.streams.iter().any(Option::is_some) && !stop.is_requested.load(SeqCst) {
            let mut resumed = Vec::new();
            for (peer, possible) in possible.iter().enumerate() {
                if !possible.read && !possible.write {
                    continue;
                }
                let outcome = match self.advance(peer, mine) {
                    Ok(false) => continue,
                    Ok(true) => {
                        if let Some(kept) = self.release(peer) {
                            resumed.push((peer, kept.stream));
                        }
                        continue;
                    }
                    Err(Some(error)) => ConnectionOutcome::Failed(error),
                    Err(None) => {
                        drop(self.release(peer));
                        ConnectionOutcome::Lost(peer)
                    }
                };
                // The receiver is gone once the outcome of joining is decided.
                let _late = outcomes.send(outcome);
            }
            if !resumed.is_empty() {
                let _late = outcomes.send(ConnectionOutcome::Resumed(resumed));
            }
            if ronde_clock::left(next_check).is_zero() {
                next_check = ronde_clock::deadline(STALL_CHECK);
                for peer in self.transport.unanswered() {
                    drop(self.release(peer));
                    let _late = outcomes.send(ConnectionOutcome::Lost(peer));
                }
            }
            possible = self.interest();
            let limit = Some(ronde_clock::left(next_check));
            if self.transport.wait(&mut possible, limit).is_err() {
                break;
            }
        }
        let rest = 0..self.streams.len();
        rest.filter_map(|peer| Some((peer, self.release(peer)?)))
            .collect()
    }

    fn interest(&self) -> Vec<Interest> {
        let of = |resuming: &Option<Resuming>| match resuming {
            Some(resuming) => Interest {
                read: !resuming.is_accepted,
                write: resuming.sent < resuming.unsent.len(),
            },
            None => Interest::default(),
        };
        self.streams.iter().map(of).collect()
    }

    /// Takes a stream out, as it is.
    fn release(&mut self, peer: usize) -> Option<KeptStream> {
        let resuming = self.streams[peer].take()?;
        Some(KeptStream {
            stream: self.transport.release(peer)?,
            unsent: resuming.unsent[resuming.sent..].to_vec(),
            unread: resuming.unread,
            skipped: resuming.skipped,
        })
    }

    /// Writes and reads as much as possible; returns whether both hellos are exchanged. The error is `None` if the stream
    /// is lost, so that a new connection is needed.
    fn advance(&mut self, peer: usize, mine: &JoinHello) -> Result<bool, Option<CollectiveError>> {
        let Some(resuming) = &mut self.streams[peer] else {
            return Ok(false);
        };
        let transport = &mut *self.transport;
        while resuming.sent < resuming.unsent.len() {
            match transport.write(peer, &resuming.unsent[resuming.sent..], &[]) {
                Ok(count) => resuming.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Err(None),
            }
        }
        while !resuming.is_accepted {
            let room = match resuming.start().ok_or(None)? {
                StreamStart::Skipped => continue,
                StreamStart::Hello(theirs) => {
                    resuming.is_accepted = accept(mine, &theirs, peer, &mut resuming.unread)?;
                    continue;
                }
                StreamStart::Incomplete(least) => least,
            };
            match resuming.read(peer, transport, room, &mut self.scratch) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Err(None),
            }
        }
        Ok(resuming.is_accepted && resuming.sent == resuming.unsent.len())
    }
}

/// Returns whether a peer's hello on a stream is the expected one; false if it is of an older generation, which is skipped.
/// A hello of a newer one is kept in `unread` for the next attempt to join.
fn accept(
    mine: &JoinHello,
    theirs: &JoinHello,
    peer: usize,
    unread: &mut Vec<u8>,
) -> Result<bool, Option<CollectiveError>> {
    match mine.age_of(theirs) {
        Ordering::Less => return Ok(false),
        Ordering::Greater => {
            if let Ok(again) = theirs.encode() {
                unread.splice(..0, again);
            }
            return Err(Some(ended_generation(mine, theirs)));
        }
        Ordering::Equal => {}
    }
    mine.check(theirs)?;
    if theirs.rank as usize == peer && unread.is_empty() {
        return Ok(true);
    }
    Err(None)
}

/// Divides kept streams, by group rank, into the streams themselves and their state, with `greeting` to be sent on each.
pub(super) fn prepare(
    kept: Vec<Option<KeptStream>>,
    greeting: &[u8],
) -> (Vec<Option<PeerStream>>, Vec<Option<Resuming>>) {
    let divided = kept.into_iter().map(|kept| {
        let kept = kept?;
        let mut unsent = kept.unsent;
        unsent.extend(greeting);
        let resuming = Resuming {
            unsent,
            sent: 0,
            unread: kept.unread,
            skipped: kept.skipped,
            is_accepted: false,
        };
        Some((kept.stream, resuming))
    });
    divided.map(Option::unzip).unzip()
}

impl Resuming {
    /// Examines the bytes that were read; `None` if no member sends them.
    fn start(&mut self) -> Option<StreamStart> {
        let skipped = self.unread.len().min(self.skipped as usize);
        self.unread.drain(..skipped);
        self.skipped -= skipped as u64;
        if self.skipped > 0 {
            return Some(StreamStart::Incomplete(0));
        }
        let Some(prefix) = self.unread.first_chunk::<PREFIX_BYTES>() else {
            return Some(StreamStart::Incomplete(PREFIX_BYTES));
        };
        if HELLO.begins(prefix) {
            let len = HELLO.body_bytes(prefix);
            let end = PREFIX_BYTES + len.ok()?;
            let Some(body) = self.unread.get(PREFIX_BYTES..end) else {
                return Some(StreamStart::Incomplete(end));
            };
            let theirs = JoinHello::decode(body).ok()?;
            self.unread.drain(..end);
            return Some(StreamStart::Hello(theirs));
        }
        let Some(header) = self.unread.first_chunk::<HEADER_BYTES>() else {
            return Some(StreamStart::Incomplete(HEADER_BYTES));
        };
        self.skipped = FrameHeader::decode(header).ok()?.bytes;
        self.unread.drain(..HEADER_BYTES);
        Some(StreamStart::Skipped)
    }

    /// Reads once: bytes to skip, or else up to `least` bytes in total.
    fn read(
        &mut self,
        peer: usize,
        transport: &mut dyn Transport,
        least: usize,
        scratch: &mut [u8],
    ) -> io::Result<()> {
        let missing = least.saturating_sub(self.unread.len()) as u64;
        let most = if self.skipped > 0 {
            self.skipped
        } else {
            missing
        };
        let room = scratch
            .len()
            .min(usize::try_from(most).unwrap_or(usize::MAX));
        let count = transport.read(peer, &mut scratch[..room])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if self.skipped > 0 {
            self.skipped -= count as u64;
        } else {
            self.unread.extend(&scratch[..count]);
        }
        Ok(())
    }
}

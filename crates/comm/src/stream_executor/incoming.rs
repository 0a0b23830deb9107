//! Receiving: turns the bytes of each peer into frames, and passes frames to their receivers.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use ronde_core::buffer::AllocationError;
use ronde_core::{CollectiveError, GroupRank};

use super::peer::{EARLY_BYTES_MAX, FrameTarget, IncomingFrame, Peer, StreamState};
use super::{EarlyFrame, StreamExecutor};
use crate::frame::{CallKind, FrameHeader, FrameKind, HEADER_BYTES};
use crate::hello::HELLO;
use crate::notice::Notice;
use crate::program::out_of_memory;
use crate::running::RunningCollective;
use crate::streaming::PIECE_BYTES;
use crate::transport::Interest;

/// Minimum number of missing bytes that are read directly into their destination.
const STRAIGHT_BYTES: usize = 16 << 10;
/// Growth of the buffer for early bytes, in bytes.
const BUFFER_STEP: usize = 1 << 20;
/// Maximum number of consecutive reads from one peer.
const TURNS: usize = 16;

/// How long a caller that waits for peers spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// How a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// Spins for a moment, yielding to other threads: sleeping and waking takes longer than most
    /// peers take to answer.
    Awake,
    /// Sleeps.
    Asleep,
}

impl StreamExecutor {
    /// Waits until a stream is ready, a command arrives or `limit` has passed; then reads.
    pub(super) fn wait_and_read(&mut self, limit: Option<Duration>, wait_mode: WaitMode) {
        let possible = match self.wait(limit, wait_mode) {
            Ok(possible) => possible,
            Err(error) => {
                self.fail(CollectiveError::Connect {
                    what: "cannot wait for other ranks".to_owned(),
                    cause: error.to_string(),
                });
                self.leaving = true;
                return;
            }
        };
        for (state, possible) in self.peers.iter_mut().zip(&possible) {
            state.blocked &= !possible.write;
        }
        let readable = possible.iter().enumerate().filter(|(_, p)| p.read);
        let mut readable: Vec<usize> = readable.map(|(peer, _)| peer).collect();
        for _ in 0..TURNS {
            readable.retain(|&peer| self.read(peer));
            if readable.is_empty() {
                return;
            }
            // Peers may be waiting for the data that was just received.
            self.run_until_idle();
        }
    }

    fn wait(
        &mut self,
        limit: Option<Duration>,
        wait_mode: WaitMode,
    ) -> std::io::Result<Vec<Interest>> {
        let is_awake = wait_mode == WaitMode::Awake && !self.contention.should_sleep();
        let end = ronde_clock::deadline(match is_awake {
            true => SPIN.min(limit.unwrap_or(SPIN)),
            false => Duration::ZERO,
        });
        loop {
            let mut possible: Vec<Interest> = self.peers.iter().map(Peer::interest).collect();
            possible[self.member.rank.index()] = Interest::default();
            // A command must not wait, even if its wake-up was consumed already. Lent bytes are always there.
            let reads_lent = self.peers.iter().any(Peer::is_reading_lent);
            let at_once = reads_lent || self.mailbox.flags.has_commands();
            if at_once || ronde_clock::left(end).is_zero() {
                let limit = if at_once { Some(Duration::ZERO) } else { limit };
                self.transport.wait(&mut possible, limit)?;
                for (possible, state) in possible.iter_mut().zip(&self.peers) {
                    possible.read |= state.is_reading_lent();
                }
                return Ok(possible);
            }
            self.transport.wait(&mut possible, Some(Duration::ZERO))?;
            if possible.iter().any(|p| p.read || p.write) {
                return Ok(possible);
            }
            let before = ronde_clock::now();
            thread::yield_now();
            self.contention
                .yielded(ronde_clock::now().duration_since(before));
        }
    }

    /// Reads from a peer once; returns whether more bytes may be available.
    fn read(&mut self, peer: usize) -> bool {
        if self.peers[peer].is_reading_lent() {
            return self.read_lent(peer);
        }
        if !self.peers[peer].interest().read {
            return false;
        }
        match self.read_once(peer) {
            Ok(0) => self.stream_ended(peer, "connection closed"),
            Ok(_) if self.has_failed => self.skip_frames(peer),
            Ok(full) => {
                self.parse_frames(peer);
                return full == 2;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.stream_ended(peer, &error.to_string()),
        }
        false
    }

    /// Reads once: returns 0 at the end, 1 for a short read, 2 when more may be available.
    fn read_once(&mut self, peer: usize) -> std::io::Result<usize> {
        let outcome = |count: usize, room: usize| match count {
            0 => 0,
            _ => 1 + usize::from(count == room),
        };
        let state = &mut self.peers[peer];
        let waits_for_header = !self.has_failed && state.arriving.is_none();
        if let Some(arriving) = &mut state.arriving
            && !self.has_failed
            && state.unread.is_empty()
            && arriving.left() >= STRAIGHT_BYTES
        {
            if let Err(error) = extend_buffer(arriving) {
                self.out_of_memory(error);
                return Ok(1);
            }
            let room = room(arriving, &mut self.running);
            let (count, len) = (self.transport.read(peer, room)?, room.len());
            self.filled(peer, count);
            return Ok(outcome(count, len));
        }
        let much = self.running.as_ref().is_some_and(|running| {
            let expected = running.expected[peer].front();
            expected.is_some_and(|e| running.bytes_missing(e) >= STRAIGHT_BYTES)
        });
        let kept = state.unread.bytes().len();
        // Of a large frame only the header: its payload is then read directly into its destination.
        let wanted = if waits_for_header && much && kept < HEADER_BYTES {
            HEADER_BYTES - kept
        } else {
            state.unread.read_bytes()
        };
        let count = self.transport.read(peer, state.unread.room(wanted))?;
        state.unread.filled(count);
        Ok(outcome(count, wanted))
    }

    /// Parses frames from the bytes that were read.
    pub(super) fn parse_frames(&mut self, peer: usize) {
        while !self.has_failed {
            let state = &mut self.peers[peer];
            if state.is_reading_lent() {
                return;
            }
            let unread = state.unread.bytes();
            let Some(arriving) = &mut state.arriving else {
                let Some(header) = unread.first_chunk::<HEADER_BYTES>() else {
                    return;
                };
                if HELLO.begins(header) {
                    state.presence = StreamState::InNextGeneration;
                    return self.check_presence(peer);
                }
                let header = FrameHeader::decode(header);
                state.unread.take(HEADER_BYTES);
                match header {
                    Ok(header) => {
                        state.frame_left = header.bytes;
                        self.handle_header(peer, header);
                    }
                    Err(problem) => self.broken(peer, problem.to_string()),
                }
                continue;
            };
            if matches!(arriving.target, FrameTarget::Parked) || unread.is_empty() {
                return;
            }
            if let Err(error) = extend_buffer(arriving) {
                return self.out_of_memory(error);
            }
            let room = room(arriving, &mut self.running);
            let count = room.len().min(unread.len());
            room[..count].copy_from_slice(&unread[..count]);
            state.unread.take(count);
            self.filled(peer, count);
        }
    }

    /// Skips the frames among the bytes that were read, after a failure: only a hello still counts.
    fn skip_frames(&mut self, peer: usize) {
        let state = &mut self.peers[peer];
        if state.is_garbled {
            return state.unread.clear();
        }
        loop {
            let unread = state.unread.bytes();
            let skipped = unread.len().min(state.frame_left as usize);
            state.unread.take(skipped);
            state.frame_left -= skipped as u64;
            let Some(header) = state.unread.bytes().first_chunk::<HEADER_BYTES>() else {
                return;
            };
            if HELLO.begins(header) {
                state.presence = StreamState::InNextGeneration;
                return;
            }
            let Ok(header) = FrameHeader::decode(header) else {
                state.is_garbled = true;
                return state.unread.clear();
            };
            state.unread.take(HEADER_BYTES);
            state.frame_left = header.bytes;
        }
    }

    /// Records that `count` more bytes of the incoming frame were received.
    pub(super) fn filled(&mut self, peer: usize, count: usize) {
        // The bytes of a lent message are not in the stream.
        let frame_left = &mut self.peers[peer].frame_left;
        *frame_left = frame_left.saturating_sub(count as u64);
        let Some(mut arriving) = self.peers[peer].arriving.take() else {
            return;
        };
        arriving.done += count;
        if let FrameTarget::Collective(awaited) = &arriving.target
            && !self.came(peer, awaited, count)
        {
            return;
        }
        if arriving.left() == 0 {
            self.handle_frame(peer, arriving);
        } else {
            self.peers[peer].arriving = Some(arriving);
        }
    }

    fn handle_header(&mut self, peer: usize, header: FrameHeader) {
        if header.generation != self.generation {
            let problem = format!(
                "it is of generation {}, this rank is in generation {}",
                header.generation, self.generation
            );
            return self.broken(peer, problem);
        }
        if self.peers[peer].presence == StreamState::Left {
            return self.broken(peer, format!("{:?} frame after goodbye", header.kind));
        }
        if header.kind == FrameKind::Collective {
            self.mailbox.flight.arrived(header.sequence, peer);
            let waits = &mut self.peers[peer].waits;
            // It has sent more since.
            let _over = waits.take_if(|waits| waits.at.sequence < header.sequence);
        }
        if header.kind == FrameKind::Message {
            self.ask_to_lend(peer, &header);
        }
        let target = match header.kind {
            FrameKind::LentRead => return self.returned(peer, header.sequence),
            FrameKind::Lent if self.peers[peer].memory.is_none() => {
                let problem = "it lends a message, but this rank cannot read its memory";
                return self.broken(peer, problem.to_owned());
            }
            // Nothing will receive it.
            FrameKind::Lent if self.has_said_goodbye || self.peers[peer].unreadable.is_some() => {
                return;
            }
            FrameKind::Call | FrameKind::Notice | FrameKind::Goodbye => Ok(None),
            FrameKind::Message | FrameKind::Lent => self.message_target(peer, &header).map(Some),
            FrameKind::Collective => self.collective_target(peer, &header).map(Some),
        };
        let target = match target {
            Ok(None) => FrameTarget::Buffered(Vec::new()),
            Ok(Some(Some(target))) => target,
            Ok(Some(None)) => {
                let kept = self.peers[peer]
                    .early_bytes
                    .saturating_add(EarlyFrame::weight(&header));
                if kept > EARLY_BYTES_MAX {
                    FrameTarget::Parked
                } else {
                    self.peers[peer].early_bytes = kept;
                    FrameTarget::Buffered(Vec::new())
                }
            }
            Err(error) => return self.fail(error),
        };
        let parked = matches!(target, FrameTarget::Parked);
        self.peers[peer].arriving = Some(IncomingFrame {
            header,
            target,
            done: 0,
        });
        if header.payload_bytes() == 0 && !parked {
            self.filled(peer, 0);
        }
    }

    /// Retries a frame that had no buffer space.
    pub(super) fn retry_parked(&mut self, peer: usize) {
        if self.peers[peer].is_parked()
            && let Some(arriving) = self.peers[peer].arriving.take()
        {
            self.handle_header(peer, arriving.header);
            self.parse_frames(peer);
        }
    }

    /// Handles a complete frame.
    fn handle_frame(&mut self, peer: usize, arriving: IncomingFrame) {
        let IncomingFrame { header, target, .. } = arriving;
        if header.kind == FrameKind::Lent {
            self.acknowledge(peer, 1);
        }
        match target {
            FrameTarget::Collective(awaited) => self.frame_ended(peer, awaited),
            FrameTarget::Message(posted) => posted.finish(),
            FrameTarget::Parked => {}
            FrameTarget::Buffered(bytes) => match header.kind {
                FrameKind::Goodbye => {
                    self.peers[peer].presence = StreamState::Left;
                    self.mailbox.note_left(peer);
                    self.return_unread(peer);
                    self.check_presence(peer);
                }
                FrameKind::Notice => self.handle_notice(peer, &bytes),
                FrameKind::Call => self.handle_wait_report(peer, &header, &bytes),
                FrameKind::Message | FrameKind::Lent => {
                    let address = (peer, header.call.detail);
                    let early = EarlyFrame { header, bytes };
                    self.early_messages
                        .entry(address)
                        .or_default()
                        .push_back(early);
                    self.deliver_early_messages(address);
                }
                FrameKind::Collective => {
                    self.peers[peer]
                        .early
                        .push_back(EarlyFrame { header, bytes });
                    self.deliver_early(peer);
                }
                // Handled with its header.
                FrameKind::LentRead => {}
            },
        }
    }

    fn handle_notice(&mut self, peer: usize, bytes: &[u8]) {
        let decoded = Notice::decode(bytes);
        let Some((notice, origin)) = decoded.filter(|(_, origin)| *origin < self.peers.len())
        else {
            return self.broken(peer, "invalid notice".to_owned());
        };
        let mine = match &notice {
            Notice::Mismatch { sequence, .. } => self.call_at(*sequence),
            _ => None,
        };
        let me = self.member.rank.index();
        // Forwarded, so that every member receives the cause before it sees this one leave.
        self.end(notice.error(origin, me, self.generation, mine));
        self.notify(bytes);
    }

    pub(super) fn out_of_memory(&mut self, error: AllocationError) {
        let kind = self
            .running
            .as_ref()
            .map_or(CallKind::Nothing, |running| running.call.kind);
        self.fail(out_of_memory(kind, self.member.rank, error));
    }

    pub(super) fn broken(&mut self, peer: usize, problem: String) {
        self.peers[peer].is_garbled = true;
        self.fail(CollectiveError::Protocol {
            peer: GroupRank(peer as u32),
            problem,
        });
    }
}

/// Makes space for the next bytes of an early frame.
pub(super) fn extend_buffer(arriving: &mut IncomingFrame) -> Result<(), AllocationError> {
    let (done, left) = (arriving.done, arriving.left());
    let FrameTarget::Buffered(bytes) = &mut arriving.target else {
        return Ok(());
    };
    if bytes.len() == done {
        let more = left.min(BUFFER_STEP.max(done));
        let failed = |_| AllocationError { bytes: done + more };
        bytes.try_reserve(more).map_err(failed)?;
        bytes.resize(done + more, 0);
    }
    Ok(())
}

/// Returns the destination of the next bytes of an incoming frame; never more than are missing.
pub(super) fn room<'a>(
    arriving: &'a mut IncomingFrame,
    running: &'a mut Option<RunningCollective>,
) -> &'a mut [u8] {
    let (done, left) = (arriving.done, arriving.left());
    match &mut arriving.target {
        FrameTarget::Collective(awaited) => match running {
            Some(running) => {
                let range = running.next_range(awaited, left.min(PIECE_BYTES));
                running.memory.bytes_mut(&range)
            }
            // Frames are removed before the collective that they belong to ends.
            None => &mut [],
        },
        FrameTarget::Message(posted) => &mut posted.buffer.bytes_mut()[done..],
        FrameTarget::Buffered(bytes) => &mut bytes[done..],
        FrameTarget::Parked => &mut [],
    }
}

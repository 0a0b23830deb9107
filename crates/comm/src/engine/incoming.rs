//! Receiving: bytes of each peer into frames, frames to who wants them.

use std::io::ErrorKind;

use ronde_core::{CollectiveError, GroupRank};

use super::peer::{Arriving, EARLY_BYTES_MAX, Presence, Target};
use super::{Early, Engine};
use crate::frame::{FrameKind, HEADER_BYTES, Header};
use crate::notice::Notice;
use crate::running::Running;
use crate::streaming::PIECE_BYTES;

/// Bytes read at once when frames are short.
const READ_BYTES: usize = 64 << 10;
/// From this many missing bytes on they are read straight to where they belong.
const STRAIGHT_BYTES: usize = 16 << 10;
/// How much memory is taken at once for bytes that nobody wants yet.
const ASIDE_STEP: usize = 1 << 20;
/// Reads from one peer before the others get their turn.
const TURNS: usize = 16;

impl Engine {
    /// Reads what a peer has sent.
    pub(super) fn read(&mut self, peer: usize) {
        for _ in 0..TURNS {
            if !self.peers[peer].interest().read {
                return;
            }
            match self.read_once(peer) {
                Ok(0) => return self.stream_ended(peer, "connection closed"),
                Ok(_) if self.failed.is_some() => self.peers[peer].unread.clear(),
                Ok(full) => {
                    self.digest(peer);
                    if full == 1 {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.stream_ended(peer, &error.to_string()),
            }
        }
    }

    /// One read: 0 at the end, 1 when less came than there was room for, 2 when there may be more.
    fn read_once(&mut self, peer: usize) -> std::io::Result<usize> {
        let state = &mut self.peers[peer];
        if let Some(arriving) = &mut state.arriving
            && self.failed.is_none()
            && state.at == state.unread.len()
            && arriving.left() >= STRAIGHT_BYTES
        {
            let room = room(arriving, &mut self.running);
            let (count, len) = (self.transport.read(peer, room)?, room.len());
            self.filled(peer, count);
            return Ok(if count == 0 {
                0
            } else {
                1 + usize::from(count == len)
            });
        }
        state.unread.drain(..state.at);
        state.at = 0;
        let kept = state.unread.len();
        state.unread.resize(kept + READ_BYTES, 0);
        let outcome = self.transport.read(peer, &mut state.unread[kept..]);
        let count = *outcome.as_ref().unwrap_or(&0);
        state.unread.truncate(kept + count);
        outcome?;
        Ok(if count == 0 {
            0
        } else {
            1 + usize::from(count == READ_BYTES)
        })
    }

    /// Makes frames of the bytes that were read.
    pub(super) fn digest(&mut self, peer: usize) {
        while self.failed.is_none() {
            let state = &mut self.peers[peer];
            let unread = &state.unread[state.at..];
            let Some(arriving) = &mut state.arriving else {
                let Some(header) = unread.first_chunk::<HEADER_BYTES>() else {
                    return;
                };
                let header = Header::decode(header);
                state.at += HEADER_BYTES;
                match header {
                    Ok(header) => self.header_came(peer, header),
                    Err(problem) => self.broken(peer, problem),
                }
                continue;
            };
            if matches!(arriving.target, Target::Parked) || unread.is_empty() {
                return;
            }
            let room = room(arriving, &mut self.running);
            let count = room.len().min(unread.len());
            room[..count].copy_from_slice(&unread[..count]);
            state.at += count;
            self.filled(peer, count);
        }
    }

    /// `count` more bytes of the arriving frame are in place.
    fn filled(&mut self, peer: usize, count: usize) {
        let Some(arriving) = &mut self.peers[peer].arriving else {
            return;
        };
        arriving.done += count;
        if let (Target::Collective(place), Some(running)) = (&arriving.target, &mut self.running) {
            running.received[peer] += count;
            running.arrived(place, count);
        }
        if arriving.left() == 0
            && let Some(arriving) = self.peers[peer].arriving.take()
        {
            self.frame_came(peer, arriving);
        }
    }

    fn header_came(&mut self, peer: usize, header: Header) {
        if header.generation != self.generation {
            let problem = format!(
                "it is of generation {}, this is generation {}",
                header.generation, self.generation
            );
            return self.broken(peer, problem);
        }
        if self.peers[peer].presence == Presence::Left {
            return self.broken(peer, "it came after goodbye".to_owned());
        }
        if header.kind == FrameKind::Collective {
            self.mailbox.flight.arrived(header.sequence, peer);
        }
        let target = match header.kind {
            FrameKind::Notice | FrameKind::Goodbye => Ok(None),
            FrameKind::Message => self.message_target(peer, &header).map(Some),
            FrameKind::Collective => self.collective_target(peer, &header).map(Some),
        };
        let target = match target {
            Ok(None) => Target::Aside(Vec::new()),
            Ok(Some(Some(target))) => target,
            Ok(Some(None)) => {
                let kept = self.peers[peer]
                    .early_bytes
                    .saturating_add(Early::weight(&header));
                if kept > EARLY_BYTES_MAX {
                    Target::Parked
                } else {
                    self.peers[peer].early_bytes = kept;
                    Target::Aside(Vec::new())
                }
            }
            Err(error) => return self.fail(error),
        };
        let parked = matches!(target, Target::Parked);
        self.peers[peer].arriving = Some(Arriving {
            header,
            target,
            done: 0,
        });
        if header.bytes == 0 && !parked {
            self.filled(peer, 0);
        }
    }

    /// Looks again at a frame for which there was no room aside.
    pub(super) fn unpark(&mut self, peer: usize) {
        if self.peers[peer].is_parked()
            && let Some(arriving) = self.peers[peer].arriving.take()
        {
            self.header_came(peer, arriving.header);
            self.digest(peer);
        }
    }

    /// A frame is complete.
    fn frame_came(&mut self, peer: usize, arriving: Arriving) {
        let Arriving { header, target, .. } = arriving;
        match target {
            Target::Collective(_) => {
                if let Some(running) = &mut self.running {
                    running.receives_left -= 1;
                }
            }
            Target::Message(posted) => posted.finish(),
            Target::Parked => {}
            Target::Aside(bytes) => match header.kind {
                FrameKind::Goodbye => {
                    self.peers[peer].presence = Presence::Left;
                    self.mailbox.note_left(peer);
                    self.check_presence(peer);
                }
                FrameKind::Notice => self.told(peer, &bytes),
                FrameKind::Message => {
                    let address = (peer, header.call.detail);
                    let early = Early { header, bytes };
                    self.letters.entry(address).or_default().push_back(early);
                    self.settle_messages(address);
                }
                FrameKind::Collective => {
                    self.peers[peer].early.push_back(Early { header, bytes });
                    self.settle(peer);
                }
            },
        }
    }

    fn told(&mut self, peer: usize, bytes: &[u8]) {
        let decoded = Notice::decode(bytes);
        let Some((notice, origin)) = decoded.filter(|(_, origin)| *origin < self.peers.len())
        else {
            return self.broken(peer, "a notice that says nothing".to_owned());
        };
        let mine = match &notice {
            Notice::Mismatch { sequence, .. } => self.call_at(*sequence),
            _ => None,
        };
        let me = self.member.rank.index();
        // Passed on, so that every member hears the cause before it sees this one leave.
        self.end(notice.error(origin, me, self.generation, mine));
        self.tell(bytes);
    }

    fn broken(&mut self, peer: usize, problem: String) {
        self.fail(CollectiveError::Protocol {
            peer: GroupRank(peer as u32),
            problem,
        });
    }
}

/// Where the next bytes of an arriving frame go; never more than are missing.
fn room<'a>(arriving: &'a mut Arriving, running: &'a mut Option<Running>) -> &'a mut [u8] {
    let (done, left) = (arriving.done, arriving.left());
    match &mut arriving.target {
        Target::Collective(place) => match running {
            Some(running) => {
                let bytes = running.memory.bytes_mut(&place.after(done));
                let piece = bytes.len().min(PIECE_BYTES);
                &mut bytes[..piece]
            }
            // Frames are turned away before the collective that wants them ends.
            None => &mut [],
        },
        Target::Message(posted) => &mut posted.buffer.bytes_mut()[done..],
        Target::Aside(bytes) => {
            if bytes.len() == done {
                bytes.resize(done + left.min(ASIDE_STEP.max(done)), 0);
            }
            &mut bytes[done..]
        }
        Target::Parked => &mut [],
    }
}

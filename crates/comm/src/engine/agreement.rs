//! Agreement: members that are in different calls find out, each of them.
//!
//! Every frame of a collective describes its call. Where a call sends nothing to somebody who waits, that
//! is not enough: so who has waited for a while tells those that it has not heard of which call it is in,
//! and they compare, whatever they do themselves.

use ronde_core::{CollectiveError, GroupRank};

use super::Engine;
use super::peer::Payload;
use crate::clock;
use crate::frame::{Call, FrameKind, Header};
use crate::notice::Notice;

/// Most calls of a peer that are remembered before they begin here.
const TOLD_MAX: usize = 16;

impl Engine {
    /// Tells those who have not been heard of which call this rank is in, once it has waited for a while.
    pub(super) fn tell_call(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        if !running.tell_at.is_some_and(|at| clock::left(at).is_zero()) {
            return;
        }
        running.tell_at = None;
        let (sequence, call) = (running.sequence, running.call);
        let silent =
            |&peer: &usize| running.received[peer] == 0 && !running.expected[peer].is_empty();
        let silent: Vec<usize> = (0..self.member.size).filter(silent).collect();
        for peer in silent {
            let nothing = Payload::Bytes(Vec::new());
            self.enqueue(peer, FrameKind::Call, sequence, call, nothing);
        }
    }

    /// A peer waits in a call: it must be that of this rank.
    pub(super) fn heard_of(&mut self, peer: usize, header: &Header) {
        let current = self.running.as_ref().map(|running| {
            let waits = !running.expected[peer].is_empty();
            (running.sequence, running.call, waits)
        });
        let state = &mut self.peers[peer];
        if let Some((sequence, call, true)) = current
            && header.sequence > sequence
            && state.early.is_empty()
        {
            // It has gone on without sending what this call needs.
            let error = self.mismatch(peer, header, call, sequence);
            return self.fail(error);
        }
        if header.sequence >= self.next_sequence {
            if state.told.len() == TOLD_MAX {
                state.told.pop_front();
            }
            return state.told.push_back(*header);
        }
        if let Some(mine) = self.call_at(header.sequence) {
            self.compare(peer, header, mine);
        }
    }

    /// A call begins here: compares it with what others have told of theirs.
    pub(super) fn compare_told(&mut self, sequence: u64, mine: Call) {
        for peer in self.others() {
            while let Some(told) = self.peers[peer].told.front().copied()
                && told.sequence <= sequence
            {
                self.peers[peer].told.pop_front();
                if told.sequence == sequence {
                    self.compare(peer, &told, mine);
                }
            }
        }
    }

    fn compare(&mut self, peer: usize, theirs: &Header, mine: Call) {
        if theirs.call != mine && self.failed.is_none() {
            let error = self.mismatch(peer, theirs, mine, theirs.sequence);
            self.fail(error);
        }
    }

    /// A peer has another count of elements for this rank than this rank was told by its caller.
    pub(super) fn other_len(
        &mut self,
        peer: usize,
        header: &Header,
        expected: u64,
    ) -> CollectiveError {
        let element = header.call.dtype.size() as u64;
        let of = |bytes: u64| Call {
            len: bytes / element,
            ..header.call
        };
        let theirs = Header {
            call: of(header.bytes),
            ..*header
        };
        self.mismatch(peer, &theirs, of(expected), header.sequence)
    }

    /// Two calls that do not fit together: that of this rank, and that in a peer's header.
    pub(super) fn mismatch(
        &mut self,
        peer: usize,
        header: &Header,
        mine: Call,
        at: u64,
    ) -> CollectiveError {
        let mut theirs = header.call.describe();
        if header.sequence != at {
            let number = self.mailbox.flight().number(header.sequence);
            theirs += &format!(" (as its operation {number})");
        }
        if theirs == mine.describe() {
            return CollectiveError::Protocol {
                peer: GroupRank(peer as u32),
                problem: format!("more than belongs to operation {at}, {theirs}"),
            };
        }
        self.disagreement = Some(Notice::Mismatch {
            sequence: at,
            sender_call: mine,
            peer: peer as u32,
            peer_call: header.call,
        });
        CollectiveError::Mismatch {
            sequence: at,
            peer: GroupRank(peer as u32),
            mine: mine.describe(),
            theirs,
        }
    }
}

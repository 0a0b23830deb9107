//! Agreement: members that are in different calls all detect it.
//!
//! Every frame of a collective describes its call. That does not suffice when a call sends nothing to a
//! rank that waits. So a rank that has waited for a while sends its call to the peers from which it has
//! received nothing, and they compare it with their own, whatever they are doing. After half of its
//! deadline it sends the call to all peers, with the ranks that it waits for, so that the first rank whose
//! deadline expires can identify the rank that delays all others.

use ronde_core::{CollectiveError, GroupRank};

use super::StreamExecutor;
use super::peer::{CollectiveProgress, FrameTarget, OutgoingPayload, StreamState, WaitReport};
use crate::frame::{Call, FrameHeader, FrameKind};
use crate::notice::Notice;
use crate::running::RunningCollective;

/// Maximum number of a peer's calls that are kept before they start here.
const REPORTS_MAX: usize = 16;

impl StreamExecutor {
    /// Sends this rank's call to peers that have sent nothing, once it has waited for a while.
    pub(super) fn send_call(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        if !running
            .notify_at
            .is_some_and(|at| ronde_clock::left(at).is_zero())
        {
            return;
        }
        let (sequence, call) = (running.sequence, running.call);
        let is_last = std::mem::replace(&mut running.has_notified, true);
        running.notify_at = (!is_last).then(|| running.started + self.timeout / 2);
        let Some(running) = &self.running else {
            return;
        };
        let silent = |peer: usize| running.received[peer] == 0 && running.is_waiting_for(peer);
        let here = |peer: &usize| self.peers[*peer].presence == StreamState::Here;
        let reported_calls = self.others().filter(here);
        let reported_calls: Vec<usize> = reported_calls
            .filter(|&peer| is_last || silent(peer))
            .collect();
        let (at, awaited) = self.awaited(running);
        let awaited = awaited.into_iter().map(|rank| rank as u64);
        let numbers = [at.round, at.received].into_iter().chain(awaited);
        let numbers: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        for peer in reported_calls {
            let numbers = OutgoingPayload::Bytes(numbers.clone());
            self.enqueue(peer, FrameKind::Call, sequence, call, numbers);
        }
    }

    /// Returns the progress of a collective here and the ranks that it waits for, most urgent first; ranks
    /// that do not accept the bytes of this rank are last.
    fn awaited(&self, running: &RunningCollective) -> (CollectiveProgress, Vec<usize>) {
        let of = |peer: usize| {
            let state = &self.peers[peer];
            let arriving = state.arriving.as_ref().map(|arriving| &arriving.target);
            match (arriving, running.expected[peer].front()) {
                (Some(FrameTarget::Collective(awaited)), _) | (_, Some(awaited)) => {
                    Some((awaited.round(), peer))
                }
                _ => (state.blocked && state.has_to_send()).then_some((usize::MAX, peer)),
            }
        };
        let mut all: Vec<(usize, usize)> = self.others().filter_map(of).collect();
        all.sort_unstable();
        let at = CollectiveProgress {
            sequence: running.sequence,
            round: all.first().map_or(u64::MAX, |&(round, _)| round as u64),
            received: running.received.iter().sum::<usize>() as u64,
        };
        (at, all.into_iter().map(|(_, peer)| peer).collect())
    }

    /// Returns the rank that delays the running collective, as far as this rank can determine. It follows
    /// the chain of ranks that wait for each other, and returns the first one whose host acknowledges
    /// nothing (`unanswered`), or any such rank if none is on the chain. Otherwise it returns a rank that has not
    /// reported that it waits as well. If all wait, a path between two of them is cut: the rank with the
    /// least progress is at one end of it.
    pub(super) fn culprit(&self, unanswered: &[usize]) -> Option<usize> {
        let (found, by_words) = self.awaited_by_all()?;
        let mut cut = found.iter().find(|peer| unanswered.contains(peer));
        cut = cut.or(unanswered.first());
        cut.copied().or(Some(by_words))
    }

    /// Returns the ranks that this rank waits for directly or through other ranks' reports, and the one that
    /// delays them all according to the reports.
    fn awaited_by_all(&self) -> Option<(Vec<usize>, usize)> {
        let me = self.member.rank.index();
        let (at, mut found) = self.awaited(self.running.as_ref()?);
        let mut silent = None;
        let (mut last, mut next) = ((at, *found.first()?), 0);
        while let Some(&peer) = found.get(next) {
            next += 1;
            // The peer may wait in an earlier operation, and for other ranks than this one.
            let waits = self.peers[peer].waits.as_ref();
            let Some(waits) = waits.filter(|waits| waits.at.sequence <= at.sequence) else {
                silent = silent.or(Some(peer));
                continue;
            };
            last = last.min((waits.at, peer));
            for &other in &waits.awaited {
                if other != me && !found.contains(&other) {
                    found.push(other);
                }
            }
        }
        Some((found, silent.unwrap_or(last.1)))
    }

    /// Handles a peer's report that it waits in a call, which must be the call of this rank.
    pub(super) fn handle_wait_report(&mut self, peer: usize, header: &FrameHeader, numbers: &[u8]) {
        let (numbers, rest) = numbers.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|n| u64::from_le_bytes(*n)).collect();
        let size = self.member.size as u64;
        match numbers.as_slice() {
            &[round, received, ref awaited @ ..]
                if rest.is_empty() && awaited.iter().all(|&rank| rank < size) =>
            {
                let at = CollectiveProgress {
                    sequence: header.sequence,
                    round,
                    received,
                };
                let awaited = awaited.iter().map(|&rank| rank as usize).collect();
                self.peers[peer].waits = Some(WaitReport { at, awaited });
            }
            _ => return self.broken(peer, "it waits for ranks that do not exist".to_owned()),
        }
        self.compare_reported(peer, header);
    }

    fn compare_reported(&mut self, peer: usize, header: &FrameHeader) {
        let current = self.running.as_ref().map(|running| {
            let waits = !running.expected[peer].is_empty();
            (running.sequence, running.call, waits)
        });
        let state = &mut self.peers[peer];
        if let Some((sequence, call, true)) = current
            && header.sequence > sequence
            && state.early.is_empty()
        {
            // The peer has continued without sending the data of this call.
            let error = self.mismatch(peer, header, call, sequence);
            return self.fail(error);
        }
        if header.sequence >= self.next_sequence {
            if state.reported_calls.len() == REPORTS_MAX {
                state.reported_calls.pop_front();
            }
            return state.reported_calls.push_back(*header);
        }
        if let Some(mine) = self.call_at(header.sequence) {
            self.compare(peer, header, mine);
        }
    }

    /// Compares a call that starts here with the calls that peers have reported.
    pub(super) fn compare_with_reports(&mut self, sequence: u64, mine: Call) {
        for peer in self.others() {
            while let Some(reported_calls) = self.peers[peer].reported_calls.front().copied()
                && reported_calls.sequence <= sequence
            {
                self.peers[peer].reported_calls.pop_front();
                if reported_calls.sequence == sequence {
                    self.compare(peer, &reported_calls, mine);
                }
            }
        }
    }

    fn compare(&mut self, peer: usize, theirs: &FrameHeader, mine: Call) {
        if theirs.call != mine && !self.has_failed {
            let error = self.mismatch(peer, theirs, mine, theirs.sequence);
            self.fail(error);
        }
    }

    /// Returns the error when a peer has another number of elements for this rank than its caller gave.
    pub(super) fn other_len(
        &mut self,
        peer: usize,
        header: &FrameHeader,
        expected: u64,
    ) -> CollectiveError {
        let element = header.call.dtype.size() as u64;
        let of = |bytes: u64| Call {
            len: bytes / element,
            ..header.call
        };
        let theirs = FrameHeader {
            call: of(header.bytes),
            ..*header
        };
        self.mismatch(peer, &theirs, of(expected), header.sequence)
    }

    /// Returns the error of two calls that do not match: this rank's, and the one in a peer's header.
    pub(super) fn mismatch(
        &mut self,
        peer: usize,
        header: &FrameHeader,
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
                problem: format!("more bytes than operation {at} needs, {theirs}"),
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

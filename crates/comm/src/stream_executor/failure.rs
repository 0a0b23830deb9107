//! Failure: the first one ends every operation here and is sent to all peers.

use std::time::Instant;

use ronde_core::{CollectiveError, GroupRank};

use super::StreamExecutor;
use super::peer::{FrameTarget, OutgoingPayload, StreamState};
use crate::frame::{Call, CallKind, FrameKind};
use crate::notice::{Notice, operation_name};

/// A wait that has exceeded its deadline.
struct OverdueWait {
    call: Call,
    sequence: u64,
    peer: usize,
    received: usize,
    expected: usize,
    started: Instant,
}

impl StreamExecutor {
    /// Ends everything with an error that arose here, and notifies the peers.
    pub(super) fn fail(&mut self, error: CollectiveError) {
        if self.has_failed {
            return;
        }
        let notice = self.notice(&error).encode(self.member.rank.0);
        self.end(error);
        self.notify(&notice);
    }

    /// Ends everything with an error.
    pub(super) fn end(&mut self, error: CollectiveError) {
        if self.has_failed {
            return;
        }
        let error = self.mailbox.flight().numbered(error);
        if self.has_waited_long() {
            self.mailbox.note_unanswered(self.transport.unanswered());
        }
        self.has_failed = true;
        self.mailbox.note_failed(&error);
        // Before any message is released.
        self.lending = None;
        self.clear_streams(&error);
        if let Some(running) = self.running.take() {
            running.completion.complete(Err(error.clone()));
        }
        for request in self.queue.drain(..) {
            request.completion.complete(Err(error.clone()));
        }
        for posted in std::mem::take(&mut self.posted).into_values().flatten() {
            posted.completion.complete(Err(error.clone()));
        }
        self.early_messages.clear();
    }

    /// Empties all streams except for frames that are partly sent: those must be completed, or the
    /// frames after them could not be read.
    fn clear_streams(&mut self, error: &CollectiveError) {
        for state in &mut self.peers {
            state.early.clear();
            state.reported_calls.clear();
            state.starved = false;
            (state.may_lend, state.memory, state.unreadable) = (false, None, None);
            for message in state.lent.drain(..) {
                message.completion.complete(Err(error.clone()));
            }
            if let Some(arriving) = state.arriving.take()
                && let FrameTarget::Message(posted) = arriving.target
            {
                posted.completion.complete(Err(error.clone()));
            }
            for (place, mut frame) in std::mem::take(&mut state.out).into_iter().enumerate() {
                let half_sent = place == 0 && frame.done > 0;
                let body = half_sent.then(|| frame.body(self.running.as_ref()).to_vec());
                if let OutgoingPayload::Message(message) | OutgoingPayload::Lent(message) =
                    frame.payload
                {
                    message.completion.complete(Err(error.clone()));
                }
                if let Some(body) = body {
                    frame.payload = OutgoingPayload::Bytes(body);
                    state.out.push_back(frame);
                }
            }
        }
    }

    pub(super) fn notify(&mut self, notice: &[u8]) {
        if self.has_said_goodbye {
            // The peers know that this rank has left, and accept no further frame from it.
            return;
        }
        for peer in self.others() {
            if self.peers[peer].presence == StreamState::Here {
                let payload = OutgoingPayload::Bytes(notice.to_vec());
                self.enqueue(peer, FrameKind::Notice, 0, Call::NOTHING, payload);
            }
        }
    }

    fn notice(&self, error: &CollectiveError) -> Notice {
        match error {
            CollectiveError::Aborted { reason, .. } => Notice::Aborted {
                reason: reason.clone(),
            },
            CollectiveError::PeerLost {
                sequence,
                peer,
                cause,
                ..
            } => Notice::PeerLost {
                sequence: *sequence,
                call: self.current_call(),
                peer: peer.0,
                cause: cause.clone(),
            },
            CollectiveError::OutOfMemory {
                operation, bytes, ..
            } if self.disagreement.is_none() => {
                let latest = self.history.back().map(|&(_, call)| call);
                let call = latest.filter(|call| operation_name(call.kind) == operation);
                Notice::OutOfMemory {
                    call: call.unwrap_or(Call::NOTHING),
                    bytes: *bytes as u64,
                }
            }
            other => self
                .disagreement
                .clone()
                .unwrap_or_else(|| Notice::Aborted {
                    reason: other.to_string(),
                }),
        }
    }

    fn current_call(&self) -> Call {
        self.running.as_ref().map_or(Call::NOTHING, |r| r.call)
    }

    /// Returns this rank's call of a sequence number, if it is still kept.
    pub(super) fn call_at(&self, sequence: u64) -> Option<Call> {
        let of = self.history.iter().find(|(at, _)| *at == sequence);
        of.map(|&(_, call)| call)
    }

    /// Handles the end of a peer's stream.
    pub(super) fn stream_ended(&mut self, peer: usize, cause: &str) {
        let before = std::mem::replace(&mut self.peers[peer].presence, StreamState::Closed);
        self.peers[peer].write_failed = true;
        if self.has_failed {
            return;
        }
        match before {
            StreamState::Left | StreamState::InNextGeneration => self.check_presence(peer),
            StreamState::Here | StreamState::Closed => self.lost(peer, cause),
        }
    }

    /// Fails because a peer is gone that is needed, or that left without notice.
    pub(super) fn lost(&mut self, peer: usize, cause: &str) {
        let call = self.current_call();
        let has_messages = self.waits_for_messages() || self.messages_going().next().is_some();
        let operation = if call.kind == CallKind::Nothing && has_messages {
            CallKind::Message.name()
        } else {
            operation_name(call.kind)
        };
        let sequence = self.running.as_ref().map(|running| running.sequence);
        self.fail(CollectiveError::PeerLost {
            operation: operation.to_owned(),
            sequence: sequence.unwrap_or(self.next_sequence),
            generation: self.generation,
            peer: GroupRank(peer as u32),
            cause: cause.to_owned(),
        });
    }

    /// Fails when a wait has exceeded its deadline.
    pub(super) fn check_deadlines(&mut self) {
        let due = self.next_deadline();
        if !due.is_some_and(|due| ronde_clock::left(due).is_zero()) {
            return;
        }
        if self.fail_if_unreadable() {
            return;
        }
        let unanswered = self.transport.unanswered();
        let collective = self.overdue_collective(&unanswered);
        let Some(overdue) = collective.or_else(|| self.overdue_message()) else {
            return;
        };
        if self.is_cut_off(&unanswered) {
            let cause = format!(
                "this rank is cut off: {} of {} peers do not acknowledge its packets",
                unanswered.len(),
                self.member.size - 1
            );
            return self.lost(self.member.rank.index(), &cause);
        }
        self.fail(CollectiveError::Timeout {
            operation: overdue.call.kind.name().to_owned(),
            sequence: overdue.sequence,
            generation: self.generation,
            peer: GroupRank(overdue.peer as u32),
            received: overdue.received,
            expected: overdue.expected,
            waited_s: ronde_clock::now()
                .duration_since(overdue.started)
                .as_secs_f64(),
            limit_s: self.timeout.as_secs_f64(),
        });
    }

    /// Returns whether the network is cut on this rank's side: more than half of all members acknowledge nothing.
    fn is_cut_off(&self, unanswered: &[usize]) -> bool {
        2 * unanswered.len() > self.member.size
    }

    /// Returns whether a wait has lasted so long that it may exceed its deadline.
    fn has_waited_long(&self) -> bool {
        let collective = self.running.iter().map(|running| running.started);
        let messages = self.posted.values().flatten();
        let messages = messages.map(|posted| posted.started);
        let first = collective.chain(messages).min();
        first.is_some_and(|first| ronde_clock::now().duration_since(first) >= self.timeout / 2)
    }

    fn overdue_collective(&self, unanswered: &[usize]) -> Option<OverdueWait> {
        let running = self.running.as_ref()?;
        if !ronde_clock::left(running.deadline).is_zero() {
            return None;
        }
        let stuck = |&peer: &usize| !self.peers[peer].out.is_empty();
        let peer = self.culprit(unanswered);
        let peer = peer.or_else(|| self.others().find(stuck));
        let peer = peer.unwrap_or(self.member.rank.index());
        // If this rank waits for nothing from the culprit itself, other ranks are late because of it.
        let (received, expected) = match running.due[peer] {
            0 => (running.received.iter().sum(), running.due.iter().sum()),
            due => (running.received[peer], due),
        };
        Some(OverdueWait {
            call: running.call,
            sequence: running.sequence,
            peer,
            received,
            expected,
            started: running.started,
        })
    }

    fn overdue_message(&self) -> Option<OverdueWait> {
        let waiting = self.posted.iter();
        let waiting = waiting.flat_map(|(&(peer, _), all)| all.iter().map(move |p| (peer, 0, p)));
        let all = waiting
            .chain(self.arriving_messages())
            .chain(self.messages_going());
        let (peer, received, posted) = all
            .into_iter()
            .find(|(_, _, posted)| ronde_clock::left(posted.deadline).is_zero())?;
        Some(OverdueWait {
            call: posted.call,
            sequence: 0,
            peer,
            received,
            expected: posted.buffer.bytes().len(),
            started: posted.started,
        })
    }
}

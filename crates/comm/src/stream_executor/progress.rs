//! Progress: runs collectives round by round, and matches frames with their receivers.

use std::time::Instant;

use ronde_core::{CollectiveError, GroupRank};

use super::peer::{FrameTarget, OutgoingPayload, StreamState};
use super::{EarlyFrame, ExecutorCommand, HISTORY, MessageAddress, PostedMessage, StreamExecutor};
use crate::frame::{Call, CallKind, FrameHeader, FrameKind};
use crate::rounds::{ExpectedMessage, RoundMessages};
use crate::running::{FinishedSchedule, RunningCollective};

impl StreamExecutor {
    /// Handles a command from a caller.
    pub(super) fn accept(&mut self, command: ExecutorCommand) {
        if let Some(error) = self.failure() {
            if let ExecutorCommand::Collective(super::CollectiveRequest { completion, .. })
            | ExecutorCommand::Send { completion, .. }
            | ExecutorCommand::Receive { completion, .. } = command
            {
                completion.complete(Err(error));
            }
            return;
        }
        let started = ronde_clock::now();
        let deadline = ronde_clock::deadline(self.timeout);
        match command {
            ExecutorCommand::Collective(request) => self.queue.push_back(request),
            ExecutorCommand::Lend { mark, memories } => self.lend(mark, memories),
            ExecutorCommand::Limit(limit) => self.timeout = limit,
            ExecutorCommand::Fail { error, notice } => {
                self.disagreement = notice;
                self.fail(error);
            }
            ExecutorCommand::Send {
                to,
                call,
                buffer,
                completion,
            } => {
                let message = PostedMessage {
                    call,
                    buffer,
                    completion,
                    started,
                    deadline,
                };
                let (kind, address, payload) = self.outgoing(to, message);
                self.enqueue(to, kind, address, call, payload);
                self.check_presence(to);
            }
            ExecutorCommand::Receive {
                from,
                call,
                buffer,
                completion,
            } => {
                let address = (from, call.detail);
                self.posted
                    .entry(address)
                    .or_default()
                    .push_back(PostedMessage {
                        call,
                        buffer,
                        completion,
                        started,
                        deadline,
                    });
                self.deliver_early_messages(address);
                self.retry_parked(from);
                self.check_presence(from);
            }
        }
    }

    /// Advances the collectives; returns whether anything changed.
    pub(super) fn advance(&mut self) -> bool {
        if self.has_failed {
            return false;
        }
        let Some(running) = &mut self.running else {
            return self.begin_next();
        };
        let moved = running.advance();
        if moved {
            self.open_rounds();
        }
        moved
    }

    fn begin_next(&mut self) -> bool {
        let Some(request) = self.queue.pop_front() else {
            return false;
        };
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((sequence, request.call));
        let scratch = self.scratch.take();
        let scratch = scratch.unwrap_or_else(|| ronde_core::Buffer::host(ronde_core::DType::U8, 0));
        match RunningCollective::new(request, sequence, self.member, self.timeout, scratch) {
            Ok(running) => {
                self.mailbox.flight.started(sequence, running.started);
                let call = running.call;
                self.running = Some(running);
                self.compare_with_reports(sequence, call);
                self.open_rounds();
            }
            Err((completion, error)) => {
                self.fail(error.clone());
                completion.complete(Err(self.mailbox.flight().numbered(error)));
            }
        }
        true
    }

    /// Posts the messages of all rounds that can be opened, or ends the schedule.
    fn open_rounds(&mut self) {
        self.resume_starved();
        while let Some(running) = &mut self.running
            && let Some(RoundMessages { sends, receives }) = running.open_next()
        {
            let (sequence, call) = (running.sequence, running.call);
            for (peer, awaited) in receives {
                running.due[peer] += awaited.place.len();
                running.expected[peer].push_back(awaited);
            }
            for (peer, sending) in sends {
                let payload = OutgoingPayload::Collective(sending);
                self.enqueue(peer, FrameKind::Collective, sequence, call, payload);
            }
        }
        if self.running.as_ref().is_some_and(|r| r.rounds.is_idle()) {
            return self.finish();
        }
        for peer in self.others() {
            self.deliver_early(peer);
            self.retry_parked(peer);
            self.check_presence(peer);
        }
    }

    fn finish(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        match running.finish() {
            Ok(FinishedSchedule::Result(completion, buffer, scratch)) => {
                self.scratch = Some(scratch);
                completion.complete(Ok(buffer));
            }
            Ok(FinishedSchedule::Lens(running)) => {
                self.running = Some(*running);
                self.open_rounds();
            }
            Err((completion, error)) => {
                self.fail(error.clone());
                completion.complete(Err(self.mailbox.flight().numbered(error)));
            }
        }
    }

    /// Returns the destination of a collective frame; `None` when it is early.
    pub(super) fn collective_target(
        &mut self,
        peer: usize,
        header: &FrameHeader,
    ) -> Result<Option<FrameTarget>, CollectiveError> {
        let first = self.peers[peer].early.is_empty();
        let current = self.running.as_ref().map(|running| {
            let waits = !running.expected[peer].is_empty();
            (running.sequence, running.call, waits)
        });
        match current {
            None if header.sequence >= self.next_sequence => return Ok(None),
            Some((sequence, call, waits)) if header.sequence >= sequence => {
                // A peer that has continued without sending the data of this call disagrees as well.
                let gone_on = header.sequence > sequence && waits && first;
                if gone_on || (header.sequence == sequence && header.call != call) {
                    return Err(self.mismatch(peer, header, call, sequence));
                }
                return if first && header.sequence == sequence {
                    self.wanted(peer, header)
                } else {
                    Ok(None)
                };
            }
            _ => {}
        }
        let mine = self.call_at(header.sequence).unwrap_or(Call::NOTHING);
        Err(self.mismatch(peer, header, mine, header.sequence))
    }

    /// Returns the destination of a frame of the running collective.
    fn wanted(
        &mut self,
        peer: usize,
        header: &FrameHeader,
    ) -> Result<Option<FrameTarget>, CollectiveError> {
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        let Some(awaited) = running.expected[peer].front() else {
            return Ok(None);
        };
        let left = running.bytes_missing(awaited) as u64;
        if header.call.kind == CallKind::AllToAllUnequal && header.bytes != left {
            return Err(self.other_len(peer, header, left));
        }
        if header.bytes > left || (header.bytes == 0 && left > 0) {
            return Err(CollectiveError::Protocol {
                peer: GroupRank(peer as u32),
                problem: format!("{} bytes where {left} are expected", header.bytes),
            });
        }
        Ok(running.expected[peer]
            .pop_front()
            .map(FrameTarget::Collective))
    }

    /// Passes early collective frames of a peer to the running collective, as far as it expects them.
    pub(super) fn deliver_early(&mut self, peer: usize) {
        while !self.has_failed
            && let Some(early) = self.peers[peer].early.pop_front()
        {
            // Checked as if it had just arrived, with nothing before it.
            let after = std::mem::take(&mut self.peers[peer].early);
            let target = self.collective_target(peer, &early.header);
            self.peers[peer].early = after;
            match (target, &mut self.running) {
                (Ok(Some(FrameTarget::Collective(awaited))), Some(running)) => {
                    let count = early.bytes.len();
                    let place = running.next_range(&awaited, count);
                    running
                        .memory
                        .bytes_mut(&place)
                        .copy_from_slice(&early.bytes);
                    self.peers[peer].early_bytes -= EarlyFrame::weight(&early.header);
                    if self.came(peer, &awaited, count) {
                        self.frame_ended(peer, awaited);
                    }
                }
                (Ok(_), _) => {
                    self.peers[peer].early.push_front(early);
                    return;
                }
                (Err(error), _) => return self.fail(error),
            }
        }
        self.deliver_partial(peer);
    }

    /// Passes a partly received collective frame to the running collective: the rest is read directly
    /// into its destination, and a frame that does not match is reported at once.
    fn deliver_partial(&mut self, peer: usize) {
        let state = &self.peers[peer];
        let Some(arriving) = &state.arriving else {
            return;
        };
        let header = arriving.header;
        let is_aside = matches!(arriving.target, FrameTarget::Buffered(_));
        if !is_aside || header.kind != FrameKind::Collective || self.has_failed {
            return;
        }
        match (self.collective_target(peer, &header), &mut self.running) {
            (Ok(Some(FrameTarget::Collective(awaited))), Some(running)) => {
                let state = &mut self.peers[peer];
                state.early_bytes -= EarlyFrame::weight(&header);
                let Some(mut arriving) = state.arriving.take() else {
                    return;
                };
                let came = arriving.done;
                if let FrameTarget::Buffered(bytes) = &arriving.target {
                    let place = running.next_range(&awaited, came);
                    running
                        .memory
                        .bytes_mut(&place)
                        .copy_from_slice(&bytes[..came]);
                }
                if self.came(peer, &awaited, came) {
                    arriving.target = FrameTarget::Collective(awaited);
                    self.peers[peer].arriving = Some(arriving);
                }
            }
            (Ok(_), _) => {}
            (Err(error), _) => self.fail(error),
        }
    }

    /// Records that `count` more bytes of a collective were received; false after a failure.
    pub(super) fn came(&mut self, peer: usize, awaited: &ExpectedMessage, count: usize) -> bool {
        let Some(running) = &mut self.running else {
            return false;
        };
        running.received[peer] += count;
        if running.came(awaited, count) {
            self.resume_starved();
            return true;
        }
        self.fail(CollectiveError::Protocol {
            peer: GroupRank(peer as u32),
            problem: "it answers data that it cannot have received yet".to_owned(),
        });
        false
    }

    /// Handles a complete frame of a collective: its message is complete too, or the next frame continues it.
    pub(super) fn frame_ended(&mut self, peer: usize, awaited: ExpectedMessage) {
        let Some(running) = &mut self.running else {
            return;
        };
        if running.bytes_missing(&awaited) > 0 {
            running.expected[peer].push_front(awaited);
        } else {
            running.rounds.complete(&awaited);
        }
    }

    /// Returns the receive that waits for a message; `None` when the message is early.
    pub(super) fn message_target(
        &mut self,
        peer: usize,
        header: &FrameHeader,
    ) -> Result<Option<FrameTarget>, CollectiveError> {
        let address = (peer, header.call.detail);
        if self.early_messages.contains_key(&address) || self.peers[peer].unreadable.is_some() {
            return Ok(None);
        }
        let Some(posted) = self.next_posted(address) else {
            return Ok(None);
        };
        if let Some(error) = self.misfit(peer, header, &posted) {
            posted.completion.complete(Err(error.clone()));
            return Err(error);
        }
        Ok(Some(FrameTarget::Message(posted)))
    }

    fn misfit(
        &self,
        peer: usize,
        header: &FrameHeader,
        posted: &PostedMessage,
    ) -> Option<CollectiveError> {
        if header.call == posted.call
            && header.payload_bytes() as usize == posted.buffer.bytes().len()
        {
            return None;
        }
        Some(CollectiveError::Mismatch {
            sequence: header.sequence,
            peer: GroupRank(peer as u32),
            mine: posted.call.describe(),
            theirs: header.call.describe(),
        })
    }

    fn next_posted(&mut self, address: MessageAddress) -> Option<PostedMessage> {
        let waiting = self.posted.get_mut(&address)?;
        let posted = waiting.pop_front();
        if waiting.is_empty() {
            self.posted.remove(&address);
        }
        posted
    }

    /// Passes early messages to the receives that wait for them.
    pub(super) fn deliver_early_messages(&mut self, address: MessageAddress) {
        while !self.has_failed
            && self.peers[address.0].unreadable.is_none()
            && self.early_messages.contains_key(&address)
            && let Some(mut posted) = self.next_posted(address)
            && let Some(waiting) = self.early_messages.get_mut(&address)
            && let Some(early) = waiting.pop_front()
        {
            if waiting.is_empty() {
                self.early_messages.remove(&address);
            }
            self.peers[address.0].early_bytes -= EarlyFrame::weight(&early.header);
            if let Some(error) = self.misfit(address.0, &early.header, &posted) {
                posted.completion.complete(Err(error.clone()));
                return self.fail(error);
            }
            posted.buffer.bytes_mut().copy_from_slice(&early.bytes);
            posted.finish();
        }
    }

    pub(super) fn waits_for_messages(&self) -> bool {
        !self.posted.is_empty() || self.arriving_messages().next().is_some()
    }

    /// Returns messages that are being received into their buffers, with sender and bytes so far.
    pub(super) fn arriving_messages(&self) -> impl Iterator<Item = (usize, usize, &PostedMessage)> {
        let arriving = self.peers.iter().map(|peer| peer.arriving.as_ref());
        arriving
            .enumerate()
            .filter_map(|(peer, arriving)| match arriving {
                Some(arriving) => match &arriving.target {
                    FrameTarget::Message(posted) => Some((peer, arriving.done, posted)),
                    _ => None,
                },
                None => None,
            })
    }

    /// Fails when data is needed from a peer that has left.
    pub(super) fn check_presence(&mut self, peer: usize) {
        if self.peers[peer].presence == StreamState::Here || self.has_failed {
            return;
        }
        let wanted = self
            .running
            .as_ref()
            .is_some_and(|running| !running.expected[peer].is_empty());
        let sending = self.peers[peer]
            .out
            .iter()
            .any(|frame| !matches!(frame.payload, OutgoingPayload::Bytes(_)));
        let posted = self.posted.keys().any(|&(from, _)| from == peer);
        if wanted || sending || posted {
            self.lost(peer, "it has left the group");
        }
    }

    /// Returns the earliest deadline of a wait.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let running = self.running.iter().map(|running| running.deadline);
        let telling = self.running.iter().filter_map(|running| running.notify_at);
        let posted = self.posted.values().flatten().map(|posted| posted.deadline);
        let arriving = self.arriving_messages().map(|(_, _, p)| p.deadline);
        let sending = self.messages_going().map(|(_, _, p)| p.deadline);
        let unreadable = self.peers.iter().filter_map(|p| p.unreadable.as_ref());
        let running = running.chain(telling).chain(unreadable.map(|u| u.until));
        running.chain(posted).chain(arriving).chain(sending).min()
    }

    /// Returns messages that are being sent, with receiver and bytes so far.
    pub(super) fn messages_going(&self) -> impl Iterator<Item = (usize, usize, &PostedMessage)> {
        let lent = self.peers.iter().enumerate();
        let lent = lent.flat_map(|(peer, state)| state.lent.iter().map(move |m| (peer, 0, m)));
        let frames = self.peers.iter().enumerate();
        frames
            .flat_map(|(peer, state)| state.out.iter().map(move |frame| (peer, frame)))
            .filter_map(|(peer, frame)| match &frame.payload {
                OutgoingPayload::Message(posted) | OutgoingPayload::Lent(posted) => {
                    Some((peer, frame.done, posted))
                }
                _ => None,
            })
            .chain(lent)
    }
}

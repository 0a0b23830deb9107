//! [`Rounds`]: the rounds of a schedule whose messages are in progress.
//!
//! The first of them is the current one: only its local actions run. A later round may be opened
//! together with it when its messages cannot interfere with those before it; its data is then sent piece by
//! piece as the actions of the previous round make progress. So the end of one round and the start
//! of the next overlap, and a link has data to carry in both directions all the time.

use std::collections::VecDeque;
use std::ops::Range;

use ronde_schedule::{LocalAction, Round, Transfer};

use crate::memory::{MemoryRange, ScheduleMemory};
use crate::streaming::{PIECE_BYTES, StreamedActions};

/// Maximum number of rounds in progress at once.
const OPEN_MAX: usize = 4;
/// Minimum size of a round that is opened early, in bytes.
const AHEAD_BYTES_MIN: usize = 2 * PIECE_BYTES;

/// When the bytes of a message are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadyCondition {
    /// They are final already.
    Open,
    /// As far as the actions of a round are done; the message starts `offset` bytes after their start.
    Acted { round: usize, offset: usize },
    /// As far as a message of a round has arrived, likewise.
    Arrived {
        round: usize,
        index: usize,
        offset: usize,
    },
}

/// A message to be sent. [`Rounds`] counts its bytes.
#[derive(Debug, Clone)]
pub(crate) struct OutgoingMessage {
    pub(crate) place: MemoryRange,
    round: usize,
    index: usize,
    gate: ReadyCondition,
}

/// A message to be received. [`Rounds`] counts its bytes.
#[derive(Debug, Clone)]
pub(crate) struct ExpectedMessage {
    pub(crate) place: MemoryRange,
    round: usize,
    index: usize,
    /// The message that it answers, byte by byte: its round and index.
    answers: Option<(usize, usize)>,
}

impl ExpectedMessage {
    /// Returns the number of its round.
    pub(crate) fn round(&self) -> usize {
        self.round
    }
}

/// The messages of an opened round, each with its peer.
#[derive(Debug, Default)]
pub(crate) struct RoundMessages {
    pub(crate) sends: Vec<(usize, OutgoingMessage)>,
    pub(crate) receives: Vec<(usize, ExpectedMessage)>,
}

/// A round in progress.
#[derive(Debug)]
struct OpenRound {
    sends_left: usize,
    receives_left: usize,
    /// Receiver, range, and bytes sent so far.
    sent: Vec<(usize, MemoryRange, usize)>,
    /// Range, and bytes received so far.
    arriving: Vec<(MemoryRange, usize)>,
    /// The ranges that its actions read or write, and those that they write.
    touched: Vec<MemoryRange>,
    written: Vec<MemoryRange>,
    streaming: Option<StreamedActions>,
}

impl OpenRound {
    fn of(round: &Round, memory: &ScheduleMemory) -> Self {
        let (mut touched, mut written) = (Vec::new(), Vec::new());
        for action in &round.actions {
            let (into, operands) = match action {
                LocalAction::Reduce { into, left, right } => (into, [left, right]),
                LocalAction::Copy { into, from } => (into, [into, from]),
            };
            touched.extend(operands.map(|region| memory.place(region)));
            written.push(memory.place(into));
        }
        let (mut sent, mut arriving) = (Vec::new(), Vec::new());
        for transfer in &round.transfers {
            match transfer {
                Transfer::Send { to, region } => {
                    sent.push((to.index(), memory.place(region), 0));
                }
                Transfer::Receive { region, .. } => arriving.push((memory.place(region), 0)),
            }
        }
        Self {
            sends_left: sent.len(),
            receives_left: arriving.len(),
            sent,
            arriving,
            touched,
            written,
            streaming: StreamedActions::of(round, memory),
        }
    }

    fn is_over(&self) -> bool {
        self.sends_left == 0 && self.receives_left == 0
    }

    /// Returns when `place` is final as far as this round, number `round`, is concerned; `None` if that
    /// cannot be decided piece by piece.
    fn gate(&self, round: usize, place: &MemoryRange) -> Option<ReadyCondition> {
        let mut writers = self.written.iter().filter(|w| w.overlaps(place));
        if let Some(first) = writers.next() {
            let offset = first.offset_of(place)?;
            return writers
                .all(|other| other == first)
                .then_some(ReadyCondition::Acted { round, offset });
        }
        let arriving = self.arriving.iter().enumerate();
        let mut messages = arriving.filter(|(_, (p, _))| p.overlaps(place));
        let Some((index, (message, _))) = messages.next() else {
            return Some(ReadyCondition::Open);
        };
        let offset = message.offset_of(place)?;
        messages
            .next()
            .is_none()
            .then_some(ReadyCondition::Arrived {
                round,
                index,
                offset,
            })
    }

    /// Returns whether a later round may receive into `place` while this one is in progress, with the
    /// index of the message that it then answers.
    fn admits(&self, from: usize, place: &MemoryRange, answers: bool) -> Option<Option<usize>> {
        let arriving = self.arriving.iter().map(|(place, _)| place);
        if arriving.chain(&self.touched).any(|p| p.overlaps(place)) {
            return None;
        }
        let sent = self.sent.iter().enumerate();
        let mut overlapping = sent.filter(|(_, (_, p, _))| p.overlaps(place));
        let Some((index, (to, sent, _))) = overlapping.next() else {
            return Some(None);
        };
        let is_answer = answers && *to == from && sent == place && overlapping.next().is_none();
        is_answer.then_some(Some(index))
    }
}

/// The rounds of one schedule that are in progress.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    open: VecDeque<OpenRound>,
    /// Number of the first of them.
    first: usize,
}

impl Rounds {
    /// Returns the number of the current round.
    pub(crate) fn current(&self) -> usize {
        self.first
    }

    /// Returns whether no round is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens the next round of `rounds` if possible now. `answers`: a peer sends back a
    /// region that this rank sent only as far as it has received it.
    pub(crate) fn open_next(
        &mut self,
        rounds: &mut [Round],
        memory: &ScheduleMemory,
        answers: bool,
    ) -> Option<RoundMessages> {
        let number = self.first + self.open.len();
        let round = rounds.get_mut(number)?;
        let opened = self.prepare(number, round, memory, answers)?;
        self.open.push_back(OpenRound::of(round, memory));
        round.transfers = Vec::new();
        Some(opened)
    }

    fn prepare(
        &self,
        number: usize,
        round: &Round,
        memory: &ScheduleMemory,
        answers: bool,
    ) -> Option<RoundMessages> {
        let ahead = !self.open.is_empty();
        if ahead && (self.open.len() == OPEN_MAX || bytes(round, memory) < AHEAD_BYTES_MIN) {
            return None;
        }
        let mut opened = RoundMessages::default();
        for transfer in &round.transfers {
            match transfer {
                Transfer::Send { to, region } => {
                    let place = memory.place(region);
                    let gate = self.gate(&place)?;
                    let index = opened.sends.len();
                    let sending = OutgoingMessage {
                        place,
                        round: number,
                        index,
                        gate,
                    };
                    opened.sends.push((to.index(), sending));
                }
                Transfer::Receive { from, region } => {
                    let place = memory.place(region);
                    let answers = self.admits(from.index(), &place, answers)?;
                    let index = opened.receives.len();
                    let awaited = ExpectedMessage {
                        place,
                        round: number,
                        index,
                        answers,
                    };
                    opened.receives.push((from.index(), awaited));
                }
            }
        }
        Some(opened)
    }

    fn numbered(&self) -> impl Iterator<Item = (usize, &OpenRound)> {
        (self.first..).zip(&self.open)
    }

    /// Returns the condition for sending `place`, over all rounds in progress; at most one may write it.
    fn gate(&self, place: &MemoryRange) -> Option<ReadyCondition> {
        let mut found = ReadyCondition::Open;
        for (round, open) in self.numbered() {
            match (open.gate(round, place)?, found) {
                (ReadyCondition::Open, _) => {}
                (gate, ReadyCondition::Open) => found = gate,
                _ => return None,
            }
        }
        Some(found)
    }

    /// Returns whether a round after those in progress may receive into `place`, and the message it answers.
    fn admits(
        &self,
        from: usize,
        place: &MemoryRange,
        answers: bool,
    ) -> Option<Option<(usize, usize)>> {
        let mut found = None;
        for (round, open) in self.numbered() {
            if let Some(index) = open.admits(from, place, answers)? {
                if found.is_some() {
                    return None;
                }
                found = Some((round, index));
            }
        }
        Some(found)
    }

    fn at(&self, round: usize) -> Option<&OpenRound> {
        self.open.get(round.checked_sub(self.first)?)
    }

    fn at_mut(&mut self, round: usize) -> Option<&mut OpenRound> {
        self.open.get_mut(round.checked_sub(self.first)?)
    }

    /// Returns the bytes of a message that can be sent by now, including those that were sent.
    pub(crate) fn ready(&self, sending: &OutgoingMessage) -> usize {
        let len = sending.place.len();
        let (come, offset) = match sending.gate {
            ReadyCondition::Open => return len,
            ReadyCondition::Acted { round, offset } => match self.at(round) {
                None => return len,
                Some(open) => (
                    open.streaming.as_ref().map_or(0, StreamedActions::acted),
                    offset,
                ),
            },
            ReadyCondition::Arrived {
                round,
                index,
                offset,
            } => match self.at(round) {
                None => return len,
                Some(open) => (open.arriving[index].1, offset),
            },
        };
        come.saturating_sub(offset).min(len)
    }

    /// Records that `count` more bytes of a message were sent.
    pub(crate) fn record_sent(&mut self, sending: &OutgoingMessage, count: usize) {
        if let Some(open) = self.at_mut(sending.round) {
            open.sent[sending.index].2 += count;
        }
    }

    /// Returns the bytes of a message that were sent.
    pub(crate) fn bytes_sent(&self, sending: &OutgoingMessage) -> usize {
        let open = self.at(sending.round);
        open.map_or(sending.place.len(), |open| open.sent[sending.index].2)
    }

    /// Returns the bytes of a message that were received.
    pub(crate) fn bytes_received(&self, awaited: &ExpectedMessage) -> usize {
        let open = self.at(awaited.round);
        open.map_or(awaited.place.len(), |open| open.arriving[awaited.index].1)
    }

    /// Records that a message was sent completely.
    pub(crate) fn sent(&mut self, sending: &OutgoingMessage) {
        if let Some(open) = self.at_mut(sending.round) {
            open.sends_left -= 1;
        }
    }

    /// Records that `count` more bytes of a message arrived; false if the peer cannot have sent them yet.
    pub(crate) fn came(&mut self, awaited: &ExpectedMessage, count: usize) -> bool {
        if let Some((round, index)) = awaited.answers
            && let Some(open) = self.at(round)
            && open.sent[index].2 < self.bytes_received(awaited) + count
        {
            return false;
        }
        if let Some(open) = self.at_mut(awaited.round) {
            open.arriving[awaited.index].1 += count;
            if let Some(streaming) = &mut open.streaming {
                streaming.arrived(&awaited.place, count);
            }
        }
        true
    }

    /// Records that a message is complete.
    pub(crate) fn complete(&mut self, awaited: &ExpectedMessage) {
        if let Some(open) = self.at_mut(awaited.round) {
            open.receives_left -= 1;
        }
    }

    /// Returns the bytes on which the actions of the current round can run now.
    pub(crate) fn due(&mut self) -> Option<Range<usize>> {
        self.open.front_mut()?.streaming.as_mut()?.due()
    }

    /// Returns whether all messages of the current round are complete.
    pub(crate) fn current_is_over(&self) -> bool {
        self.open.front().is_some_and(OpenRound::is_over)
    }

    /// Returns the bytes on which the actions of the current round were run.
    pub(crate) fn acted(&self) -> usize {
        let streaming = self.open.front().and_then(|open| open.streaming.as_ref());
        streaming.map_or(0, StreamedActions::acted)
    }

    /// Ends the current round and makes the next one current.
    pub(crate) fn close_current(&mut self) {
        self.open.pop_front();
        self.first += 1;
    }
}

/// Returns the number of bytes that a round moves.
fn bytes(round: &Round, memory: &ScheduleMemory) -> usize {
    let of = |transfer: &Transfer| match transfer {
        Transfer::Send { region, .. } | Transfer::Receive { region, .. } => {
            memory.place(region).len()
        }
    };
    round.transfers.iter().map(of).sum()
}

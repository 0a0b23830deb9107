//! [`FlightRecorder`]: always records the last operations of one rank in one group.
//!
//! Each event costs one reading of the clock, no lock, and no allocation. A short operation over
//! shared memory costs one reading in all: its end is derived from the arrival times of the ranks.
//!
//! `merge_report` names the rank that is missing, and its operation. Workers write their records when the group fails, or at
//! SIGUSR1.

mod folder;
mod record;
mod report;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::frame::{ANY_LEN, Call, CallKind};
pub use record::{FailureHook, FirstArrival, FlightRecord, OperationRecord};
pub use report::merge_report;
use ronde_core::spans::{SpanKind, TimeSpan};
use ronde_core::{CollectiveError, GroupRank};

/// Number of operations that are kept.
const OPERATIONS: usize = 1000;
/// Operations in a record, times the size of the group: all ranks of a large group together write about as much as those of a
/// group of 32, because each of them does it at the same time.
const RECORDED_MAX: usize = 32_000;
/// Minimum number of operations in a record.
const RECORDED_MIN: usize = 32;
/// Maximum number of arrivals that are kept, for the same reason.
const ARRIVALS_MAX: usize = 2048;
/// Maximum group size for recording arrivals: those of several operations fit.
const ARRIVALS_SIZE_MAX: usize = 1024;
/// Operations per peer whose first bytes may arrive before they are called here and still be recorded.
const EARLY_MAX: usize = 4;

/// The kind of operation that a caller starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedRequest {
    Collective,
    SendTo(u32),
    ReceiveFrom(u32),
}

/// Identifies an operation in the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordId(u64);

/// Nanoseconds since the recorder started; 0 for never.
type RecorderTime = u64;

/// One recorded operation. Written by the caller and then by the progress thread; any thread may read
/// it, and skips a slot that is being overwritten.
#[derive(Debug, Default)]
struct RecordSlot {
    /// The identifier of its operation plus one; 0 while it is being overwritten.
    holds: AtomicU64,
    kind: AtomicU64,
    sequence: AtomicU64,
    call: [AtomicU64; 3],
    bytes: AtomicU64,
    /// Its number among the streamed collectives plus one; 0 for other operations.
    streamed: AtomicU64,
    issued: AtomicU64,
    started: AtomicU64,
    /// Twice the time, plus one if it failed.
    ended: AtomicU64,
}

/// The first bytes of an operation that was not called here yet.
#[derive(Debug, Default)]
struct EarlyArrival {
    sequence: AtomicU64,
    came: AtomicU64,
}

/// The recorder of one rank in one group: atomic numbers, no lock.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    began: Instant,
    /// The same time on the clock of the host.
    began_ns: u64,
    began_at: SystemTime,
    rank: GroupRank,
    size: usize,
    issued: AtomicU64,
    /// Operations before this identifier were part of joining, and are not shown.
    hidden: AtomicU64,
    /// Streamed collectives that were part of joining.
    unnumbered: AtomicU64,
    /// Number of collectives so far, and of those that the progress thread runs over streams.
    collectives: AtomicU64,
    streamed: AtomicU64,
    /// When the latest collective was called.
    called: AtomicU64,
    /// Nanoseconds from start to end, summed over all operations that have ended.
    under_way: AtomicU64,
    /// By identifier, modulo [`OPERATIONS`].
    slots: Vec<RecordSlot>,
    /// Identifier of a streamed collective by its number, modulo [`OPERATIONS`].
    by_sequence: Vec<AtomicU64>,
    arrivals: Arrivals,
    /// By peer, [`EARLY_MAX`] each.
    early_arrivals: Vec<EarlyArrival>,
}

/// The first bytes of the last operations.
#[derive(Debug)]
struct Arrivals {
    /// By identifier of the operation, modulo their number, and peer.
    moments: Vec<AtomicU64>,
    /// Number of operations.
    operations: usize,
    /// Number of peers; 0 in very large groups.
    peers: usize,
}

impl Arrivals {
    fn new(size: usize) -> Self {
        let peers = if size > ARRIVALS_SIZE_MAX { 0 } else { size };
        let operations = OPERATIONS.min(ARRIVALS_MAX / size.max(1));
        Self {
            moments: zeros(operations * peers),
            operations,
            peers,
        }
    }

    /// Returns the moments of an operation by peer; none if it is not among the last ones of all that were `issued`.
    fn of(&self, ticket: RecordId, issued: &AtomicU64) -> &[AtomicU64] {
        let newer = issued.load(SeqCst).saturating_sub(ticket.0);
        if self.peers == 0 || newer > self.operations as u64 {
            return &[];
        }
        let place = ticket.0 as usize % self.operations;
        &self.moments[place * self.peers..][..self.peers]
    }
}

fn zeros(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn set(number: &AtomicU64, value: u64) {
    number.store(value, Relaxed);
}

impl FlightRecorder {
    pub(crate) fn new(rank: GroupRank, size: usize) -> Self {
        let arrivals = Arrivals::new(size);
        Self {
            began: ronde_clock::now(),
            began_ns: ronde_clock::host_ns(),
            began_at: ronde_clock::date(),
            rank,
            size,
            issued: AtomicU64::new(0),
            hidden: AtomicU64::new(0),
            unnumbered: AtomicU64::new(0),
            collectives: AtomicU64::new(0),
            streamed: AtomicU64::new(0),
            called: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            slots: (0..OPERATIONS).map(|_| RecordSlot::default()).collect(),
            by_sequence: zeros(OPERATIONS),
            early_arrivals: (0..EARLY_MAX * arrivals.peers)
                .map(|_| EarlyArrival::default())
                .collect(),
            arrivals,
        }
    }

    fn moment(&self, at: Instant) -> RecorderTime {
        let since = at.saturating_duration_since(self.began).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX / 2).max(1)
    }

    fn now(&self) -> RecorderTime {
        self.host_moment(ronde_clock::host_ns())
    }

    fn host_moment(&self, ns: u64) -> RecorderTime {
        ns.saturating_sub(self.began_ns).max(1)
    }

    fn arrivals(&self, ticket: RecordId) -> &[AtomicU64] {
        self.arrivals.of(ticket, &self.issued)
    }

    /// Records a call; collectives are numbered in the order of these calls.
    pub(crate) fn issued(&self, kind: RecordedRequest, call: Call, bytes: usize) -> RecordId {
        self.note(kind, call, bytes, self.now(), 0)
    }

    /// Records a collective that starts at once, at a time on the clock of the host.
    pub(crate) fn issued_and_begun(&self, call: Call, bytes: usize, ns: u64) -> RecordId {
        let moment = self.host_moment(ns);
        self.note(RecordedRequest::Collective, call, bytes, moment, moment)
    }

    fn note(
        &self,
        kind: RecordedRequest,
        call: Call,
        bytes: usize,
        issued: RecorderTime,
        started: RecorderTime,
    ) -> RecordId {
        let ticket = RecordId(self.issued.fetch_add(1, AcqRel));
        let slot = &self.slots[ticket.place()];
        slot.holds.store(0, Relaxed);
        fence(Release);
        let sequence = match kind {
            RecordedRequest::Collective => {
                set(&self.called, issued);
                self.collectives.fetch_add(1, Relaxed)
            }
            _ => 0,
        };
        set(&slot.kind, kind.encode());
        set(&slot.sequence, sequence);
        for (word, value) in slot.call.iter().zip(call.words()) {
            set(word, value);
        }
        set(&slot.bytes, bytes as u64);
        set(&slot.issued, issued);
        set(&slot.streamed, 0);
        set(&slot.started, started);
        set(&slot.ended, 0);
        for came in self.arrivals(ticket) {
            set(came, 0);
        }
        slot.holds.store(ticket.0 + 1, Release);
        ticket
    }

    /// Records that a collective goes to the progress thread, which numbers its collectives in the order
    /// of these calls. Calls are serialized by the mailbox's lock.
    pub(crate) fn streams(&self, ticket: RecordId) {
        let sequence = self.streamed.load(Relaxed);
        let place = sequence as usize;
        set(&self.slots[ticket.place()].streamed, sequence + 1);
        self.by_sequence[place % OPERATIONS].store(ticket.0, Relaxed);
        self.streamed.store(sequence + 1, SeqCst);
        for (peer, came) in self.arrivals(ticket).iter().enumerate() {
            let early_arrivals = &self.early_arrivals[peer * EARLY_MAX + place % EARLY_MAX];
            let moment = early_arrivals.came.load(SeqCst);
            if moment != 0 && early_arrivals.sequence.load(Relaxed) == sequence {
                set(came, moment);
            }
        }
    }

    /// Ends joining: its operations are not shown, and numbers start again. If collectives are
    /// streamed, the numbers in errors start again too.
    pub(crate) fn joined(&self, streams: bool) {
        self.hidden.store(self.issued.load(Relaxed), Relaxed);
        self.collectives.store(0, Relaxed);
        if streams {
            self.unnumbered.store(self.streamed.load(Relaxed), Relaxed);
        }
    }

    /// Returns the number of a streamed collective as callers count them.
    pub(crate) fn number(&self, sequence: u64) -> u64 {
        sequence.saturating_sub(self.unnumbered.load(Relaxed))
    }

    /// Replaces the number of a streamed collective in an error by the one that callers count.
    pub(crate) fn numbered(&self, mut error: CollectiveError) -> CollectiveError {
        if let CollectiveError::Timeout { sequence, .. }
        | CollectiveError::Mismatch { sequence, .. }
        | CollectiveError::PeerLost { sequence, .. } = &mut error
        {
            *sequence = self.number(*sequence);
        }
        error
    }

    /// Returns a kept streamed collective and its slot.
    fn collective(&self, sequence: u64) -> Option<(RecordId, &RecordSlot)> {
        let ticket = RecordId(self.by_sequence[sequence as usize % OPERATIONS].load(Relaxed));
        let slot = self.slot(ticket)?;
        let is_it = slot.streamed.load(Relaxed) == sequence + 1;
        is_it.then_some((ticket, slot))
    }

    fn slot(&self, ticket: RecordId) -> Option<&RecordSlot> {
        let slot = &self.slots[ticket.place()];
        (slot.holds.load(Acquire) == ticket.0.wrapping_add(1)).then_some(slot)
    }

    /// Records that the progress thread has started a collective.
    pub(crate) fn started(&self, sequence: u64, at: Instant) {
        if let Some((_, slot)) = self.collective(sequence) {
            set(&slot.started, self.moment(at));
        }
    }

    /// Records that bytes of a collective arrived from a peer; only the first count. Called by one thread.
    pub(crate) fn arrived(&self, sequence: u64, peer: usize) {
        if peer >= self.arrivals.peers {
            return;
        }
        let called = self.streamed.load(SeqCst);
        if sequence < called {
            return self.arrived_at(sequence, peer, None);
        }
        let early_arrivals = &self.early_arrivals[peer * EARLY_MAX + sequence as usize % EARLY_MAX];
        // Of operations that share a slot, the one that is called first is kept.
        if early_arrivals.came.load(Relaxed) == 0 || early_arrivals.sequence.load(Relaxed) < called
        {
            let now = self.now();
            early_arrivals.came.store(0, Relaxed);
            early_arrivals.sequence.store(sequence, Relaxed);
            early_arrivals.came.store(now, SeqCst);
            if sequence < self.streamed.load(SeqCst) {
                // It was called in between, perhaps without seeing this arrival.
                self.arrived_at(sequence, peer, Some(now));
            }
        }
    }

    fn arrived_at(&self, sequence: u64, peer: usize, at: Option<RecorderTime>) {
        if let Some((ticket, _)) = self.collective(sequence)
            && let Some(first) = self.arrivals(ticket).get(peer)
            && first.load(Relaxed) == 0
        {
            set(first, at.unwrap_or_else(|| self.now()));
        }
    }

    /// Records that a collective has started outside the progress thread, at a time on the clock of
    /// the host.
    pub(crate) fn begun(&self, ticket: RecordId, ns: u64) {
        if let Some(slot) = self.slot(ticket) {
            set(&slot.started, self.host_moment(ns));
        }
    }

    /// Records that a peer on this host entered a collective, at a time on the clock of the host.
    pub(crate) fn came(&self, ticket: RecordId, peer: usize, ns: u64) {
        if self.slot(ticket).is_some()
            && let Some(came) = self.arrivals(ticket).get(peer)
        {
            set(came, self.host_moment(ns));
        }
    }

    /// Records the end of an operation.
    pub(crate) fn ended(&self, ticket: RecordId, failed: bool) {
        self.ended_at(ticket, failed, ronde_clock::host_ns());
    }

    /// Records the end of an operation at a time on the clock of the host.
    pub(crate) fn ended_at(&self, ticket: RecordId, failed: bool, ns: u64) {
        if let Some(slot) = self.slot(ticket) {
            let ended = self.host_moment(ns);
            set(&slot.ended, ended << 1 | u64::from(failed));
            let begun = match slot.started.load(Relaxed) {
                0 => slot.issued.load(Relaxed),
                started => started,
            };
            let took = ended.saturating_sub(begun);
            self.under_way.fetch_add(took, Relaxed);
        }
    }

    /// Returns the seconds from start to end, summed over all operations that have ended.
    pub(crate) fn under_way_s(&self) -> f64 {
        self.under_way.load(Relaxed) as f64 / 1e9
    }

    /// Returns when the latest collective was called, on the clock of the host.
    pub(crate) fn called_at_ns(&self) -> Option<u64> {
        let called = self.called.load(Relaxed);
        (called != 0).then(|| self.began_ns + called)
    }

    /// Returns the last operations, oldest first; fewer of a large group. The caller adds the group's name.
    pub(crate) fn record(&self) -> FlightRecord {
        let issued = self.issued.load(Acquire);
        let hidden = self.hidden.load(Relaxed);
        let count = (RECORDED_MAX / self.size).clamp(RECORDED_MIN, OPERATIONS) as u64;
        let oldest = issued.saturating_sub(count).max(hidden);
        let operations = (oldest..issued)
            .filter_map(|ticket| self.operation(RecordId(ticket)))
            .collect();
        let began = self.began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        FlightRecord {
            version: record::VERSION,
            job: String::new(),
            group: String::new(),
            generation: ronde_core::Generation(0),
            rank: self.rank,
            size: self.size as u32,
            members: Vec::new(),
            began_unix_s: began.as_secs_f64(),
            taken_s: seconds(self.now()),
            forgotten: oldest - hidden,
            failure: None,
            unanswered: Vec::new(),
            operations,
        }
    }

    /// Adds the collectives that were called from `from` on and have ended to `spans`, in the order of their calls, up to the
    /// first that has not ended. Returns where the next call continues, and the number of those that were overwritten.
    pub(crate) fn ended_since(&self, from: u64, spans: &mut Vec<TimeSpan>) -> (u64, u64) {
        let issued = self.issued.load(Acquire);
        let hidden = self.hidden.load(Relaxed);
        let first = from.max(hidden);
        let oldest = issued.saturating_sub(OPERATIONS as u64).max(first);
        let mut overwritten = oldest - first;
        for number in oldest..issued {
            let ticket = RecordId(number);
            let Some(slot) = self.slot(ticket) else {
                overwritten += 1;
                continue;
            };
            let load = |number: &AtomicU64| number.load(Relaxed);
            let (kind, started, issued) =
                (load(&slot.kind), load(&slot.started), load(&slot.issued));
            let (bytes, ended) = (load(&slot.bytes), load(&slot.ended) >> 1);
            fence(Acquire);
            if load(&slot.holds) != number + 1 {
                overwritten += 1;
                continue;
            }
            if ended == 0 {
                return (number, overwritten);
            }
            if RecordedRequest::decode(kind) == RecordedRequest::Collective {
                let begun = if started == 0 { issued } else { started };
                spans.push(TimeSpan {
                    kind: SpanKind::Collective,
                    thread: 0,
                    detail: bytes,
                    begun_ns: self.began_ns + begun,
                    ended_ns: self.began_ns + ended.max(begun),
                });
            }
        }
        (issued, overwritten)
    }

    /// Returns one operation; `None` when it was overwritten meanwhile.
    fn operation(&self, ticket: RecordId) -> Option<OperationRecord> {
        let slot = self.slot(ticket)?;
        let load = |number: &AtomicU64| number.load(Relaxed);
        let words = slot.call.each_ref().map(load);
        let (kind, sequence) = (
            RecordedRequest::decode(load(&slot.kind)),
            load(&slot.sequence),
        );
        let (issued, started) = (load(&slot.issued), load(&slot.started));
        let (bytes, ended) = (load(&slot.bytes), load(&slot.ended));
        let mut came: Vec<RecorderTime> = self.arrivals(ticket).iter().map(load).collect();
        fence(Acquire);
        if load(&slot.holds) != ticket.0 + 1 {
            return None;
        }
        if self.arrivals(ticket).is_empty() {
            // Those of a newer operation may be among them.
            came.clear();
        }
        let call = Call::from_words(words)?;
        let (kind, peer, sequence) = match kind {
            RecordedRequest::Collective => (call.kind.name(), None, Some(sequence)),
            RecordedRequest::SendTo(peer) => ("send", Some(GroupRank(peer)), None),
            RecordedRequest::ReceiveFrom(peer) => ("receive", Some(GroupRank(peer)), None),
        };
        let is_message = call.kind == CallKind::Message;
        let came = came.into_iter().enumerate().filter(|&(_, came)| came != 0);
        Some(OperationRecord {
            sequence,
            kind: kind.to_owned(),
            call: call.describe(),
            algorithm: call.algorithm.map(|algorithm| algorithm.name().to_owned()),
            dtype: call.dtype,
            len: (call.len != ANY_LEN).then_some(call.len),
            bytes,
            peer,
            tag: is_message.then_some(call.detail as u32),
            issued_s: seconds(issued),
            started_s: (started != 0).then(|| seconds(started)),
            ended_s: (ended != 0).then(|| seconds(ended >> 1)),
            failed: ended & 1 == 1,
            arrivals: came
                .map(|(peer, came)| FirstArrival {
                    peer: GroupRank(peer as u32),
                    after_s: seconds(came) - seconds(issued),
                })
                .collect(),
        })
    }
}

impl RecordedRequest {
    fn encode(self) -> u64 {
        match self {
            Self::Collective => 0,
            Self::SendTo(peer) => 1 << 32 | u64::from(peer),
            Self::ReceiveFrom(peer) => 2 << 32 | u64::from(peer),
        }
    }

    fn decode(word: u64) -> Self {
        match word >> 32 {
            0 => Self::Collective,
            1 => Self::SendTo(word as u32),
            _ => Self::ReceiveFrom(word as u32),
        }
    }
}

impl RecordId {
    fn place(self) -> usize {
        self.0 as usize % OPERATIONS
    }
}

fn seconds(moment: RecorderTime) -> f64 {
    moment as f64 / 1e9
}

#[cfg(test)]
mod tests;

//! [`Flight`]: the recorder that always runs, over the last operations of one rank in one group.
//!
//! It costs a short lock and a look at the clock per event and takes no memory while it records.

mod record;
mod report;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ronde_core::GroupRank;

use crate::clock;
use crate::frame::{ANY_LEN, Call, CallKind};
pub use record::{Arrival, FailureHook, FlightRecord, OperationRecord};
pub use report::merge_report;

/// Operations that are remembered.
const OPERATIONS: usize = 1000;
/// Larger groups record no arrivals: they would take more than 8 MiB.
const ARRIVALS_SIZE_MAX: usize = 1024;
/// Operations per peer whose bytes may come before they are called here and still be noted.
const AHEAD: usize = 4;

/// What a caller has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    Collective,
    SendTo(u32),
    ReceiveFrom(u32),
}

/// Names an operation to the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// A moment, in nanoseconds since the recorder began; 0 for never.
type Moment = u64;

#[derive(Debug, Clone, Copy)]
struct Entry {
    asks: Asks,
    sequence: u64,
    call: Call,
    bytes: u64,
    issued: Moment,
    started: Moment,
    ended: Moment,
    failed: bool,
}

/// First bytes of an operation that is not called here yet.
#[derive(Debug, Clone, Copy, Default)]
struct Ahead {
    sequence: u64,
    came: Moment,
}

#[derive(Debug)]
struct Ring {
    /// By ticket, modulo [`OPERATIONS`].
    entries: Vec<Option<Entry>>,
    issued: u64,
    collectives: u64,
    /// Ticket of a collective by its number, modulo [`OPERATIONS`].
    by_sequence: Vec<u64>,
    /// First bytes of each operation, by place and peer; none in very large groups.
    arrivals: Vec<Moment>,
    /// By peer, [`AHEAD`] each.
    ahead: Vec<Ahead>,
}

/// The recorder of one rank in one group.
#[derive(Debug)]
pub(crate) struct Flight {
    began: Instant,
    began_at: SystemTime,
    rank: GroupRank,
    size: usize,
    ring: Mutex<Ring>,
}

impl Flight {
    pub(crate) fn new(rank: GroupRank, size: usize) -> Self {
        let noted = if size > ARRIVALS_SIZE_MAX { 0 } else { size };
        Self {
            began: clock::now(),
            began_at: SystemTime::now(),
            rank,
            size,
            ring: Mutex::new(Ring {
                entries: vec![None; OPERATIONS],
                issued: 0,
                collectives: 0,
                by_sequence: vec![0; OPERATIONS],
                arrivals: vec![0; OPERATIONS * noted],
                ahead: vec![Ahead::default(); AHEAD * noted],
            }),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        let since = clock::now().saturating_duration_since(self.began);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// A caller asks for something; collectives are numbered in the order of these calls.
    pub(crate) fn issued(&self, asks: Asks, call: Call, bytes: usize) -> Ticket {
        let mut ring = self.ring();
        let now = self.now();
        let ticket = Ticket(ring.issued);
        ring.issued += 1;
        let place = ticket.place();
        let sequence = ring.collectives;
        let arrivals = ring.arrivals.len() / OPERATIONS;
        ring.arrivals[place * arrivals..][..arrivals].fill(0);
        if asks == Asks::Collective {
            ring.collectives += 1;
            ring.by_sequence[sequence as usize % OPERATIONS] = ticket.0;
            for peer in 0..arrivals {
                let ahead = ring.ahead[peer * AHEAD + sequence as usize % AHEAD];
                if ahead.came != 0 && ahead.sequence == sequence {
                    ring.arrivals[place * arrivals + peer] = ahead.came;
                }
            }
        }
        ring.entries[place] = Some(Entry {
            asks,
            sequence,
            call,
            bytes: bytes as u64,
            issued: now,
            started: 0,
            ended: 0,
            failed: false,
        });
        ticket
    }

    /// The progress thread begins a collective.
    pub(crate) fn started(&self, sequence: u64) {
        let mut ring = self.ring();
        let now = self.now();
        if let Some((_, entry)) = ring.collective(sequence) {
            entry.started = now;
        }
    }

    /// Bytes of a collective have come from a peer; only the first count.
    pub(crate) fn arrived(&self, sequence: u64, peer: usize) {
        let mut ring = self.ring();
        let arrivals = ring.arrivals.len() / OPERATIONS;
        if peer >= arrivals {
            return;
        }
        if let Some((place, _)) = ring.collective(sequence) {
            let first = &mut ring.arrivals[place * arrivals + peer];
            if *first == 0 {
                *first = self.now();
            }
        } else if sequence >= ring.collectives {
            let place = peer * AHEAD + sequence as usize % AHEAD;
            let ahead = ring.ahead[place];
            // Of those that fall on the same place the one that is called first is kept.
            if ahead.came == 0 || ahead.sequence < ring.collectives {
                let came = self.now();
                ring.ahead[place] = Ahead { sequence, came };
            }
        }
    }

    /// An operation is over.
    pub(crate) fn ended(&self, ticket: Ticket, failed: bool) {
        let mut ring = self.ring();
        let now = self.now();
        if ring.issued - ticket.0 > OPERATIONS as u64 {
            return;
        }
        if let Some(entry) = &mut ring.entries[ticket.place()] {
            entry.ended = now;
            entry.failed = failed;
        }
    }

    /// What is remembered, oldest first. The caller fills in what the group is called.
    pub(crate) fn record(&self) -> FlightRecord {
        let ring = self.ring();
        let taken = self.now();
        let oldest = ring.issued.saturating_sub(OPERATIONS as u64);
        let operations = (oldest..ring.issued)
            .filter_map(|ticket| self.operation(&ring, Ticket(ticket)))
            .collect();
        let began = self.began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        FlightRecord {
            version: record::VERSION,
            job: String::new(),
            group: String::new(),
            generation: ronde_core::Generation(0),
            rank: self.rank,
            size: self.size as u32,
            began_unix_s: began.as_secs_f64(),
            taken_s: seconds(taken),
            forgotten: oldest,
            failure: None,
            operations,
        }
    }

    fn operation(&self, ring: &Ring, ticket: Ticket) -> Option<OperationRecord> {
        let entry = ring.entries[ticket.place()].as_ref()?;
        let arrivals = ring.arrivals.len() / OPERATIONS;
        let came = &ring.arrivals[ticket.place() * arrivals..][..arrivals];
        let came = came.iter().enumerate().filter(|&(_, &came)| came != 0);
        let (kind, peer, sequence) = match entry.asks {
            Asks::Collective => (entry.call.kind.name(), None, Some(entry.sequence)),
            Asks::SendTo(peer) => ("send", Some(GroupRank(peer)), None),
            Asks::ReceiveFrom(peer) => ("receive", Some(GroupRank(peer)), None),
        };
        let is_message = entry.call.kind == CallKind::Message;
        Some(OperationRecord {
            sequence,
            kind: kind.to_owned(),
            call: entry.call.describe(),
            dtype: entry.call.dtype,
            len: (entry.call.len != ANY_LEN).then_some(entry.call.len),
            bytes: entry.bytes,
            peer,
            tag: is_message.then_some(entry.call.detail as u32),
            issued_s: seconds(entry.issued),
            started_s: (entry.started != 0).then(|| seconds(entry.started)),
            ended_s: (entry.ended != 0).then(|| seconds(entry.ended)),
            failed: entry.failed,
            arrivals: came
                .map(|(peer, &came)| Arrival {
                    peer: GroupRank(peer as u32),
                    after_s: seconds(came) - seconds(entry.issued),
                })
                .collect(),
        })
    }
}

impl Ticket {
    fn place(self) -> usize {
        self.0 as usize % OPERATIONS
    }
}

impl Ring {
    /// A remembered collective and its place.
    fn collective(&mut self, sequence: u64) -> Option<(usize, &mut Entry)> {
        if sequence >= self.collectives || self.collectives - sequence > OPERATIONS as u64 {
            return None;
        }
        let ticket = Ticket(self.by_sequence[sequence as usize % OPERATIONS]);
        if self.issued - ticket.0 > OPERATIONS as u64 {
            return None;
        }
        let place = ticket.place();
        let entry = self.entries[place].as_mut()?;
        Some((place, entry))
    }
}

fn seconds(moment: Moment) -> f64 {
    moment as f64 / 1e9
}

#[cfg(test)]
mod tests;

//! [`GossipProcess`]: a process of a simulated round.

use std::collections::{BTreeMap, BTreeSet};

use ronde_protocol::gossip::{
    ExchangeBook, GossipRound, PairExchange, UpdateClaims, UpdateLog, WorkerProgress,
};

/// A message of a round.
#[derive(Debug, Clone)]
pub enum PeerMessage {
    Ask(u64, WorkerProgress),
    Granted(u64, Option<u32>, WorkerProgress),
    Exchange(u64, Vec<f64>),
    Exchanged(u64, ExchangeOutcome),
    Leave,
    LeaveHeard,
}

/// The answer to an exchange.
#[derive(Debug, Clone)]
pub enum ExchangeOutcome {
    Averaged(Vec<f64>),
    Missed,
}

/// The activity of a process's worker.
#[derive(Debug, Clone)]
pub(super) enum ReplicaPhase {
    /// It looks for an update.
    Free,
    Asking {
        owner: u32,
        number: u64,
    },
    Waiting {
        until: u64,
    },
    Computing {
        update: u32,
        until: u64,
    },
    Exchanging {
        exchange: PairExchange,
        weights: Vec<f64>,
        since: u64,
    },
    /// It has nothing left to do.
    Left,
}

/// A process.
#[derive(Debug)]
pub(super) struct GossipProcess {
    pub(super) log: UpdateLog,
    /// The share of each update of the round in the replica.
    pub(super) shares: Vec<f64>,
    pub(super) claims: UpdateClaims,
    pub(super) book: ExchangeBook,
    pub(super) phase: ReplicaPhase,
    /// The last exchange that was answered for each rank, with the answer.
    pub(super) answered: BTreeMap<u32, (u64, ExchangeOutcome)>,
    /// The exchanges that wait for the end of an update, in the simulated bug.
    pub(super) postponed: Vec<(usize, u64, Vec<f64>)>,
    /// The ranks that have left the round, and those that know that this one has.
    pub(super) left: BTreeSet<u32>,
    pub(super) heard: BTreeSet<u32>,
    /// Whether it is stopped, and no member.
    pub(super) is_away: bool,
}

impl GossipProcess {
    pub(super) fn new(round: GossipRound, claims: UpdateClaims, book: ExchangeBook) -> Self {
        Self {
            log: UpdateLog::new(round),
            shares: vec![0.0; round.updates as usize],
            claims,
            book,
            phase: ReplicaPhase::Free,
            answered: BTreeMap::new(),
            postponed: Vec::new(),
            left: BTreeSet::new(),
            heard: BTreeSet::new(),
            is_away: false,
        }
    }

    /// Averages the replica with another one. Returns the mean.
    pub(super) fn average(&mut self, theirs: &[f64]) -> Vec<f64> {
        for (own, other) in self.shares.iter_mut().zip(theirs) {
            *own = 0.5 * (*own + other);
        }
        self.shares.clone()
    }
}

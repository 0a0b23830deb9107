//! [`ServedProcess`]: a process of a simulated round, as server, holder of a copy and worker.

use std::collections::{BTreeMap, VecDeque};

use ronde_protocol::served::{PushHeader, SlotLog, UpdateLeases, UpdateSamples};

/// A message of a round.
#[derive(Debug, Clone)]
pub enum RoundMessage {
    Request,
    Granted(u32),
    Complete,
    Pull(u32),
    Pulled {
        slot: u32,
        version: u64,
    },
    Push {
        slot: u32,
        push: PushHeader,
        is_finite: bool,
    },
    Answered {
        slot: u32,
        update: u32,
        is_refused: bool,
    },
}

/// An update that a slot has applied, on its way to the copy.
#[derive(Debug, Clone)]
pub(super) struct CopiedPush {
    pub(super) slot: u32,
    pub(super) push: PushHeader,
    pub(super) report: UpdateSamples,
}

/// A slot or a copy: its log, and the updates in the order in which they were applied.
#[derive(Debug, Clone)]
pub(super) struct SimulatedSlot {
    pub(super) log: SlotLog,
    pub(super) order: Vec<u32>,
}

/// The activity of a worker.
#[derive(Debug, Clone)]
pub(super) enum RoundPhase {
    Asking,
    Pulling {
        update: u32,
        versions: BTreeMap<u32, u64>,
    },
    Computing {
        update: u32,
        versions: BTreeMap<u32, u64>,
        until: u64,
    },
    Pushing {
        update: u32,
        versions: BTreeMap<u32, u64>,
        left: Vec<u32>,
    },
    Done,
}

/// A process.
#[derive(Debug)]
pub(super) struct ServedProcess {
    /// The slots and copies that it has.
    pub(super) slots: BTreeMap<u32, SimulatedSlot>,
    pub(super) leases: Option<UpdateLeases>,
    /// `None`: it does not compute in this attempt.
    pub(super) worker: Option<RoundPhase>,
    /// The updates that it has to apply to its copies, in the order in which they were sent.
    pub(super) copying: VecDeque<CopiedPush>,
}

impl ServedProcess {
    pub(super) fn new() -> Self {
        Self {
            slots: BTreeMap::new(),
            leases: None,
            worker: None,
            copying: VecDeque::new(),
        }
    }
}

//! [`SlotTable`]: the worker slots of all hosts, and when a worker can be started in each.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::membership::{WorkerId, WorkerSlot};
use crate::reason::{LossCause, Reason};
use crate::restart_history::{RestartDecision, RestartHistory};
use crate::settings::RestartLimits;
use crate::time::Time;

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotContent {
    /// No worker; one may be started from then on.
    Empty { from: Time },
    /// A worker that was started then and may not have reported yet, and when its process was last known to make
    /// progress.
    Worker {
        worker: WorkerId,
        started: Time,
        active: Time,
    },
    /// No worker, and none will be started.
    Closed,
}

#[derive(Debug, Clone)]
struct SlotEntry {
    host: String,
    content: SlotContent,
    restarts: RestartHistory,
    last: Option<LossCause>,
}

/// Why a worker's process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExitReason {
    /// It ended unexpectedly.
    Died,
    /// It left in good order, or its job starts each worker once: its slot is not used again.
    Drained,
    /// It was one too many, and the slot may be used again.
    Dismissed,
}

/// A worker whose process has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedWorker<'a> {
    pub(super) slot: WorkerSlot,
    pub(super) worker: WorkerId,
    /// How it ended.
    pub(super) cause: &'a LossCause,
    /// Whether it had reported to the coordinator.
    pub(super) joined: bool,
}

/// A worker in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotWorker {
    pub(super) slot: WorkerSlot,
    pub(super) worker: WorkerId,
    pub(super) started: Time,
    /// When its process was started, or was last known to make progress.
    pub(super) active: Time,
}

/// A worker start that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkerStart {
    pub(super) host: String,
    pub(super) slot: WorkerSlot,
    pub(super) reason: Reason,
}

/// Whether the agent of a connected host responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostContact {
    /// It has responded without interruption since then.
    Responds { since: Time },
    /// It does not respond.
    Silent,
}

/// The slots of all connected hosts.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotTable {
    hosts: BTreeMap<String, HostContact>,
    slots: BTreeMap<WorkerSlot, SlotEntry>,
    /// Failures in slots that no host has offered yet.
    before: BTreeMap<WorkerSlot, RestartHistory>,
}

impl SlotTable {
    /// Adds or updates a slot that a host offers and in which `worker` runs. Earlier failures are
    /// kept. A start of a worker may be in progress for `start_limit`.
    pub(super) fn offer(
        &mut self,
        host: &str,
        slot: WorkerSlot,
        worker: Option<WorkerId>,
        start_limit: Duration,
        now: Time,
    ) {
        let responds = HostContact::Responds { since: now };
        self.hosts.entry(host.to_owned()).or_insert(responds);
        let before = &mut self.before;
        let entry = self.slots.entry(slot).or_insert_with(|| SlotEntry {
            host: host.to_owned(),
            content: SlotContent::Empty { from: now },
            restarts: before.remove(&slot).unwrap_or_default(),
            last: None,
        });
        host.clone_into(&mut entry.host);
        entry.content = match (entry.content, worker) {
            (held @ SlotContent::Worker { worker: before, .. }, Some(worker))
                if before == worker =>
            {
                held
            }
            (SlotContent::Closed, None) => SlotContent::Closed,
            (_, Some(worker)) => SlotContent::Worker {
                worker,
                started: now,
                active: now,
            },
            (SlotContent::Worker { started, .. }, None) if now.since(started) > start_limit => {
                SlotContent::Empty { from: now }
            }
            (content, None) => content,
        };
    }

    /// Returns whether a host has offered this slot.
    pub(super) fn knows(&self, slot: WorkerSlot) -> bool {
        self.slots.contains_key(&slot)
    }

    /// Adds failures that were observed by a previous coordinator.
    pub(super) fn remember(&mut self, slot: WorkerSlot, ages: &[Duration], now: Time) {
        let restarts = match self.slots.get_mut(&slot) {
            Some(entry) => &mut entry.restarts,
            None => self.before.entry(slot).or_default(),
        };
        restarts.remember(ages, now);
    }

    /// Removes the slots of a host that is no longer connected.
    pub(super) fn withdraw(&mut self, host: &str) {
        self.slots.retain(|_, slot| slot.host != host);
        self.hosts.remove(host);
    }

    /// Notes that the agent of a host does not respond.
    pub(super) fn host_silent(&mut self, host: &str) {
        if let Some(contact) = self.hosts.get_mut(host) {
            *contact = HostContact::Silent;
        }
    }

    /// Notes that the agent of a host responds again.
    pub(super) fn host_responds(&mut self, host: &str, now: Time) {
        if let Some(contact @ HostContact::Silent) = self.hosts.get_mut(host) {
            *contact = HostContact::Responds { since: now };
        }
    }

    /// Returns since when the agent of a slot's host has responded without interruption; `None` if it
    /// does not respond.
    pub(super) fn responds_since(&self, slot: WorkerSlot) -> Option<Time> {
        match self.hosts.get(&self.slots.get(&slot)?.host)? {
            HostContact::Responds { since } => Some(*since),
            HostContact::Silent => None,
        }
    }

    /// Handles the end of a worker's process. Returns a reason if the slot is given up.
    pub(super) fn ended(
        &mut self,
        ended: EndedWorker<'_>,
        departure: ExitReason,
        limits: &RestartLimits,
        now: Time,
    ) -> Option<Reason> {
        let EndedWorker {
            slot,
            worker,
            cause,
            joined,
        } = ended;
        let entry = self.slots.get_mut(&slot)?;
        if !matches!(entry.content, SlotContent::Worker { worker: held, .. } if held == worker) {
            return None;
        }
        match departure {
            ExitReason::Drained => entry.content = SlotContent::Closed,
            ExitReason::Dismissed => entry.content = SlotContent::Empty { from: now },
            ExitReason::Died => {
                entry.last = Some(cause.clone());
                if let RestartDecision::Again { pause } = entry.restarts.failed(limits, now) {
                    entry.content = SlotContent::Empty {
                        from: now.after(pause),
                    };
                } else {
                    entry.content = SlotContent::Closed;
                    let restarts = limits.restarts_max;
                    return Some(Reason::SlotGivenUp {
                        slot,
                        restarts,
                        cause: cause.clone(),
                        joined,
                    });
                }
            }
        }
        None
    }

    /// Returns whether no worker runs and none can be started. False without any slot:
    /// workers are then started by other means.
    pub(super) fn are_exhausted(&self) -> bool {
        let is_closed = |slot: &SlotEntry| slot.content == SlotContent::Closed;
        !self.slots.is_empty() && self.slots.values().all(is_closed)
    }

    /// Returns whether fewer workers can run than `workers`. False without any slot.
    pub(super) fn are_fewer_than(&self, workers: u32) -> bool {
        let is_usable = |slot: &&SlotEntry| slot.content != SlotContent::Closed;
        let usable = self.slots.values().filter(is_usable).count();
        !self.slots.is_empty() && usable < workers as usize
    }

    /// Returns the next worker start that is due. The caller must then call [`SlotTable::filled`].
    pub(super) fn due(&self, now: Time) -> Option<WorkerStart> {
        let is_due =
            |slot: &SlotEntry| matches!(slot.content, SlotContent::Empty { from } if from <= now);
        let (slot, entry) = self.slots.iter().find(|(_, entry)| is_due(entry))?;
        let reason = Reason::Starts {
            slot: *slot,
            restarts: entry.restarts.count(),
            after: entry.last.clone(),
        };
        Some(WorkerStart {
            host: entry.host.clone(),
            slot: *slot,
            reason,
        })
    }

    /// Marks a slot as filled with a worker that is being started.
    pub(super) fn filled(&mut self, slot: WorkerSlot, worker: WorkerId, now: Time) {
        if let Some(entry) = self.slots.get_mut(&slot) {
            entry.content = SlotContent::Worker {
                worker,
                started: now,
                active: now,
            };
        }
    }

    /// Notes that the process of a worker makes progress, although it does not report.
    pub(super) fn busy(&mut self, busy: WorkerId, now: Time) {
        for entry in self.slots.values_mut() {
            if let SlotContent::Worker { worker, active, .. } = &mut entry.content
                && *worker == busy
            {
                *active = now;
            }
        }
    }

    /// Returns all workers in slots, when they were started, and when their processes were last known to make progress.
    pub(super) fn workers(&self) -> impl Iterator<Item = SlotWorker> {
        self.slots
            .iter()
            .filter_map(|(slot, entry)| match entry.content {
                SlotContent::Worker {
                    worker,
                    started,
                    active,
                } => Some(SlotWorker {
                    slot: *slot,
                    worker,
                    started,
                    active,
                }),
                _ => None,
            })
    }

    /// Returns when the next empty slot may be filled.
    pub(super) fn next_start(&self) -> Option<Time> {
        let starts = self.slots.values().filter_map(|slot| match slot.content {
            SlotContent::Empty { from } => Some(from),
            _ => None,
        });
        starts.min()
    }
}

//! [`Places`]: where workers can be started, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::restart::{Restarts, Verdict};
use crate::{LossCause, Place, Reason, RestartLimits, Time, WorkerId};

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Nothing; a worker may be started from then on.
    Empty { from: Time },
    /// A worker that was started then and may not have reported yet.
    Worker { worker: WorkerId, started: Time },
    /// Nothing, and no worker is started here any more.
    Closed,
}

#[derive(Debug, Clone)]
struct Slot {
    host: String,
    content: Content,
    restarts: Restarts,
    last: Option<LossCause>,
}

/// Why a worker's process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// Nobody wanted it to.
    Died,
    /// It drained: somebody wants its place for something else.
    Drained,
    /// It was one too many, and may be wanted again.
    Dismissed,
}

/// A start that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) host: String,
    pub(super) place: Place,
    pub(super) reason: Reason,
}

/// All places of the hosts that are up.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    slots: BTreeMap<Place, Slot>,
    /// Failures at places that were not offered yet.
    before: BTreeMap<Place, Restarts>,
}

impl Places {
    /// A host offers a place; `worker` runs there. Failures at the place are remembered. A start may
    /// be under way for `patience`.
    pub(super) fn offer(
        &mut self,
        host: &str,
        place: Place,
        worker: Option<WorkerId>,
        patience: Duration,
        now: Time,
    ) {
        let before = &mut self.before;
        let slot = self.slots.entry(place).or_insert_with(|| Slot {
            host: host.to_owned(),
            content: Content::Empty { from: now },
            restarts: before.remove(&place).unwrap_or_default(),
            last: None,
        });
        host.clone_into(&mut slot.host);
        slot.content = match (slot.content, worker) {
            (
                Content::Worker {
                    worker: held,
                    started,
                },
                Some(worker),
            ) if held == worker => Content::Worker { worker, started },
            (Content::Closed, None) => Content::Closed,
            (_, Some(worker)) => Content::Worker {
                worker,
                started: now,
            },
            (Content::Worker { started, .. }, None) if now.since(started) > patience => {
                Content::Empty { from: now }
            }
            (content, None) => content,
        };
    }

    /// Whether a place was offered.
    pub(super) fn knows(&self, place: Place) -> bool {
        self.slots.contains_key(&place)
    }

    /// Workers died here while another coordinator led.
    pub(super) fn remember(&mut self, place: Place, ages: &[Duration], now: Time) {
        let restarts = match self.slots.get_mut(&place) {
            Some(slot) => &mut slot.restarts,
            None => self.before.entry(place).or_default(),
        };
        restarts.remember(ages, now);
    }

    /// Nothing can be started on a host for now.
    pub(super) fn withdraw(&mut self, host: &str) {
        self.slots.retain(|_, slot| slot.host != host);
    }

    /// A worker's process has ended. Gives the reason when no other one is started here any more.
    pub(super) fn ended(
        &mut self,
        (place, worker): (Place, WorkerId),
        cause: &LossCause,
        departure: Departure,
        limits: &RestartLimits,
        now: Time,
    ) -> Option<Reason> {
        let slot = self.slots.get_mut(&place)?;
        if !matches!(slot.content, Content::Worker { worker: held, .. } if held == worker) {
            return None;
        }
        match departure {
            Departure::Drained => slot.content = Content::Closed,
            Departure::Dismissed => slot.content = Content::Empty { from: now },
            Departure::Died => {
                slot.last = Some(cause.clone());
                if let Verdict::Again { pause } = slot.restarts.failed(limits, now) {
                    slot.content = Content::Empty {
                        from: now.after(pause),
                    };
                } else {
                    slot.content = Content::Closed;
                    let restarts = limits.restarts_max;
                    return Some(Reason::PlaceGivenUp {
                        place,
                        restarts,
                        cause: cause.clone(),
                    });
                }
            }
        }
        None
    }

    /// Whether nothing runs at any place and nothing can be started. False where there are no places:
    /// workers then come from elsewhere.
    pub(super) fn are_exhausted(&self) -> bool {
        let is_closed = |slot: &Slot| slot.content == Content::Closed;
        !self.slots.is_empty() && self.slots.values().all(is_closed)
    }

    /// The next place at which a worker may be started now. It has to be [`Places::filled`].
    pub(super) fn due(&self, now: Time) -> Option<Start> {
        let is_due = |slot: &Slot| matches!(slot.content, Content::Empty { from } if from <= now);
        let (place, slot) = self.slots.iter().find(|(_, slot)| is_due(slot))?;
        let reason = Reason::Starts {
            place: *place,
            restarts: slot.restarts.count(),
            after: slot.last.clone(),
        };
        Some(Start {
            host: slot.host.clone(),
            place: *place,
            reason,
        })
    }

    /// A worker is being started at a place.
    pub(super) fn filled(&mut self, place: Place, worker: WorkerId, now: Time) {
        if let Some(slot) = self.slots.get_mut(&place) {
            slot.content = Content::Worker {
                worker,
                started: now,
            };
        }
    }

    /// All workers that occupy a place, and since when.
    pub(super) fn workers(&self) -> impl Iterator<Item = (Place, WorkerId, Time)> {
        self.slots
            .iter()
            .filter_map(|(place, slot)| match slot.content {
                Content::Worker { worker, started } => Some((*place, worker, started)),
                _ => None,
            })
    }

    /// When the next empty place may be filled.
    pub(super) fn next_start(&self) -> Option<Time> {
        let starts = self.slots.values().filter_map(|slot| match slot.content {
            Content::Empty { from } => Some(from),
            _ => None,
        });
        starts.min()
    }
}

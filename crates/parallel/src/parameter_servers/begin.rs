//! The start of a round: all ranks agree on their roles, and slots move to the ranks that serve them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::{Buffer, CollectiveError, Group, GroupRank, Work};
use ronde_protocol::served::{
    LeaseSettings, PlacementSettings, RoundPlacement, ServedRound, SlotHolding, SlotLog,
    UpdateLeases,
};

use super::client::RoundClient;
use super::messages::{MOVED, gather_words, receive_values, receive_words, send_words};
use super::server::{RoundServer, RoundServerParts};
use super::slice::{ServedSlot, StateSlice};
use super::{ParameterServers, RoundRole, RoundStart};
use crate::error::ParallelError;

fn failed(source: CollectiveError) -> ParallelError {
    ParallelError::Exchange {
        action: "begin a round".to_owned(),
        source,
    }
}

/// Returns the rank of a member of a placement.
fn group_rank(rank: usize) -> GroupRank {
    GroupRank(rank as u32)
}

/// Starts sending a slot with the length of its log, the log and the values.
fn send_slot(
    group: &dyn Group,
    to: GroupRank,
    slot: &ServedSlot,
) -> Result<Vec<Box<dyn Work>>, CollectiveError> {
    let log = slot.log.encode();
    let mut works = vec![
        send_words(group, to, MOVED, &[log.len() as u64])?,
        send_words(group, to, MOVED, &log)?,
    ];
    for values in std::iter::once(&slot.slice.weights).chain(&slot.slice.states) {
        works.push(group.send(to, MOVED, Buffer::copy_of(values))?);
    }
    Ok(works)
}

/// Receives what [`send_slot`] sends; `None` if it is of another round.
fn receive_slot(
    group: &dyn Group,
    from: GroupRank,
    (round, staleness_max): (ServedRound, Option<u64>),
    (elements, states): (&Range<usize>, usize),
) -> Result<Option<ServedSlot>, CollectiveError> {
    let len = receive_words(group, from, MOVED, 1)?;
    let log = receive_words(group, from, MOVED, len[0] as usize)?;
    let mut vectors = Vec::with_capacity(1 + states);
    for _ in 0..=states {
        let values = receive_values(group, from, MOVED, elements.len())?;
        vectors.push(values.as_slice::<f32>().to_vec());
    }
    let log = SlotLog::decode(&log, round, staleness_max);
    let weights = vectors.remove(0);
    Ok(log.map(|log| ServedSlot {
        log,
        slice: StateSlice {
            elements: elements.clone(),
            weights,
            states: vectors,
        },
    }))
}

impl ParameterServers {
    /// Does [`ParameterServers::begin_round`].
    pub(super) fn begin(&mut self, start: &RoundStart) -> Result<RoundRole, ParallelError> {
        self.restore_state();
        let round = ServedRound {
            step: start.step,
            start: self.start_digest(),
            updates: start.updates,
            slots: self.slots.len() as u32,
        };
        self.held.retain(|_, slot| slot.log.round() == round);
        if self
            .pending
            .as_ref()
            .is_some_and(|update| update.round != round)
        {
            self.pending = None;
        }
        let holdings = self.held.iter();
        let holdings: Vec<SlotHolding> = holdings
            .map(|(slot, held)| SlotHolding::of(*slot, &held.log))
            .collect();
        let group = self.group.clone();
        let words = gather_words(&*group, &SlotHolding::encode_all(&holdings)).map_err(failed)?;
        let all = SlotHolding::decode_all(&words, group.size());
        let all = all.ok_or_else(|| ParallelError::OutOfOrder {
            problem: "a rank has sent an invalid description of its slots".to_owned(),
        })?;
        let settings = PlacementSettings {
            ranks: group.size(),
            copies: self.config.copies,
        };
        let placement = RoundPlacement::decide(round, settings, &all);
        self.move_slots(round, &placement)?;
        let role = self.role(start, round, &placement);
        self.running = Some(self.inner_weights().to_vec());
        self.placement = Some(placement);
        Ok(role)
    }

    /// Brings each slot to the ranks that serve it and have its copy, from its source or from the state before the round.
    fn move_slots(
        &mut self,
        round: ServedRound,
        placement: &RoundPlacement,
    ) -> Result<(), ParallelError> {
        let me = self.group.rank().index();
        let group = self.group.clone();
        let mut works = Vec::new();
        let mut held = BTreeMap::new();
        for (slot, place) in placement.slots.iter().enumerate() {
            let elements = self.slots[slot].clone();
            let number = slot as u32;
            for target in [Some(place.primary), place.copy].into_iter().flatten() {
                let Some(source) = place.source else {
                    if target == me {
                        held.insert(number, self.first_slot(round, &elements));
                    }
                    continue;
                };
                if source == me && target != me {
                    if let Some(slot) = self.held.get(&number) {
                        let sent = send_slot(&*group, group_rank(target), slot);
                        works.extend(sent.map_err(failed)?);
                    }
                } else if source == me {
                    if let Some(slot) = self.held.get(&number) {
                        held.insert(number, slot.clone());
                    }
                } else if target == me {
                    let kind = (round, self.config.staleness_max);
                    let shape = (&elements, self.state_count());
                    let received = receive_slot(&*group, group_rank(source), kind, shape);
                    let received = received.map_err(failed)?;
                    let received = received.ok_or_else(|| ParallelError::OutOfOrder {
                        problem: format!("rank {source} has sent an invalid slot {slot}"),
                    })?;
                    held.insert(number, received);
                }
            }
        }
        for work in works {
            work.wait().map_err(failed)?;
        }
        self.held = held;
        Ok(())
    }

    /// Returns a slot at the start of a round.
    fn first_slot(&self, round: ServedRound, elements: &Range<usize>) -> ServedSlot {
        ServedSlot {
            log: SlotLog::new(round, self.config.staleness_max),
            slice: self.slice_of_state(elements),
        }
    }

    /// Returns whether workers push gradients without their zeros.
    fn sends_sparsely(&self) -> bool {
        let state = self.inner.weights();
        let has_tables = state.tensors_outline().has_tables.contains(&true);
        has_tables && self.inner.config().sums_sparsely(&self.group.hosts())
    }

    /// Returns this rank's task in a round; its slots belong to the server until [`ParameterServers::take_back`].
    fn role(
        &mut self,
        start: &RoundStart,
        round: ServedRound,
        placement: &RoundPlacement,
    ) -> RoundRole {
        let me = self.group.rank().index();
        let mut held = std::mem::take(&mut self.held);
        let (mut slots, mut copies) = (BTreeMap::new(), BTreeMap::new());
        for (slot, place) in placement.slots.iter().enumerate() {
            let number = slot as u32;
            let Some(mut own) = held.remove(&number) else {
                continue;
            };
            own.log.enter(start.attempt);
            if place.primary == me {
                slots.insert(number, (own, place.copy.map(group_rank)));
            } else {
                copies.insert(number, (group_rank(place.primary), own));
            }
        }
        let workers = placement.workers.iter().map(|rank| *rank as u32).collect();
        let settings = LeaseSettings {
            staleness_max: self.config.staleness_max,
            expiry_ms: self.config.lease_ms,
        };
        let leases = (placement.lead() == me)
            .then(|| UpdateLeases::new(settings, placement.done.clone(), workers));
        let is_server = !slots.is_empty() || !copies.is_empty();
        let server = is_server.then(|| {
            Arc::new(RoundServer::new(RoundServerParts {
                group: self.group.clone(),
                round,
                first: start.first,
                rules: self.rules.clone(),
                slots,
                copies,
                leases,
                clock: self.waits.clock(),
                workers: placement
                    .workers
                    .iter()
                    .map(|rank| group_rank(*rank))
                    .collect(),
            }))
        });
        let own = placement.workers.iter().position(|rank| *rank == me);
        let servers = placement
            .slots
            .iter()
            .map(|place| group_rank(place.primary));
        let client = own.map(|_| RoundClient {
            group: self.group.clone(),
            round,
            attempt: start.attempt,
            slots: servers.zip(self.slots.iter().cloned()).collect(),
            own: server.clone(),
            sends_sparsely: self.sends_sparsely(),
        });
        RoundRole {
            server,
            client,
            first_update: own.unwrap_or(0) as u64,
            workers: placement.workers.len() as u64,
            leads: placement.lead() == me,
        }
    }
}

//! Runs the schedules of all ranks on real data in one thread, to verify their results.

use std::collections::VecDeque;

use crate::error::ScheduleError;
use crate::schedule::{LocalAction, Region, Schedule, Transfer};

/// The state of one rank in its schedule.
struct InterpretedRank<'a, T> {
    schedule: &'a Schedule,
    slots: Vec<Vec<T>>,
    round: usize,
    /// The completed receives of the current round; `None` before its messages were sent.
    received: Option<Vec<bool>>,
}

/// The messages in flight, by sender and receiver, in the order in which they were sent.
struct MessagesInFlight<T> {
    size: usize,
    queues: Vec<VecDeque<Vec<T>>>,
}

impl<T> MessagesInFlight<T> {
    fn between(&mut self, from: usize, to: usize) -> &mut VecDeque<Vec<T>> {
        &mut self.queues[from * self.size + to]
    }
}

/// Runs the schedules of all ranks on `inputs` (the concatenated slots of each rank) and returns each rank's result.
///
/// `T` need not be a number: an element that records its own history verifies the order of additions.
///
/// # Errors
/// [`ScheduleError::Broken`] for a schedule that fails [`Schedule::check`], a deadlock, a message of an unexpected
/// length, or a message that is never received.
pub fn interpret<T: Clone + Default>(
    schedules: &[Schedule],
    inputs: &[Vec<T>],
    mut reduce: impl FnMut(&T, &T) -> T,
) -> Result<Vec<Vec<T>>, ScheduleError> {
    let size = schedules.len();
    let mut members = Vec::with_capacity(size);
    for (schedule, input) in schedules.iter().zip(inputs) {
        schedule.check()?;
        members.push(InterpretedRank::new(schedule, input)?);
    }
    let mut wires = MessagesInFlight {
        size,
        queues: (0..size * size).map(|_| VecDeque::new()).collect(),
    };
    loop {
        let mut moved = false;
        for (rank, member) in members.iter_mut().enumerate() {
            while member.advance(rank, &mut wires, &mut reduce)? {
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    finish(&members, &wires)
}

fn finish<T: Clone>(
    members: &[InterpretedRank<'_, T>],
    wires: &MessagesInFlight<T>,
) -> Result<Vec<Vec<T>>, ScheduleError> {
    for (rank, member) in members.iter().enumerate() {
        if let Some(round) = member.schedule.rounds.get(member.round) {
            let problem = format!(
                "rank {rank} waits forever in round {}: {round:?}",
                member.round
            );
            return Err(ScheduleError::Broken { problem });
        }
    }
    if let Some(wire) = wires.queues.iter().position(|queue| !queue.is_empty()) {
        let (from, to) = (wire / wires.size, wire % wires.size);
        let problem = format!("rank {to} never receives a message from rank {from}");
        return Err(ScheduleError::Broken { problem });
    }
    let result = |member: &InterpretedRank<'_, T>| member.read(&member.schedule.result).to_vec();
    Ok(members.iter().map(result).collect())
}

impl<'a, T: Clone + Default> InterpretedRank<'a, T> {
    fn new(schedule: &'a Schedule, input: &[T]) -> Result<Self, ScheduleError> {
        if input.len() != schedule.input_len() {
            let problem = format!("{} elements for {}", input.len(), schedule.input_len());
            return Err(ScheduleError::Broken { problem });
        }
        let mut rest = input;
        let mut slots = Vec::new();
        for (slot, &len) in schedule.slots.iter().enumerate() {
            if slot < schedule.inputs {
                let (values, after) = rest.split_at(len);
                slots.push(values.to_vec());
                rest = after;
            } else {
                slots.push(vec![T::default(); len]);
            }
        }
        Ok(Self {
            schedule,
            slots,
            round: 0,
            received: None,
        })
    }

    /// Executes the next part of the schedule; returns `false` if this rank waits or has finished.
    fn advance(
        &mut self,
        rank: usize,
        wires: &mut MessagesInFlight<T>,
        reduce: &mut impl FnMut(&T, &T) -> T,
    ) -> Result<bool, ScheduleError> {
        let Some(round) = self.schedule.rounds.get(self.round) else {
            return Ok(false);
        };
        let Some(mut received) = self.received.take() else {
            for transfer in &round.transfers {
                if let Transfer::Send { to, region } = transfer {
                    let message = self.read(region).to_vec();
                    wires.between(rank, to.index()).push_back(message);
                }
            }
            let is_send = |t: &Transfer| matches!(t, Transfer::Send { .. });
            self.received = Some(round.transfers.iter().map(is_send).collect());
            return Ok(true);
        };
        let mut moved = false;
        for (transfer, done) in round.transfers.iter().zip(&mut received) {
            let Transfer::Receive { from, region } = transfer else {
                continue;
            };
            if *done {
                continue;
            }
            if let Some(message) = wires.between(from.index(), rank).pop_front() {
                self.write(region, &message)?;
                (*done, moved) = (true, true);
            }
        }
        if received.iter().all(|&done| done) {
            for action in &round.actions {
                self.act(action, reduce)?;
            }
            self.round += 1;
            return Ok(true);
        }
        self.received = Some(received);
        Ok(moved)
    }

    fn act(
        &mut self,
        action: &LocalAction,
        reduce: &mut impl FnMut(&T, &T) -> T,
    ) -> Result<(), ScheduleError> {
        match action {
            LocalAction::Reduce { into, left, right } => {
                let operands = self.read(left).iter().zip(self.read(right));
                let values: Vec<T> = operands.map(|(l, r)| reduce(l, r)).collect();
                self.write(into, &values)
            }
            LocalAction::Copy { into, from } => {
                let values = self.read(from).to_vec();
                self.write(into, &values)
            }
        }
    }

    fn write(&mut self, region: &Region, values: &[T]) -> Result<(), ScheduleError> {
        if values.len() != region.len() {
            let problem = format!("{} elements arrive for {region:?}", values.len());
            return Err(ScheduleError::Broken { problem });
        }
        self.slots[region.slot][region.elements.clone()].clone_from_slice(values);
        Ok(())
    }
}

impl<T> InterpretedRank<'_, T> {
    fn read(&self, region: &Region) -> &[T] {
        &self.slots[region.slot][region.elements.clone()]
    }
}

#[cfg(test)]
mod tests;

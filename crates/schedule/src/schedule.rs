//! [`Schedule`]: the actions of one rank in a collective, as data.

use std::ops::Range;

use ronde_core::GroupRank;

use crate::error::ScheduleError;

/// A range of elements of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The index into [`Schedule::slots`].
    pub slot: usize,
    /// The elements of the slot.
    pub elements: Range<usize>,
}

impl Region {
    /// Creates the region of elements `elements` of slot `slot`.
    #[must_use]
    pub fn new(slot: usize, elements: Range<usize>) -> Self {
        Self { slot, elements }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Returns whether the two regions have elements in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.slot == other.slot
            && self.elements.start.max(other.elements.start)
                < self.elements.end.min(other.elements.end)
    }
}

/// One message of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transfer {
    /// Sends the region to another rank.
    Send {
        /// The receiving rank.
        to: GroupRank,
        /// The region to send.
        region: Region,
    },
    /// Receives the region from another rank.
    Receive {
        /// The sending rank.
        from: GroupRank,
        /// The region to fill.
        region: Region,
    },
}

/// A local action of a rank after the transfers of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalAction {
    /// `into = left op right`, in exactly this order; `into` is one of the two.
    Reduce {
        /// The destination.
        into: Region,
        /// The left operand.
        left: Region,
        /// The right operand.
        right: Region,
    },
    /// `into = from`.
    Copy {
        /// The destination.
        into: Region,
        /// The source.
        from: Region,
    },
}

/// Concurrent transfers, then local actions in order.
///
/// Messages between two ranks arrive in the order of their schedules, over all rounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Round {
    /// The messages. No message writes a region that another one reads or writes.
    pub transfers: Vec<Transfer>,
    /// The actions after all messages are complete.
    pub actions: Vec<LocalAction>,
}

impl Round {
    /// Adds a message to `to`; an empty region needs none.
    pub fn send(&mut self, to: usize, region: Region) {
        if !region.is_empty() {
            let to = GroupRank(to as u32);
            self.transfers.push(Transfer::Send { to, region });
        }
    }

    /// Adds a message from `from`; an empty region needs none.
    pub fn receive(&mut self, from: usize, region: Region) {
        if !region.is_empty() {
            let from = GroupRank(from as u32);
            self.transfers.push(Transfer::Receive { from, region });
        }
    }

    /// Adds a message to `to` that is sent even if empty, for a receiver that checks its length.
    pub fn send_even_empty(&mut self, to: usize, region: Region) {
        let to = GroupRank(to as u32);
        self.transfers.push(Transfer::Send { to, region });
    }

    /// Adds a message from `from` that is received even if empty.
    pub fn receive_even_empty(&mut self, from: usize, region: Region) {
        let from = GroupRank(from as u32);
        self.transfers.push(Transfer::Receive { from, region });
    }

    /// Redirects all messages to one slot.
    pub(crate) fn move_to_slot(&mut self, slot: usize) {
        for transfer in &mut self.transfers {
            let (Transfer::Send { region, .. } | Transfer::Receive { region, .. }) = transfer;
            region.slot = slot;
        }
    }

    /// Adds `into = into op right`.
    pub fn reduce_right(&mut self, into: Region, right: Region) {
        if !into.is_empty() {
            let left = into.clone();
            self.actions.push(LocalAction::Reduce { into, left, right });
        }
    }

    /// Adds `into = left op into`.
    pub fn reduce_left(&mut self, left: Region, into: Region) {
        if !into.is_empty() {
            let right = into.clone();
            self.actions.push(LocalAction::Reduce { into, left, right });
        }
    }

    /// Adds `into = from`, unless they are the same.
    pub fn copy(&mut self, into: Region, from: Region) {
        if !into.is_empty() && into != from {
            self.actions.push(LocalAction::Copy { into, from });
        }
    }

    fn is_empty(&self) -> bool {
        self.transfers.is_empty() && self.actions.is_empty()
    }
}

/// The actions of one rank in a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The number of elements of each slot. The first [`Schedule::inputs`] slots are the caller's buffer, in
    /// order; the remaining ones are scratch memory, undefined at the start.
    pub slots: Vec<usize>,
    /// The number of slots of the caller's buffer.
    pub inputs: usize,
    /// The rounds in order.
    pub rounds: Vec<Round>,
    /// The location of the result at the end.
    pub result: Region,
}

/// The cost of a schedule for one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// The number of messages to other ranks.
    pub messages_sent: usize,
    /// The number of payload bytes sent to other ranks.
    pub bytes_sent: usize,
    /// The number of payload bytes received from other ranks.
    pub bytes_received: usize,
    /// The number of rounds with a transfer, in each of which this rank waits.
    pub rounds: usize,
}

impl Schedule {
    /// Creates a schedule without rounds over the caller's slots of the given lengths.
    #[must_use]
    pub fn new(inputs: Vec<usize>, result: Region) -> Self {
        Self {
            inputs: inputs.len(),
            slots: inputs,
            rounds: Vec::new(),
            result,
        }
    }

    /// Adds a scratch slot of `len` elements and returns its index.
    pub fn scratch(&mut self, len: usize) -> usize {
        self.slots.push(len);
        self.slots.len() - 1
    }

    /// Adds a round unless it is empty.
    pub fn push(&mut self, round: Round) {
        if !round.is_empty() {
            self.rounds.push(round);
        }
    }

    /// Renumbers the peers.
    pub(crate) fn rename_ranks(&mut self, name: impl Fn(usize) -> usize) {
        for transfer in self.rounds.iter_mut().flat_map(|r| &mut r.transfers) {
            let (Transfer::Send { to: peer, .. } | Transfer::Receive { from: peer, .. }) = transfer;
            *peer = GroupRank(name(peer.index()) as u32);
        }
    }

    /// Returns the number of elements of the caller's buffer.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.slots[..self.inputs].iter().sum()
    }

    /// Returns the number of elements of scratch memory.
    #[must_use]
    pub fn scratch_len(&self) -> usize {
        self.slots[self.inputs..].iter().sum()
    }

    /// Returns the cost for elements of `element_bytes` bytes.
    #[must_use]
    pub fn cost(&self, element_bytes: usize) -> Cost {
        let mut cost = Cost::default();
        for round in &self.rounds {
            cost.rounds += usize::from(!round.transfers.is_empty());
            for transfer in &round.transfers {
                match transfer {
                    Transfer::Send { region, .. } => {
                        cost.messages_sent += 1;
                        cost.bytes_sent += region.len() * element_bytes;
                    }
                    Transfer::Receive { region, .. } => {
                        cost.bytes_received += region.len() * element_bytes;
                    }
                }
            }
        }
        cost
    }

    /// Checks the invariants that an executor relies on: regions are within their slots, the transfers of a round
    /// are independent, and the operands of an action have equal lengths and do not overlap.
    ///
    /// # Errors
    /// [`ScheduleError::Broken`] with the first problem.
    pub fn check(&self) -> Result<(), ScheduleError> {
        let broken = |problem: String| Err(ScheduleError::Broken { problem });
        if self.inputs > self.slots.len() || !self.holds(&self.result) {
            return broken(format!(
                "the result {:?} is not within the slots",
                self.result
            ));
        }
        for (number, round) in self.rounds.iter().enumerate() {
            for (index, transfer) in round.transfers.iter().enumerate() {
                let (Transfer::Send { region, .. } | Transfer::Receive { region, .. }) = transfer;
                let disturbed = round.transfers[..index]
                    .iter()
                    .any(|earlier| disturbs(earlier, transfer));
                if !self.holds(region) || disturbed {
                    return broken(format!("round {number}: {transfer:?}"));
                }
            }
            if let Some(action) = round.actions.iter().find(|action| !self.allows(action)) {
                return broken(format!("round {number}: {action:?}"));
            }
        }
        Ok(())
    }

    fn holds(&self, region: &Region) -> bool {
        region.elements.start <= region.elements.end
            && self
                .slots
                .get(region.slot)
                .is_some_and(|&len| region.elements.end <= len)
    }

    fn allows(&self, action: &LocalAction) -> bool {
        match action {
            LocalAction::Reduce { into, left, right } => {
                self.holds(left)
                    && self.holds(right)
                    && left.len() == right.len()
                    && (into == left || into == right)
                    && !left.overlaps(right)
            }
            LocalAction::Copy { into, from } => {
                self.holds(into)
                    && self.holds(from)
                    && into.len() == from.len()
                    && !into.overlaps(from)
            }
        }
    }
}

fn disturbs(one: &Transfer, other: &Transfer) -> bool {
    match (one, other) {
        (Transfer::Send { .. }, Transfer::Send { .. }) => false,
        (
            Transfer::Send { region: a, .. } | Transfer::Receive { region: a, .. },
            Transfer::Send { region: b, .. } | Transfer::Receive { region: b, .. },
        ) => a.overlaps(b),
    }
}

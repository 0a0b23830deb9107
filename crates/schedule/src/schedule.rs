//! [`Schedule`]: what one rank does in a collective, as data.

use std::ops::Range;

use ronde_core::GroupRank;

use crate::ScheduleError;

/// A run of elements of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Index into [`Schedule::slots`].
    pub slot: usize,
    /// Elements of the slot.
    pub elements: Range<usize>,
}

impl Region {
    /// Elements `elements` of slot `slot`.
    #[must_use]
    pub fn new(slot: usize, elements: Range<usize>) -> Self {
        Self { slot, elements }
    }

    /// Count of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Whether an element belongs to both.
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
    /// The region goes to another rank.
    Send {
        /// Who gets it.
        to: GroupRank,
        /// What it gets.
        region: Region,
    },
    /// The region is filled by another rank.
    Receive {
        /// Who fills it.
        from: GroupRank,
        /// Where it goes.
        region: Region,
    },
}

/// What a rank does by itself after the transfers of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalAction {
    /// `into = left op right`, in exactly this order; `into` is one of the two.
    Reduce {
        /// Where the result goes.
        into: Region,
        /// Left operand.
        left: Region,
        /// Right operand.
        right: Region,
    },
    /// `into = from`.
    Copy {
        /// Where it goes.
        into: Region,
        /// What is copied.
        from: Region,
    },
}

/// Concurrent transfers, then local actions in order.
///
/// Messages between two ranks arrive in the order of their schedules, over all rounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Round {
    /// Messages; none writes what another one touches.
    pub transfers: Vec<Transfer>,
    /// What follows once all of them are done.
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

    /// Adds a message to `to` that goes even without an element, for a receiver that checks its length.
    pub fn send_even_empty(&mut self, to: usize, region: Region) {
        let to = GroupRank(to as u32);
        self.transfers.push(Transfer::Send { to, region });
    }

    /// Adds a message from `from` that comes even without an element.
    pub fn receive_even_empty(&mut self, from: usize, region: Region) {
        let from = GroupRank(from as u32);
        self.transfers.push(Transfer::Receive { from, region });
    }

    /// Moves all messages to one slot.
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

/// What one rank does in a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Elements of each slot. The first [`Schedule::inputs`] are the caller's buffer, one after the
    /// other; the rest is scratch, undefined at the start.
    pub slots: Vec<usize>,
    /// How many slots the caller's buffer consists of.
    pub inputs: usize,
    /// The rounds in order.
    pub rounds: Vec<Round>,
    /// Where the result lies in the end.
    pub result: Region,
}

/// What a schedule costs one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Messages to other ranks.
    pub messages_sent: usize,
    /// Bytes of payload to other ranks.
    pub bytes_sent: usize,
    /// Bytes of payload from other ranks.
    pub bytes_received: usize,
    /// Rounds with a transfer: how often this rank waits.
    pub rounds: usize,
}

impl Schedule {
    /// A schedule without rounds over the caller's slots of the given lengths.
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

    /// Renames the ranks that it speaks to.
    pub(crate) fn rename_ranks(&mut self, name: impl Fn(usize) -> usize) {
        for transfer in self.rounds.iter_mut().flat_map(|r| &mut r.transfers) {
            let (Transfer::Send { to: peer, .. } | Transfer::Receive { from: peer, .. }) = transfer;
            *peer = GroupRank(name(peer.index()) as u32);
        }
    }

    /// Elements that the caller brings.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.slots[..self.inputs].iter().sum()
    }

    /// Elements of scratch that are needed.
    #[must_use]
    pub fn scratch_len(&self) -> usize {
        self.slots[self.inputs..].iter().sum()
    }

    /// What it costs, for elements of `element_bytes`.
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

    /// Checks what an executor relies on: regions lie in their slots, the transfers of a round do
    /// not disturb each other, and the operands of an action agree in length and do not overlap.
    ///
    /// # Errors
    /// [`ScheduleError::Broken`] with the first problem.
    pub fn check(&self) -> Result<(), ScheduleError> {
        let broken = |problem: String| Err(ScheduleError::Broken { problem });
        if self.inputs > self.slots.len() || !self.holds(&self.result) {
            return broken(format!("no result {:?} in the slots", self.result));
        }
        for (number, round) in self.rounds.iter().enumerate() {
            for (place, transfer) in round.transfers.iter().enumerate() {
                let (Transfer::Send { region, .. } | Transfer::Receive { region, .. }) = transfer;
                let disturbed = round.transfers[..place]
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

//! [`NeighbourInbox`]: the values of a round that a rank receives from a neighbour, in the order in which they are sent.

use std::collections::VecDeque;

use ronde_core::{CollectiveError, Group, GroupRank, Work};
use ronde_engine::Activation;
use ronde_schedule::Border;

use crate::synchronous::SynchronousStrategy;

/// The number of messages that may arrive before they are needed.
const AHEAD: usize = 4;

/// The values between two stages on different ranks, in one direction.
pub(super) struct NeighbourInbox {
    rank: GroupRank,
    from: usize,
    to: usize,
    shards: u32,
    /// The shard of the next message that is to be awaited.
    next: u32,
    /// The shard of the next message that is read.
    read: u32,
    /// The messages that are not awaited yet.
    later: u64,
    awaited: VecDeque<Box<dyn Work>>,
}

impl NeighbourInbox {
    /// Creates the inbox for the values of `steps` batches that a rank sends from one stage to another.
    pub(super) fn new(
        rank: GroupRank,
        (from, to): (usize, usize),
        shards: u32,
        steps: u64,
    ) -> Self {
        Self {
            rank,
            from,
            to,
            shards,
            next: 0,
            read: 0,
            later: steps * u64::from(shards),
            awaited: VecDeque::new(),
        }
    }

    fn border(&self, shard: u32) -> Border {
        Border {
            from: self.from,
            to: self.to,
            shard,
        }
    }

    /// Begins to receive as many messages as may be under way.
    pub(super) fn fill(
        &mut self,
        stages: &SynchronousStrategy,
        group: &dyn Group,
    ) -> Result<(), CollectiveError> {
        while self.awaited.len() < AHEAD && self.later > 0 {
            let border = self.border(self.next);
            let work = stages.receive_between(group, self.rank, border)?;
            self.awaited.push_back(work);
            self.next = (self.next + 1) % self.shards;
            self.later -= 1;
        }
        Ok(())
    }

    /// Waits for the next values; `None` for a shard without samples.
    pub(super) fn receive(
        &mut self,
        stages: &SynchronousStrategy,
        group: &dyn Group,
    ) -> Result<Option<Activation>, CollectiveError> {
        self.fill(stages, group)?;
        let Some(work) = self.awaited.pop_front() else {
            return Err(CollectiveError::Invalid {
                operation: "receive".to_owned(),
                problem: format!("no more values of stage {} are sent", self.from),
            });
        };
        let message = work.wait()?;
        self.fill(stages, group)?;
        let border = self.border(self.read);
        self.read = (self.read + 1) % self.shards;
        stages.read_between(border, &message)
    }
}

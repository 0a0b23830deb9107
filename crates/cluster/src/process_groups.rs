//! [`ProcessGroups`]: the running process groups, the signals sent to them and the next signal that
//! is due. Pure: time is an argument.

use std::time::Duration;

use ronde_core::{Rank, WorldSize};

use crate::launcher::StopSignal;

/// Time that a group may take to disappear after SIGKILL. A process in uninterruptible sleep may
/// need longer, which no process can change.
const KILL_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, Default)]
struct GroupState {
    running: bool,
    terminated: Option<Duration>,
    killed: Option<Duration>,
}

/// The process groups of a job.
pub(crate) struct ProcessGroups {
    groups: Vec<GroupState>,
    grace: Duration,
}

impl ProcessGroups {
    pub(crate) fn new(world_size: WorldSize, grace: Duration) -> Self {
        Self {
            groups: vec![GroupState::default(); world_size.len()],
            grace,
        }
    }

    pub(crate) fn started(&mut self, rank: Rank) {
        self.groups[rank.index()] = GroupState {
            running: true,
            ..GroupState::default()
        };
    }

    pub(crate) fn gone(&mut self, rank: Rank) {
        self.groups[rank.index()].running = false;
    }

    pub(crate) fn sent(&mut self, rank: Rank, signal: StopSignal, now: Duration) {
        let group = &mut self.groups[rank.index()];
        match signal {
            StopSignal::Terminate => group.terminated.get_or_insert(now),
            StopSignal::Kill => group.killed.get_or_insert(now),
        };
    }

    /// Returns the ranks whose groups are not known to be gone.
    pub(crate) fn running(&self) -> Vec<Rank> {
        let numbered = self.groups.iter().enumerate();
        numbered
            .filter(|(_, group)| group.running)
            .map(|(index, _)| Rank(index as u32))
            .collect()
    }

    /// Returns whether SIGKILL was sent to every running group.
    pub(crate) fn all_killed(&self) -> bool {
        self.groups
            .iter()
            .all(|group| !group.running || group.killed.is_some())
    }

    /// Returns the signal that is due for a group: SIGTERM if its leader has ended and left
    /// children behind, SIGKILL after the grace period.
    pub(crate) fn due(&self, rank: Rank, leader_ended: bool, now: Duration) -> Option<StopSignal> {
        let group = &self.groups[rank.index()];
        match (group.terminated, group.killed) {
            (None, None) if leader_ended => Some(StopSignal::Terminate),
            (Some(at), None) if now >= at.saturating_add(self.grace) => Some(StopSignal::Kill),
            _ => None,
        }
    }

    /// Returns whether SIGKILL was sent so long ago that waiting is useless.
    pub(crate) fn hopeless(&self, rank: Rank, now: Duration) -> bool {
        self.groups[rank.index()]
            .killed
            .is_some_and(|at| now >= at + KILL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_gets_sigterm_then_sigkill_and_is_then_abandoned() {
        let second = Duration::from_secs(1);
        let mut endings = ProcessGroups::new(WorldSize::new(2).unwrap(), 3 * second);
        endings.started(Rank(1));
        assert_eq!(endings.running(), [Rank(1)]);
        assert_eq!(endings.due(Rank(1), false, 9 * second), None);
        let terminate = endings.due(Rank(1), true, 9 * second);
        assert_eq!(terminate, Some(StopSignal::Terminate));
        endings.sent(Rank(1), StopSignal::Terminate, 9 * second);
        assert_eq!(endings.due(Rank(1), true, 11 * second), None);
        assert!(!endings.all_killed());
        assert_eq!(
            endings.due(Rank(1), true, 12 * second),
            Some(StopSignal::Kill)
        );
        endings.sent(Rank(1), StopSignal::Kill, 12 * second);
        assert!(endings.all_killed());
        assert_eq!(endings.due(Rank(1), true, 13 * second), None);
        assert!(!endings.hopeless(Rank(1), 16 * second));
        assert!(endings.hopeless(Rank(1), 17 * second));
        endings.gone(Rank(1));
        assert!(endings.running().is_empty());
    }
}

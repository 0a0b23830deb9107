//! [`EventHistory`]: the events of the last committed steps, so that a new rank 0 can report them.

use std::collections::VecDeque;

use ronde_core::{CollectiveError, Collectives, CollectivesExt, Event, GroupRank, Tracker};
use ronde_protocol::transaction::{CatchUp, CatchUpPlan};

/// The number of stored events. They cover more steps than a group commits before it detects a disconnected host.
const EVENTS_MAX: usize = 1_024;

/// The events of the last steps. Equal on all members except for the times.
///
/// Rank 0 reports them, but its host may fail before the reports arrive. The next rank 0 therefore reports all
/// events that it has not reported itself, and the collector ignores repeated ones.
#[derive(Default)]
pub(crate) struct EventHistory(VecDeque<HistoryEntry>);

struct HistoryEntry {
    event: Event,
    /// Whether this worker has reported it.
    is_reported: bool,
}

impl EventHistory {
    /// Adds an event of a committed step.
    pub(crate) fn push(&mut self, event: Event) {
        if self.0.len() == EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(HistoryEntry {
            event,
            is_reported: false,
        });
    }

    /// Removes all events, because the state was replaced by that of a checkpoint.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Reports all events that this worker has not reported yet, in order.
    pub(crate) fn report(&mut self, tracker: &dyn Tracker) {
        let unreported = self
            .0
            .iter_mut()
            .rev()
            .take_while(|entry| !entry.is_reported);
        let count = unreported.count();
        let from = self.0.len() - count;
        for entry in self.0.range_mut(from..) {
            tracker.record(entry.event.clone());
            entry.is_reported = true;
        }
    }

    /// Copies the history to members that copy the state. All members call it with the same plan. Cost: two
    /// broadcasts, of 8 bytes and of about 200 bytes for each event.
    ///
    /// # Errors
    /// A peer was lost.
    pub(crate) fn share(
        &mut self,
        group: &dyn Collectives,
        catch_up: &CatchUpPlan,
    ) -> Result<(), CollectiveError> {
        let mut bytes = Vec::new();
        if first_with_state(catch_up) == Some(group.rank()) {
            let events: Vec<&Event> = self.0.iter().map(|entry| &entry.event).collect();
            // Events consist of numbers and text, which always serialise.
            bytes = serde_json::to_vec(&events).unwrap_or_default();
        }
        share_bytes(&mut bytes, group, catch_up)?;
        if catch_up.each[group.rank().index()] == CatchUp::CopyState {
            let events: Vec<Event> = serde_json::from_slice(&bytes).unwrap_or_default();
            self.clear();
            events.into_iter().for_each(|event| self.push(event));
        }
        Ok(())
    }
}

/// Returns the first member that has the state.
fn first_with_state(catch_up: &CatchUpPlan) -> Option<GroupRank> {
    let mut members = catch_up.each.iter();
    let first = members.position(|each| *each != CatchUp::CopyState)?;
    Some(GroupRank(first as u32))
}

/// Replaces the bytes by those of the first member that has the state. All members call it with the same plan. Cost: two
/// broadcasts, of 8 bytes and of the bytes.
///
/// # Errors
/// A peer was lost.
pub(crate) fn share_bytes(
    bytes: &mut Vec<u8>,
    group: &dyn Collectives,
    catch_up: &CatchUpPlan,
) -> Result<(), CollectiveError> {
    let Some(root) = first_with_state(catch_up) else {
        return Ok(());
    };
    let mut len = [bytes.len() as i64];
    group.broadcast(&mut len, root)?;
    bytes.resize(len[0] as usize, 0);
    group.broadcast(bytes, root)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use ronde_comm::testing::spawn_ranks;
    use ronde_core::Step;

    use super::*;

    #[derive(Default)]
    struct RecordingTracker(Mutex<Vec<String>>);

    impl Tracker for RecordingTracker {
        fn record(&self, event: Event) {
            if let Event::Notice { message, .. } = event {
                self.0.lock().unwrap().push(message);
            }
        }
    }

    fn event(name: impl ToString) -> Event {
        Event::Notice {
            rank: None,
            message: name.to_string(),
        }
    }

    fn reported(history: &mut EventHistory) -> Vec<String> {
        let tracker = RecordingTracker::default();
        history.report(&tracker);
        tracker.0.into_inner().unwrap()
    }

    #[test]
    fn each_event_is_reported_once_and_the_oldest_are_forgotten() {
        let mut history = EventHistory::default();
        for step in 0..EVENTS_MAX as u64 + 3 {
            history.push(event(step));
        }
        let all = reported(&mut history);
        assert_eq!((all.len(), all[0].as_str()), (EVENTS_MAX, "3"));
        assert!(reported(&mut history).is_empty());
        history.push(event("a"));
        history.push(event("b"));
        assert_eq!(reported(&mut history), ["a", "b"]);
        history.clear();
        history.push(event("again"));
        assert_eq!(reported(&mut history), ["again"]);
    }

    #[test]
    fn a_member_that_copies_the_state_can_report_earlier_events() {
        let each = spawn_ranks(3, Duration::from_secs(30), |group| {
            let mut history = EventHistory::default();
            let me = group.rank().index();
            if me > 0 {
                history.push(event("of another run"));
                history.clear();
            }
            if me == 1 {
                for name in ["a", "b"] {
                    history.push(event(name));
                }
                assert_eq!(reported(&mut history), ["a", "b"]);
            }
            let catch_up = CatchUpPlan {
                next: Step(2),
                each: vec![CatchUp::CopyState, CatchUp::UpToDate, CatchUp::CopyState],
            };
            history.share(&group, &catch_up)?;
            history.push(event("c"));
            Ok::<_, CollectiveError>(reported(&mut history))
        });
        assert_eq!(each, [vec!["a", "b", "c"], vec!["c"], vec!["a", "b", "c"]]);
    }
}

//! [`History`]: what was committed last, so that whoever becomes rank 0 can tell it.

use std::collections::VecDeque;

use ronde_core::session::{CatchUp, CatchUpPlan};
use ronde_core::{CollectiveError, Collectives, CollectivesExt, Event, GroupRank, Tracker};

/// Events that are kept: of rather more steps than a group commits before it notices that a host is cut off.
const EVENTS_MAX: usize = 1_024;

/// The events of the last steps, equal on all members but for the times.
///
/// Rank 0 tells them, and its host may be lost with what it has told. The next rank 0 tells all that it did
/// not tell itself; whoever collects the events keeps the first of each.
#[derive(Default)]
pub(crate) struct History(VecDeque<Entry>);

struct Entry {
    event: Event,
    /// Whether this worker has told of it.
    is_told: bool,
}

impl History {
    /// Takes note of an event of a committed step.
    pub(crate) fn note(&mut self, event: Event) {
        if self.0.len() == EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Entry {
            event,
            is_told: false,
        });
    }

    /// The state is another one now: a checkpoint's.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Tells all that this worker has not told yet, in order.
    pub(crate) fn tell(&mut self, tracker: &dyn Tracker) {
        let untold = self.0.iter_mut().rev().take_while(|entry| !entry.is_told);
        let count = untold.count();
        let from = self.0.len() - count;
        for entry in self.0.range_mut(from..) {
            tracker.record(entry.event.clone());
            entry.is_told = true;
        }
    }

    /// Members that take the state over take this over as well. All members of the group call it with the
    /// same catch_up. Cost: two broadcasts, of 8 bytes and of about 200 for each event.
    ///
    /// # Errors
    /// A peer was lost.
    pub(crate) fn share(
        &mut self,
        group: &dyn Collectives,
        catch_up: &CatchUpPlan,
    ) -> Result<(), CollectiveError> {
        let Some(root) = catch_up
            .each
            .iter()
            .position(|each| *each != CatchUp::CopyState)
        else {
            return Ok(());
        };
        let root = GroupRank(root as u32);
        let mut bytes = Vec::new();
        if group.rank() == root {
            let events: Vec<&Event> = self.0.iter().map(|entry| &entry.event).collect();
            // Events are made of numbers and texts, which always become JSON.
            bytes = serde_json::to_vec(&events).unwrap_or_default();
        }
        let mut len = [bytes.len() as i64];
        group.broadcast(&mut len, root)?;
        bytes.resize(len[0] as usize, 0);
        group.broadcast(&mut bytes, root)?;
        if catch_up.each[group.rank().index()] == CatchUp::CopyState {
            let events: Vec<Event> = serde_json::from_slice(&bytes).unwrap_or_default();
            self.clear();
            events.into_iter().for_each(|event| self.note(event));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use ronde_comm::testing::spawn_ranks;
    use ronde_core::Step;

    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Tracker for Told {
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

    fn told(history: &mut History) -> Vec<String> {
        let told = Told::default();
        history.tell(&told);
        told.0.into_inner().unwrap()
    }

    #[test]
    fn each_event_is_told_once_and_the_oldest_are_forgotten() {
        let mut history = History::default();
        for step in 0..EVENTS_MAX as u64 + 3 {
            history.note(event(step));
        }
        let all = told(&mut history);
        assert_eq!((all.len(), all[0].as_str()), (EVENTS_MAX, "3"));
        assert!(told(&mut history).is_empty());
        history.note(event("a"));
        history.note(event("b"));
        assert_eq!(told(&mut history), ["a", "b"]);
        history.clear();
        history.note(event("again"));
        assert_eq!(told(&mut history), ["again"]);
    }

    #[test]
    fn who_takes_the_state_over_can_tell_what_came_before() {
        let each = spawn_ranks(3, Duration::from_secs(30), |group| {
            let mut history = History::default();
            let me = group.rank().index();
            if me > 0 {
                history.note(event("of another run"));
                history.clear();
            }
            if me == 1 {
                for name in ["a", "b"] {
                    history.note(event(name));
                }
                assert_eq!(told(&mut history), ["a", "b"]);
            }
            let catch_up = CatchUpPlan {
                next: Step(2),
                each: vec![CatchUp::CopyState, CatchUp::UpToDate, CatchUp::CopyState],
            };
            history.share(&group, &catch_up)?;
            history.note(event("c"));
            Ok::<_, CollectiveError>(told(&mut history))
        });
        assert_eq!(each, [vec!["a", "b", "c"], vec!["c"], vec!["a", "b", "c"]]);
    }
}

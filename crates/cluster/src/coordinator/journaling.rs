//! The journal of a coordinator, also while it cannot be written, such as on a full disk: agents keep their events then.

use std::time::Duration;

use ronde_core::Event as RunEvent;

use super::CoordinatorShell;
use crate::journal::Journal;
use crate::messages::ToAgent;

/// The time between two attempts to write the journal again.
const REOPEN_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of events of the coordinator itself that wait.
const UNWRITTEN_MAX: usize = 1_000;

/// The events that wait because the journal cannot be written.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// Why the journal cannot be written, and when to try again; `None` if there is no journal for another reason.
    problem: Option<(String, Duration)>,
    events: Vec<RunEvent>,
}

impl Unwritten {
    /// Keeps an event of the coordinator until the journal can be written.
    pub(super) fn add(&mut self, event: &RunEvent) {
        if self.problem.is_some() && self.events.len() < UNWRITTEN_MAX {
            self.events.push(event.clone());
        }
    }
}

impl CoordinatorShell<'_> {
    /// Opens the journal and reads it.
    pub(super) fn open_journal(&mut self) -> std::io::Result<Journal> {
        (self.narration, self.board) = Default::default();
        let (narration, board) = (&mut self.narration, &mut self.board);
        Journal::open(&self.folder.events(), &mut |event| {
            narration.remember(event);
            board.take(event);
        })
    }

    /// Notes that the journal cannot be written.
    pub(super) fn journal_failed(&mut self, error: &std::io::Error) {
        let problem = format!("cannot write {}: {error}", self.folder.events().display());
        self.mention(problem.clone());
        self.unwritten.problem = Some((problem, self.now() + REOPEN_EVERY));
    }

    /// Tries to continue the journal if it could not be written.
    pub(super) fn reopen_journal(&mut self) {
        let now = self.now();
        let is_due = |(_, at): &(String, Duration)| now >= *at;
        if !self.unwritten.problem.as_ref().is_some_and(is_due) || !self.leads() {
            return;
        }
        let notice = RunEvent::Notice {
            rank: None,
            message: "the coordinator can write the events again".to_owned(),
        };
        let opened = self.open_journal().and_then(|mut journal| {
            journal.append(&notice)?;
            Ok(journal)
        });
        match opened {
            Ok(journal) => {
                self.journal = Some(journal);
                for event in std::mem::take(&mut self.unwritten).events {
                    self.publish(event);
                }
                self.replay_journal();
            }
            Err(_) => {
                if let Some((_, at)) = &mut self.unwritten.problem {
                    *at = now + REOPEN_EVERY;
                }
            }
        }
    }

    /// Sends the events of the journal to the agents that follow the job, and lets all agents repeat their events that are not in
    /// it.
    pub(super) fn replay_journal(&mut self) {
        if let Some(journal) = &self.journal {
            self.agents.replay(journal);
        }
        // Agents that did not notice the time without a leader also repeat unacknowledged events.
        self.agents.send_all(&ToAgent::Alive {
            leads: None,
            coordinators: Vec::new(),
            problem: self.storage_problem(),
        });
        self.greet();
    }

    /// Returns why this coordinator cannot store its objects, if so.
    pub(super) fn storage_problem(&self) -> Option<String> {
        let journal = self.unwritten.problem.as_ref();
        let record = self.store_problem.clone();
        record.or_else(|| journal.map(|(problem, _)| problem.clone()))
    }
}

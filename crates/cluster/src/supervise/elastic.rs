//! What a [`Supervisor`] does in a job that goes on when workers die: it feeds the coordinator and does
//! what that says.

use std::time::Duration;

use ronde_core::{Event, Rank};
use ronde_elastic::{JobEnding, WorkerReport};

use super::Supervisor;
use crate::coordination::Action;
use crate::decider::Decider;
use crate::launcher::{Started, StopSignal};
use crate::outcome::{Cause, signal_name};

/// How long the end of a process may take to show after its connection is gone.
const END_SHOWS: Duration = Duration::from_millis(30);

impl Supervisor<'_> {
    /// A worker says how it is.
    pub(super) fn reported(&mut self, rank: Rank, report: WorkerReport) {
        let now = self.now();
        let worker = report.member.worker;
        if let Some(reason) = self.last_words.heard(rank, now) {
            return self.tell_end(rank, &report, reason);
        }
        if let Some(coordination) = &mut self.coordination
            && coordination.worker_at(rank) == Some(worker)
        {
            let actions = coordination.reported(now, report);
            self.act(actions);
        }
    }

    /// A process has started. Where the job has a coordinator of its own that tells all who watch the job.
    pub(super) fn announce_start(&mut self, rank: Rank, started: &Started) {
        let now = self.now();
        let (slot, host) = match &self.coordination {
            Some(Decider::There(remote)) => (remote.slot(rank).0, &remote.host),
            _ => (rank.0.into(), &started.host),
        };
        let event = Event::WorkerStarted {
            place: u32::try_from(slot).unwrap_or(u32::MAX),
            host: host.clone(),
            pid: started.pid,
        };
        let events = match &mut self.coordination {
            Some(coordination) => coordination.recorded(now, event),
            None => vec![event],
        };
        events.into_iter().for_each(|e| self.sinks.record(e));
    }

    /// Whether a word is of the process that has the place now.
    pub(super) fn is_current(&self, rank: Rank, worker: Option<u64>) -> bool {
        let current = match &self.coordination {
            None => return true,
            Some(coordination) => coordination.worker_at(rank),
        };
        current.map(|worker| worker.0) == worker
    }

    /// Tells the coordinator what has happened, and what time it is.
    pub(super) fn coordinate(&mut self) {
        if self.coordination.is_none() || self.stopping {
            return;
        }
        let now = self.now();
        for rank in self.spec.world_size.ranks() {
            let Some((_, end)) = self.roster.member(rank).ended else {
                continue;
            };
            if !self.roster.judged(rank) {
                continue;
            }
            self.unlinked.retain(|(_, of, _)| *of != rank);
            self.with(|coordination| coordination.ended(now, rank, end));
        }
        let (due, later) = std::mem::take(&mut self.unlinked)
            .into_iter()
            .partition(|(at, _, _)| now >= *at + END_SHOWS);
        self.unlinked = later;
        let due: Vec<(Duration, Rank, u64)> = due;
        for (_, _, worker) in due {
            self.with(|coordination| coordination.unlinked(now, worker));
        }
        self.with(|coordination| coordination.tick(now));
    }

    fn with(&mut self, ask: impl FnOnce(&mut Decider) -> Vec<Action>) {
        let actions = self.coordination.as_mut().map(ask).unwrap_or_default();
        self.act(actions);
    }

    /// Does what the coordinator says.
    pub(super) fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Tell(rank, message) => self.control.tell(rank, message),
                Action::Start(rank, worker, identity) => {
                    // What the process before may have left behind.
                    self.launcher.signal(rank, StopSignal::Kill);
                    self.roster.vacate(rank);
                    self.last_words.forget(rank);
                    self.control.expect(rank, worker.0, identity);
                    self.start_rank(rank, Some(worker));
                }
                Action::Kill(rank) => self.launcher.signal(rank, StopSignal::Kill),
                Action::Say(event) => self.sinks.record(event),
                Action::End(JobEnding::Failed, reason) => {
                    let now = self.now();
                    let cause = Cause::Supervisor(reason.to_string());
                    self.roster.fail(Rank(0), cause, false, now);
                }
                Action::End(_, reason) => self.let_go(reason),
            }
        }
    }

    /// Whether nothing is to be waited for beyond the processes.
    pub(super) fn is_over(&self) -> bool {
        let goes_on = self.coordination.is_some() && !self.leaves;
        !goes_on || self.last_words.is_over() || self.stopping || self.roster.has_failed()
    }

    /// This host leaves a job that goes on elsewhere: its workers finish their step. True when that is
    /// what a request to stop means here.
    pub(super) fn leave(&mut self) -> bool {
        let Some(Decider::There(remote)) = &mut self.coordination else {
            return false;
        };
        if remote.follows.is_some() {
            // Whoever watches the whole job ends the whole job.
            remote.stop(signal_name(self.stop.signal()));
            return false;
        }
        if !std::mem::replace(&mut self.leaves, true) {
            remote.leave();
            for rank in self.endings.running() {
                self.roster.told(rank, StopSignal::Terminate);
                self.launcher.signal(rank, StopSignal::Terminate);
            }
        }
        true
    }
}

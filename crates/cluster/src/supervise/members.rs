//! The membership of a job on one host: the [`Supervisor`] notifies the coordinator and executes its
//! actions.

use std::time::Duration;

use ronde_core::{Event, Rank};
use ronde_protocol::MembershipPolicy;
use ronde_protocol::{JobEnding, WorkerId, WorkerReport};

use super::{Supervisor, SupervisorPhase};
use crate::activity;
use crate::coordinator_client::CoordinatorClient;
use crate::launcher::{StartedProcess, StopSignal};
use crate::local_coordinator::SupervisorAction;
use crate::outcome::{FailureCause, signal_name};
use crate::stop::StopLevel;

/// Time that the end of a process may take to be observed after its connection is lost.
const END_SHOWS: Duration = Duration::from_millis(30);

/// A worker whose connection was lost.
pub(super) struct LostConnection {
    pub(super) at: Duration,
    pub(super) rank: Rank,
    pub(super) worker: u64,
}

impl Supervisor<'_> {
    /// Processes a worker's report.
    pub(super) fn reported(&mut self, rank: Rank, report: WorkerReport) {
        let now = self.now();
        self.roster.heard(rank);
        if let Some(reason) = self.last_words.heard(rank, report.phase, now) {
            return self.send_end(rank, &report, reason);
        }
        if self.coordination.worker_at(rank) == Some(report.member.worker) {
            let actions = self.coordination.reported(now, report);
            self.act(actions);
        }
    }

    /// Records the start of a process. A separate coordinator forwards the event to all followers.
    pub(super) fn announce_start(&mut self, rank: Rank, started: &StartedProcess) {
        let now = self.now();
        let (slot, host) = match &self.coordination {
            CoordinatorClient::Remote(remote) => (remote.slot(rank).0, &remote.me.host),
            CoordinatorClient::Local(_) => (rank.0.into(), &started.host),
        };
        let event = Event::WorkerStarted {
            place: u32::try_from(slot).unwrap_or(u32::MAX),
            host: host.clone(),
            pid: started.pid,
        };
        let events = self.coordination.recorded(now, event);
        events.into_iter().for_each(|e| self.sinks.record(e));
    }

    /// Returns whether `worker` is the process that currently runs as `rank`.
    pub(super) fn is_current(&self, rank: Rank, worker: u64) -> bool {
        self.coordination.worker_at(rank) == Some(WorkerId(worker))
    }

    /// Notifies the coordinator of ended processes, lost connections and elapsed time.
    pub(super) fn coordinate(&mut self) {
        if !self.phase.is_running() {
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
            self.unlinked.retain(|lost| lost.rank != rank);
            self.with(|coordination| coordination.ended(now, rank, end));
        }
        for lost in std::mem::take(&mut self.unlinked) {
            if now >= lost.at + END_SHOWS && !self.is_exiting(lost.rank) {
                self.with(|coordination| coordination.unlinked(now, lost.worker));
            } else {
                self.unlinked.push(lost);
            }
        }
        self.report_busy_workers(now);
        self.with(|coordination| coordination.tick(now));
    }

    /// Returns whether the process of a rank is ending, so that the end itself will be observed.
    fn is_exiting(&self, rank: Rank) -> bool {
        let started = self.roster.member(rank).started.as_ref();
        started.is_some_and(|started| activity::is_exiting(started.pid))
    }

    /// Notifies the coordinator of workers that are silent because their process lacks CPU time, or
    /// because this process has not read their reports yet, and of those that have not reported but make progress.
    fn report_busy_workers(&mut self, now: Duration) {
        let silence = self.coordination.settings().silence;
        if now < self.activity_checked + silence / 8 {
            return;
        }
        self.activity_checked = now;
        for rank in self.endings.running() {
            let has_reported = self.last_words.has_reported(rank);
            if has_reported && !self.last_words.is_silent(rank, now, silence * 5 / 8) {
                continue;
            }
            let started = self.roster.member(rank).started.as_ref();
            let is_active = |pid| match (has_reported, self.spec.task.is_empty()) {
                (true, _) => activity::is_busy(pid),
                (false, false) => !activity::is_idle(pid),
                // A program may do anything before it joins the job, such as wait for a download.
                (false, true) => !activity::is_stopped(pid),
            };
            let is_busy = self.control.has_unread(rank)
                || started.is_some_and(|started| is_active(started.pid));
            let worker = self.coordination.worker_at(rank);
            if let Some(worker) = worker.filter(|_| is_busy) {
                self.with(|coordination| coordination.busy(now, worker));
            }
        }
    }

    fn with(&mut self, call: impl FnOnce(&mut CoordinatorClient) -> Vec<SupervisorAction>) {
        let actions = call(&mut self.coordination);
        self.act(actions);
    }

    /// Executes the coordinator's actions.
    pub(super) fn act(&mut self, actions: Vec<SupervisorAction>) {
        for action in actions {
            match action {
                SupervisorAction::Send(rank, message) => self.control.send_to_worker(rank, message),
                // One failure ends the job, and so does a stop request.
                SupervisorAction::Start(..)
                    if self.policy == MembershipPolicy::Fixed
                        && (self.roster.has_failed() || self.stop.level() > StopLevel::Run) => {}
                SupervisorAction::Start(rank, worker, identity) => {
                    // The previous process may have left children behind.
                    self.launcher.signal(rank, StopSignal::Kill);
                    self.roster.vacate(rank);
                    self.last_words.forget(rank);
                    self.control.expect(rank, worker.0, identity);
                    self.start_rank(rank, worker);
                }
                SupervisorAction::Kill(rank) => self.launcher.signal(rank, StopSignal::Kill),
                SupervisorAction::Record(event) => {
                    self.note_course(&event);
                    self.sinks.record(event);
                }
                SupervisorAction::End(JobEnding::Failed, reason) => {
                    let now = self.now();
                    let cause = FailureCause::Supervisor(reason.to_string());
                    self.roster.fail(Rank(0), cause, false, now);
                }
                SupervisorAction::End(ending, reason) => {
                    if ending == JobEnding::Stopped {
                        self.note_stopped();
                    }
                    self.end_silent_workers(reason);
                }
            }
        }
    }

    /// Returns whether only processes remain to be waited for.
    pub(super) fn is_over(&self) -> bool {
        let continues = self.policy == MembershipPolicy::Elastic
            && !matches!(
                self.phase,
                SupervisorPhase::Leaving | SupervisorPhase::Ending
            );
        !continues || self.last_words.is_over() || self.roster.has_failed()
    }

    /// Lets this host leave a job that continues elsewhere, after the current step of its workers.
    /// Returns false if a stop request ends the whole job, or if no coordinator answers.
    pub(super) fn leave(&mut self) -> bool {
        let CoordinatorClient::Remote(remote) = &mut self.coordination else {
            return false;
        };
        if remote.me.follows.is_some() {
            // A stop of an agent that follows the whole job ends the whole job.
            remote.stop(signal_name(self.stop.signal()));
            return false;
        }
        if self.phase != SupervisorPhase::Leaving {
            self.phase = SupervisorPhase::Leaving;
            remote.leave();
            for rank in self.endings.running() {
                self.roster.signalled(rank, StopSignal::Terminate);
                self.launcher.signal(rank, StopSignal::Terminate);
            }
            return true;
        }
        // Workers cannot leave in good order without a coordinator.
        let ends_alone = remote.ends_alone();
        if ends_alone {
            let message = "no coordinator answers: the workers of this host end without it";
            self.notice(None, message.to_owned());
        }
        !ends_alone
    }
}

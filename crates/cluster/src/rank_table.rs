//! [`RankTable`]: the state of each rank and the first failure. Pure: time is an argument.
//!
//! A process's end and its own report of a failure arrive separately and in any order, and a worker
//! that lost a peer may report before the peer's end is observed. Therefore an end is evaluated
//! when the rank's connection is drained, and a secondary report waits briefly for a primary one.

use std::time::Duration;

use ronde_core::{Event, Rank, Step, WorldSize};

use crate::launcher::{StartedProcess, StopSignal};
use crate::outcome::{FailureCause, ProcessExit, WorkerFailure, signal_name};

/// Time that a report may take after the end of its process, and a primary failure after a
/// secondary one.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);

/// The state of one rank.
#[derive(Default)]
pub(crate) struct RankState {
    /// The process, once started.
    pub(crate) started: Option<StartedProcess>,
    /// When and how it ended.
    pub(crate) ended: Option<(Duration, ProcessExit)>,
    /// Whether its worker has reported, and thus takes part in the job.
    pub(crate) has_reported: bool,
    /// Whether its connection is open.
    linked: bool,
    /// The strongest signal sent to it while it ran.
    signalled: Option<StopSignal>,
    last_step: Option<Step>,
    /// Whether its end was evaluated.
    judged: bool,
    reported: bool,
}

/// A failure and the values that determine its order.
struct RecordedFailure {
    at: Duration,
    secondary: bool,
    failure: WorkerFailure,
}

/// All ranks of a job.
pub(crate) struct RankTable {
    members: Vec<RankState>,
    failures: Vec<RecordedFailure>,
}

impl RankTable {
    pub(crate) fn new(world_size: WorldSize) -> Self {
        Self {
            members: world_size.ranks().map(|_| RankState::default()).collect(),
            failures: Vec::new(),
        }
    }

    pub(crate) fn member(&self, rank: Rank) -> &RankState {
        &self.members[rank.index()]
    }

    pub(crate) fn started(&mut self, rank: Rank, started: StartedProcess) {
        self.members[rank.index()].started = Some(started);
    }

    /// Resets a rank that is taken over by another process.
    pub(crate) fn vacate(&mut self, rank: Rank) {
        self.members[rank.index()] = RankState::default();
    }

    /// Removes the failures of a rank from those of the job, which can continue without it.
    pub(crate) fn forgive(&mut self, rank: Rank) {
        self.failures.retain(|noted| noted.failure.rank != rank);
    }

    pub(crate) fn linked(&mut self, rank: Rank) {
        self.members[rank.index()].linked = true;
    }

    pub(crate) fn unlinked(&mut self, rank: Rank) {
        self.members[rank.index()].linked = false;
    }

    /// Records a report of a rank's worker.
    pub(crate) fn heard(&mut self, rank: Rank) {
        self.members[rank.index()].has_reported = true;
    }

    pub(crate) fn ended(&mut self, rank: Rank, end: ProcessExit, now: Duration) {
        self.members[rank.index()].ended = Some((now, end));
    }

    /// Records that a signal is about to be sent to a rank.
    pub(crate) fn signalled(&mut self, rank: Rank, signal: StopSignal) {
        let member = &mut self.members[rank.index()];
        if member.ended.is_none() {
            member.signalled = member.signalled.max(Some(signal));
        }
    }

    /// Processes an event of a rank.
    pub(crate) fn recorded(&mut self, rank: Rank, event: &Event, now: Duration) {
        let member = &mut self.members[rank.index()];
        match event {
            Event::StepTimes { step, .. } => member.last_step = Some(*step),
            Event::WorkerFailed {
                last_step,
                secondary,
                ..
            } if !member.reported => {
                member.reported = true;
                member.last_step = last_step.or(member.last_step);
                self.fail(rank, FailureCause::Reported(event.clone()), *secondary, now);
            }
            _ => {}
        }
    }

    /// Records a failure.
    pub(crate) fn fail(&mut self, rank: Rank, cause: FailureCause, secondary: bool, at: Duration) {
        let member = &self.members[rank.index()];
        let failure = WorkerFailure {
            rank,
            host: member
                .started
                .as_ref()
                .map_or_else(|| "this host".to_owned(), |s| s.host.clone()),
            pid: member.started.as_ref().map_or(0, |s| s.pid),
            cause,
            last_step: member.last_step,
            last_lines: Vec::new(),
        };
        self.failures.push(RecordedFailure {
            at,
            secondary,
            failure,
        });
    }

    /// Evaluates the processes that have ended; returns the ranks that failed without reporting it,
    /// with the cause.
    pub(crate) fn judge(&mut self, now: Duration) -> Vec<(Rank, String)> {
        let mut silent = Vec::new();
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            let Some((at, end)) = member.ended.filter(|_| !member.judged) else {
                continue;
            };
            if member.linked && now < at + SETTLE {
                continue;
            }
            member.judged = true;
            if let Some(cause) = member.cause(end) {
                let rank = Rank(index as u32);
                silent.push((rank, cause.to_string()));
                self.fail(rank, cause, false, at);
            }
        }
        silent
    }

    /// Returns whether the other ranks must be ended: there is a primary failure, or a secondary
    /// one that has waited long enough for its cause.
    pub(crate) fn must_stop(&self, now: Duration) -> bool {
        self.failures
            .iter()
            .any(|noted| !noted.secondary || now >= noted.at + SETTLE)
    }

    /// Returns whether there is any failure of the job.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Returns the first failure in one line.
    pub(crate) fn first_failure(&self) -> String {
        let first = self
            .failures
            .iter()
            .min_by_key(|noted| (noted.secondary, noted.at));
        first.map_or_else(String::new, |noted| {
            let cause = noted.failure.cause.to_string();
            let line = cause.lines().next().unwrap_or_default();
            format!("rank {} failed: {line}", noted.failure.rank)
        })
    }

    /// Returns whether a rank's end was evaluated.
    pub(crate) fn judged(&self, rank: Rank) -> bool {
        self.members[rank.index()].judged
    }

    /// Returns whether any connection is open.
    pub(crate) fn any_linked(&self) -> bool {
        self.members.iter().any(|member| member.linked)
    }

    /// Returns the failures in order of time, and the index of the first one that is not secondary
    /// (or of the first one if all are).
    pub(crate) fn into_failures(mut self) -> (Vec<WorkerFailure>, Option<usize>) {
        self.failures.sort_by_key(|noted| noted.at);
        let first = self
            .failures
            .iter()
            .position(|noted| !noted.secondary)
            .or((!self.failures.is_empty()).then_some(0));
        let failures = self.failures.into_iter().map(|noted| noted.failure);
        (failures.collect(), first)
    }
}

impl RankState {
    /// Returns the last step that it reported.
    pub(crate) fn last_step(&self) -> Option<Step> {
        self.last_step
    }

    /// Returns why this end is a failure, if it is one that was not reported.
    fn cause(&self, end: ProcessExit) -> Option<FailureCause> {
        if self.reported {
            return None;
        }
        match (end, self.signalled) {
            (ProcessExit::Code(0), _) => None,
            // A SIGKILL from another process, for example from the kernel when memory is exhausted.
            (ProcessExit::Signal(9), None | Some(StopSignal::Terminate)) => {
                Some(FailureCause::Signal(9, signal_name(9)))
            }
            (_, Some(_)) => None,
            (ProcessExit::Code(code), None) => Some(FailureCause::ExitCode(code)),
            (ProcessExit::Signal(number), None) => {
                Some(FailureCause::Signal(number, signal_name(number)))
            }
        }
    }
}

#[cfg(test)]
mod tests;

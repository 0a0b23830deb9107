//! [`Roster`]: what is known of each rank, and who failed first. Pure: time is an argument.
//!
//! A process's end and its own report of it come by different ways and in any order; a worker that
//! lost a peer may be heard before the peer's death is seen. So an end is judged when the rank's
//! connection is drained, and a secondary report waits a little for a primary one.

use std::net::SocketAddr;
use std::time::Duration;

use ronde_core::{Event, Rank, Step, WorldSize};

use crate::launcher::{Started, StopSignal};
use crate::outcome::{Cause, End, Failure, signal_name};

/// How long a report may come after the end of its process, and a primary failure after a secondary
/// one.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);

/// One rank.
#[derive(Default)]
pub(crate) struct Member {
    /// The process, once started.
    pub(crate) started: Option<Started>,
    /// When and how it ended.
    pub(crate) ended: Option<(Duration, End)>,
    /// Where its data plane listens.
    pub(crate) ready: Option<SocketAddr>,
    /// Whether its connection is open.
    linked: bool,
    /// The strongest signal that it got while it ran.
    told: Option<StopSignal>,
    last_step: Option<Step>,
    /// Whether its end needs no more thought.
    judged: bool,
    reported: bool,
}

/// A failure and what its rank in the order depends on.
struct Noted {
    at: Duration,
    secondary: bool,
    failure: Failure,
}

/// All ranks of a job.
pub(crate) struct Roster {
    members: Vec<Member>,
    failures: Vec<Noted>,
}

impl Roster {
    pub(crate) fn new(world_size: WorldSize) -> Self {
        Self {
            members: world_size.ranks().map(|_| Member::default()).collect(),
            failures: Vec::new(),
        }
    }

    pub(crate) fn member(&self, rank: Rank) -> &Member {
        &self.members[rank.index()]
    }

    pub(crate) fn started(&mut self, rank: Rank, started: Started) {
        self.members[rank.index()].started = Some(started);
    }

    /// Another process takes a place: nothing of the one before it counts any more.
    pub(crate) fn vacate(&mut self, rank: Rank) {
        self.members[rank.index()] = Member::default();
    }

    /// The failures that no rank has told of itself, in a job that can go on without it: they count no
    /// more as failures of the job.
    pub(crate) fn forgive(&mut self, rank: Rank) {
        self.failures.retain(|noted| noted.failure.rank != rank);
    }

    pub(crate) fn linked(&mut self, rank: Rank) {
        self.members[rank.index()].linked = true;
    }

    pub(crate) fn unlinked(&mut self, rank: Rank) {
        self.members[rank.index()].linked = false;
    }

    pub(crate) fn ready(&mut self, rank: Rank, address: SocketAddr) {
        self.members[rank.index()].ready = Some(address);
    }

    pub(crate) fn ended(&mut self, rank: Rank, end: End, now: Duration) {
        self.members[rank.index()].ended = Some((now, end));
    }

    /// A signal is about to be sent to a rank.
    pub(crate) fn told(&mut self, rank: Rank, signal: StopSignal) {
        let member = &mut self.members[rank.index()];
        if member.ended.is_none() {
            member.told = member.told.max(Some(signal));
        }
    }

    /// Looks at an event of a rank.
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
                self.fail(rank, Cause::Reported(event.clone()), *secondary, now);
            }
            _ => {}
        }
    }

    /// Notes a failure.
    pub(crate) fn fail(&mut self, rank: Rank, cause: Cause, secondary: bool, at: Duration) {
        let member = &self.members[rank.index()];
        let failure = Failure {
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
        self.failures.push(Noted {
            at,
            secondary,
            failure,
        });
    }

    /// Looks at the processes that have ended; returns the ranks that failed without a word, and of
    /// what.
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

    /// Whether the others have to be ended: there is a primary failure, or one that waited long
    /// enough for its cause to show.
    pub(crate) fn must_stop(&self, now: Duration) -> bool {
        self.failures
            .iter()
            .any(|noted| !noted.secondary || now >= noted.at + SETTLE)
    }

    /// Whether anything has failed that counts.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The first failure in one line.
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

    /// Whether a rank has ended and its end is understood.
    pub(crate) fn judged(&self, rank: Rank) -> bool {
        self.members[rank.index()].judged
    }

    /// Whether a connection is open.
    pub(crate) fn any_linked(&self) -> bool {
        self.members.iter().any(|member| member.linked)
    }

    /// The failures in the order of time, and the index of the first one that is not secondary
    /// (of the first one when all are).
    pub(crate) fn into_failures(mut self) -> (Vec<Failure>, Option<usize>) {
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

impl Member {
    /// The last step that it told of.
    pub(crate) fn last_step(&self) -> Option<Step> {
        self.last_step
    }

    /// Why this end is a failure, if it is one that nobody has told of.
    fn cause(&self, end: End) -> Option<Cause> {
        if self.reported {
            return None;
        }
        match (end, self.told) {
            (End::Code(0), _) => None,
            // SIGKILL from somebody else, the kernel out of memory for one.
            (End::Signal(9), None | Some(StopSignal::Terminate)) => {
                Some(Cause::Signal(9, signal_name(9)))
            }
            (_, Some(_)) => None,
            (End::Code(code), None) => Some(Cause::ExitCode(code)),
            (End::Signal(number), None) => Some(Cause::Signal(number, signal_name(number))),
        }
    }
}

#[cfg(test)]
mod tests;

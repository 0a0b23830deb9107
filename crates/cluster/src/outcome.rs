//! [`JobOutcome`]: how a job ended, with its failures.

use ronde_core::{Event, Rank, Step};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The cause of a rank's failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum FailureCause {
    /// The process exited with this code and without a report.
    ExitCode(i32),
    /// A signal that the supervisor had not sent ended the process: number and name.
    Signal(i32, &'static str),
    /// The worker reported the failure with an [`Event::WorkerFailed`].
    Reported(Event),
    /// Not all ranks were ready in time, or one ended before it was ready.
    RendezvousTimeout {
        /// The ranks that were not ready.
        missing: Vec<Rank>,
    },
    /// The process could not be started.
    Spawn(std::io::Error),
    /// The supervisor lacked a resource, such as a socket or random numbers.
    Supervisor(String),
}

/// The failure of one rank.
#[derive(Debug)]
pub struct WorkerFailure {
    /// The rank.
    pub rank: Rank,
    /// The host that it ran on.
    pub host: String,
    /// Its process id; 0 if it was never started.
    pub pid: u32,
    /// The cause.
    pub cause: FailureCause,
    /// The last step that it reported.
    pub last_step: Option<Step>,
    /// The last lines of its standard error, at most ten.
    pub last_lines: Vec<String>,
}

impl WorkerFailure {
    /// Returns whether the rank only observed the failure of another one.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        matches!(
            self.cause,
            FailureCause::Reported(Event::WorkerFailed {
                secondary: true,
                ..
            })
        )
    }
}

/// The result of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobExit {
    /// Every rank ended with exit code 0.
    Done,
    /// A rank failed: the failure with this index in [`JobOutcome::failures`] was first.
    Failed(usize),
    /// A stop was requested.
    Stopped {
        /// The signal of the request, 2 for Ctrl-C.
        signal: i32,
    },
}

/// The end of a job. When it is returned, no process of the job is left.
#[derive(Debug)]
pub struct JobOutcome {
    /// The result.
    pub exit: JobExit,
    /// All failures in the order in which they were noticed, without ranks that ended because they
    /// were stopped.
    pub failures: Vec<WorkerFailure>,
    /// Ranks that did not end when stopped and were killed after the grace period. They had been
    /// stopped or hung, and are the likely cause if other ranks timed out.
    pub unresponsive: Vec<Rank>,
}

impl JobOutcome {
    /// Returns the first failure that was not caused by another one.
    #[must_use]
    pub fn first_failure(&self) -> Option<&WorkerFailure> {
        match self.exit {
            JobExit::Failed(index) => self.failures.get(index),
            _ => None,
        }
    }

    /// Returns the exit code for a command that ran the job: 0 if it is done; the code of the first
    /// failed rank; 128 + signal if a signal ended that rank or the job; 2 for a program that could
    /// not be started or an error of the user; 3 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self.exit {
            JobExit::Done => 0,
            JobExit::Stopped { signal } => 128 + signal,
            JobExit::Failed(_) => self.first_failure().map_or(3, |f| match &f.cause {
                FailureCause::ExitCode(code @ 1..=255) => *code,
                FailureCause::Signal(signal, _) => 128 + signal,
                FailureCause::Spawn(_)
                | FailureCause::Reported(Event::WorkerFailed {
                    user_error: true, ..
                }) => 2,
                _ => 3,
            }),
        }
    }
}

impl std::fmt::Display for FailureCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ExitCode(code) => write!(f, "exit code {code}"),
            Self::Signal(number, name) => write!(f, "killed by signal {number} ({name})"),
            Self::Reported(Event::WorkerFailed { message, .. }) => f.write_str(message),
            Self::Reported(_) => f.write_str("reported a failure"),
            Self::RendezvousTimeout { missing } => {
                write!(f, "not ready at the rendezvous: {}", ranks(missing))
            }
            Self::Spawn(error) => write!(f, "cannot start: {error}"),
            Self::Supervisor(problem) => f.write_str(problem),
        }
    }
}

/// Returns `rank 3` or `ranks 1, 2 and 6 more`.
pub(crate) fn ranks(ranks: &[Rank]) -> String {
    const SPELLED: usize = 8;
    let numbers: Vec<String> = ranks.iter().take(SPELLED).map(Rank::to_string).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    match ranks.len().saturating_sub(SPELLED) {
        0 => format!("{word} {}", numbers.join(", ")),
        more => format!("{word} {} and {more} more", numbers.join(", ")),
    }
}

/// Returns the name of a Linux signal, or `"unknown"`.
#[must_use]
pub fn signal_name(number: i32) -> &'static str {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    usize::try_from(number - 1)
        .ok()
        .and_then(|index| NAMES.get(index))
        .copied()
        .unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_names() {
        for (number, name) in [
            (1, "SIGHUP"),
            (9, "SIGKILL"),
            (11, "SIGSEGV"),
            (15, "SIGTERM"),
            (31, "SIGSYS"),
            (0, "unknown"),
            (-5, "unknown"),
            (64, "unknown"),
        ] {
            assert_eq!(signal_name(number), name, "{number}");
        }
    }

    #[test]
    fn exit_codes_follow_the_first_failure() {
        let failed = |cause| {
            let failure = WorkerFailure {
                rank: Rank(1),
                host: "here".into(),
                pid: 7,
                cause,
                last_step: None,
                last_lines: Vec::new(),
            };
            JobOutcome {
                exit: JobExit::Failed(0),
                failures: vec![failure],
                unresponsive: Vec::new(),
            }
            .exit_code()
        };
        let report = |user_error| Event::WorkerFailed {
            rank: Rank(1),
            message: "no".into(),
            last_step: None,
            secondary: false,
            user_error,
        };
        assert_eq!(failed(FailureCause::ExitCode(17)), 17);
        assert_eq!(failed(FailureCause::Signal(9, "SIGKILL")), 137);
        assert_eq!(failed(FailureCause::Reported(report(true))), 2);
        assert_eq!(failed(FailureCause::Reported(report(false))), 3);
        assert_eq!(
            failed(FailureCause::RendezvousTimeout {
                missing: vec![Rank(1)]
            }),
            3
        );
        assert_eq!(
            failed(FailureCause::Spawn(std::io::ErrorKind::NotFound.into())),
            2
        );
        let stopped = JobOutcome {
            exit: JobExit::Stopped { signal: 2 },
            failures: Vec::new(),
            unresponsive: Vec::new(),
        };
        assert_eq!(stopped.exit_code(), 130);
    }

    #[test]
    fn a_long_list_of_missing_ranks_is_shortened() {
        let cause = FailureCause::RendezvousTimeout {
            missing: (0..10).map(Rank).collect(),
        };
        assert_eq!(
            cause.to_string(),
            "not ready at the rendezvous: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
        );
        let cause = FailureCause::RendezvousTimeout {
            missing: vec![Rank(3)],
        };
        assert_eq!(cause.to_string(), "not ready at the rendezvous: rank 3");
    }
}

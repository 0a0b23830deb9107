//! [`Outcome`]: how a job ended, its first failure first.

use ronde_core::{Event, Rank, Step};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It called exit.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Why a rank counts as failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The process ended with this code and without a report.
    ExitCode(i32),
    /// A signal that the supervisor had not sent ended the process: number and name.
    Signal(i32, &'static str),
    /// The worker said so itself, an [`Event::WorkerFailed`].
    Reported(Event),
    /// Not all ranks were ready in time, or one ended before it was.
    RendezvousTimeout {
        /// The ranks that were not ready.
        missing: Vec<Rank>,
    },
    /// The process could not be started.
    Spawn(std::io::Error),
    /// The supervisor itself lacked something: a socket, a random number.
    Supervisor(String),
}

/// What happened to one rank.
#[derive(Debug)]
pub struct Failure {
    /// Who.
    pub rank: Rank,
    /// The machine that it ran on.
    pub host: String,
    /// Its process; 0 when it never started.
    pub pid: u32,
    /// Why it counts as failed.
    pub cause: Cause,
    /// Last step that it told of.
    pub last_step: Option<Step>,
    /// The last lines of its standard error, at most ten.
    pub last_lines: Vec<String>,
}

impl Failure {
    /// Whether the rank only saw that another one failed.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        matches!(
            self.cause,
            Cause::Reported(Event::WorkerFailed {
                secondary: true,
                ..
            })
        )
    }
}

/// How the job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Every rank ended with exit code 0.
    Done,
    /// A rank failed: the failure with this index in [`Outcome::failures`] came first.
    Failed(usize),
    /// Somebody asked for a stop.
    Stopped {
        /// The signal that asked, 2 for Ctrl-C.
        signal: i32,
    },
}

/// The end of a job. When this is returned, no process of it is left.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub exit: Exit,
    /// All failures in the order in which they were noticed; ranks that ended because they were
    /// told to are not among them.
    pub failures: Vec<Failure>,
    /// Ranks that did not end when they were told to, and were killed after the grace: stopped or
    /// hung, and so the likely cause when others waited in vain.
    pub unresponsive: Vec<Rank>,
}

impl Outcome {
    /// The failure that came first: the first one that was not only the sight of another rank's.
    #[must_use]
    pub fn first_failure(&self) -> Option<&Failure> {
        match self.exit {
            Exit::Failed(index) => self.failures.get(index),
            _ => None,
        }
    }

    /// The exit code for a command that ran the job: 0 when done; the code of the first failed
    /// rank, 128 + signal when a signal ended it or asked for the stop; 2 for a program that could
    /// not be started or an error that the user can mend; 3 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self.exit {
            Exit::Done => 0,
            Exit::Stopped { signal } => 128 + signal,
            Exit::Failed(_) => self.first_failure().map_or(3, |f| match &f.cause {
                Cause::ExitCode(code @ 1..=255) => *code,
                Cause::Signal(signal, _) => 128 + signal,
                Cause::Spawn(_)
                | Cause::Reported(Event::WorkerFailed {
                    user_error: true, ..
                }) => 2,
                _ => 3,
            }),
        }
    }
}

impl std::fmt::Display for Cause {
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

/// `rank 3`, `ranks 1, 2 and 6 more`.
pub(crate) fn ranks(ranks: &[Rank]) -> String {
    const SPELLED: usize = 8;
    let numbers: Vec<String> = ranks.iter().take(SPELLED).map(Rank::to_string).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    match ranks.len().saturating_sub(SPELLED) {
        0 => format!("{word} {}", numbers.join(", ")),
        more => format!("{word} {} and {more} more", numbers.join(", ")),
    }
}

/// The name of a signal of Linux, `"unknown"` for numbers without one.
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
            let failure = Failure {
                rank: Rank(1),
                host: "here".into(),
                pid: 7,
                cause,
                last_step: None,
                last_lines: Vec::new(),
            };
            Outcome {
                exit: Exit::Failed(0),
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
        assert_eq!(failed(Cause::ExitCode(17)), 17);
        assert_eq!(failed(Cause::Signal(9, "SIGKILL")), 137);
        assert_eq!(failed(Cause::Reported(report(true))), 2);
        assert_eq!(failed(Cause::Reported(report(false))), 3);
        assert_eq!(
            failed(Cause::RendezvousTimeout {
                missing: vec![Rank(1)]
            }),
            3
        );
        assert_eq!(failed(Cause::Spawn(std::io::ErrorKind::NotFound.into())), 2);
        let stopped = Outcome {
            exit: Exit::Stopped { signal: 2 },
            failures: Vec::new(),
            unresponsive: Vec::new(),
        };
        assert_eq!(stopped.exit_code(), 130);
    }

    #[test]
    fn many_missing_ranks_are_not_all_spelled() {
        let cause = Cause::RendezvousTimeout {
            missing: (0..10).map(Rank).collect(),
        };
        assert_eq!(
            cause.to_string(),
            "not ready at the rendezvous: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
        );
        let cause = Cause::RendezvousTimeout {
            missing: vec![Rank(3)],
        };
        assert_eq!(cause.to_string(), "not ready at the rendezvous: rank 3");
    }
}

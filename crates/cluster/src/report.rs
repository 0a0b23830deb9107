//! The error report of a failed job: the first failure, its location, its last output and a hint.

use std::fmt::Write;

use ronde_core::Event;

use crate::outcome::{FailureCause, JobExit, JobOutcome, WorkerFailure, ranks};

/// The end of the error of a process that may not open another file.
const TOO_MANY_FILES: &str = "(os error 24)";

/// Maximum number of further failures that are listed.
const OTHERS_MAX: usize = 5;
/// Maximum length of another failure's cause, in characters.
const CAUSE_LETTERS_MAX: usize = 100;

/// The hint for a process that was killed.
const KILLED: &str = "the kernel does this when memory runs out; `dmesg` shows it";
/// The hint for a job whose workers ended too often.
const GIVEN_UP: &str = "find out from the output above why the workers end; `elastic.max_restarts`, or `--max-restarts` \
                        of `ronde run`, limits the restarts of a slot in ten minutes";
/// The same if the last worker was killed.
const KILLED_OFTEN: &str = "the kernel kills processes when memory runs out, and `dmesg` shows it; `elastic.max_restarts`, \
                            or `--max-restarts` of `ronde run`, limits the restarts of a slot in ten minutes";
/// The hint for a worker that the system has refused memory.
const OUT_OF_MEMORY: &str = "a worker needs more memory than it may have: raise the limit (`ulimit -v`, or that of the container), \
                             or use fewer workers or a smaller model or batch";
/// The hint for an elastic job whose program is not part of it.
const NEVER_JOINED: &str = "`--elastic` needs a program that joins the job with `Worker::join`, `Worker::step_loop` or \
                            `Worker::trainer`; start any other program without `--elastic`";

impl JobOutcome {
    /// Returns the full error report without a final line ending; `None` if the job did not fail.
    ///
    /// ```text
    /// error: rank 2 was killed by signal 9 (SIGKILL)
    ///   where: rank 2 on gpu-02, process 4711, after step 17
    ///   its last words on standard error:
    ///     | loading weights
    ///   also failed: rank 0 (exit code 1)
    ///   help: the kernel does this when memory runs out; `dmesg` shows it
    /// ```
    #[must_use]
    pub fn report(&self) -> Option<String> {
        let JobExit::Failed(index) = self.exit else {
            return None;
        };
        let first = self.failures.get(index)?;
        let mut text = headline(first);
        if !matches!(first.cause, FailureCause::Supervisor(_)) {
            let _ = write!(text, "\n  where: {}", location(first));
        }
        if !first.last_lines.is_empty() {
            text.push_str("\n  its last words on standard error:");
            for line in &first.last_lines {
                let _ = write!(text, "\n    | {line}");
            }
        }
        let others: Vec<&WorkerFailure> = self
            .failures
            .iter()
            .enumerate()
            .filter(|(at, failure)| *at != index && failure.rank != first.rank)
            .filter(|(_, failure)| !failure.is_secondary())
            .map(|(_, failure)| failure)
            .collect();
        if !others.is_empty() {
            let _ = write!(text, "\n  also failed: {}", list(first, &others));
        }
        if !self.unresponsive.is_empty() {
            let _ = write!(
                text,
                "\n  look first at {}: it was stopped or hung, did not end on SIGTERM and was killed",
                ranks(&self.unresponsive)
            );
        }
        if let Some(hint) = hint_of_output(first).or_else(|| hint(&first.cause)) {
            let _ = write!(text, "\n  help: {hint}");
        }
        Some(text)
    }
}

/// Returns the first lines: all lines of a worker's own report, indented from the second on.
fn headline(failure: &WorkerFailure) -> String {
    let rank = failure.rank;
    match &failure.cause {
        FailureCause::ExitCode(0) => {
            format!("error: rank {rank} ended too early, with exit code 0")
        }
        FailureCause::ExitCode(code) => format!("error: rank {rank} ended with exit code {code}"),
        FailureCause::Signal(number, name) => {
            format!("error: rank {rank} was killed by signal {number} ({name})")
        }
        FailureCause::Reported(Event::WorkerFailed { message, .. }) => {
            let message = message.trim_end();
            let message = message.strip_prefix("error: ").unwrap_or(message);
            let mut text = format!("error: rank {rank}: ");
            for (at, line) in message.lines().enumerate() {
                match (at, line.starts_with(' ')) {
                    (0, _) => text.push_str(line),
                    (_, true) => drop(write!(text, "\n{line}")),
                    (_, false) => drop(write!(text, "\n  {line}")),
                }
            }
            text
        }
        FailureCause::RendezvousTimeout { .. } => {
            format!(
                "error: the workers did not come together: {}",
                failure.cause
            )
        }
        FailureCause::Spawn(cause) => format!("error: rank {rank} cannot be started: {cause}"),
        FailureCause::Reported(_) | FailureCause::Supervisor(_) => {
            format!("error: {}", failure.cause)
        }
    }
}

fn location(failure: &WorkerFailure) -> String {
    let mut text = format!("rank {} on {}", failure.rank, failure.host);
    if failure.pid != 0 {
        let _ = write!(text, ", process {}", failure.pid);
    }
    if let Some(step) = failure.last_step {
        let _ = write!(text, ", after step {step}");
    }
    text
}

/// Lists the other failed ranks with their causes.
fn list(first: &WorkerFailure, others: &[&WorkerFailure]) -> String {
    let line = |failure: &WorkerFailure| {
        let cause = failure.cause.to_string();
        cause.lines().next().unwrap_or_default().to_owned()
    };
    let first = line(first);
    let mut named: Vec<String> = others
        .iter()
        .take(OTHERS_MAX)
        .map(|failure| {
            let mut cause = line(failure);
            if cause == first {
                cause = "the same".to_owned();
            } else if let Some((end, _)) = cause.char_indices().nth(CAUSE_LETTERS_MAX) {
                cause.replace_range(end.., "...");
            }
            format!("rank {} ({cause})", failure.rank)
        })
        .collect();
    if let Some(more @ 1..) = others.len().checked_sub(OTHERS_MAX) {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}

/// Returns the hint for the last output of a failed worker.
fn hint_of_output(failure: &WorkerFailure) -> Option<&'static str> {
    let is_allocation =
        |line: &String| line.contains("memory allocation of ") && line.contains(" failed");
    let lines = &failure.last_lines;
    lines.iter().any(is_allocation).then_some(OUT_OF_MEMORY)
}

fn hint(cause: &FailureCause) -> Option<&'static str> {
    match cause {
        FailureCause::Signal(9, _) => Some(KILLED),
        // The worker that reports it has seen the end of another one.
        FailureCause::Reported(Event::WorkerFailed { message, .. })
            if !message.contains("help:") =>
        {
            hint_of_job(message)
        }
        FailureCause::Supervisor(problem) => hint_of_job(problem),
        FailureCause::Signal(4 | 7 | 8 | 11, _) => {
            Some("the program has a bug, or was built for another CPU")
        }
        FailureCause::ExitCode(101) => Some(
            "this is the exit code of a Rust panic, a bug of the program; its output has the location",
        ),
        FailureCause::ExitCode(126 | 127) => {
            Some("a shell cannot run the program: is it installed and in PATH?")
        }
        FailureCause::Spawn(error) => Some(match error.kind() {
            std::io::ErrorKind::NotFound => {
                "is the program installed and in PATH? One of this folder is started as ./program"
            }
            std::io::ErrorKind::PermissionDenied => {
                "is the file executable? `chmod +x` makes it so"
            }
            std::io::ErrorKind::WouldBlock => {
                "the system has too many processes: start fewer workers"
            }
            _ if error.to_string().contains(TOO_MANY_FILES) => {
                "raise the limit of open files, such as with `ulimit -n 4096`, or start fewer workers"
            }
            _ => return None,
        }),
        FailureCause::RendezvousTimeout { .. } => {
            Some("a worker that is slow to start needs a longer limit; see its output above")
        }
        _ => None,
    }
}

/// Returns the hint for the reason of the end of a whole job.
fn hint_of_job(reason: &str) -> Option<&'static str> {
    let (is_killed, is_given_up) = (
        reason.contains("killed (SIGKILL)"),
        reason.contains("abandoned after"),
    );
    match (is_killed, is_given_up) {
        _ if reason.contains("without joining the job") => Some(NEVER_JOINED),
        (true, true) => Some(KILLED_OFTEN),
        (true, false) => Some(KILLED),
        (false, true) => Some(GIVEN_UP),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::{Rank, Step};

    use super::*;
    use crate::outcome::signal_name;

    fn failure(rank: u32, cause: FailureCause) -> WorkerFailure {
        WorkerFailure {
            rank: Rank(rank),
            host: "gpu-02".into(),
            pid: 4711,
            cause,
            last_step: None,
            last_lines: Vec::new(),
        }
    }

    fn report(exit: JobExit, failures: Vec<WorkerFailure>) -> Option<String> {
        JobOutcome {
            exit,
            failures,
            unresponsive: Vec::new(),
        }
        .report()
    }

    #[test]
    fn the_first_failure_is_reported_in_full_and_the_others_by_name() {
        let mut killed = failure(2, FailureCause::Signal(9, signal_name(9)));
        killed.last_step = Some(Step(17));
        killed.last_lines = vec!["loading weights".into(), "done".into()];
        let others = (3..10).map(|rank| failure(rank, FailureCause::ExitCode(1)));
        let failures = std::iter::once(failure(0, FailureCause::ExitCode(1)))
            .chain([killed])
            .chain(others)
            .collect();
        let expected = "\
error: rank 2 was killed by signal 9 (SIGKILL)
  where: rank 2 on gpu-02, process 4711, after step 17
  its last words on standard error:
    | loading weights
    | done
  also failed: rank 0 (exit code 1), rank 3 (exit code 1), rank 4 (exit code 1), rank 5 (exit code 1), rank 6 (exit code 1), and 3 more
  help: the kernel does this when memory runs out; `dmesg` shows it";
        assert_eq!(report(JobExit::Failed(1), failures).unwrap(), expected);
    }

    #[test]
    fn a_worker_that_gets_no_memory_has_the_hint() {
        let mut aborted = failure(1, FailureCause::Signal(6, signal_name(6)));
        aborted.last_lines = vec!["memory allocation of 1626624 bytes failed".into()];
        let text = report(JobExit::Failed(0), vec![aborted]).unwrap();
        assert!(
            text.contains("help: a worker needs more memory than it may have"),
            "{text}"
        );
    }

    #[test]
    fn those_who_only_saw_it_are_not_listed_and_who_hung_is() {
        let waited = |rank, secondary| {
            let event = Event::WorkerFailed {
                rank: Rank(rank),
                message: "waited 2.0 s for group rank 1".into(),
                last_step: None,
                secondary,
                user_error: false,
            };
            failure(rank, FailureCause::Reported(event))
        };
        let outcome = JobOutcome {
            exit: JobExit::Failed(0),
            failures: vec![waited(3, false), waited(2, true), waited(1, false)],
            unresponsive: vec![Rank(0)],
        };
        let expected = "\
error: rank 3: waited 2.0 s for group rank 1
  where: rank 3 on gpu-02, process 4711
  also failed: rank 1 (the same)
  look first at rank 0: it was stopped or hung, did not end on SIGTERM and was killed";
        assert_eq!(outcome.report().unwrap(), expected);
    }

    #[test]
    fn a_workers_own_report_keeps_its_lines() {
        let message = "error: loss is NaN at step 3\n  where: rank 1\nhelp: lower the rate\n";
        let cause = FailureCause::Reported(Event::WorkerFailed {
            rank: Rank(1),
            message: message.into(),
            last_step: None,
            secondary: false,
            user_error: false,
        });
        let expected = "\
error: rank 1: loss is NaN at step 3
  where: rank 1
  help: lower the rate
  where: rank 1 on gpu-02, process 4711";
        assert_eq!(
            report(JobExit::Failed(0), vec![failure(1, cause)]).unwrap(),
            expected
        );
    }

    #[test]
    fn a_job_that_lost_a_killed_worker_has_the_hint() {
        let cause = |message: &str| {
            FailureCause::Reported(Event::WorkerFailed {
                rank: Rank(1),
                message: message.into(),
                last_step: None,
                secondary: false,
                user_error: false,
            })
        };
        let text =
            |message: &str| report(JobExit::Failed(0), vec![failure(1, cause(message))]).unwrap();
        let lost = text("worker 0 on a killed (SIGKILL); then: waiting for workers");
        assert!(
            lost.ends_with("when memory runs out; `dmesg` shows it"),
            "{lost}"
        );
        let other = text("worker 0 on a exited with code 1; then: waiting for workers");
        assert!(!other.contains("help:"), "{other}");
        let often = text("worker 0 on a killed (SIGKILL); slot 0 abandoned after 5 restarts");
        assert!(
            often.contains("`dmesg`") && often.contains("`elastic.max_restarts`"),
            "{often}"
        );
        let failing = text("slot 0 abandoned after 5 restarts: the last worker exited with code 1");
        assert!(failing.contains("help: find out"), "{failing}");
    }

    #[test]
    fn a_program_that_is_not_there_has_a_hint_and_success_has_no_report() {
        let mut missing = failure(0, FailureCause::Spawn(std::io::ErrorKind::NotFound.into()));
        missing.pid = 0;
        let full = std::io::Error::other(std::io::Error::from_raw_os_error(24).to_string());
        let text = report(
            JobExit::Failed(0),
            vec![failure(0, FailureCause::Spawn(full))],
        );
        assert!(
            text.unwrap()
                .contains("help: raise the limit of open files")
        );
        let text = report(JobExit::Failed(0), vec![missing]).unwrap();
        assert!(text.contains("rank 0 cannot be started"), "{text}");
        assert!(text.contains("help: is the program installed"), "{text}");
        assert!(!text.contains("process"), "{text}");
        assert_eq!(report(JobExit::Done, Vec::new()), None);
        assert_eq!(report(JobExit::Stopped { signal: 2 }, Vec::new()), None);
    }
}

//! The commands of Slurm, each within a time limit: some of them wait for ever when no controller answers.

use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::SubmitError;
use crate::limited::wait;

/// Time limit for the answer of a command.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The beginning of the problem of a command that did not answer in time.
const NO_ANSWER: &str = "no answer";
/// Parts of the problems of a command whose request may have reached the controller.
const MAY_HAVE_ARRIVED: [&str; 4] = [
    NO_ANSWER,
    "Socket timed out",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
];
/// Parts of the problems of `sbatch` that do not concern the job: those of its configuration, its network and its keys.
const ABOUT_SLURM: [&str; 9] = [
    "configuration source",
    "uthentication",
    "credential",
    "munge",
    "plugin",
    "standby mode",
    "onnection",
    "ommunication",
    "I/O error",
];
/// A part of the problem of a command that finds no controller.
const NO_CONTACT: &str = "Unable to contact slurm controller";

/// Returns whether a command has failed although the controller may have executed it.
pub(super) fn may_have_arrived(error: &SubmitError) -> bool {
    match error {
        SubmitError::Host { problem, .. } => {
            MAY_HAVE_ARRIVED.iter().any(|part| problem.contains(part))
        }
        _ => false,
    }
}

/// Returns the error of a command. It is temporary if no controller answers now.
fn failure(program: &str, problem: String) -> SubmitError {
    let mut parts = MAY_HAVE_ARRIVED.iter().chain([&NO_CONTACT]);
    match parts.any(|part| problem.contains(part)) {
        true => SubmitError::Host {
            host: "Slurm".to_owned(),
            problem: format!("`{program}`: {problem}"),
            help: None,
            is_temporary: true,
        },
        false => SubmitError::Program {
            program: program.to_owned(),
            problem,
        },
    }
}

/// Returns the error of `sbatch` as a mistake of the user, if it refuses the options of the job, and unchanged otherwise.
pub(super) fn refusal(error: SubmitError) -> SubmitError {
    match error {
        SubmitError::Program { problem, .. } if refuses(&problem) => SubmitError::invalid(
            format!("cannot submit the job to Slurm: {problem}"),
            "correct the target: `partition`, `account`, `time` and `options` become options of sbatch; \
             `ronde submit --dry-run` prints the script",
        ),
        error => error,
    }
}

/// Returns whether a problem is an answer of `sbatch` about the options of a job.
fn refuses(problem: &str) -> bool {
    let is_of_sbatch = problem.lines().any(|line| line.starts_with("sbatch: "));
    is_of_sbatch && !ABOUT_SLURM.iter().any(|part| problem.contains(part))
}

/// Runs a command of Slurm and returns its output.
pub(super) fn call(program: &str, arguments: &[&str]) -> Result<String, SubmitError> {
    let failed = |problem: String| failure(program, problem);
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(format!(
            "{error}\n  help: submit from a machine with the commands of Slurm, such as a login node"
        )),
        _ => failed(error.to_string()),
    };
    let (mut out, mut problems) = (
        tempfile::tempfile().map_err(io)?,
        tempfile::tempfile().map_err(io)?,
    );
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(io)?)
        .stderr(problems.try_clone().map_err(io)?)
        .spawn()
        .map_err(io)?;
    let code = wait(&mut child, ANSWER_MAX);
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
        read.map(|_| String::from_utf8_lossy(&bytes).into_owned())
    };
    let (out, problems) = (
        read(&mut out).map_err(io)?,
        read(&mut problems).map_err(io)?,
    );
    match code {
        Some(0) => Ok(out),
        Some(_) => Err(failed(problems.trim().to_owned())),
        None => Err(failed(format!(
            "{NO_ANSWER} within {} s",
            ANSWER_MAX.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::Recovery;

    use super::*;

    #[test]
    fn a_controller_that_does_not_answer_may_answer_later() {
        for (problem, is_temporary, has_arrived) in [
            (
                "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
                true,
                false,
            ),
            ("no answer within 30 s", true, true),
            (
                "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
                true,
                true,
            ),
            ("squeue: error: Invalid user: x", false, false),
        ] {
            let error = failure("sbatch", problem.to_owned());
            assert_eq!(
                error.recovery() == Recovery::Retry,
                is_temporary,
                "{problem}"
            );
            assert_eq!(may_have_arrived(&error), has_arrived, "{problem}");
        }
    }

    #[test]
    fn options_that_sbatch_refuses_are_a_mistake_in_the_target() {
        for (problem, is_refusal) in [
            (
                "sbatch: error: invalid partition specified: gpu\nsbatch: error: Batch job submission failed: \
                 Invalid partition name specified",
                true,
            ),
            ("sbatch: error: Invalid --time specification", true),
            (
                "sbatch: unrecognized option '--foo=x'\nTry \"sbatch --help\" for more information",
                true,
            ),
            (
                "No such file or directory (os error 2)\n  help: submit",
                false,
            ),
            ("", false),
            (
                "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a \
                 configuration source",
                false,
            ),
            (
                "sbatch: error: Batch job submission failed: Protocol authentication error",
                false,
            ),
            (
                "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
                false,
            ),
            (
                "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
                false,
            ),
        ] {
            let error = refusal(failure("sbatch", problem.to_owned()));
            let is_invalid = matches!(error, SubmitError::Invalid { .. });
            assert_eq!(is_invalid, is_refusal, "{problem}");
            let shown = error.to_string();
            assert!(shown.contains(problem), "{shown}");
            assert_eq!(shown.contains("help: correct the target"), is_refusal);
        }
    }
}

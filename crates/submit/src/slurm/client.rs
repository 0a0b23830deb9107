//! The commands of Slurm, each within a time limit: some of them wait for ever when no controller answers.

use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::SubmitError;
use crate::limited::wait;

/// Time limit for the answer of a command.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The beginning of the problem of a command that did not answer in time.
pub(super) const NO_ANSWER: &str = "no answer";

/// Runs a command of Slurm and returns its output.
pub(super) fn call(program: &str, arguments: &[&str]) -> Result<String, SubmitError> {
    let failed = |problem: String| SubmitError::Program {
        program: program.to_owned(),
        problem,
    };
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

//! Runs commands in pods: their output arrives on channels, and their exit code as a status of the API.

use std::io::Write;

use serde_json::Value;

use super::api::{ApiFailure, ClusterApi};
use super::manifest::CONTAINER;
use crate::error::SubmitError;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// Runs a command in a pod. Passes its output to `out`, and its errors to standard error. Returns its exit code.
pub(super) fn run(
    api: &ClusterApi,
    pod: &str,
    command: &[String],
    out: &mut dyn Write,
) -> Result<i32, SubmitError> {
    let mut status = Vec::new();
    let mut receive = |channel: u8, bytes: &[u8]| {
        match channel {
            STDOUT => out.write_all(bytes).and_then(|()| out.flush()),
            STDERR => std::io::stderr().write_all(bytes),
            STATUS => {
                status.extend_from_slice(bytes);
                Ok(())
            }
            _ => Ok(()),
        }
        .map_err(ApiFailure::Output)
    };
    let ran = api.exec(pod, CONTAINER, command, &mut receive);
    ran.map_err(|failure| api.failed(failure))?;
    if status.is_empty() {
        return Err(api.interrupted(format!(
            "pod {pod}: the connection ended before the command"
        )));
    }
    exit_code(&status).map_err(|problem| api.problem(format!("pod {pod}: {problem}")))
}

/// Runs a command in a pod whose output and exit code are not needed.
pub(super) fn start(api: &ClusterApi, pod: &str, command: &[String]) -> Result<(), ApiFailure> {
    api.exec(pod, CONTAINER, command, &mut |_: u8, _: &[u8]| Ok(()))
}

/// Returns the exit code in the status at the end of a command.
fn exit_code(status: &[u8]) -> Result<i32, String> {
    let status: Value = serde_json::from_slice(status).map_err(|error| error.to_string())?;
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes.and_then(|causes| {
        let code = causes.iter().find(|cause| cause["reason"] == "ExitCode")?;
        code["message"].as_str()?.parse().ok()
    });
    code.ok_or_else(|| {
        let message = status["message"].as_str().unwrap_or("the command failed");
        message.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_in_the_status() {
        assert_eq!(exit_code(br#"{"status":"Success"}"#), Ok(0));
        let failed = br#"{"status":"Failure","reason":"NonZeroExitCode","message":"command terminated with non-zero exit code",
            "details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(exit_code(failed), Ok(3));
        let refused = br#"{"status":"Failure","message":"container not found"}"#;
        assert_eq!(exit_code(refused), Err("container not found".to_owned()));
    }
}

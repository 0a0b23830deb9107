//! [`RayApi`]: requests to the dashboard of a cluster of Ray.

use std::io::Write;
use std::time::Duration;

use serde_json::Value;

use super::{ASK_EVERY, RayAccess, RaySettings};
use crate::error::SubmitError;
use crate::interruptions::Interruptions;
use crate::kubernetes::{ApiFailure, Connection, RenewedConnection};
use crate::skipping_writer::SkippingWriter;
use crate::state::JobState;

/// Time limit for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Time limit for the agent of a node to be there.
const AGENT_MAX: Duration = Duration::from_secs(60);
/// A part of the answer of a cluster without one.
const NO_AGENT: &str = "No available agent";
/// The largest number of characters of a server's message that are shown.
const MESSAGE_MAX: usize = 600;

/// The dashboard of a cluster.
pub(super) struct RayApi {
    connection: RenewedConnection,
    title: String,
}

impl RayApi {
    /// Reads the token. Sends nothing.
    pub(super) fn open(settings: &RaySettings, access: &RayAccess) -> Result<Self, SubmitError> {
        let title = format!("Ray at {}", settings.address.trim_end_matches('/'));
        let connection = Self::connection(settings, access, &title)?;
        let (again, of_user, name) = (settings.clone(), access.clone(), title.clone());
        let open = move || Self::connection(&again, &of_user, &name);
        Ok(Self {
            connection: RenewedConnection::new(connection, Box::new(open)),
            title,
        })
    }

    fn connection(
        settings: &RaySettings,
        access: &RayAccess,
        title: &str,
    ) -> Result<Connection, SubmitError> {
        let read = |path: &std::path::PathBuf| {
            std::fs::read_to_string(path).map_err(SubmitError::file("read", path))
        };
        let token = match (&settings.token_file, &access.token, &access.token_file) {
            (Some(file), ..) => Some(read(file)?),
            (None, Some(token), _) => Some(token.clone()),
            (None, None, Some(file)) if file.exists() => Some(read(file)?),
            _ => None,
        };
        let authority = settings.authority.as_ref().map(read).transpose()?;
        let address = settings.address.trim_end_matches('/');
        if !(address.starts_with("http://") || address.starts_with("https://")) {
            return Err(SubmitError::invalid(
                format!(
                    "invalid `address` of the target `{}`",
                    address.escape_debug()
                ),
                "expected the address of the dashboard of Ray, such as http://head:8265",
            ));
        }
        let token = token.map(|token| token.trim().to_owned());
        Connection::to(title, address, authority, token)
    }

    /// Returns an error about the cluster.
    pub(super) fn problem(&self, problem: String) -> SubmitError {
        SubmitError::Host {
            host: self.title.clone(),
            problem,
            help: None,
            is_temporary: false,
        }
    }

    fn unreachable(&self, problem: String) -> SubmitError {
        SubmitError::Host {
            host: self.title.clone(),
            problem,
            help: Some("is the dashboard of Ray there? Its port is 8265 by default".to_owned()),
            is_temporary: true,
        }
    }

    /// Sends a request and returns the body of the answer; `None` for status 404.
    fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Option<Vec<u8>>, SubmitError> {
        let sent = self.connection.request(|connection| {
            let sent = connection.send(method, path, body.clone(), ANSWER_MAX);
            match sent.map_err(ApiFailure::Unreachable)? {
                (code @ 401, bytes) => Err(ApiFailure::Status {
                    code,
                    message: String::from_utf8_lossy(&bytes).into_owned(),
                }),
                answer => Ok(answer),
            }
        });
        let (code, bytes) = match sent {
            Ok(answer) => answer,
            Err(ApiFailure::Status { code, message }) => (code, message.into_bytes()),
            Err(ApiFailure::Unreachable(problem)) => return Err(self.unreachable(problem)),
            Err(ApiFailure::Output(error)) => return Err(self.unreachable(error.to_string())),
        };
        match code {
            200..300 => Ok(Some(bytes)),
            404 => Ok(None),
            code => {
                let text = String::from_utf8_lossy(&bytes);
                // Ray answers with the stack of its server, whose last line has the error.
                let lines: Vec<&str> = text
                    .lines()
                    .filter(|line| !line.trim().is_empty())
                    .collect();
                let text = lines.last().copied().unwrap_or_default().trim();
                let help = matches!(code, 401 | 403).then(|| {
                    "the cluster needs a token: set `token_file` of the target, or RAY_AUTH_TOKEN".to_owned()
                });
                Err(SubmitError::Host {
                    host: self.title.clone(),
                    problem: format!(
                        "it answers with status {code}: {}",
                        text.chars().take(MESSAGE_MAX).collect::<String>()
                    ),
                    help,
                    is_temporary: matches!(code, 429 | 502..=504),
                })
            }
        }
    }

    fn json(&self, bytes: &[u8]) -> Result<Value, SubmitError> {
        serde_json::from_slice(bytes)
            .map_err(|error| self.problem(format!("its answer is not JSON: {error}")))
    }

    /// Returns whether the cluster has a package.
    pub(super) fn has_package(&self, name: &str) -> Result<bool, SubmitError> {
        let found = self.call("GET", &format!("api/packages/gcs/{name}"), None)?;
        Ok(found.is_some())
    }

    /// Sends a package, which the cluster keeps while jobs use it.
    pub(super) fn put_package(&self, name: &str, bytes: Vec<u8>) -> Result<(), SubmitError> {
        let body = Some(("application/octet-stream", bytes));
        self.found(self.call("PUT", &format!("api/packages/gcs/{name}"), body)?)
    }

    /// Submits a job. A cluster that has just been started has no agent for it yet; it is asked again for a while.
    pub(super) fn submit(&self, request: &Value) -> Result<(), SubmitError> {
        let bytes = request.to_string().into_bytes();
        let mut result = Ok(None);
        ronde_clock::wait_until_every(AGENT_MAX, ASK_EVERY, || {
            result = self.call(
                "POST",
                "api/jobs/",
                Some(("application/json", bytes.clone())),
            );
            !matches!(&result, Err(error) if error.to_string().contains(NO_AGENT))
        });
        self.found(result?)
    }

    fn found(&self, answer: Option<Vec<u8>>) -> Result<(), SubmitError> {
        let missing =
            || self.problem("it has no Jobs interface: is this the dashboard of Ray?".to_owned());
        answer.map(|_| ()).ok_or_else(missing)
    }

    /// Returns a job; `None` if there is none of this name.
    pub(super) fn job(&self, id: &str) -> Result<Option<Value>, SubmitError> {
        let found = self.call("GET", &format!("api/jobs/{id}"), None)?;
        found.map(|bytes| self.json(&bytes)).transpose()
    }

    /// Returns all jobs.
    pub(super) fn jobs(&self) -> Result<Vec<Value>, SubmitError> {
        let found = self.call("GET", "api/jobs/", None)?.unwrap_or_default();
        match self.json(&found)? {
            Value::Array(jobs) => Ok(jobs),
            _ => Ok(Vec::new()),
        }
    }

    /// Sends SIGTERM to the processes of a job, and SIGKILL some seconds later.
    pub(super) fn stop(&self, id: &str) -> Result<(), SubmitError> {
        self.call("POST", &format!("api/jobs/{id}/stop"), None)
            .map(|_| ())
    }

    /// Removes a job that has ended from the list; one that does not exist is not a failure.
    pub(super) fn delete(&self, id: &str) -> Result<(), SubmitError> {
        self.call("DELETE", &format!("api/jobs/{id}"), None)
            .map(|_| ())
    }

    /// Returns the output of a job.
    pub(super) fn logs(&self, id: &str) -> Result<String, SubmitError> {
        let found = self.call("GET", &format!("api/jobs/{id}/logs"), None)?;
        let answer = self.json(&found.unwrap_or_else(|| b"{}".to_vec()))?;
        Ok(answer["logs"].as_str().unwrap_or_default().to_owned())
    }

    /// Copies the output of a job to `out` until the job is over.
    pub(super) fn follow(
        &self,
        id: &str,
        interrupted: fn(&SubmitError),
        out: &mut dyn Write,
    ) -> Result<(), SubmitError> {
        let mut shown = 0;
        let mut interruptions = Interruptions::new(interrupted);
        loop {
            let is_over = self.copy_new(id, &mut shown, out);
            if interruptions.pass(is_over)? == Some(true) {
                return Ok(());
            }
            ronde_clock::pause(ASK_EVERY);
        }
    }

    /// Copies the new output of a job to `out` until its connection ends. Returns whether the job is over.
    fn copy_new(
        &self,
        id: &str,
        shown: &mut u64,
        out: &mut dyn Write,
    ) -> Result<bool, SubmitError> {
        let not_written = SubmitError::file("write", "the output".as_ref());
        // Looked at before the output, so that nothing is missed.
        let state = state(self.job(id)?.as_ref(), false);
        let mut rest = SkippingWriter::new(out, *shown);
        if state.is_over() {
            let written = rest.write_all(self.logs(id)?.as_bytes());
            return written.map(|()| true).map_err(not_written);
        }
        let path = format!("api/jobs/{id}/logs/tail");
        let tailed = self
            .connection
            .request(|connection| connection.tail(&path, ANSWER_MAX, &mut rest));
        *shown = rest.seen().max(*shown);
        match tailed {
            // The next request reports a server that does not answer.
            Ok(()) | Err(ApiFailure::Unreachable(_) | ApiFailure::Status { .. }) => Ok(false),
            Err(ApiFailure::Output(cause)) => Err(not_written(cause)),
        }
    }
}

/// Returns the state of a job from its description; `None`: the server has no such job.
pub(super) fn state(job: Option<&Value>, is_cancelled: bool) -> JobState {
    let Some(job) = job else {
        return match is_cancelled {
            true => JobState::Cancelled,
            false => JobState::Lost,
        };
    };
    let message = job["message"].as_str().unwrap_or_default();
    match job["status"].as_str().unwrap_or_default() {
        "PENDING" => JobState::Queued {
            reason: message.lines().next().unwrap_or_default().to_owned(),
        },
        "RUNNING" => JobState::RUNNING,
        "SUCCEEDED" => JobState::Finished,
        "STOPPED" => JobState::Cancelled,
        "FAILED" if is_cancelled => JobState::Cancelled,
        "FAILED" => match exit_code(job, message) {
            Some(code) => JobState::failed(code),
            None => JobState::Lost,
        },
        other => JobState::Unknown {
            problem: format!("Ray reports the status `{}`", other.escape_debug()),
        },
    }
}

/// Returns the exit code of a failed job: a field, or a part of the message in older versions. A process that a signal has
/// ended has a negative one in Python.
fn exit_code(job: &Value, message: &str) -> Option<i32> {
    let field = job["driver_exit_code"].as_i64();
    let in_message = || {
        let (_, rest) = message.split_once("exit code ")?;
        let digits = rest.split(|letter: char| letter != '-' && !letter.is_ascii_digit());
        digits.into_iter().next()?.parse().ok()
    };
    let code = i32::try_from(field.or_else(in_message)?).ok()?;
    Some(if code < 0 { 128 - code } else { code })
}

/// Returns the address of the node on which a job runs or ran.
pub(super) fn node(job: &Value) -> Option<&str> {
    let agent = job["driver_agent_http_address"].as_str()?;
    let (host, _) = agent.strip_prefix("http://")?.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_and_exit_codes_are_those_of_the_entrypoint() {
        let failed = "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\nx";
        let cases = [
            (json!({ "status": "RUNNING" }), false, "running"),
            (json!({ "status": "SUCCEEDED" }), true, "finished"),
            (
                json!({ "status": "FAILED", "driver_exit_code": 2 }),
                false,
                "failed (exit code 2)",
            ),
            (
                json!({ "status": "FAILED", "driver_exit_code": -9 }),
                false,
                "failed (exit code 137)",
            ),
            (
                json!({ "status": "FAILED", "message": failed }),
                false,
                "failed (exit code 3)",
            ),
            (
                json!({ "status": "FAILED", "message": failed }),
                true,
                "cancelled",
            ),
            (
                json!({ "status": "FAILED", "message": "the actor died" }),
                false,
                "lost (its launcher was killed)",
            ),
            (json!({ "status": "STOPPED" }), false, "cancelled"),
            (
                json!({ "status": "PENDING", "message": "waiting for resources\nmore" }),
                false,
                "queued (waiting for resources)",
            ),
        ];
        for (job, is_cancelled, expected) in cases {
            assert_eq!(state(Some(&job), is_cancelled).to_string(), expected);
        }
        assert_eq!(state(None, true), JobState::Cancelled);
        let job = json!({ "driver_agent_http_address": "http://10.0.0.2:52365" });
        assert_eq!(node(&job), Some("10.0.0.2"));
        assert_eq!(node(&json!({})), None);
    }
}

//! [`ClusterApi`]: requests to the API server of a cluster about one namespace.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Connection, KubernetesAccess, KubernetesSettings, RenewedConnection};
use crate::error::SubmitError;

/// Time limit for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The largest number of characters of a server's message that are shown.
const MESSAGE_MAX: usize = 600;
/// The words of the server's message if objects cannot be created because their namespace is being deleted.
const NAMESPACE_ENDS: &str = "is being terminated";

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum ApiFailure {
    /// The server refused it.
    Status {
        /// The HTTP status code.
        code: u16,
        /// The server's message.
        message: String,
    },
    /// The server cannot be reached, or does not answer.
    Unreachable(String),
    /// The output of the request cannot be written here.
    Output(std::io::Error),
}

/// Receives the messages of a command in a pod: a channel and bytes.
pub(super) type ChannelReceiver<'a> = dyn FnMut(u8, &[u8]) -> Result<(), ApiFailure> + 'a;

impl fmt::Display for ApiFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { code, message } => {
                write!(f, "the API server answers with status {code}: {message}")
            }
            Self::Unreachable(problem) => f.write_str(problem),
            Self::Output(cause) => write!(f, "cannot write the output: {cause}"),
        }
    }
}

impl ApiFailure {
    /// Returns the failure for an answer with a status code that is not a success.
    pub(super) fn of(code: u16, body: &[u8]) -> Self {
        let status: Option<Value> = serde_json::from_slice(body).ok();
        let message = status.and_then(|status| Some(status["message"].as_str()?.to_owned()));
        let message = message.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
        Self::Status {
            code,
            message: message.chars().take(MESSAGE_MAX).collect(),
        }
    }
}

/// The API server of a cluster, and a namespace.
pub(super) struct ClusterApi {
    connection: RenewedConnection,
    namespace: String,
    title: String,
    /// The address.
    server: String,
}

impl ClusterApi {
    /// Reads the settings of the cluster. Sends nothing.
    pub(super) fn open(
        settings: &KubernetesSettings,
        access: &KubernetesAccess,
        namespace: Option<&str>,
    ) -> Result<Self, SubmitError> {
        let (connection, title, of_context) = Connection::open(settings, access)?;
        let namespace = namespace.or(settings.namespace.as_deref());
        let server = connection.server().to_owned();
        let (again, of_user) = (settings.clone(), access.clone());
        let open = move || Connection::open(&again, &of_user).map(|(connection, ..)| connection);
        Ok(Self {
            connection: RenewedConnection::new(connection, Box::new(open)),
            namespace: namespace.map_or(of_context, str::to_owned),
            title,
            server,
        })
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the error of a request.
    pub(super) fn failed(&self, failure: ApiFailure) -> SubmitError {
        let (problem, help, is_temporary) = match &failure {
            ApiFailure::Unreachable(problem) => (
                format!("{}: {problem}", self.server),
                Some(
                    "check that the cluster runs and that this is its address; `kubectl cluster-info` asks it too"
                        .to_owned(),
                ),
                true,
            ),
            ApiFailure::Output(cause) => {
                let cause = std::io::Error::new(cause.kind(), cause.to_string());
                return SubmitError::file("write", "the output".as_ref())(cause);
            }
            ApiFailure::Status { code, message } => (
                failure.to_string(),
                self.help(*code, message),
                matches!(*code, 429 | 500..),
            ),
        };
        SubmitError::Host {
            host: self.title.clone(),
            problem,
            help,
            is_temporary,
        }
    }

    /// Returns the next action after a refusal, if it is known.
    fn help(&self, code: u16, message: &str) -> Option<String> {
        let namespace = &self.namespace;
        match code {
            400 | 422 => Some(
                "correct the target or the run file; `ronde submit --dry-run` prints what the server gets"
                    .to_owned(),
            ),
            401 => Some(
                "the credentials of the context are not valid any more; log in to the cluster again"
                    .to_owned(),
            ),
            403 if message.contains(NAMESPACE_ENDS) => Some(format!(
                "namespace `{namespace}` is being deleted: wait until it is gone and create it again, or set \
                 `namespace` of the target to another one"
            )),
            403 => Some(
                "`kubectl auth can-i --list` shows what your user may do in the namespace".to_owned(),
            ),
            404 if message == format!("namespaces \"{namespace}\" not found") => Some(format!(
                "create it with `kubectl create namespace {namespace}`, or set `namespace` of the target to another one"
            )),
            _ => None,
        }
    }

    /// Returns an error about a missing right.
    pub(super) fn refused(&self, problem: String, help: &str) -> SubmitError {
        SubmitError::Host {
            host: self.title.clone(),
            problem,
            help: Some(help.to_owned()),
            is_temporary: false,
        }
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

    /// Returns an error of a connection that was lost; another one may work.
    pub(super) fn interrupted(&self, problem: String) -> SubmitError {
        SubmitError::Host {
            host: self.title.clone(),
            problem,
            help: None,
            is_temporary: true,
        }
    }

    fn path(&self, kind: &str, name: &str) -> String {
        let group = if kind == "jobs" {
            "apis/batch/v1"
        } else {
            "api/v1"
        };
        let path = format!("{group}/namespaces/{}/{kind}", self.namespace);
        match name {
            "" => path,
            name => format!("{path}/{name}"),
        }
    }

    fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, ApiFailure> {
        let body = body.map(|(kind, value)| (kind, value.to_string().into_bytes()));
        self.connection.request(|connection| {
            let (code, bytes) = connection
                .send(method, path, body.clone(), ANSWER_MAX)
                .map_err(ApiFailure::Unreachable)?;
            match code {
                200..300 => serde_json::from_slice(&bytes).map_err(|error| {
                    ApiFailure::Unreachable(format!("its answer is not JSON: {error}"))
                }),
                code => Err(ApiFailure::of(code, &bytes)),
            }
        })
    }

    /// Creates an object; unknown fields are refused.
    pub(super) fn create(&self, kind: &str, object: &Value) -> Result<Value, ApiFailure> {
        let path = format!(
            "{}?fieldValidation=Strict&fieldManager=ronde",
            self.path(kind, "")
        );
        self.call("POST", &path, Some(("application/json", object)))
    }

    pub(super) fn job(&self, name: &str) -> Result<Value, ApiFailure> {
        self.call("GET", &self.path("jobs", name), None)
    }

    pub(super) fn patch_job(&self, name: &str, patch: &Value) -> Result<Value, ApiFailure> {
        let path = self.path("jobs", name);
        self.call(
            "PATCH",
            &path,
            Some(("application/merge-patch+json", patch)),
        )
    }

    /// Deletes a Job with everything that belongs to it.
    pub(super) fn delete_job(&self, name: &str) -> Result<Value, ApiFailure> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
        });
        let path = self.path("jobs", name);
        self.call("DELETE", &path, Some(("application/json", &options)))
    }

    /// Deletes a pod; one that does not exist is not a failure.
    pub(super) fn delete_pod(&self, name: &str, grace_s: u32) -> Result<(), ApiFailure> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_s,
        });
        let path = self.path("pods", name);
        match self.call("DELETE", &path, Some(("application/json", &options))) {
            Ok(_) | Err(ApiFailure::Status { code: 404, .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Returns whether the user may do something with a kind in the namespace.
    pub(super) fn may(&self, verb: &str, kind: &str) -> Result<bool, ApiFailure> {
        let group = if kind == "jobs" { "batch" } else { "" };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "namespace": self.namespace, "verb": verb, "group": group, "resource": kind,
            } },
        });
        let path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = self.call("POST", path, Some(("application/json", &review)))?;
        Ok(answer["status"]["allowed"] == true)
    }

    /// Returns the events about an object, of any order.
    pub(super) fn events(&self, kind: &str, name: &str) -> Result<Vec<Value>, ApiFailure> {
        let selector = escaped(&format!(
            "involvedObject.kind={kind},involvedObject.name={name}"
        ));
        self.items(&format!(
            "{}?fieldSelector={selector}",
            self.path("events", "")
        ))
    }

    /// Returns the pods of a Job.
    pub(super) fn pods(&self, job: &str) -> Result<Vec<Value>, ApiFailure> {
        self.list("pods", "batch.kubernetes.io/job-name", job)
    }

    /// Returns all objects of a kind that ronde has created in the namespace.
    pub(super) fn all(&self, kind: &str) -> Result<Vec<Value>, ApiFailure> {
        self.list(kind, "app.kubernetes.io/managed-by", "ronde")
    }

    fn list(&self, kind: &str, label: &str, value: &str) -> Result<Vec<Value>, ApiFailure> {
        let selector = escaped(&format!("{label}={value}"));
        self.items(&format!("{}?labelSelector={selector}", self.path(kind, "")))
    }

    fn items(&self, path: &str) -> Result<Vec<Value>, ApiFailure> {
        let mut listed = self.call("GET", path, None)?;
        match listed["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Copies the output of a pod to `out`, with `follow` until the pod ends.
    pub(super) fn log(
        &self,
        pod: &str,
        container: &str,
        follow: bool,
        out: &mut dyn Write,
    ) -> Result<(), ApiFailure> {
        let path = self.path("pods", pod);
        let path = format!("{path}/log?container={container}&follow={follow}");
        self.connection
            .request(|connection| connection.stream(&path, ANSWER_MAX, out))
    }

    /// Runs a command in a pod. Passes each message of the server to `receive`: a channel and bytes.
    pub(super) fn exec(
        &self,
        pod: &str,
        container: &str,
        command: &[String],
        receive: &mut ChannelReceiver<'_>,
    ) -> Result<(), ApiFailure> {
        let mut path = format!(
            "{}/exec?container={container}&stdin=false&stdout=true&stderr=true&tty=false",
            self.path("pods", pod)
        );
        for word in command {
            path.push_str("&command=");
            path.push_str(&escaped(word));
        }
        self.connection
            .request(|connection| connection.exec(&path, ANSWER_MAX, receive))
    }
}

/// Returns a text for the query of an address (RFC 3986, section 2.1).
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_escaped_and_messages_of_servers_are_shown() {
        assert_eq!(escaped("a b&c=ä/"), "a%20b%26c%3D%C3%A4%2F");
        let refused = ApiFailure::of(403, br#"{"kind":"Status","message":"jobs is forbidden"}"#);
        assert!(
            matches!(&refused, ApiFailure::Status { code: 403, message } if message == "jobs is forbidden")
        );
        let other = ApiFailure::of(502, b" bad gateway\n");
        assert!(
            matches!(&other, ApiFailure::Status { code: 502, message } if message == "bad gateway")
        );
    }
}

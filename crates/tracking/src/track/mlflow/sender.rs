//! [`MlflowSender`]: sends the spool of a run to an MLflow server.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{FOLDER, SpoolEntry, spool_file, state_file};

/// The time limit of a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// The time limit of sending a file.
const FILE_LIMIT: Duration = Duration::from_secs(600);
/// The largest number of metrics in a request, a limit of MLflow.
const METRICS_MAX: usize = 1000;
/// The largest number of parameters in a request, a limit of MLflow.
const PARAMETERS_MAX: usize = 100;
/// The longest value of a parameter, in characters: the limit of older servers.
const VALUE_LETTERS_MAX: usize = 500;
/// The longest part of an answer in a message, in characters.
const ANSWER_LETTERS_MAX: usize = 300;

/// Blocking requests to a server. A login is up to the implementation, and never part of its errors.
pub trait MlflowConnection: Send {
    /// Sends a request with a content type and a body, and returns the status code and the body of the answer.
    ///
    /// # Errors
    /// A sentence: the server cannot be reached, or does not answer within `limit`.
    fn send(
        &self,
        method: &str,
        path: &str,
        body: (&str, Vec<u8>),
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), String>;
}

/// Why the spool was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MlflowError {
    /// The server cannot be reached or is overloaded; try again later.
    #[error("the MLflow server is away: {0}")]
    Away(String),
    /// The server refused a request; trying again does not help.
    #[error("the MLflow server refuses {0}")]
    Refused(String),
    /// A file of the run cannot be read or written.
    #[error("cannot {action} {}: {cause}", .path.display())]
    File {
        /// A verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
}

/// The state of the server's run, kept in the run's folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct MlflowState {
    /// The server's run; empty: not created yet.
    run_id: String,
    /// Where the server stores artifacts.
    artifact_uri: String,
    /// The bytes of the spool that were sent.
    sent: u64,
}

/// Sends the spool of a run to a server, from where the previous process ended. One process sends at a time.
pub struct MlflowSender {
    run: PathBuf,
    experiment: String,
    connection: Box<dyn MlflowConnection>,
    state: MlflowState,
    _lock: File,
}

impl MlflowSender {
    /// Opens the spool in the folder of a run, for an experiment of the server. Sends nothing.
    ///
    /// # Errors
    /// A file cannot be read, or another process sends this spool.
    pub fn open(
        run: &Path,
        experiment: &str,
        connection: Box<dyn MlflowConnection>,
    ) -> Result<Self, MlflowError> {
        let folder = run.join(FOLDER);
        std::fs::create_dir_all(&folder).map_err(|error| failed("create", &folder, &error))?;
        let lock = File::open(&folder).map_err(|error| failed("open", &folder, &error))?;
        lock.try_lock()
            .map_err(|_| failed("lock", &folder, &"another process sends it"))?;
        Ok(Self {
            state: read_state(&state_file(run))?,
            run: run.to_owned(),
            experiment: experiment.to_owned(),
            connection,
            _lock: lock,
        })
    }

    /// Returns the number of bytes that wait in the spool.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let length = std::fs::metadata(spool_file(&self.run)).map_or(0, |file| file.len());
        length.saturating_sub(self.state.sent)
    }

    /// Sends everything that waits in the spool, or until `stops` returns true between two requests.
    ///
    /// # Errors
    /// The first error; earlier values are not sent again.
    pub fn send(&mut self, stops: &dyn Fn() -> bool) -> Result<(), MlflowError> {
        let path = spool_file(&self.run);
        let mut file = match File::open(&path) {
            Ok(file) => BufReader::new(file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("read", &path, &error)),
        };
        let unreadable = |error: std::io::Error| failed("read", &path, &error);
        file.seek(SeekFrom::Start(self.state.sent))
            .map_err(unreadable)?;
        let mut metrics = Vec::new();
        let (mut end, mut line) = (self.state.sent, Vec::new());
        while !stops() {
            line.clear();
            let length = file.read_until(b'\n', &mut line).map_err(unreadable)?;
            let is_complete = line.last() == Some(&b'\n');
            let entry = is_complete.then(|| serde_json::from_slice(&line).ok());
            match entry.flatten() {
                Some(SpoolEntry::Metrics { at, step, values })
                    if metrics.len() + values.len() <= METRICS_MAX =>
                {
                    metrics.extend(values.iter().map(|(key, value)| {
                        json!({"key": key, "value": value, "timestamp": at, "step": step})
                    }));
                }
                other => {
                    self.log(&mut metrics, end)?;
                    if !is_complete {
                        return Ok(());
                    }
                    // A line that cannot be parsed is of a newer version.
                    if let Some(SpoolEntry::Metrics { at, step, values }) = other {
                        metrics.extend(values.iter().take(METRICS_MAX).map(|(key, value)| {
                            json!({"key": key, "value": value, "timestamp": at, "step": step})
                        }));
                    } else if let Some(other) = other {
                        self.apply(&other)?;
                        self.advance(end + length as u64)?;
                    }
                }
            }
            end += length as u64;
        }
        self.log(&mut metrics, end)
    }

    /// Sends metrics, and notes that the spool is sent up to `end`.
    fn log(&mut self, metrics: &mut Vec<Value>, end: u64) -> Result<(), MlflowError> {
        if metrics.is_empty() {
            return Ok(());
        }
        let run_id = &self.state.run_id;
        let body = json!({"run_id": run_id, "metrics": std::mem::take(metrics)});
        self.post("runs/log-batch", &body)?;
        self.advance(end)
    }

    fn advance(&mut self, sent: u64) -> Result<(), MlflowError> {
        self.state.sent = sent;
        self.save()
    }

    /// Sends one entry that is not of metrics.
    fn apply(&mut self, entry: &SpoolEntry) -> Result<(), MlflowError> {
        match entry {
            SpoolEntry::Started {
                at,
                name,
                parameters,
            } => self.start(*at, name, parameters),
            SpoolEntry::Plan { plan } => self.tag("ronde.plan", plan),
            SpoolEntry::Status { at, status } => self.set_status(*at, status),
            SpoolEntry::Model { files } => self.upload(files),
            SpoolEntry::Metrics { .. } => Ok(()),
        }
    }

    /// Creates the server's run with its parameters, or continues it. Parameters cannot be changed later.
    fn start(
        &mut self,
        at: u64,
        name: &str,
        parameters: &[(String, String)],
    ) -> Result<(), MlflowError> {
        if !self.state.run_id.is_empty() {
            return self.set_status(at, "RUNNING");
        }
        let experiment = self.experiment()?;
        let body = json!({
            "experiment_id": experiment,
            "run_name": name,
            "start_time": at,
            "tags": [{"key": "mlflow.source.name", "value": "ronde train"},
                     {"key": "mlflow.source.type", "value": "JOB"}],
        });
        let created = self.post("runs/create", &body)?;
        let text = |name: &str| {
            let value = created["run"]["info"][name].as_str();
            value.unwrap_or_default().to_owned()
        };
        (self.state.run_id, self.state.artifact_uri) = (text("run_id"), text("artifact_uri"));
        self.save()?;
        for chunk in parameters.chunks(PARAMETERS_MAX) {
            let parameters: Vec<Value> = chunk
                .iter()
                .map(|(key, value)| json!({"key": key, "value": shortened(value)}))
                .collect();
            let run_id = &self.state.run_id;
            self.post(
                "runs/log-batch",
                &json!({"run_id": run_id, "params": parameters}),
            )?;
        }
        Ok(())
    }

    /// Returns the id of the experiment, which is created if there is none.
    fn experiment(&self) -> Result<String, MlflowError> {
        let id = |value: &Value| value.as_str().map(str::to_owned);
        let missing = || MlflowError::Refused("the experiment: its answer has no id".to_owned());
        let name = json!({"name": self.experiment});
        let created = self.request("POST", &api("experiments/create"), &name)?;
        if let (200, answer) = &created {
            return id(&answer["experiment_id"]).ok_or_else(missing);
        }
        let found = format!(
            "experiments/get-by-name?experiment_name={}",
            encoded(&self.experiment)
        );
        match self.request("GET", &api(&found), &Value::Null)? {
            (200, answer) => id(&answer["experiment"]["experiment_id"]).ok_or_else(missing),
            // The answer to the first request has the cause, such as a missing login.
            _ => Err(refused("experiments/create", &created)),
        }
    }

    fn set_status(&self, at: u64, status: &str) -> Result<(), MlflowError> {
        let mut body = json!({"run_id": self.state.run_id, "status": status});
        if status != "RUNNING" {
            body["end_time"] = at.into();
        }
        self.post("runs/update", &body).map(drop)
    }

    fn tag(&self, key: &str, value: &str) -> Result<(), MlflowError> {
        let body = json!({"run_id": self.state.run_id, "key": key, "value": shortened(value)});
        self.post("runs/set-tag", &body).map(drop)
    }

    /// Sends the files of the model as artifacts. Memory: the largest file.
    fn upload(&self, files: &[String]) -> Result<(), MlflowError> {
        let uri = &self.state.artifact_uri;
        let Some(folder) = uri.strip_prefix("mlflow-artifacts:/") else {
            let reason = "the server does not accept artifacts over HTTP";
            return self.tag("ronde.model_not_uploaded", reason);
        };
        for name in files {
            let path = self.run.join(name);
            let bytes = match std::fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("read", &path, &error)),
            };
            let folder = folder.trim_start_matches('/');
            let to = format!("api/2.0/mlflow-artifacts/artifacts/{folder}/model/{name}");
            let body = ("application/octet-stream", bytes);
            let answer = self.connection.send("PUT", &to, body, FILE_LIMIT);
            let (status, answer) = answer.map_err(MlflowError::Away)?;
            let answer = serde_json::from_slice(&answer).unwrap_or_default();
            checked("an artifact", (status, answer))?;
        }
        Ok(())
    }

    fn post(&self, method: &str, body: &Value) -> Result<Value, MlflowError> {
        checked(method, self.request("POST", &api(method), body)?)
    }

    /// Sends a request and returns the status code and the answer. A server that is overloaded is away.
    fn request(&self, method: &str, path: &str, body: &Value) -> Result<(u16, Value), MlflowError> {
        let bytes = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let body = ("application/json", bytes);
        let answer = self.connection.send(method, path, body, REQUEST_LIMIT);
        let (status, bytes) = answer.map_err(MlflowError::Away)?;
        if matches!(status, 429 | 500..) {
            return Err(MlflowError::Away(format!(
                "it answers with status {status}"
            )));
        }
        let text = String::from_utf8_lossy(&bytes);
        let answer = serde_json::from_str(&text);
        Ok((
            status,
            answer.unwrap_or_else(|_| json!({"message": shortened(&text)})),
        ))
    }

    fn save(&self) -> Result<(), MlflowError> {
        let path = state_file(&self.run);
        let temporary = path.with_extension("json.tmp");
        let text = serde_json::to_vec(&self.state).unwrap_or_default();
        std::fs::write(&temporary, text)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(|error| failed("write", &path, &error))
    }
}

/// Returns the path of a method of the server's interface.
fn api(method: &str) -> String {
    format!("api/2.0/mlflow/{method}")
}

fn failed(action: &'static str, path: &Path, cause: &dyn std::fmt::Display) -> MlflowError {
    MlflowError::File {
        action,
        path: path.to_owned(),
        cause: cause.to_string(),
    }
}

/// Returns an answer unless its status is an error.
fn checked(what: &str, answer: (u16, Value)) -> Result<Value, MlflowError> {
    match answer {
        (200..=299, answer) => Ok(answer),
        (429 | 500.., _) => Err(MlflowError::Away(format!(
            "it answers with status {}",
            answer.0
        ))),
        answer => Err(refused(what, &answer)),
    }
}

fn refused(what: &str, (status, answer): &(u16, Value)) -> MlflowError {
    let hint = match status {
        401 | 403 => {
            "; set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        }
        _ => "",
    };
    let message = answer["message"].as_str().unwrap_or_default();
    let message: String = message.chars().take(ANSWER_LETTERS_MAX).collect();
    MlflowError::Refused(format!("{what}: status {status} {message}{hint}"))
}

fn read_state(path: &Path) -> Result<MlflowState, MlflowError> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed("read", path, &error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(MlflowState::default()),
        Err(error) => Err(failed("read", path, &error)),
    }
}

/// Returns the beginning of a text, as long as MLflow accepts it.
fn shortened(text: &str) -> String {
    text.chars().take(VALUE_LETTERS_MAX).collect()
}

/// Returns text as part of a query.
fn encoded(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(letter).collect()
}

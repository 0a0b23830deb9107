//! Tests of the spool, and of its requests, with a server that is a list of requests.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_core::event::PhaseTimes;
use ronde_core::{Epoch, Event, Generation, Rank, Step};
use serde_json::{Value, json};

use super::sender::MlflowError;
use super::*;
use crate::event_writer::EventWriter;
use crate::track::RunDescription;

/// A path and the body of a request.
type ReceivedRequest = (String, Value);

/// The requests that a server has received, and whether it is away.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<(Vec<ReceivedRequest>, bool)>>);

impl Received {
    fn set_away(&self, is_away: bool) {
        self.0.lock().unwrap().1 = is_away;
    }

    fn take(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.0.lock().unwrap().0)
    }
}

impl MlflowConnection for Received {
    fn send(
        &self,
        method: &str,
        path: &str,
        (_, body): (&str, Vec<u8>),
        _: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
        let mut state = self.0.lock().unwrap();
        if state.1 {
            return Err("connection refused".to_owned());
        }
        let path = path.trim_start_matches("api/2.0/").to_owned();
        let answer = match path.as_str() {
            "mlflow/experiments/create" => json!({"experiment_id": "7"}),
            "mlflow/runs/create" => {
                json!({"run": {"info": {"run_id": "r1", "artifact_uri": "mlflow-artifacts:/7/r1/artifacts"}}})
            }
            _ => json!({}),
        };
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        state.0.push((format!("{method} {path}"), body));
        Ok((200, answer.to_string().into_bytes()))
    }
}

fn committed(step: u64) -> Event {
    Event::StepCommitted {
        step: Step(step),
        epoch: Epoch(0),
        generation: Generation(1),
        loss: if step == 1 { f64::NAN } else { 0.5 },
        samples: 64,
        targets: 64,
        skipped: 0,
        learning_rate: 0.1,
        gradient_norm: 1.0,
        skipped_update: None,
        duration_s: 0.25,
    }
}

fn spool(run: &Path, events: &[Event]) {
    let description = RunDescription {
        name: "digits".to_owned(),
        run_file: String::new(),
        parameters: vec![("train.epochs".to_owned(), "3".to_owned())],
    };
    let mut spool = MlflowSpool::new(run, description);
    spool.start().unwrap();
    for event in events {
        spool.write(1.5, event).unwrap();
    }
    spool.flush().unwrap();
}

fn names(received: &[(String, Value)]) -> Vec<&str> {
    received.iter().map(|(name, _)| name.as_str()).collect()
}

/// Returns the steps of the losses in a request.
fn steps(body: &Value) -> Vec<u64> {
    let metrics = body["metrics"].as_array().unwrap().iter();
    metrics
        .filter(|metric| metric["key"] == "train/loss")
        .map(|metric| metric["step"].as_u64().unwrap())
        .collect()
}

#[test]
fn one_run_receives_everything_once_although_the_server_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let server = Received::default();
    let open = || MlflowSender::open(dir.path(), "mine", Box::new(server.clone())).unwrap();
    spool(dir.path(), &[committed(0), committed(1)]);
    server.set_away(true);
    let mut sender = open();
    assert!(matches!(sender.send(&|| false), Err(MlflowError::Away(_))));
    assert!(sender.waiting() > 0);
    let second = MlflowSender::open(dir.path(), "mine", Box::new(server.clone()));
    assert!(second.is_err(), "one process sends at a time");
    server.set_away(false);
    sender.send(&|| false).unwrap();
    let received = server.take();
    let [create, run, parameters, metrics] = &received[..] else {
        panic!("{received:?}");
    };
    assert_eq!(create.1["name"], "mine");
    assert_eq!(run.1["experiment_id"], "7");
    assert_eq!(
        parameters.1["params"],
        json!([{"key": "train.epochs", "value": "3"}])
    );
    assert_eq!(steps(&metrics.1), [1, 2]);
    let text = metrics.1.to_string();
    assert!(text.contains(r#""value":"NaN""#), "{text}");
    drop(sender);

    // A second attempt repeats a step; the server's run continues.
    std::fs::write(dir.path().join("model.json"), "{}").unwrap();
    let ended = [
        committed(1),
        committed(2),
        Event::ModelSaved {
            path: String::new(),
            config_path: String::new(),
            blake3: String::new(),
        },
        Event::RunFinished {
            steps: 3,
            samples: 192,
            skipped: 0,
            duration_s: 1.0,
        },
    ];
    spool(dir.path(), &ended);
    let mut sender = open();
    sender.send(&|| false).unwrap();
    let received = server.take();
    assert_eq!(
        names(&received),
        [
            "POST mlflow/runs/update",
            "POST mlflow/runs/log-batch",
            "PUT mlflow-artifacts/artifacts/7/r1/artifacts/model/model.json",
            "POST mlflow/runs/update",
        ]
    );
    assert_eq!(received[0].1["status"], "RUNNING");
    assert_eq!(steps(&received[1].1), [3]);
    assert_eq!(received[3].1["status"], "FINISHED");
    assert_eq!(sender.waiting(), 0);
    sender.send(&|| false).unwrap();
    assert_eq!(names(&server.take()), [""; 0]);
    drop(sender);
    MlflowSpool::clear(dir.path()).unwrap();
    assert_eq!(open().waiting(), 0);
}

#[test]
fn requests_have_at_most_a_thousand_metrics_and_an_incomplete_line_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Received::default();
    let all: Vec<Event> = (0..500).map(committed).collect();
    spool(dir.path(), &all);
    let path = spool_file(dir.path());
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("{\"metrics\":{\"at\":1,");
    std::fs::write(&path, text).unwrap();
    let mut sender = MlflowSender::open(dir.path(), "mine", Box::new(server.clone())).unwrap();
    sender.send(&|| false).unwrap();
    assert!(sender.waiting() > 0);
    spool(dir.path(), &[committed(500)]);
    sender.send(&|| false).unwrap();
    assert_eq!(sender.waiting(), 0);
    let received = server.take();
    let batches = received
        .iter()
        .filter(|(_, body)| !body["metrics"].is_null());
    let mut all = Vec::new();
    for (_, body) in batches {
        assert!(body["metrics"].as_array().unwrap().len() <= 1000);
        all.extend(steps(body));
    }
    assert_eq!(all, (1..=501).collect::<Vec<_>>());
}

#[test]
fn the_numbers_of_a_step_that_a_crash_separated_are_completed() {
    let dir = tempfile::tempdir().unwrap();
    let times = |step| Event::StepTimes {
        rank: Rank(0),
        step: Step(step),
        times: PhaseTimes::default(),
        arrived_s: None,
        bytes_sent: 0,
    };
    spool(
        dir.path(),
        &[times(0), committed(0), times(1), committed(1)],
    );
    let path = spool_file(dir.path());
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 5]).unwrap();
    spool(
        dir.path(),
        &[times(0), committed(0), times(1), committed(1)],
    );
    let text = std::fs::read_to_string(&path).unwrap();
    for series in ["train/loss", "time/rank_0/compute_s"] {
        let lines = text.lines().filter(|line| line.contains(series));
        assert_eq!(lines.count(), 2, "{series} in\n{text}");
    }
}

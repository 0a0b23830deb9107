//! [`SweepFolder`]: the stored state and the results of a sweep, used by one command at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

use ronde::created_folders::CreatedFolders;
use ronde_submit::{ProcessIdentity, SubmitError};
use ronde_sweep::{RunScore, Sweep, SweepRun, csv, svg};
use serde_json::Value;

/// The file with the state.
const STATE_FILE: &str = "sweep.json";
/// The folder with the results of the runs.
const TRIALS_FOLDER: &str = "trials";
/// The maximum size of the state in bytes.
const STATE_BYTES_MAX: u64 = 256 << 20;
/// The maximum size of the events of a run in bytes.
const EVENT_BYTES_MAX: u64 = 4 << 30;

/// The locked folder of a sweep. The lock ends with the process.
pub(super) struct SweepFolder {
    path: PathBuf,
    created: CreatedFolders,
    _lock: File,
}

impl Drop for SweepFolder {
    fn drop(&mut self) {
        // Of a sweep that was refused.
        self.created.remove_empty();
    }
}

impl SweepFolder {
    /// Creates and locks the folder.
    pub(super) fn lock(path: &Path) -> Result<Self, SubmitError> {
        let failed = |action| {
            move |cause| SubmitError::File {
                action,
                path: path.to_owned(),
                cause,
            }
        };
        let created = CreatedFolders::create(path).map_err(failed("create"))?;
        let lock = File::open(path).map_err(failed("open"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                created,
                _lock: lock,
            }),
            Err(std::fs::TryLockError::WouldBlock) => Err(SubmitError::Invalid {
                problem: format!(
                    "cannot use {}: another `ronde sweep` runs in it",
                    path.display()
                ),
                help: "wait for it, or choose another folder with `--to`".to_owned(),
            }),
            Err(std::fs::TryLockError::Error(cause)) => Err(failed("lock")(cause)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the stored state, if there is one. The error is a message.
    pub(super) fn load(&self) -> Result<Option<Sweep>, String> {
        let path = self.path.join(STATE_FILE);
        let damaged = |problem: String| {
            format!(
                "cannot read {}: {problem}\n  help: choose another folder with `--to`",
                path.display()
            )
        };
        let bytes = match ronde_store::read_regular(&path, STATE_BYTES_MAX) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(|error| damaged(error.to_string()))?,
        };
        let text = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
        let sweep = Sweep::decode(&text).map_err(|error| damaged(error.to_string()))?;
        Ok(Some(sweep))
    }

    /// Returns an identity for a new sweep in the folder, which no other sweep has.
    pub(super) fn new_id(&self) -> Result<String, SubmitError> {
        let process = ProcessIdentity::of_this_process().map_err(|cause| SubmitError::File {
            action: "read",
            path: PathBuf::from("/proc/self/stat"),
            cause,
        })?;
        let since = ronde_clock::since_1970(ronde_clock::date());
        let text = format!("{process:?} {since:?} {}", self.path.display());
        Ok(blake3::hash(text.as_bytes()).to_hex()[..32].to_owned())
    }

    /// Stores the state: a reader, and this command after SIGKILL, finds the old or the new one.
    pub(super) fn save(&self, sweep: &Sweep) -> Result<(), SubmitError> {
        let text = sweep.encode().map_err(|error| SubmitError::Invalid {
            problem: error.to_string(),
            help: "remove the value from the sweep file".to_owned(),
        })?;
        self.write(STATE_FILE, &text)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), SubmitError> {
        let path = self.path.join(name);
        ronde_saved_model::publish(&path, text.as_bytes()).map_err(|error| SubmitError::File {
            action: "write",
            path,
            cause: std::io::Error::other(error.to_string()),
        })
    }

    /// Returns the folder for the results of a run.
    pub(super) fn results(&self, run: &SweepRun) -> PathBuf {
        self.results_of(run.trial, run.rung)
    }

    fn results_of(&self, trial: usize, rung: usize) -> PathBuf {
        let name = match rung {
            0 => format!("{trial:04}"),
            rung => format!("{trial:04}-{rung}"),
        };
        self.path.join(TRIALS_FOLDER).join(name)
    }

    /// Returns the absolute path of the results of a trial with a budget, if there is a checkpoint among them.
    pub(super) fn checkpoints_of(&self, trial: usize, rung: usize) -> Option<PathBuf> {
        let results = std::path::absolute(self.results_of(trial, rung)).ok()?;
        let mut entries = std::fs::read_dir(results.join("checkpoints")).ok()?;
        entries.next().map(|_| results)
    }

    /// Writes the table, the plot and the best run file.
    pub(super) fn conclude(&self, sweep: &Sweep, best: Option<&str>) -> Result<(), SubmitError> {
        self.write("trials.csv", &csv(sweep))?;
        if let Some(svg) = svg(sweep) {
            self.write("trials.svg", &svg)?;
        }
        match best {
            Some(text) => self.write("best.toml", text),
            None => Ok(()),
        }
    }
}

/// Returns a metric of the model that a run has saved, from the events in its results: that of its best model, or else of the last
/// evaluation. The error is a reason.
pub(super) fn score(results: &Path, metric: &str) -> Result<RunScore, String> {
    let bytes = ronde_store::read_regular(&results.join("events.jsonl"), EVENT_BYTES_MAX);
    let bytes = bytes.map_err(|error| format!("its events cannot be read: {error}"))?;
    let lines = bytes.rsplit(|byte| *byte == b'\n');
    let mut events = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    // The best model is reported again after the last evaluation.
    let evaluated =
        events.find(|event| event["event"] == "evaluated" || event["event"] == "best_model");
    let Some(Value::Object(evaluated)) = evaluated else {
        return Err("it has no evaluation; the data set needs test data".to_owned());
    };
    match evaluated.get(metric) {
        Some(Value::Number(number)) => Ok(RunScore {
            value: number.as_f64().unwrap_or(f64::NAN),
            steps: evaluated
                .get("step")
                .and_then(Value::as_u64)
                .map(|step| step.saturating_add(1)),
        }),
        Some(Value::Null) => Err(format!("{metric} is not a number")),
        _ => {
            let metrics: Vec<&str> = evaluated
                .iter()
                .filter(|(name, value)| {
                    value.is_number() && !["step", "samples", "t"].contains(&name.as_str())
                })
                .map(|(name, _)| name.as_str())
                .collect();
            Err(format!(
                "its evaluation has no `{metric}`; it has {}",
                metrics.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_that_of_the_saved_model() {
        let dir = tempfile::tempdir().unwrap();
        let with = |events: &str| {
            std::fs::write(dir.path().join("events.jsonl"), events).unwrap();
            score(dir.path(), "accuracy")
        };
        let line = |accuracy: &str| {
            format!(
                "{{\"event\":\"evaluated\",\"step\":1,\"loss\":0.5,\"accuracy\":{accuracy},\"samples\":3}}\n"
            )
        };
        assert_eq!(
            with(
                &[
                    line("0.25"),
                    line("0.75"),
                    "{\"event\":\"x\"}\n{".to_owned()
                ]
                .concat()
            ),
            Ok(RunScore {
                value: 0.75,
                steps: Some(2)
            })
        );
        // The best model is an earlier one.
        let best = "{\"event\":\"best_model\",\"step\":0,\"metric\":\"loss\",\"loss\":0.25,\"accuracy\":0.5,\"samples\":3}\n";
        assert_eq!(
            with(&[line("0.25"), line("0.75"), best.to_owned()].concat()),
            Ok(RunScore {
                value: 0.5,
                steps: Some(1)
            })
        );
        for (events, reason) in [
            (line("null"), "accuracy is not a number"),
            (line("0.5").replace("accuracy", "f1"), "it has f1, loss"),
            ("{}\n".to_owned(), "no evaluation"),
        ] {
            let found = with(&events).unwrap_err();
            assert!(found.contains(reason), "{found}");
        }
        assert!(
            score(Path::new("/nowhere"), "x")
                .unwrap_err()
                .contains("cannot be read")
        );
    }
}

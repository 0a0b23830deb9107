//! [`MlflowSpool`]: writes the numbers of a run to the spool in its folder.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ronde_core::Event;

use super::{FOLDER, SpoolEntry, spool_file, state_file};
use crate::event_writer::EventWriter;
use crate::track::{RunDescription, restart, scalars};

/// The files of a saved model that MLflow receives as artifacts, if they exist.
const MODEL_FILES: [&str; 5] = [
    "model.safetensors",
    "model.json",
    "tokenizer.json",
    "README.md",
    "run.toml",
];

/// The steps of a series whose numbers are in the spool.
#[derive(Debug, Clone, Copy, Default)]
struct SpooledSteps {
    /// The newest one.
    newest: u64,
    /// Steps up to this one are not written when they are computed again.
    until: u64,
}

/// Writes the numbers of a run to `mlflow/spool.jsonl` in its folder, from which [`super::MlflowSender`] sends them. Steps that are
/// computed again after a restart are not written again. A step takes about 700 bytes.
pub struct MlflowSpool {
    run: PathBuf,
    description: RunDescription,
    /// By the first name of an entry, so that each rank's times, the losses and the evaluations count apart: a crash may
    /// have cut off the numbers of a step between them.
    spooled: BTreeMap<String, SpooledSteps>,
    is_failed: bool,
    writer: Option<BufWriter<File>>,
}

impl MlflowSpool {
    /// Removes the spool of an earlier run from the folder of a run, and the state of the server's run.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn clear(run: &Path) -> std::io::Result<()> {
        for path in [spool_file(run), state_file(run)] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Continues the spool in the folder of a run, or begins one.
    #[must_use]
    pub fn new(run: &Path, description: RunDescription) -> Self {
        Self {
            run: run.to_owned(),
            description,
            spooled: BTreeMap::new(),
            is_failed: false,
            writer: None,
        }
    }

    fn add(&mut self, entry: &SpoolEntry) -> std::io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        serde_json::to_writer(&mut *writer, entry)?;
        writer.write_all(b"\n")
    }

    /// Skips the steps in the spool, because they are computed again.
    fn repeat(&mut self) {
        for spooled in self.spooled.values_mut() {
            spooled.until = spooled.newest;
        }
    }

    fn status(&mut self, at: u64, status: &str) -> std::io::Result<()> {
        let status = status.to_owned();
        self.add(&SpoolEntry::Status { at, status })
    }

    /// Adds the numbers of an event, unless they are in the spool.
    fn numbers(&mut self, at: u64, event: &Event) -> std::io::Result<()> {
        let points = scalars(event);
        let Some(first) = points.first() else {
            return Ok(());
        };
        let (step, series) = (first.step, first.name.clone());
        let spooled = self.spooled.entry(series).or_default();
        if step <= spooled.until {
            return Ok(());
        }
        spooled.newest = spooled.newest.max(step);
        let values = points
            .into_iter()
            .map(|point| (point.name, point.value.into()))
            .collect();
        self.add(&SpoolEntry::Metrics { at, step, values })
    }

    /// Opens the spool, removes an incomplete last line, and finds the newest steps in it.
    fn open(&mut self) -> std::io::Result<()> {
        std::fs::create_dir_all(self.run.join(FOLDER))?;
        let mut options = OpenOptions::new();
        options.create(true).read(true).write(true);
        let path = spool_file(&self.run);
        let mut file = options.truncate(false).open(&path)?;
        let (mut complete, mut line) = (0, Vec::new());
        let mut reader = BufReader::new(&file);
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                break;
            }
            complete += length as u64;
            if let Ok(SpoolEntry::Metrics { step, values, .. }) = serde_json::from_slice(&line) {
                let series = values.into_iter().next().map(|(name, _)| name);
                let spooled = self.spooled.entry(series.unwrap_or_default()).or_default();
                spooled.newest = spooled.newest.max(step);
            }
        }
        drop(reader);
        self.repeat();
        file.set_len(complete)?;
        file.seek(SeekFrom::Start(complete))?;
        self.writer = Some(BufWriter::with_capacity(64 << 10, file));
        Ok(())
    }
}

/// Returns milliseconds.
fn milliseconds(t: f64) -> u64 {
    (t * 1e3) as u64
}

impl EventWriter for MlflowSpool {
    fn start(&mut self) -> std::io::Result<()> {
        self.open()?;
        let started = SpoolEntry::Started {
            at: milliseconds(ronde_clock::unix_s()),
            name: self.description.name.clone(),
            parameters: self.description.parameters.clone(),
        };
        self.add(&started)
    }

    fn write(&mut self, t: f64, event: &Event) -> std::io::Result<()> {
        let at = milliseconds(t);
        match event {
            Event::RunStarted { plan, .. } => {
                let plan = plan.clone();
                self.add(&SpoolEntry::Plan { plan })
            }
            Event::ModelSaved { .. } => {
                let files = MODEL_FILES.iter().map(|name| (*name).to_owned());
                let files = files.collect();
                self.add(&SpoolEntry::Model { files })
            }
            Event::RunFinished { .. } => self.status(at, "FINISHED"),
            Event::RunStopped { .. } => self.status(at, "KILLED"),
            Event::WorkerFailed {
                secondary: false, ..
            } => {
                self.is_failed = true;
                self.status(at, "FAILED")
            }
            event => {
                if restart(event).is_some() {
                    self.repeat();
                }
                // The remaining workers have continued.
                if self.is_failed && matches!(event, Event::StepCommitted { .. }) {
                    self.is_failed = false;
                    self.status(at, "RUNNING")?;
                }
                self.numbers(at, event)
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), Write::flush)
    }

    fn resume(&mut self, _: f64) -> std::io::Result<()> {
        match self.writer {
            Some(_) => self.flush(),
            None => self.start(),
        }
    }
}

//! [`TensorboardFiles`]: event files that TensorBoard reads.

mod histograms;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use histograms::HistogramParts;
use ronde_core::Event;
use ronde_core::protobuf::ProtoMessage;

use super::tensorboard_record::{
    file_version, hparams, record, scalar, session_start, summary, text,
};
use super::{restart, scalars};
use crate::event_writer::EventWriter;

/// What trackers show of a run besides its events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunDescription {
    /// The run's name.
    pub name: String,
    /// The run file with every value resolved.
    pub run_file: String,
    /// The values that the result depends on, as dotted path and text, such as `train.learning_rate` and `0.001`.
    pub parameters: Vec<(String, String)>,
}

/// Writes event files of TensorBoard: scalars and histograms by step, the run file as text and the parameters for the hparams plugin.
///
/// A run that resumes, and one that continues from a checkpoint, writes to another file of the same folder, which begins
/// with a mark that lets TensorBoard discard the steps that are computed again. A scalar takes about 70 bytes.
pub struct TensorboardFiles {
    folder: PathBuf,
    run: RunDescription,
    host: String,
    resumes: bool,
    writer: Option<BufWriter<File>>,
    histograms: HistogramParts,
}

/// Largest number of files of one second in a folder.
const FILES_MAX: u32 = 1_000;

impl TensorboardFiles {
    /// Writes to a folder, which is created; `host` is part of the names of the files.
    #[must_use]
    pub fn new(folder: &Path, run: RunDescription, host: &str, resumes: bool) -> Self {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        Self {
            folder: folder.to_owned(),
            run,
            host: host.chars().filter(|&c| is_plain(c)).collect(),
            resumes,
            writer: None,
            histograms: HistogramParts::default(),
        }
    }

    /// Begins a new file. TensorBoard reads the files of a folder in the order of their names.
    fn begin(&mut self, t: f64) -> std::io::Result<&mut BufWriter<File>> {
        self.flush()?;
        std::fs::create_dir_all(&self.folder)?;
        let (seconds, host) = (t as u64, &self.host);
        let mut opened = Err(std::io::ErrorKind::AlreadyExists.into());
        for number in 0..FILES_MAX {
            let name = format!("events.out.tfevents.{seconds:010}.{number:03}.{host}");
            opened = File::create_new(self.folder.join(name));
            let Err(error) = &opened else { break };
            if error.kind() != std::io::ErrorKind::AlreadyExists {
                break;
            }
        }
        let mut writer = BufWriter::with_capacity(64 << 10, opened?);
        writer.write_all(&record(file_version(t)))?;
        Ok(self.writer.insert(writer))
    }

    fn add(&mut self, event: ProtoMessage) -> std::io::Result<()> {
        match &mut self.writer {
            Some(writer) => writer.write_all(&record(event)),
            None => Ok(()),
        }
    }

    /// Writes the run file and the parameters.
    fn describe(&mut self, t: f64) -> std::io::Result<()> {
        let run_file = text("run_file", &format!("```toml\n{}\n```", self.run.run_file));
        self.add(summary(t, 0, run_file))?;
        self.add(summary(t, 0, experiment(&self.run)))?;
        self.add(summary(t, 0, session(&self.run, t)))
    }
}

impl EventWriter for TensorboardFiles {
    fn start(&mut self) -> std::io::Result<()> {
        let t = ronde_clock::unix_s();
        let is_described = self.resumes && self.folder.is_dir();
        self.begin(t)?;
        if is_described {
            return Ok(());
        }
        // Discards the steps of an earlier run in the same folder.
        self.add(session_start(t, 0))?;
        self.describe(t)
    }

    fn write(&mut self, t: f64, event: &Event) -> std::io::Result<()> {
        if let Some(committed) = restart(event) {
            self.histograms.clear();
            self.begin(t)?;
            self.add(session_start(t, committed.saturating_add(1)))?;
        }
        for point in scalars(event) {
            let value = scalar(&point.name, point.value);
            self.add(summary(t, point.step, value))?;
        }
        if let Some(whole) = self.histograms.add(event) {
            let value = histograms::value(&whole.name, &whole.histogram);
            self.add(summary(t, whole.step, value))?;
        }
        if let Event::RunFinished { .. } = event {
            // SessionEndInfo: status 1, success, and the time.
            let end = ProtoMessage::default().number(1, 1).double(2, t);
            self.add(summary(t, 0, hparams("_hparams_/session_end_info", 4, end)))?;
        }
        Ok(())
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

/// The metrics that the hparams plugin shows beside the parameters.
const METRICS: [&str; 3] = ["train/loss", "test/loss", "test/accuracy"];

/// Returns the hparams plugin's description of the parameters and metrics.
fn experiment(run: &RunDescription) -> ProtoMessage {
    const STRING: u64 = 1;
    const NUMBER: u64 = 3;
    let mut experiment = ProtoMessage::default().bytes(6, run.name.as_bytes());
    for (name, value) in &run.parameters {
        let kind = match value.parse::<f64>() {
            Ok(_) => NUMBER,
            Err(_) => STRING,
        };
        let parameter = ProtoMessage::default()
            .bytes(1, name.as_bytes())
            .number(4, kind);
        experiment = experiment.message(4, &parameter);
    }
    for metric in METRICS {
        let name = ProtoMessage::default().bytes(2, metric.as_bytes());
        experiment = experiment.message(5, &ProtoMessage::default().message(1, &name));
    }
    hparams("_hparams_/experiment", 2, experiment)
}

/// Returns the hparams plugin's values of the parameters.
fn session(run: &RunDescription, t: f64) -> ProtoMessage {
    let mut session = ProtoMessage::default()
        .bytes(4, run.name.as_bytes())
        .double(5, t);
    for (name, value) in &run.parameters {
        let value = match value.parse::<f64>() {
            Ok(number) => ProtoMessage::default().double(2, number),
            Err(_) => ProtoMessage::default().bytes(3, value.trim_matches('"').as_bytes()),
        };
        let entry = ProtoMessage::default()
            .bytes(1, name.as_bytes())
            .message(2, &value);
        session = session.message(1, &entry);
    }
    hparams("_hparams_/session_start_info", 3, session)
}

#[cfg(test)]
mod tests;

//! [`CsvFiles`]: the numbers of a run as CSV, a line per step and a line per metric of an evaluation.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use ronde_core::Event;
use ronde_core::csv_field::csv_field;

use super::{committed, restart};
use crate::event_writer::EventWriter;

/// The heading of the file of steps.
const STEPS: &str = "step,epoch,time,loss,learning_rate,gradient_norm,samples,duration_s\n";
/// The heading of the file of evaluations.
const EVALUATIONS: &str = "step,time,metric,value\n";

/// Writes `metrics.csv`, a line per committed step, and `evaluations.csv`, a line per metric of each evaluation.
///
/// `step` is the number of committed steps and `time` the seconds since 1970. When a run continues from a checkpoint,
/// the lines of later steps are removed, so each step is in the file once. NaN is written as `NaN`, infinity as `inf`.
pub struct CsvFiles {
    steps: CsvTable,
    evaluations: CsvTable,
    resumes: bool,
}

impl CsvFiles {
    /// The name of the file of steps.
    pub const METRICS_FILE: &str = "metrics.csv";
    /// The name of the file of evaluations.
    pub const EVALUATIONS_FILE: &str = "evaluations.csv";

    /// Writes to a folder. A run that resumes continues the files in it; otherwise they are replaced.
    #[must_use]
    pub fn new(folder: &Path, resumes: bool) -> Self {
        Self {
            steps: CsvTable::new(folder.join(Self::METRICS_FILE), STEPS),
            evaluations: CsvTable::new(folder.join(Self::EVALUATIONS_FILE), EVALUATIONS),
            resumes,
        }
    }
}

impl EventWriter for CsvFiles {
    fn start(&mut self) -> std::io::Result<()> {
        let until = if self.resumes { u64::MAX } else { 0 };
        self.steps.open(until)?;
        self.evaluations.open(until)
    }

    fn write(&mut self, t: f64, event: &Event) -> std::io::Result<()> {
        if let Some(committed) = restart(event) {
            self.steps.open(committed)?;
            self.evaluations.open(committed)?;
        }
        match event {
            Event::StepCommitted {
                step,
                epoch,
                loss,
                samples,
                learning_rate,
                gradient_norm,
                duration_s,
                ..
            } => self.steps.line(&format!(
                "{},{epoch},{t:.3},{loss},{learning_rate},{gradient_norm},{samples},{duration_s}",
                committed(*step)
            )),
            Event::Evaluated {
                step,
                loss,
                metrics,
                ..
            } => {
                let step = committed(*step);
                self.evaluations
                    .line(&format!("{step},{t:.3},loss,{loss}"))?;
                metrics.iter().try_for_each(|(name, value)| {
                    let name = csv_field(name);
                    self.evaluations
                        .line(&format!("{step},{t:.3},{name},{value}"))
                })
            }
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.steps.flush()?;
        self.evaluations.flush()
    }

    fn resume(&mut self, _: f64) -> std::io::Result<()> {
        self.steps.resume()?;
        self.evaluations.resume()
    }
}

/// A file of lines that begin with a step.
struct CsvTable {
    path: PathBuf,
    heading: &'static str,
    writer: Option<BufWriter<File>>,
}

impl CsvTable {
    fn new(path: PathBuf, heading: &'static str) -> Self {
        Self {
            path,
            heading,
            writer: None,
        }
    }

    /// Opens the file with its lines up to `last_step`, which are copied to a new file that replaces it.
    fn open(&mut self, last_step: u64) -> std::io::Result<()> {
        self.flush()?;
        self.writer = None;
        let next = self.path.with_extension("csv.next");
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut writer = BufWriter::new(File::create_new(&next)?);
        writer.write_all(self.heading.as_bytes())?;
        if last_step > 0 && self.path.is_file() {
            copy(&File::open(&self.path)?, last_step, &mut writer)?;
        }
        writer.flush()?;
        std::fs::rename(&next, &self.path)?;
        self.writer = Some(writer);
        Ok(())
    }

    /// Writes the rest of the accepted lines, or opens the file if that has failed.
    fn resume(&mut self) -> std::io::Result<()> {
        match self.writer {
            Some(_) => self.flush(),
            None => self.open(u64::MAX),
        }
    }

    fn line(&mut self, line: &str) -> std::io::Result<()> {
        match &mut self.writer {
            Some(writer) => writeln!(writer, "{line}"),
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// Copies the complete lines of steps up to `last_step`; an incomplete last line, which a crash leaves, is left out.
fn copy(from: &File, last_step: u64, to: &mut impl Write) -> std::io::Result<()> {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
        let first = line.split(|&byte| byte == b',').next().unwrap_or_default();
        let step = std::str::from_utf8(first)
            .ok()
            .and_then(|text| text.parse::<u64>().ok());
        if step.is_some_and(|step| step <= last_step) {
            to.write_all(&line)?;
        }
    }
}

#[cfg(test)]
mod tests;

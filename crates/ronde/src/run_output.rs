//! [`RunOutput`]: the folder, the event file and the progress of a run that has no supervisor.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use ronde_core::Tracker;
use ronde_tracking::{BackgroundWriter, EventFile, EventFileSettings, Fanout, Terminal, Verbosity};
use ronde_train::RunConfig;
use ronde_train::results::{ResultsUpload, UploadSource};

use crate::environment;
use crate::output_folder::OutputFolder;
use crate::results_address::stored_results;
use crate::trackers::{ProblemReport, RunTrackers};

/// The name of the event file in the folder of a run.
pub(crate) const EVENT_FILE: &str = "events.jsonl";

/// The folder, the event file and the progress of a run that has no supervisor.
pub(crate) struct RunOutput {
    folder: Arc<OutputFolder>,
    terminal: Arc<Terminal>,
    events: Arc<BackgroundWriter>,
    trackers: RunTrackers,
    upload: Option<ResultsUpload>,
}

impl RunOutput {
    /// Locks the folder and begins the output. A run that resumes continues the event file.
    ///
    /// # Errors
    /// A message with a help line: the folder cannot be used, or has the results of an earlier run.
    pub(crate) fn open(
        path: &Path,
        config: &RunConfig,
        resumes: bool,
        overwrites: bool,
    ) -> Result<Self, String> {
        let folder = Self::check(path, resumes, overwrites)?;
        let stored = stored_results(config, folder.path(), resumes, overwrites)?;
        let settings = EventFileSettings {
            every_steps: config.events.every_steps,
            bytes_max: config.events.limit_mib.saturating_mul(1 << 20),
        };
        let file = folder.path().join(EVENT_FILE);
        let continues = resumes && file.exists();
        let file = match continues {
            true => EventFile::append(&file, settings),
            false => EventFile::create(&file, settings),
        };
        let file = file.map_err(|error| error.to_string())?;
        let redraws = std::io::stderr().is_terminal() && !environment::terminal_is_dumb();
        let terminal = Terminal::stderr(redraws, Verbosity::Normal);
        let attempt = continues.then(|| file.next_attempt());
        if continues {
            terminal.resume(file.view().clone());
        }
        let earlier = continues.then(|| file.view());
        let terminal = Arc::new(terminal);
        let report: ProblemReport = {
            let terminal = Arc::clone(&terminal);
            Arc::new(move |problem: &str| terminal.warning(format!("warning: {problem}")))
        };
        let trackers = RunTrackers::open(config, folder.path(), earlier, &report)?;
        for notice in trackers.notices() {
            terminal.line(notice.clone());
        }
        let events = BackgroundWriter::event_file(file);
        let events = events.reporting(move |problem| report(problem));
        if let Some(attempt) = attempt {
            events.record(attempt);
        }
        let sources = vec![UploadSource::Run(folder.path().to_owned())];
        let upload = stored.map(|stored| ResultsUpload::start(stored, sources));
        Ok(Self {
            upload: upload.transpose()?,
            folder: Arc::new(folder),
            terminal,
            events: Arc::new(events),
            trackers,
        })
    }

    /// Locks the folder, and refuses the results of an earlier run unless the run resumes or overwrites them.
    ///
    /// # Errors
    /// As [`RunOutput::open`].
    pub(crate) fn check(
        path: &Path,
        resumes: bool,
        overwrites: bool,
    ) -> Result<OutputFolder, String> {
        let folder = OutputFolder::lock(path)?;
        if overwrites && !resumes {
            folder.replace_results()?;
        } else if !resumes && folder.has_run() {
            return Err(format!(
                "cannot start the run: {} has the results of an earlier run\n  \
                 help: continue it with `Trainer::resume`, replace it with `Trainer::overwrite`, or set another run.name \
                 or run.output",
                path.display()
            ));
        }
        Ok(folder)
    }

    /// Returns a tracker that also passes all events to `other`.
    pub(crate) fn tracker(&self, other: Arc<dyn Tracker>) -> Arc<dyn Tracker> {
        let (terminal, events) = (self.terminal.clone(), self.events.clone());
        let folder = Arc::clone(&self.folder);
        let mut sinks: Vec<Arc<dyn Tracker>> = vec![folder, other, terminal, events];
        sinks.extend_from_slice(self.trackers.trackers());
        Arc::new(Fanout(sinks))
    }

    /// Writes all events and the summary.
    pub(crate) fn finish(self) {
        self.events.finish();
        if let Some(problem) = self.events.problem() {
            self.terminal.line(format!("warning: {problem}"));
        }
        for problem in self.trackers.finish() {
            self.terminal.line(format!("warning: {problem}"));
        }
        let note = |note: &str| self.terminal.line(note.to_owned());
        if let Some(problem) = self.upload.and_then(|upload| upload.finish(None, &note)) {
            self.terminal.line(format!(
                "warning: the results are not complete at their address: {problem}"
            ));
        }
        self.terminal.finish();
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::Event;

    use super::*;

    #[test]
    fn an_earlier_run_is_refused_unless_it_is_resumed_or_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("runs").join("one");
        let check = |resumes, overwrites| RunOutput::check(&folder, resumes, overwrites);
        assert!(check(false, false).is_ok(), "a new folder");
        std::fs::create_dir_all(folder.join("checkpoints")).unwrap();
        let problem = check(false, false).unwrap_err();
        assert!(
            problem.contains("has the results of an earlier run"),
            "{problem}"
        );
        assert!(problem.contains("help: "), "{problem}");
        assert!(check(true, false).is_ok());
        assert!(check(true, true).is_ok());
        assert!(
            folder.join("checkpoints").exists(),
            "a run that resumes keeps its results"
        );
        let replaced = check(false, true).unwrap();
        assert!(!folder.join("checkpoints").exists());
        drop(replaced);
        assert!(
            folder.join("checkpoints").exists(),
            "a run without a step replaces nothing"
        );
    }

    #[test]
    fn the_event_file_continues_when_a_run_resumes() {
        let dir = tempfile::tempdir().unwrap();
        let lines = |resumes| {
            let settings = RunConfig::example();
            let output = RunOutput::open(dir.path(), &settings, resumes, false).unwrap();
            let tracker = output.tracker(Arc::new(Fanout(Vec::new())));
            tracker.record(Event::Notice {
                rank: None,
                message: "begun".to_owned(),
            });
            drop(tracker);
            output.finish();
            let text = std::fs::read_to_string(dir.path().join(EVENT_FILE)).unwrap();
            text.lines().count()
        };
        let first = lines(true);
        assert!(lines(true) > first);
        let locked = OutputFolder::lock(dir.path()).unwrap();
        assert!(
            RunOutput::check(dir.path(), true, false).is_err(),
            "the folder is locked"
        );
        drop(locked);
    }
}

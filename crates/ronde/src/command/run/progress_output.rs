//! [`ProgressOutput`]: shows the events of a run on the terminal or as JSON on standard output.

use std::sync::Arc;

use ronde::trackers::ProblemReport;
use ronde_cluster::{LogSink, OutputStream};
use ronde_core::{Event, Rank, Tracker};
use ronde_tracking::{BackgroundWriter, RunView, Terminal};

use crate::command::console::{console, message};

/// Shows the events of a run, besides the event file.
pub(crate) enum ProgressOutput {
    Terminal(Arc<Terminal>),
    Json(Arc<BackgroundWriter>),
}

impl ProgressOutput {
    pub(crate) fn new(json: bool) -> Self {
        if json {
            Self::Json(Arc::new(BackgroundWriter::json_lines(Box::new(
                std::io::stdout(),
            ))))
        } else {
            Self::Terminal(Arc::new({
                let console = console();
                Terminal::stderr(console.redraws, console.verbosity)
            }))
        }
    }

    pub(crate) fn tracker(&self) -> Arc<dyn Tracker> {
        match self {
            Self::Terminal(terminal) => terminal.clone(),
            Self::Json(lines) => lines.clone(),
        }
    }

    /// Continues from the state of the run's earlier attempts.
    pub(crate) fn resume(&self, view: RunView) {
        if let Self::Terminal(terminal) = self {
            terminal.resume(view);
        }
    }

    pub(crate) fn notice(&self, message: &str) {
        match self {
            Self::Terminal(terminal) => terminal.line(message),
            Self::Json(lines) => lines.record(Event::Notice {
                rank: None,
                message: message.to_owned(),
            }),
        }
    }

    /// Returns a function that shows problems of the files of a run while it is under way.
    pub(crate) fn problem_report(self: &Arc<Self>) -> ProblemReport {
        let output = Arc::clone(self);
        Arc::new(move |problem: &str| {
            let message = format!("warning: {problem}");
            match &*output {
                Self::Terminal(terminal) => terminal.warning(message),
                Self::Json(_) => output.notice(&message),
            }
        })
    }

    /// Prints all queued output.
    ///
    /// # Errors
    /// With `--json`, a message when an event could not be written.
    pub(crate) fn finish(&self) -> Result<(), String> {
        match self {
            Self::Terminal(terminal) => {
                terminal.finish();
                Ok(())
            }
            Self::Json(lines) if lines.finish() => Ok(()),
            Self::Json(lines) => Err(lines.problem().unwrap_or_else(|| {
                "writing events took too long; the last ones are missing".to_owned()
            })),
        }
    }
}

impl LogSink for ProgressOutput {
    fn line(&self, rank: Rank, _stream: OutputStream, line: &str) {
        match self {
            Self::Terminal(terminal) => terminal.rank_line(rank, line),
            Self::Json(_) => message!("[rank {rank}] {line}"),
        }
    }
}

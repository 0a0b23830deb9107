//! Where the events of a run go besides the event file: to a person or to a program.

use std::sync::Arc;

use ronde_cluster::{LogSink, OutputStream};
use ronde_core::{Event, Rank, Tracker};
use ronde_monitor::{JsonLines, Terminal};

/// Where events go besides the event file.
pub(super) enum Front {
    Person(Arc<Terminal>),
    Program(Arc<JsonLines>),
}

impl Front {
    pub(super) fn new(json: bool) -> Self {
        if json {
            Self::Program(Arc::new(JsonLines::new(Box::new(std::io::stdout()))))
        } else {
            Self::Person(Arc::new(Terminal::stderr()))
        }
    }

    pub(super) fn tracker(&self) -> Arc<dyn Tracker> {
        match self {
            Self::Person(terminal) => terminal.clone(),
            Self::Program(lines) => lines.clone(),
        }
    }

    pub(super) fn notice(&self, message: &str) {
        match self {
            Self::Person(terminal) => terminal.line(message),
            Self::Program(lines) => lines.record(Event::Notice {
                rank: None,
                message: message.to_owned(),
            }),
        }
    }

    /// Shows all that waits; what could not be shown is an error when a program asked for it.
    pub(super) fn finish(&self) -> Result<(), String> {
        match self {
            Self::Person(terminal) => {
                terminal.finish();
                Ok(())
            }
            Self::Program(lines) if lines.finish() => Ok(()),
            Self::Program(lines) => Err(lines.problem().unwrap_or_else(|| {
                "writing events took too long; the last ones are missing".to_owned()
            })),
        }
    }
}

impl LogSink for Front {
    fn line(&self, rank: Rank, _stream: OutputStream, line: &str) {
        match self {
            Self::Person(terminal) => terminal.rank_line(rank, line),
            Self::Program(_) => eprintln!("[rank {rank}] {line}"),
        }
    }
}

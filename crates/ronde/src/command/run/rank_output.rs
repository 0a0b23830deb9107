//! The output of the ranks of a job, and the report of their failure.

use std::io::Write;

use ronde_cluster::{JobOutcome, LogSink, OutputStream, StopFlag};
use ronde_core::Rank;
use signal_hook::consts::SIGPIPE;

use crate::command::console::message;

/// Prints the first failure in full, if there is one.
pub(crate) fn report_failure(outcome: &JobOutcome) {
    if let Some(report) = outcome.report() {
        message!("{report}");
    }
}

/// Forwards the output of the ranks to the same streams, each line with its rank.
pub(crate) struct RankPrefixLog {
    pub(crate) stop: StopFlag,
}

impl LogSink for RankPrefixLog {
    fn line(&self, rank: Rank, stream: OutputStream, line: &str) {
        let text = format!("[rank {rank}] {line}\n");
        match stream {
            OutputStream::Stdout => {
                let written = std::io::stdout().write_all(text.as_bytes());
                // The reader has closed the pipe, such as `head`: end as with SIGPIPE.
                if written.is_err() && self.stop.signal() == 0 {
                    self.stop.request(SIGPIPE);
                }
            }
            // An error of standard error cannot be reported anywhere.
            OutputStream::Stderr => drop(std::io::stderr().write_all(text.as_bytes())),
        }
    }
}

//! Messages while a data set is opened: progress on a terminal, notices everywhere.

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use ronde_data::DataEvent;
use ronde_tracking::Verbosity;
use ronde_tracking::render::printable;

use crate::command::console::console;

/// Number of steps in which progress is redrawn.
const PARTS: f64 = 200.0;

/// Returns a callback that writes to standard error: progress only on a terminal, and nothing with `json`.
pub(crate) fn show(json: bool) -> Arc<dyn Fn(&DataEvent) + Send + Sync> {
    let console = console();
    let is_quiet = json || console.verbosity == Verbosity::Quiet;
    let draws = !is_quiet && console.redraws;
    // The progress that was drawn last.
    let drawn: Mutex<Option<(String, u64)>> = Mutex::new(None);
    Arc::new(move |news| match news {
        DataEvent::Progress { what, share } if draws => {
            let mut drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
            let part = (share.clamp(0.0, 1.0) * PARTS) as u64;
            let now = Some((what.clone(), part));
            if *drawn != now {
                *drawn = now;
                let _ = write!(
                    std::io::stderr(),
                    "\r\x1b[K{}",
                    printable(&line(what, *share))
                );
            }
        }
        DataEvent::Notice(message) | DataEvent::Finding(message) if !is_quiet => {
            let clear = if draws { "\r\x1b[K" } else { "" };
            let _ = writeln!(std::io::stderr(), "{clear}note: {}", printable(message));
        }
        _ => {}
    })
}

/// The findings about the data while a set is opened, for output that is written later.
pub(crate) type Findings = Arc<Mutex<Vec<String>>>;

/// Receives the news of a data set that is opened.
pub(crate) type NewsReport = Arc<dyn Fn(&DataEvent) + Send + Sync>;

/// Does the same as [`show`], with each finding once; with `json`, collects the findings.
pub(crate) fn collect(json: bool) -> (NewsReport, Findings) {
    let (findings, show) = (Findings::default(), show(json));
    let (into, seen) = (Arc::clone(&findings), Mutex::new(HashSet::new()));
    let report = move |news: &DataEvent| match news {
        DataEvent::Finding(message) => {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if !seen.insert(message.clone()) {
                return;
            }
            match json {
                true => into
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(message.clone()),
                false => show(news),
            }
        }
        news => show(news),
    };
    (Arc::new(report), findings)
}

/// Formats the progress; complete progress is an empty line.
fn line(what: &str, share: f64) -> String {
    if share >= 1.0 {
        return String::new();
    }
    format!("{what}: {:.0} %", 100.0 * share.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_one_line_and_is_cleared_at_the_end() {
        assert_eq!(line("indexing 3 files", 0.256), "indexing 3 files: 26 %");
        assert_eq!(line("indexing 3 files", 1.0), "");
    }
}

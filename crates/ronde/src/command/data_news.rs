//! What happens while a data set is opened: progress on a terminal, notices for everybody.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use ronde_data::DataNews;

/// Parts of the whole at which progress is drawn again.
const PARTS: f64 = 200.0;

/// Writes to standard error; progress only where that is a terminal, nothing with `json`.
pub(crate) fn show(json: bool) -> Arc<dyn Fn(&DataNews) + Send + Sync> {
    let draws = !json && std::io::stderr().is_terminal();
    // What was drawn last.
    let drawn: Mutex<Option<(String, u64)>> = Mutex::new(None);
    Arc::new(move |news| match news {
        DataNews::Progress { what, share } if draws => {
            let mut drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
            let part = (share.clamp(0.0, 1.0) * PARTS) as u64;
            let now = Some((what.clone(), part));
            if *drawn != now {
                *drawn = now;
                let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(what, *share));
            }
        }
        DataNews::Notice(message) | DataNews::Finding(message) if !json => {
            let clear = if draws { "\r\x1b[K" } else { "" };
            let _ = writeln!(std::io::stderr(), "{clear}note: {message}");
        }
        _ => {}
    })
}

/// Complete progress leaves an empty line.
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
    fn progress_is_a_line_and_goes_away() {
        assert_eq!(line("indexing 3 files", 0.256), "indexing 3 files: 26 %");
        assert_eq!(line("indexing 3 files", 1.0), "");
    }
}

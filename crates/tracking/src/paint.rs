//! The two ways to show progress: a bar that is redrawn in place, and plain lines.

use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::render;
use crate::view::RunView;

/// Time between two plain progress lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(2);

/// Draws the progress of a run. Errors of the screen are ignored.
pub(crate) trait Painter {
    /// Prints a permanent line.
    fn line(&mut self, line: &str);
    /// Shows the current state.
    fn frame(&mut self, view: &RunView);
    /// Removes the bar and prints the summary.
    fn finish(&mut self, summary: &str);
    /// Returns the number of columns.
    fn columns(&self) -> usize;
}

/// Prints plain lines: one every two seconds and at every tenth of the run.
pub(crate) struct PlainPainter {
    writer: Box<dyn Write + Send>,
    committed: u64,
    tenth: u64,
    at: Option<Instant>,
}

impl PlainPainter {
    pub(crate) fn new(writer: Box<dyn Write + Send>) -> Self {
        Self {
            writer,
            committed: 0,
            tenth: 0,
            at: None,
        }
    }
}

impl Painter for PlainPainter {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.writer, "{line}");
    }

    fn frame(&mut self, view: &RunView) {
        let Some(progress) = view.progress else {
            return;
        };
        if progress.committed == self.committed {
            return;
        }
        let now = ronde_clock::now();
        let tenth = (10 * progress.committed)
            .checked_div(view.steps)
            .unwrap_or(0);
        let due = self.at.is_none_or(|at| now - at >= PLAIN_INTERVAL) || tenth > self.tenth;
        if due {
            self.committed = progress.committed;
            self.tenth = tenth;
            self.at = Some(now);
            let _ = writeln!(self.writer, "{}", render::progress(view));
            let _ = self.writer.flush();
        }
    }

    fn finish(&mut self, summary: &str) {
        if !summary.is_empty() {
            let _ = writeln!(self.writer, "{summary}");
        }
        let _ = self.writer.flush();
    }

    fn columns(&self) -> usize {
        terminal_columns().unwrap_or(usize::MAX)
    }
}

/// Returns the number of columns of the terminal that standard error is, if it is one.
#[must_use]
pub fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// Draws a line with a bar, and on request a line per worker, redrawn in place on standard error.
pub(crate) struct BarPainter {
    all: MultiProgress,
    rows: Vec<ProgressBar>,
    /// Whether each worker has a line.
    shows_workers: bool,
}

impl BarPainter {
    pub(crate) fn new(shows_workers: bool) -> Self {
        Self {
            all: MultiProgress::new(),
            rows: Vec::new(),
            shows_workers,
        }
    }
}

impl Painter for BarPainter {
    fn line(&mut self, line: &str) {
        if self.all.println(line).is_err() {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn frame(&mut self, view: &RunView) {
        if view.steps == 0 {
            return;
        }
        let columns = self.columns();
        let mut lines = vec![render::bar(view, columns)];
        if self.shows_workers {
            lines.extend(render::workers(view, columns));
        }
        for (at, line) in lines.into_iter().enumerate() {
            if at == self.rows.len() {
                let row = ProgressBar::new_spinner();
                if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                    row.set_style(style);
                }
                self.rows.push(self.all.add(row));
            }
            self.rows[at].set_message(line);
        }
    }

    fn finish(&mut self, summary: &str) {
        for row in self.rows.drain(..) {
            row.finish_and_clear();
        }
        let _ = self.all.clear();
        if !summary.is_empty() {
            let _ = writeln!(std::io::stderr(), "{summary}");
        }
    }

    fn columns(&self) -> usize {
        terminal_columns().unwrap_or(80)
    }
}

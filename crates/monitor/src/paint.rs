//! The two ways to show progress: a bar that is redrawn in place, and plain lines.

use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::clock;
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
        let now = clock::now();
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
}

/// Draws a bar and a line per worker, redrawn in place on standard error.
pub(crate) struct BarPainter {
    all: MultiProgress,
    bar: Option<ProgressBar>,
    workers: Vec<ProgressBar>,
}

impl BarPainter {
    pub(crate) fn new() -> Self {
        Self {
            all: MultiProgress::new(),
            bar: None,
            workers: Vec::new(),
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
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(view.steps);
            if let Ok(style) = ProgressStyle::with_template(BAR) {
                bar.set_style(style.progress_chars("=> "));
            }
            self.all.add(bar)
        });
        bar.set_position(view.progress.map_or(0, |p| p.committed));
        let left = view
            .left_s()
            .map_or_else(String::new, |s| format!("  {} left", render::duration(s)));
        bar.set_message(format!("{}{left}", render::bar_message(view)));
        for (at, line) in render::workers(view).into_iter().enumerate() {
            if at == self.workers.len() {
                let row = ProgressBar::new_spinner();
                if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                    row.set_style(style);
                }
                self.workers.push(self.all.add(row));
            }
            self.workers[at].set_message(line);
        }
    }

    fn finish(&mut self, summary: &str) {
        for row in self.workers.drain(..).chain(self.bar.take()) {
            row.finish_and_clear();
        }
        let _ = self.all.clear();
        if !summary.is_empty() {
            let _ = writeln!(std::io::stderr(), "{summary}");
        }
    }
}

const BAR: &str = "[{bar:16}] {pos}/{len}  {wide_msg}";

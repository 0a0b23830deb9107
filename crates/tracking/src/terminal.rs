//! [`Terminal`]: shows the progress of a run on standard error.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_core::{Event, Rank, Tracker};

use crate::paint::{BarPainter, Painter, PlainPainter};
use crate::render;
use crate::view::RunView;

/// How much a [`Terminal`] prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Warnings only.
    Quiet,
    /// Progress, notable events and a summary.
    #[default]
    Normal,
    /// Also the processes of the workers, and a line per worker while the run lasts.
    Verbose,
}

/// Time between two redraws.
const FRAME: Duration = Duration::from_millis(100);
/// Maximum number of lines waiting to be printed; further lines are dropped and counted.
const LINES_MAX: usize = 4_096;
/// Longest time that [`Terminal::finish`] waits for the screen.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// Shows the progress of a run: a line that is updated in place on a terminal, and with [`Verbosity::Verbose`] a line per
/// worker; elsewhere a plain line every two
/// seconds and at every tenth of the run. Prints a summary at the end.
///
/// A thread draws, so recording never waits for the screen.
pub struct Terminal {
    screen: Arc<Screen>,
    verbosity: Verbosity,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Screen {
    state: Mutex<ScreenState>,
    changed: Condvar,
}

#[derive(Default)]
struct ScreenState {
    view: RunView,
    /// The steps that earlier attempts have committed, which are not shown as progress.
    resumed_at: Option<u64>,
    lines: VecDeque<String>,
    dropped: u64,
    closing: bool,
    closed: bool,
}

impl Screen {
    fn lock(&self) -> MutexGuard<'_, ScreenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal {
    /// Prints to standard error: a bar that is redrawn in place if the terminal supports that, and plain lines otherwise.
    #[must_use]
    pub fn stderr(redraws: bool, verbosity: Verbosity) -> Self {
        if redraws && verbosity > Verbosity::Quiet {
            let shows_workers = verbosity == Verbosity::Verbose;
            Self::start(Box::new(BarPainter::new(shows_workers)), verbosity)
        } else {
            Self::plain(Box::new(std::io::stderr()), verbosity)
        }
    }

    /// Prints plain lines to any writer.
    #[must_use]
    pub fn plain(writer: Box<dyn Write + Send>, verbosity: Verbosity) -> Self {
        Self::start(Box::new(PlainPainter::new(writer)), verbosity)
    }

    fn start(mut painter: Box<dyn Painter + Send>, verbosity: Verbosity) -> Self {
        let screen = Arc::<Screen>::default();
        let of_thread = Arc::clone(&screen);
        let thread = thread::spawn(move || draw(&of_thread, painter.as_mut(), verbosity));
        Self {
            screen,
            verbosity,
            thread: Mutex::new(Some(thread)),
        }
    }

    /// Continues from the state of a run's earlier attempts.
    pub fn resume(&self, view: RunView) {
        let mut state = self.screen.lock();
        state.resumed_at = view.progress.map(|progress| progress.committed);
        state.view = view;
    }

    /// Prints a line above the bar, unless the terminal is quiet.
    pub fn line(&self, line: impl Into<String>) {
        if self.verbosity == Verbosity::Quiet {
            return;
        }
        push(&mut self.screen.lock(), line.into());
    }

    /// Prints a warning above the bar, also if the terminal is quiet.
    pub fn warning(&self, line: impl Into<String>) {
        push(&mut self.screen.lock(), line.into());
    }

    /// Prints a line of a rank's output above the bar: `[rank 1] line`. Unlike recording this blocks
    /// while the queue is full, so that no output is lost.
    pub fn rank_line(&self, rank: Rank, line: &str) {
        let mut state = self.screen.lock();
        while state.lines.len() >= LINES_MAX && !state.closing {
            self.screen.changed.notify_all();
            state = self
                .screen
                .changed
                .wait_timeout(state, FRAME)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        push(&mut state, format!("[rank {rank}] {line}"));
    }

    /// Returns the current state of the run.
    #[must_use]
    pub fn view(&self) -> RunView {
        self.screen.lock().view.clone()
    }

    /// Removes the bar, prints the queued lines and the summary, and ends the drawing thread. Waits for
    /// the screen for at most five seconds. A second call does nothing.
    pub fn finish(&self) {
        let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        else {
            return;
        };
        let mut state = self.screen.lock();
        state.closing = true;
        self.screen.changed.notify_all();
        let deadline = ronde_clock::now() + FINISH_MAX;
        while !state.closed {
            let left = deadline.saturating_duration_since(ronde_clock::now());
            if left.is_zero() {
                return;
            }
            state = self
                .screen
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(state);
        // The thread has reported that it is done; a panic in it is not propagated.
        let _ = thread.join();
    }
}

impl Tracker for Terminal {
    fn record(&self, event: Event) {
        let mut state = self.screen.lock();
        state.view.apply(&event);
        let mut lines = Vec::new();
        if self.verbosity > Verbosity::Quiet || render::is_warning(&event) {
            lines.extend(render::announcement(&state.view, &event));
        }
        if self.verbosity == Verbosity::Verbose {
            lines.extend(render::details(&event));
        }
        for line in lines {
            push(&mut state, render::printable(&line).into_owned());
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.finish();
    }
}

fn push(state: &mut ScreenState, line: String) {
    if state.lines.len() < LINES_MAX {
        state.lines.push_back(line);
    } else {
        state.dropped += 1;
    }
}

/// Runs the drawing thread.
fn draw(screen: &Screen, painter: &mut dyn Painter, verbosity: Verbosity) {
    let mut state = screen.lock();
    loop {
        let lines = std::mem::take(&mut state.lines);
        let dropped = std::mem::take(&mut state.dropped);
        let (view, closing) = (state.view.clone(), state.closing);
        let committed = view.progress.map(|progress| progress.committed);
        let is_old = committed.is_some() && committed == state.resumed_at;
        drop(state);
        if lines.len() >= LINES_MAX {
            screen.changed.notify_all();
        }
        for line in lines {
            painter.line(&line);
        }
        if dropped > 0 {
            painter.line(&format!("note: {dropped} lines were not printed"));
        }
        match (closing, verbosity) {
            (false, Verbosity::Quiet) => {}
            (false, _) if is_old => {}
            (false, _) => painter.frame(&view),
            (true, Verbosity::Quiet) => painter.finish(""),
            (true, _) => {
                let summary = render::summary(&view, painter.columns());
                painter.finish(&render::printable(&summary));
            }
        }
        state = screen.lock();
        if closing {
            state.closed = true;
            screen.changed.notify_all();
            return;
        }
        if !state.closing {
            state = screen
                .changed
                .wait_timeout(state, FRAME)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

#[cfg(test)]
mod tests;

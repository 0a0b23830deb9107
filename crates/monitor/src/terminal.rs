//! [`Terminal`]: progress for people, on standard error.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_core::{Event, Rank, Tracker};

use crate::clock;
use crate::paint::{Bars, Painter, Plain};
use crate::render;
use crate::view::RunView;

/// Time between two pictures.
const FRAME: Duration = Duration::from_millis(100);
/// Lines that wait to be printed at most; more are dropped and counted.
const LINES_MAX: usize = 4_096;
/// How long [`Terminal::finish`] waits for the screen.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// Shows a run: a bar and a line per worker on a terminal, plain lines every two seconds or tenth
/// of the run elsewhere, a summary at the end.
///
/// A thread draws, so that recording never waits for the screen.
pub struct Terminal {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    view: RunView,
    lines: VecDeque<String>,
    dropped: u64,
    closing: bool,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal {
    /// A bar when standard error is a terminal, plain lines otherwise.
    #[must_use]
    pub fn stderr() -> Self {
        if std::io::stderr().is_terminal() {
            Self::start(Box::new(Bars::new()))
        } else {
            Self::plain(Box::new(std::io::stderr()))
        }
    }

    /// Plain lines to any writer.
    #[must_use]
    pub fn plain(writer: Box<dyn Write + Send>) -> Self {
        Self::start(Box::new(Plain::new(writer)))
    }

    fn start(mut painter: Box<dyn Painter + Send>) -> Self {
        let shared = Arc::<Shared>::default();
        let state = Arc::clone(&shared);
        let thread = thread::spawn(move || draw(&state, painter.as_mut()));
        Self {
            shared,
            thread: Mutex::new(Some(thread)),
        }
    }

    /// Prints a line above the bar.
    pub fn line(&self, line: impl Into<String>) {
        push(&mut self.shared.lock(), line.into());
    }

    /// Prints a line of a rank's output above the bar: `[rank 1] line`. Unlike recording this waits
    /// while too many lines wait for the screen, so that no output is lost.
    pub fn rank_line(&self, rank: Rank, line: &str) {
        let mut state = self.shared.lock();
        while state.lines.len() >= LINES_MAX && !state.closing {
            self.shared.changed.notify_all();
            state = self
                .shared
                .changed
                .wait_timeout(state, FRAME)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        push(&mut state, format!("[rank {rank}] {line}"));
    }

    /// The state so far.
    #[must_use]
    pub fn view(&self) -> RunView {
        self.shared.lock().view.clone()
    }

    /// Takes the bar away, prints all that waits and the summary, and ends the drawing thread.
    /// Waits at most five seconds for the screen. A second call does nothing.
    pub fn finish(&self) {
        let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        else {
            return;
        };
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.changed.notify_all();
        let deadline = clock::now() + FINISH_MAX;
        while !state.closed {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return;
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(state);
        // It has said that it is done; a panic of it is not ours to pass on.
        let _ = thread.join();
    }
}

impl Tracker for Terminal {
    fn record(&self, event: Event) {
        let mut state = self.shared.lock();
        state.view.apply(&event);
        if let Some(line) = render::announcement(&state.view, &event) {
            push(&mut state, line);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.finish();
    }
}

fn push(state: &mut State, line: String) {
    if state.lines.len() < LINES_MAX {
        state.lines.push_back(line);
    } else {
        state.dropped += 1;
    }
}

/// The drawing thread.
fn draw(shared: &Shared, painter: &mut dyn Painter) {
    let mut state = shared.lock();
    loop {
        let lines = std::mem::take(&mut state.lines);
        let dropped = std::mem::take(&mut state.dropped);
        let (view, closing) = (state.view.clone(), state.closing);
        drop(state);
        if lines.len() >= LINES_MAX {
            shared.changed.notify_all();
        }
        for line in lines {
            painter.line(&line);
        }
        if dropped > 0 {
            painter.line(&format!("note: {dropped} lines were not printed"));
        }
        if closing {
            painter.finish(&render::summary(&view));
        } else {
            painter.frame(&view);
        }
        state = shared.lock();
        if closing {
            state.closed = true;
            shared.changed.notify_all();
            return;
        }
        if !state.closing {
            state = shared
                .changed
                .wait_timeout(state, FRAME)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

#[cfg(test)]
mod tests;

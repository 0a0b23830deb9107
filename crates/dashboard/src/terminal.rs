//! [`show`]: the runs of a folder in the terminal, live; [`print_lines`]: the same as lines, without a terminal.

mod keys;
mod lines;
mod screen;
mod views;

use std::mem::ManuallyDrop;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::error::DashboardError;
use crate::library::{RunLibrary, RunSummary};

use keys::{KeyReader, TerminalInput};
pub use lines::print_lines;

/// Longest time without a look at the keys and the runs.
const FRAME: Duration = Duration::from_millis(250);

/// The parts of the display of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tab {
    Curves,
    Ranks,
    Members,
    Checkpoints,
    Messages,
}

impl Tab {
    const ALL: [Self; 5] = [
        Self::Curves,
        Self::Ranks,
        Self::Members,
        Self::Checkpoints,
        Self::Messages,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Curves => "Curves",
            Self::Ranks => "Ranks",
            Self::Members => "Members",
            Self::Checkpoints => "Checkpoints",
            Self::Messages => "Messages",
        }
    }

    /// Returns the tab `step` positions to the right, from the last one on to the first.
    fn moved(self, step: isize) -> Self {
        let at = Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0);
        Self::ALL[at.wrapping_add_signed(step + Self::ALL.len() as isize) % Self::ALL.len()]
    }
}

/// The user's choice.
#[derive(Debug)]
struct TopState {
    /// The run in focus; `None`: the newest one.
    run: Option<String>,
    tab: Tab,
    /// Number of lines above the visible ones.
    scrolled: usize,
    shows_help: bool,
    is_over: bool,
    colour: bool,
}

impl TopState {
    fn new(colour: bool) -> Self {
        Self {
            run: None,
            tab: Tab::Curves,
            scrolled: 0,
            shows_help: false,
            is_over: false,
            colour,
        }
    }

    /// Returns the position of the run in focus.
    fn position(&self, runs: &[RunSummary]) -> usize {
        let chosen = self.run.as_ref();
        let at = chosen.and_then(|id| runs.iter().position(|run| run.id == *id));
        at.unwrap_or(0)
    }

    /// Handles a key.
    fn press(&mut self, key: KeyEvent, runs: &[RunSummary]) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if self.shows_help && !is_control {
            self.shows_help = false;
            return;
        }
        let at = self.position(runs);
        let mut choose = |at: usize| {
            self.run = runs.get(at).map(|run| run.id.clone());
            self.scrolled = 0;
        };
        match key.code {
            KeyCode::Char('c') if is_control => self.is_over = true,
            KeyCode::Char('q') | KeyCode::Esc => self.is_over = true,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Up | KeyCode::Char('k') => choose(at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => {
                choose((at + 1).min(runs.len().saturating_sub(1)));
            }
            KeyCode::Home => choose(0),
            KeyCode::End => choose(runs.len().saturating_sub(1)),
            KeyCode::Right | KeyCode::Tab => self.open(self.tab.moved(1)),
            KeyCode::Left | KeyCode::BackTab => self.open(self.tab.moved(-1)),
            KeyCode::Char(digit @ '1'..='5') => {
                self.open(Tab::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::PageDown | KeyCode::Char(' ') => self.scrolled += 10,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            _ => {}
        }
    }

    fn open(&mut self, tab: Tab) {
        (self.tab, self.scrolled) = (tab, 0);
    }
}

/// The terminal in raw mode. It is restored when the display ends, also by an error. It is never dropped: on a terminal that
/// has hung up, `ratatui` would then print the error, and panic where standard error is that terminal.
struct TopScreen(ManuallyDrop<DefaultTerminal>);

impl Drop for TopScreen {
    fn drop(&mut self) {
        // A terminal that has hung up has nothing to restore.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// Shows the runs until the user presses `q`, the terminal hangs up, its input ends, or `is_stopping` returns true, which is
/// called four times a second. Keys are read from standard input. The terminal is restored at the end and on a panic.
///
/// # Errors
/// [`DashboardError::Terminal`] if the terminal cannot be used.
pub fn show(
    library: &RunLibrary,
    colour: bool,
    is_stopping: &dyn Fn() -> bool,
) -> Result<(), DashboardError> {
    let failed = |cause| DashboardError::Terminal { cause };
    let mut screen = TopScreen(ManuallyDrop::new(ratatui::try_init().map_err(failed)?));
    let mut keys = KeyReader::new(std::io::stdin());
    let mut state = TopState::new(colour);
    while !state.is_over && !is_stopping() {
        let drawn = draw(&mut screen.0, library, &state);
        let limit = if drawn.is_ok() { FRAME } else { Duration::ZERO };
        // A terminal that has hung up cannot be drawn on either; that is not an error.
        let TerminalInput::Keys(pressed) = keys.wait(limit).map_err(failed)? else {
            break;
        };
        let runs = drawn.map_err(failed)?;
        pressed.into_iter().for_each(|key| state.press(key, &runs));
    }
    Ok(())
}

/// Makes the terminal usable for a shell where [`show`] cannot end because the terminal accepts no output.
pub fn restore_input() {
    let _ = ratatui::crossterm::terminal::disable_raw_mode();
}

/// Draws a frame and returns the runs that it shows.
fn draw(
    terminal: &mut DefaultTerminal,
    library: &RunLibrary,
    state: &TopState,
) -> std::io::Result<Vec<RunSummary>> {
    let (_, runs, problem) = library.summaries();
    let at = state.position(&runs);
    let id = runs.get(at).map_or("", |run| &*run.id);
    let mut drawn = Ok(());
    let found = library.visit(id, |run| {
        drawn = terminal
            .draw(|frame| screen::draw(frame, state, &runs, Some(run.history), problem.as_deref()))
            .map(drop);
    });
    if found.is_none() {
        drawn = terminal
            .draw(|frame| screen::draw(frame, state, &runs, None, problem.as_deref()))
            .map(drop);
    }
    drawn?;
    Ok(runs)
}

#[cfg(test)]
mod tests;

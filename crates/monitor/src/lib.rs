//! Displays and records the events of a run: terminal progress and event files.
//!
//! Every sink is a [`ronde_core::Tracker`]. The displayed text is computed by [`render`] from a
//! [`RunView`], which is a fold over the events so far.

mod clock;
mod error;
mod event_file;
mod event_line;
mod fanout;
mod json_lines;
mod paint;
pub mod render;
mod run_folder;
mod terminal;
mod throughput;
mod view;

pub use error::MonitorError;
pub use event_file::{EventFile, EventFileSettings, previous};
pub use event_line::parse_event_line;
pub use fanout::Fanout;
pub use json_lines::JsonLines;
pub use run_folder::is_running;
pub use terminal::{Terminal, Verbosity};
pub use throughput::Throughput;
pub use view::{EpochView, EvaluationView, ModelView, RunView, StepView, WorkerView};

//! Displays and records the events of a run: terminal progress, event files, and trackers for other tools.
//!
//! Every sink is a [`ronde_core::Tracker`]. The displayed text is computed by [`render`] from a
//! [`RunView`], which is a fold over the events so far.

mod background;
mod consensus;
mod error;
mod event_file;
mod event_line;
mod event_writer;
mod fanout;
mod loss_curve;
mod paint;
pub mod plot;
pub mod render;
mod run_folder;
mod terminal;
mod throughput;
mod time_left;
mod timeline;
pub mod track;
mod view;

pub use background::BackgroundWriter;
pub use consensus::ConsensusTally;
pub use error::MonitorError;
pub use event_file::{EventFile, EventFileSettings, previous};
pub use event_line::parse_event_line;
pub use event_writer::EventWriter;
pub use fanout::Fanout;
pub use loss_curve::{LossCurve, LossRecorder};
pub use paint::terminal_columns;
pub use run_folder::is_running;
pub use terminal::{Terminal, Verbosity};
pub use throughput::Throughput;
pub use timeline::RunTimeline;
pub use view::{
    EpochView, EvaluationView, FailureView, ModelView, RunView, SharesView, StepView,
    StragglerView, WorkerView,
};

//! Where events go: terminal progress and event files.
//!
//! Every sink is a [`ronde_core::Tracker`]. What a user sees is [`render`] of a [`RunView`], and a
//! view is nothing but the events so far, folded.

mod clock;
mod error;
mod fanout;
mod json_lines;
mod paint;
pub mod render;
mod terminal;
mod throughput;
mod view;

pub use error::MonitorError;
pub use fanout::Fanout;
pub use json_lines::JsonLines;
pub use terminal::Terminal;
pub use throughput::Throughput;
pub use view::{EpochView, EvaluationView, ModelView, Progress, RunView, WorkerView};

//! From a run file to a trained model: [`config`] to [`plan`] to the step loop in [`training`].
//!
//! Read [`worker`] first: it is the way of a run, on one screen.

#![forbid(unsafe_code)]

pub mod checkpoints;
pub mod clock;
pub mod config;
mod cores;
pub mod divergence;
pub mod error;
pub mod evaluate;
pub mod export;
pub mod flights;
mod healing;
mod history;
pub mod memory;
pub mod place;
pub mod plan;
pub mod seat;
pub mod task;
pub mod training;
pub mod worker;

pub use config::RunConfig;
pub use error::TrainError;
pub use place::Place;
pub use plan::Plan;
pub use seat::Seat;
pub use task::Task;
pub use training::{Trained, Training};

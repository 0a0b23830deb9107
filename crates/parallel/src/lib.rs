//! The strategies: how one step of a model is distributed over a process group.
//!
//! A strategy sees the group through [`ronde_core::Collectives`] and the model through
//! [`ronde_engine::Layer`]: no socket, no thread; a clock only where one is handed in. Read [`bucket`],
//! then [`synchronous`].

#![forbid(unsafe_code)]

pub mod bucket;
pub mod error;
pub mod loss_scale;
pub mod state;
pub mod strategy;
pub mod synchronous;
mod update_sums;
pub mod zero;

pub use error::ParallelError;
pub use loss_scale::LossScaling;
pub use state::{ModelState, TensorRange, remapped};
pub use strategy::{
    EvaluationPart, HeldVector, HeldVectorMut, MicroBatch, ReducedGradient, Strategy, UpdateReport,
};
pub use synchronous::{ComputeClock, ComputeTimes, SynchronousConfig, SynchronousStrategy};
pub use zero::ZeroLevel;

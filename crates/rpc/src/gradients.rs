//! Gradients across workers: parts of a model that live on other workers, and contexts that record their calls.
//!
//! A worker makes a part of a model callable by sharing a [`ModelStage`] and registering the functions of
//! [`register_stage_functions`]. Another one opens a [`GradientContext`] over such stages, which records each call of a
//! [`ShardPass`]; its backward pass visits the stages in reverse. Gradients are added at the stages along the tree of the
//! exact sum, so they do not depend on the order in which passes end.
//!
//! The context at a stage is an object that its creator holds, so it ends with the creator's lease.

mod context;
mod messages;
mod stage;

pub use context::{GradientContext, RemoteStage, ShardPass, StageOutput};
pub use stage::{ModelStage, register_stage_functions};

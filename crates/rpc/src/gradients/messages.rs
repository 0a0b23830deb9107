//! The functions of stages and their arguments. Activations travel as values, with their shapes in the arguments.

use serde::{Deserialize, Serialize};

use crate::function::RemoteFunction;
use crate::references::ReferenceTicket;

/// Opens a context on a stage; returns its ticket for the caller.
pub(super) const OPEN: RemoteFunction<OpenStage, ReferenceTicket> =
    RemoteFunction::new("ronde.stages.open", 1);
/// Computes the output of a shard; returns its shape.
pub(super) const FORWARD: RemoteFunction<StageCall, Vec<usize>> =
    RemoteFunction::new("ronde.stages.forward", 1);
/// Computes the gradients of a shard; returns the shape of the input's gradient, if that is requested.
pub(super) const BACKWARD: RemoteFunction<StageCall, Vec<usize>> =
    RemoteFunction::new("ronde.stages.backward", 1);
/// Returns the sum of the gradients of all shards.
pub(super) const GRADIENT: RemoteFunction<ReferenceTicket, ()> =
    RemoteFunction::new("ronde.stages.gradient", 1);
/// Updates the parameters of a stage with the sum of the gradients.
pub(super) const UPDATE: RemoteFunction<StageUpdate, ()> =
    RemoteFunction::new("ronde.stages.update", 1);
/// Ends a context and discards its gradients.
pub(super) const DISCARD: RemoteFunction<ReferenceTicket, ()> =
    RemoteFunction::new("ronde.stages.discard", 1);
/// Returns the parameters of a stage.
pub(super) const STATE: RemoteFunction<ReferenceTicket, ()> =
    RemoteFunction::new("ronde.stages.state", 1);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OpenStage {
    pub(super) stage: ReferenceTicket,
    pub(super) step: u64,
    pub(super) shards: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StageCall {
    /// The context at the stage.
    pub(super) context: ReferenceTicket,
    pub(super) shard: u32,
    /// The shape of the values.
    pub(super) shape: Vec<usize>,
    /// For a backward pass: whether the gradient of the input is returned.
    pub(super) needs_input_gradient: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StageUpdate {
    pub(super) context: ReferenceTicket,
    /// The number of samples of all shards, that divides the sum.
    pub(super) samples: u64,
    pub(super) learning_rate: f64,
}

//! [`GradientContext`] and [`ShardPass`]: calls of stages, recorded so that gradients can be passed back.

use std::time::Duration;

use ronde_core::{Shard, Step};
use ronde_engine::Activation;
use serde::Serialize;

use super::messages::{
    BACKWARD, DISCARD, FORWARD, GRADIENT, OPEN, OpenStage, STATE, StageCall, StageUpdate, UPDATE,
};
use super::stage::ModelStage;
use crate::calls::PendingCall;
use crate::error::{GradientProblem, RpcError};
use crate::function::RemoteFunction;
use crate::node::RpcNode;
use crate::peers::CallTarget;
use crate::references::{ReferenceTicket, RemoteRef};
use crate::values::CallValues;

/// A part of a model on another worker.
pub type RemoteStage = RemoteRef<ModelStage>;

/// The recorded calls of the stages of a model in one step. When it is dropped, or when the lease of its process ends, the
/// stages discard its gradients and become free for another context.
///
/// A context is not a transaction: if [`GradientContext::update`] fails, some stages may have been updated.
pub struct GradientContext<'a> {
    node: &'a RpcNode,
    limit: Duration,
    /// The stages, and the context at each.
    stages: Vec<(RemoteStage, RemoteRef<()>)>,
}

/// An output of a stage, or the input of a pass.
#[derive(Debug, Clone)]
pub struct StageOutput {
    /// The number of the call in its pass, from 1; 0 for an input.
    call: usize,
    values: Activation,
}

impl StageOutput {
    /// Returns the values.
    #[must_use]
    pub fn values(&self) -> &Activation {
        &self.values
    }
}

/// The calls of one logical shard. Several passes of a context may run at the same time, on separate threads.
pub struct ShardPass<'a> {
    context: &'a GradientContext<'a>,
    shard: Shard,
    /// For each call: the stage, and the number of the call whose output is its input.
    calls: Vec<(usize, usize)>,
}

impl<'a> GradientContext<'a> {
    /// Opens a context for a step with a number of logical shards on stages of other workers. Every call takes at most
    /// `limit`. Cost: one call to each stage.
    ///
    /// # Errors
    /// Those of [`RpcNode::call`]; a stage that another context uses is reported as [`RpcError::FunctionFailed`].
    pub fn open(
        node: &'a RpcNode,
        step: Step,
        shards: u32,
        stages: &[RemoteStage],
        limit: Duration,
    ) -> Result<Self, RpcError> {
        let mut open = Vec::new();
        for stage in stages {
            let target = CallTarget::Worker(stage.owner());
            let arguments = OpenStage {
                stage: stage.ticket(),
                step: step.0,
                shards,
            };
            let (ticket, _) = node.call(target, &OPEN, &arguments, CallValues::none(), limit)?;
            open.push((stage.clone(), node.hold(ticket)));
        }
        Ok(Self {
            node,
            limit,
            stages: open,
        })
    }

    /// Begins to record the calls of a shard.
    #[must_use]
    pub fn pass(&'a self, shard: Shard) -> ShardPass<'a> {
        ShardPass {
            context: self,
            shard,
            calls: Vec::new(),
        }
    }

    /// Returns the sum of the gradients of all shards at a stage, in the order of its tensors. It stays there.
    ///
    /// # Errors
    /// [`RpcError::FunctionFailed`] while a shard was not passed backward, and those of [`RpcNode::call`].
    pub fn gradient(&self, stage: usize) -> Result<Vec<f32>, RpcError> {
        let (stage, context) = self.stage(stage)?;
        let (target, none) = (CallTarget::Worker(stage.owner()), CallValues::none());
        let call = self
            .node
            .call(target, &GRADIENT, &context.ticket(), none, self.limit)?;
        Ok(call.1.into_vec())
    }

    /// Updates the parameters of all stages at the same time with the gradients of all shards, divided by the number of
    /// samples, and ends the context.
    ///
    /// # Errors
    /// The first error of a stage: [`RpcError::FunctionFailed`] while a shard was not passed backward, and those of
    /// [`RpcNode::call`].
    pub fn update(self, samples: u64, learning_rate: f64) -> Result<(), RpcError> {
        let update = |context: ReferenceTicket| StageUpdate {
            context,
            samples,
            learning_rate,
        };
        self.call_all(&UPDATE, update)
    }

    /// Ends the context: its gradients are discarded, and the stages are free for another one when this returns. After a
    /// drop, they become free a little later.
    ///
    /// # Errors
    /// The first error of a stage, as of [`RpcNode::call`].
    pub fn discard(self) -> Result<(), RpcError> {
        self.call_all(&DISCARD, |context| context)
    }

    /// Calls all stages at the same time and waits for all; returns the first error.
    fn call_all<A: Serialize>(
        &self,
        function: &RemoteFunction<A, ()>,
        arguments: impl Fn(ReferenceTicket) -> A,
    ) -> Result<(), RpcError> {
        let start = |(stage, context): &(RemoteStage, RemoteRef<()>)| {
            let (target, none) = (CallTarget::Worker(stage.owner()), CallValues::none());
            let arguments = arguments(context.ticket());
            self.node
                .start(target, function, &arguments, none, self.limit)
        };
        let calls: Vec<Result<PendingCall<()>, RpcError>> = self.stages.iter().map(start).collect();
        let wait = |call: Result<PendingCall<()>, RpcError>| call?.wait().map(drop);
        let ends: Vec<Result<(), RpcError>> = calls.into_iter().map(wait).collect();
        ends.into_iter().collect()
    }

    fn stage(&self, index: usize) -> Result<&(RemoteStage, RemoteRef<()>), RpcError> {
        let known = self.stages.len();
        let stage = self.stages.get(index);
        Ok(stage.ok_or(GradientProblem::NoSuchStage {
            stage: index,
            stages: known,
        })?)
    }
}

impl RpcNode {
    /// Returns the parameters of a stage of another worker, in the order of its tensors.
    ///
    /// # Errors
    /// As [`RpcNode::call`].
    pub fn stage_state(&self, stage: &RemoteStage, limit: Duration) -> Result<Vec<f32>, RpcError> {
        let (target, none) = (CallTarget::Worker(stage.owner()), CallValues::none());
        let (_, state) = self.call(target, &STATE, &stage.ticket(), none, limit)?;
        Ok(state.into_vec())
    }
}

impl ShardPass<'_> {
    /// Returns the input of the pass, to which gradients are not passed back.
    #[must_use]
    pub fn input(&self, values: Activation) -> StageOutput {
        StageOutput { call: 0, values }
    }

    /// Calls a stage of the context by its index, with the input or an output of this pass, and records the call. An
    /// output may be the input of several stages.
    ///
    /// # Errors
    /// [`RpcError::Gradients`] for a stage that was called in this pass before or an output of another pass, and those of
    /// [`RpcNode::call`].
    pub fn forward(&mut self, stage: usize, input: &StageOutput) -> Result<StageOutput, RpcError> {
        if self.calls.iter().any(|(called, _)| *called == stage) {
            return Err(GradientProblem::CalledBefore { stage }.into());
        }
        if input.call > self.calls.len() {
            return Err(GradientProblem::OtherPass.into());
        }
        let (shape, values) = self.call(stage, &FORWARD, input.values.clone(), true)?;
        self.calls.push((stage, input.call));
        Ok(StageOutput {
            call: self.calls.len(),
            values: activation(&shape, values)?,
        })
    }

    /// Passes gradients of outputs back through all recorded calls, the last one first. Each stage adds the gradient of
    /// its parameters to the context. Gradients of an output with several uses are added in the reverse order of the
    /// uses.
    ///
    /// # Errors
    /// [`RpcError::Gradients`] for gradients that do not fit or are missing, and those of [`RpcNode::call`].
    pub fn backward(self, outputs: &[(&StageOutput, Activation)]) -> Result<(), RpcError> {
        let mut gradients: Vec<Option<Vec<f32>>> = vec![None; self.calls.len() + 1];
        let mut shapes: Vec<Option<Vec<usize>>> = vec![None; self.calls.len() + 1];
        for (output, gradient) in outputs {
            if output.call == 0 || output.call > self.calls.len() {
                return Err(GradientProblem::OtherOutput.into());
            }
            if output.values.shape() != gradient.shape() {
                let (found, expected) = (gradient.shape().to_vec(), output.values.shape().to_vec());
                return Err(GradientProblem::Shape { found, expected }.into());
            }
            shapes[output.call] = Some(gradient.shape().to_vec());
            add(&mut gradients[output.call], gradient.clone().into_host());
        }
        for (index, (stage, input)) in self.calls.iter().enumerate().rev() {
            let gradient = gradients[index + 1].take().zip(shapes[index + 1].take());
            let Some((gradient, shape)) = gradient else {
                return Err(GradientProblem::Unused { stage: *stage }.into());
            };
            let gradient = Activation::from_host(&shape, gradient);
            let needs_input = *input > 0;
            let (shape, values) = self.call(*stage, &BACKWARD, gradient, needs_input)?;
            if needs_input {
                if shape.iter().product::<usize>() != values.len() {
                    let values = values.len();
                    return Err(GradientProblem::ValueCount { values, shape }.into());
                }
                shapes[*input] = Some(shape);
                add(&mut gradients[*input], values.into_vec());
            }
        }
        Ok(())
    }

    fn call(
        &self,
        stage: usize,
        function: &RemoteFunction<StageCall, Vec<usize>>,
        values: Activation,
        needs_input_gradient: bool,
    ) -> Result<(Vec<usize>, CallValues), RpcError> {
        let (stage, context) = self.context.stage(stage)?;
        let call = StageCall {
            context: context.ticket(),
            shard: self.shard.0,
            shape: values.shape().to_vec(),
            needs_input_gradient,
        };
        let target = CallTarget::Worker(stage.owner());
        let values = values.into_host();
        self.context
            .node
            .call(target, function, &call, values, self.context.limit)
    }
}

fn activation(shape: &[usize], values: CallValues) -> Result<Activation, RpcError> {
    let elements = shape.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
    if elements != Some(values.len()) {
        return Err(GradientProblem::ValueCount {
            values: values.len(),
            shape: shape.to_vec(),
        }
        .into());
    }
    Ok(Activation::from_host(shape, values.into_vec()))
}

fn add(sum: &mut Option<Vec<f32>>, more: Vec<f32>) {
    match sum {
        None => *sum = Some(more),
        Some(sum) => sum
            .iter_mut()
            .zip(more)
            .for_each(|(sum, value)| *sum += value),
    }
}

//! The values that a layer keeps between forward and backward of a shard, and its committed
//! buffers.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::Tensor;
use ronde_core::layout::{Arena, Role, StateLayout};
use ronde_engine::Activation;

use crate::module_state::{TakeGradients, TensorSlot};
use crate::values::{from_tensor, into_tensor};
use crate::with_gradient::with_gradient;

/// The values of all buffers, indexed as in the layout; parameters have empty ranges.
pub(super) struct LayerBuffers {
    pub(super) arena: Arena,
    pub(super) values: Vec<f32>,
}

impl LayerBuffers {
    /// Allocates the buffers of a layout.
    pub(super) fn new(layout: &StateLayout) -> Self {
        let arena = Arena::new(layout.tensors.iter().map(|tensor| match tensor.role {
            Role::Buffer => tensor.elements(),
            Role::Parameter | Role::OptimizerState => 0,
        }));
        let values = vec![0.0; arena.len()];
        Self { arena, values }
    }

    /// Copies the buffers from a state.
    pub(super) fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        for (to, from) in self.arena.ranges().iter().zip(ranges) {
            if !to.is_empty() {
                self.values[to.clone()].copy_from_slice(&state[from.clone()]);
            }
        }
    }

    /// Writes other values of the buffers, in the same arrangement, to a state.
    pub(super) fn write(&self, values: &[f32], state: &mut [f32], ranges: &[Range<usize>]) {
        for (from, to) in self.arena.ranges().iter().zip(ranges) {
            if !from.is_empty() {
                state[to.clone()].copy_from_slice(&values[from.clone()]);
            }
        }
    }
}

/// The values that backward of a shard needs.
pub(super) struct PendingShard<M, const I: usize, const O: usize> {
    /// The graph; `None` for a shard without samples.
    pub(super) graph: Option<RecordedGraph<M, I, O>>,
    pub(super) input_shape: Vec<usize>,
    pub(super) output_shape: Vec<usize>,
    /// The buffers after this shard's forward; empty when there are none.
    pub(super) buffers: Vec<f32>,
}

/// A forward pass as recorded by the engine.
pub(super) struct RecordedGraph<M, const I: usize, const O: usize> {
    /// The parameters of this forward: handles to the leaves of the graph.
    pub(super) module: M,
    pub(super) input: Tensor<I>,
    pub(super) output: Tensor<O>,
}

impl<M: Module, const I: usize, const O: usize> RecordedGraph<M, I, O> {
    /// Runs backward from the given gradient. Returns the input's gradient if it was tracked and
    /// used.
    pub(super) fn backward(
        self,
        slots: &[TensorSlot],
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Option<Activation> {
        let mut found = self.output.is_tracked().then(|| {
            let device = self.output.device().inner();
            let given = into_tensor::<O>(grad_output, &device);
            with_gradient(self.output, given).backward()
        });
        let mut take = TakeGradients::new(slots, found.as_mut(), gradients, ranges);
        self.module.visit(&mut take);
        let gradient = self.input.grad_remove(found.as_mut()?)?;
        Some(from_tensor(gradient))
    }
}

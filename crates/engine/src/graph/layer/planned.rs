//! Passes of a layer on a device that computes nothing, for its memory and its work.

use std::mem::replace;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_core::layout::TensorEntry;

use super::GraphLayer;
use crate::activation::Activation;
use crate::device::{Device, ObservedDevice, PlanningDevice};
use crate::error::EngineError;
use crate::graph::{GraphOutline, LoadedState};
use crate::layer::LayerExt;
use crate::precision::Precision;
use crate::step_memory::{WorkCounter, planned_context};

impl GraphLayer {
    /// Returns a layer without weights on a device that computes nothing.
    pub(crate) fn planned(
        outline: GraphOutline,
        device: &Arc<dyn Device>,
        precision: Precision,
    ) -> Self {
        let mut layer = Self::without_state(outline, device.clone());
        layer.change_precision(precision);
        layer.state = layer.planned_state(device);
        layer
    }

    fn planned_state(&self, device: &Arc<dyn Device>) -> LoadedState {
        let tensors = &self.outline.layout.tensors;
        let lengths = tensors.iter().map(TensorEntry::elements);
        LoadedState::planned(lengths, device.as_ref())
    }

    /// Returns the work of forward and backward of a shard: see [`Layer::work`]. The state and the device stay as they are.
    pub(super) fn planned_work(
        &mut self,
        input_shape: &[usize],
        needs_input_gradient: bool,
    ) -> Result<f64, EngineError> {
        let counter = Arc::new(WorkCounter::default());
        let planning: Arc<dyn Device> = Arc::new(PlanningDevice::new());
        let observed = ObservedDevice::new(planning.clone(), counter.clone());
        let observed: Arc<dyn Device> = Arc::new(observed);
        self.drop_pending();
        let planned = self.planned_state(&observed);
        let state = replace(&mut self.state, planned);
        let device = replace(&mut self.device, observed);
        let is_initial = replace(&mut self.is_initial, false);
        let passed = self.pass_without_values(&*planning, input_shape, needs_input_gradient);
        self.drop_pending();
        (self.state, self.device, self.is_initial) = (state, device, is_initial);
        passed.map(|()| counter.take())
    }

    fn pass_without_values(
        &mut self,
        planning: &dyn Device,
        input_shape: &[usize],
        needs_input_gradient: bool,
    ) -> Result<(), EngineError> {
        let input = Activation::unwritten(planning, input_shape);
        let output = self.forward_shard(input, &planned_context(0))?;
        let gradient = Activation::unwritten(planning, output.shape());
        let ranges = vec![0..0; self.outline.layout.tensors.len()];
        self.backward_shard(Shard(0), gradient, &mut [], &ranges, needs_input_gradient)?;
        Ok(())
    }
}

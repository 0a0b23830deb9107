//! The histograms of weights and gradients of a [`Training`], for trackers.

use ronde_core::histogram::{HistogramCounter, TensorValues};
use ronde_core::layout::Role;
use ronde_core::{Event, Step};
use ronde_parallel::ReducedGradient;

use super::Training;

impl Training {
    /// Returns whether the run records histograms after a step.
    fn records_histograms(&self, step: Step) -> bool {
        let every = self.plan.config.track.histogram_every_steps;
        let committed = step.0 + 1;
        every > 0 && (committed.is_multiple_of(every) || committed == self.plan.steps)
    }

    /// Records the histograms of the gradient of a step: each rank those of its slices if the gradient is divided, rank 0 all
    /// of them otherwise.
    pub(super) fn record_gradient(&self, step: Step, reduced: &ReducedGradient, targets: u64) {
        if !self.records_histograms(step) {
            return;
        }
        let mut counter = HistogramCounter::default();
        let mut counted: Option<usize> = None;
        self.policy
            .state()
            .visit_gradient(reduced, targets, &mut |index, values| {
                if let Some(previous) = counted.replace(index).filter(|&old| old != index) {
                    self.record_histogram(step, previous, TensorValues::Gradients, &mut counter);
                }
                counter.add(values);
            });
        if let Some(last) = counted {
            self.record_histogram(step, last, TensorValues::Gradients, &mut counter);
        }
    }

    /// Records the histograms of the weights after a step, on the first rank with each layer.
    pub(super) fn record_weights(&self, step: Step) {
        let place = self.assignment.layout().place(self.member.group.rank());
        let Some(place) = place.filter(|place| place.replica == 0) else {
            return;
        };
        if !self.records_histograms(step) {
            return;
        }
        let mut counter = HistogramCounter::default();
        let state = self.policy.state();
        let state = state.model();
        let is_own = |layer: usize| {
            let mut stages = self.assignment.layout().stages().iter();
            stages.any(|stage| stage.column == place.column && stage.layers.contains(&layer))
        };
        for (index, tensor) in state.tensors().iter().enumerate() {
            let values = state.get(&tensor.range).filter(|_| is_own(tensor.layer));
            if let Some(values) = values.filter(|_| tensor.entry.role == Role::Parameter) {
                counter.add(values);
                self.record_histogram(step, index, TensorValues::Weights, &mut counter);
            }
        }
    }

    fn record_histogram(
        &self,
        step: Step,
        index: usize,
        values: TensorValues,
        counter: &mut HistogramCounter,
    ) {
        let tensor = &self.policy.state().model().tensors()[index];
        self.member.tracker.record(Event::TensorHistogram {
            step,
            tensor: tensor.entry.name.clone(),
            values,
            elements: tensor.range.len() as u64,
            histogram: counter.take(),
        });
    }
}

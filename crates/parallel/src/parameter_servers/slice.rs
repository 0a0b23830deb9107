//! [`StateSlice`]: the part of the state that a server has, and its update.

use std::ops::Range;

use ronde_core::BatchCounts;
use ronde_core::layout::Role;
use ronde_core::norm::BLOCK;
use ronde_engine::{GradientScale, OptimizerConfig, ParameterRule};
use ronde_protocol::served::SlotLog;

use crate::state::ModelState;
use crate::synchronous::SynchronousConfig;
use crate::synchronous::replica::common;

/// The factors of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UpdateScale {
    /// The numbers of samples and counted targets of the gradient, which is a sum over them.
    pub(super) counts: BatchCounts,
    /// The clipping factor of the mean gradient.
    pub(super) clip_factor: f32,
    pub(super) learning_rate: f64,
}

/// The values of a slot.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StateSlice {
    /// The elements of the flat state.
    pub(super) elements: Range<usize>,
    pub(super) weights: Vec<f32>,
    /// The states of the optimizer.
    pub(super) states: Vec<Vec<f32>>,
}

impl StateSlice {
    /// Copies elements of a whole state.
    pub(super) fn of(elements: &Range<usize>, weights: &[f32], states: &[Vec<f32>]) -> Self {
        Self {
            elements: elements.clone(),
            weights: weights[elements.clone()].to_vec(),
            states: states
                .iter()
                .map(|values| values[elements.clone()].to_vec())
                .collect(),
        }
    }
}

/// A slot, or the copy of one: its values, and the updates that they have.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ServedSlot {
    pub(super) log: SlotLog,
    pub(super) slice: StateSlice,
}

/// How the tensors of a state are updated.
#[derive(Debug, Clone)]
pub(super) struct SliceRules {
    tensors: Vec<(Range<usize>, Role, ParameterRule)>,
    /// The inverse of the factor of the loss.
    inverse_factor: f32,
    /// Whether stale gradients have a lower learning rate.
    scales_by_staleness: bool,
}

impl SliceRules {
    /// Returns the rules of a run.
    pub(super) fn new(
        state: &ModelState,
        config: &SynchronousConfig,
        scales_by_staleness: bool,
    ) -> Self {
        let optimizer: OptimizerConfig = config.optimizer;
        let tensors = state.tensors().iter().map(|tensor| {
            let is_decayed = config.weight_decay_on.includes(&tensor.entry.shape);
            let (name, groups) = (tensor.entry.whole_name(), &config.parameter_groups);
            let rule = ParameterRule::of(name, optimizer, is_decayed, groups);
            (tensor.range.clone(), tensor.entry.role, rule)
        });
        Self {
            tensors: tensors.collect(),
            inverse_factor: 1.0 / config.fixed_factor(),
            scales_by_staleness,
        }
    }

    /// Returns the rules of a state that no update changes.
    #[cfg(test)]
    pub(super) fn without_tensors() -> Self {
        Self {
            tensors: Vec::new(),
            inverse_factor: 1.0,
            scales_by_staleness: false,
        }
    }

    /// Returns the learning rate of a gradient.
    ///
    /// Source: Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016, section 3.
    fn rate(&self, learning_rate: f64, staleness: u64) -> f64 {
        match self.scales_by_staleness {
            true => learning_rate / staleness.max(1) as f64,
            false => learning_rate,
        }
    }

    /// Makes update `number` (from 1) of a slice from its part of a gradient. The bits are those of a synchronous update with the
    /// same gradient. Buffers get the values of the worker. Without counted targets, parameters stay as they are.
    pub(super) fn update(
        &self,
        slice: &mut StateSlice,
        (number, staleness): (u64, u64),
        scale: &UpdateScale,
        gradient: &[f32],
    ) {
        let BatchCounts { samples, targets } = scale.counts;
        if samples == 0 {
            return;
        }
        let of_buffers = GradientScale::new(samples, 1.0);
        let mean = GradientScale::new(targets, self.inverse_factor).then(scale.clip_factor);
        let learning_rate = self.rate(scale.learning_rate, staleness);
        let mut scaled = [0.0; 2 * BLOCK];
        for (tensor, role, rule) in &self.tensors {
            let run = common(tensor, &slice.elements);
            let offset = slice.elements.start;
            for start in run.clone().step_by(2 * BLOCK) {
                let within = start - offset..(start + 2 * BLOCK).min(run.end) - offset;
                let (values, sum) = (
                    &mut slice.weights[within.clone()],
                    &gradient[within.clone()],
                );
                if *role == Role::Buffer {
                    of_buffers.write(sum, values);
                    continue;
                }
                if rule.is_frozen || targets == 0 {
                    continue;
                }
                let scaled = &mut scaled[..within.len()];
                mean.write(sum, scaled);
                let states = slice.states.iter_mut();
                let mut states: Vec<&mut [f32]> =
                    states.map(|state| &mut state[within.clone()]).collect();
                let rate = learning_rate * rule.learning_rate_factor;
                rule.rule
                    .step(number, rate, 1.0, values, scaled, &mut states);
            }
        }
    }
}

//! From a reduced gradient to new weights: its norm, then the optimizer, each in one pass over it.

use std::ops::Range;

use ronde_core::Buffer;
use ronde_core::layout::Role;
use ronde_engine::{GradientScale, Layer};

use super::DataParallel;
use crate::ParallelError;

/// Elements of a gradient that are scaled and used at a time.
const PART: usize = 8192;

impl DataParallel {
    /// The scaled gradient's norm over all parameters, summed in the order of the flat state.
    pub(super) fn gradient_norm(
        &self,
        buckets: &[Buffer],
        scale: GradientScale,
    ) -> Result<f64, ParallelError> {
        let mut total = 0.0;
        let places = self.state.places().iter();
        for place in places.filter(|p| p.entry.role == Role::Parameter) {
            let Some((bucket, within)) = self.locate(&place.range) else {
                continue;
            };
            let gradient = &buckets[bucket].as_slice::<f32>()[within];
            total = scale
                .add_squares(gradient, total)
                .ok_or_else(|| ParallelError::NotFinite {
                    tensor: place.entry.name.clone(),
                })?;
        }
        Ok(total.sqrt())
    }

    /// Optimizer step of every parameter by its scaled gradient, new values of every buffer, which are
    /// means over `samples`.
    pub(super) fn update(
        &mut self,
        number: u64,
        buckets: &[Buffer],
        learning_rate: f64,
        samples: u64,
        scale: GradientScale,
    ) {
        let mut part = std::mem::take(&mut self.part);
        // Otherwise the state would be copied: they get the new one when it is complete.
        self.chain.release_state();
        for index in 0..self.state.places().len() {
            let place = &self.state.places()[index];
            let (range, role) = (place.range.clone(), place.entry.role);
            let mut rule = self.config.optimizer;
            if !self.config.weight_decay_on.includes(&place.entry.shape) {
                rule = rule.without_decay();
            }
            let Some((bucket, within)) = self.locate(&range) else {
                continue;
            };
            let found = &buckets[bucket].as_slice::<f32>()[within];
            let values = &mut self.state.values_mut()[range.clone()];
            if role == Role::Buffer {
                // A step without a sample says nothing about them.
                if samples > 0 {
                    GradientScale::new(samples, 1.0).write(found, values);
                }
                continue;
            }
            let most = if rule.needs_whole_tensors() {
                found.len()
            } else {
                PART
            };
            if part.len() < most.min(found.len()) {
                part.resize(most.min(found.len()), 0.0);
            }
            for start in (0..found.len()).step_by(most) {
                let inner = start..found.len().min(start + most);
                let gradient = &mut part[..inner.len()];
                scale.write(&found[inner.clone()], gradient);
                let outer = range.start + inner.start..range.start + inner.end;
                let mut states: Vec<&mut [f32]> = self
                    .optimizer_states
                    .iter_mut()
                    .map(|state| &mut state[outer.clone()])
                    .collect();
                rule.step(
                    number,
                    learning_rate,
                    &mut values[inner],
                    gradient,
                    &mut states,
                );
            }
        }
        self.part = part;
    }

    /// The bucket that holds a run of the flat state, and where; `None` for an empty run.
    fn locate(&self, range: &Range<usize>) -> Option<(usize, Range<usize>)> {
        let place = self
            .buckets
            .partition_point(|bucket| bucket.plan.elements.end <= range.start);
        let base = self.buckets.get(place)?.plan.elements.start;
        (!range.is_empty()).then(|| (place, range.start - base..range.end - base))
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::norm::{block_sums, norm};
    use ronde_engine::GradientScale;

    #[test]
    fn the_norm_has_the_bits_of_the_core() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).fract() - 0.4).collect();
        let scale = GradientScale::new(1, 1.0);
        let apart = values
            .chunks(7 * 64)
            .try_fold(0.0, |total, part| scale.add_squares(part, total));
        assert_eq!(apart.unwrap().sqrt(), norm(block_sums(&values)));
    }
}

//! Updates the weights from a reduced gradient: one pass for its norm, one for the optimizer.

use std::ops::Range;

use ronde_core::Buffer;
use ronde_core::layout::Role;
use ronde_engine::{GradientScale, Layer, ParameterRule};

use super::DataParallel;
use crate::ParallelError;

/// The number of gradient elements that are scaled and applied at a time.
const PART: usize = 8192;

impl DataParallel {
    /// Returns the norm of the scaled gradient over all parameters that are not frozen, summed in the order of the flat
    /// state.
    pub(super) fn gradient_norm(
        &self,
        buckets: &[Buffer],
        scale: GradientScale,
    ) -> Result<f64, ParallelError> {
        let mut total = 0.0;
        for (tensor, rule) in self.state.tensors().iter().zip(&self.rules) {
            if tensor.entry.role != Role::Parameter || rule.is_frozen {
                continue;
            }
            let Some((bucket, within)) = self.locate(&tensor.range) else {
                continue;
            };
            let gradient = &buckets[bucket].as_slice::<f32>()[within];
            total = scale
                .add_squares(gradient, total)
                .ok_or_else(|| ParallelError::NotFinite {
                    tensor: tensor.entry.name.clone(),
                })?;
        }
        Ok(total.sqrt())
    }

    /// Updates every parameter with its scaled gradient, and every buffer with its mean over `samples`.
    pub(super) fn update(
        &mut self,
        number: u64,
        buckets: &[Buffer],
        learning_rate: f64,
        samples: u64,
        scale: GradientScale,
    ) {
        let mut part = std::mem::take(&mut self.part);
        // Layers release the shared state, so that it need not be copied; they get the new one when it is complete.
        self.chain.release_state();
        for index in 0..self.state.tensors().len() {
            let tensor = &self.state.tensors()[index];
            let (range, role) = (tensor.range.clone(), tensor.entry.role);
            let ParameterRule {
                rule,
                learning_rate_factor,
                is_frozen,
            } = self.rules[index];
            let Some((bucket, within)) = self.locate(&range) else {
                continue;
            };
            let sum = &buckets[bucket].as_slice::<f32>()[within];
            let values = &mut self.state.values_mut()[range.clone()];
            if role == Role::Buffer {
                // A step without samples leaves buffers unchanged.
                if samples > 0 {
                    GradientScale::new(samples, 1.0).write(sum, values);
                }
                continue;
            }
            if is_frozen {
                continue;
            }
            let most = if rule.needs_whole_tensors() {
                sum.len()
            } else {
                PART
            };
            if part.len() < most.min(sum.len()) {
                part.resize(most.min(sum.len()), 0.0);
            }
            for start in (0..sum.len()).step_by(most) {
                let inner = start..sum.len().min(start + most);
                let gradient = &mut part[..inner.len()];
                scale.write(&sum[inner.clone()], gradient);
                let outer = range.start + inner.start..range.start + inner.end;
                let mut states: Vec<&mut [f32]> = self
                    .optimizer_states
                    .iter_mut()
                    .map(|state| &mut state[outer.clone()])
                    .collect();
                rule.step(
                    number,
                    learning_rate * learning_rate_factor,
                    &mut values[inner],
                    gradient,
                    &mut states,
                );
            }
        }
        self.part = part;
    }

    /// Returns the bucket that contains a range of the flat state, and the range in it; `None` for an empty range.
    fn locate(&self, range: &Range<usize>) -> Option<(usize, Range<usize>)> {
        let bucket = self
            .buckets
            .partition_point(|bucket| bucket.plan.elements.end <= range.start);
        let base = self.buckets.get(bucket)?.plan.elements.start;
        (!range.is_empty()).then(|| (bucket, range.start - base..range.end - base))
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::norm::{block_sums, norm};
    use ronde_engine::GradientScale;

    #[test]
    fn the_norm_equals_that_of_the_core_bit_for_bit() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).fract() - 0.4).collect();
        let scale = GradientScale::new(1, 1.0);
        let apart = values
            .chunks(7 * 64)
            .try_fold(0.0, |total, part| scale.add_squares(part, total));
        assert_eq!(apart.unwrap().sqrt(), norm(block_sums(&values)));
    }
}

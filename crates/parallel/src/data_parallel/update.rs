//! Updates the weights from a reduced gradient: one pass for its norm, one for the optimizer.
//!
//! Norms are sums over the blocks of each tensor, added along a fixed tree, and then along a tree over the tensors. So
//! their bits do not depend on how the state is divided among ranks.

use std::ops::Range;

use ronde_core::layout::Role;
use ronde_core::norm::{BLOCK, NumberTree, blocks, tree_sum};
use ronde_engine::{GradientScale, Layer, ParameterRule, TrustTree, sum_of_squares};

use super::DataParallel;
use crate::ParallelError;
use crate::strategy::GradientPart;

/// The number of gradient elements that are scaled and applied at a time.
const PART: usize = 2 * BLOCK;

/// The step that an update belongs to, and its factors.
#[derive(Debug, Clone, Copy)]
pub(super) struct UpdateFactors {
    /// The number of the update, from 1.
    pub(super) number: u64,
    pub(super) learning_rate: f64,
    /// The global number of samples.
    pub(super) samples: u64,
    pub(super) scale: GradientScale,
}

/// Returns the elements that a tensor and a part of the flat state have in common, in runs of `most` elements from the
/// tensor's first one. `most` is a multiple of [`BLOCK`]; a part begins at a block or before the tensor.
fn runs(
    tensor: &Range<usize>,
    part: &Range<usize>,
    most: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let first = part.start.clamp(tensor.start, tensor.end);
    let end = part.end.clamp(first, tensor.end);
    let origin = tensor.start;
    let mut start = first;
    std::iter::from_fn(move || {
        let next = (origin + ((start - origin) / most + 1) * most).min(end);
        let run = start..next;
        start = next;
        (!run.is_empty()).then_some(run)
    })
}

impl DataParallel {
    /// Returns whether the gradient of a tensor counts in the norm, and its optimizer changes it.
    fn is_trained(&self, index: usize) -> bool {
        let role = self.state.tensors()[index].entry.role;
        role == Role::Parameter && !self.rules[index].is_frozen
    }

    /// Returns the indices of the tensors that have elements in a part of the flat state.
    fn tensors_in(&self, part: &Range<usize>) -> Range<usize> {
        let tensors = self.state.tensors();
        let first = tensors.partition_point(|tensor| tensor.range.end <= part.start);
        let end = tensors.partition_point(|tensor| tensor.range.start < part.end);
        first..end.max(first)
    }

    /// Returns the sum of squares of the gradient's sum over all samples, over all parameters that are not frozen.
    ///
    /// # Errors
    /// [`ParallelError::NotFinite`] with the first tensor whose gradient is not finite.
    pub(super) fn gradient_squares(&self, parts: &[GradientPart]) -> Result<f64, ParallelError> {
        let tensors = self.state.tensors();
        let trees = tensors
            .iter()
            .map(|tensor| NumberTree::new(blocks(tensor.range.len()) as u32));
        let mut trees: Vec<NumberTree> = trees.collect();
        for part in parts {
            for index in self
                .tensors_in(&part.elements)
                .filter(|index| self.is_trained(*index))
            {
                let tensor = &tensors[index].range;
                for run in runs(tensor, &part.elements, BLOCK) {
                    let block = (run.start - tensor.start) / BLOCK;
                    trees[index].add(block as u32, sum_of_squares(part.values(&run)));
                }
            }
        }
        let sums = trees.iter().map(|tree| tree.total().unwrap_or(0.0));
        let sums: Vec<f64> = sums.collect();
        if let Some(index) = sums.iter().position(|sum| !sum.is_finite()) {
            return Err(ParallelError::NotFinite {
                tensor: tensors[index].entry.name.clone(),
            });
        }
        Ok(tree_sum(sums.into_iter()))
    }

    /// Returns the trust ratio of each tensor; 1 for tensors whose rule has none.
    fn trust_ratios(&mut self, parts: &[GradientPart], factors: &UpdateFactors) -> Vec<f64> {
        let tensors = self.state.tensors();
        let mut ratios = vec![1.0; tensors.len()];
        if !self.rules.iter().any(|rule| rule.rule.has_trust_ratio()) {
            return ratios;
        }
        let trees = tensors
            .iter()
            .map(|tensor| TrustTree::new(tensor.range.len()));
        let mut trees: Vec<TrustTree> = trees.collect();
        let mut gradient = [0.0; BLOCK];
        for part in parts {
            for index in self.tensors_in(&part.elements) {
                let (tensor, rule) = (&tensors[index].range, &self.rules[index].rule);
                if !self.is_trained(index) || !rule.has_trust_ratio() {
                    continue;
                }
                for run in runs(tensor, &part.elements, BLOCK) {
                    let gradient = &mut gradient[..run.len()];
                    factors.scale.write(part.values(&run), gradient);
                    let states = self
                        .optimizer_states
                        .iter()
                        .map(|state| &state[run.clone()]);
                    let states: Vec<&[f32]> = states.collect();
                    let weights = &self.state.values()[run.clone()];
                    let squares = rule.trust_squares(factors.number, weights, gradient, &states);
                    trees[index].add(((run.start - tensor.start) / BLOCK) as u32, squares);
                }
            }
        }
        for ((ratio, rule), tree) in ratios.iter_mut().zip(&self.rules).zip(&trees) {
            *ratio = rule.rule.trust_ratio(tree.total().unwrap_or_default());
        }
        ratios
    }

    /// Updates every parameter with its scaled gradient, and every buffer with its mean over the samples.
    pub(super) fn update(&mut self, parts: &[GradientPart], factors: &UpdateFactors) {
        let ratios = self.trust_ratios(parts, factors);
        let mut scaled = std::mem::take(&mut self.part);
        scaled.resize(PART, 0.0);
        // Layers release the shared state, so that it need not be copied; they get the new one when it is complete.
        self.chain.release_state();
        for part in parts {
            for index in self.tensors_in(&part.elements) {
                let is_trained = self.is_trained(index);
                let tensor = &self.state.tensors()[index];
                let (range, role) = (tensor.range.clone(), tensor.entry.role);
                let ParameterRule {
                    rule,
                    learning_rate_factor,
                    ..
                } = self.rules[index];
                let rate = factors.learning_rate * learning_rate_factor;
                for run in runs(&range, &part.elements, PART) {
                    let sum = part.values(&run);
                    let values = &mut self.state.values_mut()[run.clone()];
                    // A step without samples leaves buffers unchanged.
                    if role == Role::Buffer && factors.samples > 0 {
                        GradientScale::new(factors.samples, 1.0).write(sum, values);
                    }
                    if !is_trained {
                        continue;
                    }
                    let gradient = &mut scaled[..run.len()];
                    factors.scale.write(sum, gradient);
                    let states = self.optimizer_states.iter_mut();
                    let mut states: Vec<&mut [f32]> =
                        states.map(|state| &mut state[run.clone()]).collect();
                    let ratio = ratios[index];
                    rule.step(factors.number, rate, ratio, values, gradient, &mut states);
                }
            }
        }
        self.part = scaled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_begin_at_blocks_of_the_tensor_and_cover_the_common_elements() {
        let found = |tensor, part, most| runs(&tensor, &part, most).collect::<Vec<_>>();
        assert_eq!(
            found(64..64 + 2 * BLOCK + 5, 0..100_000, BLOCK),
            [
                64..64 + BLOCK,
                64 + BLOCK..64 + 2 * BLOCK,
                64 + 2 * BLOCK..64 + 2 * BLOCK + 5
            ]
        );
        // Half of the first run of two blocks belongs to another part.
        assert_eq!(
            found(0..3 * BLOCK, BLOCK..3 * BLOCK, 2 * BLOCK),
            [BLOCK..2 * BLOCK, 2 * BLOCK..3 * BLOCK]
        );
        assert_eq!(found(10..20, 0..10, BLOCK), []);
        assert_eq!(found(10..20, 20..30, BLOCK), []);
        assert_eq!(found(10..10, 0..30, BLOCK), []);
    }
}

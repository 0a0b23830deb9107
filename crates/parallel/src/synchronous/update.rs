//! Updates the weights from a reduced gradient: one pass for its norm, one for the optimizer.
//!
//! Norms are sums over the blocks of each tensor, added along a fixed tree, and then along a tree over the tensors. So
//! their bits do not depend on how the state is divided among ranks.

use std::ops::Range;

use ronde_core::BatchCounts;
use ronde_core::layout::Role;
use ronde_core::norm::{BLOCK, NumberTree, blocks, clip_factor};
use ronde_engine::{
    GradientScale, LayerExt, ParameterRule, TrustSquares, TrustTree, sum_of_squares,
};

use super::{SynchronousConfig, SynchronousStrategy};
use crate::bucket::Bucket;
use crate::error::ParallelError;
use crate::state::ModelState;
use crate::strategy::GradientPart;
use crate::update_sums::{UpdateSums, WholeSums};

/// The number of gradient elements that are scaled and applied at a time.
const PART: usize = 2 * BLOCK;

/// The step that an update belongs to, and its factors.
#[derive(Debug, Clone, Copy)]
pub(super) struct UpdateFactors {
    /// The number of the update, from 1.
    pub(super) number: u64,
    pub(super) learning_rate: f64,
    /// The global numbers of samples and counted targets.
    pub(super) counts: BatchCounts,
    pub(super) scale: GradientScale,
}

/// The decisions of a step before its update.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepFactors {
    pub(super) gradient_norm: f64,
    pub(super) clip_factor: f32,
    pub(super) update: UpdateFactors,
}

/// Returns the elements that a tensor and a part of the flat state have in common, in runs of `most` elements from the
/// tensor's first one. `most` is a multiple of [`BLOCK`]; a part begins at a block or before the tensor.
pub(super) fn runs(
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

/// Returns the update of each tensor of a state.
pub(super) fn parameter_rules(
    state: &ModelState,
    config: &SynchronousConfig,
) -> Vec<ParameterRule> {
    let each = state.tensors().iter().map(|tensor| {
        let is_decayed = config.weight_decay_on.includes(&tensor.entry.shape);
        let (name, groups) = (tensor.entry.whole_name(), &config.parameter_groups);
        ParameterRule::of(name, config.optimizer, is_decayed, groups)
    });
    each.collect()
}

impl SynchronousStrategy {
    /// Returns whether the gradient of a tensor counts in the norm, and its optimizer changes it.
    pub(super) fn is_trained(&self, index: usize) -> bool {
        let role = self.state.tensors()[index].entry.role;
        role == Role::Parameter && !self.rules[index].is_frozen
    }

    /// Returns the indices of the tensors that have elements in a part of the flat state.
    pub(super) fn tensors_in(&self, part: &Range<usize>) -> Range<usize> {
        let tensors = self.state.tensors();
        let first = tensors.partition_point(|tensor| tensor.range.end <= part.start);
        let end = tensors.partition_point(|tensor| tensor.range.start < part.end);
        first..end.max(first)
    }

    /// Returns whether a rank holds a part of the state only.
    pub(super) fn is_divided(&self) -> bool {
        self.layout.divides_model() || self.buckets.iter().any(Bucket::is_scattered)
    }

    pub(super) fn has_trust_ratios(&self) -> bool {
        self.rules.iter().any(|rule| rule.rule.has_trust_ratio())
    }

    /// Returns the sums of squares of the gradient's sum over all targets, over the parts of the parameters that are not
    /// frozen.
    pub(super) fn gradient_sums(&self, parts: &[GradientPart]) -> UpdateSums {
        let tensors = self.state.tensors();
        let mut sums = UpdateSums::default();
        for part in parts.iter().filter(|part| part.is_owned) {
            for index in self
                .tensors_in(&part.elements)
                .filter(|index| self.is_trained(*index))
            {
                let tensor = &tensors[index].range;
                let mut tree = NumberTree::new(blocks(tensor.len()) as u32);
                for run in runs(tensor, &part.elements, BLOCK) {
                    let block = (run.start - tensor.start) / BLOCK;
                    tree.add(block as u32, sum_of_squares(part.values(&run)));
                }
                sums.add_gradient(index, &tree);
            }
        }
        sums
    }

    /// Adds the sums of squares for the trust ratios of the parts.
    pub(super) fn add_trust_sums(
        &self,
        parts: &[GradientPart],
        factors: &UpdateFactors,
        sums: &mut UpdateSums,
    ) {
        let tensors = self.state.tensors();
        let mut gradient = [0.0; BLOCK];
        for part in parts.iter().filter(|part| part.is_owned) {
            for index in self.tensors_in(&part.elements) {
                let (tensor, rule) = (&tensors[index].range, &self.rules[index].rule);
                if !self.is_trained(index) || !rule.has_trust_ratio() {
                    continue;
                }
                let mut tree = TrustTree::new(tensor.len());
                for run in runs(tensor, &part.elements, BLOCK) {
                    let gradient = &mut gradient[..run.len()];
                    factors.scale.write(part.values(&run), gradient);
                    let held = self.held.locate(&run).unwrap_or_default();
                    let states = self
                        .optimizer_states
                        .iter()
                        .map(|state| &state[held.clone()]);
                    let states: Vec<&[f32]> = states.collect();
                    let weights = self.state.get(&run).unwrap_or_default();
                    let squares = rule.trust_squares(factors.number, weights, gradient, &states);
                    tree.add(((run.start - tensor.start) / BLOCK) as u32, squares);
                }
                sums.add_trust(index, &tree);
            }
        }
    }

    /// Returns the sums over all blocks of the gradient: this rank's if it holds all of them, otherwise those of the vote.
    pub(super) fn whole_sums(
        &self,
        parts: &[GradientPart],
        voted: &[Vec<u8>],
    ) -> Result<WholeSums, ParallelError> {
        let ranks = if self.is_divided() {
            let decoded = voted.iter().map(|bytes| UpdateSums::decode(bytes));
            decoded.collect::<Option<Vec<_>>>()
        } else {
            Some(vec![self.gradient_sums(parts)])
        };
        let whole = ranks.and_then(|ranks| WholeSums::new(&self.state, &ranks));
        whole.ok_or_else(incomplete)
    }

    /// Returns the squares for the trust ratio of each tensor, of a rank that holds the whole state.
    pub(super) fn whole_trust(
        &self,
        parts: &[GradientPart],
        factors: &UpdateFactors,
    ) -> Result<Vec<TrustSquares>, ParallelError> {
        let mut sums = UpdateSums::default();
        if self.has_trust_ratios() {
            self.add_trust_sums(parts, factors, &mut sums);
        }
        let whole = WholeSums::new(&self.state, &[sums]).ok_or_else(incomplete)?;
        Ok(whole.trust)
    }

    /// Returns the factors of an update, from sums over the whole gradient. `number` is that of the update, from 1, of those with
    /// counted targets.
    ///
    /// # Errors
    /// [`ParallelError::NotFinite`] with the first tensor whose gradient is not finite.
    pub(super) fn factors(
        &self,
        number: u64,
        sums: &WholeSums,
        counts: BatchCounts,
        learning_rate: f64,
    ) -> Result<StepFactors, ParallelError> {
        if let Some(index) = sums.not_finite() {
            return Err(ParallelError::NotFinite {
                tensor: self.state.tensors()[index].entry.name.clone(),
            });
        }
        let scale = GradientScale::new(counts.targets.max(1), self.scale.inverse());
        let gradient_norm = sums.gradient_total().sqrt() * scale.factor();
        let limit = self.config.clip_norm;
        let clip_factor = limit.map_or(1.0, |limit| clip_factor(gradient_norm, limit));
        Ok(StepFactors {
            gradient_norm,
            clip_factor,
            update: UpdateFactors {
                number: number.saturating_sub(self.scale.skipped()),
                learning_rate,
                counts,
                scale: scale.then(clip_factor),
            },
        })
    }

    /// Updates every held parameter with its scaled gradient, and every held buffer with its mean over the samples. `trust`
    /// holds the squares for the trust ratio of each tensor. Without counted targets, parameters stay as they are.
    pub(super) fn update(
        &mut self,
        parts: &[GradientPart],
        factors: &UpdateFactors,
        trust: &[TrustSquares],
    ) {
        let mut scaled = std::mem::take(&mut self.part);
        scaled.resize(PART, 0.0);
        let samples = factors.counts.samples;
        // Layers release the shared state, so that it need not be copied; they get the new one when it is complete.
        self.chain.release_state();
        for part in parts {
            for index in self.tensors_in(&part.elements) {
                let is_trained = self.is_trained(index) && factors.counts.targets > 0;
                let tensor = &self.state.tensors()[index];
                let (range, role) = (tensor.range.clone(), tensor.entry.role);
                let ParameterRule {
                    rule,
                    learning_rate_factor,
                    ..
                } = self.rules[index];
                let rate = factors.learning_rate * learning_rate_factor;
                let ratio = rule.trust_ratio(trust[index]);
                for run in runs(&range, &part.elements, PART) {
                    let sum = part.values(&run);
                    let Some(values) = self.state.get_mut(&run) else {
                        continue;
                    };
                    // A step without samples leaves buffers unchanged.
                    if role == Role::Buffer && samples > 0 {
                        GradientScale::new(samples, 1.0).write(sum, values);
                    }
                    if !is_trained {
                        continue;
                    }
                    let gradient = &mut scaled[..run.len()];
                    factors.scale.write(sum, gradient);
                    let held = self.held.locate(&run).unwrap_or_default();
                    let states = self.optimizer_states.iter_mut();
                    let mut states: Vec<&mut [f32]> =
                        states.map(|state| &mut state[held.clone()]).collect();
                    rule.step(factors.number, rate, ratio, values, gradient, &mut states);
                }
            }
        }
        self.part = scaled;
    }
}

/// Returns the error of votes whose sums do not cover the state.
pub(super) fn incomplete() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "the sums of the votes do not cover the gradient".to_owned(),
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

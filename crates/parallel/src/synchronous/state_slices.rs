//! [`StateSlices`]: the part of the state of a run that a rank has, and its update from a reduced gradient. It survives a generation.
//!
//! An update is one pass over the gradient for its norm, and one for the optimizer. Norms are sums over the blocks of each tensor,
//! added along a fixed tree, and then along a tree over the tensors. So their bits do not depend on how the state is divided among
//! ranks.

use std::ops::Range;

use ronde_core::BatchCounts;
use ronde_core::layout::Role;
use ronde_core::norm::{BLOCK, NumberTree, blocks, clip_factor};
use ronde_engine::{
    Chain, GradientScale, LayerExt, ParameterRule, TrustSquares, TrustTree, sum_of_squares,
};
use ronde_protocol::holdings::HeldRanges;

use super::SynchronousConfig;
use crate::compression::CompressionState;
use crate::error::ParallelError;
use crate::loss_scale::LossScale;
use crate::state::{ModelState, remap_for};
use crate::state_view::{RunVector, RunVectorMut};
use crate::step_method::GradientPart;
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

/// The part of the state of a run that a rank has.
pub(crate) struct StateSlices {
    /// The weights and buffers that this rank computes with or updates.
    pub(super) weights: ModelState,
    /// The update of each tensor.
    rules: Vec<ParameterRule>,
    clip_norm: Option<f64>,
    /// The elements of the flat state that this rank updates.
    held: HeldRanges,
    /// The states of the held elements.
    optimizer_states: Vec<Vec<f32>>,
    pub(super) scale: LossScale,
    /// What gradients in a short form need.
    pub(super) compression: Option<CompressionState>,
    /// The whole initial state, if it was loaded and cannot be drawn again.
    loaded: Option<ModelState>,
    /// The number of elements, from the first one, whose weights were gathered after the last update.
    pub(super) gathered: usize,
    /// The hash of the weights that were gathered last to be compared, if no rank keeps all of its weights.
    pub(super) gathered_digest: u64,
    /// A buffer for a part of the scaled gradient, small enough to stay in the cache during the update.
    scaled: Vec<f32>,
}

impl StateSlices {
    /// Creates the state of a run before its first step; nothing of it is held yet.
    pub(super) fn new(chain: &Chain, config: &SynchronousConfig) -> Self {
        let weights = ModelState::outline(chain);
        let names = config.optimizer.state_names();
        let mut layers = chain.layers().iter();
        let is_loaded = config.may_reset && layers.any(|layer| !layer.is_initial());
        Self {
            rules: parameter_rules(&weights, config),
            clip_norm: config.clip_norm,
            held: HeldRanges::default(),
            optimizer_states: names.iter().map(|_| Vec::new()).collect(),
            scale: LossScale::new(config.loss_scaling, config.fixed_factor()),
            compression: None,
            loaded: is_loaded.then(|| ModelState::of(chain)),
            gathered: 0,
            gathered_digest: 0,
            scaled: Vec::new(),
            weights,
        }
    }

    /// Returns the weights and buffers that this rank has.
    pub(crate) fn weights(&self) -> &ModelState {
        &self.weights
    }

    /// Returns the inverse of the factors of the loss.
    pub(crate) fn inverse_scale(&self) -> f32 {
        self.scale.inverse()
    }

    /// Returns the number of elements, from the first one, whose weights were gathered after the last update.
    pub(crate) fn gathered(&self) -> usize {
        self.gathered
    }

    /// Returns the elements of the flat state that this rank updates.
    pub(crate) fn held(&self) -> &HeldRanges {
        &self.held
    }

    /// Updates other elements from now on. Values that were held before are kept, the remaining ones are zeros. Keeps memory for
    /// `later` elements.
    pub(super) fn hold(&mut self, elements: HeldRanges, later: usize) {
        for values in &mut self.optimizer_states {
            remap_for(values, &self.held, &elements, later);
        }
        self.held = elements;
    }

    /// Stores the held elements and `computed`.
    pub(super) fn store(&mut self, computed: &HeldRanges) {
        let ranges = computed.ranges().iter().chain(self.held.ranges());
        self.weights.store(HeldRanges::new(ranges.cloned()));
    }

    /// Writes the initial weights and buffers of the elements that this rank stores.
    pub(super) fn reset(&mut self, chain: &Chain) -> Result<(), ParallelError> {
        if let Some(loaded) = &self.loaded {
            for tensor in loaded.tensors() {
                let values = loaded.get(&tensor.range).unwrap_or_default();
                self.weights.write(&tensor.range, values);
            }
            return Ok(());
        }
        for layer in 0..chain.len() {
            if !self.weights.write_initial(chain, layer) {
                let layer = chain.layers()[layer].name();
                return Err(ParallelError::OutOfOrder {
                    problem: format!(
                        "the initial weights of layer `{layer}` are not known any more"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Returns the vectors of the state from the optimizer states on.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = RunVector<'_>> {
        let states = self.optimizer_states.iter();
        let compression = self.compression.iter();
        states
            .map(|values| RunVector::Flat(values))
            .chain(self.scale.state().map(RunVector::Whole))
            .chain(compression.flat_map(CompressionState::vectors))
    }

    /// Returns the weights, the held elements, and the same vectors, mutable.
    pub(crate) fn vectors_mut(
        &mut self,
    ) -> (
        &mut ModelState,
        &HeldRanges,
        impl Iterator<Item = RunVectorMut<'_>>,
    ) {
        let states = self.optimizer_states.iter_mut();
        let compression = self.compression.iter_mut();
        let vectors = states
            .map(|values| RunVectorMut::Flat(values))
            .chain(self.scale.state_mut().map(RunVectorMut::Whole))
            .chain(compression.flat_map(CompressionState::vectors_mut));
        (&mut self.weights, &self.held, vectors)
    }

    /// Returns the states of the optimizer.
    pub(crate) fn optimizer_states(&self) -> &[Vec<f32>] {
        &self.optimizer_states
    }

    /// Replaces the states of the optimizer; zeros without `states`.
    pub(super) fn set_optimizer_states(&mut self, states: Option<&[&[f32]]>) {
        for (index, values) in self.optimizer_states.iter_mut().enumerate() {
            match states {
                Some(states) => values.copy_from_slice(states[index]),
                None => values.fill(0.0),
            }
        }
    }

    /// Exchanges the weights of the held elements with `values`, one held range after the other.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn swap_weights(&mut self, values: &mut [f32]) {
        assert_eq!(
            values.len(),
            self.held.len(),
            "the lengths of the held elements"
        );
        self.gathered = 0;
        let mut rest = values;
        for range in self.held.ranges() {
            let (values, after) = rest.split_at_mut(range.len());
            rest = after;
            if let Some(weights) = self.weights.get_mut(range) {
                weights.swap_with_slice(values);
            }
        }
    }

    /// Returns the elements of the tensors that change in training: without frozen parameters.
    pub(super) fn trained_elements(&self) -> Vec<Range<usize>> {
        let tensors = self.weights.tensors().iter().zip(&self.rules);
        let changes = |role: Role, is_frozen: bool| role == Role::Buffer || !is_frozen;
        tensors
            .filter(|(tensor, rule)| changes(tensor.entry.role, rule.is_frozen))
            .map(|(tensor, _)| tensor.range.clone())
            .collect()
    }

    /// Passes the mean gradient of the trained tensors in the owned parts to `visit`, a run of elements at a time.
    pub(crate) fn visit_gradient(
        &self,
        parts: &[GradientPart],
        scale: GradientScale,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) {
        let mut mean = [0.0; BLOCK];
        for part in parts.iter().filter(|part| part.is_owned) {
            for index in self.tensors_in(&part.elements) {
                if !self.is_trained(index) {
                    continue;
                }
                for run in runs(&self.weights.tensors()[index].range, &part.elements, BLOCK) {
                    let mean = &mut mean[..run.len()];
                    scale.write(part.values(&run), mean);
                    visit(index, mean);
                }
            }
        }
    }

    /// Returns whether the gradient of a tensor counts in the norm, and its optimizer changes it.
    pub(super) fn is_trained(&self, index: usize) -> bool {
        let role = self.weights.tensors()[index].entry.role;
        role == Role::Parameter && !self.rules[index].is_frozen
    }

    /// Returns the indices of the tensors that have elements in a part of the flat state.
    pub(super) fn tensors_in(&self, part: &Range<usize>) -> Range<usize> {
        let tensors = self.weights.tensors();
        let first = tensors.partition_point(|tensor| tensor.range.end <= part.start);
        let end = tensors.partition_point(|tensor| tensor.range.start < part.end);
        first..end.max(first)
    }

    pub(super) fn has_trust_ratios(&self) -> bool {
        self.rules.iter().any(|rule| rule.rule.has_trust_ratio())
    }

    /// Returns the sums of squares of the gradient's sum over all targets, over the parts of the parameters that are not
    /// frozen.
    pub(super) fn gradient_sums(&self, parts: &[GradientPart]) -> UpdateSums {
        let tensors = self.weights.tensors();
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
        let tensors = self.weights.tensors();
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
                    let weights = self.weights.get(&run).unwrap_or_default();
                    let squares = rule.trust_squares(factors.number, weights, gradient, &states);
                    tree.add(((run.start - tensor.start) / BLOCK) as u32, squares);
                }
                sums.add_trust(index, &tree);
            }
        }
    }

    /// Returns the sums over all blocks of the gradient: from the votes, or from this rank if it holds the whole gradient.
    pub(super) fn whole_sums(
        &self,
        parts: &[GradientPart],
        voted: Option<&[Vec<u8>]>,
    ) -> Result<WholeSums, ParallelError> {
        let ranks = match voted {
            Some(voted) => voted
                .iter()
                .map(|bytes| UpdateSums::decode(bytes))
                .collect(),
            None => Some(vec![self.gradient_sums(parts)]),
        };
        let whole = ranks.and_then(|ranks| WholeSums::new(&self.weights, &ranks));
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
        let whole = WholeSums::new(&self.weights, &[sums]).ok_or_else(incomplete)?;
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
                tensor: self.weights.tensors()[index].entry.name.clone(),
            });
        }
        let scale = GradientScale::new(counts.targets.max(1), self.scale.inverse());
        let gradient_norm = sums.gradient_total().sqrt() * scale.factor();
        let limit = self.clip_norm;
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
    /// holds the squares for the trust ratio of each tensor. Without counted targets, parameters stay as they are. Layers that share
    /// the weights have released them, so that these need not be copied.
    pub(super) fn update(
        &mut self,
        parts: &[GradientPart],
        factors: &UpdateFactors,
        trust: &[TrustSquares],
    ) {
        let mut scaled = std::mem::take(&mut self.scaled);
        scaled.resize(PART, 0.0);
        let samples = factors.counts.samples;
        self.gathered = 0;
        for part in parts {
            for index in self.tensors_in(&part.elements) {
                let is_trained = self.is_trained(index) && factors.counts.targets > 0;
                let tensor = &self.weights.tensors()[index];
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
                    let Some(values) = self.weights.get_mut(&run) else {
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
        self.scaled = scaled;
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

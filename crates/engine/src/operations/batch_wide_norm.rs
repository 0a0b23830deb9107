//! [`NormaliseBatchWide`]: batch normalisation by the statistics of the whole global batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_kernels::{Affine, BatchNorm, BatchStatistics, rectified, rectified_backward};

use super::AfterNorm;
use super::batch_norm::{EPSILON, moved_statistics};
use crate::graph::{GraphNode, KeptValues, NodeGradient, TensorGradients, Tensors};
use crate::{Activation, EngineError, ForwardContext, Mode, NotSummed, ShardSums};

/// Normalises channels over all samples of a step, then adds a value and rectifies if configured.
/// Needs two sums over all shards per step, of two f64 per channel: one in forward, one in
/// backward.
///
/// Running statistics are updated as in batch normalisation per shard: the variance is not
/// corrected.
pub(crate) struct NormaliseBatchWide {
    name: String,
    channels: usize,
    places: usize,
    after: AfterNorm,
    adds: bool,
    saved: BTreeMap<Shard, SavedBatchWideNorm>,
}

/// The values that backward of a shard needs.
struct SavedBatchWideNorm {
    /// The running statistics after this step's forward.
    moved: Arc<[Vec<f32>; 2]>,
    statistics: Arc<BatchStatistics>,
    x: Activation,
    /// The output, which tells where the rectifier is open; the input without a rectifier.
    y: Activation,
    /// This shard's part of the sums in backward.
    gradient_sums: Vec<f64>,
}

impl NormaliseBatchWide {
    /// `[channels, places]` are the lengths of one sample.
    pub(crate) fn new(
        name: String,
        [channels, places]: [usize; 2],
        after: AfterNorm,
        adds: bool,
    ) -> Self {
        Self {
            name,
            channels,
            places,
            after,
            adds,
            saved: BTreeMap::new(),
        }
    }

    fn shape(&self, x: &Activation) -> BatchNorm {
        BatchNorm {
            samples: x.samples(),
            channels: self.channels,
            places: self.places,
            epsilon: EPSILON,
            rectified: false,
        }
    }

    /// Returns the output for given statistics.
    fn normalised(
        &self,
        [x, added]: [&Activation; 2],
        statistics: &BatchStatistics,
        tensors: Tensors<'_>,
    ) -> Activation {
        let mut y = Activation::unwritten(x.shape());
        let affine = Affine {
            gamma: tensors.get(0),
            beta: tensors.get(1),
        };
        let added = self.adds.then_some(added.as_slice());
        let to = y.as_mut_slice();
        self.shape(x)
            .normalise(x.as_slice(), statistics, affine, added, to);
        if self.after == AfterNorm::Rectified {
            rectified(y.as_mut_slice());
        }
        y
    }

    fn summed(
        &self,
        parts: Vec<(Shard, Vec<f64>)>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<f64>, EngineError> {
        let len = 1 + 2 * self.channels;
        sums.sum(len, parts)
            .map_err(|NotSummed| EngineError::NotSummed {
                layer: self.name.clone(),
            })
    }
}

impl GraphNode for NormaliseBatchWide {
    fn kept(&self) -> KeptValues {
        KeptValues {
            inputs: vec![true],
            output: self.after == AfterNorm::Rectified,
            more: 0,
        }
    }

    fn forward(
        &mut self,
        inputs: Vec<Vec<Activation>>,
        tensors: Tensors<'_>,
        contexts: &[ForwardContext],
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let inputs: Vec<[Activation; 2]> = inputs.into_iter().map(super::first_two).collect();
        if contexts
            .iter()
            .any(|context| context.mode == Mode::Evaluate)
        {
            let known = BatchStatistics::known(tensors.get(2), tensors.get(3), EPSILON);
            let each = inputs.iter();
            return Ok(each
                .map(|inputs| self.normalised(inputs.each_ref(), &known, tensors))
                .collect());
        }
        let moments = inputs
            .iter()
            .zip(contexts)
            .map(|([x, _], context)| (context.shard, self.shape(x).moments(x.as_slice())));
        let moments = self.summed(moments.collect(), sums)?;
        let statistics = Arc::new(BatchStatistics::of_moments(&moments, EPSILON));
        let moved = Arc::new(moved_statistics(tensors, &statistics));
        let mut outputs = Vec::with_capacity(inputs.len());
        for ([x, added], context) in inputs.into_iter().zip(contexts) {
            let y = self.normalised([&x, &added], &statistics, tensors);
            outputs.push(y.clone());
            let saved = SavedBatchWideNorm {
                moved: moved.clone(),
                statistics: statistics.clone(),
                y: if self.after == AfterNorm::Rectified {
                    y
                } else {
                    x.clone()
                },
                x,
                gradient_sums: Vec::new(),
            };
            self.saved.insert(context.shard, saved);
        }
        Ok(outputs)
    }

    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        _wanted: &[bool],
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError> {
        let mut parts = Vec::new();
        let mut masked = Vec::new();
        for NodeGradient {
            shard,
            gradient,
            tensors,
        } in shards
        {
            let Some(saved) = self.saved.get(&shard) else {
                continue;
            };
            let gradient = match self.after {
                AfterNorm::Linear => gradient,
                AfterNorm::Rectified => {
                    let mut open = Activation::unwritten(gradient.shape());
                    let (y, given) = (saved.y.as_slice(), gradient.as_slice());
                    rectified_backward(y, given, open.as_mut_slice());
                    open
                }
            };
            let (x, given) = (saved.x.as_slice(), gradient.as_slice());
            let own = self
                .shape(&saved.x)
                .gradient_sums(x, given, &saved.statistics);
            parts.push((shard, own));
            masked.push((shard, gradient, tensors));
        }
        for (shard, own) in &parts {
            if let Some(saved) = self.saved.get_mut(shard) {
                saved.gradient_sums.clone_from(own);
            }
        }
        let summed = self.summed(parts, sums)?;
        let of_inputs = |(shard, gradient, tensors): (Shard, Activation, Tensors<'_>)| {
            let Some(saved) = self.saved.get(&shard) else {
                return Vec::new();
            };
            let added = self.adds.then(|| gradient.clone());
            let mut found = gradient;
            let (x, gamma) = (saved.x.as_slice(), tensors.get(0));
            let to = found.as_mut_slice();
            self.shape(&saved.x)
                .input_gradient(x, gamma, &saved.statistics, &summed, to);
            vec![Some(found), added]
        };
        Ok(masked.into_iter().map(of_inputs).collect())
    }

    fn backward_weights(
        &mut self,
        given: &NodeGradient<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        if let Some(saved) = self.saved.get(&given.shard) {
            let [of_gamma, of_beta] = to.first_two();
            let (own, statistics) = (&saved.gradient_sums, &saved.statistics);
            self.shape(&saved.x)
                .affine_gradients(own, statistics, of_gamma, of_beta);
            for (index, moved) in saved.moved.iter().enumerate() {
                to.get(2 + index).copy_from_slice(moved);
            }
        }
        Ok(())
    }

    fn end(&mut self, shard: Shard) {
        self.saved.remove(&shard);
    }

    fn discard(&mut self) {
        self.saved.clear();
    }

    fn needs_all_shards(&self) -> bool {
        true
    }
}

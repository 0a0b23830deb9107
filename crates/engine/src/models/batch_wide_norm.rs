//! [`BatchWideNorm`]: batch normalisation by the statistics of the whole global batch.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_kernels::{
    Affine, BatchNorm, BatchStatistics, mask_gradient, rectified, rectified_with_mask,
};

use crate::ops::AfterNorm;
use crate::pending_shards::PendingShards;
use crate::{Activation, EngineError, ForwardContext, NotSummed, ShardGradient, ShardSums};

/// The engine's own defaults, as for batch normalisation per shard.
const EPSILON: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// Normalises channels over all samples of a step, then adds a value and rectifies if configured.
/// Needs two sums over all shards per step, of two f64 per channel: one in forward, one in
/// backward.
///
/// Running statistics are updated as in batch normalisation per shard: the variance is not
/// corrected.
pub(super) struct BatchWideNorm {
    name: String,
    layout: StateLayout,
    channels: usize,
    after: AfterNorm,
    values: Arc<BatchWideNormValues>,
    pending: PendingShards<SavedBatchWideNorm>,
}

#[derive(Clone)]
struct BatchWideNormValues {
    gamma: Vec<f32>,
    beta: Vec<f32>,
    /// The running mean and variance, used in evaluation.
    running: [Vec<f32>; 2],
}

/// The values that backward of a shard needs.
struct SavedBatchWideNorm {
    values: Arc<BatchWideNormValues>,
    /// The running statistics after this step's forward.
    moved: Arc<[Vec<f32>; 2]>,
    statistics: Arc<BatchStatistics>,
    shape: BatchNorm,
    x: Activation,
    /// Whether each output of the rectifier is positive; empty without a rectifier.
    open: Vec<u8>,
    /// Whether a value was added.
    adds: bool,
}

impl BatchWideNorm {
    pub(super) fn new(name: &str, channels: usize, after: AfterNorm) -> Self {
        let tensor = |tensor, role| TensorEntry::f32(format!("{name}.{tensor}"), &[channels], role);
        let tensors = vec![
            tensor("gamma", Role::Parameter),
            tensor("beta", Role::Parameter),
            tensor("running_mean", Role::Buffer),
            tensor("running_var", Role::Buffer),
        ];
        let [ones, zeros] = [1.0, 0.0].map(|value| vec![value; channels]);
        Self {
            name: name.to_owned(),
            layout: StateLayout { tensors },
            channels,
            after,
            values: Arc::new(BatchWideNormValues {
                gamma: ones.clone(),
                beta: zeros.clone(),
                running: [zeros, ones],
            }),
            pending: PendingShards::new(name, true),
        }
    }

    pub(super) fn layout(&self) -> &StateLayout {
        &self.layout
    }

    pub(super) fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        let values = Arc::make_mut(&mut self.values);
        let [mean, variance] = &mut values.running;
        let all = [&mut values.gamma, &mut values.beta, mean, variance];
        for (to, range) in all.into_iter().zip(ranges) {
            to.copy_from_slice(&state[range.clone()]);
        }
    }

    pub(super) fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        let values = &*self.values;
        let [mean, variance] = &values.running;
        for (from, range) in [&values.gamma, &values.beta, mean, variance]
            .into_iter()
            .zip(ranges)
        {
            state[range.clone()].copy_from_slice(from);
        }
    }

    fn shape_of(&self, x: &Activation) -> Result<BatchNorm, EngineError> {
        match *x.shape() {
            [samples, channels, height, width] if channels == self.channels => Ok(BatchNorm {
                samples,
                channels,
                places: height * width,
                epsilon: EPSILON,
                rectified: false,
            }),
            _ => {
                let expected = format!("[samples, {}, height, width]", self.channels);
                Err(self.pending.wrong_shape("input", x.shape(), expected))
            }
        }
    }

    /// Returns the outputs of all shards of this rank; `added` has as many elements as `x`.
    pub(super) fn forward(
        &mut self,
        x: Vec<Activation>,
        added: Option<Vec<Activation>>,
        contexts: &[ForwardContext],
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let mut parts = Vec::new();
        let mut shapes = Vec::new();
        for (x, context) in x.iter().zip(contexts) {
            let shape = self.shape_of(x)?;
            parts.push((context.shard, shape.moments(x.as_slice())));
            shapes.push(shape);
        }
        let moments = self.summed(parts, sums)?;
        let statistics = Arc::new(BatchStatistics::of_moments(&moments, EPSILON));
        let moved = Arc::new(self.moved(&statistics));
        let mut added = added.map(Vec::into_iter);
        let mut outputs = Vec::new();
        for ((x, context), shape) in x.into_iter().zip(contexts).zip(shapes) {
            let added = added.as_mut().and_then(Iterator::next);
            let adds = added.is_some();
            let mut y = self.normalised(shape, &x, &statistics, added);
            let mut open = Vec::new();
            if self.after == AfterNorm::Rectified {
                open = vec![0; y.len()];
                rectified_with_mask(&mut y, &mut open);
            }
            outputs.push(Activation::from_host(x.shape(), y));
            let kept = SavedBatchWideNorm {
                values: self.values.clone(),
                moved: moved.clone(),
                statistics: statistics.clone(),
                shape,
                x,
                open,
                adds,
            };
            self.pending.begin(context.shard, kept);
        }
        Ok(outputs)
    }

    /// Returns the output computed with the running statistics.
    pub(super) fn evaluate(
        &self,
        x: &Activation,
        added: Option<Activation>,
    ) -> Result<Activation, EngineError> {
        let [mean, variance] = &self.values.running;
        let known = BatchStatistics::known(mean, variance, EPSILON);
        let mut y = self.normalised(self.shape_of(x)?, x, &known, added);
        if self.after == AfterNorm::Rectified {
            rectified(&mut y);
        }
        Ok(Activation::from_host(x.shape(), y))
    }

    fn normalised(
        &self,
        shape: BatchNorm,
        x: &Activation,
        statistics: &BatchStatistics,
        added: Option<Activation>,
    ) -> Vec<f32> {
        let mut y = vec![0.0; x.as_slice().len()];
        let affine = Affine {
            gamma: &self.values.gamma,
            beta: &self.values.beta,
        };
        let added = added.as_ref().map(Activation::as_slice);
        shape.normalise(x.as_slice(), statistics, affine, added, &mut y);
        y
    }

    /// Returns the gradients of the inputs of all shards of this rank, and of the added values.
    pub(super) fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<(Activation, Option<Activation>)>, EngineError> {
        let mut parts = Vec::new();
        let mut turning = Vec::new();
        for back in shards {
            let kept = self.pending.end(back.shard, true)?;
            self.pending
                .check_gradient(back.grad_output.shape(), kept.x.shape())?;
            let mut gradient = back.grad_output.into_host();
            if self.after == AfterNorm::Rectified {
                mask_gradient(&mut gradient, &kept.open);
            }
            let own = kept
                .shape
                .gradient_sums(kept.x.as_slice(), &gradient, &kept.statistics);
            let [gamma, beta] = [0, 1].map(|tensor| ranges[tensor].clone());
            let (mut of_gamma, mut of_beta) = (vec![0.0; self.channels], vec![0.0; self.channels]);
            kept.shape
                .affine_gradients(&own, &kept.statistics, &mut of_gamma, &mut of_beta);
            back.gradients[gamma].copy_from_slice(&of_gamma);
            back.gradients[beta].copy_from_slice(&of_beta);
            for (range, moved) in ranges[2..].iter().zip(&*kept.moved) {
                back.gradients[range.clone()].copy_from_slice(moved);
            }
            parts.push((back.shard, own));
            turning.push((kept, gradient));
        }
        let summed = self.summed(parts, sums)?;
        let turn = |(kept, mut gradient): (SavedBatchWideNorm, Vec<f32>)| {
            let shape = kept.x.shape();
            let added = kept
                .adds
                .then(|| Activation::from_host(shape, gradient.clone()));
            let (x, gamma) = (kept.x.as_slice(), &kept.values.gamma);
            kept.shape
                .input_gradient(x, gamma, &kept.statistics, &summed, &mut gradient);
            (Activation::from_host(shape, gradient), added)
        };
        Ok(turning.into_iter().map(turn).collect())
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

    /// Returns the running statistics after a step with these batch statistics.
    fn moved(&self, found: &BatchStatistics) -> [Vec<f32>; 2] {
        let [mean, variance] = &self.values.running;
        let moved = |old: &[f32], new: &[f32]| {
            let pairs = old.iter().zip(new);
            pairs
                .map(|(old, new)| old * (1.0 - MOMENTUM) as f32 + new * MOMENTUM as f32)
                .collect()
        };
        [moved(mean, &found.mean), moved(variance, &found.variance)]
    }

    pub(super) fn discard(&mut self) {
        self.pending.clear();
    }
}

//! [`NormaliseBatchWide`]: batch normalisation by the statistics of the whole global batch.

use ronde_core::Shard;

use super::AfterNorm;
use super::batch_norm::{ChannelNorm, EPSILON, known_statistics, move_statistics};
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::kernel::BatchAffineGradientsKernel;
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphNode, KeptValues, NodeGradient, TensorGradients, Tensors};
use crate::lock_step::{NotSummed, ShardSums};
use crate::shard_map::ShardMap;

/// Normalises channels over all samples of a step, then adds a value and rectifies if configured.
/// Needs two sums over all shards per step, of two f64 per channel: one in forward, one in
/// backward.
///
/// Running statistics are updated as in batch normalisation per shard: the variance is not
/// corrected.
pub(crate) struct NormaliseBatchWide {
    name: String,
    norm: ChannelNorm,
    saved: ShardMap<SavedBatchWideNorm>,
}

/// The values that backward of a shard needs.
struct SavedBatchWideNorm {
    statistics: Activation,
    x: Activation,
    /// The output, which shows where the rectifier is open; `None` without a rectifier.
    y: Option<Activation>,
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
        let norm = ChannelNorm {
            channels,
            places,
            after,
            adds,
        };
        Self {
            name,
            norm,
            saved: ShardMap::new(),
        }
    }

    fn summed(
        &self,
        parts: Vec<(Shard, Vec<f64>)>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<f64>, EngineError> {
        let len = 1 + 2 * self.norm.channels;
        sums.sum(len, parts)
            .map_err(|NotSummed| EngineError::NotSummed {
                layer: self.name.clone(),
            })
    }
}

impl GraphNode for NormaliseBatchWide {
    fn computation(&self) -> Computation {
        Computation::BatchNorm {
            epsilon: EPSILON,
            after: self.norm.after,
        }
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            inputs: vec![true],
            output: self.norm.after == AfterNorm::Rectified,
            ..KeptValues::default()
        }
    }

    /// The added operand is not kept.
    fn kept_for_output(&self) -> Option<KeptValues> {
        (!self.norm.adds).then(KeptValues::input)
    }

    fn output_again(
        &mut self,
        shard: Shard,
        tensors: Tensors<'_>,
    ) -> Result<Option<Activation>, EngineError> {
        let saved = self.saved.get(&shard);
        Ok(saved.map(|saved| {
            self.norm
                .normalised([&saved.x; 2], &saved.statistics, tensors)
        }))
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn each_saved(&mut self, shard: Shard, visit: &mut dyn FnMut(&mut Activation)) {
        if let Some(saved) = self.saved.get_mut(&shard) {
            visit(&mut saved.x);
            saved.y.iter_mut().for_each(visit);
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
            let known = known_statistics(tensors);
            let each = inputs.iter();
            return Ok(each
                .map(|inputs| self.norm.normalised(inputs.each_ref(), &known, tensors))
                .collect());
        }
        let moments = inputs
            .iter()
            .zip(contexts)
            .map(|([x, _], context)| (context.shard, self.norm.moments(x, tensors)));
        let moments = self.summed(moments.collect(), sums)?;
        let statistics = self.norm.statistics(&moments, tensors);
        let mut outputs = Vec::with_capacity(inputs.len());
        for ([x, added], context) in inputs.into_iter().zip(contexts) {
            let y = self.norm.normalised([&x, &added], &statistics, tensors);
            outputs.push(y.clone());
            let saved = SavedBatchWideNorm {
                statistics: statistics.clone(),
                y: (self.norm.after == AfterNorm::Rectified).then_some(y),
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
            let gradient = match &saved.y {
                None => gradient,
                Some(y) => self.norm.masked(y, &gradient, tensors),
            };
            let of_sums = [&saved.x, &gradient, &saved.statistics];
            let own = self.norm.gradient_sums(of_sums, tensors);
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
            let added = self.norm.adds.then(|| gradient.clone());
            let mut found = gradient;
            let known = [&saved.x, &saved.statistics];
            let norm = &self.norm;
            norm.input_gradient(known, &summed, &mut found, tensors);
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
            let (own, statistics) = (&saved.gradient_sums, saved.statistics.values());
            let (device, shape) = (given.tensors.device(), self.norm.shape(saved.x.samples()));
            let [of_gamma, of_beta] = to.pair(0);
            BatchAffineGradientsKernel {
                shape,
                own: own.to_vec(),
                statistics,
                of_gamma,
                of_beta,
            }
            .run_on(device);
            move_statistics(given.tensors, &saved.statistics, to);
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

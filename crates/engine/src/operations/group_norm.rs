//! [`NormaliseGroups`]: normalisation of groups of channels of each sample.

use ronde_kernels::GroupNorm;

use super::batch_norm::EPSILON;
use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{CopyKernel, GroupNormGradientKernel, GroupNormKernel};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};

/// Normalises groups of channels of each sample of `[N, C, H, W]`, then scales and shifts each
/// channel.
pub(crate) struct NormaliseGroups {
    channels: usize,
    places: usize,
    groups: usize,
}

impl NormaliseGroups {
    /// `groups` divides the number of channels; `places` is the number of elements of a channel of one sample.
    pub(crate) fn new([channels, places]: [usize; 2], groups: usize) -> Self {
        Self {
            channels,
            places,
            groups,
        }
    }

    fn shape(&self, samples: usize) -> GroupNorm {
        GroupNorm {
            samples,
            channels: self.channels,
            places: self.places,
            groups: self.groups,
            epsilon: EPSILON,
        }
    }
}

/// The values kept of one shard.
pub(crate) struct SavedGroupNorm {
    x: Activation,
    /// The mean and inverse deviation of each group of each sample.
    statistics: Activation,
    /// The gradients of gamma and beta of each shard.
    of_affine: Vec<[Activation; 2]>,
}

impl GraphOperation for NormaliseGroups {
    type Saved = SavedGroupNorm;

    fn computation(&self) -> Computation {
        Computation::GroupNorm {
            groups: self.groups,
            epsilon: EPSILON,
        }
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            always_f32: 2 * self.groups,
            ..KeptValues::input()
        }
    }

    fn each_saved(&self, saved: &mut SavedGroupNorm, visit: &mut dyn FnMut(&mut Activation)) {
        visit(&mut saved.x);
    }

    fn joins_shards(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, SavedGroupNorm), EngineError> {
        let x = only(inputs);
        let device = tensors.device();
        let mut y = tensors.unwritten(x.shape());
        let mut statistics = tensors.unwritten(&[x.samples(), self.groups, 2]);
        let shape = self.shape(x.samples());
        let to = y.values_mut(device);
        GroupNormKernel {
            shape,
            x: x.values(),
            gamma: tensors.get(0),
            beta: tensors.get(1),
            y: to,
            statistics: statistics.values_mut(device),
        }
        .run_on(device);
        let saved = SavedGroupNorm {
            x,
            statistics,
            of_affine: Vec::new(),
        };
        Ok((y, saved))
    }

    fn backward_input(
        &self,
        saved: &mut SavedGroupNorm,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let device = tensors.device();
        let mut of_x = tensors.unwritten(saved.x.shape());
        saved.of_affine.clear();
        for samples in tensors.samples_of_shards(saved.x.samples()) {
            let [x, dy, statistics] = [&saved.x, &gradient, &saved.statistics]
                .map(|values| values.some_samples(&samples));
            let each = self.channels * self.places;
            let to = samples.start * each..samples.end * each;
            let mut of_affine = [(); 2].map(|()| tensors.unwritten(&[self.channels]));
            let [of_gamma, of_beta] = of_affine.each_mut().map(|of| of.values_mut(device));
            GroupNormGradientKernel {
                shape: self.shape(samples.len()),
                x: x.values(),
                dy: dy.values(),
                gamma: tensors.get(0),
                statistics: statistics.values(),
                dx: of_x.values_mut(device).range(to),
                of_gamma,
                of_beta,
            }
            .run_on(device);
            saved.of_affine.push(of_affine);
        }
        vec![Some(of_x)]
    }

    fn backward_weights(
        &self,
        saved: &SavedGroupNorm,
        _gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        to.add_shards(0..2, tensors, saved.x.samples(), |shard, _, to| {
            for (index, found) in saved.of_affine[shard].iter().enumerate() {
                CopyKernel {
                    from: found.values(),
                    to: to.get(index),
                }
                .run_on(tensors.device());
            }
        });
        Ok(())
    }
}

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
    /// The gradients of gamma and beta.
    of_affine: Vec<Activation>,
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
        let channels = [self.channels];
        let mut found =
            [saved.x.shape(), &channels, &channels].map(|shape| tensors.unwritten(shape));
        let gradients = found.each_mut().map(|found| found.values_mut(device));
        let shape = self.shape(saved.x.samples());
        let [dx, of_gamma, of_beta] = gradients;
        GroupNormGradientKernel {
            shape,
            x: saved.x.values(),
            dy: gradient.values(),
            gamma: tensors.get(0),
            statistics: saved.statistics.values(),
            dx,
            of_gamma,
            of_beta,
        }
        .run_on(device);
        let [of_x, of_gamma, of_beta] = found;
        saved.of_affine = vec![of_gamma, of_beta];
        vec![Some(of_x)]
    }

    fn backward_weights(
        &self,
        saved: &SavedGroupNorm,
        _gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        for (index, found) in saved.of_affine.iter().enumerate() {
            CopyKernel {
                from: found.values(),
                to: to.get(index),
            }
            .run_on(tensors.device());
        }
        Ok(())
    }
}

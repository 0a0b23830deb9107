//! [`NormaliseGroups`]: normalisation of groups of channels of each sample.

use ronde_kernels::{Affine, GroupNorm as Kernel};

use super::batch_norm::EPSILON;
use super::only;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, EngineError, ForwardContext};

/// The number of groups: the paper's choice.
const GROUPS: usize = 32;

/// Normalises 32 groups of channels of each sample of `[N, C, H, W]`, then scales and shifts each
/// channel.
pub(crate) struct NormaliseGroups {
    channels: usize,
    places: usize,
}

impl NormaliseGroups {
    pub(crate) fn new(channels: usize, places: usize) -> Self {
        Self { channels, places }
    }

    /// Returns the number of groups, which must divide the number of channels.
    pub(crate) fn groups(&self) -> usize {
        GROUPS
    }

    fn shape(&self, samples: usize) -> Kernel {
        Kernel {
            samples,
            channels: self.channels,
            places: self.places,
            groups: GROUPS,
            epsilon: EPSILON,
        }
    }
}

/// The values kept of one shard.
pub(crate) struct SavedGroupNorm {
    x: Activation,
    /// The mean and inverse deviation of each group of each sample.
    statistics: Vec<[f32; 2]>,
    /// The gradients of gamma and beta.
    of_affine: [Vec<f32>; 2],
}

impl GraphOperation for NormaliseGroups {
    type Saved = SavedGroupNorm;

    fn kept(&self) -> KeptValues {
        KeptValues {
            more: 2 * GROUPS,
            ..KeptValues::input()
        }
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, SavedGroupNorm), EngineError> {
        let x = only(inputs);
        let mut y = Activation::unwritten(x.shape());
        let affine = Affine {
            gamma: tensors.get(0),
            beta: tensors.get(1),
        };
        let shape = self.shape(x.samples());
        let statistics = shape.forward(x.as_slice(), affine, y.as_mut_slice());
        let saved = SavedGroupNorm {
            x,
            statistics,
            of_affine: Default::default(),
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
        saved.of_affine = [0, 1].map(|_| vec![0.0; self.channels]);
        let mut found = Activation::unwritten(saved.x.shape());
        self.shape(saved.x.samples()).backward(
            saved.x.as_slice(),
            tensors.get(0),
            &saved.statistics,
            gradient.as_slice(),
            found.as_mut_slice(),
            saved.of_affine.each_mut().map(Vec::as_mut_slice),
        );
        vec![Some(found)]
    }

    fn backward_weights(
        &self,
        saved: &SavedGroupNorm,
        _gradient: &Activation,
        _tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        for (index, found) in saved.of_affine.iter().enumerate() {
            to.get(index).copy_from_slice(found);
        }
        Ok(())
    }
}

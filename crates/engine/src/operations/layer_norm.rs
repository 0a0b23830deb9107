//! [`NormaliseRows`]: normalisation of the last dimension.

use super::batch_norm::EPSILON;
use super::only;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, EngineError, ForwardContext};

/// Normalises the last dimension, then scales it by gamma and shifts it by beta.
pub(crate) struct NormaliseRows {
    /// The number of rows of one sample.
    pub(crate) rows: usize,
}

/// The values kept of one shard.
pub(crate) struct SavedLayerNorm {
    x: Activation,
    /// The mean and inverse deviation of each row.
    rows: Vec<[f32; 2]>,
    /// The gradients of gamma and beta.
    of_affine: [Vec<f32>; 2],
}

impl GraphOperation for NormaliseRows {
    type Saved = SavedLayerNorm;

    fn kept(&self) -> KeptValues {
        KeptValues {
            more: 2 * self.rows,
            ..KeptValues::input()
        }
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, SavedLayerNorm), EngineError> {
        let x = only(inputs);
        let mut y = Activation::unwritten(x.shape());
        let (gamma, beta) = (tensors.get(0), tensors.get(1));
        let rows = ronde_kernels::layer_norm(x.as_slice(), gamma, beta, EPSILON, y.as_mut_slice());
        let saved = SavedLayerNorm {
            x,
            rows,
            of_affine: Default::default(),
        };
        Ok((y, saved))
    }

    fn backward_input(
        &self,
        saved: &mut SavedLayerNorm,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let gamma = tensors.get(0);
        saved.of_affine = [0, 1].map(|_| vec![0.0; gamma.len()]);
        let affine = saved.of_affine.each_mut().map(Vec::as_mut_slice);
        let mut found = Activation::unwritten(saved.x.shape());
        let (x, to) = (saved.x.as_slice(), found.as_mut_slice());
        ronde_kernels::layer_norm_backward(x, gamma, &saved.rows, gradient.as_slice(), to, affine);
        vec![Some(found)]
    }

    fn backward_weights(
        &self,
        saved: &SavedLayerNorm,
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

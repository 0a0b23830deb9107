//! [`NormaliseRows`]: normalisation of the last dimension.

use super::batch_norm::EPSILON;
use super::only;
use crate::device::AffineSlices;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, Computation, EngineError, ForwardContext};

/// Normalises the last dimension, then scales it by gamma and shifts it by beta.
pub(crate) struct NormaliseRows {
    /// The number of rows of one sample.
    pub(crate) rows: usize,
}

/// The values kept of one shard.
pub(crate) struct SavedLayerNorm {
    x: Activation,
    /// The mean and inverse deviation of each row.
    statistics: Activation,
    /// The gradients of gamma and beta.
    of_affine: Vec<Activation>,
}

/// Returns the normalised rows and their statistics.
fn normalised(x: &Activation, tensors: Tensors<'_>) -> [Activation; 2] {
    let device = tensors.device();
    let mut y = tensors.unwritten(x.shape());
    let rows = x.elements() / tensors.get(0).length().max(1);
    let mut statistics = tensors.unwritten(&[rows, 2]);
    let affine = AffineSlices {
        gamma: tensors.get(0),
        beta: tensors.get(1),
    };
    let (to, found) = (y.values_mut(device), statistics.values_mut(device));
    device.layer_norm(x.values(), affine, EPSILON, to, found);
    [y, statistics]
}

impl GraphOperation for NormaliseRows {
    type Saved = SavedLayerNorm;

    fn computation(&self) -> Computation {
        Computation::LayerNorm { epsilon: EPSILON }
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            always_f32: 2 * self.rows,
            ..KeptValues::input()
        }
    }

    fn kept_for_output(&self) -> Option<KeptValues> {
        Some(self.kept())
    }

    fn output_again(&self, saved: &mut SavedLayerNorm, tensors: Tensors<'_>) -> Option<Activation> {
        let [y, _] = normalised(&saved.x, tensors);
        Some(y)
    }

    fn each_saved(&self, saved: &mut SavedLayerNorm, visit: &mut dyn FnMut(&mut Activation)) {
        visit(&mut saved.x);
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, SavedLayerNorm), EngineError> {
        let x = only(inputs);
        let [y, statistics] = normalised(&x, tensors);
        let saved = SavedLayerNorm {
            x,
            statistics,
            of_affine: Vec::new(),
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
        let device = tensors.device();
        let width = [gamma.length()];
        let mut found = [saved.x.shape(), &width, &width].map(|shape| tensors.unwritten(shape));
        let gradients = found.each_mut().map(|found| found.values_mut(device));
        let inputs = [saved.x.values(), gradient.values(), gamma];
        device.layer_norm_gradient(inputs, saved.statistics.values(), gradients);
        let [of_x, of_gamma, of_beta] = found;
        saved.of_affine = vec![of_gamma, of_beta];
        vec![Some(of_x)]
    }

    fn backward_weights(
        &self,
        saved: &SavedLayerNorm,
        _gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        for (index, found) in saved.of_affine.iter().enumerate() {
            tensors.device().copy(found.values(), to.get(index));
        }
        Ok(())
    }
}

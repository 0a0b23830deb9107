//! [`Dropout`]: random elements set to zero in training.

use ronde_kernels::multiply_by;

use super::only;
use crate::graph::{GraphOperation, KeptValues, Tensors};
use crate::{Activation, EngineError, ForwardContext, Mode};

/// Multiplies by the factors that the context draws; the identity in evaluation.
pub(crate) struct Dropout {
    pub(crate) probability: f64,
    /// The number of the dropout in its layer, a part of its key.
    pub(crate) index: u64,
    /// The number of elements of one sample.
    pub(crate) elements: usize,
}

impl GraphOperation for Dropout {
    /// The factors; `None` in evaluation.
    type Saved = Option<Activation>;

    fn kept(&self) -> KeptValues {
        KeptValues::floats(self.elements)
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, Option<Activation>), EngineError> {
        let mut x = only(inputs);
        if context.mode == Mode::Evaluate {
            return Ok((x, None));
        }
        let mut factors = Activation::unwritten(x.shape());
        if !context.draw_dropout(factors.as_mut_slice(), self.probability, self.index) {
            return Ok((x, None));
        }
        multiply_by(x.as_mut_slice(), factors.as_slice());
        Ok((x, Some(factors)))
    }

    fn backward_input(
        &self,
        factors: &mut Option<Activation>,
        mut gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        if let Some(factors) = factors {
            multiply_by(gradient.as_mut_slice(), factors.as_slice());
        }
        vec![Some(gradient)]
    }
}

//! [`Linear`]: a matrix product over the last dimension.

use ronde_kernels::{Matrix, add_rows, multiply};

use super::only;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, EngineError, ForwardContext};

/// `x * weight + bias` for each row of `[.., inputs]`; `weight` is `[inputs, outputs]`.
pub(crate) struct Linear {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) has_bias: bool,
}

impl Linear {
    fn rows(&self, x: &Activation) -> usize {
        x.as_slice().len() / self.inputs.max(1)
    }
}

impl GraphOperation for Linear {
    /// The input.
    type Saved = Activation;

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Activation), EngineError> {
        let x = only(inputs);
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.outputs;
        }
        let mut y = Activation::unwritten(&shape);
        if self.has_bias {
            let bias = tensors.get(1);
            for row in y.as_mut_slice().chunks_exact_mut(self.outputs.max(1)) {
                row.copy_from_slice(bias);
            }
        }
        let left = Matrix::new(x.as_slice(), self.rows(&x), self.inputs);
        let right = Matrix::new(tensors.get(0), self.inputs, self.outputs);
        multiply(left, right, y.as_mut_slice(), self.has_bias);
        Ok((y, x))
    }

    fn backward_input(
        &self,
        x: &mut Activation,
        gradient: Activation,
        tensors: Tensors<'_>,
        wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        if !wanted[0] {
            return vec![None];
        }
        let given = Matrix::new(gradient.as_slice(), self.rows(x), self.outputs);
        let weight = Matrix::new(tensors.get(0), self.inputs, self.outputs);
        let mut found = Activation::unwritten(x.shape());
        multiply(given, weight.transposed(), found.as_mut_slice(), false);
        vec![Some(found)]
    }

    fn backward_weights(
        &self,
        x: &Activation,
        gradient: &Activation,
        _tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let rows = self.rows(x);
        let given = Matrix::new(gradient.as_slice(), rows, self.outputs);
        let input = Matrix::new(x.as_slice(), rows, self.inputs);
        multiply(input.transposed(), given, to.get(0), false);
        if self.has_bias {
            let sums = to.get(1);
            sums.fill(0.0);
            add_rows(gradient.as_slice(), sums);
        }
        Ok(())
    }
}

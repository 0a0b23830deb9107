//! Sums and activation functions, element by element.

use ronde_kernels::{ActivationFunction, add_to, multiply_by, rectified, rectified_backward};

use super::{first_two, only};
use crate::graph::{GraphOperation, KeptValues, Tensors};
use crate::{Activation, EngineError, ForwardContext, Mode};

/// The sum of two values.
pub(crate) struct Add;

impl GraphOperation for Add {
    type Saved = ();

    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, ()), EngineError> {
        let [x, y] = first_two(inputs);
        let (mut sum, more) = (y, x);
        add_to(sum.as_mut_slice(), more.as_slice());
        Ok((sum, ()))
    }

    fn backward_input(
        &self,
        (): &mut (),
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        vec![Some(gradient.clone()), Some(gradient)]
    }
}

/// `max(x, 0)`; NaN is preserved.
pub(crate) struct Rectify;

impl GraphOperation for Rectify {
    /// The output.
    type Saved = Activation;

    fn kept(&self) -> KeptValues {
        KeptValues {
            inputs: vec![false],
            output: true,
            more: 0,
        }
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Activation), EngineError> {
        let mut y = only(inputs);
        rectified(y.as_mut_slice());
        Ok((y.clone(), y))
    }

    fn backward_input(
        &self,
        y: &mut Activation,
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let mut found = Activation::unwritten(y.shape());
        rectified_backward(y.as_slice(), gradient.as_slice(), found.as_mut_slice());
        vec![Some(found)]
    }
}

/// A function of each element.
pub(crate) struct Activate {
    pub(crate) function: ActivationFunction,
    /// The number of elements of one sample.
    pub(crate) elements: usize,
}

impl GraphOperation for Activate {
    /// The slope of each element; `None` in evaluation.
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
        let x = only(inputs);
        let mut y = Activation::unwritten(x.shape());
        let trains = context.mode == Mode::Train;
        let mut slope = trains.then(|| Activation::unwritten(x.shape()));
        let wanted = slope.as_mut().map(Activation::as_mut_slice);
        self.function
            .forward(x.as_slice(), y.as_mut_slice(), wanted);
        Ok((y, slope))
    }

    fn backward_input(
        &self,
        slope: &mut Option<Activation>,
        mut gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        if let Some(slope) = slope {
            multiply_by(gradient.as_mut_slice(), slope.as_slice());
        }
        vec![Some(gradient)]
    }
}

//! Sums and activation functions, element by element.

use ronde_kernels::ActivationFunction;

use super::{first_two, only};
use crate::graph::{GraphOperation, KeptValues, Tensors};
use crate::{Activation, Computation, EngineError, ForwardContext, Mode};

/// The sum of two values.
pub(crate) struct Add;

impl GraphOperation for Add {
    type Saved = ();

    fn computation(&self) -> Computation {
        Computation::Add
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, ()), EngineError> {
        let [x, y] = first_two(inputs);
        let (mut sum, more) = (y, x);
        let device = tensors.device();
        device.add(sum.values_mut(device), more.values());
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

    fn computation(&self) -> Computation {
        Computation::Relu
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            inputs: vec![false],
            output: true,
            ..KeptValues::default()
        }
    }

    fn each_saved(&self, y: &mut Activation, visit: &mut dyn FnMut(&mut Activation)) {
        visit(y);
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Activation), EngineError> {
        let mut y = only(inputs);
        let device = tensors.device();
        device.rectify(y.values_mut(device));
        Ok((y.clone(), y))
    }

    fn backward_input(
        &self,
        y: &mut Activation,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let device = tensors.device();
        let mut found = tensors.unwritten(y.shape());
        device.rectify_gradient(y.values(), gradient.values(), found.values_mut(device));
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

    fn computation(&self) -> Computation {
        Computation::Activation(self.function)
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            more: self.elements,
            ..KeptValues::default()
        }
    }

    fn each_saved(&self, slope: &mut Option<Activation>, visit: &mut dyn FnMut(&mut Activation)) {
        slope.iter_mut().for_each(visit);
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, Option<Activation>), EngineError> {
        let x = only(inputs);
        let device = tensors.device();
        let mut y = tensors.unwritten(x.shape());
        let trains = context.mode == Mode::Train;
        let mut slope = trains.then(|| tensors.unwritten(x.shape()));
        let wanted = slope.as_mut().map(|slope| slope.values_mut(device));
        device.activate(self.function, x.values(), y.values_mut(device), wanted);
        Ok((y, slope))
    }

    fn backward_input(
        &self,
        slope: &mut Option<Activation>,
        mut gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        if let Some(slope) = slope {
            let device = tensors.device();
            device.multiply_by(gradient.values_mut(device), slope.values());
        }
        vec![Some(gradient)]
    }
}

//! Sums and activation functions, element by element.

use ronde_kernels::ActivationFunction;

use super::{first_two, only};
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::kernel::{
    ActivateKernel, AddKernel, MultiplyByKernel, RectifyGradientKernel, RectifyKernel,
};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptValues, Tensors};

/// The sum of two values.
pub(crate) struct Add;

impl GraphOperation for Add {
    type Saved = ();

    fn computation(&self) -> Computation {
        Computation::Add
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn computes_own_tokens(&self) -> bool {
        true
    }

    fn joins_shards(&self) -> bool {
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
        let blocks = tensors.blocks(sum.elements());
        blocks.change(&mut sum, [&more], |_, sum, [more]| {
            AddKernel { y: sum, x: more }.run_on(device)
        });
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

    fn takes_packed(&self) -> bool {
        true
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

    fn joins_shards(&self) -> bool {
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
        let blocks = tensors.blocks(y.elements());
        blocks.change(&mut y, [], |_, y, []| RectifyKernel { y }.run_on(device));
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
        let mut found = tensors.result(y.shape());
        let blocks = tensors.blocks(y.elements());
        blocks.run([&*y, &gradient], [&mut found], |_, [y, given], [to]| {
            RectifyGradientKernel {
                y,
                dy: given,
                dx: to,
            }
            .run_on(device);
        });
        vec![Some(found)]
    }
}

/// A function of each element.
pub(crate) struct Activate {
    pub(crate) function: ActivationFunction,
    /// The number of elements of one sample.
    pub(crate) elements: usize,
}

/// The needs of the backward pass of an activation function.
pub(crate) enum SavedSlope {
    /// Nothing, in evaluation.
    Nothing,
    /// The input, while the output is computed again.
    Input(Activation),
    /// The slope of each element.
    Slope(Activation),
}

impl Activate {
    /// Returns the output and the slope of each element.
    fn with_slope(&self, x: &Activation, tensors: Tensors<'_>) -> [Activation; 2] {
        let device = tensors.device();
        let [mut y, mut slope] = [x, x].map(|x| tensors.result(x.shape()));
        let blocks = tensors.blocks(x.elements());
        blocks.run([x], [&mut y, &mut slope], |_, [x], [y, slope]| {
            ActivateKernel {
                function: self.function,
                x,
                y,
                slope: Some(slope),
            }
            .run_on(device);
        });
        [y, slope]
    }

    /// Computes the slope from the input, if only this is kept, and returns the output.
    fn find_slope(&self, saved: &mut SavedSlope, tensors: Tensors<'_>) -> Option<Activation> {
        let SavedSlope::Input(x) = saved else {
            return None;
        };
        let format = x.rounded_to();
        let [y, mut slope] = self.with_slope(x, tensors);
        if let Some(format) = format {
            // In layers in parts, which pack afterwards.
            slope.round(tensors.device(), format);
        }
        *saved = SavedSlope::Slope(slope);
        Some(y)
    }
}

impl GraphOperation for Activate {
    type Saved = SavedSlope;

    fn computation(&self) -> Computation {
        Computation::Activation(self.function)
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            more: self.elements,
            ..KeptValues::default()
        }
    }

    fn kept_for_output(&self) -> Option<KeptValues> {
        Some(KeptValues::input())
    }

    fn output_again(&self, saved: &mut SavedSlope, tensors: Tensors<'_>) -> Option<Activation> {
        self.find_slope(saved, tensors)
    }

    fn each_saved(&self, saved: &mut SavedSlope, visit: &mut dyn FnMut(&mut Activation)) {
        match saved {
            SavedSlope::Nothing => {}
            SavedSlope::Input(values) | SavedSlope::Slope(values) => visit(values),
        }
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn joins_shards(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, SavedSlope), EngineError> {
        let x = only(inputs);
        if context.mode == Mode::Train && !tensors.has_output_again() {
            let [y, slope] = self.with_slope(&x, tensors);
            return Ok((y, SavedSlope::Slope(slope)));
        }
        let device = tensors.device();
        let mut y = tensors.result(x.shape());
        let blocks = tensors.blocks(x.elements());
        blocks.run([&x], [&mut y], |_, [x], [y]| {
            ActivateKernel {
                function: self.function,
                x,
                y,
                slope: None,
            }
            .run_on(device);
        });
        let saved = match context.mode {
            Mode::Train => SavedSlope::Input(x),
            Mode::Evaluate => SavedSlope::Nothing,
        };
        Ok((y, saved))
    }

    fn backward_input(
        &self,
        saved: &mut SavedSlope,
        mut gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        self.find_slope(saved, tensors);
        if let SavedSlope::Slope(slope) = saved {
            let device = tensors.device();
            let blocks = tensors.blocks(slope.elements());
            blocks.change(&mut gradient, [slope], |_, gradient, [slope]| {
                MultiplyByKernel {
                    y: gradient,
                    factors: slope,
                }
                .run_on(device);
            });
        }
        vec![Some(gradient)]
    }
}

//! [`Convolve`]: convolution of images.

use ronde_kernels::GroupedConvolution;

use super::only;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, Computation, EngineError, ForwardContext};

/// Convolution of `[N, C, H, W]`, possibly in groups of channels, with an optional bias per channel
/// of the output.
pub(crate) struct Convolve {
    pub(crate) shape: GroupedConvolution,
    pub(crate) has_bias: bool,
}

impl Convolve {
    fn output_size(&self) -> [usize; 2] {
        self.shape.each.output_size()
    }
}

impl GraphOperation for Convolve {
    /// The input.
    type Saved = Activation;

    fn computation(&self) -> Computation {
        Computation::Convolution {
            shape: self.shape,
            has_bias: self.has_bias,
        }
    }

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn each_saved(&self, x: &mut Activation, visit: &mut dyn FnMut(&mut Activation)) {
        visit(x);
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Activation), EngineError> {
        let x = only(inputs);
        let [height, width] = self.output_size();
        let outputs = self.shape.groups * self.shape.each.outputs;
        let device = tensors.device();
        let mut y = tensors.unwritten(&[x.samples(), outputs, height, width]);
        let mut to = y.values_mut(device);
        let (weight, input) = (tensors.get(0), x.values());
        let format = tensors.format_with(0, &x);
        device.convolve(
            &self.shape,
            format,
            x.samples(),
            input,
            weight,
            to.reborrow(),
        );
        if self.has_bias {
            device.add_to_channels(to, height * width, tensors.get(1));
        }
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
        let device = tensors.device();
        let mut found = tensors.unwritten(x.shape());
        let (weight, given, to) = (tensors.get(0), gradient.values(), found.values_mut(device));
        let format = tensors.format_with(0, &gradient);
        device.convolve_input_gradient(&self.shape, format, x.samples(), weight, given, to);
        vec![Some(found)]
    }

    fn backward_weights(
        &self,
        x: &Activation,
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let (device, given) = (tensors.device(), gradient.values());
        let format = x.rounded_to();
        let format = format.filter(|_| format == gradient.rounded_to());
        let samples = x.samples();
        device.convolve_weight_gradient(&self.shape, format, samples, x.values(), given, to.get(0));
        if self.has_bias {
            let places = self.output_size().iter().product();
            device.sum_channels(given, places, to.get(1));
        }
        Ok(())
    }
}

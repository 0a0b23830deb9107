//! [`Convolve`]: convolution of images.

use ronde_kernels::{GroupedConvolution, add_to_channels, channel_sums};

use super::only;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, EngineError, ForwardContext};

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
        let [height, width] = self.output_size();
        let outputs = self.shape.groups * self.shape.each.outputs;
        let mut y = Activation::unwritten(&[x.samples(), outputs, height, width]);
        let to = y.as_mut_slice();
        self.shape
            .forward(x.samples(), x.as_slice(), tensors.get(0), to);
        if self.has_bias {
            add_to_channels(to, height * width, tensors.get(1));
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
        let mut found = Activation::unwritten(x.shape());
        let (weight, given) = (tensors.get(0), gradient.as_slice());
        self.shape
            .input_gradient(x.samples(), weight, given, found.as_mut_slice());
        vec![Some(found)]
    }

    fn backward_weights(
        &self,
        x: &Activation,
        gradient: &Activation,
        _tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let given = gradient.as_slice();
        self.shape
            .weight_gradient(x.samples(), x.as_slice(), given, to.get(0));
        if self.has_bias {
            let places = self.output_size().iter().product();
            channel_sums(given, places, to.get(1));
        }
        Ok(())
    }
}

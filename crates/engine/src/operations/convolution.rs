//! [`Convolve`]: convolution of images.

use ronde_kernels::GroupedConvolution;

use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{
    AddToChannelsKernel, ConvolveInputGradientKernel, ConvolveKernel,
    ConvolveShardsWeightGradientKernel, ConvolveWeightGradientKernel, SumChannelsKernel,
};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};

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

    /// Returns the number of joined shards whose gradients of the weights one kernel computes and adds.
    fn shards_together(&self, operands: [&Activation; 2], tensors: Tensors<'_>) -> usize {
        let is_packed = |of: &Activation| of.packed_format().is_some();
        if self.shape.groups > 1 || operands.into_iter().any(is_packed) {
            return 1;
        }
        let most = tensors.joined().iter().map(|of| of.samples.len()).max();
        most.map_or(1, |samples| self.shape.each.shards_in_cache(samples))
    }

    /// Computes the gradients of the weights of joined shards, several in one kernel.
    fn add_weight_gradients(
        &self,
        together: usize,
        [x, gradient]: [&Activation; 2],
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) {
        to.add_groups(together, 0..1, tensors, |group, to| {
            let ([first, ..], [.., last]) = (group, group) else {
                return;
            };
            let samples = first.samples.start..last.samples.end;
            let (x, gradient) = (x.some_samples(&samples), gradient.some_samples(&samples));
            ConvolveShardsWeightGradientKernel {
                shape: self.shape.each,
                x: x.values(),
                dy: gradient.values(),
                dw: to.get(0),
                shards: group.iter().map(|of| of.samples.len()).collect(),
            }
            .run_on(tensors.device());
        });
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

    fn takes_packed(&self) -> bool {
        true
    }

    fn each_saved(&self, x: &mut Activation, visit: &mut dyn FnMut(&mut Activation)) {
        visit(x);
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
        let x = only(inputs);
        let [height, width] = self.output_size();
        let outputs = self.shape.groups * self.shape.each.outputs;
        let device = tensors.device();
        let mut y = tensors.result(&[x.samples(), outputs, height, width]);
        let format = tensors.format_with(0, &x);
        let (shape, weight) = (&self.shape, tensors.get(0));
        let blocks = tensors.blocks_of_products(x.samples());
        blocks.run([&x], [&mut y], |samples, [x], [mut to]| {
            ConvolveKernel {
                shape: *shape,
                format,
                samples: samples.len(),
                x,
                w: weight,
                y: to.reborrow(),
            }
            .run_on(device);
            if self.has_bias {
                AddToChannelsKernel {
                    y: to,
                    places: height * width,
                    added: tensors.get(1),
                }
                .run_on(device);
            }
        });
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
        let mut found = tensors.result(x.shape());
        let (shape, weight) = (&self.shape, tensors.get(0));
        let format = tensors.format_with(0, &gradient);
        let blocks = tensors.blocks_of_products(x.samples());
        blocks.run([&gradient], [&mut found], |samples, [given], [to]| {
            ConvolveInputGradientKernel {
                shape: *shape,
                format,
                samples: samples.len(),
                w: weight,
                dy: given,
                dx: to,
            }
            .run_on(device);
        });
        vec![Some(found)]
    }

    fn backward_weights(
        &self,
        x: &Activation,
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let device = tensors.device();
        let format = x.rounded_to();
        let format = format.filter(|_| format == gradient.rounded_to());
        let places = self.output_size().iter().product();
        let own = 0..1 + usize::from(self.has_bias);
        let together = match format {
            None => self.shards_together([x, gradient], tensors),
            Some(_) => 1,
        };
        let rest = match together {
            1 => own,
            _ => {
                self.add_weight_gradients(together, [x, gradient], tensors, to);
                1..own.end
            }
        };
        if rest.is_empty() {
            return Ok(());
        }
        to.add_shards(rest.clone(), tensors, x.samples(), |_, samples, to| {
            let (x, gradient) = (&x.some_samples(&samples), &gradient.some_samples(&samples));
            let blocks = tensors.blocks_of_products(x.samples());
            blocks.run([x, gradient], [], |samples, [x, given], []| {
                let adds = samples.start > 0;
                if rest.contains(&0) {
                    tensors.write_or_add(adds, to.get(0), |to| {
                        ConvolveWeightGradientKernel {
                            shape: self.shape,
                            format,
                            samples: samples.len(),
                            x,
                            dy: given,
                            dw: to,
                        }
                        .run_on(device);
                    });
                }
                if self.has_bias {
                    tensors.write_or_add(adds, to.get(1), |to| {
                        SumChannelsKernel {
                            x: given,
                            places,
                            to,
                        }
                        .run_on(device);
                    });
                }
            });
        });
        Ok(())
    }
}

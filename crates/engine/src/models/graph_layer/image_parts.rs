//! Parts of layers that process images: convolution, normalisation, pooling.

use burn::nn::conv::Conv2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::Tensor;
use ronde_core::seed::SeedTree;

use super::{GraphLayer, GraphPart, GraphValue, PartId};
use crate::models::batch_wide_norm::BatchWideNorm;
use crate::models::cost_per_sample;
use crate::models::modules::convolution;
use crate::ops::{AfterNorm, SlidingWindow, average_to, conv2d, max_pool};
use crate::{BurnLayer, ForwardContext, training_device};

/// A value that holds images: its index, and channels, height and width.
#[derive(Debug, Clone, Copy)]
pub(in crate::models) struct Images {
    pub(in crate::models) value: GraphValue,
    pub(in crate::models) shape: [usize; 3],
}

/// A convolution that was added to the graph.
#[derive(Debug, Clone, Copy)]
pub(in crate::models) struct ConvolutionPart {
    part: PartId,
    channels: usize,
    window: SlidingWindow,
}

impl GraphLayer {
    /// Adds a convolution for images of a shape, with initial weights for the rectifier.
    pub(in crate::models) fn convolution(
        &mut self,
        name: &str,
        [from, height, width]: [usize; 3],
        channels: usize,
        window: SlidingWindow,
        has_bias: bool,
        seeds: &SeedTree,
    ) -> ConvolutionPart {
        let device = training_device();
        let layer = convolution(from, channels, window, has_bias, &device);
        let output = [channels, window.count(height), window.count(width)];
        let layer = BurnLayer::new(layer, |layer: &Conv2d, x, _: &ForwardContext| {
            conv2d(layer, x)
        })
        .named(name)
        .with_sample_shape(&[from, height, width])
        .with_initial_weights_from_seed(seeds)
        .with_cost(cost_per_sample(&output, 0));
        // This is the first part of a model's first layer.
        let is_first = self.parts.is_empty() && !self.pending.gives_input_gradient;
        let part = self.part(GraphPart::Layer(if is_first {
            Box::new(layer.without_input_gradient())
        } else {
            Box::new(layer)
        }));
        ConvolutionPart {
            part,
            channels,
            window,
        }
    }

    /// Adds a normalisation.
    pub(in crate::models) fn norm(
        &mut self,
        name: &str,
        channels: usize,
        after: AfterNorm,
    ) -> PartId {
        self.part(GraphPart::Norm(BatchWideNorm::new(name, channels, after)))
    }

    /// Runs a convolution, then a normalisation that adds a value.
    pub(in crate::models) fn convolved(
        &mut self,
        conv: ConvolutionPart,
        norm: PartId,
        from: Images,
        added: Option<GraphValue>,
    ) -> Images {
        let [_, height, width] = from.shape;
        let y = self.wire(conv.part, from.value, None);
        Images {
            value: self.wire(norm, y, added),
            shape: [
                conv.channels,
                conv.window.count(height),
                conv.window.count(width),
            ],
        }
    }

    /// Adds a pooling, and runs it.
    pub(in crate::models) fn pooled(&mut self, from: Images, window: SlidingWindow) -> Images {
        let [channels, height, width] = from.shape;
        let shape = [channels, window.count(height), window.count(width)];
        self.resized(from, shape, move |x| max_pool(x, window))
    }

    /// Adds an averaging to squares of a given side, and runs it.
    pub(in crate::models) fn averaged(&mut self, from: Images, side: usize) -> Images {
        let shape = [from.shape[0], side, side];
        self.resized(from, shape, move |x| average_to(x, side))
    }

    fn resized(
        &mut self,
        from: Images,
        shape: [usize; 3],
        resize: impl Fn(Tensor<4>) -> Tensor<4> + Send + 'static,
    ) -> Images {
        // The part has no tensors, so any module without tensors serves.
        let module = MaxPool2dConfig::new([1, 1]).init();
        let layer = BurnLayer::new(module, move |_: &MaxPool2d, x, _: &ForwardContext| {
            resize(x)
        })
        .titled("pooling")
        .with_sample_shape(&from.shape)
        .with_cost(cost_per_sample(&shape, 0));
        let part = self.part(GraphPart::Layer(Box::new(layer)));
        Images {
            value: self.wire(part, from.value, None),
            shape,
        }
    }
}

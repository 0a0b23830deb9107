//! A small convolutional network for 8 x 8 digits.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2dConfig, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};
use ronde_core::seed::SeedTree;

use super::{Layers, cost_per_sample, image};
use crate::ops::{AfterNorm, batch_norm, conv2d, linear};
use crate::{BurnLayer, ForwardContext, training_device};

/// A larger number would overflow sizes long before it would fit into memory.
const CHANNELS_MAX: usize = 1 << 16;

/// A 3 x 3 convolution, batch normalisation and a rectifier.
#[derive(Module, Debug)]
struct DigitsBlock {
    conv: Conv2d,
    bn: BatchNorm,
}

impl DigitsBlock {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        let conv = Conv2dConfig::new([from, to], [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_bias(false);
        Self {
            conv: conv.init(device),
            bn: BatchNormConfig::new(to).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        batch_norm(&self.bn, conv2d(&self.conv, x), None, AfterNorm::Rectified)
    }
}

/// Builds the layers: two blocks and pooling; a block and the mean over the image; dropout and the
/// classifier.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    channels: usize,
    dropout: f64,
    seeds: &SeedTree,
) -> Layers {
    let [from, height, width] = image(input_shape, 4)?;
    if !(1..=CHANNELS_MAX).contains(&channels) || !(0.0..1.0).contains(&dropout) {
        return Err(format!(
            "invalid channels = {channels}, dropout = {dropout}: expected 1 to {CHANNELS_MAX}, and at least 0 and below 1"
        ));
    }
    let device = training_device();
    let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let average = AdaptiveAvgPool2dConfig::new([1, 1]).init();
    let middle = [channels, height / 2, width / 2];
    let last = [2 * channels, 1, 1];
    let features = 2 * channels;

    let blocks = vec![
        DigitsBlock::new(from, channels, &device),
        DigitsBlock::new(channels, channels, &device),
    ];
    let first = BurnLayer::new(
        blocks,
        move |blocks: &Vec<DigitsBlock>, x, _: &ForwardContext| {
            pool.forward(blocks.iter().fold(x, |x, block| block.forward(x)))
        },
    )
    .named("features")
    .with_sample_shape(input_shape)
    .with_initial_weights_from_seed(seeds)
    .with_cost(cost_per_sample(
        &middle,
        height * width * (from + 6 * channels),
    ))
    .without_input_gradient();

    let block = DigitsBlock::new(channels, 2 * channels, &device);
    let second = BurnLayer::new(block, move |block: &DigitsBlock, x, _: &ForwardContext| {
        average.forward(block.forward(x))
    })
    .named("top")
    .with_sample_shape(&middle)
    .with_initial_weights_from_seed(seeds)
    .with_cost(cost_per_sample(&last, middle[1] * middle[2] * 7 * channels));

    let classifier = LinearConfig::new(features, classes).init(&device);
    let head = BurnLayer::new(
        classifier,
        move |classifier: &Linear, x: Tensor<4>, context: &ForwardContext| {
            let samples = x.dims()[0];
            let x = context.dropout(x.reshape([samples, features]), dropout, 0);
            linear(classifier, x)
        },
    )
    .named("classifier")
    .with_sample_shape(&last)
    .with_initial_weights_from_seed(seeds)
    .with_cost(cost_per_sample(&[classes], 3 * features + classes));

    Ok(vec![Box::new(first), Box::new(second), Box::new(head)])
}

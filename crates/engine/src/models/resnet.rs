//! ResNet-18 in torchvision's layout, names included where Burn's modules allow.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2dConfig, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};
use ronde_core::seed::SeedTree;

use super::{Stages, convolved, cost_per_sample, image};
use crate::ops::{AfterNorm, batch_norm, conv2d, linear};
use crate::{BurnStage, ForwardContext, training_device};

fn convolution(from: usize, to: usize, kernel: usize, stride: usize, device: &Device) -> Conv2d {
    let padding = kernel / 2;
    Conv2dConfig::new([from, to], [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(
            padding, padding, padding, padding,
        ))
        .with_bias(false)
        .init(device)
}

fn normalisation(channels: usize, device: &Device) -> BatchNorm {
    BatchNormConfig::new(channels).init(device)
}

#[derive(Module, Debug)]
struct Stem {
    conv1: Conv2d,
    bn1: BatchNorm,
}

/// The path round a block where the shape changes.
#[derive(Module, Debug)]
struct Downsample {
    conv: Conv2d,
    bn: BatchNorm,
}

#[derive(Module, Debug)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    downsample: Option<Downsample>,
}

impl BasicBlock {
    fn new(from: usize, to: usize, stride: usize, device: &Device) -> Self {
        Self {
            conv1: convolution(from, to, 3, stride, device),
            bn1: normalisation(to, device),
            conv2: convolution(to, to, 3, 1, device),
            bn2: normalisation(to, device),
            downsample: (stride != 1 || from != to).then(|| Downsample {
                conv: convolution(from, to, 1, stride, device),
                bn: normalisation(to, device),
            }),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = conv2d(&self.conv1, x.clone());
        let y = batch_norm(&self.bn1, y, None, AfterNorm::Rectified);
        let y = conv2d(&self.conv2, y);
        let around = match &self.downsample {
            Some(path) => batch_norm(&path.bn, conv2d(&path.conv, x), None, AfterNorm::Linear),
            None => x,
        };
        batch_norm(&self.bn2, y, Some(around), AfterNorm::Rectified)
    }
}

/// Stages: stem, four groups of two blocks, head.
pub(super) fn stages(
    input_shape: &[usize],
    classes: usize,
    small_input: bool,
    seeds: &SeedTree,
) -> Stages {
    let [from, height, width] = image(input_shape, if small_input { 8 } else { 32 })?;
    let device = training_device();
    let mut stages: Vec<Box<dyn crate::Stage>> = Vec::new();
    let mut shape = stem_shape([from, height, width], small_input);
    stages.push(Box::new(stem(
        [from, height, width],
        shape,
        small_input,
        seeds,
    )));
    for (index, to) in [64, 128, 256, 512].into_iter().enumerate() {
        let stride = if index == 0 { 1 } else { 2 };
        let next = [
            to,
            convolved(shape[1], 3, stride, 1),
            convolved(shape[2], 3, stride, 1),
        ];
        let blocks = vec![
            BasicBlock::new(shape[0], to, stride, &device),
            BasicBlock::new(to, to, 1, &device),
        ];
        let inner: usize = next.iter().product();
        let outer: usize = shape.iter().product();
        let group = BurnStage::new(blocks, |blocks: &Vec<BasicBlock>, x, _: &ForwardContext| {
            blocks.iter().fold(x, |x, block| block.forward(x))
        })
        .named(&format!("layer{}", index + 1))
        .with_sample_shape(&shape)
        .with_initial_weights_from_seed(seeds)
        .with_cost(cost_per_sample(&next, outer + 14 * inner));
        stages.push(Box::new(group));
        shape = next;
    }
    let layer = LinearConfig::new(512, classes).init(&device);
    let pool = AdaptiveAvgPool2dConfig::new([1, 1]).init();
    let head = BurnStage::new(
        layer,
        move |layer: &Linear, x: Tensor<4>, _: &ForwardContext| {
            let [samples, channels, ..] = x.dims();
            linear(layer, pool.forward(x).reshape([samples, channels]))
        },
    )
    .named("fc")
    .with_sample_shape(&shape)
    .with_initial_weights_from_seed(seeds)
    .with_cost(cost_per_sample(
        &[classes],
        shape.iter().product::<usize>() + 512 + classes,
    ));
    stages.push(Box::new(head));
    Ok(stages)
}

fn stem_shape([_, height, width]: [usize; 3], small_input: bool) -> [usize; 3] {
    if small_input {
        return [64, height, width];
    }
    let half = |length| convolved(convolved(length, 7, 2, 3), 3, 2, 1);
    [64, half(height), half(width)]
}

fn stem(
    input: [usize; 3],
    output: [usize; 3],
    small_input: bool,
    seeds: &SeedTree,
) -> impl crate::Stage + 'static {
    let device = training_device();
    let (kernel, stride) = if small_input { (3, 1) } else { (7, 2) };
    let module = Stem {
        conv1: convolution(input[0], 64, kernel, stride, &device),
        bn1: normalisation(64, &device),
    };
    let pool = MaxPool2dConfig::new([3, 3])
        .with_strides([2, 2])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init();
    let forward = move |stem: &Stem, x: Tensor<4>, _: &ForwardContext| {
        let y = batch_norm(
            &stem.bn1,
            conv2d(&stem.conv1, x),
            None,
            AfterNorm::Rectified,
        );
        if small_input { y } else { pool.forward(y) }
    };
    let convolved: usize = output.iter().product::<usize>() * if small_input { 1 } else { 4 };
    let kept = input.iter().product::<usize>() + 3 * convolved;
    BurnStage::new(module, forward)
        .titled("stem")
        .with_sample_shape(&input)
        .with_initial_weights_from_seed(seeds)
        .with_cost(cost_per_sample(&output, kept))
        .without_input_gradient()
}

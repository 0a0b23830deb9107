//! VGG-16 in torchvision's layout.

mod synchronised;

use burn::module::Module;
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use ronde_core::seed::SeedTree;

use super::layers::{Apart, ChannelNorm, Normalisation, convolution, linear_layer};
use super::size::StageSize;
use super::{Stages, cost_per_sample, image};
use crate::initial::Initial;
use crate::ops::{AfterNorm, Window, average_to, conv2d, linear, max_pool, rectified_linear, relu};
use crate::{BurnStage, ForwardContext, Stage, training_device};

/// Convolutions of each of the five blocks, and their channels.
const BLOCKS: [(usize, usize); 5] = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)];
const CONVOLUTION: Window = Window {
    side: 3,
    stride: 1,
    padding: 1,
};
const POOL: Window = Window {
    side: 2,
    stride: 2,
    padding: 0,
};

/// Which network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) small_input: bool,
    pub(super) normalisation: Option<Normalisation>,
    pub(super) dropout: f64,
}

impl Form {
    /// Side of the image that the classifier sees, and width of its hidden layers.
    fn classifier(self) -> [usize; 2] {
        if self.small_input {
            [1, 512]
        } else {
            [7, 4096]
        }
    }
}

#[derive(Module, Debug)]
struct Layer {
    conv: Conv2d,
    norm: Option<ChannelNorm>,
}

/// What each stage takes: five blocks, three linear layers.
pub(super) fn sizes(
    input_shape: &[usize],
    classes: usize,
    form: Form,
) -> Result<Vec<StageSize>, String> {
    let [mut from, mut height, mut width] = image(input_shape, 32)?;
    if !(0.0..1.0).contains(&form.dropout) {
        let dropout = form.dropout;
        return Err(format!(
            "dropout = {dropout}; expected at least 0 and below 1"
        ));
    }
    let mut sizes = Vec::new();
    for (layers, channels) in BLOCKS {
        let area = height * width;
        let norm = usize::from(form.normalisation.is_some());
        let mut size = StageSize {
            kept: (from + channels * layers * (2 + norm)) * area,
            ..StageSize::default()
        };
        for _ in 0..layers {
            size.parameters += ((9 * from + 1 + 2 * norm) * channels) as u64;
            from = channels;
        }
        [height, width] = [height, width].map(|length| POOL.count(length));
        size.kept += channels * height * width;
        size.output = vec![channels, height, width];
        sizes.push(size);
    }
    let [side, hidden] = form.classifier();
    let seen = from * side * side;
    for (inputs, outputs, is_last) in [
        (seen, hidden, false),
        (hidden, hidden, false),
        (hidden, classes, true),
    ] {
        let kept = if is_last { outputs } else { 3 * outputs };
        sizes.push(StageSize {
            parameters: ((inputs + 1) * outputs) as u64,
            kept: inputs + kept,
            output: vec![outputs],
        });
    }
    Ok(sizes)
}

/// Stages: `features1` to `features5`, `classifier1` to `classifier3`.
pub(super) fn stages(
    input_shape: &[usize],
    classes: usize,
    form: Form,
    seeds: &SeedTree,
) -> Stages {
    let sizes = sizes(input_shape, classes, form)?;
    let mut stages: Vec<Box<dyn Stage>> = Vec::new();
    let mut shape = input_shape;
    for (block, size) in sizes[..BLOCKS.len()].iter().enumerate() {
        stages.push(match form.normalisation.map(Normalisation::apart) {
            Some(None) => Box::new(synchronised::features(block, shape, size, seeds)),
            apart => features(block, shape, apart.flatten(), size, seeds),
        });
        shape = &size.output;
    }
    stages.extend(classifier(shape, form, &sizes[BLOCKS.len()..], seeds));
    Ok(stages)
}

/// The convolutions of a block, and the pooling after them.
fn features(
    block: usize,
    sample: &[usize],
    norm: Option<Apart>,
    size: &StageSize,
    seeds: &SeedTree,
) -> Box<dyn Stage> {
    let device = training_device();
    let (layers, channels) = BLOCKS[block];
    let layer = |index| Layer {
        conv: convolution(
            if index == 0 { sample[0] } else { channels },
            channels,
            CONVOLUTION,
            true,
            &device,
        ),
        norm: norm.map(|kind| ChannelNorm::new(kind, channels, &device)),
    };
    let layers: Vec<Layer> = (0..layers).map(layer).collect();
    let stage = BurnStage::new(layers, |block: &Vec<Layer>, x, _: &ForwardContext| {
        let through = |x, layer: &Layer| {
            let y = conv2d(&layer.conv, x);
            match &layer.norm {
                Some(norm) => norm.forward(y, None, AfterNorm::Rectified),
                None => relu(y),
            }
        };
        max_pool(block.iter().fold(x, through), POOL)
    })
    .named(&format!("features{}", block + 1))
    .with_sample_shape(sample)
    .with_initial_weights_from_seed(seeds)
    .with_cost(cost_per_sample(&size.output, size.kept));
    if block == 0 {
        Box::new(stage.without_input_gradient())
    } else {
        Box::new(stage)
    }
}

/// The hidden layers keep the variance, as they have rectifiers; of the last one the classes begin alike.
fn classifier(
    shape: &[usize],
    form: Form,
    sizes: &[StageSize],
    seeds: &SeedTree,
) -> Vec<Box<dyn Stage>> {
    let device = training_device();
    let [side, hidden] = form.classifier();
    let dropout = form.dropout;
    let seen = shape[0] * side * side;
    let first = linear_layer(seen, hidden, true, &device);
    let first = BurnStage::new(
        first,
        move |layer: &Linear, x: Tensor<4>, c: &ForwardContext| {
            let samples = x.dims()[0];
            let x = average_to(x, side).reshape([samples, seen]);
            c.dropout(rectified_linear(layer, x), dropout, 0)
        },
    );
    let second = linear_layer(hidden, hidden, true, &device);
    let second = BurnStage::new(
        second,
        move |layer: &Linear, x: Tensor<2>, c: &ForwardContext| {
            c.dropout(rectified_linear(layer, x), dropout, 0)
        },
    );
    let third = linear_layer(hidden, sizes[2].output[0], true, &device);
    let third = BurnStage::new(third, |layer: &Linear, x: Tensor<2>, _: &ForwardContext| {
        linear(layer, x)
    });
    let costs = |index: usize| cost_per_sample(&sizes[index].output, sizes[index].kept);
    vec![
        Box::new(
            first
                .named("classifier1")
                .with_sample_shape(shape)
                .with_initial_weights_from_seed(seeds)
                .with_cost(costs(0)),
        ),
        Box::new(
            second
                .named("classifier2")
                .with_sample_shape(&[hidden])
                .with_initial_weights_from_seed(seeds)
                .with_cost(costs(1)),
        ),
        Box::new(
            third
                .named("classifier3")
                .with_sample_shape(&[hidden])
                .with_initial_weights(seeds, Initial::CLASSIFIER)
                .with_cost(costs(2)),
        ),
    ]
}

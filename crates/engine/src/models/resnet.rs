//! ResNet-18 and ResNet-50 in torchvision's layout, with its tensor names where Burn's modules
//! allow.

mod synchronised;

use burn::module::Module;
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor};
use ronde_core::seed::SeedTree;

use super::layer_size::LayerSize;
use super::modules::{ChannelNorm, Normalisation, PerShardNorm, convolution, linear_module};
use super::{Layers, cost_per_sample, image};
use crate::initial::Initial;
use crate::ops::{AfterNorm, SlidingWindow, average_to, conv2d, linear, max_pool};
use crate::{BurnLayer, ForwardContext, Layer, training_device};

/// The variant of the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResNetShape {
    /// The number of blocks of each of the four groups.
    pub(super) blocks: [usize; 4],
    /// Whether blocks are bottlenecks of three convolutions instead of two.
    pub(super) is_bottleneck: bool,
    pub(super) small_input: bool,
    pub(super) normalisation: Normalisation,
}

/// The inner channels of the blocks of each group.
const WIDTHS: [usize; 4] = [64, 128, 256, 512];
/// The ratio of a bottleneck's output channels to its inner channels.
const EXPANSION: usize = 4;

#[derive(Module, Debug)]
struct Stem {
    conv1: Conv2d,
    bn1: ChannelNorm,
}

/// The shortcut of a block that changes the shape.
#[derive(Module, Debug)]
struct Downsample {
    conv: Conv2d,
    bn: ChannelNorm,
}

/// The shapes of a block's input and output.
#[derive(Debug, Clone, Copy)]
struct BlockShape {
    from: usize,
    width: usize,
    stride: usize,
}

impl BlockShape {
    /// Returns the blocks of a group, given its input channels.
    fn of_group(form: ResNetShape, group: usize, mut from: usize) -> Vec<Self> {
        let width = WIDTHS[group];
        let shape = |block| {
            let stride = stride(group, block);
            let shape = Self {
                from,
                width,
                stride,
            };
            from = form.outputs(width);
            shape
        };
        (0..form.blocks[group]).map(shape).collect()
    }

    /// Returns whether the shortcut needs a convolution.
    fn changes(self, form: ResNetShape) -> bool {
        self.stride != 1 || self.from != form.outputs(self.width)
    }
}

#[derive(Module, Debug)]
struct ResidualBlock {
    conv1: Conv2d,
    bn1: ChannelNorm,
    conv2: Conv2d,
    bn2: ChannelNorm,
    conv3: Option<Conv2d>,
    bn3: Option<ChannelNorm>,
    downsample: Option<Downsample>,
}

impl ResidualBlock {
    fn new(shape: BlockShape, form: ResNetShape, norm: PerShardNorm, device: &Device) -> Self {
        let BlockShape {
            from,
            width,
            stride,
        } = shape;
        let norm = |channels| ChannelNorm::new(norm, channels, device);
        let conv = |from, to, side, stride| {
            convolution(
                from,
                to,
                SlidingWindow::new(side, stride, side / 2),
                false,
                device,
            )
        };
        let to = form.outputs(width);
        let downsample = shape.changes(form).then(|| Downsample {
            conv: conv(from, to, 1, stride),
            bn: norm(to),
        });
        if form.is_bottleneck {
            Self {
                conv1: conv(from, width, 1, 1),
                bn1: norm(width),
                conv2: conv(width, width, 3, stride),
                bn2: norm(width),
                conv3: Some(conv(width, to, 1, 1)),
                bn3: Some(norm(to)),
                downsample,
            }
        } else {
            Self {
                conv1: conv(from, width, 3, stride),
                bn1: norm(width),
                conv2: conv(width, width, 3, 1),
                bn2: norm(width),
                conv3: None,
                bn3: None,
                downsample,
            }
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = conv2d(&self.conv1, x.clone());
        let y = self.bn1.forward(y, None, AfterNorm::Rectified);
        let mut y = conv2d(&self.conv2, y);
        let mut last = &self.bn2;
        if let (Some(conv), Some(norm)) = (&self.conv3, &self.bn3) {
            y = conv2d(conv, last.forward(y, None, AfterNorm::Rectified));
            last = norm;
        }
        let around = match &self.downsample {
            Some(path) => path
                .bn
                .forward(conv2d(&path.conv, x), None, AfterNorm::Linear),
            None => x,
        };
        last.forward(y, Some(around), AfterNorm::Rectified)
    }
}

impl ResNetShape {
    fn outputs(self, width: usize) -> usize {
        width * if self.is_bottleneck { EXPANSION } else { 1 }
    }

    fn stem_window(self) -> SlidingWindow {
        if self.small_input {
            SlidingWindow::new(3, 1, 1)
        } else {
            SlidingWindow::new(7, 2, 3)
        }
    }

    /// The minimum side of an image.
    fn side(self) -> usize {
        if self.small_input { 8 } else { 32 }
    }
}

const POOL: SlidingWindow = SlidingWindow {
    side: 3,
    stride: 2,
    padding: 1,
};

fn normalised(from: usize, to: usize, side: usize) -> u64 {
    (from * to * side * side + 2 * to) as u64
}

/// Returns parameters and kept floats of one block; `areas` before and after it.
fn block_size(
    form: ResNetShape,
    from: usize,
    width: usize,
    changes: bool,
    areas: [usize; 2],
) -> [u64; 2] {
    let to = form.outputs(width);
    let [outer, inner] = areas;
    let (mut parameters, mut kept) = if form.is_bottleneck {
        let narrow = normalised(from, width, 1) + normalised(width, width, 3);
        let kept = from * outer + 3 * width * outer + (3 * width + 4 * to) * inner;
        (narrow + normalised(width, to, 1), kept)
    } else {
        let both = normalised(from, width, 3) + normalised(width, width, 3);
        (both, from * outer + 7 * to * inner)
    };
    if changes {
        parameters += normalised(from, to, 1);
        kept += 2 * to * inner;
    }
    [parameters, kept as u64]
}

/// Returns the size of each layer: stem, four groups, head.
pub(super) fn sizes(
    input_shape: &[usize],
    classes: usize,
    form: ResNetShape,
) -> Result<Vec<LayerSize>, String> {
    let [from, height, width] = image(input_shape, form.side())?;
    let window = form.stem_window();
    let mut side = [height, width].map(|length| window.count(length));
    let mut kept = from * height * width + 3 * WIDTHS[0] * side[0] * side[1];
    if !form.small_input {
        side = side.map(|length| POOL.count(length));
        kept += WIDTHS[0] * side[0] * side[1];
    }
    let mut sizes = vec![LayerSize {
        parameters: normalised(from, WIDTHS[0], window.side),
        kept,
        output: vec![WIDTHS[0], side[0], side[1]],
    }];
    let mut channels = WIDTHS[0];
    for (group, &width) in WIDTHS.iter().enumerate() {
        let mut total = LayerSize::default();
        for block in 0..form.blocks[group] {
            let stride = stride(group, block);
            let outer = side[0] * side[1];
            side = side.map(|length| SlidingWindow::new(3, stride, 1).count(length));
            let changes = stride != 1 || channels != form.outputs(width);
            let areas = [outer, side[0] * side[1]];
            let [parameters, kept] = block_size(form, channels, width, changes, areas);
            total.parameters += parameters;
            total.kept += kept as usize;
            channels = form.outputs(width);
        }
        total.output = vec![channels, side[0], side[1]];
        sizes.push(total);
    }
    sizes.push(LayerSize {
        parameters: ((channels + 1) * classes) as u64,
        kept: channels * (side[0] * side[1] + 1) + classes,
        output: vec![classes],
    });
    Ok(sizes)
}

/// The first block of each group except the first halves the sides.
fn stride(group: usize, block: usize) -> usize {
    if group > 0 && block == 0 { 2 } else { 1 }
}

/// Builds the layers: stem, four groups of blocks, head.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    form: ResNetShape,
    seeds: &SeedTree,
) -> Layers {
    let sizes = sizes(input_shape, classes, form)?;
    let mut layers = match form.normalisation.per_shard() {
        Some(norm) => {
            let mut layers: Vec<Box<dyn Layer>> =
                vec![Box::new(stem(input_shape, form, norm, &sizes[0], seeds))];
            for group in 0..WIDTHS.len() {
                let sizes = [&sizes[group], &sizes[group + 1]];
                layers.push(Box::new(group_layer(group, form, norm, sizes, seeds)));
            }
            layers
        }
        None => synchronised::layers(input_shape, form, &sizes, seeds),
    };
    let channels = form.outputs(WIDTHS[3]);
    let device = training_device();
    let (input, size) = (&sizes[4], &sizes[5]);
    let head = linear_module(channels, classes, true, &device);
    let head = BurnLayer::new(head, |head: &Linear, x: Tensor<4>, _: &ForwardContext| {
        let [samples, channels, ..] = x.dims();
        linear(head, average_to(x, 1).reshape([samples, channels]))
    });
    layers.push(Box::new(
        head.named("fc")
            .with_sample_shape(&input.output)
            .with_initial_weights(seeds, Initial::CLASSIFIER)
            .with_cost(cost_per_sample(&size.output, size.kept)),
    ));
    Ok(layers)
}

/// Builds the blocks of a group.
fn group_layer(
    group: usize,
    form: ResNetShape,
    norm: PerShardNorm,
    [input, size]: [&LayerSize; 2],
    seeds: &SeedTree,
) -> impl Layer + 'static {
    let device = training_device();
    let blocks: Vec<ResidualBlock> = BlockShape::of_group(form, group, input.output[0])
        .into_iter()
        .map(|shape| ResidualBlock::new(shape, form, norm, &device))
        .collect();
    BurnLayer::new(
        blocks,
        |blocks: &Vec<ResidualBlock>, x, _: &ForwardContext| {
            blocks.iter().fold(x, |x, block| block.forward(x))
        },
    )
    .named(&format!("layer{}", group + 1))
    .with_sample_shape(&input.output)
    .with_initial_weights_from_seed(seeds)
    .with_cost(cost_per_sample(&size.output, size.kept))
}

fn stem(
    input: &[usize],
    form: ResNetShape,
    norm: PerShardNorm,
    size: &LayerSize,
    seeds: &SeedTree,
) -> impl Layer + 'static {
    let device = training_device();
    let module = Stem {
        conv1: convolution(input[0], WIDTHS[0], form.stem_window(), false, &device),
        bn1: ChannelNorm::new(norm, WIDTHS[0], &device),
    };
    let forward = move |stem: &Stem, x: Tensor<4>, _: &ForwardContext| {
        let y = conv2d(&stem.conv1, x);
        let y = stem.bn1.forward(y, None, AfterNorm::Rectified);
        if form.small_input {
            y
        } else {
            max_pool(y, POOL)
        }
    };
    BurnLayer::new(module, forward)
        .titled("stem")
        .with_sample_shape(input)
        .with_initial_weights_from_seed(seeds)
        .with_cost(cost_per_sample(&size.output, size.kept))
        .without_input_gradient()
}

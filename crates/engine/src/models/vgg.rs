//! VGG-16 in torchvision's layout.

mod synchronised;

use burn::module::Module;
use burn::nn::conv::Conv2d;
use ronde_core::seed::SeedTree;

use super::dense::Dense;
use super::layer_size::LayerSize;
use super::modules::{ChannelNorm, Normalisation, PerShardNorm, convolution};
use super::{Layers, cost_per_sample, image};
use crate::initial::Initial;
use crate::ops::{AfterNorm, SlidingWindow, average_to, conv2d, max_pool, relu};
use crate::{BurnLayer, ForwardContext, Layer, training_device};

/// The number of convolutions of each of the five blocks, and their channels.
const BLOCKS: [(usize, usize); 5] = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)];
const CONVOLUTION: SlidingWindow = SlidingWindow {
    side: 3,
    stride: 1,
    padding: 1,
};
const POOL: SlidingWindow = SlidingWindow {
    side: 2,
    stride: 2,
    padding: 0,
};

/// The variant of the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct VggShape {
    pub(super) small_input: bool,
    pub(super) normalisation: Option<Normalisation>,
    pub(super) dropout: f64,
}

impl VggShape {
    /// Returns the side of the classifier's input, and the width of its hidden layers.
    fn classifier(self) -> [usize; 2] {
        if self.small_input {
            [1, 512]
        } else {
            [7, 4096]
        }
    }
}

#[derive(Module, Debug)]
struct NormalisedConvolution {
    conv: Conv2d,
    norm: Option<ChannelNorm>,
}

/// Returns the size of each layer: five blocks of convolutions, three linear ones.
pub(super) fn sizes(
    input_shape: &[usize],
    classes: usize,
    form: VggShape,
) -> Result<Vec<LayerSize>, String> {
    let [mut from, mut height, mut width] = image(input_shape, 32)?;
    if !(0.0..1.0).contains(&form.dropout) {
        let dropout = form.dropout;
        return Err(format!(
            "invalid dropout = {dropout}: expected at least 0 and below 1"
        ));
    }
    let mut sizes = Vec::new();
    for (count, channels) in BLOCKS {
        let area = height * width;
        let norm = usize::from(form.normalisation.is_some());
        let mut size = LayerSize {
            kept: (from + channels * count * (2 + norm)) * area,
            ..LayerSize::default()
        };
        for _ in 0..count {
            size.parameters += ((9 * from + 1 + 2 * norm) * channels) as u64;
            from = channels;
        }
        [height, width] = [height, width].map(|length| POOL.count(length));
        size.kept += channels * height * width;
        size.output = vec![channels, height, width];
        sizes.push(size);
    }
    let [side, hidden] = form.classifier();
    if let Some(last) = sizes.last_mut().filter(|_| [height, width] != [side; 2]) {
        last.kept += from * side * side;
        last.output = vec![from, side, side];
    }
    let seen = from * side * side;
    for (inputs, outputs, is_last) in [
        (seen, hidden, false),
        (hidden, hidden, false),
        (hidden, classes, true),
    ] {
        let is_dropped = !is_last && form.dropout > 0.0;
        sizes.push(LayerSize {
            parameters: ((inputs + 1) * outputs) as u64,
            kept: inputs + outputs * (1 + usize::from(is_dropped)),
            output: vec![outputs],
        });
    }
    Ok(sizes)
}

/// Builds the layers: `features1` to `features5`, `classifier1` to `classifier3`.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    form: VggShape,
    seeds: &SeedTree,
) -> Layers {
    let sizes = sizes(input_shape, classes, form)?;
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    let mut shape = input_shape;
    for (block, size) in sizes[..BLOCKS.len()].iter().enumerate() {
        layers.push(match form.normalisation.map(Normalisation::per_shard) {
            Some(None) => Box::new(synchronised::features(block, shape, size, seeds)),
            apart => features(block, shape, apart.flatten(), size, seeds),
        });
        shape = &size.output;
    }
    layers.extend(classifier(shape, form, &sizes[BLOCKS.len()..], seeds));
    Ok(layers)
}

/// Returns the side to which a block's output is averaged after pooling, if it differs.
fn averaged_to(sample: &[usize], size: &LayerSize) -> Option<usize> {
    let pooled = [1, 2].map(|dim: usize| POOL.count(sample[dim]));
    (pooled[..] != size.output[1..]).then(|| size.output[1])
}

/// Builds the convolutions of a block and its pooling; the last block also averages its output for
/// the classifier.
fn features(
    block: usize,
    sample: &[usize],
    norm: Option<PerShardNorm>,
    size: &LayerSize,
    seeds: &SeedTree,
) -> Box<dyn Layer> {
    let device = training_device();
    let (count, channels) = BLOCKS[block];
    let convolution_of = |index| NormalisedConvolution {
        conv: convolution(
            if index == 0 { sample[0] } else { channels },
            channels,
            CONVOLUTION,
            true,
            &device,
        ),
        norm: norm.map(|kind| ChannelNorm::new(kind, channels, &device)),
    };
    let convolutions: Vec<NormalisedConvolution> = (0..count).map(convolution_of).collect();
    let averaged = averaged_to(sample, size);
    let layer = BurnLayer::new(
        convolutions,
        move |block: &Vec<NormalisedConvolution>, x, _: &ForwardContext| {
            let through = |x, convolution: &NormalisedConvolution| {
                let y = conv2d(&convolution.conv, x);
                match &convolution.norm {
                    Some(norm) => norm.forward(y, None, AfterNorm::Rectified),
                    None => relu(y),
                }
            };
            let y = max_pool(block.iter().fold(x, through), POOL);
            match averaged {
                Some(side) => average_to(y, side),
                None => y,
            }
        },
    )
    .named(&format!("features{}", block + 1))
    .with_sample_shape(sample)
    .with_initial_weights_from_seed(seeds)
    .with_cost(cost_per_sample(&size.output, size.kept));
    if block == 0 {
        Box::new(layer.without_input_gradient())
    } else {
        Box::new(layer)
    }
}

/// The hidden layers preserve the variance, as they have rectifiers; the last one makes all classes
/// start with similar logits.
fn classifier(
    shape: &[usize],
    form: VggShape,
    sizes: &[LayerSize],
    seeds: &SeedTree,
) -> Vec<Box<dyn Layer>> {
    let mut shape = shape;
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        let is_last = index + 1 == sizes.len();
        let initial = if is_last {
            Initial::CLASSIFIER
        } else {
            Initial::Rectifier
        };
        let name = format!("classifier{}", index + 1);
        let layer = Dense::new(&name, shape, size.output[0], initial, seeds);
        layers.push(Box::new(if is_last {
            layer
        } else {
            layer.rectified(form.dropout)
        }));
        shape = &size.output;
    }
    layers
}

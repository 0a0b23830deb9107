//! ResNet-18 and ResNet-50 in torchvision's layout, with its tensor names but for `downsample`.

use super::{Layers, Normalisation, image};
use crate::{AfterNorm, GraphBuilder, GraphValue, Initial, SlidingWindow};

/// The variant of the network.
#[derive(Debug, Clone, Copy)]
struct ResNetShape {
    /// The number of blocks of each of the four groups.
    blocks: [usize; 4],
    /// Whether blocks are bottlenecks of three convolutions instead of two.
    is_bottleneck: bool,
    small_input: bool,
    normalisation: Normalisation,
}

/// The inner channels of the blocks of each group.
const WIDTHS: [usize; 4] = [64, 128, 256, 512];
/// The ratio of a bottleneck's output channels to its inner channels.
const EXPANSION: usize = 4;

/// Describes the layers of ResNet-18.
pub(super) fn layers_18(
    input_shape: &[usize],
    classes: usize,
    small_input: bool,
    normalisation: Normalisation,
) -> Layers {
    let form = ResNetShape {
        blocks: [2, 2, 2, 2],
        is_bottleneck: false,
        small_input,
        normalisation,
    };
    layers(input_shape, classes, form)
}

/// Describes the layers of ResNet-50.
pub(super) fn layers_50(
    input_shape: &[usize],
    classes: usize,
    small_input: bool,
    normalisation: Normalisation,
) -> Layers {
    let form = ResNetShape {
        blocks: [3, 4, 6, 3],
        is_bottleneck: true,
        small_input,
        normalisation,
    };
    layers(input_shape, classes, form)
}

/// Describes the layers: stem, four groups of blocks, head.
fn layers(input_shape: &[usize], classes: usize, form: ResNetShape) -> Layers {
    image(input_shape, if form.small_input { 8 } else { 32 })?;
    let mut stem = GraphBuilder::new("stem", input_shape).without_prefix();
    let (side, stride) = if form.small_input { (3, 1) } else { (7, 2) };
    let window = SlidingWindow::new(side, stride, side / 2);
    let x = stem.convolution("conv1", stem.input(), WIDTHS[0], window, false);
    let x = stem.normalise("bn1", form.normalisation, x, None, AfterNorm::Rectified);
    if !form.small_input {
        stem.max_pool(x, SlidingWindow::new(3, 2, 1));
    }
    let mut layers = vec![stem.finish()?];
    for (group, width) in WIDTHS.into_iter().enumerate() {
        let shape = layers[group].output();
        let mut layer = GraphBuilder::new(&format!("layer{}", group + 1), shape);
        let mut x = layer.input();
        for index in 0..form.blocks[group] {
            // The first block of each group but the first halves the sides.
            let stride = if group > 0 && index == 0 { 2 } else { 1 };
            x = block(&mut layer, &index.to_string(), x, [width, stride], form);
        }
        layers.push(layer.finish()?);
    }
    let mut head = GraphBuilder::new("fc", layers[WIDTHS.len()].output());
    head.set_initial(Initial::CLASSIFIER);
    let x = head.average_to(head.input(), 1);
    let x = head.flatten(x);
    head.linear("", x, classes, true);
    layers.push(head.finish()?);
    Ok(layers)
}

/// Adds the convolutions of a block, and its shortcut.
fn block(
    layer: &mut GraphBuilder,
    name: &str,
    x: GraphValue,
    [width, stride]: [usize; 2],
    form: ResNetShape,
) -> GraphValue {
    let to = width * if form.is_bottleneck { EXPANSION } else { 1 };
    // The channels, side and stride of each convolution.
    let convolutions = if form.is_bottleneck {
        &[(width, 1, 1), (width, 3, stride), (to, 1, 1)][..]
    } else {
        &[(width, 3, stride), (width, 3, 1)]
    };
    let mut y = x;
    for (number, &(channels, side, stride)) in (1..).zip(convolutions) {
        let window = SlidingWindow::new(side, stride, side / 2);
        let conv = format!("{name}.conv{number}");
        y = layer.convolution(&conv, y, channels, window, false);
        if number < convolutions.len() {
            let norm = format!("{name}.bn{number}");
            y = layer.normalise(&norm, form.normalisation, y, None, AfterNorm::Rectified);
        }
    }
    let around = if stride != 1 || layer.shape(x)[0] != to {
        let [conv, norm] = ["conv", "bn"].map(|part| format!("{name}.downsample.{part}"));
        let window = SlidingWindow::new(1, stride, 0);
        let around = layer.convolution(&conv, x, to, window, false);
        layer.normalise(&norm, form.normalisation, around, None, AfterNorm::Linear)
    } else {
        x
    };
    let norm = format!("{name}.bn{}", convolutions.len());
    layer.normalise(
        &norm,
        form.normalisation,
        y,
        Some(around),
        AfterNorm::Rectified,
    )
}

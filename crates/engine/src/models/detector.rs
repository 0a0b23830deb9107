//! A single-stage detector: convolutions that halve the image, and a box for each cell of the last grid.

use ronde_kernels::SlidingWindow;

use super::{Layers, Normalisation, image, refuse};
use crate::detection::BOX_OUTPUTS;
use crate::graph::{GraphBuilder, GraphValue};
use crate::initial::Initial;
use crate::operations::AfterNorm;

/// A larger number would overflow sizes long before it would fit into memory.
const CHANNELS_MAX: usize = 1 << 12;

/// Describes the layers: `level1` and so on, which halve the image, and `head`.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    channels: usize,
    levels: usize,
) -> Layers {
    if !(1..=CHANNELS_MAX).contains(&channels) || !(1..=6).contains(&levels) {
        return refuse(format!(
            "invalid channels = {channels}, levels = {levels}: expected 1 to {CHANNELS_MAX}, and 1 to 6"
        ));
    }
    let factor = 1 << levels;
    image(input_shape, factor)?;
    if input_shape[1..]
        .iter()
        .any(|side| !side.is_multiple_of(factor))
    {
        return refuse(format!(
            "invalid sample shape {input_shape:?} with levels = {levels}: expected a height and width that are multiples of {factor}"
        ));
    }
    let mut layers = Vec::new();
    let mut shape = input_shape.to_vec();
    for level in 0..levels {
        let mut layer = GraphBuilder::new(&format!("level{}", level + 1), &shape);
        let width = channels << level;
        let x = layer.input();
        let x = convolution(&mut layer, 1, x, width, 2);
        convolution(&mut layer, 2, x, width, 1);
        let layer = layer.finish()?;
        shape = layer.output().to_vec();
        layers.push(layer);
    }
    let mut head = GraphBuilder::new("head", &shape);
    let x = head.input();
    let x = convolution(&mut head, 1, x, shape[0], 1);
    head.set_initial(Initial::CLASSIFIER);
    let outputs = classes.saturating_add(BOX_OUTPUTS);
    let x = head.convolution("output", x, outputs, SlidingWindow::new(1, 1, 0), true);
    head.flatten(x);
    layers.push(head.finish()?);
    Ok(layers)
}

/// Adds a 3 x 3 convolution with batch normalisation and a rectifier.
fn convolution(
    layer: &mut GraphBuilder,
    number: usize,
    x: GraphValue,
    channels: usize,
    stride: usize,
) -> GraphValue {
    let window = SlidingWindow::new(3, stride, 1);
    let x = layer.convolution(&format!("conv{number}"), x, channels, window, false);
    let (norm, kind) = (format!("bn{number}"), Normalisation::Batch);
    layer.normalise(&norm, kind, x, None, AfterNorm::Rectified)
}

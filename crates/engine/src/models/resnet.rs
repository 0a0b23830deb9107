//! ResNet-18 and ResNet-50 in torchvision's layout, with its tensor names but for `downsample`.

mod block;

use ronde_kernels::SlidingWindow;

use self::block::block;
use super::{Layers, Normalisation, image};
use crate::graph::GraphBuilder;
use crate::initial::Initial;
use crate::operations::AfterNorm;

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

/// Describes the layers: stem, four groups of blocks, head.
pub(super) fn layers(input_shape: &[usize], classes: usize, form: ResNetShape) -> Layers {
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
    let x = head.average_to(head.input(), [1, 1]);
    let x = head.flatten(x);
    head.linear("", x, classes, true);
    layers.push(head.finish()?);
    Ok(layers)
}

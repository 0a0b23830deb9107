//! The blocks of a ResNet: convolutions with a shortcut.

use ronde_kernels::SlidingWindow;

use super::ResNetShape;
use crate::graph::{GraphBuilder, GraphValue};
use crate::operations::AfterNorm;

/// The ratio of a bottleneck's output channels to its inner channels.
const EXPANSION: usize = 4;

/// Adds the convolutions of a block, and its shortcut.
pub(super) fn block(
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

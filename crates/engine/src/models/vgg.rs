//! VGG-16 in torchvision's layout.

use ronde_kernels::SlidingWindow;

use super::{Layers, Normalisation, image, refuse};
use crate::graph::GraphBuilder;
use crate::initial::Initial;
use crate::operations::AfterNorm;

/// The number of convolutions of each of the five blocks, and their channels.
const BLOCKS: [(usize, usize); 5] = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)];

/// Describes the layers: `features1` to `features5`, `classifier1` to `classifier3`.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    (small_input, normalisation, dropout): (bool, Option<Normalisation>, f64),
) -> Layers {
    image(input_shape, 32)?;
    if !(0.0..1.0).contains(&dropout) {
        return refuse(format!(
            "invalid dropout = {dropout}: expected at least 0 and below 1"
        ));
    }
    let [side, hidden] = if small_input { [1, 512] } else { [7, 4096] };
    let mut layers = Vec::new();
    let mut shape = input_shape.to_vec();
    for (block, (count, channels)) in (1..).zip(BLOCKS) {
        let mut layer = GraphBuilder::new(&format!("features{block}"), &shape);
        let mut x = layer.input();
        for index in 0..count {
            let window = SlidingWindow::new(3, 1, 1);
            x = layer.convolution(&format!("{index}.conv"), x, channels, window, true);
            x = match normalisation {
                Some(kind) => layer.normalise(
                    &format!("{index}.norm"),
                    kind,
                    x,
                    None,
                    AfterNorm::Rectified,
                ),
                None => layer.relu(x),
            };
        }
        x = layer.max_pool(x, SlidingWindow::new(2, 2, 0));
        if block == BLOCKS.len() && layer.shape(x)[1..] != [side; 2] {
            layer.average_to(x, [side; 2]);
        }
        let layer = layer.finish()?;
        shape = layer.output().to_vec();
        layers.push(layer);
    }
    // The hidden layers preserve the variance, as they have rectifiers; the last one makes all
    // classes start with similar logits.
    for (number, width) in (1..).zip([hidden, hidden, classes]) {
        let mut layer = GraphBuilder::new(&format!("classifier{number}"), &shape);
        let is_last = number == 3;
        if is_last {
            layer.set_initial(Initial::CLASSIFIER);
        }
        let x = layer.flatten(layer.input());
        let x = layer.linear("", x, width, true);
        if !is_last {
            let x = layer.relu(x);
            layer.dropout(x, dropout);
        }
        layers.push(layer.finish()?);
        shape = vec![width];
    }
    Ok(layers)
}

//! A small convolutional network for 8 x 8 digits.

use ronde_kernels::SlidingWindow;

use super::{Layers, Normalisation, image, refuse};
use crate::graph::{GraphBuilder, GraphValue};
use crate::operations::AfterNorm;

/// A larger number would overflow sizes long before it would fit into memory.
const CHANNELS_MAX: usize = 1 << 16;

/// Describes the layers: two blocks and pooling; a block and the mean over the image; dropout and
/// the classifier.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    channels: usize,
    dropout: f64,
) -> Layers {
    image(input_shape, 4)?;
    if !(1..=CHANNELS_MAX).contains(&channels) || !(0.0..1.0).contains(&dropout) {
        return refuse(format!(
            "invalid channels = {channels}, dropout = {dropout}: expected 1 to {CHANNELS_MAX}, and at least 0 and below 1"
        ));
    }
    let mut features = GraphBuilder::new("features", input_shape);
    let x = features.input();
    let x = block(&mut features, "0.", x, channels);
    let x = block(&mut features, "1.", x, channels);
    features.max_pool(x, SlidingWindow::new(2, 2, 0));
    let features = features.finish()?;

    let mut top = GraphBuilder::new("top", features.output());
    let x = top.input();
    let x = block(&mut top, "", x, 2 * channels);
    top.average_to(x, [1, 1]);
    let top = top.finish()?;

    let mut classifier = GraphBuilder::new("classifier", top.output());
    let x = classifier.flatten(classifier.input());
    let x = classifier.dropout(x, dropout);
    classifier.linear("", x, classes, true);
    Ok(vec![features, top, classifier.finish()?])
}

/// Adds a 3 x 3 convolution, batch normalisation and a rectifier.
fn block(layer: &mut GraphBuilder, name: &str, x: GraphValue, channels: usize) -> GraphValue {
    let window = SlidingWindow::new(3, 1, 1);
    let x = layer.convolution(&format!("{name}conv"), x, channels, window, false);
    let (norm, kind) = (format!("{name}bn"), Normalisation::Batch);
    layer.normalise(&norm, kind, x, None, AfterNorm::Rectified)
}

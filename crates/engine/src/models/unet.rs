//! U-Net: segmentation of images.

use ronde_kernels::SlidingWindow;

use super::{Layers, Normalisation, image, refuse};
use crate::graph::{GraphBuilder, GraphValue};
use crate::operations::AfterNorm;

/// A larger number would overflow sizes long before it would fit into memory.
const CHANNELS_MAX: usize = 1 << 12;

/// Describes the layers: the U with its connections across, and the score of each pixel.
pub(super) fn layers(input_shape: &[usize], channels: usize, levels: usize) -> Layers {
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
    let mut unet = GraphBuilder::new("unet", input_shape);
    let mut x = unet.input();
    let mut across = Vec::new();
    for level in 0..levels {
        let y = block(
            &mut unet,
            &format!("down{}", level + 1),
            x,
            channels << level,
        );
        across.push(y);
        x = unet.max_pool(y, SlidingWindow::new(2, 2, 0));
    }
    x = block(&mut unet, "bottom", x, channels << levels);
    for (level, skipped) in across.into_iter().enumerate().rev() {
        let larger = unet.upsample(x, 2);
        let both = unet.concatenate(&[skipped, larger], 0);
        x = block(
            &mut unet,
            &format!("up{}", level + 1),
            both,
            channels << level,
        );
    }
    let unet = unet.finish()?;

    let mut head = GraphBuilder::new("head", unet.output());
    let score = SlidingWindow::new(1, 1, 0);
    let x = head.convolution("", head.input(), 1, score, true);
    head.flatten(x);
    Ok(vec![unet, head.finish()?])
}

/// Adds two 3 x 3 convolutions, each with batch normalisation and a rectifier.
fn block(layer: &mut GraphBuilder, name: &str, x: GraphValue, channels: usize) -> GraphValue {
    (1..=2).fold(x, |x, number| {
        let window = SlidingWindow::new(3, 1, 1);
        let x = layer.convolution(&format!("{name}.conv{number}"), x, channels, window, false);
        let (norm, kind) = (format!("{name}.bn{number}"), Normalisation::Batch);
        layer.normalise(&norm, kind, x, None, AfterNorm::Rectified)
    })
}

//! Perceptrons, including softmax regression, which has no hidden layer.

use ronde_core::seed::SeedTree;

use super::Layers;
use super::dense::Dense;
use crate::Layer;
use crate::initial::Initial;

/// Builds the layers: `layer1`, `layer2`, ..., `output`.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    hidden: &[usize],
    seeds: &SeedTree,
) -> Layers {
    if hidden.contains(&0) {
        return Err(format!(
            "invalid hidden = {hidden:?}: expected widths above 0"
        ));
    }
    if !(1..=3).contains(&input_shape.len()) {
        return Err(format!(
            "invalid sample shape {input_shape:?}: expected 1 to 3 dimensions"
        ));
    }
    let mut shape = input_shape.to_vec();
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    for (index, width) in hidden.iter().copied().chain([classes]).enumerate() {
        let is_rectified = index < hidden.len();
        let name = if is_rectified {
            format!("layer{}", index + 1)
        } else {
            "output".to_owned()
        };
        let mut layer = Dense::new(&name, &shape, width, Initial::Rectifier, seeds);
        if is_rectified {
            layer = layer.rectified(0.0);
        }
        if index == 0 {
            layer = layer.without_input_gradient();
        }
        layers.push(Box::new(layer));
        shape = vec![width];
    }
    Ok(layers)
}

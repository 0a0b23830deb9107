//! Perceptrons, including softmax regression, which has no hidden layer.

use super::{Layers, refuse};
use crate::graph::GraphBuilder;

/// Describes the layers: `layer1`, `layer2`, ..., `output`. Hidden layers are divided into parts, the output layer is whole.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    hidden: &[usize],
    parts: u32,
) -> Layers {
    if hidden.contains(&0) {
        return refuse(format!(
            "invalid hidden = {hidden:?}: expected widths above 0"
        ));
    }
    if parts == 0 || hidden.iter().any(|width| *width < parts as usize) {
        return refuse(format!(
            "invalid tensor_parts = {parts}: the widths {hidden:?} cannot be divided into so many parts"
        ));
    }
    if !(1..=3).contains(&input_shape.len()) {
        return refuse(format!(
            "invalid sample shape {input_shape:?}: expected 1 to 3 dimensions"
        ));
    }
    let mut shape = input_shape.to_vec();
    let mut layers = Vec::new();
    for (index, width) in hidden.iter().enumerate() {
        let mut layer = GraphBuilder::new(&format!("layer{}", index + 1), &shape);
        let x = layer.flatten(layer.input());
        if parts > 1 {
            let parts = layer.each_part(parts, |layer, _| {
                let x = layer.linear_columns("", x, (*width, 1), true);
                layer.relu(x)
            });
            layer.join_parts(&parts);
        } else {
            let x = layer.linear("", x, *width, true);
            layer.relu(x);
        }
        layers.push(layer.finish()?);
        shape = vec![*width];
    }
    let mut output = GraphBuilder::new("output", &shape);
    let x = output.flatten(output.input());
    output.linear("", x, classes, true);
    layers.push(output.finish()?);
    Ok(layers)
}

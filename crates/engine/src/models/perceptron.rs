//! Perceptrons, and softmax regression as the one without a hidden layer.

use burn::nn::Linear;
use burn::tensor::Tensor;
use ronde_core::seed::SeedTree;

use super::layers::linear_layer;
use super::{Stages, cost_per_sample};
use crate::ops::{linear, rectified_linear};
use crate::{BurnStage, ForwardContext, Stage, training_device};

/// One stage for each layer: `layer1`, `layer2`, ..., `output`.
pub(super) fn stages(
    input_shape: &[usize],
    classes: usize,
    hidden: &[usize],
    seeds: &SeedTree,
) -> Stages {
    if hidden.contains(&0) {
        return Err(format!("hidden = {hidden:?}; expected widths above 0"));
    }
    let widths = hidden.iter().copied().chain([classes]).collect::<Vec<_>>();
    let mut shape = input_shape.to_vec();
    let mut stages = Vec::new();
    for (index, &width) in widths.iter().enumerate() {
        let layer = Layer {
            name: if index == hidden.len() {
                "output".to_owned()
            } else {
                format!("layer{}", index + 1)
            },
            rectified: index < hidden.len(),
            first: index == 0,
            width,
        };
        stages.push(match shape.len() {
            1 => layer.stage::<2>(&shape, seeds),
            2 => layer.stage::<3>(&shape, seeds),
            3 => layer.stage::<4>(&shape, seeds),
            _ => return Err(format!("samples of {shape:?}; expected 1 to 3 dimensions")),
        });
        shape = vec![width];
    }
    Ok(stages)
}

struct Layer {
    name: String,
    width: usize,
    rectified: bool,
    first: bool,
}

impl Layer {
    fn stage<const I: usize>(&self, sample: &[usize], seeds: &SeedTree) -> Box<dyn Stage> {
        let (features, width, rectified) = (sample.iter().product(), self.width, self.rectified);
        let module = linear_layer(features, width, true, &training_device());
        let forward = move |layer: &Linear, x: Tensor<I>, _: &ForwardContext| {
            let samples = x.dims()[0];
            let x = x.reshape([samples, features]);
            if rectified {
                rectified_linear(layer, x)
            } else {
                linear(layer, x)
            }
        };
        let kept = features + width;
        let stage = BurnStage::new(module, forward)
            .named(&self.name)
            .with_sample_shape(sample)
            .with_initial_weights_from_seed(seeds)
            .with_cost(cost_per_sample(&[width], kept));
        if self.first {
            Box::new(stage.without_input_gradient())
        } else {
            Box::new(stage)
        }
    }
}

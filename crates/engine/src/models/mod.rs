//! [`ModelConfig`]: the models that come with ronde, each a chain of several stages.

mod digits;
mod perceptron;
mod resnet;
mod size;

use ronde_core::seed::SeedTree;
use serde::{Deserialize, Serialize};

use crate::{Chain, EngineError, Stage, StageCost};

pub use size::ModelSize;

/// A model and its size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ModelConfig {
    /// Three convolutions with batch normalisation, made for 8 x 8 digits: 3 stages. Takes samples
    /// of `[channels, height, width]`, 4 x 4 or larger.
    DigitsCnn {
        /// Channels of the first two convolutions; the third has twice as many.
        #[serde(default = "digits_channels")]
        channels: usize,
        /// Probability of dropout before the classifier.
        #[serde(default = "digits_dropout")]
        dropout: f64,
    },
    /// Residual network of 18 layers in torchvision's layout: 6 stages. Takes samples of
    /// `[channels, height, width]`. Source: He, Zhang, Ren, Sun, CVPR 2016, table 1.
    #[serde(rename = "resnet18")]
    ResNet18 {
        /// A stem of 3 x 3 with stride 1 and no pooling, for images of about 32 x 32; else 7 x 7
        /// with stride 2 and pooling, for 224 x 224.
        #[serde(default)]
        small_input: bool,
    },
    /// Perceptron with rectifiers: a stage for each layer. Takes samples of 1 to 3 dimensions.
    Mlp {
        /// Width of each hidden layer.
        hidden: Vec<usize>,
    },
    /// Softmax regression: one stage. Takes samples of 1 to 3 dimensions.
    Linear {},
}

fn digits_channels() -> usize {
    16
}

fn digits_dropout() -> f64 {
    0.25
}

impl ModelConfig {
    /// The name that `kind` has in a configuration.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::DigitsCnn { .. } => "digits_cnn",
            Self::ResNet18 { .. } => "resnet18",
            Self::Mlp { .. } => "mlp",
            Self::Linear {} => "linear",
        }
    }

    /// Builds the model for samples of `input_shape` (without the count of samples) and `classes`
    /// outputs. Initial weights depend on the seed and the tensors' names alone.
    ///
    /// # Errors
    /// When the model does not take such samples, or a size is zero.
    pub fn build(
        &self,
        input_shape: &[usize],
        classes: u32,
        seeds: &SeedTree,
    ) -> Result<Chain, EngineError> {
        let classes = classes as usize;
        let stages = if classes == 0 || input_shape.contains(&0) {
            Err(format!(
                "samples of {input_shape:?} and {classes} classes; expected at least 1 of each"
            ))
        } else {
            match self {
                Self::DigitsCnn { channels, dropout } => {
                    digits::stages(input_shape, classes, *channels, *dropout, seeds)
                }
                Self::ResNet18 { small_input } => {
                    resnet::stages(input_shape, classes, *small_input, seeds)
                }
                Self::Mlp { hidden } => perceptron::stages(input_shape, classes, hidden, seeds),
                Self::Linear {} => perceptron::stages(input_shape, classes, &[], seeds),
            }
        };
        let stages = stages.map_err(|problem| EngineError::Model {
            model: self.kind().to_owned(),
            problem,
        })?;
        Chain::new(stages)
    }
}

/// What a model's parts are before they are a chain, or why they cannot be.
type Stages = Result<Vec<Box<dyn Stage>>, String>;

/// `[channels, height, width]` of samples that are images of at least the given side.
fn image(input_shape: &[usize], side: usize) -> Result<[usize; 3], String> {
    match *input_shape {
        [channels, height, width] if height >= side && width >= side => {
            Ok([channels, height, width])
        }
        _ => Err(format!(
            "samples of {input_shape:?}; expected [channels, height, width], {side} x {side} or larger"
        )),
    }
}

/// Output length of a convolution or pooling along one dimension.
fn convolved(length: usize, kernel: usize, stride: usize, padding: usize) -> usize {
    (length + 2 * padding).saturating_sub(kernel) / stride + 1
}

/// Cost of a stage whose output and kept values grow with the samples alone.
fn cost_per_sample(
    output: &[usize],
    kept_floats: usize,
) -> impl Fn(&[usize]) -> StageCost + Send + use<> {
    let output = output.to_vec();
    move |input| {
        let samples = input.first().copied().unwrap_or(0);
        let mut output_shape = vec![samples];
        output_shape.extend(&output);
        StageCost {
            output_shape,
            kept_floats: samples * kept_floats,
        }
    }
}

#[cfg(test)]
mod tests;

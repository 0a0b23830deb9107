//! [`ModelSize`]: how large a model is, computed before anything is allocated.

use super::{ModelConfig, convolved, image};
use crate::EngineError;

/// What a model takes, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelSize {
    /// Trainable elements.
    pub parameters: u64,
    /// Elements kept from forward until backward, for one sample; an estimate.
    pub kept_floats_per_sample: u64,
}

impl ModelSize {
    fn add(&mut self, parameters: u64, kept: u64) {
        self.parameters = self.parameters.saturating_add(parameters);
        self.kept_floats_per_sample = self.kept_floats_per_sample.saturating_add(kept);
    }

    fn convolution(&mut self, from: u64, to: u64, kernel: u64) {
        // Weights without bias, and the normalisation's two numbers a channel.
        self.add(
            product(&[from, to, kernel, kernel]).saturating_add(to.saturating_mul(2)),
            0,
        );
    }

    fn linear(&mut self, from: u64, to: u64) {
        self.add(product(&[from, to]).saturating_add(to), 0);
    }
}

fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1, |product, &factor| product.saturating_mul(factor))
}

impl ModelConfig {
    /// The size of the model for samples of `input_shape` (without the count of samples); cheap
    /// also for one that could never be built. Sizes beyond `u64` saturate.
    ///
    /// # Errors
    /// When the model does not take such samples.
    pub fn size(&self, input_shape: &[usize], classes: u32) -> Result<ModelSize, EngineError> {
        let classes = u64::from(classes);
        let size = match self {
            Self::DigitsCnn { channels, .. } => image(input_shape, 4)
                .map(|image| digits(image.map(|n| n as u64), *channels as u64, classes)),
            Self::ResNet18 { small_input } => image(input_shape, if *small_input { 8 } else { 32 })
                .map(|image| resnet18(image, classes, *small_input)),
            Self::Mlp { hidden } => Ok(perceptron(input_shape, hidden, classes)),
            Self::Linear {} => Ok(perceptron(input_shape, &[], classes)),
        };
        size.map_err(|problem| EngineError::Model {
            model: self.kind().to_owned(),
            problem,
        })
    }
}

fn digits([from, height, width]: [u64; 3], channels: u64, classes: u64) -> ModelSize {
    let mut size = ModelSize::default();
    let wide = channels.saturating_mul(2);
    size.convolution(from, channels, 3);
    size.convolution(channels, channels, 3);
    size.add(
        0,
        product(&[
            height,
            width,
            from.saturating_add(channels.saturating_mul(6)),
        ]),
    );
    size.convolution(channels, wide, 3);
    size.add(0, product(&[height / 2, width / 2, 7, channels]));
    size.linear(wide, classes);
    size.add(0, wide.saturating_mul(3).saturating_add(classes));
    size
}

fn resnet18([from, height, width]: [usize; 3], classes: u64, small_input: bool) -> ModelSize {
    let mut size = ModelSize::default();
    let (kernel, enlarged) = if small_input { (3, 1) } else { (7, 4) };
    let mut side = [height, width];
    if !small_input {
        side = side.map(|length| convolved(convolved(length, 7, 2, 3), 3, 2, 1));
    }
    let area = |side: [usize; 2]| side[0] as u64 * side[1] as u64;
    size.convolution(from as u64, 64, kernel);
    size.add(
        0,
        (from * height * width) as u64 + 3 * enlarged * 64 * area(side),
    );
    let mut channels = 64;
    for to in [64, 128, 256, 512] {
        let outer = channels * area(side);
        if to != channels {
            side = side.map(|length| convolved(length, 3, 2, 1));
            size.convolution(channels, to, 1);
        }
        size.convolution(channels, to, 3);
        (0..3).for_each(|_| size.convolution(to, to, 3));
        size.add(0, outer + 14 * to * area(side));
        channels = to;
    }
    size.linear(512, classes);
    size.add(0, 512 * area(side) + 512 + classes);
    size
}

fn perceptron(input_shape: &[usize], hidden: &[usize], classes: u64) -> ModelSize {
    let mut size = ModelSize::default();
    let mut from = product(&input_shape.iter().map(|&n| n as u64).collect::<Vec<_>>());
    for &width in hidden {
        let width = width as u64;
        size.linear(from, width);
        size.add(0, from.saturating_add(width.saturating_mul(2)));
        from = width;
    }
    size.linear(from, classes);
    size.add(0, from.saturating_add(classes));
    size
}

#[cfg(test)]
mod tests {
    use ronde_core::layout::Role;
    use ronde_core::seed::SeedTree;

    use super::*;
    use crate::Stage;

    fn check(config: &ModelConfig, input_shape: &[usize], classes: u32) {
        let size = config.size(input_shape, classes).unwrap();
        let chain = config
            .build(input_shape, classes, &SeedTree::new(1))
            .unwrap();
        assert_eq!(
            size.parameters,
            chain.layout().elements(Role::Parameter) as u64,
            "{config:?}"
        );
        let batch: Vec<usize> = [&[1], input_shape].concat();
        assert_eq!(
            size.kept_floats_per_sample,
            chain.cost(&batch).kept_floats as u64,
            "{config:?}"
        );
    }

    #[test]
    fn the_size_is_that_of_the_model_that_is_built() {
        for channels in [1, 16] {
            check(
                &ModelConfig::DigitsCnn {
                    channels,
                    dropout: 0.25,
                },
                &[1, 8, 8],
                10,
            );
            check(
                &ModelConfig::DigitsCnn {
                    channels,
                    dropout: 0.25,
                },
                &[3, 12, 9],
                7,
            );
        }
        check(
            &ModelConfig::ResNet18 { small_input: true },
            &[3, 32, 32],
            10,
        );
        check(
            &ModelConfig::ResNet18 { small_input: false },
            &[3, 64, 64],
            1000,
        );
        check(
            &ModelConfig::Mlp {
                hidden: vec![30, 20],
            },
            &[1, 8, 8],
            10,
        );
        check(&ModelConfig::Linear {}, &[64], 10);
    }

    #[test]
    fn models_that_could_never_be_built_have_a_size() {
        let huge = ModelConfig::Mlp {
            hidden: vec![usize::MAX, usize::MAX],
        };
        assert_eq!(huge.size(&[64], 10).unwrap().parameters, u64::MAX);
        let digits = ModelConfig::DigitsCnn {
            channels: usize::MAX,
            dropout: 0.0,
        };
        assert_eq!(digits.size(&[1, 8, 8], 10).unwrap().parameters, u64::MAX);
        assert!(digits.size(&[64], 10).is_err());
    }
}

//! [`ModelSize`]: the size of a model, computed before anything is allocated.

use super::layer_size::LayerSize;
use super::{ModelConfig, gpt, image, resnet, text, transformer, transformer_form, vgg};
use crate::EngineError;

/// The size of a model, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelSize {
    /// The number of trainable elements.
    pub parameters: u64,
    /// The estimated number of elements kept from forward until backward, for one sample.
    pub kept_floats_per_sample: u64,
    /// The same with recomputation: see
    /// [`Chain::with_recomputation`](crate::Chain::with_recomputation).
    pub recomputed_floats_per_sample: u64,
}

fn total(layers: Vec<LayerSize>) -> ModelSize {
    let mut size = ModelSize::default();
    let (mut greatest, mut borders) = (0, 0);
    for layer in layers {
        size.add(layer.parameters, layer.kept as u64);
        greatest = greatest.max(layer.kept as u64);
        borders += layer.output.iter().product::<usize>() as u64;
    }
    size.recomputed_floats_per_sample = borders + greatest;
    size
}

impl ModelSize {
    fn add(&mut self, parameters: u64, kept: u64) {
        self.parameters = self.parameters.saturating_add(parameters);
        self.kept_floats_per_sample = self.kept_floats_per_sample.saturating_add(kept);
        self.recomputed_floats_per_sample = self.kept_floats_per_sample;
    }

    fn convolution(&mut self, from: u64, to: u64, kernel: u64) {
        // Weights without bias, and two numbers per channel of the normalisation.
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
    /// Returns the size of the model for samples of `input_shape` (without the number of samples),
    /// quickly even for a model that is too large to build. Sizes beyond `u64` saturate.
    ///
    /// # Errors
    /// When the model does not accept such samples.
    pub fn size(&self, input_shape: &[usize], classes: u32) -> Result<ModelSize, EngineError> {
        let classes = u64::from(classes);
        let size = match self {
            Self::DigitsCnn { channels, .. } => image(input_shape, 4)
                .map(|image| digits(image.map(|n| n as u64), *channels as u64, classes)),
            Self::ResNet18 { .. } | Self::ResNet50 { .. } => self
                .resnet_form()
                .map_or(Ok(Vec::new()), |form| {
                    resnet::sizes(input_shape, classes as usize, form)
                })
                .map(total),
            Self::Vgg16 {
                small_input,
                normalisation,
                dropout,
            } => {
                let form = vgg::VggShape {
                    small_input: *small_input,
                    normalisation: *normalisation,
                    dropout: *dropout,
                };
                vgg::sizes(input_shape, classes as usize, form).map(total)
            }
            Self::Gpt {
                layers,
                width,
                heads,
                dropout,
                tied,
            } => {
                let form = transformer_form(*width, *heads, *dropout);
                gpt::sizes(input_shape, classes as usize, *layers, form, *tied).map(total)
            }
            Self::Transformer {
                source,
                padding,
                layers,
                width,
                heads,
                dropout,
            } => {
                let form = transformer_form(*width, *heads, *dropout);
                let text = text(*source, *padding);
                transformer::sizes(input_shape, classes as usize, text, *layers, form).map(total)
            }
            Self::Mlp { hidden } => Ok(perceptron(input_shape, hidden, classes)),
            Self::Linear {} => Ok(perceptron(input_shape, &[], classes)),
        };
        size.map_err(|problem| EngineError::Model {
            model: self.kind().to_owned(),
            problem,
        })
    }
}

impl ModelConfig {
    /// Returns the number of targets that the model predicts for a sample of `input_shape`. The result is 0 if the
    /// source of a transformer takes the whole sample or more.
    #[must_use]
    pub fn targets_per_sample(&self, input_shape: &[usize]) -> usize {
        let positions: usize = input_shape.iter().product();
        match self {
            Self::Gpt { .. } => positions,
            Self::Transformer { source, .. } => positions.saturating_sub(*source),
            _ => 1,
        }
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

fn perceptron(input_shape: &[usize], hidden: &[usize], classes: u64) -> ModelSize {
    let mut size = ModelSize::default();
    let mut from = product(&input_shape.iter().map(|&n| n as u64).collect::<Vec<_>>());
    for &width in hidden {
        let width = width as u64;
        size.linear(from, width);
        size.add(0, from.saturating_add(width));
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
    use crate::Layer;

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
    fn the_size_is_that_of_the_built_model() {
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
        for model in [
            r#"{"kind": "resnet18", "small_input": true}"#,
            r#"{"kind": "resnet18", "normalisation": "group"}"#,
            r#"{"kind": "resnet50", "small_input": true}"#,
            r#"{"kind": "resnet50"}"#,
            r#"{"kind": "vgg16", "small_input": true}"#,
            r#"{"kind": "vgg16", "small_input": true, "normalisation": "batch"}"#,
        ] {
            for shape in [[3, 32, 40], [3, 64, 40]] {
                check(&serde_json::from_str(model).unwrap(), &shape, 10);
            }
        }
        let gpt = r#"{"kind": "gpt", "layers": 3, "width": 24, "heads": 4}"#;
        check(&serde_json::from_str(gpt).unwrap(), &[12], 50);
        let tied = r#"{"kind": "gpt", "layers": 3, "width": 24, "heads": 4, "tied": true}"#;
        check(&serde_json::from_str(tied).unwrap(), &[12], 50);
        let transformer =
            r#"{"kind": "transformer", "source": 5, "layers": 2, "width": 24, "heads": 4}"#;
        check(&serde_json::from_str(transformer).unwrap(), &[12], 50);
        let padded = transformer.replace("\"layers\"", "\"padding\": 0, \"layers\"");
        check(&serde_json::from_str(&padded).unwrap(), &[12], 50);
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
    fn numbers_of_parameters_match_the_publications() {
        let cases: [(&str, &[usize], u32, u64); 9] = [
            (r#"{"kind": "resnet18"}"#, &[3, 224, 224], 1000, 11_689_512),
            (r#"{"kind": "resnet50"}"#, &[3, 224, 224], 1000, 25_557_032),
            (r#"{"kind": "vgg16"}"#, &[3, 224, 224], 1000, 138_357_544),
            (
                r#"{"kind": "vgg16", "normalisation": "batch"}"#,
                &[3, 224, 224],
                1000,
                138_365_992,
            ),
            (
                r#"{"kind": "gpt", "layers": 12, "width": 768, "heads": 12, "tied": true}"#,
                &[1024],
                50_257,
                124_439_808,
            ),
            // When it is not tied, the output layer adds 50257 x 768.
            (
                r#"{"kind": "gpt", "layers": 12, "width": 768, "heads": 12}"#,
                &[1024],
                50_257,
                124_439_808 + 50_257 * 768,
            ),
            // torch.nn.Transformer() has 44,140,544 without embeddings and output layer.
            (
                r#"{"kind": "transformer", "source": 3, "layers": 6, "width": 512, "heads": 8}"#,
                &[7],
                11,
                44_140_544 + (11 + 7 + 11) * 512,
            ),
            (
                r#"{"kind": "mlp", "hidden": [1024, 1024]}"#,
                &[784],
                10,
                1_863_690,
            ),
            (r#"{"kind": "linear"}"#, &[784], 10, 7850),
        ];
        for (model, shape, classes, parameters) in cases {
            let config: ModelConfig = serde_json::from_str(model).unwrap();
            let size = config.size(shape, classes).unwrap();
            assert_eq!(size.parameters, parameters, "{model}");
        }
    }

    #[test]
    fn models_too_large_to_build_have_a_size() {
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

//! [`ModelSize`]: the size of a model, computed before anything is allocated.

use ronde_core::layout::Role;

use super::ModelConfig;
use crate::error::EngineError;

/// The size of a model, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelSize {
    /// The number of trainable elements.
    pub parameters: u64,
    /// The number of those in tensors of at least two dimensions, which layers copy in short formats.
    pub matrix_elements: u64,
    /// The number of elements of the largest layer, which fits into a bucket of gradients.
    pub largest_layer: u64,
}

impl ModelConfig {
    /// Returns the size of the model for samples of `input_shape` (without the number of samples),
    /// quickly even for a model that is too large to build.
    ///
    /// # Errors
    /// When the model does not accept such samples, or a tensor has more than 2^40 elements.
    pub fn size(&self, input_shape: &[usize], classes: u32) -> Result<ModelSize, EngineError> {
        let mut size = ModelSize::default();
        for layer in self.outline(input_shape, classes)? {
            let elements = layer.layout().elements(Role::Parameter) as u64;
            size.largest_layer = size.largest_layer.max(elements);
            for tensor in layer.layout().of_role(Role::Parameter) {
                let elements = tensor.elements() as u64;
                size.parameters += elements;
                if tensor.shape.len() >= 2 {
                    size.matrix_elements += elements;
                }
            }
        }
        Ok(size)
    }

    /// Returns the number of targets that the model predicts for a sample of `input_shape`. The
    /// result is 0 if the source of a transformer takes the whole sample or more.
    #[must_use]
    pub fn targets_per_sample(&self, input_shape: &[usize]) -> usize {
        let positions: usize = input_shape.iter().product();
        match self {
            Self::Gpt { .. } | Self::Bert { .. } => positions,
            Self::UNet { .. } => input_shape.iter().skip(1).product(),
            Self::Transformer { source, .. } => positions.saturating_sub(*source),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_parameters_match_the_publications() {
        let cases: [(&str, &[usize], u32, u64); 10] = [
            (r#"{"kind": "resnet18"}"#, &[3, 224, 224], 1000, 11_689_512),
            (r#"{"kind": "resnet50"}"#, &[3, 224, 224], 1000, 25_557_032),
            (r#"{"kind": "vgg16"}"#, &[3, 224, 224], 1000, 138_357_544),
            (
                r#"{"kind": "vgg16", "normalisation": "batch"}"#,
                &[3, 224, 224],
                1000,
                138_365_992,
            ),
            // torchvision's inception_v3(aux_logits=False).
            (
                r#"{"kind": "inception_v3"}"#,
                &[3, 299, 299],
                1000,
                23_834_568,
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
    fn models_too_large_to_describe_are_refused() {
        let huge = ModelConfig::Mlp {
            hidden: vec![usize::MAX, usize::MAX],
            tensor_parts: 1,
        };
        let error = huge.size(&[64], 10).unwrap_err().to_string();
        assert!(error.contains("2^40 elements"), "{error}");
        let large = r#"{"kind": "gpt", "layers": 4096, "width": 65536, "heads": 64}"#;
        let large: ModelConfig = serde_json::from_str(large).unwrap();
        assert!(large.size(&[4096], 50_000).unwrap().parameters > 200_000_000_000_000);
    }
}

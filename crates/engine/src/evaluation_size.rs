//! [`EvaluationSize`]: how many samples of an evaluation are in memory at once.

use crate::activation::Activation;
use crate::chain::Chain;
use crate::error::EngineError;

/// The largest number of samples of a batch.
const BATCH_MAX: usize = 60;
/// The largest number of outputs of a batch, unless one sample has more: 16 MiB, a few times for a loss.
const OUTPUTS_MAX: usize = 4 << 20;
/// The largest number of values between two layers, unless one sample has more: 4 MiB.
const VALUES_MAX: usize = 1 << 20;

/// How many samples of an evaluation are in memory at once. It follows from the model and the form of its samples only, so
/// that the bits of the results do not depend on the machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationSize {
    /// The samples of a batch, whose losses are added before those of the next one: 60, or fewer if a sample has many outputs.
    pub batch: usize,
    /// The samples of a batch that pass through the layers together. No result depends on it.
    pub together: usize,
}

impl Default for EvaluationSize {
    fn default() -> Self {
        Self {
            batch: BATCH_MAX,
            together: BATCH_MAX,
        }
    }
}

impl EvaluationSize {
    /// Returns the size for a model and the shape of its samples. Cost: that of describing the layers.
    #[must_use]
    pub fn of(chain: &Chain, sample: &[usize]) -> Self {
        let mut shape: Vec<usize> = std::iter::once(1).chain(sample.iter().copied()).collect();
        let mut largest = shape.iter().product::<usize>();
        for layer in chain.layers() {
            shape = layer.cost(&shape).output_shape;
            largest = largest.max(shape.iter().product());
        }
        let outputs: usize = shape.iter().product();
        let batch = (OUTPUTS_MAX / outputs.max(1)).clamp(1, BATCH_MAX);
        Self {
            batch,
            together: (VALUES_MAX / largest.max(1)).clamp(1, batch),
        }
    }

    /// Passes a batch to `forward`, as many samples at a time as belong together, and returns all outputs.
    ///
    /// # Errors
    /// Those of `forward`.
    pub fn forward(
        self,
        values: Activation,
        mut forward: impl FnMut(Activation) -> Result<Activation, EngineError>,
    ) -> Result<Activation, EngineError> {
        let samples = values.samples();
        if samples <= self.together {
            return forward(values);
        }
        let values = values.on_host();
        let mut outputs = Vec::with_capacity(samples.div_ceil(self.together));
        for first in (0..samples).step_by(self.together) {
            let part = values.part(first..samples.min(first + self.together));
            outputs.push(forward(part)?.on_host());
        }
        drop(values);
        Ok(Activation::joined(outputs))
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::seed::SeedTree;

    use super::*;
    use crate::models::ModelConfig;

    #[test]
    fn large_samples_are_evaluated_in_smaller_parts() {
        let size = |hidden: usize, classes| {
            let model = ModelConfig::Mlp {
                hidden: vec![hidden],
                tensor_parts: 1,
            };
            let layers = model.outline(&[8], classes).unwrap();
            let chain = model.build(&[8], classes, &SeedTree::new(0)).unwrap();
            assert_eq!(chain.len(), layers.len());
            let EvaluationSize { batch, together } = EvaluationSize::of(&chain, &[8]);
            (batch, together)
        };
        assert_eq!(size(4, 3), (60, 60));
        assert_eq!(size(4, 1 << 17), (32, 8));
        assert_eq!(size(1 << 15, 3), (60, 32));
    }

    #[test]
    fn parts_have_the_bits_of_the_whole() {
        let model = ModelConfig::Mlp {
            hidden: vec![16],
            tensor_parts: 1,
        };
        let mut chain = model.build(&[8], 3, &SeedTree::new(1)).unwrap();
        let values: Vec<f32> = (0..7 * 8).map(|value| value as f32 * 0.01).collect();
        let input = Activation::from_host(&[7, 8], values);
        let whole = chain.evaluate(input.clone()).unwrap();
        for together in 1..8 {
            let size = EvaluationSize { batch: 7, together };
            let parts = size.forward(input.clone(), |part| chain.evaluate(part));
            let parts = parts.unwrap();
            assert_eq!(parts.shape(), whole.shape());
            assert_eq!(parts.as_slice(), whole.as_slice());
        }
    }
}

//! [`ForwardContext`]: the coordinates of a forward pass, from which all its randomness follows.

use burn::tensor::{Tensor, TensorData};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{Shard, Step};

/// Training or evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Uses batch statistics and dropout, and keeps the values that backward needs.
    Train,
    /// Uses running statistics and no dropout, and keeps nothing.
    Evaluate,
}

/// The coordinates of a forward pass. Two passes with the same coordinates draw the same random
/// numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardContext {
    /// The root of the run's random numbers.
    pub seeds: SeedTree,
    /// The step.
    pub step: Step,
    /// The logical shard that the samples belong to.
    pub shard: Shard,
    /// The number of the layer in the whole model, wherever it is cut.
    pub layer: u32,
    /// Training or evaluation.
    pub mode: Mode,
}

impl ForwardContext {
    /// Returns the context of an evaluation pass, which draws no random numbers.
    #[must_use]
    pub fn evaluate() -> Self {
        Self {
            seeds: SeedTree::new(0),
            step: Step(0),
            shard: Shard(0),
            layer: 0,
            mode: Mode::Evaluate,
        }
    }

    /// Returns the same pass with another layer.
    #[must_use]
    pub fn at_layer(self, layer: u32) -> Self {
        Self { layer, ..self }
    }

    /// Sets elements to zero with the given probability and scales the remaining ones by `1 / (1 -
    /// probability)`; the identity in evaluation.
    ///
    /// The mask is keyed by (seed, step, shard, layer, `index`); give each dropout of a layer its
    /// own `index`. `probability` is clamped to `0..=1`. Cost: a Philox number per element.
    #[must_use]
    pub fn dropout<const D: usize>(&self, x: Tensor<D>, probability: f64, index: u64) -> Tensor<D> {
        let shape = x.dims();
        let factors = self.dropout_factors(shape.iter().product(), probability, index);
        let Some(factors) = factors else {
            return x;
        };
        let device = x.device();
        x * Tensor::from_data(TensorData::new(factors, shape), &device)
    }

    /// Returns the factors of [`ForwardContext::dropout`]; `None` when all are 1.
    pub(crate) fn dropout_factors(
        &self,
        elements: usize,
        probability: f64,
        index: u64,
    ) -> Option<Vec<f32>> {
        let probability = probability.clamp(0.0, 1.0);
        if self.mode == Mode::Evaluate || probability == 0.0 {
            return None;
        }
        let coordinates = [
            self.step.0,
            u64::from(self.shard.0),
            u64::from(self.layer),
            index,
        ];
        let mut mask = vec![0.0_f32; elements];
        self.seeds
            .stream(Purpose::Dropout, &coordinates)
            .fill_uniform(&mut mask);
        let scale = if probability < 1.0 {
            (1.0 / (1.0 - probability)) as f32
        } else {
            0.0
        };
        for value in &mut mask {
            *value = if f64::from(*value) < probability {
                0.0
            } else {
                scale
            };
        }
        Some(mask)
    }

    /// Returns the seed of the engine's own generator for this pass.
    pub(crate) fn engine_seed(&self) -> u64 {
        let coordinates = [self.step.0, u64::from(self.shard.0), u64::from(self.layer)];
        crate::host::first_word(self.seeds.stream(Purpose::Engine, &coordinates))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn context(step: u64, shard: u32, layer: u32) -> ForwardContext {
        ForwardContext {
            seeds: SeedTree::new(5),
            step: Step(step),
            shard: Shard(shard),
            layer,
            mode: Mode::Train,
        }
    }

    fn masked(context: &ForwardContext, probability: f64, index: u64) -> Vec<f32> {
        let ones = Tensor::<2>::ones([40, 50], &Device::default());
        context
            .dropout(ones, probability, index)
            .into_data()
            .try_into_vec()
            .unwrap()
    }

    #[test]
    fn masks_are_keyed_by_every_coordinate_and_repeat() {
        let base = masked(&context(1, 2, 3), 0.25, 0);
        assert_eq!(base, masked(&context(1, 2, 3), 0.25, 0));
        for other in [context(2, 2, 3), context(1, 3, 3), context(1, 2, 4)] {
            assert_ne!(base, masked(&other, 0.25, 0));
        }
        assert_ne!(base, masked(&context(1, 2, 3), 0.25, 1));
        let dropped = base.iter().filter(|&&x| x == 0.0).count();
        assert!((400..600).contains(&dropped), "{dropped} of 2,000 dropped");
        assert!(base.iter().all(|&x| x == 0.0 || x == 1.0 / 0.75));
    }

    #[test]
    fn evaluation_and_the_edges() {
        let evaluate = ForwardContext {
            mode: Mode::Evaluate,
            ..context(1, 2, 3)
        };
        assert!(masked(&evaluate, 0.5, 0).iter().all(|&x| x == 1.0));
        assert!(masked(&context(1, 2, 3), 0.0, 0).iter().all(|&x| x == 1.0));
        assert!(masked(&context(1, 2, 3), 1.0, 0).iter().all(|&x| x == 0.0));
    }
}

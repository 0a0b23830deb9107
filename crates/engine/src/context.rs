//! [`ForwardContext`]: the coordinates of a forward pass, from which all its randomness follows.

use ronde_core::philox::Stream;
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

    /// Writes the factors of a dropout, which are 0 with the given probability and `1 / (1 -
    /// probability)` otherwise. Returns false without writing in evaluation, or if the probability
    /// is 0: all factors are 1.
    ///
    /// The factors are keyed by (seed, step, shard, layer, `index`); give each dropout of a layer
    /// its own `index`. `probability` is clamped to `0..=1`. Cost: a Philox number per element.
    pub fn draw_dropout(&self, factors: &mut [f32], probability: f64, index: u64) -> bool {
        self.draw_dropout_from(factors, probability, index, 0)
    }

    /// Does the same for elements from number `first` on: those that [`ForwardContext::draw_dropout`] writes there.
    pub fn draw_dropout_from(
        &self,
        factors: &mut [f32],
        probability: f64,
        index: u64,
        first: u64,
    ) -> bool {
        let probability = probability.clamp(0.0, 1.0);
        if self.mode == Mode::Evaluate || probability == 0.0 {
            return false;
        }
        let coordinates = [
            self.step.0,
            u64::from(self.shard.0),
            u64::from(self.layer),
            index,
        ];
        let stream = self.seeds.stream(Purpose::Dropout, &coordinates);
        stream.fill_uniform_from(first, factors);
        let scale = if probability < 1.0 {
            (1.0 / (1.0 - probability)) as f32
        } else {
            0.0
        };
        for value in factors {
            *value = if f64::from(*value) < probability {
                0.0
            } else {
                scale
            };
        }
        true
    }

    /// Returns the seed of an engine's own random generator for this pass.
    #[must_use]
    pub fn engine_seed(&self) -> u64 {
        let coordinates = [self.step.0, u64::from(self.shard.0), u64::from(self.layer)];
        first_word(self.seeds.stream(Purpose::Engine, &coordinates))
    }
}

/// Returns the first 64 bits of a stream.
pub fn first_word(stream: Stream) -> u64 {
    let block = stream.block(0);
    u64::from(block[0]) << 32 | u64::from(block[1])
}

#[cfg(test)]
mod tests {
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
        let mut factors = vec![1.0; 2000];
        context.draw_dropout(&mut factors, probability, index);
        factors
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
    fn factors_of_later_elements_are_those_of_the_whole() {
        let whole = masked(&context(1, 2, 3), 0.25, 0);
        for first in [0, 1, 6, 1023] {
            let mut part = vec![f32::NAN; 77];
            context(1, 2, 3).draw_dropout_from(&mut part, 0.25, 0, first);
            assert_eq!(part, whole[first as usize..first as usize + 77]);
        }
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

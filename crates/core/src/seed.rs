//! The seed tree: the key of every random number of a run is its purpose; no numbers are drawn in sequence.
//!
//! A key is (run seed, purpose, coordinates such as epoch, step, shard, layer). A number therefore depends neither
//! on the process that draws it nor on numbers drawn earlier.

use crate::philox::Stream;

/// The purpose of random numbers. Two purposes never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Initial weights; coordinates: none, named by the tensor.
    InitialWeights = 1,
    /// Order of the samples; coordinates: epoch.
    Shuffle = 2,
    /// Dropout masks; coordinates: step, shard, layer, index of the dropout within the layer.
    Dropout = 3,
    /// Changes to samples; coordinates: epoch, sample.
    Augmentation = 4,
    /// Synthetic samples; coordinates: sample.
    Synthetic = 5,
    /// The tensor engine's own generator; coordinates: step, shard, layer.
    Engine = 6,
    /// The data that a benchmark sends; coordinates: rank.
    Benchmark = 7,
    /// Choices of generated tokens; coordinates: text, number of the token.
    Generation = 8,
    /// The pairs of workers that average their replicas; coordinates: round, cycle of exchanges.
    Pairing = 9,
    /// Factors from which compressed gradients begin; coordinates: number of steps before, tensor, column.
    Compression = 10,
}

/// The root of all randomness of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedTree {
    seed: u64,
}

impl SeedTree {
    /// Creates the tree of a run's seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the stream for a purpose and its coordinates. Cost: one blake3 block.
    #[must_use]
    pub fn stream(&self, purpose: Purpose, coordinates: &[u64]) -> Stream {
        self.keyed(purpose, coordinates, "")
    }

    /// Returns the stream for a purpose and a name, such as the name of a tensor.
    #[must_use]
    pub fn named(&self, purpose: Purpose, name: &str) -> Stream {
        self.keyed(purpose, &[], name)
    }

    fn keyed(&self, purpose: Purpose, coordinates: &[u64], name: &str) -> Stream {
        let mut hasher = blake3::Hasher::new_derive_key("ronde seed tree, version 1");
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(&(purpose as u32).to_le_bytes());
        hasher.update(&(coordinates.len() as u64).to_le_bytes());
        for coordinate in coordinates {
            hasher.update(&coordinate.to_le_bytes());
        }
        hasher.update(name.as_bytes());
        let hash = hasher.finalize();
        let word = |i: usize| {
            let bytes = &hash.as_bytes()[4 * i..4 * i + 4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        Stream::new([word(0), word(1), word(2), word(3)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_coordinate_matters_and_the_numbers_are_fixed() {
        let tree = SeedTree::new(42);
        let streams = [
            tree.stream(Purpose::Dropout, &[1, 2, 3]),
            tree.stream(Purpose::Dropout, &[1, 3, 2]),
            tree.stream(Purpose::Dropout, &[1, 2]),
            tree.stream(Purpose::Shuffle, &[1, 2, 3]),
            tree.named(Purpose::InitialWeights, "conv1.weight"),
            tree.named(Purpose::InitialWeights, "conv2.weight"),
            SeedTree::new(43).stream(Purpose::Dropout, &[1, 2, 3]),
        ];
        for (i, one) in streams.iter().enumerate() {
            for other in &streams[i + 1..] {
                assert_ne!(one.block(0), other.block(0));
            }
        }
        assert_eq!(
            streams[0],
            SeedTree::new(42).stream(Purpose::Dropout, &[1, 2, 3])
        );
    }
}

//! [`JoinedShards`]: shards whose samples pass through operations together, one after the other in one value.
//!
//! An operation that [`joins shards`](super::GraphOperation::joins_shards) computes each sample from itself, so a kernel runs once for
//! the samples of all shards, with the bits of each shard alone, and reads the weights once. What is a sum over samples (the gradients
//! of weights) is computed shard by shard, and added in the order of the exact sum: see
//! [`TensorGradients::add_shards`](super::TensorGradients::add_shards).

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Shard;

/// A shard, and its samples in the value of all joined shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinedShard {
    /// The shard.
    pub(crate) shard: Shard,
    /// Its number among the joined shards.
    pub(crate) place: usize,
    /// Its samples; none of an empty shard.
    pub(crate) samples: Range<usize>,
}

/// Shards that pass through the operations of a layer together, at least one.
#[derive(Debug, Clone)]
pub(crate) struct JoinedShards {
    shards: Arc<[JoinedShard]>,
}

impl JoinedShards {
    /// Joins shards with these numbers of samples.
    pub(crate) fn new(shards: impl IntoIterator<Item = (Shard, usize)>) -> Self {
        let mut end = 0;
        let shards = shards.into_iter().enumerate();
        let shards = shards.map(|(place, (shard, samples))| {
            let start = end;
            end += samples;
            JoinedShard {
                shard,
                place,
                samples: start..end,
            }
        });
        Self {
            shards: shards.collect(),
        }
    }

    /// Returns the shards in order.
    pub(crate) fn shards(&self) -> &[JoinedShard] {
        &self.shards
    }

    /// Returns the samples of each shard.
    pub(crate) fn samples(&self) -> impl Iterator<Item = Range<usize>> {
        self.shards.iter().map(|of| of.samples.clone())
    }

    /// Returns the first shard that is not at its place in a list, if the list has other shards.
    pub(crate) fn first_other(&self, shards: &[Shard]) -> Option<Shard> {
        let own = self.shards.iter().map(|of| Some(of.shard));
        let mut own = own.chain(std::iter::repeat(None));
        let other = shards
            .iter()
            .find(|shard| own.next() != Some(Some(**shard)));
        match other {
            Some(shard) => Some(*shard),
            None => own.next().flatten(),
        }
    }
}

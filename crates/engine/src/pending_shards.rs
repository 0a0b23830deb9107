//! [`PendingShards`]: the values that a layer keeps of each shard between forward and backward.

use ronde_core::Shard;

use crate::error::EngineError;
use crate::shard_map::ShardMap;

/// The shards of one layer between forward and backward, with the checks of their use: for
/// implementations of [`Layer`](crate::Layer).
#[derive(Debug)]
pub struct PendingShards<T> {
    layer: String,
    shards: ShardMap<T>,
}

impl<T> PendingShards<T> {
    /// Creates an empty set for the layer of a name, which appears in messages.
    #[must_use]
    pub fn new(layer: &str) -> Self {
        Self {
            layer: layer.to_owned(),
            shards: ShardMap::new(),
        }
    }

    /// Returns the name of the layer.
    #[must_use]
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// Stores a shard after its forward; another forward of it replaces the first.
    pub fn begin(&mut self, shard: Shard, kept: T) {
        self.shards.insert(shard, kept);
    }

    /// Removes and returns the values kept of a shard whose backward begins.
    ///
    /// # Errors
    /// When the shard is not pending.
    pub fn end(&mut self, shard: Shard) -> Result<T, EngineError> {
        let kept = self.shards.remove(&shard);
        kept.ok_or_else(|| self.not_pending(shard))
    }

    /// Returns the values kept of a shard.
    ///
    /// # Errors
    /// When the shard is not pending.
    pub fn get(&self, shard: Shard) -> Result<&T, EngineError> {
        let kept = self.shards.get(&shard);
        kept.ok_or_else(|| self.not_pending(shard))
    }

    /// Returns the error of a shard that is not pending.
    #[must_use]
    pub fn not_pending(&self, shard: Shard) -> EngineError {
        EngineError::NotInFlight {
            layer: self.layer.clone(),
            shard,
        }
    }

    /// Returns the values kept of all shards.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.shards.values_mut()
    }

    /// Drops a shard, if it is pending.
    pub fn discard(&mut self, shard: Shard) {
        self.shards.remove(&shard);
    }

    /// Drops all shards.
    pub fn clear(&mut self) {
        self.shards.clear();
    }

    /// Returns the error of a value with a wrong shape.
    #[must_use]
    pub fn wrong_shape(&self, what: &'static str, got: &[usize], expected: String) -> EngineError {
        EngineError::Shape {
            layer: self.layer.clone(),
            what,
            got: got.to_vec(),
            expected,
        }
    }

    /// Checks that samples have the shape that the layer accepts.
    ///
    /// # Errors
    /// When they have another one.
    pub fn check_samples(&self, got: &[usize], sample: &[usize]) -> Result<(), EngineError> {
        if got.get(1..) == Some(sample) {
            return Ok(());
        }
        Err(self.wrong_shape("input", got, format!("samples of {sample:?}")))
    }

    /// Checks that an output gradient has the shape of the output.
    ///
    /// # Errors
    /// When it has another one.
    pub fn check_gradient(&self, got: &[usize], output: &[usize]) -> Result<(), EngineError> {
        if got == output {
            return Ok(());
        }
        let expected = format!("that of the output, {output:?}");
        Err(self.wrong_shape("output gradient", got, expected))
    }
}

//! [`PendingShards`]: the values that a layer keeps of each shard between forward and backward.

use std::collections::BTreeMap;

use ronde_core::Shard;

use crate::EngineError;

/// The shards of one layer between forward and backward, with the checks of their use.
pub(crate) struct PendingShards<T> {
    /// The name of the layer, for messages.
    pub(crate) layer: String,
    /// Whether backward can compute the gradient of the input.
    pub(crate) gives_input_gradient: bool,
    shards: BTreeMap<Shard, T>,
}

impl<T> PendingShards<T> {
    /// Creates an empty set.
    pub(crate) fn new(layer: &str, gives_input_gradient: bool) -> Self {
        Self {
            layer: layer.to_owned(),
            gives_input_gradient,
            shards: BTreeMap::new(),
        }
    }

    /// Stores a shard after its forward; another forward of it replaces the first.
    pub(crate) fn begin(&mut self, shard: Shard, kept: T) {
        self.shards.insert(shard, kept);
    }

    /// Removes and returns the values kept of a shard whose backward begins.
    ///
    /// # Errors
    /// When the layer cannot compute the requested input gradient, or the shard is not pending.
    pub(crate) fn end(
        &mut self,
        shard: Shard,
        needs_input_gradient: bool,
    ) -> Result<T, EngineError> {
        let layer = || self.layer.clone();
        if needs_input_gradient && !self.gives_input_gradient {
            return Err(EngineError::NoInputGradient {
                layer: layer(),
                shard,
            });
        }
        self.shards
            .remove(&shard)
            .ok_or_else(|| EngineError::NotInFlight {
                layer: self.layer.clone(),
                shard,
            })
    }

    /// Drops all shards.
    pub(crate) fn clear(&mut self) {
        self.shards.clear();
    }

    /// Returns the error of a value with a wrong shape.
    pub(crate) fn wrong_shape(
        &self,
        what: &'static str,
        got: &[usize],
        expected: String,
    ) -> EngineError {
        EngineError::Shape {
            layer: self.layer.clone(),
            what,
            got: got.to_vec(),
            expected,
        }
    }

    /// Checks that samples have the shape that the layer accepts.
    pub(crate) fn check_samples(&self, got: &[usize], sample: &[usize]) -> Result<(), EngineError> {
        if got.get(1..) == Some(sample) {
            return Ok(());
        }
        Err(self.wrong_shape("input", got, format!("samples of {sample:?}")))
    }

    /// Checks that an output gradient has the shape of the output.
    pub(crate) fn check_gradient(
        &self,
        got: &[usize],
        output: &[usize],
    ) -> Result<(), EngineError> {
        if got == output {
            return Ok(());
        }
        let expected = format!("that of the output, {output:?}");
        Err(self.wrong_shape("output gradient", got, expected))
    }
}

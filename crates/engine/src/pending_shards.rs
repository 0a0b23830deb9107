//! [`PendingShards`]: what a layer keeps of each shard between its forward and its backward.

use std::collections::BTreeMap;

use ronde_core::Shard;

use crate::EngineError;

/// The shards of one layer that are between forward and backward, and what can be wrong with that.
pub(crate) struct PendingShards<T> {
    /// Name of the layer, for messages.
    pub(crate) layer: String,
    /// Whether backward can be asked for the gradient of the input.
    pub(crate) gives_input_gradient: bool,
    shards: BTreeMap<Shard, T>,
}

impl<T> PendingShards<T> {
    /// No shard in flight.
    pub(crate) fn new(layer: &str, gives_input_gradient: bool) -> Self {
        Self {
            layer: layer.to_owned(),
            gives_input_gradient,
            shards: BTreeMap::new(),
        }
    }

    /// A shard went forward; another forward of it replaces the first.
    pub(crate) fn begin(&mut self, shard: Shard, kept: T) {
        self.shards.insert(shard, kept);
    }

    /// What was kept of a shard whose backward begins.
    ///
    /// # Errors
    /// When an input gradient is asked for that there is not, or the shard is not in flight.
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

    /// Forgets all shards.
    pub(crate) fn clear(&mut self) {
        self.shards.clear();
    }

    /// That a value does not fit this layer.
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

    /// That samples have another shape than the layer takes, if they do.
    pub(crate) fn check_samples(&self, got: &[usize], sample: &[usize]) -> Result<(), EngineError> {
        if got.get(1..) == Some(sample) {
            return Ok(());
        }
        Err(self.wrong_shape("input", got, format!("samples of {sample:?}")))
    }

    /// That an output gradient has another shape than the output had, if it has.
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

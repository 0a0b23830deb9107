//! [`Flight`]: what a stage keeps of each shard between its forward and its backward.

use std::collections::BTreeMap;

use ronde_core::Shard;

use crate::EngineError;

/// The shards of one stage that are between forward and backward, and what can be wrong with that.
pub(crate) struct Flight<T> {
    /// Name of the stage, for messages.
    pub(crate) stage: String,
    /// Whether backward can be asked for the gradient of the input.
    pub(crate) gives_input_gradient: bool,
    shards: BTreeMap<Shard, T>,
}

impl<T> Flight<T> {
    /// No shard in flight.
    pub(crate) fn new(stage: &str, gives_input_gradient: bool) -> Self {
        Self {
            stage: stage.to_owned(),
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
        let stage = || self.stage.clone();
        if needs_input_gradient && !self.gives_input_gradient {
            return Err(EngineError::NoInputGradient {
                stage: stage(),
                shard,
            });
        }
        self.shards
            .remove(&shard)
            .ok_or_else(|| EngineError::NotInFlight {
                stage: self.stage.clone(),
                shard,
            })
    }

    /// Forgets all shards.
    pub(crate) fn clear(&mut self) {
        self.shards.clear();
    }

    /// That a value does not fit this stage.
    pub(crate) fn wrong_shape(
        &self,
        what: &'static str,
        got: &[usize],
        expected: String,
    ) -> EngineError {
        EngineError::Shape {
            stage: self.stage.clone(),
            what,
            got: got.to_vec(),
            expected,
        }
    }

    /// That samples have another shape than the stage takes, if they do.
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

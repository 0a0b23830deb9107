//! [`EngineError`]: what can go wrong inside one rank's model.

use ronde_core::{Recovery, Shard};

/// Why a layer, a loss or a model could not do what was asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A value has a shape that the layer does not take.
    #[error("layer {layer}: {what} has shape {got:?}; expected {expected}")]
    Shape {
        /// Name or number of the layer.
        layer: String,
        /// Which value: `input`, `output gradient`.
        what: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// What would have been right, in words.
        expected: String,
    },
    /// `backward` of a shard whose training `forward` did not come before it.
    #[error("layer {layer}: backward of shard {shard}, but no forward of it is in flight")]
    NotInFlight {
        /// Name of the layer.
        layer: String,
        /// The shard.
        shard: Shard,
    },
    /// The gradient of an input was asked of a layer that was built without it.
    #[error("layer {layer} was built without an input gradient, and shard {shard} asks for it")]
    NoInputGradient {
        /// Name of the layer.
        layer: String,
        /// The shard.
        shard: Shard,
    },
    /// A sum over all shards did not come about; who summed holds the cause.
    #[error("layer {layer}: no sum over all shards")]
    NotSummed {
        /// Name of the layer.
        layer: String,
    },
    /// A label that is not a class.
    #[error("sample {sample}: label {label}, but there are {classes} classes")]
    Label {
        /// Index of the sample in its shard.
        sample: usize,
        /// The label.
        label: u32,
        /// Count of classes.
        classes: usize,
    },
    /// Logits and labels do not belong together.
    #[error("{logits} logits for {labels} labels of {classes} classes; expected labels x classes")]
    LogitCount {
        /// Count of logits.
        logits: usize,
        /// Count of labels.
        labels: usize,
        /// Count of classes.
        classes: usize,
    },
    /// A model cannot be built as configured.
    #[error("model {model}: {problem}")]
    Model {
        /// Kind of the model.
        model: String,
        /// What is wrong, with the numbers.
        problem: String,
    },
}

impl EngineError {
    /// What to do about it: nothing helps but a change of the program or its configuration.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

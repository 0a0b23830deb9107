//! [`EngineError`]: errors inside one rank's model.

use ronde_core::{Recovery, Shard};

/// An error of a layer, a loss or a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A value has a shape that the layer does not accept.
    #[error("layer {layer}: invalid shape {got:?} of the {what}; expected {expected}")]
    Shape {
        /// The name or number of the layer.
        layer: String,
        /// The value: `input`, `output gradient`.
        what: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// A description of the expected shape.
        expected: String,
    },
    /// `backward` of a shard without a preceding training `forward`.
    #[error("layer {layer}: cannot run backward of shard {shard}: no forward of it is pending")]
    NotInFlight {
        /// The name of the layer.
        layer: String,
        /// The shard.
        shard: Shard,
    },
    /// The input gradient was requested of a layer that was built without it.
    #[error(
        "layer {layer}: cannot compute the input gradient of shard {shard}: the layer was built without it"
    )]
    NoInputGradient {
        /// The name of the layer.
        layer: String,
        /// The shard.
        shard: Shard,
    },
    /// A sum over all shards failed; the implementation of the sum has the cause.
    #[error("layer {layer}: the sum over all shards failed")]
    NotSummed {
        /// The name of the layer.
        layer: String,
    },
    /// A label that is not a class number.
    #[error("invalid label {label} of sample {sample}: expected a number below {classes}")]
    Label {
        /// The index of the sample in its shard.
        sample: usize,
        /// The label.
        label: u32,
        /// The number of classes.
        classes: usize,
    },
    /// The numbers of logits and labels do not match.
    #[error(
        "got {logits} logits for {labels} labels of {classes} classes; expected labels x classes"
    )]
    LogitCount {
        /// The number of logits.
        logits: usize,
        /// The number of labels.
        labels: usize,
        /// The number of classes.
        classes: usize,
    },
    /// A model that cannot be built as configured.
    #[error("cannot build model {model}: {problem}")]
    Model {
        /// The kind of the model.
        model: String,
        /// The reason, with the numbers.
        problem: String,
    },
}

impl EngineError {
    /// Returns the action by which a caller may recover: none, the program or its configuration
    /// must change.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

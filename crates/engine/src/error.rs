//! [`EngineError`]: errors inside one rank's model.

use ronde_core::{Recovery, Shard};

use crate::precision::Precision;

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
    /// The input gradient was requested of a layer whose input has none, such as token numbers.
    #[error(
        "layer {layer}: cannot compute the gradient of the input of shard {shard}: it has none"
    )]
    NoInputGradient {
        /// The name of the layer.
        layer: String,
        /// The shard.
        shard: Shard,
    },
    /// A name that no layer of the model has, or a range that ends before it begins.
    #[error("cannot compute the activations of `{name}` again: the layers are, in order, {known}")]
    UnknownLayer {
        /// The name or the range.
        name: String,
        /// The names of all layers.
        known: String,
    },
    /// A sum over all shards failed; the implementation of the sum has the cause.
    #[error("layer {layer}: the sum over all shards failed")]
    NotSummed {
        /// The name of the layer.
        layer: String,
    },
    /// A layer of another engine has no short formats.
    #[error(
        "layer {layer}: cannot compute in `{}`: its engine {engine} has f32 only; set train.precision to `f32`",
        .precision.name()
    )]
    NoShortFormat {
        /// The first tensor of the layer.
        layer: String,
        /// The name of the engine.
        engine: String,
        /// The requested format.
        precision: Precision,
    },
    /// A text cannot be continued by a layer whose outputs depend on later positions.
    #[error("layer {layer}: cannot continue a text: its outputs depend on later positions")]
    NoExtension {
        /// The name of the layer, or its first tensor.
        layer: String,
    },
    /// A text has more tokens than the model has positions.
    #[error(
        "cannot continue a text of {kept} tokens by {more}: the model has {positions} positions"
    )]
    TextTooLong {
        /// The number of kept tokens.
        kept: usize,
        /// The number of new tokens.
        more: usize,
        /// The number of positions of the model.
        positions: usize,
    },
    /// The device that computes a layer failed.
    #[error("layer {layer}: the device failed: {cause}")]
    Device {
        /// The name of the layer.
        layer: String,
        /// The first error of the device.
        cause: String,
    },
    /// oneDNN cannot be used.
    #[error(
        "cannot use oneDNN: {cause}; install the Debian package libdnnl3 (libdnnl2 on Debian 12), or set train.engine to `ronde`"
    )]
    OneDnn {
        /// The cause, in words.
        cause: String,
    },
    /// The processor cannot multiply by a method.
    #[error(
        "this processor has no {instructions}, which train.products = \"{method}\" needs: remove the key, or use other machines"
    )]
    NoProducts {
        /// The method in a run file.
        method: &'static str,
        /// The instructions that are missing.
        instructions: &'static str,
    },
    /// The threads that compute could not be started.
    #[error("cannot start {threads} threads to compute: {cause}")]
    Threads {
        /// Their number.
        threads: usize,
        /// The error of the system.
        cause: String,
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
    /// A target that a loss of masks cannot use.
    #[error(
        "cannot compute the loss `{loss}` of target `{target}` of sample {sample}: expected 0 to 1, found {range}; divide the \
         targets, or use another train.loss, such as squared_error"
    )]
    TargetRange {
        /// The name of the loss.
        loss: String,
        /// The index of the sample in its shard.
        sample: usize,
        /// The target.
        target: String,
        /// The least and the greatest target of the samples.
        range: String,
    },
    /// A number of a sample that selects a row of a table, such as a user, beyond the table.
    #[error(
        "invalid {what} `{number}` of sample {sample}: the model has {rows} {what}s, so expected a whole number below {rows}; \
         correct the data, or raise the number of {what}s of the model"
    )]
    RowNumber {
        /// The kind of the row.
        what: &'static str,
        /// The index of the sample in its shard.
        sample: usize,
        /// The number.
        number: String,
        /// The number of rows.
        rows: usize,
    },
    /// A layer panicked, as modules do when a shape does not fit.
    #[error("layer {layer} panicked in its {pass} pass with an input of shape {got:?}: {message}")]
    Panicked {
        /// The number of the layer and its first tensor.
        layer: String,
        /// `forward` or `backward`.
        pass: &'static str,
        /// The shape of the input, or of the gradient of the output.
        got: Vec<usize>,
        /// The message of the panic.
        message: String,
    },
    /// The outputs or targets cannot be divided evenly among the samples.
    #[error("cannot divide {count} {what} among {samples} samples: expected equally many for each")]
    UnevenSamples {
        /// `outputs` or `targets`.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The number of samples.
        samples: usize,
    },
    /// A model has more or fewer outputs than a loss or metric computes from.
    #[error("{}", wrong_outputs(.function, *.samples, *.found, *.targets, *.factor))]
    OutputCount {
        /// The loss or metric.
        function: String,
        /// The number of samples.
        samples: usize,
        /// The number of outputs of each sample.
        found: usize,
        /// The number of targets of each sample.
        targets: usize,
        /// The expected number of outputs for each target.
        factor: usize,
    },
    /// The outputs of a model are not those of a grid of square cells, or the targets are not boxes.
    #[error(
        "{function}: the model has {outputs} outputs and {targets} targets for each sample; expected {each} outputs for \
         each square cell of an image of {} x {}, and 5 targets for each box",
        size[0], size[1]
    )]
    BoxCount {
        /// The loss or metric.
        function: String,
        /// The number of outputs of each sample.
        outputs: usize,
        /// The number of targets of each sample.
        targets: usize,
        /// The expected number of outputs of each cell.
        each: usize,
        /// The height and width of an image.
        size: [usize; 2],
    },
    /// The sides of a true box are not in order, or not inside the image.
    #[error(
        "invalid box {sides:?} of sample {sample}: expected 0 <= top < bottom <= 1 and 0 <= left < right <= 1"
    )]
    InvalidBox {
        /// The index of the sample in its shard.
        sample: usize,
        /// Top, left, bottom and right as shares of the image's height and width.
        sides: [f64; 4],
    },
    /// A loss returned more or fewer gradients than there are outputs.
    #[error(
        "loss {loss}: returned {found} gradients for {expected} outputs; expected one for each"
    )]
    GradientCount {
        /// The name of the loss.
        loss: String,
        /// The number of gradients.
        found: usize,
        /// The number of outputs.
        expected: usize,
    },
    /// A layer whose operations do not fit together.
    #[error("cannot build layer {layer}: {problem}")]
    Graph {
        /// The name of the layer.
        layer: String,
        /// The reason, with the shapes.
        problem: String,
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
    /// Returns whether the error is in a user's argument: a model, a loss, a metric or data that do not fit each
    /// other.
    #[must_use]
    pub fn is_user_error(&self) -> bool {
        matches!(
            self,
            Self::Shape { .. }
                | Self::Label { .. }
                | Self::RowNumber { .. }
                | Self::TargetRange { .. }
                | Self::UnevenSamples { .. }
                | Self::OutputCount { .. }
                | Self::GradientCount { .. }
                | Self::BoxCount { .. }
                | Self::InvalidBox { .. }
                | Self::Model { .. }
                | Self::TextTooLong { .. }
        )
    }

    /// Returns the recovery action for the caller: none, the program or its configuration
    /// must change.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

fn wrong_outputs(
    function: &str,
    samples: usize,
    found: usize,
    targets: usize,
    factor: usize,
) -> String {
    let expected = targets.saturating_mul(factor);
    let plural = if targets == 1 { "" } else { "s" };
    format!(
        "{function}: the model has {found} outputs for each of {samples} samples; \
         expected {expected} ({targets} target{plural} x {factor})"
    )
}

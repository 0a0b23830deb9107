//! [`Loss`]: the function that a model is trained to minimise, on the host, without the system's `libm`.
//!
//! A loss is not a layer: it is computed in f64, in the order of the samples, and its gradient starts the backward pass. Pipelines
//! start in the same way.

mod boxes;
mod classes;
mod classes_in_parts;
mod nearest;
mod segments;
mod values;

use std::fmt;
use std::sync::Arc;

use ronde_core::PartTransfer;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::graph::PartPlace;
use crate::predictions::Predictions;

pub use boxes::DetectionLoss;
pub use classes::{CrossEntropy, IGNORED};
pub(crate) use classes::{check_label, counted};
pub use nearest::NearestDistance;
pub(crate) use nearest::nearest;
pub use segments::{BinaryCrossEntropy, DiceLoss, SmoothL1};
pub use values::SquaredError;

/// A built-in loss of values, as a run file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ValueLoss {
    /// [`SquaredError`].
    SquaredError,
    /// [`SmoothL1`].
    SmoothL1,
    /// [`BinaryCrossEntropy`].
    BinaryCrossEntropy,
    /// [`DiceLoss`].
    Dice,
}

impl ValueLoss {
    /// Returns the loss.
    #[must_use]
    pub fn loss(self) -> Arc<dyn Loss> {
        match self {
            Self::SquaredError => Arc::new(SquaredError),
            Self::SmoothL1 => Arc::new(SmoothL1),
            Self::BinaryCrossEntropy => Arc::new(BinaryCrossEntropy),
            Self::Dice => Arc::new(DiceLoss),
        }
    }

    /// Returns whether it is a loss of masks, whose outputs are logits.
    #[must_use]
    pub fn is_of_masks(self) -> bool {
        matches!(self, Self::BinaryCrossEntropy | Self::Dice)
    }
}

/// The contribution of some samples: sums over their counted targets, not divided by the number of these.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LossOutput {
    /// The sum of the losses of the counted targets.
    pub loss_sum: f64,
    /// The gradient of `loss_sum` by the outputs: as many values, in the same order.
    pub gradient: Vec<f32>,
}

/// A loss function: the loss and its gradient as sums, so that the trained bits do not depend on the assignment of samples to
/// workers.
///
/// The loss of a batch is the sum of all its samples divided by the number of counted targets of all its samples
/// ([`Loss::counted_targets`]), on whichever workers these are. A sample that has more targets weighs more.
///
/// The result must depend on the predictions alone, and be the same on every machine: use no random numbers and no
/// functions of the system's `libm`, such as [`f64::exp`], but those of the crate `libm`.
///
/// ```
/// use ronde_engine::{EngineError, Loss, LossOutput, Predictions};
///
/// /// The absolute difference between one output and its target.
/// struct AbsoluteError;
///
/// impl Loss for AbsoluteError {
///     fn name(&self) -> String {
///         "absolute_error".to_owned()
///     }
///
///     fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
///         predictions.expect_outputs("absolute_error", 1)?;
///         let mut total = LossOutput::default();
///         for (output, target) in predictions.outputs().iter().zip(predictions.targets()) {
///             let error = output - Predictions::value(*target);
///             total.loss_sum += f64::from(error.abs());
///             total.gradient.push(error.signum());
///         }
///         Ok(total)
///     }
/// }
///
/// let targets = [1.0_f32, 2.0].map(f32::to_bits);
/// let predictions = Predictions::new(&[4.0, 1.5], &targets, 2)?;
/// let output = AbsoluteError.loss_and_gradient(&predictions)?;
/// assert_eq!((output.loss_sum, output.gradient), (3.5, vec![1.0, -1.0]));
/// # Ok::<(), EngineError>(())
/// ```
pub trait Loss: Send + Sync {
    /// Returns a stable name with all constants, such as `focal(gamma=2)`. It is part of the run's identity: change it
    /// with the function.
    fn name(&self) -> String;

    /// Returns the number of terms in the sum of [`Loss::loss_and_gradient`], by which the sums over a global batch are divided; by
    /// default the number of samples, for a loss that is a mean over samples. A loss that contains another one returns the
    /// number of that one.
    fn counted_targets(&self, _targets: &[u32], samples: usize) -> u64 {
        samples as u64
    }

    /// Returns the sum of the losses of all counted targets and its gradient by the outputs.
    ///
    /// # Errors
    /// When the outputs or targets do not fit the function.
    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError>;

    /// Returns the sum of the losses and replaces the outputs by its gradient, as [`Loss::loss_and_gradient`] computes them. By
    /// default the gradient is copied; a function can avoid its memory.
    ///
    /// # Errors
    /// As [`Loss::loss_and_gradient`], and when there is not one gradient for each output.
    fn loss_and_gradient_in_place(
        &self,
        outputs: &mut [f32],
        targets: &[u32],
        samples: usize,
    ) -> Result<f64, EngineError> {
        let found = self.loss_and_gradient(&Predictions::new(outputs, targets, samples)?)?;
        let found = with_count(found, outputs.len(), || self.name())?;
        outputs.copy_from_slice(&found.gradient);
        Ok(found.loss_sum)
    }

    /// Returns the function for outputs that are divided among processes; `None` if it needs all outputs of a sample, as by
    /// default.
    fn in_parts(&self) -> Option<&dyn LossInParts> {
        None
    }
}

/// A loss function of outputs that are divided among processes along their last dimension, such as scores of parts of a
/// vocabulary. Its sums follow a fixed tree over the numbers of the parts, so its bits do not depend on the processes.
pub trait LossInParts: Send + Sync {
    /// Returns the loss of all samples, which is the same in each process, and its gradient by the own outputs. `outputs` has
    /// the own parts side by side; `widths` are the lengths of the last dimension of all parts.
    ///
    /// # Errors
    /// As [`Loss::loss_and_gradient`], and [`EngineError::NotSummed`].
    fn loss_of_parts(
        &self,
        outputs: Vec<f32>,
        widths: &[usize],
        targets: &[u32],
        samples: usize,
        place: &PartPlace,
    ) -> Result<LossOutput, EngineError>;

    /// Returns what the processes exchange for a number of targets, with outputs in a number of parts.
    fn transfers_of_parts(&self, targets: usize, parts: usize) -> Vec<PartTransfer>;
}

impl<'a> dyn Loss + 'a {
    /// Calls [`Loss::loss_and_gradient`] and checks the number of gradients.
    ///
    /// # Errors
    /// As [`Loss::loss_and_gradient`], and when there is not one gradient for each output.
    pub fn checked(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let output = self.loss_and_gradient(predictions)?;
        with_count(output, predictions.outputs().len(), || self.name())
    }
}

/// Checks that there is one gradient for each output.
fn with_count(
    output: LossOutput,
    expected: usize,
    name: impl FnOnce() -> String,
) -> Result<LossOutput, EngineError> {
    let found = output.gradient.len();
    if found == expected {
        return Ok(output);
    }
    Err(EngineError::GradientCount {
        loss: name(),
        found,
        expected,
    })
}

impl fmt::Debug for dyn Loss + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests;

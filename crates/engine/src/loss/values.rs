//! [`SquaredError`]: the loss of values.

use super::{Loss, LossOutput};
use crate::error::EngineError;
use crate::predictions::Predictions;

/// `(output - target)^2`; of a sample, the mean over its outputs, and of a batch, that over its samples, which have equally many.
/// Targets are the bits of `f32` values. Computed in f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SquaredError;

impl Loss for SquaredError {
    fn name(&self) -> String {
        "squared_error".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        predictions.expect_outputs("loss squared_error", 1)?;
        let mut total = LossOutput {
            loss_sum: 0.0,
            gradient: vec![0.0; predictions.outputs().len()],
        };
        let width = predictions.outputs_per_sample();
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            let gradient = &mut total.gradient[sample * width..(sample + 1) * width];
            let count = width as f64;
            let mut sum = 0.0;
            for ((output, target), gradient) in outputs.iter().zip(targets).zip(gradient) {
                let error = f64::from(*output) - f64::from(Predictions::value(*target));
                sum += error * error;
                *gradient = (2.0 * error / count) as f32;
            }
            total.loss_sum += sum / count;
        }
        Ok(total)
    }
}

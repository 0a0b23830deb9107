//! [`CrossEntropy`]: the loss of class numbers.

use std::ops::Range;

use ronde_kernels::{Vectorised, softmax_cross_entropy, vectorised};

use super::{Loss, LossOutput};
use crate::memory;
use crate::{EngineError, Predictions};

/// The target that is not counted, as for positions after the end of a text.
pub const IGNORED: u32 = u32::MAX;

/// `-log(softmax(logits)[target])` in nats; the mean over a sample's targets that are not [`IGNORED`].
///
/// Computed in f64, targets in order. Outputs that are not finite give a NaN loss. Cost: one exponential per logit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrossEntropy {
    /// The number of logits of one target.
    pub classes: usize,
}

impl Loss for CrossEntropy {
    fn name(&self) -> String {
        "cross_entropy".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        predictions.expect_outputs("loss cross_entropy", self.classes)?;
        let mut total = LossOutput {
            loss_sum: 0.0,
            gradient: memory::take(predictions.outputs().len()),
        };
        let width = predictions.outputs_per_sample();
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            let gradient = &mut total.gradient[sample * width..(sample + 1) * width];
            total.loss_sum += self.add_sample(sample, outputs, targets, gradient)?;
        }
        Ok(total)
    }
}

impl CrossEntropy {
    /// Writes the gradient of a sample and returns its loss.
    fn add_sample(
        &self,
        sample: usize,
        outputs: &[f32],
        targets: &[u32],
        gradient: &mut [f32],
    ) -> Result<f64, EngineError> {
        let counted = targets.iter().filter(|&&target| target != IGNORED).count();
        let share = 1.0 / counted.max(1) as f32;
        let mut sum = 0.0;
        for (index, &label) in targets.iter().enumerate() {
            let row: Range<usize> = index * self.classes..(index + 1) * self.classes;
            let gradient = &mut gradient[row.clone()];
            if label == IGNORED {
                gradient.fill(0.0);
                continue;
            }
            check_label(sample, label, self.classes)?;
            sum += softmax_cross_entropy(&outputs[row], label as usize, gradient).loss;
            if counted > 1 {
                vectorised(ScaleByShare(gradient, share));
            }
        }
        Ok(if counted > 1 {
            sum / counted as f64
        } else {
            sum
        })
    }
}

/// Checks that the label of a sample is a class number.
pub(crate) fn check_label(sample: usize, label: u32, classes: usize) -> Result<(), EngineError> {
    if (label as usize) < classes {
        return Ok(());
    }
    Err(EngineError::Label {
        sample,
        label,
        classes,
    })
}

/// Multiplies a gradient by the weight of one of several targets.
struct ScaleByShare<'a>(&'a mut [f32], f32);

impl Vectorised for ScaleByShare<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|value| *value *= self.1);
    }
}

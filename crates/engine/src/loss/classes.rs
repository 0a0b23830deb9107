//! [`CrossEntropy`]: the loss of class numbers.

use std::ops::Range;

use ronde_kernels::softmax_cross_entropy;

use super::{Loss, LossInParts, LossOutput};
use crate::error::EngineError;
use crate::predictions::Predictions;

/// The target that is not counted, as for positions after the end of a text.
pub const IGNORED: u32 = u32::MAX;

/// `-log(softmax(logits)[target])` in nats; of a batch, the mean over all targets that are not [`IGNORED`], such as the tokens
/// of texts. A sample without such a target adds nothing.
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

    fn counted_targets(&self, targets: &[u32], _: usize) -> u64 {
        counted(targets)
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        predictions.expect_outputs("loss cross_entropy", self.classes)?;
        let mut total = LossOutput {
            loss_sum: 0.0,
            gradient: vec![0.0; predictions.outputs().len()],
        };
        let width = predictions.outputs_per_sample();
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            let gradient = &mut total.gradient[sample * width..(sample + 1) * width];
            let rows = Rows::Apart(outputs, gradient);
            total.loss_sum += self.add_sample(sample, targets, rows)?;
        }
        Ok(total)
    }

    fn in_parts(&self) -> Option<&dyn LossInParts> {
        Some(self)
    }

    fn loss_and_gradient_in_place(
        &self,
        outputs: &mut [f32],
        targets: &[u32],
        samples: usize,
    ) -> Result<f64, EngineError> {
        let predictions = Predictions::new(outputs, targets, samples)?;
        predictions.expect_outputs("loss cross_entropy", self.classes)?;
        let (width, each) = (
            predictions.outputs_per_sample(),
            predictions.targets_per_sample(),
        );
        let (mut loss_sum, mut row) = (0.0, vec![0.0; self.classes]);
        for sample in 0..samples {
            let values = &mut outputs[sample * width..(sample + 1) * width];
            let targets = &targets[sample * each..(sample + 1) * each];
            loss_sum += self.add_sample(sample, targets, Rows::Replaced(values, &mut row))?;
        }
        Ok(loss_sum)
    }
}

/// The outputs of a sample and the memory of their gradient.
enum Rows<'a> {
    /// The gradient has separate memory.
    Apart(&'a [f32], &'a mut [f32]),
    /// The gradient replaces the outputs, which are copied row by row.
    Replaced(&'a mut [f32], &'a mut [f32]),
}

impl Rows<'_> {
    /// Returns a row of outputs and the memory of its gradient.
    fn row(&mut self, row: Range<usize>) -> (&[f32], &mut [f32]) {
        match self {
            Self::Apart(outputs, gradient) => (&outputs[row.clone()], &mut gradient[row]),
            Self::Replaced(values, copy) => {
                copy.copy_from_slice(&values[row.clone()]);
                (copy, &mut values[row])
            }
        }
    }
}

impl CrossEntropy {
    /// Writes the gradient of a sample and returns its loss.
    fn add_sample(
        &self,
        sample: usize,
        targets: &[u32],
        mut rows: Rows<'_>,
    ) -> Result<f64, EngineError> {
        let mut sum = 0.0;
        for (index, &label) in targets.iter().enumerate() {
            let row: Range<usize> = index * self.classes..(index + 1) * self.classes;
            let (outputs, gradient) = rows.row(row);
            if label == IGNORED {
                gradient.fill(0.0);
                continue;
            }
            check_label(sample, label, self.classes)?;
            sum += softmax_cross_entropy(outputs, label as usize, gradient).loss;
        }
        Ok(sum)
    }
}

/// Returns the number of targets that are not [`IGNORED`].
pub(crate) fn counted(targets: &[u32]) -> u64 {
    targets.iter().filter(|&&target| target != IGNORED).count() as u64
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
